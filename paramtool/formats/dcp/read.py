"""Folders of torch.distributed.checkpoint, to which each rank writes its shards; read without torch.

    .metadata        which tensors there are, and where each chunk of them is
    __0_0.distcp     the archives of rank 0, one behind the other
    __1_0.distcp     those of rank 1

A tensor of one chunk is a window on the bytes of its archive.  A tensor of several chunks is assembled from them.  Two
names with one place share their bytes.  The nested dicts and lists that were saved are made again from the names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import BinaryIO, NamedTuple

from paramtool.errors import Defects, FormatError, MissingFileError, UnsafeError, plural, some
from paramtool.formats import object_tree, scan
from paramtool.formats.dcp import record
from paramtool.formats.dcp.flatten import Grafts, name_in, tree_of
from paramtool.formats.dcp.metadata import (
    NAME,
    SUFFIX,
    Place,
    SavedChunk,
    SavedState,
    SavedTensor,
    read_metadata,
)
from paramtool.formats.files import is_folder, names_in, open_source, pread, unreadable
from paramtool.formats.joined import FolderTensors
from paramtool.formats.policy import merged
from paramtool.formats.torch.archive import read_archive
from paramtool.formats.zip import directory as zip_directory
from paramtool.grouping import grouped
from paramtool.model.checkpoint import Checkpoint, Entry, NoData, Unknown, Value
from paramtool.model.objects import EMPTY, Node, TensorRef
from paramtool.model.storage import ByteRange, SourceFile, Storage
from paramtool.model.view import View


def read(path: str) -> Checkpoint:
    """Describe a folder, given itself or by its `.metadata`; FormatError, Defects or UnsafeError if it is damaged."""
    folder = path if is_folder(path) else os.path.dirname(path)
    metadata = os.path.join(folder, NAME) if is_folder(path) else path
    asked: list[Unknown] = []
    try:
        return _read(folder, metadata, asked)
    except (FormatError, UnsafeError) as error:
        error.asked = (*scan.scan(metadata), *asked)
        raise


def _read(folder: str, metadata: str, asked: list[Unknown]) -> Checkpoint:
    """Describe a folder; `asked` gets the unknown names in its archives."""
    file, source = open_source(metadata)
    with file:
        state = read_metadata(file, source)
    asked += (Unknown(use.path, use.called, use.arguments) for use in state.uses)
    pieces = _Pieces(folder, state)
    pieces.read()
    asked += pieces.unknown
    joined = _JoinedTensors(source, state, pieces)
    said = record.decode(metadata, state.record)
    return record.with_record(joined.checkpoint(tuple(merged(asked)), _notes(folder, pieces), said.empty), said)


def _notes(folder: str, pieces: _Pieces) -> tuple[str, ...]:
    """What is odd about the folder, but not an error."""
    known = {os.path.basename(file.path) for file in pieces.files}
    left = [name for name in names_in(folder) if name.endswith(SUFFIX) and name not in known]
    if not left:
        return tuple(pieces.notes)
    return (
        *pieces.notes,
        f"{plural(len(left), 'file')} that `{NAME}` does not name, as of another save; not read: {some(left, 3)}",
    )


class _Pieces:
    """The archives that a checkpoint is made of, each read once."""

    def __init__(self, folder: str, state: SavedState) -> None:
        self._folder = folder
        # {archive: the first name that it is read for}
        found: dict[ByteRange, str] = {}
        for name in state.places:
            if name in state.objects:
                found.setdefault(state.objects[name], name)
            elif name in state.tensors:
                for chunk in state.tensors[name].chunks:
                    found.setdefault(chunk.piece, name)
        self._names = found
        self.files: list[SourceFile] = []
        self.found: dict[ByteRange, Checkpoint] = {}
        self.unknown: list[Unknown] = []
        self.notes: list[str] = []
        self.defects: list[str] = []

    def read(self) -> None:
        """Describe every archive; what is wrong is gathered."""
        of_file = grouped((piece.file, piece) for piece in self._names)
        reader = SliceReader()
        for name in sorted(of_file):
            self._read_file(name, sorted(of_file[name], key=lambda piece: piece.start), reader)

    def _read_file(self, name: str, pieces: list[ByteRange], reader: SliceReader) -> None:
        path = os.path.join(self._folder, name)
        try:
            file, source = open_source(path)
        except MissingFileError:
            names = [self._names[piece] for piece in pieces]
            what = f"{plural(len(pieces), 'part')} of tensors are in it"
            self.defects.append(f"the file {name!r} is missing; {what}, of {some(names, 3)}")
            return
        self.files.append(source)
        with file:
            beyond = [piece for piece in pieces if piece.stop > source.nbytes]
            damaged = list(beyond)
            if beyond:
                last = max(piece.stop for piece in beyond)
                names = [self._names[piece] for piece in beyond]
                what = f"ends at byte {source.nbytes}; expected {last}: {some(names, 3)} are cut off"
                self.defects.append(f"the file {name!r} {what}")
            for piece in pieces:
                if piece.stop > source.nbytes:
                    continue
                try:
                    found = reader.read(file, source, piece)
                except FormatError as error:
                    where = f"bytes {piece.start}-{piece.stop} of {piece.file!r}"
                    self.defects.append(
                        f"{self._names[piece]!r:.200}: {where}: {error.message.replace(f'{path}: ', '', 1)}"
                    )
                    damaged.append(piece)
                    continue
                self.found[piece] = found
                self.unknown += found.unknown
            ranges, opened = ([(one.start, one.stop) for one in of] for of in (pieces, damaged))  # torch unpickles any
            scanned = scan.scan_parts(file, source, (*opened, *scan.unclaimed(source.nbytes, ranges)))
            self.unknown += scanned.unknown
            if not scanned.ended:
                self.notes.append(f"the bytes of {name!r} beside its parts are not scanned to the end for pickles")


class _JoinedTensors:
    """The tensors of a checkpoint, on the storages of its archives."""

    def __init__(self, metadata: SourceFile, state: SavedState, pieces: _Pieces) -> None:
        self._metadata = metadata
        self._state = state
        self._pieces = pieces
        self._defects = pieces.defects
        self._joined = FolderTensors()

    def checkpoint(
        self, unknown: tuple[Unknown, ...], notes: tuple[str, ...], empty: tuple[tuple[int, Place], ...]
    ) -> Checkpoint:
        """Names, views and storages together; Defects if what the files hold contradicts `.metadata`.

        `empty` are places of empty dicts, each with how many values are before it.
        """
        leaves: list[tuple[Place, Node]] = []
        grafts = Grafts(self._metadata.path, self._state.nbytes)
        for name, place in self._state.places.items():
            if name in self._state.objects:
                leaves += ((place, node) for node in self._object(name, place, grafts))
            elif self._add_tensor(name, self._state.tensors[name]):
                leaves.append((place, TensorRef(name)))
        for number, (count, place) in enumerate(empty):
            leaves.insert(count + number, (place, EMPTY))
        tree, defects = tree_of(leaves)
        self._defects += defects
        if self._defects:
            folder = os.path.dirname(self._metadata.path) or os.curdir
            raise Defects(
                folder, self._defects, hint="copy or save the folder again, with the files of all ranks",
            )  # fmt: skip
        found = Checkpoint(
            format="dcp",
            files=(self._metadata, *self._pieces.files),
            storages=self._joined.storages,
            entries=self._joined.entries,
            producer="torch.distributed.checkpoint",
            unknown=unknown,
            notes=notes,
        )
        return object_tree.with_tree(found, tree)

    # --- objects -------------------------------------------------------------------------------------------------

    def _object(self, name: str, place: Place, grafts: Grafts) -> Iterator[Node]:
        """The tree of an object, and the tensors in it as tensors of the checkpoint; nothing if it was not read."""
        piece = self._state.objects[name]
        found = self._pieces.found.get(piece)
        if found is None:
            return
        yield grafts.node(found.objects, name, len(place), piece.nbytes)
        for inner in found.entries:
            own = name_in(found.objects, name, inner)
            if own in self._joined.entries or (own in self._state.places and own != name):
                self._defects.append(f"{own!r:.200}: is the name of two tensors")
            self._joined.take(found, inner, own)

    # --- tensors -------------------------------------------------------------------------------------------------

    def _add_tensor(self, name: str, saved: SavedTensor) -> bool:
        """Add a tensor; False if an archive of it was not read, or it is wrong."""
        chunks = [chunk for chunk in saved.chunks if prod(chunk.sizes)]
        if not prod(saved.shape):
            chunks = [chunk for chunk in saved.chunks if chunk.sizes == saved.shape][:1]
        held = [one for chunk in chunks if (one := self._held(name, saved, chunk)) is not None]
        if len(held) < len(chunks):
            return False
        if len(held) == 1 and chunks[0].sizes == saved.shape:
            self._joined.take(held[0], next(iter(held[0].entries)), name)
            return True
        try:
            entries = [next(iter(found.entries.values())) for found in held]
            parts = [
                (chunk.offsets, chunk.sizes, found, entry.value)
                for chunk, found, entry in zip(chunks, held, entries, strict=True)
                if isinstance(entry.value, View)
            ]
            value = self._joined.assembled(saved.dtype, saved.shape, parts)
        except ValueError as error:  # a packed type that is cut inside a row, or numbers without bound
            self._defects.append(f"{name!r:.200}: {error}")
            return False
        self._joined.entries[name] = entries[0]._replace(value=value) if entries else Entry(value)
        return True

    def _held(self, name: str, saved: SavedTensor, chunk: SavedChunk) -> Checkpoint | None:
        """The archive of a chunk; None if it was not read, or is something else."""
        found = self._pieces.found.get(chunk.piece)
        if found is None:
            return None
        value = next(iter(found.entries.values())).value if isinstance(found.objects, TensorRef) else None
        dtype, shape = _facts(value)
        if value is None:
            what = "an object"
        elif dtype is not None and (dtype, shape) != (saved.dtype.name, chunk.sizes):
            what = f"{dtype} {list(shape)}"
        elif chunk.sizes != saved.shape and not (isinstance(value, View) and value.is_injective):
            what = "a tensor that is not plain"
        else:
            return found
        where = f"bytes {chunk.piece.start}-{chunk.piece.stop} of {chunk.piece.file!r}"
        expected = f"{saved.dtype.name} {list(chunk.sizes)}"
        self._defects.append(f"{name!r:.200}: {where} hold {what}; `{NAME}` says {expected}")
        return None


def _facts(value: Value | None) -> tuple[str | None, tuple[int, ...]]:
    """The dtype and shape of a tensor that an archive has; no dtype where it does not say them itself."""
    if isinstance(value, (View, NoData)):
        return value.dtype.name, value.shape
    return None, ()


# --- One archive of torch.save inside a `.distcp` file: a shard of a tensor, a whole tensor, or an object ------------
#
# A file of a rank is a row of such archives, and a checkpoint has as many as shards: 64 ranks and 1,000 tensors make
# 64,000.  Most differ in their numbers alone, as shards of one shape do.  So an archive whose bytes before and after
# the numbers are those of one that was read before is not read again; only the CRC of its numbers is taken from it.


KEY_NBYTES = 512
"""How many first bytes of archives are compared first; the pickle of a tensor is in them."""
SMALL_NBYTES = 4096
"""The largest archive of an object, in bytes, that is compared whole with earlier ones before it is parsed."""
ID = "archive/.data/serialization_id"
"""The member with a hash of all others."""
ID_NBYTES = 40
CRC_NBYTES = 4
MAX_KNOWN = 10_000
"""The most archives that are remembered."""


class _KnownSlice(NamedTuple):
    """An archive with one tensor that was read before."""

    found: Checkpoint
    head: bytes
    """The bytes before the numbers."""
    tail: bytes
    """The bytes behind them, without those that differ from archive to archive."""
    differ: tuple[tuple[int, int], ...]
    """Where those are in the tail: (start, stop)."""
    crc_at: int
    """Where the directory, in the tail, has the CRC of the numbers."""


class SliceReader:
    """Reads the archives of one folder."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, bytes], _KnownSlice] = {}
        self._objects: dict[bytes, Checkpoint] = {}

    def read(self, file: BinaryIO, source: SourceFile, place: ByteRange) -> Checkpoint:
        """Describe the archive in a range of the file; FormatError or UnsafeError if that is not possible.

        A tensor is the only entry, with `objects` a reference to it.
        """
        nbytes = place.nbytes
        head = _bytes(file, source, place.start, min(nbytes, SMALL_NBYTES))
        if nbytes <= SMALL_NBYTES and head in self._objects:
            return self._objects[head]
        key = nbytes, head[:KEY_NBYTES]
        known = self._tensors.get(key)
        again = _again(known, file, source, place) if known and head.startswith(known.head) else None
        if again is not None:
            return again
        found = read_archive(file, source, place.start, place.stop)
        if not found.entries and nbytes <= SMALL_NBYTES and len(self._objects) < MAX_KNOWN:
            self._objects[head] = found
        elif len(self._tensors) < MAX_KNOWN and (known := _known(found, file, source, place)):
            self._tensors[key] = known
        return found


def _bytes(file: BinaryIO, source: SourceFile, start: int, nbytes: int) -> bytes:
    """Bytes of a file from a position on, fewer at its end."""
    try:
        return pread(file.fileno(), nbytes, start)
    except OSError as error:
        raise unreadable(source.path, error) from None


def _again(known: _KnownSlice, file: BinaryIO, source: SourceFile, place: ByteRange) -> Checkpoint | None:
    """The archive with the head of a known one, if the rest is like it, too, apart from the numbers."""
    stop = place.stop - (len(known.tail) + sum(stop - start for start, stop in known.differ))
    tail = _bytes(file, source, stop, place.stop - stop)
    if _without(tail, known.differ) != known.tail:
        return None
    crc32 = int.from_bytes(tail[known.crc_at : known.crc_at + CRC_NBYTES], "little")
    if not crc32:  # "not computed" is told from other archives' bytes
        return None
    backing = ByteRange(source.path, place.start + len(known.head), stop, crc32)
    return replace(known.found, files=(source,), storages={0: Storage(0, backing.nbytes, backing)})


def _known(found: Checkpoint, file: BinaryIO, source: SourceFile, place: ByteRange) -> _KnownSlice | None:
    """What is remembered of an archive with one tensor; None for any other."""
    if not isinstance(found.objects, TensorRef) or len(found.storages) != 1 or found.unknown:
        return None
    backing = found.storages[0].backing
    start, stop = place.start, place.stop
    if not isinstance(backing, ByteRange) or not backing.crc32 or backing.start - start > SMALL_NBYTES:
        return None
    low, high = backing.start - start, backing.stop - start
    members = {one.name: one for one in zip_directory.read_directory(file, source.path, start=start, stop=stop)}
    names = [name for name, one in members.items() if one.byte_start == backing.start and one.nbytes]
    if len(names) != 1:
        return None
    places = {
        name: zip_directory.crc_places(file, source.path, name, start=start, stop=stop)
        for name in [*names, *_id(members)]
    }
    differ = [(at, at + CRC_NBYTES) for found_at in places.values() for at in found_at]
    differ += [(members[ID].byte_start - start, members[ID].byte_start - start + ID_NBYTES) for _ in _id(members)]
    if any(at < high for at, _ in differ):
        return None
    shifted = tuple(sorted((at - high, end - high) for at, end in differ))
    head, tail = _bytes(file, source, start, low), _bytes(file, source, backing.stop, stop - backing.stop)
    return _KnownSlice(found, head, _without(tail, shifted), shifted, places[names[0]][-1] - high)


def _id(members: dict[str, zip_directory.Member]) -> list[str]:
    """The name of the member with the hash, if it is as torch writes it."""
    return [ID] if ID in members and members[ID].nbytes == ID_NBYTES else []


def _without(tail: bytes, differ: tuple[tuple[int, int], ...]) -> bytes:
    """The bytes without some ranges."""
    kept = bytearray(tail)
    for start, stop in reversed(differ):
        del kept[start:stop]
    return bytes(kept)
