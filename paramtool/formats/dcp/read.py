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
from typing import Any

from paramtool.errors import MAX_LISTED, Defects, FormatError, MissingFileError, UnsafeError, plural, some
from paramtool.formats import object_tree
from paramtool.formats.dcp import record
from paramtool.formats.dcp.metadata import (
    NAME,
    SUFFIX,
    Place,
    SavedChunk,
    SavedPiece,
    SavedState,
    SavedTensor,
    read_metadata,
)
from paramtool.formats.dcp.slice import SliceReader
from paramtool.formats.dcp.tree import Grafts, name_in, tree_of
from paramtool.formats.files import is_folder, open_source, unreadable
from paramtool.formats.policy import merged
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, NoData, Unknown, Value
from paramtool.model.objects import EMPTY, Node, TensorRef
from paramtool.model.storage import Assembled, Inline, Part, SourceFile, Storage
from paramtool.model.tiling import are_disjoint
from paramtool.model.view import View, contiguous, contiguous_strides


def read(path: str) -> Checkpoint:
    """Describe a folder, given itself or by its `.metadata`; FormatError, Defects or UnsafeError if it is damaged."""
    folder = path if is_folder(path) else os.path.dirname(path)
    metadata = os.path.join(folder, NAME) if is_folder(path) else path
    asked: list[Unknown] = []
    try:
        return _read(folder, metadata, asked)
    except (FormatError, UnsafeError) as error:
        from paramtool.formats import scan

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
    try:
        left = sorted(name for name in os.listdir(folder or os.curdir) if name.endswith(SUFFIX) and name not in known)
    except OSError as error:
        raise unreadable(folder, error) from None
    if not left:
        return ()
    return (f"{plural(len(left), 'file')} that `{NAME}` does not name, as of another save; not read: {some(left, 3)}",)


class _Pieces:
    """The archives that a checkpoint is made of, each read once."""

    def __init__(self, folder: str, state: SavedState) -> None:
        self._folder = folder
        self._names = _names(state)
        self.files: list[SourceFile] = []
        self.found: dict[SavedPiece, Checkpoint] = {}
        self.unknown: list[Unknown] = []
        self.defects: list[str] = []

    def read(self) -> None:
        """Describe every archive; what is wrong is gathered."""
        of_file: dict[str, list[SavedPiece]] = {}
        for piece in self._names:
            of_file.setdefault(piece.file, []).append(piece)
        reader = SliceReader()
        for name in sorted(of_file):
            self._read_file(name, sorted(of_file[name], key=lambda piece: piece.start), reader)

    def _read_file(self, name: str, pieces: list[SavedPiece], reader: SliceReader) -> None:
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
            beyond = [piece for piece in pieces if piece.start + piece.nbytes > source.nbytes]
            if beyond:
                last = max(piece.start + piece.nbytes for piece in beyond)
                names = [self._names[piece] for piece in beyond]
                what = f"ends at byte {source.nbytes}; expected {last}: {some(names, 3)} are cut off"
                self.defects.append(f"the file {name!r} {what}")
            for piece in pieces:
                if piece.start + piece.nbytes > source.nbytes:
                    continue
                try:
                    found = reader.read(file, source, piece.start, piece.nbytes)
                except FormatError as error:
                    self.defects.append(self._damage(piece, path, error))
                    continue
                self.found[piece] = found
                self.unknown += found.unknown

    def _damage(self, piece: SavedPiece, path: str, error: FormatError) -> str:
        """The line for an archive that cannot be read."""
        where = f"bytes {piece.start}-{piece.start + piece.nbytes} of {piece.file!r}"
        return f"{self._names[piece]!r:.200}: {where}: {error.message.replace(f'{path}: ', '', 1)}"


def _names(state: SavedState) -> dict[SavedPiece, str]:
    """{archive: the first name that it is read for}"""
    found: dict[SavedPiece, str] = {}
    for name in state.places:
        if name in state.objects:
            found.setdefault(state.objects[name], name)
        elif name in state.tensors:
            for chunk in state.tensors[name].chunks:
                found.setdefault(chunk.piece, name)
    return found


class _JoinedTensors:
    """The tensors of a checkpoint, on the storages of its archives."""

    def __init__(self, metadata: SourceFile, state: SavedState, pieces: _Pieces) -> None:
        self._metadata = metadata
        self._state = state
        self._pieces = pieces
        self._defects = pieces.defects
        self._storages: dict[int, Storage] = {}
        self._first: dict[SavedPiece, int] = {}
        """The number of the first storage of an archive."""
        self._assembled: dict[object, int] = {}
        self._entries: dict[str, Entry] = {}

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
            shown = self._defects[:MAX_LISTED]
            folder = os.path.dirname(self._metadata.path) or os.curdir
            raise Defects(
                folder, shown, more=len(self._defects) - len(shown),
                hint="copy or save the folder again, with the files of all ranks",
            )  # fmt: skip
        return Checkpoint(
            format="dcp",
            files=(self._metadata, *self._pieces.files),
            storages=self._storages,
            entries=object_tree.with_roles(self._entries, tree),
            objects=tree,
            sections=object_tree.sections(tree),
            producer="torch.distributed.checkpoint",
            unknown=unknown,
            notes=notes,
        )

    # --- objects -------------------------------------------------------------------------------------------------

    def _object(self, name: str, place: Place, grafts: Grafts) -> Iterator[Node]:
        """The tree of an object, and the tensors in it as tensors of the checkpoint; nothing if it was not read."""
        piece = self._state.objects[name]
        found = self._pieces.found.get(piece)
        if found is None:
            return
        yield grafts.node(found.objects, name, len(place), piece.nbytes)
        for inner, entry in found.entries.items():
            own = name_in(found.objects, name, inner)
            if own in self._entries or (own in self._state.places and own != name):
                self._defects.append(f"{own!r:.200}: is the name of two tensors")
            self._entries[own] = entry._replace(value=self._renumbered(entry.value, self._number(piece, found)))

    # --- tensors -------------------------------------------------------------------------------------------------

    def _add_tensor(self, name: str, saved: SavedTensor) -> bool:
        """Add a tensor; False if an archive of it was not read, or it is wrong."""
        chunks = [chunk for chunk in saved.chunks if prod(chunk.sizes)]
        if not prod(saved.shape):
            chunks = [chunk for chunk in saved.chunks if chunk.sizes == saved.shape][:1]
        elif not self._tiles(name, saved, chunks):
            return False
        held = [self._held(name, saved, chunk) for chunk in chunks]
        entries = [entry for entry in held if entry is not None]
        if len(entries) < len(held):
            return False
        if len(chunks) == 1:
            self._entries[name] = entries[0]
        elif not chunks:
            self._add_empty(name, saved)
        elif (storage := self._assembly(name, saved, chunks, entries)) is not None:
            self._entries[name] = entries[0]._replace(value=contiguous(storage, saved.dtype, saved.shape))
        return name in self._entries

    def _add_empty(self, name: str, saved: SavedTensor) -> None:
        """Add a tensor without elements."""
        try:
            self._entries[name] = Entry(contiguous(self._new(0, Inline(b"")), saved.dtype, saved.shape))
        except ValueError as error:
            self._defects.append(f"{name!r:.200}: {error}")

    def _tiles(self, name: str, saved: SavedTensor, chunks: list[SavedChunk]) -> bool:
        """Whether each element is in exactly one chunk; anything else is a defect."""
        count, numel = sum(prod(chunk.sizes) for chunk in chunks), prod(saved.shape)
        try:
            if count < numel:
                what = f"its chunks have {count} of {plural(numel, 'element')}: what a rank saved is missing"
            elif count > numel or not are_disjoint(_box(saved, chunk) for chunk in chunks):
                what = f"its chunks overlap; expected each of {plural(numel, 'element')} once"
            else:
                return True
        except ValueError as error:  # a packed type that is cut inside a row, or numbers without bound
            what = f"its chunks cannot be joined: {error}"
        self._defects.append(f"{name!r:.200}: {what}")
        return False

    def _held(self, name: str, saved: SavedTensor, chunk: SavedChunk) -> Entry | None:
        """A chunk as its archive has it; None if it was not read, or is something else."""
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
            entry = next(iter(found.entries.values()))
            return entry._replace(value=self._renumbered(value, self._number(chunk.piece, found)))
        where = f"bytes {chunk.piece.start}-{chunk.piece.start + chunk.piece.nbytes} of {chunk.piece.file!r}"
        expected = f"{saved.dtype.name} {list(chunk.sizes)}"
        self._defects.append(f"{name!r:.200}: {where} hold {what}; `{NAME}` says {expected}")
        return None

    def _assembly(self, name: str, saved: SavedTensor, chunks: list[SavedChunk], entries: list[Entry]) -> int | None:
        """The storage of a tensor of several chunks; names that have the same chunks share it."""
        key = saved.dtype, saved.shape, tuple((chunk.offsets, chunk.piece) for chunk in chunks)
        if key not in self._assembled:
            boxes = [_box(saved, chunk) for chunk in chunks]
            parts = [Part(box, e.value) for box, e in zip(boxes, entries, strict=True) if isinstance(e.value, View)]
            self._assembled[key] = self._new(saved.dtype.nbytes(prod(saved.shape)), Assembled(tuple(parts)))
        return self._assembled[key]

    # --- storages ------------------------------------------------------------------------------------------------

    def _new(self, nbytes: int, backing: Any) -> int:
        number = len(self._storages)
        self._storages[number] = Storage(number, nbytes, backing)
        return number

    def _number(self, piece: SavedPiece, found: Checkpoint) -> int:
        """The number that the first storage of an archive has here."""
        if piece not in self._first:
            self._first[piece] = len(self._storages)
            for key in range(len(found.storages)):
                self._new(found.storages[key].nbytes, found.storages[key].backing)
        return self._first[piece]

    def _renumbered(self, value: Value, first: int) -> Value:
        """A value of an archive on the storages of the checkpoint."""
        if isinstance(value, View):
            return View(int(value.storage) + first, value.dtype, value.offset, value.shape, value.strides)
        if isinstance(value, Compound):
            parts = {label: self._renumbered(part, first) for label, part in value.parts.items()}
            return replace(value, parts={k: part for k, part in parts.items() if isinstance(part, View)})
        return value


def _facts(value: Value | None) -> tuple[str | None, tuple[int, ...]]:
    """The dtype and shape of a tensor that an archive has; no dtype where it does not say them itself."""
    if isinstance(value, (View, NoData)):
        return value.dtype.name, value.shape
    return None, ()


def _box(saved: SavedTensor, chunk: SavedChunk) -> View:
    """A chunk as a window on the whole tensor, which is storage -1."""
    strides = contiguous_strides(saved.shape)
    offset = sum(start * step for start, step in zip(chunk.offsets, strides, strict=True))
    return View(-1, saved.dtype, offset, chunk.sizes, strides)
