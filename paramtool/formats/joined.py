"""The tensors of several files as those of one checkpoint, on the storages of the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from operator import mul

from paramtool.errors import plural
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, Value
from paramtool.model.dtype import DType
from paramtool.model.storage import Assembled, Backing, Inline, Part, Storage
from paramtool.model.tiling import are_disjoint
from paramtool.model.view import Shape, View, contiguous, contiguous_strides


class FolderTensors:
    """Entries and storages, as they are added."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.storages: dict[int, Storage] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        """{(id of a file's checkpoint, number of a storage there): its number here}"""
        self._kept: list[Checkpoint] = []
        self._assembled: dict[object, View] = {}

    def number(self, file: Checkpoint, storage: int) -> int:
        """The number that a storage of a file has here."""
        key = id(file), storage
        if key not in self._numbers:
            self._kept.append(file)
            one = file.storages[storage]
            self._numbers[key] = self._new(one.nbytes, one.backing)
        return self._numbers[key]

    def _new(self, nbytes: int, backing: Backing) -> int:
        number = len(self.storages)
        self.storages[number] = Storage(number, nbytes, backing)
        return number

    def here(self, file: Checkpoint, value: Value) -> Value:
        """A value of a file on the storages of this checkpoint."""
        if isinstance(value, View):
            number = self.number(file, int(value.storage))
            return View(number, value.dtype, value.offset, value.shape, value.strides)
        if isinstance(value, Compound):
            found = {label: self.here(file, part) for label, part in value.parts.items()}
            return replace(value, parts={k: v for k, v in found.items() if isinstance(v, View)})
        return value

    def take(self, file: Checkpoint, name: str, own: str = "") -> None:
        """Add a tensor of a file as it is, under its name or another."""
        entry = file.entries[name]
        self.entries[own or name] = entry._replace(value=self.here(file, entry.value))

    def join(self, name: str, dtype: DType, shape: Shape, pieces: Sequence[tuple[Checkpoint, View]]) -> None:
        """Add a tensor whose elements, row by row, are in the vectors of several files."""
        ends = accumulate((view.numel for _, view in pieces), initial=0)
        parts = [
            (contiguous(-1, dtype, view.shape, at), file, view) for at, (file, view) in zip(ends, pieces, strict=False)
        ]
        self.entries[name] = Entry(self._assembly(dtype, shape, parts))

    def assembled(self, dtype: DType, shape: Shape, parts: Sequence[tuple[Shape, Shape, Checkpoint, View]]) -> View:
        """A tensor of boxes, each with the index of its first element, its shape, a file and where it is there.

        Tensors of the same boxes share their storage.  ValueError unless each element is in exactly one.
        """
        strides = contiguous_strides(shape)
        boxes = [
            (View(-1, dtype, sum(map(mul, start, strides)), sizes, strides), file, view)
            for start, sizes, file, view in parts
            if prod(sizes)
        ]
        numel, count = prod(shape), sum(box.numel for box, _, _ in boxes)
        if count < numel:
            raise ValueError(f"its parts have {count} of {plural(numel, 'element')}: what a rank saved is missing")
        if count > numel or not are_disjoint(box for box, _, _ in boxes):
            raise ValueError(f"its parts overlap; expected each of {plural(numel, 'element')} once")
        if len(boxes) == 1:
            return self._there(*boxes[0][1:])
        key = dtype, shape, tuple((box, self._there(file, view)) for box, file, view in boxes)
        if not numel or key not in self._assembled:
            self._assembled[key] = self._assembly(dtype, shape, boxes)
        return self._assembled[key]

    def _there(self, file: Checkpoint, view: View) -> View:
        found = self.here(file, view)
        assert isinstance(found, View)
        return found

    def _assembly(self, dtype: DType, shape: Shape, parts: Sequence[tuple[View, Checkpoint, View]]) -> View:
        pieces = tuple(Part(box, self._there(file, view)) for box, file, view in parts)
        backing = Assembled(pieces) if prod(shape) else Inline(b"")
        return contiguous(self._new(dtype.nbytes(prod(shape)), backing), dtype, shape)
