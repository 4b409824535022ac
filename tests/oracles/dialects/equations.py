"""Our own equations of fused rows: what stands in each row, said one row after the other.

Nothing here knows paramtool's tables.  A layout is a list of (part, row of the part) in the order of the fused rows, as
the source of each has it; indexes are all that is ever done with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Row = tuple[str, int]


@dataclass(frozen=True)
class Sizes:
    """The facts of an attention."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0
    """0: that of q and k."""

    @property
    def value(self) -> int:
        return self.value_dim or self.head_dim

    @property
    def rows(self) -> dict[str, int]:
        """How many each part has."""
        return {
            "q": self.heads * self.head_dim,
            "k": self.kv_heads * self.head_dim,
            "v": self.kv_heads * self.value,
        }


def _in_order(order: str) -> Callable[[Sizes], Iterator[Row]]:
    """Whole parts, one after the other."""

    def rows(sizes: Sizes) -> Iterator[Row]:
        for part in order:
            for row in range(sizes.rows[part]):
                yield part, row

    return rows


def _per_group(sizes: Sizes) -> Iterator[Row]:
    """Each group: its heads of q, then its k, then its v."""
    of_group = sizes.heads // sizes.kv_heads
    for group in range(sizes.kv_heads):
        for head in range(group * of_group, (group + 1) * of_group):
            for d in range(sizes.head_dim):
                yield "q", head * sizes.head_dim + d
        for d in range(sizes.head_dim):
            yield "k", group * sizes.head_dim + d
        for d in range(sizes.value):
            yield "v", group * sizes.value + d


def _per_head(sizes: Sizes) -> Iterator[Row]:
    """Each head: its q, its k, its v."""
    for head in range(sizes.heads):
        for part in "qkv":
            for d in range(sizes.head_dim):
                yield part, head * sizes.head_dim + d


def _interleaved(sizes: Sizes) -> Iterator[Row]:
    """Each row of q, then that of k, then that of v."""
    for row in range(sizes.heads * sizes.head_dim):
        for part in "qkv":
            yield part, row


def _in_chunks(count: int, order: str = "qkv") -> Callable[[Sizes], Iterator[Row]]:
    """Each rank: its share of each part."""

    def rows(sizes: Sizes) -> Iterator[Row]:
        for rank in range(count):
            for part in order:
                share = sizes.rows[part] // count
                for row in range(rank * share, (rank + 1) * share):
                    yield part, row

    return rows


def _one_size(sizes: Sizes) -> bool:
    return sizes.heads == sizes.kv_heads and sizes.value == sizes.head_dim


def _divides(count: int) -> Callable[[Sizes], bool]:
    return lambda sizes: sizes.kv_heads % count == 0


LAYOUTS: dict[str, tuple[Callable[[Sizes], Iterable[Row]], Callable[[Sizes], bool]]] = {
    "qkv": (_in_order("qkv"), lambda sizes: True),
    "qvk": (_in_order("qvk"), lambda sizes: True),
    "kqv": (_in_order("kqv"), lambda sizes: True),
    "vkq": (_in_order("vkq"), lambda sizes: True),
    "qkv-per-head": (_per_head, _one_size),
    "qkv-per-head-interleaved": (_interleaved, _one_size),
    "qkv-per-group": (_per_group, lambda sizes: sizes.kv_heads not in (1, sizes.heads)),
    "qkv-in-3": (_in_chunks(3), _divides(3)),
    "qvk-in-4": (_in_chunks(4, "qvk"), _divides(4)),
    "qkv-in-4": (_in_chunks(4), _divides(4)),
}
"""{layout: (its rows, whether these sizes have it and no other name has the same rows)}"""


def row_map(layout: str, sizes: Sizes) -> dict[str, np.ndarray[Any, Any]]:
    """{part: for each of its rows, the row of the fused tensor}."""
    found = {part: np.full(count, -1) for part, count in sizes.rows.items()}
    for k, (part, row) in enumerate(LAYOUTS[layout][0](sizes)):
        assert found[part][row] == -1
        found[part][row] = k
    assert all((rows >= 0).all() for rows in found.values())
    return found


def other_layouts(layout: str, sizes: Sizes) -> list[str]:
    """Those whose fused tensor has the same shape and other rows."""
    mine = row_map(layout, sizes)
    others = [name for name, (_, fits) in LAYOUTS.items() if name != layout and fits(sizes)]
    return [name for name in others if any((row_map(name, sizes)[p] != mine[p]).any() for p in mine)]


def taken(fused: torch.Tensor, layout: str, sizes: Sizes, axis: int = 0) -> dict[str, torch.Tensor]:
    """{q, k, v} of a fused weight or bias."""
    return {part: fused.index_select(axis, torch.from_numpy(rows)) for part, rows in row_map(layout, sizes).items()}


def put(parts: Mapping[str, torch.Tensor], layout: str, sizes: Sizes, axis: int = 0) -> torch.Tensor:
    """The fused weight or bias of {q, k, v}."""
    order = list(LAYOUTS[layout][0](sizes))
    return torch.stack([parts[part].select(axis, row) for part, row in order], dim=axis)


KV = ("kv", "vk", "kv-per-head")


def keys_and_values(fused: torch.Tensor, layout: str, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(k, v) of what is fused along its first axis, for a number of heads of one size."""
    half = fused.shape[0] // 2
    of_head = half // heads
    k = {
        "kv": list(range(half)),
        "vk": list(range(half, 2 * half)),
        "kv-per-head": [2 * of_head * head + d for head in range(heads) for d in range(of_head)],
    }[layout]
    v = {
        "kv": list(range(half, 2 * half)),
        "vk": list(range(half)),
        "kv-per-head": [2 * of_head * head + of_head + d for head in range(heads) for d in range(of_head)],
    }[layout]
    return fused[k], fused[v]


# --- gate and up -----------------------------------------------------------------------------------------------------


def gated(fused: torch.Tensor, layout: str, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(gate, up) of what is fused along an axis."""
    half = fused.shape[axis] // 2
    orders = {
        "gate-up": (range(half), range(half, 2 * half)),
        "up-gate": (range(half, 2 * half), range(half)),
        "gate-up-interleaved": (range(0, 2 * half, 2), range(1, 2 * half, 2)),
        "up-gate-interleaved": (range(1, 2 * half, 2), range(0, 2 * half, 2)),
    }
    gate, up = (fused.index_select(axis, torch.tensor(list(rows))) for rows in orders[layout])
    return gate, up


GATED = ("gate-up", "up-gate", "gate-up-interleaved", "up-gate-interleaved")


# --- rotary orders ---------------------------------------------------------------------------------------------------


def pairs_of_halves(weight: torch.Tensor, heads: int, rotary: int = 0) -> torch.Tensor:
    """Rows of heads whose rotary values are in two halves, with each value beside its partner.

    In each head, row 2 i is the one that was row i, and row 2 i + 1 the one that was row rotary / 2 + i; `rotary` says
    how many rows of a head turn, by default all.
    """
    head_dim = weight.shape[0] // heads
    rotary = rotary or head_dim
    order = []
    for head in range(heads):
        at = head * head_dim
        for i in range(rotary // 2):
            order += [at + i, at + rotary // 2 + i]
        order += range(at + rotary, at + head_dim)
    return weight[order]
