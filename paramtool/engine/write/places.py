"""Where an output may go: never over an input, and over another file only with `--force`."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from shlex import quote
from types import TracebackType

from paramtool.engine.read.open_files import read_blocks
from paramtool.errors import FormatError, OutputError, UnreadableError, UnsafeError
from paramtool.formats import strict_json
from paramtool.formats.files import holds, same_bytes, walk
from paramtool.formats.folder.weight_names import WeightsName

NOTHING: Mapping[str, str] = {}


def settled(path: str) -> str:
    """A path in its shortest form; `.` and `..` by their real names, since an output is first written beside its place.

    >>> settled("a//b/.") , settled("/a/..")
    ('a/b', '/')
    """
    path = os.path.normpath(path)
    return os.path.realpath(path) if os.path.basename(path) in (os.curdir, os.pardir) else path


def check_place(
    path: str,
    is_folder: bool,
    force: bool,
    inputs: Iterable[str],
    *,
    known: Mapping[str, str | bytes] = NOTHING,
    weights: Iterable[WeightsName] = (),
) -> None:
    """Check that an output may be written to `path`; OutputError says why not, also if `path` cannot be inspected.

    An output never replaces an input, nor a folder that holds anything but an earlier output of paramtool: `weights`
    with these names, and unchanged `known` files (see `_overwrite.foreign`).
    """
    with writing(path):
        check_not_empty(path)
        if path.endswith(os.sep) and not is_folder:
            hint = "-o FILE.safetensors; a folder is written where the input is one"
            raise OutputError(f"{path!r}: is not a file name", hint=hint)
        path = settled(path)
        # OutputError if nothing of that name can be made in the folder of an output
        parent = os.path.dirname(path) or "."
        if not os.path.isdir(parent):
            above = parent
            while not os.path.lexists(above) and os.path.dirname(above) != above:
                above = os.path.dirname(above) or "."
            if os.path.exists(above) and not os.path.isdir(above):
                raise OutputError(f"{path}: {above} is a file, not a folder", hint="choose another -o")
            raise OutputError(f"{path}: the folder {parent} does not exist", hint=f"mkdir -p {quote(parent)}")
        with suppress(OSError, AttributeError):  # Windows has no pathconf
            if (nbytes := len(os.fsencode(os.path.basename(path)))) > (most := os.pathconf(parent, "PC_NAME_MAX")):
                raise OutputError(f"{path}: the name has {nbytes} bytes; {parent} allows {most}", hint="shorten -o")
        if not os.path.lexists(path):
            return
        mine = os.path.realpath(path)
        for source in inputs:
            folders = {os.path.realpath(os.path.dirname(source) or "."), os.path.dirname(os.path.realpath(source))}
            if os.path.realpath(source) == mine or (os.path.isdir(mine) and mine in folders):
                what = "an input" if os.path.realpath(source) == mine else f"the folder of {source}, an input"
                raise OutputError(f"{path}: is {what}, which is never overwritten", hint="choose another -o")
        # OutputError if not even `--force` would overwrite what is there
        mine = os.path.realpath(path)
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise OutputError(f"{path}: is not a regular file; outputs are files or folders", hint="choose another -o")
        if os.path.islink(path):
            hint = f"-o {quote(mine)}"
            raise OutputError(f"{path}: is a link to {mine}; --force would replace the link itself", hint=hint)
        if not (os.path.isdir(path) if is_folder else os.path.isfile(path)):
            kind = "a folder" if is_folder else "a file"
            raise OutputError(f"{path}: exists and is not {kind}; --force would lose it", hint="choose another -o")
        if is_folder and (others := list(islice(foreign(path, known, weights), 5))):
            raise OutputError(
                f"{path}: holds other files, which --force would lose: {', '.join(others)}",
                hint="remove the folder, or choose another -o",
            )
        if not force:
            raise OutputError(f"{path}: exists", hint="overwrite it with --force, or choose another -o")


def check_not_empty(path: str) -> None:
    """OutputError for an output without a name."""
    if not path:
        raise OutputError("the name of the output is empty", hint="-o FILE.safetensors, or -o FOLDER")


def check_beside(path: str, names: Iterable[str]) -> None:
    """OutputError if a file that an output needs beside it is there already: an older output may refer to its bytes."""
    for name in names:
        beside = os.path.join(os.path.dirname(path), name)
        if os.path.lexists(beside):
            raise OutputError(
                f"{beside}: exists; {path} needs this file for its data, and --force does not overwrite it, since an "
                "older file may refer to it",
                hint="remove both, or choose another -o",
            )


def check_apart(output: str, inputs: Iterable[str]) -> None:
    """OutputError where an output would be inside an input folder, or an input inside the output."""
    check_not_empty(output)
    mine = os.path.join(os.path.realpath(output), "")
    for path in inputs:
        real = os.path.realpath(path)
        if os.path.join(real, "") == mine:
            raise OutputError(f"{output}: is an input, which is never overwritten", hint="choose another -o")
        if os.path.join(real, "").startswith(mine):
            raise OutputError(f"{output}: holds {path}, an input, which is never overwritten", hint="choose another -o")
        if os.path.isdir(real) and mine.startswith(os.path.join(real, "")):
            hint = "choose another -o: what is inside is read with the folder the next time"
            raise OutputError(f"{output}: would be inside {path}, an input", hint=hint)


class writing:
    """`with writing(path):` turns an OSError in the block into an OutputError for that output."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            hint = HINTS.get(error.errno or 0, "")
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}", hint=hint) from None


HINTS = {
    errno.ENOSPC: "free some space, or choose -o on another disk",
    errno.EDQUOT: "free some space, or choose -o on another disk",
    errno.EROFS: "choose -o in a place that can be written to",
    errno.EFBIG: "the file system, or `ulimit -f`, does not allow a file of that size",
    errno.EMFILE: "`ulimit -n 1024` allows more open files",
    errno.EPERM: "its folder may protect it from other users (the sticky bit), or the file is immutable",
}


# --- Whether a folder is an earlier output, so that `--force` may replace it without losing other files --------------


def foreign(folder: str, known: Mapping[str, str | bytes], weights: Iterable[WeightsName] = ()) -> Iterator[str]:
    """The files of a folder that are neither weights under the output's names nor exact copies of `known` files.

    `known` maps names, with `/`, to the files that would be copied there, or to what would be written: an equal file
    may be replaced.  One that was changed since is kept, since it may be a user's work.
    """
    if os.path.isfile(os.path.join(folder, MANIFEST)):
        yield from unexpected_files(folder)
        return
    own = {name for one in weights for name in _own_names(folder, one)}
    inside = [name for name in (*known, *own) if "/" in name]
    for place, folders, files in walk(folder):
        here = os.path.relpath(place, folder).replace(os.sep, "/")
        prefix = "" if here == os.curdir else f"{here}/"
        for name in sorted(folders):
            if os.path.islink(os.path.join(place, name)) or not any(n.startswith(f"{prefix}{name}/") for n in inside):
                folders.remove(name)
                yield f"{prefix}{name}"
        for name in sorted(files):
            path = os.path.join(place, name)
            name = prefix + name
            if name not in own and not (name in known and _same(path, known[name])):
                yield f"{name} (changed)" if name in known else name


def _same(path: str, other: str | bytes) -> bool:
    """Whether a file equals what would be copied or written there.  UnreadableError if that cannot be read."""
    if os.path.islink(path):
        return False
    try:
        if isinstance(other, bytes):
            return holds(path, other)
        return same_bytes(path, other)
    except UnreadableError as error:
        if error.path == path:
            return False
        raise


def _own_names(folder: str, weights: WeightsName) -> set[str]:
    """The weights of an output of paramtool: an index and the shards that it lists, or a single file."""
    from paramtool.formats.safetensors.index import plain_names

    prefix = weights.stem[: weights.stem.rfind("/") + 1]
    try:
        index = os.path.join(folder, weights.index)
        if not os.path.lexists(index):
            return {weights.file, *(prefix + name for name in weights.beside)}
        listed = strict_json.strict_file(index, "an index", strict_json.MAX_INDEX_NBYTES)[0]["weight_map"].values()
        return {weights.index, *(prefix + name for name in plain_names(index, list(listed)))}
    except (FormatError, UnsafeError, LookupError, AttributeError, TypeError):
        return set()


# --- The manifest of an output of several folders: the files that were written, so that a later run knows what it may
# replace -------------------------------------------------------------------------------------------------------------
#
# DIR/paramtool.family.json     {"version": 2, "files": {"a/config.json": {"size": 612, "blake3": "06be..."}, ...}}
#
# The size alone does not show that a file is unchanged: a shard that was changed in place keeps its size.


MANIFEST = "paramtool.family.json"
VERSION = 2


def manifest(folder: str) -> bytes:
    """The manifest of a folder as it is now, in JSON; a file with several names is read once."""
    known: dict[int, dict[str, int | str]] = {}
    found = {}
    for name in _files(folder):
        if name != MANIFEST:
            path = os.path.join(folder, name)
            inode = os.lstat(path).st_ino
            if inode not in known:
                known[inode] = _size_and_digest(path)
            found[name] = known[inode]
    return (json.dumps({"version": VERSION, "files": found}, indent=2) + "\n").encode()


def unexpected_files(folder: str) -> Iterator[str]:
    """The files of a folder that do not agree with its manifest: they were added or changed later."""
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as file:
            document = json.load(file)
        known = {
            str(name): {"size": facts["size"], "blake3": facts["blake3"]} for name, facts in document["files"].items()
        }
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        yield MANIFEST
        return
    same: dict[int, dict[str, int | str]] = {}
    for name in _files(folder):
        if name == MANIFEST:
            continue
        path = os.path.join(folder, name)
        status = os.lstat(path)
        if os.path.islink(path) or name not in known:
            yield name
        elif status.st_size != known[name]["size"]:
            yield f"{name} (changed)"
        else:
            try:
                if status.st_ino not in same:
                    same[status.st_ino] = _size_and_digest(path)
            except (OSError, FormatError):
                yield f"{name} (cannot be read)"
                continue
            if same[status.st_ino] != known[name]:
                yield f"{name} (changed)"


def _size_and_digest(path: str) -> dict[str, int | str]:
    """The size and the digest of a file."""
    from blake3 import blake3

    made = blake3()
    with open(path, "rb", buffering=0) as file:
        nbytes = os.fstat(file.fileno()).st_size
        for block in read_blocks(file, 0, nbytes):
            made.update(block)
    return {"size": nbytes, "blake3": made.hexdigest()}


def _files(folder: str) -> Iterator[str]:
    """The relative paths, with `/`, of everything under a folder that is not a folder; sorted."""
    for place, folders, files in walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = sorted(set(folders) - set(links))
        for name in sorted([*files, *links]):
            yield os.path.relpath(os.path.join(place, name), folder).replace(os.sep, "/")
