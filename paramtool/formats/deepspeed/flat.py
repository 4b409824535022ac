"""Where the elements of each parameter are in the flat groups of the ranks.

    stages 1 and 2   one vector for each group, cut into one run for each rank       a a a b b | b b c c .
    stage 3          each parameter cut into equal slices, one for each rank         a a b b c | a . b b .

A dot is padding: at the end of a vector; after a parameter that is aligned; after the last slice.

Sources: `_zero2_merge_trainable_params` and `zero3_partitioned_param_info` in deepspeed/utils/zero_to_fp32.py of 0.19.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

Shape = tuple[int, ...]
ALIGNED = 2
"""The vector of a group is as long as a multiple of this and the number of ranks (`nccl_start_alignment_factor` in
runtime/zero/stage_1_and_2.py)."""


class Fragment(NamedTuple):
    """Some elements of a parameter, one after the other, in a flat group of a rank."""

    rank: int
    group: int
    start: int
    """In elements of the flat group."""
    numel: int


Fragments = Mapping[str, tuple[Fragment, ...]]
"""{parameter: where its elements are, in row-major order}"""


def numel_of(shapes: Mapping[str, Shape], paddings: Sequence[int] = ()) -> int:
    """The elements of a group, with the padding between its parameters."""
    return sum(map(prod, shapes.values())) + sum(paddings)


def of_runs(
    group: int, shapes: Mapping[str, Shape], paddings: Sequence[int], run: int
) -> dict[str, tuple[Fragment, ...]]:
    """The fragments of stages 1 and 2, where each rank has `run` elements of the vector of a group.

    `paddings` has the padding after each parameter; it is empty where there is none.

    >>> of_runs(0, {"a": (3,), "b": (2, 2)}, (), 5)["b"]
    (Fragment(rank=0, group=0, start=3, numel=2), Fragment(rank=1, group=0, start=0, numel=2))
    """
    found: dict[str, tuple[Fragment, ...]] = {}
    at = 0
    for k, (name, shape) in enumerate(shapes.items()):
        stop = at + prod(shape)
        cuts = [at, *range(at - at % run + run, stop, run), stop] if run and stop > at else [at]
        found[name] = tuple(Fragment(low // run, group, low % run, high - low) for low, high in pairwise(cuts))
        at = stop + (paddings[k] if paddings else 0)
    return found


def of_slices(group: int, shapes: Mapping[str, Shape], world: int) -> dict[str, tuple[Fragment, ...]]:
    """The fragments of stage 3, where each of `world` ranks has a slice of each parameter.

    >>> of_slices(0, {"a": (3,), "b": (2, 2)}, 2)["a"]
    (Fragment(rank=0, group=0, start=0, numel=2), Fragment(rank=1, group=0, start=0, numel=1))
    """
    found: dict[str, tuple[Fragment, ...]] = {}
    at = 0
    for name, shape in shapes.items():
        numel = prod(shape)
        width = slice_numel(shape, world)
        held = [(rank, min(width, numel - rank * width)) for rank in range(world)]
        found[name] = tuple(Fragment(rank, group, at, count) for rank, count in held if count > 0)
        at += width
    return found


def slice_numel(shape: Shape, world: int) -> int:
    """The elements of a slice of stage 3, with its padding.

    >>> slice_numel((3,), 2), slice_numel((), 2)
    (2, 1)
    """
    return -(-prod(shape) // world)


def aligned(numel: int, world: int) -> int:
    """The length of the vector of a group, with the padding at its end."""
    unit = ALIGNED * world
    return -(-numel // unit) * unit
