"""Fusing parts into the tensors of a layout, and taking them apart: which tensors hold the same parts.

Both ways the answer is a `Rearranged`; the plan follows from it (`rewrite`).  Nothing here says how to go back: parts
and fused tensors are described by the same pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import NamedTuple

from paramtool.errors import LayoutError, plural
from paramtool.lazy_dataclass import frozen
from paramtool.model.parts import FusedTensor
from paramtool.model.view import Shape, Shapes
from paramtool.parts import patterns, rows
from paramtool.parts.companions import factors
from paramtool.parts.layout import FusedRow, PartLayout, group
from paramtool.parts.pieces import Stored, whole
from paramtool.parts.rows import PartTensor
from paramtool.parts.schemes import Packing
from paramtool.parts.sizes import Sizes, UnknownSize
from paramtool.parts.words import joined
from paramtool.passes.parts import following, layouts_seen
from paramtool.passes.parts.find import ApartGroup, FusedGroup, GroupMember

SizesOf = Callable[[str], Mapping[str, int]]
"""The facts about the module of that name."""
WEIGHT, BIAS = "weight", "bias"
MAX_ELEMENTS = 1 << 44
"""More elements than this has no tensor of any file."""
USUAL = Packing()
"""Of quantised weights of which nobody says more."""


class Joint(NamedTuple):
    """One fused tensor, and the parts in it."""

    stored: Stored
    described: FusedTensor
    """What a record says of it, but for positions."""
    apart: tuple[Stored, ...]
    """The parts as separate tensors."""


@frozen
class KnownParts:
    """What is known of the tensors of a checkpoint beside their names."""

    shapes: Shapes
    sizes_of: SizesOf
    names: Mapping[str, str] = field(default_factory=dict)
    """{usual name of a part or a fused tensor: the name in the output}, where that is another."""
    packing: Packing = USUAL

    def called(self, usual: str) -> str:
        """The name in the output for a usual one."""
        return self.names.get(usual, usual)


def fused(groups: Iterable[ApartGroup], layout: PartLayout, known: KnownParts) -> Iterator[Joint]:
    """The fused tensors of groups whose parts are apart, with scales and packed codes; LayoutError says why not."""
    for one in groups:
        for member in one.members:
            for row in layout.tensors:
                yield _fused_row(one, member, row, layout, known=known)


def _fused_row(one: ApartGroup, member: GroupMember, row: FusedRow, layout: PartLayout, *, known: KnownParts) -> Joint:
    shapes, packing = known.shapes, known.packing
    is_companion = member.suffix not in ("", WEIGHT, BIAS)
    content, along = (row.content, row.along) if is_companion else pattern_of(row, member.suffix)
    shape_of = following.elements(one, member.suffix, shapes, packing) if is_companion else shapes.__getitem__
    facts = rows.per_head(content, Sizes(known.sizes_of(one.at)))
    exact = (
        PartTensor(name, patterns.axes_of(term, content), shape_of(name), factors(name, member.suffix))
        for term in row.terms()
        for name in member.tensors[term]
    )
    rows.learned(facts, exact)  # contradictions
    content = patterns.loosened(content)
    parts = {
        term: tuple(PartTensor(name, patterns.axes_of(term, content), shape_of(name)) for name in member.tensors[term])
        for term in row.terms()
    }
    if patterns.has_experts(content):
        # Facts with the number of experts; LayoutError if it is known to be another.
        count = len(parts[row.terms()[0]])
        if facts.known.get(patterns.EXPERTS, count) != count:
            raise LayoutError(
                f"{one.at!r} has {plural(count, 'expert')}; expected experts={facts.known[patterns.EXPERTS]}",
                hint="experts are missing, or the facts in config.json or --spec are those of another model",
            )
        facts = facts.with_one(patterns.EXPERTS, count)
    name = fused_name(one.at, known.called(row.name), member.suffix, row.is_bare)
    sizes = rows.learned(facts, (part for found in parts.values() for part in found))
    try:
        made = _joint(name, content, along, sizes, parts=parts, layout=layout.name)
    except UnknownSize as error:
        raise lacking(one.at, layout, error) from None
    return following.following(made, member.suffix, shapes, packing) if is_companion else made


def lacking(at: str, layout: PartLayout, error: UnknownSize) -> LayoutError:
    """The error for a fact that a layout needs and nobody said."""
    facts = layout.facts or (error.word,)
    said = " ".join(f"{word}=..." for word in facts)
    return LayoutError(
        f"{at or '(top)'}: layout {layout.name} needs {error.word}, which no shape tells",
        hint=f'config.json beside the weights says it, or --spec "{layout.group} {said}"',
    )


def fused_name(at: str, child: str, suffix: str, is_bare: bool) -> str:
    """The name of a fused tensor.

    >>> fused_name("h.0.attn", "qkv_proj", "bias", False), fused_name("mlp.experts", "down_proj", "bias", True)
    ('h.0.attn.qkv_proj.bias', 'mlp.experts.down_proj_bias')
    """
    if not is_bare:
        return joined(at, child, suffix)
    return joined(at, child if suffix in ("", WEIGHT) else f"{child}_{suffix.removeprefix('weight_')}")


def pattern_of(row: FusedRow, suffix: str) -> tuple[str, int]:
    """The pattern of a row's weight, or of its bias, and the axis along which its blocks follow each other."""
    return (row.content, row.along) if suffix in ("", WEIGHT) else patterns.bias_pattern(row.content, row.along)


def unfused(groups: Iterable[FusedGroup], layout: PartLayout, known: KnownParts) -> Iterator[Joint]:
    """The fused tensors of groups, with the parts that they hold; LayoutError says why one cannot be taken apart."""
    kind, shapes = group(layout.group), known.shapes
    for one in groups:
        sizes = Sizes(known.sizes_of(one.at))  # with those that the shapes of its tensors show
        members = sorted(one.members, key=lambda item: _end(item[0]) != WEIGHT)
        for k, name, end in ((k, name, _end(suffix)) for suffix, own in members for k, name in enumerate(own) if name):
            row, is_companion = layout.tensors[k], end not in (WEIGHT, BIAS)
            content, along = (row.content, row.along) if is_companion else pattern_of(row, end)
            shape = shapes[name]
            if is_companion:
                shape = following.fused_elements(one, k, content, shapes, packing=known.packing)
            try:
                sizes = rows.solved(name, content, along, shape, sizes=sizes)
                _check_one_width(name, sizes, one, shapes)
                axes_of = {term: patterns.axes_of(term, content) for term in row.terms()}
                shapes_of = {term: rows.part_shape(axes, sizes) for term, axes in axes_of.items()}
            except UnknownSize as error:
                raise lacking(one.at, layout, error) from None
            insides = [str(expert) for expert in range(sizes.of(patterns.EXPERTS))] if kind.inside else [""]
            parts = {
                term: tuple(
                    PartTensor(joined(one.at, inside, known.called(kind.parts[term]), end), axes_of[term], of_part)
                    for inside in insides
                )
                for term, of_part in shapes_of.items()
            }
            _check_shape(name, content, along, sizes, layout=layout.name, there=shape)
            made = _joint(name, content, along, sizes, parts=parts, layout=layout.name)
            yield following.following(made, end, shapes, known.packing) if is_companion else made


def _end(suffix: str) -> str:
    """What a tensor is of its module: `weight` for a bare name."""
    return suffix.lstrip("._") or WEIGHT


def _check_one_width(name: str, sizes: Sizes, one: FusedGroup, shapes: Shapes) -> None:
    """LayoutError if the outputs of experts are not as wide as their inputs; its hint has the layouts that fit."""
    width, out = sizes.known.get("in"), sizes.known.get("out")
    if width is None or out is None or width == out:
        return
    weights = next((tensors for suffix, tensors in one.members if _end(suffix) == WEIGHT), ())
    fits = layouts_seen.stacks(one.names, tuple(shapes[tensor] for tensor in weights)) if all(weights) else ()
    names = ", ".join(fit.layout for fit in fits)
    raise LayoutError(
        f"{name!r}: its experts would have {plural(width, 'input')} and {plural(out, 'output')}; expected as many",
        hint=f"the shapes of the stacks fit {names}" if names else "the shapes of the stacks fit no layout",
    )


def _check_shape(name: str, content: str, along: int, sizes: Sizes, *, layout: str, there: Shape | None) -> None:
    """LayoutError if a fused tensor has another shape than its pattern and sizes say, or would be too large."""
    shape = rows.shape_of(name, content, along, rows.per_head(content, sizes))
    if there is not None and shape != there:
        said = " ".join(f"{word}={size}" for word, size in rows.used(content, sizes).items() if word != "in")
        raise LayoutError(
            f"{name!r} has shape {list(there)}; layout {layout} with {said} has {list(shape)}",
            hint="the facts in config.json or --spec are those of another model, or another layout is meant",
        )
    if prod(shape) > MAX_ELEMENTS:  # of a record, before its parts are listed
        raise LayoutError(f"{name!r} would have {plural(prod(shape), 'element')}; expected at most {MAX_ELEMENTS}")


def _joint(
    name: str, content: str, along: int, sizes: Sizes, *, parts: Mapping[str, tuple[PartTensor, ...]], layout: str
) -> Joint:
    """A fused tensor of a weight or a bias; UnknownSize if a size is lacking."""
    stored = rows.stored(name, content, along, parts, sizes=sizes)
    described = FusedTensor(
        tensor=name,
        layout=layout,
        pattern=content,
        along=along,
        sizes=rows.used(content, sizes),
        parts={term: tuple(part.name for part in found) for term, found in parts.items()},
    )
    return Joint(stored, described, tuple(whole(one.name, one.shape) for found in parts.values() for one in found))


def recorded(one: FusedTensor, shapes: Shapes, packing: Packing = USUAL, *, is_fused: bool) -> Joint:
    """A fused tensor as a record describes it, in a file that has it (`is_fused`) or its parts.

    LayoutError if the file has neither, or another.
    """
    name, content, along = one.tensor, one.pattern, one.along
    if is_fused and name not in shapes:
        raise LayoutError(f"{name!r}: its record says that it is fused, and the file has no such tensor")
    patterns.check(content, along, one.parts)
    sizes = rows.per_head(content, Sizes(one.sizes))
    parts = {}
    for term, names in one.parts.items():
        axes = patterns.axes_of(term, content)
        shape = rows.part_shape(axes, sizes)
        parts[term] = tuple(PartTensor(part, axes, shape) for part in names)
    there = shapes[name] if is_fused and not one.companion else None
    _check_shape(name, content, along, sizes, layout=one.layout, there=there)
    made = _joint(name, content, along, sizes, parts=parts, layout=one.layout)
    return following.following(made, one.companion, shapes, packing) if one.companion else made


def check_parts(joint: Joint, sizes: Mapping[str, int]) -> None:
    """LayoutError if a joint from a record has parts of other lengths than facts say."""
    one = joint.described
    if not one.companion:
        shapes = {part.name: part.shape for part in joint.apart}
        parts = (
            PartTensor(name, axes, shapes[name])
            for term, names in one.parts.items()
            for axes in (patterns.split_axes(term, one.pattern),)
            for name in names
        )
        rows.learned(rows.per_head(one.pattern, Sizes(sizes)), parts)


def parts_of(joints: Iterable[Joint]) -> list[Stored]:
    """The parts of fused tensors as separate tensors."""
    return list({part.name: part for joint in joints for part in joint.apart}.values())


# --- Fusing and taking apart by the record of a file: what an earlier command changed gets its names and positions back
#
#     record: unfused qkv_proj, position 4    q_proj, k_proj, v_proj fused   qkv_proj, at position 4 again
#     record: fused qkv_proj, positions 4, 5, 6    qkv_proj taken apart      q_proj, k_proj, v_proj at these positions
#
# Tensors that turn out to be those of a record are restored, too, whoever asked for them.


def restored(
    joints: Sequence[Joint],
    again: Iterable[FusedTensor],
    known: Iterable[FusedTensor],
    ranks: Mapping[str, int],
    *,
    is_fused: bool,
) -> tuple[frozenset[str], tuple[FusedTensor, ...]]:
    """The fused tensors of a record that are restored, and what a record of the output says of the others.

    They are fused, or taken apart (`is_fused`: the source has them fused).  `again` were taken from the record, `known`
    are all that it could restore, and `ranks` is the first order of the source's names (`order`), which is where
    restored tensors go.
    """
    described = {one.stored.name: one.described for one in joints}
    like = {one.tensor for one in known if one.tensor in described and one.is_like(described[one.tensor])}
    taken = like.union(one.tensor for one in again)
    new = []
    for joint in joints:
        if joint.stored.name not in taken:  # with the positions of what the source has and the output does not
            old = (joint.described.tensor,) if is_fused else joint.described.names
            new.append(replace(joint.described, positions=tuple(ranks[name] for name in old)))
    return frozenset(taken), tuple(new)


def parts_as_they_are(joints: Iterable[Joint], shapes: Shapes) -> list[Stored]:
    """The parts as the source has them; LayoutError if a record says another shape."""
    found = parts_of(joints)
    for one in found:
        if shapes[one.name] != one.shape:
            raise LayoutError(
                f"{one.name!r} has shape {list(shapes[one.name])}; its record says {list(one.shape)}",
                hint="--at MODULE fuses without the record",
            )
    return found
