"""The tensors of several files as those of one checkpoint, on the storages of the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import prod
from operator import mul
from typing import TypeVar

from paramtool.errors import plural
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, Value
from paramtool.model.dtype import DType
from paramtool.model.storage import Assembled, Backing, Inline, Part, Storage
from paramtool.model.tiling import are_disjoint
from paramtool.model.view import Shape, View, contiguous, contiguous_strides

V = TypeVar("V", bound=Value)


def on_storages(value: V, number: Callable[[int], int]) -> V:
    """A value on storages that have other numbers."""
    found: Value = value
    if isinstance(found, View):
        found = View(number(int(found.storage)), found.dtype, found.offset, found.shape, found.strides)
    elif isinstance(found, Compound):
        found = replace(found, parts={label: on_storages(view, number) for label, view in found.parts.items()})
    return found  # type: ignore[return-value]  # of the same class


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

    def take(self, file: Checkpoint, name: str, own: str = "", value: Value | None = None) -> None:
        """Add a tensor of a file as it is, or as a view of its storage, under its name or another."""
        entry = file.entries[name]
        self.entries[own or name] = entry._replace(value=on_storages(value or entry.value, partial(self.number, file)))

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
            _, file, view = boxes[0]
            return on_storages(view, partial(self.number, file))
        key = dtype, shape, tuple((box, on_storages(view, partial(self.number, file))) for box, file, view in boxes)
        if not numel or key not in self._assembled:
            self._assembled[key] = self._assembly(dtype, shape, boxes)
        return self._assembled[key]

    def _assembly(self, dtype: DType, shape: Shape, parts: Sequence[tuple[View, Checkpoint, View]]) -> View:
        pieces = tuple(Part(box, on_storages(view, partial(self.number, file))) for box, file, view in parts)
        backing = Assembled(pieces) if prod(shape) else Inline(b"")
        return contiguous(self._new(dtype.nbytes(prod(shape)), backing), dtype, shape)
