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
from math import prod

from paramtool.errors import Defects, FormatError, MissingFileError, UnsafeError, plural, some
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
from paramtool.formats.joined import FolderTensors
from paramtool.formats.policy import merged
from paramtool.model.checkpoint import Checkpoint, Entry, NoData, Unknown, Value
from paramtool.model.objects import EMPTY, Node, TensorRef
from paramtool.model.storage import SourceFile
from paramtool.model.view import View


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
        return Checkpoint(
            format="dcp",
            files=(self._metadata, *self._pieces.files),
            storages=self._joined.storages,
            entries=object_tree.with_roles(self._joined.entries, tree),
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
        where = f"bytes {chunk.piece.start}-{chunk.piece.start + chunk.piece.nbytes} of {chunk.piece.file!r}"
        expected = f"{saved.dtype.name} {list(chunk.sizes)}"
        self._defects.append(f"{name!r:.200}: {where} hold {what}; `{NAME}` says {expected}")
        return None


def _facts(value: Value | None) -> tuple[str | None, tuple[int, ...]]:
    """The dtype and shape of a tensor that an archive has; no dtype where it does not say them itself."""
    if isinstance(value, (View, NoData)):
        return value.dtype.name, value.shape
    return None, ()
