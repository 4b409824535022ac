"""Moments that bitsandbytes quantises in blocks of 256 elements, each with a scale: moved where no block is cut.

A block is 256 elements of the flattened tensor.  A run of elements moves exactly if it begins with a block in the old
tensor and in the new one, and holds whole blocks; the last block of a tensor may be shorter.  The scales of the blocks
(`absmax1`, `absmax2`) move with them.  Source: bitsandbytes 0.50 (optim/optimizer.py, `Optimizer2State.init_state`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from paramtool.errors import LayoutError
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View, contiguous
from paramtool.passes.optimizer.slots import BLOCK


def check(targets: Sequence[Target], states: Mapping[str, View]) -> None:
    """LayoutError where a map of quantised moments cuts a block, or changes values."""
    for target in targets:
        for copy in target.copies:
            _run(copy, target, states)


def scales(targets: Sequence[Target], states: Mapping[str, View], absmax: Mapping[str, View]) -> tuple[Target, ...]:
    """The scales of moved blocks; `targets` are of the moments, and `states` and `absmax` are the old ones."""
    return tuple(_scales(target, states, absmax) for target in targets)


def _scales(target: Target, states: Mapping[str, View], absmax: Mapping[str, View]) -> Target:
    dtype = next(iter(absmax.values())).dtype
    whole = contiguous(target.name, dtype, (_count(target.shape),))
    copies = []
    for copy in target.copies:
        name, (shape, there, here) = _run(copy, target, states)
        held = absmax[name]
        term = replace(held, offset=held.offset + there[0], shape=shape, strides=there[1])
        destination = replace(whole, offset=here[0], shape=shape, strides=here[1])
        copies.append(Copy(destination, ((1, term),)))
    return Target(target.name, dtype, whole.shape, tuple(copies))


_Place = tuple[int, tuple[int, ...]]
"""An offset and strides, in blocks."""


def _run(copy: Copy, target: Target, states: Mapping[str, View]) -> tuple[str, tuple[tuple[int, ...], _Place, _Place]]:
    """The old tensor of a copy, and the shape and the places of its blocks there and in the new tensor."""
    if not copy.is_plain:
        raise LayoutError(f"{target.name!r} would be calculated, and quantised moments only move")
    term = copy.terms[0][1]
    found = [(name, view) for name, view in states.items() if view.storage == term.storage]
    if len(found) != 1 or not found[0][1].is_contiguous:
        raise LayoutError(f"{target.name!r} is made of tensors that are not stored row by row")
    name, old = found[0]
    there = replace(term, offset=term.offset - old.offset)
    length = _contiguous_run(copy.destination, there)
    outer = copy.destination.shape[: len(copy.destination.shape) - length[0]]
    numel = length[1]
    ends = (there.offset + numel == old.numel, copy.destination.offset + numel == prod(target.shape))
    is_last = prod(outer) == 1 and all(ends)
    places = [_in_blocks(view, len(outer)) for view in (there, copy.destination)]
    if None in places or (numel % BLOCK and not is_last):
        raise LayoutError(f"blocks of {BLOCK} elements of {name!r} would be cut")
    shape = (*outer, -(-numel // BLOCK))
    return name, (shape, *(place for place in places if place is not None))  # type: ignore[return-value]


def _contiguous_run(*views: View) -> tuple[int, int]:
    """How many of the last axes are one run in each view, and its length."""
    count, length = 0, 1
    for axis in range(len(views[0].shape) - 1, -1, -1):
        size = views[0].shape[axis]
        if size > 1 and any(view.strides[axis] != length for view in views):
            break
        count, length = count + 1, length * size
    return count, length


def _in_blocks(view: View, outer: int) -> _Place | None:
    """Where the runs of a view begin, in blocks; None where one begins inside of a block."""
    pairs = list(zip(view.shape[:outer], view.strides[:outer], strict=True))
    if view.offset % BLOCK or any(stride % BLOCK for size, stride in pairs if size > 1):
        return None
    return view.offset // BLOCK, (*(stride // BLOCK for _, stride in pairs), 1)


def _count(shape: Sequence[int]) -> int:
    return -(-prod(shape) // BLOCK)


def moments_of(called: str) -> str:
    """The slot of the moments that a slot of scales belongs to; empty for any other slot.

    >>> moments_of("q.absmax2"), moments_of("q.qmap1")
    ('q.state2', '')
    """
    before, _, last = called.rpartition("absmax")
    return f"{before}state{last}" if last in ("1", "2") else ""
