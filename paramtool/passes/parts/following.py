"""Companions of fused weights: scales, zero points, packed codes and low-rank factors are fused and taken apart, too.

Where a weight is packed, its tensors show how many outputs and inputs it had (`parts.companions.logical`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING

from paramtool.errors import LayoutError
from paramtool.parts.companions import Packing, follow, is_companion, logical

if TYPE_CHECKING:
    from paramtool.passes.parts.find import ApartGroup, FusedGroup
    from paramtool.passes.parts.fuse import Joint

Shapes = Mapping[str, tuple[int, ...]]


def elements(group: ApartGroup, shapes: Shapes, packing: Packing) -> Callable[[str], tuple[int, ...]]:
    """{companion of a part: the [outputs, inputs] of the part's weight}."""
    modules: dict[str, dict[str, tuple[int, ...]]] = {}
    for member in group.members:
        for names in member.tensors.values():
            for name in names:
                modules.setdefault(name.removesuffix(member.suffix), {})[member.suffix] = shapes[name]

    def of(name: str) -> tuple[int, ...]:
        module = next(
            module for module in modules if name.startswith(module) and name[len(module) :] in modules[module]
        )
        return _logical(name, modules[module], packing)

    return of


def fused_elements(group: FusedGroup, row: int, shapes: Shapes, packing: Packing) -> tuple[int, ...]:
    """The shape of a fused weight before it was packed."""
    found = {suffix.lstrip("._") or "weight": shapes[names[row]] for suffix, names in group.members if names[row]}
    first = next(names[row] for _, names in group.members if names[row])
    return _logical(first, found, packing)


def _logical(name: str, found: Mapping[str, tuple[int, ...]], packing: Packing) -> tuple[int, ...]:
    shape = found.get("weight")
    if shape is not None and len(shape) > 2:
        return shape
    known = logical(found, packing)
    if known is None:
        raise LayoutError(
            f"{name!r}: the tensors beside it ({', '.join(found)}) do not show how many outputs and inputs its weight has",
            hint="convert the weights before they are quantised",
        )
    return known


def following(weight: Joint, suffix: str, shapes: Shapes, packing: Packing) -> Joint:
    """The companion of a fused weight, whose names are the companion's; LayoutError if a block would be cut."""
    if not is_companion(suffix):
        raise LayoutError(
            f"{weight.stored.name!r}: it is not known how {suffix!r} belongs to the rows of a weight",
            hint="--at chooses modules without such tensors; `export` leaves tensors out",
        )
    names = {part.name: part.name for parts in weight.parts.values() for part in parts}
    names[weight.stored.name] = weight.stored.name
    found = follow(weight.stored, suffix, names, shapes, packing)
    for one in (found.fused, *found.parts):
        if one.name in shapes and prod(one.shape) != prod(shapes[one.name]):
            raise LayoutError(f"{one.name!r} has shape {list(shapes[one.name])}; expected {list(one.shape)}")
    return weight._replace(stored=found.fused, apart=found.parts, companion=suffix)
