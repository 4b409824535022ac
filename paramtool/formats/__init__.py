"""From bytes on disk to the description of a checkpoint.  The content of a file decides its format, not its extension.

A reader is a function `read(path) -> Checkpoint` that reads no tensor data.  `table.py` lists the readers with the
functions that recognise a file by its first bytes, and `foreign.py` names what is recognised and not read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

from paramtool.errors import FormatError, ParamtoolError, UnsafeError, UsageError, plural, some
from paramtool.formats import config_names, sniff, table
from paramtool.formats.files import Contents, is_folder, open_source, read_bytes, unreadable
from paramtool.formats.folder import weight_names
from paramtool.formats.folder.weight_names import Weights
from paramtool.formats.once import once
from paramtool.formats.zip import directory as zip_directory
from paramtool.model.checkpoint import Checkpoint, judged_files
from paramtool.model.objects import tensor_names
from paramtool.model.storage import ByteRange, Encoded, SourceFile

if TYPE_CHECKING:
    from paramtool.formats.folder.below import FolderReading
    from paramtool.formats.scan import Scanned


def read(
    path: str | os.PathLike[str],
    weights: str | None = None,
    *,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
) -> Checkpoint:
    """Describe the checkpoint at `path`: a file, an index, or a folder that holds one of these.

    Reads no tensor data, and imports and runs nothing that the file names.  FormatError if the file is damaged or
    foreign; UnsafeError if its pickles call something that is not known to only hold data (docs/security.md).
    `allow_class` lists names that may be called, and patterns of classes that only hold data; with `allow_unknown`
    everything is described, except what would have been called.  In a folder with several sets of weights `weights`
    names the file to read; UsageError if the sets differ and it is not given.  To compare them, the first bytes of
    tensors are read.
    """
    return opened(path, weights, allow_class=allow_class, allow_unknown=allow_unknown).checkpoint


def opened(
    path: str | os.PathLike[str],
    weights: str | None = None,
    *,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
) -> Weights:
    """The same, with the name of its weights in an output folder, and the copies of them in the same folder.

    Every file of a folder that holds weights counts, unless `weights` names one; notes name other unsafe files.
    """
    from paramtool.formats import policy

    allowed = policy.checked(allow_class)
    found = looked_at(path, weights, allow_class=allowed, allow_unknown=allow_unknown)
    return _refused(found, weights is None, allowed, allow_unknown)


def _refused(found: Weights, whole: bool, allow_class: tuple[str, ...], allow_unknown: bool) -> Weights:
    """A set of weights with notes of its folder; UnsafeError if it is unsafe, or another file of the `whole` folder."""
    from paramtool.formats import policy

    below, first, own = found.below, found.checkpoint.path, {file.path for file in found.checkpoint.files}
    files = below.files.items() if below and whole else ()
    judged = {path: seen.asked for path, seen in files if seen.asked and (path in own or seen.weights)}
    if own.isdisjoint(judged):
        judged[first] = found.checkpoint.unknown
    refused = below.refused if below and whole else ()
    if below and whole:
        below.refuse_defects()
    policy.refuse(judged.items(), allow_class, allow_unknown, refused=refused)
    return _told(found, (*(below.warnings(judged, allow_class) if below and not allow_unknown else ()), *found.told))


def _told(found: Weights, told: tuple[str, ...]) -> Weights:
    checkpoint = replace(found.checkpoint, notes=(*found.checkpoint.notes, *told))
    if found.below is not None:
        found = replace(found, below=found.below._replace(told=told), of_config=())
    return replace(found, checkpoint=checkpoint)


def describe(
    path: str | os.PathLike[str],
    weights: str | None = None,
    *,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
) -> Weights:
    """As `opened`, for inspection: what pickles call is only listed, in `Checkpoint.unknown` and `Weights.below`.

    For a file that cannot be described, the error also says what its pickles call.  A note names the files of a folder
    that look like copies of its weights.
    """
    found = looked_at(path, weights, allow_class=allow_class, allow_unknown=allow_unknown)
    copies = copies_note(found)
    return _told(found, (*([copies] if copies else ()), *found.told))


def copies_note(found: Weights) -> str:
    """What is not read as weights of a folder, beside the set that was taken; empty where there is nothing."""
    names = [os.path.basename(copy.path) for copy in found.copies if copy.pairs]
    taken = os.path.basename(found.path)
    alike = [f"{some(names, 3)}, with tensors of the names and shapes of {taken}"] if names else []
    other = [f"{some(found.forms, 3)}, which {OTHER_FORM}"] if found.forms else []
    names = [*map(os.path.basename, found.other_tensors)]
    more = [f"{some(names, 3)}, with other tensors"] if names else []
    said = "; ".join([*alike, *other, *more])
    return f"not read as weights: {said}" if said else ""


OTHER_FORM = "has no tensor name in common with it; by the file's name it is the model for another framework"
"""What is known of another form of a model in the same folder."""


def looked_at(
    path: str | os.PathLike[str],
    weights: str | None,
    *,
    allow_class: Sequence[str],
    allow_unknown: bool,
) -> Weights:
    """As `opened`, with unknown names only listed as in `describe`."""
    path = os.fspath(path)
    with _judging(path, allow_class, allow_unknown):
        if is_folder(path):
            from paramtool.formats.folder import weight_sets

            with _below(path) as reading:
                found = weight_sets.only(path, reading.read, weights)
            return _named(replace(found, below=reading.below))
        if weights is not None:
            raise UsageError(f"{path}: --weights {weights!r} needs a folder; this is a file")
        meant = _meant(path)
        found = Weights(meant, read_file(path), weight_names.of_file(meant))
        if found.checkpoint.is_of_a_rank:
            from paramtool.formats.folder import rank_files

            found = rank_files.whole(found, None)
        return _named(found)


def _named(found: Weights) -> Weights:
    """The same with the names that the config beside it adds."""
    named, notes = config_names.with_config(found.checkpoint)
    return replace(found, checkpoint=named, of_config=tuple(notes))


@contextmanager
def _below(folder: str) -> Iterator[FolderReading]:
    """Reads the weights of a folder and then scans its other files, also where there are no weights."""
    from paramtool.formats.folder.below import FolderReading

    reading = FolderReading(folder, read_file)
    try:
        yield reading
    except ParamtoolError as error:
        error.below = reading.finish()
        raise
    reading.finish()


def _meant(path: str) -> str:
    """The file that a path means: the path itself, or the index of the TensorFlow bundle that it is part of."""
    if os.path.lexists(path) and not sniff.means_bundle(path):
        return path
    from paramtool.formats.tensorflow import names

    return names.meant(path)


def opened_each(
    folder: str | os.PathLike[str], *, allow_class: Sequence[str] = (), allow_unknown: bool = False
) -> dict[str, list[Weights]]:
    """Every set of weights of a folder and its subfolders: {subfolder, empty for the folder itself: sets}."""
    from paramtool.formats import policy
    from paramtool.formats.folder import weight_sets

    folder = os.fspath(folder)
    if os.path.isfile(folder):
        raise UsageError(f"{folder}: --each needs a folder; this is a file")
    allowed = policy.checked(allow_class)
    with _judging(folder, allowed, allow_unknown), _below(folder) as reading:
        every = weight_sets.every(folder, reading.read)
        found = {place: [_named(one) for one in sets] for place, sets in every.items()}
    (place, (first, *others)), *rest = found.items()
    first = _refused(replace(first, below=reading.below), True, allowed, allow_unknown)
    for one in (*others, *(one for _, sets in rest for one in sets)):
        _refused(one, True, allowed, allow_unknown)
    return {place: [first, *others], **dict(rest)}


@contextmanager
def _judging(path: str, allow_class: Sequence[str], allow_unknown: bool) -> Iterator[None]:
    """Turn an error of reading into an UnsafeError if the file, or any below the folder, is unsafe too.

    Garbage collection pauses: a description consists of many
    objects, all of which stay; collecting would take a third of the time.
    """
    import gc

    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    except ParamtoolError as error:
        from paramtool.formats import policy

        below = error.below
        asked = [*below.asked().items()] if below else []
        if below:
            below.refuse_defects()
        refused = below.refused if below else []
        besides = "" if error in refused else error.message
        try:
            policy.refuse(asked or [(path, error.asked)], allow_class, allow_unknown, besides=besides, refused=refused)
        except UnsafeError as unsafe:
            unsafe.asked, unsafe.below = error.asked, below
            raise unsafe from None
        raise
    finally:
        if collects:
            gc.enable()


@once
def read_file(path: str) -> Checkpoint:
    """Describe one file, or the shards of one index, or the bundle that it is part of."""
    if (meant := _meant(path)) != path:
        from paramtool.formats import policy, scan

        found = read_file(meant)
        return replace(found, unknown=policy.merged((*found.unknown, *scan.scan(path))))
    with _opened(path) as (file, source, head):
        if not weight_names.is_index(head, path) and not path.endswith(sniff.DISTRIBUTED):
            return _alone(_read_as(file, source, head))
    if path.endswith(sniff.DISTRIBUTED):
        from shlex import quote

        from paramtool.formats import scan

        folder = os.path.dirname(path) or os.curdir
        error = FormatError(
            f"{path}: has the parts of tensors that one rank saved with torch.distributed.checkpoint",
            hint=f"name its folder, whose `.metadata` says what they are: {quote(folder)}",
        )
        error.asked = scan.scan(path)
        raise error
    from paramtool.formats.safetensors import sharded

    with _asking(path):
        return sharded.read(path, read_whole)


@contextmanager
def _asking(path: str) -> Iterator[None]:
    """If a file cannot be read, and holds pickles, `ParamtoolError.asked` lists the unknown names in them."""
    try:
        yield
    except (FormatError, UnsafeError) as error:
        from paramtool.formats import scan

        error.asked = error.asked or scan.scan(path)
        raise
    except OSError as error:
        raise unreadable(os.fsdecode(error.filename or path), error) from None


def _alone(found: Checkpoint) -> Checkpoint:
    """The description of a file that was not read through an index, with a note if it is one shard of several."""
    if found.producer != "paramtool":
        return found
    others = [name for name in tensor_names(found.objects) if name not in found.entries]
    if not others:
        return found
    note = (
        f"the objects in its alias record refer to {plural(len(others), 'tensor')} that the file does not hold "
        f"({others[0]!r:.200}, ...): it is one shard of several, or was changed"
    )
    return replace(found, notes=(*found.notes, note))


def read_whole(path: str) -> Checkpoint:
    """Describe one file that is not an index."""
    with _opened(path) as opened:
        return _read_as(*opened)


@contextmanager
def _opened(path: str) -> Iterator[tuple[BinaryIO, SourceFile, bytes]]:
    """A file, what is noted of it, and its first bytes."""
    file, source = open_source(path)
    with file:
        try:
            head = file.read(table.HEAD_NBYTES)
        except OSError as error:
            raise unreadable(path, error) from None
        yield file, source, head


def _read_as(file: BinaryIO, source: SourceFile, head: bytes) -> Checkpoint:
    """Describe a file by the format that its first bytes show."""
    path, nbytes = source.path, source.nbytes
    if not head:
        raise FormatError(f"{path}: is empty (0 bytes); expected a checkpoint", hint=sniff.INTERRUPTED)
    with _asking(path):
        for row in table.rows():
            if row.recognises(head, nbytes, path):
                found = row.read(path)
                if sniff.is_zip(head) and sniff.hdf5_start(head) < 0:  # whose reader looks at its members
                    return found
                ran = row.name in ("pickle", "dcp") or sniff.is_stacked(head)
                paths = [path] if ran or row.package else [one.path for one in found.files]
                return _with_hidden(found, _scanned(found, paths, ran, file, source))
    raise _foreign(path, head, nbytes)


def _is_twofold(file: BinaryIO, nbytes: int, ran: bool, is_hdf5: bool) -> bool:
    """Whether a file that a reader understands can be a pickle as well, unless that `ran`, or ends as a zip archive.

    Or is HDF5 behind other bytes, unless it was read as that.
    """
    tail = min(nbytes, zip_directory.MAX_TAIL)
    if zip_directory.END_SIGNATURE in read_bytes(file, nbytes - tail, tail):
        return True
    if not is_hdf5 and sniff.hdf5_start(Contents(file, nbytes)) > 0:
        return True
    return not ran and sniff.runs(read_bytes(file, 0, min(nbytes, 64)))


def _with_hidden(found: Checkpoint, hidden: Iterator[tuple[str, Scanned]]) -> Checkpoint:
    """With the names that programs find in its files which open them by their first bytes, or by their last."""
    for path, scanned in hidden:
        from paramtool.formats import policy

        note = (
            f"{os.path.basename(path)!r} may be a pickle or an archive, too, and is not scanned to its end for pickles"
        )
        notes = found.notes if scanned.ended else (*found.notes, note)
        found = replace(found, unknown=policy.merged((*found.unknown, *scanned.unknown)), notes=notes)
    return found


def _scanned(
    found: Checkpoint, paths: list[str], ran: bool, file: BinaryIO, source: SourceFile
) -> Iterator[tuple[str, Scanned]]:
    """Files as a program reads them that takes them for something else; of files of data what no tensor claims, too.

    The file that is open was read.
    """
    judged, opened = {*judged_files(found)}, nullcontext((file, source, b""))
    for path in paths:
        with opened if path == source.path else _opened(path) as (held, of, _):
            if _is_twofold(held, of.nbytes, ran, found.format.endswith(("hdf5", "jld2"))):
                from paramtool.formats import scan

                yield path, scan.scan_file(path)
            if path not in judged:
                from paramtool.formats import scan

                backings = (storage.backing for storage in found.storages.values())
                places = [one.source if isinstance(one, Encoded) else one for one in backings]
                ranges = [(one.start, one.stop) for one in places if isinstance(one, ByteRange) and one.file == path]
                yield path, scan.scan_parts(held, of, scan.unclaimed(of.nbytes, ranges))


def _foreign(path: str, head: bytes, nbytes: int) -> FormatError:
    """The error for a file that no reader accepts, with the unknown names in its pickles."""
    from paramtool.formats import foreign, scan

    scanned = scan.scan_file(path)
    found = foreign.PICKLE if scanned.is_pickle else foreign.named(path, head, nbytes)
    more = "" if scanned.ended else "; it is not scanned to the end for pickles"
    error = FormatError(f"{path}: is {found.what}{more}", hint=found.hint or _all_formats())
    error.asked = scanned.unknown
    return error


def _all_formats() -> str:
    """The formats that can be read, and the errors of broken packages that add formats."""
    names = [row.name for row in table.rows()]
    return "; ".join((f"paramtool reads {', '.join(names[:-1])} and {names[-1]}", *table.installed().broken))


OTHERS = tuple(suffix for suffix in table.OTHER_SUFFIXES if suffix != ".json")
"""Suffixes of weights that are not read."""


def may_be_checkpoint(path: str) -> bool:
    """Whether a file has the name or the first bytes of weights in any format, also of those that are not read.

    False for texts, images and programs, and for files that neither their name nor their first bytes identify:
    `config.json`, `README.md`, `tokenizer.model`.  True for what is no file, and for what cannot be opened: reading
    it says why.
    """
    from paramtool.formats import foreign

    name = path.lower()
    if name.endswith((*table.suffixes(), *OTHERS, sniff.DISTRIBUTED)) or weight_names.is_index_name(path):
        return True
    if not os.path.isfile(path):
        return True
    try:
        with open(path, "rb") as file:
            head, nbytes = file.read(table.HEAD_NBYTES), file.seek(0, os.SEEK_END)
    except OSError:
        return True
    if weight_names.is_index(head, path) or any(row.recognises(head, nbytes, path) for row in table.rows()):
        return True
    what = foreign.named(path, head, nbytes).what
    return (
        what != foreign.UNKNOWN.what
        and not what.startswith((foreign.JSON.what, foreign.XML.what))
        and not what.endswith(", not a checkpoint")
    )
