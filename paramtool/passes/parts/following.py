"""Companions of fused weights: scales, zero points, packed codes and low-rank factors are fused and taken apart, too.

Where a weight is packed, its tensors show how many outputs and inputs it had (`parts.companions.logical`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from paramtool.errors import LayoutError, plural
from paramtool.parts.blocks import Image
from paramtool.parts.companions import follow, is_companion, logical
from paramtool.parts.packing import Packing
from paramtool.parts.pieces import Stored, whole

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
            f"{name!r}: the tensors beside it ({', '.join(found)}) do not show how many outputs and inputs its weight "
            "has",
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
    found = follow(weight.stored, suffix, names, shapes, packing=packing)
    for one in (found.fused, *found.parts):
        if one.name in shapes and prod(one.shape) != prod(shapes[one.name]):
            raise LayoutError(f"{one.name!r} has shape {list(shapes[one.name])}; expected {list(one.shape)}")
    return weight._replace(stored=found.fused, apart=found.parts, companion=suffix)


class Companion(NamedTuple):
    """A companion of a weight, by names."""

    name: str
    weight: str
    suffix: str


class ToldApart(NamedTuple):
    """The tensors of a file, with companions told from weights."""

    weights: dict[str, tuple[int, ...]]
    """Everything that is no companion, and the weights that the file has only packed, in the shape that they had."""
    packed: frozenset[str]
    """The latter."""
    beside: tuple[Companion, ...]


def told_apart(shapes: Shapes, packing: Packing) -> ToldApart:
    """Companions told from weights, by their names and by the weights that they are beside."""
    found: dict[str, list[Companion]] = {}
    for name in shapes:
        if name.endswith((".weight", ".bias")) and not name.endswith(("_A.weight", "_B.weight")):
            continue
        for one in _beside(name, shapes):
            found.setdefault(one.weight, []).append(one)
            break
    weights, packed = dict(shapes), set()
    kept: list[Companion] = []
    for weight, members in found.items():
        if weight not in shapes:
            inner = {one.suffix: shapes[one.name] for one in members}
            shape = logical(inner, packing)
            if shape is None:
                continue
            weights[weight] = shape
            packed.add(weight)
        kept += members
        for one in members:
            del weights[one.name]
    return ToldApart(weights, frozenset(packed), tuple(kept))


def _beside(name: str, shapes: Shapes) -> Iterator[Companion]:
    """What a tensor could be a companion of."""
    module, _, last = name.rpartition(".")
    outer, _, before = module.rpartition(".")
    for at, suffix in ((outer, f"{before}.{last}"), (module, last)):
        if is_companion(suffix) and suffix != "bias":
            yield Companion(name, f"{at}.weight" if at else "weight", suffix)
    for k in range(len(last)):  # `gate_up_proj_scale_inv` beside `gate_up_proj`
        if last[k] == "_" and (weight := name[: len(name) - len(last) + k]) in shapes:
            suffix = last[k + 1 :]
            for known in (f"weight_{suffix}", suffix):
                if is_companion(known) and known != "bias":
                    yield Companion(name, weight, known)


def beside_name(weight: str, suffix: str) -> str:
    """The name of a companion of a weight.

    >>> beside_name("q_proj.weight", "weight_scale"), beside_name("experts.down_proj", "weight_scale_inv")
    ('q_proj.weight_scale', 'experts.down_proj_scale_inv')
    """
    if weight == "weight" or weight.endswith(".weight"):
        return weight.removesuffix("weight") + suffix
    return f"{weight}_{suffix.removeprefix('weight_')}"


def followed(
    read: Sequence[Stored], made: Sequence[Stored], found: ToldApart, shapes: Shapes, *, packing: Packing
) -> tuple[list[Stored], list[Stored]]:
    """The tensors of a source and of an output, with companions in place of weights that are only packed.

    LayoutError where a block would be cut, or parts that are joined have different companions.
    """
    by_name = {one.name: one for one in read}
    sources, targets = [], []
    hub: dict[tuple[str, str], tuple[int, ...]] = {}
    shared_there: dict[str, str] = {}
    for one in found.beside:
        stored = by_name[one.weight]
        names = _names(stored, one.suffix, {stored.name: one.name})
        image = _follow(stored, one.suffix, names, {one.name: shapes[one.name]}, packing=packing)
        sources.append(image.fused)
        shared_there |= _shared(image.parts)
        for part, its in zip(dict.fromkeys(piece.part for piece in stored.pieces), image.parts, strict=True):
            hub[part, one.suffix] = its.shape
    suffixes: dict[str, list[str]] = {}
    for part, suffix in hub:
        suffixes.setdefault(part, []).append(suffix)
    shared: dict[str, str] = {}
    for stored in made:
        parts = list(dict.fromkeys(piece.part for piece in stored.pieces))
        for suffix in dict.fromkeys(suffix for part in parts for suffix in suffixes.get(part, ())):
            if lacking := [part for part in parts if (part, suffix) not in hub]:
                raise LayoutError(
                    f"{stored.name!r} cannot be made: {beside_name(lacking[0], suffix)!r} is missing; "
                    f"{suffix} is there for {len(parts) - len(lacking)} of {plural(len(parts), 'part')}",
                    hint="parts that are joined must be quantised alike",
                )
            names = _names(stored, suffix, {stored.name: beside_name(stored.name, suffix)})
            known = {beside_name(part, suffix): hub[part, suffix] for part in parts}
            image = _follow(stored, suffix, names, known, packing=packing)
            targets.append(image.fused)
            shared |= _shared(image.parts)
    sources = [_renamed(one, shared) for one in sources]
    targets = [_renamed(one, shared_there) for one in targets]
    packed = {piece.part for name in found.packed for piece in by_name[name].pieces}
    return (
        [*(one for one in read if one.name not in found.packed), *sources],
        [*(one for one in made if not _is_of(one, packed)), *targets],
    )


def _follow(weight: Stored, suffix: str, names: Mapping[str, str], shapes: Shapes, *, packing: Packing) -> Image:
    """As `follow`; beside a weight that is one part as it is, a companion stays as it is, whatever it says."""
    part = weight.pieces[0].part
    if weight != whole(weight.name, weight.shape, part) or len(weight.shape) > 2:
        return follow(weight, suffix, names, shapes, packing=packing)
    (shape,) = shapes.values()
    return Image(whole(names[weight.name], shape, names[part]), (whole(names[part], shape),))


def _names(weight: Stored, suffix: str, own: Mapping[str, str]) -> dict[str, str]:
    return {**{piece.part: beside_name(piece.part, suffix) for piece in weight.pieces}, **own}


def _shared(parts: Iterable[Stored]) -> dict[str, str]:
    """{tensor: the part that it is, together with others}"""
    return {one.name: piece.part for one in parts for piece in one.pieces if piece.part != one.name}


def _renamed(one: Stored, shared: Mapping[str, str]) -> Stored:
    """A tensor whose parts are those that the output shares."""
    pieces = tuple(piece._replace(part=shared.get(piece.part, piece.part)) for piece in one.pieces)
    return one._replace(pieces=pieces)


def _is_of(one: Stored, packed: Collection[str]) -> bool:
    """Whether a tensor would be made of weights that the file has only packed."""
    return any(piece.part in packed for piece in one.pieces)
