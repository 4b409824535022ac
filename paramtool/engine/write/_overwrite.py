"""Whether a folder is an earlier output, so that `--force` may replace it without losing other files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from paramtool.engine.write._manifest import MANIFEST, unexpected_files
from paramtool.errors import FormatError, UnreadableError, UnsafeError
from paramtool.formats import strict_json
from paramtool.formats.files import holds, same_bytes, walk
from paramtool.formats.folder.weight_names import WeightsName


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
