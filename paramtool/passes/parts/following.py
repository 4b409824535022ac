"""Companions of fused weights: scales, zero points, packed codes and low-rank factors are fused and taken apart, too.

Where a weight is packed, its tensors show how many outputs and inputs it had (`parts.schemes.logical`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from paramtool.errors import LayoutError, plural
from paramtool.grouping import grouped
from paramtool.layouts.pattern import Repeated
from paramtool.model.view import Shape, Shapes
from paramtool.parts import patterns
from paramtool.parts.blocks import Image
from paramtool.parts.companions import VLLM, Followers, follow
from paramtool.parts.pieces import Stored, whole
from paramtool.parts.schemes import BASE, MXFP4, PAIR, SHOWN, Packing, is_companion, logical, with_method

if TYPE_CHECKING:
    from paramtool.passes.parts.find import ApartGroup, FusedGroup
    from paramtool.passes.parts.fuse import Joint


def elements(group: ApartGroup, suffix: str, shapes: Shapes, packing: Packing) -> Callable[[str], Shape]:
    """{companion of a part, of this suffix: the [outputs, inputs] of the part's weight}."""
    modules: dict[str, dict[str, Shape]] = {}
    for member in group.members:
        for names in member.tensors.values():
            for name in names:
                modules.setdefault(name.removesuffix(member.suffix), {})[member.suffix] = shapes[name]
    return lambda name: _logical(name, modules[name.removesuffix(suffix)], packing)


def fused_elements(group: FusedGroup, row: int, content: str, shapes: Shapes, *, packing: Packing) -> Shape:
    """The shape of a fused weight before it was packed, its axes as `content` has them."""
    found = {suffix.lstrip("._") or "weight": shapes[names[row]] for suffix, names in group.members if names[row]}
    for suffix in ("weight", f"{BASE}weight"):
        if suffix in found:
            return found[suffix]
    out, inside = _logical(next(names[row] for _, names in group.members if names[row]), found, packing)
    lead = found["blocks"][:-3] if "blocks" in found else ()
    return (*lead, inside, out) if _is_turned(content) else (*lead, out, inside)


def _is_turned(content: str) -> bool:
    """Whether a pattern has inputs before outputs.

    >>> _is_turned("{ffn: gate[experts in 1] up[experts in 1]}"), _is_turned("down[experts out ffn]")
    (True, False)
    """
    first = patterns.parsed(content)[0]
    while isinstance(first, Repeated):
        first = first.items[0]
    return not patterns.inputs(first.terms[0][1]).issuperset(first.axes[-1])


def _logical(name: str, found: Shapes, packing: Packing) -> Shape:
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
    names = {name: name for name in (*weight.described.names, weight.stored.name)}
    stems = [
        name[: len(name) - len(end)]
        for name in names
        for end in ((suffix if name.endswith(suffix) else suffix.removeprefix("weight_")),)
    ]
    beside = [other for other in SHOWN for stem in stems if stem + other in shapes]
    found = follow(Followers(weight.stored, suffix, names, shapes, with_method(packing, beside)))
    described = replace(weight.described, companion=suffix)
    return weight._replace(stored=found.fused, apart=found.parts, described=described)


class Companion(NamedTuple):
    """A companion of a weight, by names."""

    name: str
    weight: str
    suffix: str


class ToldApart(NamedTuple):
    """The tensors of a file, with companions told from weights."""

    weights: dict[str, Shape]
    """Everything that is no companion, and the weights that the file has only packed, in the shape that they had."""
    packed: frozenset[str]
    """The latter."""
    beside: tuple[Companion, ...]


def told_apart(shapes: Shapes, packing: Packing) -> ToldApart:
    """Companions told from weights, by their names and by the weights that they are beside."""
    companions = (next(_beside(name, shapes, packing), None) for name in shapes)
    found = grouped((one.weight, one) for one in companions if one is not None)
    weights, packed = dict(shapes), set()
    kept: list[Companion] = []
    for weight, members in found.items():
        shape = None
        if weight not in shapes or any(one.name == weight for one in members):
            shape = _before_packing({one.suffix: shapes[one.name] for one in members}, packing)
            if shape is None:
                continue
        kept += members
        for one in members:
            del weights[one.name]
        if shape is not None:
            weights[weight] = shape
            packed.add(weight)
    return ToldApart(weights, frozenset(packed), tuple(kept))


def _before_packing(inner: Shapes, packing: Packing) -> Shape | None:
    """The shape of a weight that the file has only packed, or of which it has only low-rank factors."""
    blocks = inner.get("blocks", ())
    if len(blocks) == 4 and "scales" in inner:  # a stack: see `parts.companions`
        experts, out, count, nbytes = blocks
        return experts, count * nbytes * 2, out
    if len(blocks) == 3 and inner.get("scales") != blocks[:2]:  # vLLM's
        experts, out, nbytes = blocks
        return experts, out, nbytes * 2
    return logical(inner, packing)


WORDS = 4
"""The most words in the name of a companion: `lora_A.default.weight`, or a scale behind `base_layer`."""


def _beside(name: str, shapes: Shapes, packing: Packing) -> Iterator[Companion]:
    """What a tensor could be a companion of."""
    words = name.split(".")
    last = words[-1]
    if last in ("weight", "bias") and BASE not in name and "lora_" not in name:
        return
    for count in range(min(WORDS, len(words)), 0, -1):
        suffix = ".".join(words[-count:])
        if suffix not in ("weight", "bias") and is_companion(suffix):
            yield Companion(name, ".".join((*words[:-count], "weight")), suffix)
    if last in ("weight", "bias"):
        return
    for k in range(len(last)):  # `gate_up_proj_scale_inv` beside `gate_up_proj`
        if last[k] != "_":
            continue
        weight, suffix = name[: len(name) - len(last) + k], last[k + 1 :]
        if suffix in PAIR and all(f"{weight}_{other}" in shapes for other in PAIR):
            yield Companion(name, weight, suffix)
        if weight in shapes:
            if _is_vllm(weight, shapes, packing) and suffix == "scale":
                yield Companion(name, weight, "scales")
            for known in (f"weight_{suffix}", suffix):
                if is_companion(known) and known != "bias":
                    yield Companion(name, weight, known)
    if _is_vllm(name, shapes, packing):
        yield Companion(name, name, "blocks")


def _is_vllm(name: str, shapes: Shapes, packing: Packing) -> bool:
    """Whether a tensor is the codes of MXFP4 as vLLM has them."""
    return packing.method == MXFP4 and name.endswith(VLLM) and f"{name}_scale" in shapes and len(shapes[name]) == 3


def beside_name(weight: str, suffix: str) -> str:
    """The name of a companion of a weight.

    >>> beside_name("q_proj.weight", "weight_scale"), beside_name("experts.down_proj", "weight_scale_inv")
    ('q_proj.weight_scale', 'experts.down_proj_scale_inv')
    """
    if suffix in PAIR and weight.endswith(VLLM):
        return weight if suffix == "blocks" else f"{weight}_scale"
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
    hub: dict[tuple[str, str], Shape] = {}
    shared_there: dict[str, str] = {}
    beside = grouped((one.weight, one.suffix) for one in found.beside)
    for one in found.beside:
        stored = by_name[one.weight]
        names = _names(stored, one.suffix, {stored.name: one.name})
        known = {one.name: shapes[one.name]}
        image = _follow(Followers(stored, one.suffix, names, known, with_method(packing, beside[one.weight])))
        sources.append(image.fused)
        shared_there |= _shared(image.parts)
        for part, its in zip(dict.fromkeys(stored.parts), image.parts, strict=True):
            shape = hub.get((part, one.suffix), its.shape)  # a part may be in several tensors
            hub[part, one.suffix] = tuple(map(max, shape, its.shape))
    suffixes = grouped((part, suffix) for part, suffix in hub)
    shared: dict[str, str] = {}
    for stored in made:
        parts = list(dict.fromkeys(stored.parts))
        for suffix in dict.fromkeys(suffix for part in parts for suffix in suffixes.get(part, ())):
            if lacking := [part for part in parts if (part, suffix) not in hub]:
                raise LayoutError(
                    f"{stored.name!r} cannot be made: {beside_name(lacking[0], suffix)!r} is missing; "
                    f"{suffix} is there for {len(parts) - len(lacking)} of {plural(len(parts), 'part')}",
                    hint="parts that are joined must be quantised alike",
                )
            names = _names(stored, suffix, {stored.name: beside_name(stored.name, suffix)})
            known = {beside_name(part, suffix): hub[part, suffix] for part in parts}
            method = with_method(packing, suffixes[parts[0]])
            image = _follow(Followers(stored, suffix, names, known, method))
            targets.append(image.fused)
            shared |= _shared(image.parts)
    # Parts are called as those that the output, or the source, shares
    sources = [one.with_parts(lambda part: shared.get(part, part)) for one in sources]
    targets = [one.with_parts(lambda part: shared_there.get(part, part)) for one in targets]
    packed = {part for name in found.packed for part in by_name[name].parts}
    return (
        [*(one for one in read if one.name not in found.packed), *sources],
        [*(one for one in made if packed.isdisjoint(one.parts)), *targets],
    )


def _follow(found: Followers) -> Image:
    """As `follow`; beside a weight that is one part as it is, a companion stays as it is, whatever it says."""
    weight, part = found.weight, found.weight.pieces[0].part
    if weight != whole(weight.name, weight.shape, part):
        return follow(found)
    (shape,) = found.shapes.values()
    return Image(whole(found.fused, shape, found.names[part]), (whole(found.names[part], shape),))


def _names(weight: Stored, suffix: str, own: Mapping[str, str]) -> dict[str, str]:
    return {**{part: beside_name(part, suffix) for part in weight.parts}, **own}


def _shared(parts: Iterable[Stored]) -> dict[str, str]:
    """{tensor: the part that it is, together with others}"""
    return {one.name: part for one in parts for part in one.parts if part != one.name}
