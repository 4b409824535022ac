"""A search for maps without a table: the rows of tensors by 128-bit digests.

A digest only proposes: what it finds is a map where every byte agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.engine.compare.casts import converted
from paramtool.engine.read.elements import ELEMENTS, number_type
from paramtool.engine.read.source import Source
from paramtool.model.dtype import DType
from paramtool.model.rowmap import Place, RowMap, found_in
from paramtool.model.view import View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MIN_ROW_NBYTES = 32
"""Shorter rows are equal by chance."""
BLOCK_NBYTES = 4 << 20
SAMPLES = 8
ENTRY_NBYTES = 200
"""About what one row takes in the index."""
DIGEST_NBYTES = 16


class RowForm(NamedTuple):
    """How a tensor is cut into rows."""

    view: View
    """[rows, elements of a row]"""
    is_transposed: bool = False


def forms(view: View) -> Iterator[RowForm]:
    """A tensor as rows, and its transpose as rows; nothing for one that has no rows, or is packed."""
    if view.dtype.block_elements != 1 or not view.is_contiguous or len(view.shape) < 2 or not view.numel:
        return
    cut = next((k for k in range(len(view.shape) - 1, 0, -1) if _nbytes(view, view.shape[k:]) >= MIN_ROW_NBYTES), None)
    if cut is not None:
        width = prod(view.shape[cut:])
        yield RowForm(View(view.storage, view.dtype, view.offset, (view.numel // width, width), (width, 1)))
    if len(view.shape) == 2 and _nbytes(view, view.shape[:1]) >= MIN_ROW_NBYTES:
        rows, width = view.shape
        yield RowForm(View(view.storage, view.dtype, view.offset, (width, rows), (1, width)), True)


def _nbytes(view: View, shape: Sequence[int]) -> int:
    return prod(shape) * view.dtype.block_bytes


class RowIndex:
    """The rows of many tensors by their digests."""

    def __init__(self, memory: int) -> None:
        """`memory` is the most bytes that the index may take."""
        self._rows: dict[tuple[str, int], dict[bytes, list[Place]]] = {}
        """{(type, bytes of a row): {digest: places}}"""
        self._left = memory // ENTRY_NBYTES

    def add(self, number: int, source: Source, form: RowForm, dtype: DType | None = None) -> bool:
        """The rows of one tensor, cast to another type; False where they do not fit into memory."""
        rows, width = form.view.shape
        self._left -= rows
        if self._left < 0:
            return False
        known = self._rows.setdefault(((dtype or form.view.dtype).name, width), {})
        for row, one in enumerate(digests(source, form.view, dtype=dtype)):
            known.setdefault(one, []).append((number, row))
        return True

    def of(self, dtype: str, width: int) -> Mapping[bytes, list[Place]]:
        """The rows of one type and width."""
        return self._rows.get((dtype, width), {})

    def find(self, source: Source, form: RowForm, *, sign: int = 1, dtype: DType | None = None) -> RowMap | None:
        """The map that gives a tensor's rows, negated for `sign` -1, cast to another type; None if one is nowhere."""
        view = form.view
        index = self.of((dtype or view.dtype).name, view.shape[1])
        if not index:
            return None
        count = view.shape[0]
        sampled = range(0, count, max(1, count // SAMPLES))
        if any(not index.get(one) for k in sampled for one in digests(source, _row(view, k), sign=sign, dtype=dtype)):
            return None
        return found_in(list(digests(source, view, sign=sign, dtype=dtype)), index)


def _row(view: View, k: int) -> View:
    return View(view.storage, view.dtype, view.offset + k * view.strides[0], (1, view.shape[1]), view.strides)


def digests(source: Source, view: View, *, sign: int = 1, dtype: DType | None = None) -> Iterator[bytes]:
    """A digest of each row."""
    import numpy as np
    from blake3 import blake3

    rows, width = view.shape
    array = source.array(view)
    step = max(1, BLOCK_NBYTES // max(1, width * view.dtype.block_bytes))
    plain = sign == 1 and dtype is None
    for start in range(0, rows, step):
        block = array.view(ELEMENTS[view.dtype.block_bytes])[start : min(start + step, rows), 0:width]
        made = block if plain else _changed(block.view(number_type(view.dtype)), sign, dtype)
        for row in np.ascontiguousarray(made):
            yield blake3(row.view("u1").data).digest(DIGEST_NBYTES)


def _changed(rows: Array, sign: int, dtype: DType | None) -> Array:
    import numpy as np

    found = np.negative(rows) if sign < 0 else rows
    return converted(found, dtype) if dtype is not None else found
