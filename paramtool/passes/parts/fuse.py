"""Fusing parts into the tensors of a layout, and taking them apart: which tensors hold the same parts.

Both ways the answer is a `Rearranged`; the plan follows from it (`rewrite`).  Nothing here says how to go back: parts
and fused tensors are described by the same pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from paramtool.errors import LayoutError, plural
from paramtool.layouts.pattern import Block, parse
from paramtool.lazy_dataclass import dataclass
from paramtool.parts import rows
from paramtool.parts.layout import FusedRow, PartLayout, group
from paramtool.parts.packing import Packing
from paramtool.parts.pieces import Stored, whole
from paramtool.parts.rows import PARTS, PartTensor
from paramtool.parts.sizes import Sizes, UnknownSize
from paramtool.passes.parts import following
from paramtool.passes.parts.find import ApartGroup, FusedGroup, GroupMember, joined

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
    layout: str
    content: str
    along: int
    sizes: Mapping[str, int]
    parts: Mapping[str, tuple[PartTensor, ...]]
    apart: tuple[Stored, ...]
    """The parts as tensors of their own."""
    companion: str = ""
    """What it is beside a weight: `weight_scale_inv`.  Then pattern, sizes and parts' shapes are the weight's."""


@dataclass(frozen=True, slots=True)
class PartNames:
    """What parts and fused tensors are called, where not as usual."""

    given: Mapping[str, str]
    """{usual name: the name that is wanted}"""

    def of(self, usual: str) -> str:
        """The name for a usual one."""
        return self.given.get(usual, usual)


def fused(
    groups: Iterable[ApartGroup],
    layout: PartLayout,
    shapes: Mapping[str, tuple[int, ...]],
    sizes_of: SizesOf,
    *,
    names: PartNames,
    packing: Packing = USUAL,
) -> Iterator[Joint]:
    """The fused tensors of groups whose parts are apart, with scales and packed codes; LayoutError says why not."""
    for one in groups:
        for member in one.members:
            for row in layout.tensors:
                made = _fused_row(
                    one, member, row, layout, shapes=shapes, sizes_of=sizes_of, names=names, packing=packing
                )
                yield made


def _fused_row(
    one: ApartGroup,
    member: GroupMember,
    row: FusedRow,
    layout: PartLayout,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    sizes_of: SizesOf,
    names: PartNames,
    packing: Packing,
) -> Joint:
    is_companion = member.suffix not in ("", WEIGHT, BIAS)
    content, along = (row.content, row.along) if is_companion else pattern_of(row, member.suffix)
    shape_of = following.elements(one, shapes, packing) if is_companion else shapes.__getitem__
    facts = Sizes(sizes_of(one.at))
    exact = {
        term: [PartTensor(name, axes, shape_of(name)) for name in member.tensors[term]]
        for term in row.terms()
        for axes in (axes_of(term, content),)
    }
    facts = rows.per_head(content, facts)
    rows.learned(facts, (part for parts in exact.values() for part in parts))  # contradictions
    content = loosened(content)
    parts = {
        term: tuple(PartTensor(part.name, axes, part.shape) for part in found)
        for term, found in exact.items()
        for axes in (axes_of(term, content),)
    }
    if rows.has_experts(content):
        facts = _with_experts(one.at, facts, len(parts[row.terms()[0]]))
    name = fused_name(one.at, names.of(row.name), member.suffix, row.is_bare)
    sizes = rows.learned(facts, (part for found in parts.values() for part in found))
    try:
        stored = rows.stored(name, content, along, parts, sizes=sizes)
    except UnknownSize as error:
        raise lacking(one.at, layout, error) from None
    made = Joint(stored, layout.name, content, along, used(content, sizes), parts, alone(parts))
    return following.following(made, member.suffix, shapes, packing) if is_companion else made


def _with_experts(at: str, facts: Sizes, count: int) -> Sizes:
    """Facts with the number of experts; LayoutError if it is known to be another."""
    if facts.known.get(rows.EXPERTS, count) != count:
        raise LayoutError(
            f"{at!r} has {plural(count, 'expert')}; expected experts={facts.known[rows.EXPERTS]}",
            hint="experts are missing, or the facts in config.json or --spec are those of another model",
        )
    return facts.with_one(rows.EXPERTS, count)


def alone(parts: Mapping[str, Iterable[PartTensor]]) -> tuple[Stored, ...]:
    """Parts as tensors of their own."""
    return tuple(whole(part.name, part.shape) for found in parts.values() for part in found)


def lacking(at: str, layout: PartLayout, error: UnknownSize) -> LayoutError:
    """The error for a fact that a layout needs and nobody said."""
    facts = layout.facts() or (error.word,)
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
    return (row.content, row.along) if suffix in ("", WEIGHT) else rows.bias_pattern(row.content, row.along)


def axes_of(term: str, content: str) -> str:
    """The axes of a part, given the pattern that it is in: without inputs for a bias, rows where they are not split.

    >>> axes_of("q", "q[q_rows in] k[k_rows in]"), axes_of("q", "{heads: q[head_dim] k[head_dim]}")
    ('q_rows in', '(heads head_dim)')
    """
    words, axes = rows.words_of(term, content), PARTS[term]
    if not rows.inputs(term) & words:
        axes = rows.of_bias(axes)
    if f"{term}_rows" in words:
        axes = " ".join(
            f"{term}_rows" if len(group_) > 1 else group_[0] for group_ in rows.groups(axes)
        )  # fmt: skip
    return axes


def loosened(content: str) -> str:
    """A pattern that asks for no more sizes than it needs: axes that no block splits or reorders are rows.

    >>> loosened("q[(heads head_dim) in] k[(kv_heads head_dim) in]")
    'q[q_rows in] k[k_rows in]'
    """
    items = parse(content, rows.WORDS)
    if not all(isinstance(item, Block) for item in items):
        return content
    texts = []
    for item in items:
        assert isinstance(item, Block)
        term = item.terms[0][1]
        whole_groups = {axes for axes in rows.groups(PARTS[term]) if len(axes) > 1}
        if item.gates or (whole_groups and not any(axes in whole_groups for axes in item.axes)):
            return content
        axes = " ".join(
            f"{term}_rows" if axes in whole_groups else f"({' '.join(axes)})" if len(axes) > 1 else axes[0]
            for axes in item.axes
        )
        texts.append(f"{term}[{axes}]")
    return " ".join(texts)


def used(content: str, sizes: Sizes) -> dict[str, int]:
    """The sizes of a pattern's words, and of the axes of its parts."""
    words = rows.words(content) | rows.slice_words(content)
    for term in rows.terms(content):
        words |= {word for axes in rows.groups(axes_of(term, content)) for word in axes}
    known = {word: sizes.of(word) for word in sorted(words) if not word.isdigit() and sizes.knows(word)}
    return {word: size for word, size in known.items() if size}  # `rest` of heads that RoPE rotates wholly follows


def unfused(
    groups: Iterable[FusedGroup],
    layout: PartLayout,
    shapes: Mapping[str, tuple[int, ...]],
    sizes_of: SizesOf,
    *,
    names: PartNames,
    packing: Packing = USUAL,
) -> Iterator[Joint]:
    """The fused tensors of groups, with the parts that they hold; LayoutError says why one cannot be taken apart."""
    kind = group(layout.group)
    for one in groups:
        sizes = Sizes(sizes_of(one.at))
        for suffix, tensors in sorted(one.members, key=lambda item: _end(item[0]) != WEIGHT):
            is_companion = _end(suffix) not in (WEIGHT, BIAS)
            for k, (row, name) in enumerate(zip(layout.tensors, tensors, strict=True)):
                if not name:
                    continue
                content, along = (row.content, row.along) if is_companion else pattern_of(row, _end(suffix))
                shape = following.fused_elements(one, k, shapes, packing) if is_companion else shapes[name]
                try:
                    sizes = _one_width(name, rows.solved(name, content, along, shape, sizes=sizes))
                    shapes_of = {term: rows.part_shape(axes_of(term, content), sizes) for term in row.terms()}
                except UnknownSize as error:
                    raise lacking(one.at, layout, error) from None
                parts = {
                    term: tuple(
                        PartTensor(joined(one.at, inside, names.of(kind.parts[term]), _end(suffix)), axes, size)
                        for inside in _insides(kind.inside, sizes)
                    )
                    for term, size in shapes_of.items()
                    for axes in [axes_of(term, content)]
                }
                made = _joint(name, content, along, sizes, parts=parts, shapes={name: shape}, layout=layout.name)
                yield following.following(made, _end(suffix), shapes, packing) if is_companion else made


def _end(suffix: str) -> str:
    """What a tensor is of its module: `weight` for a bare name."""
    return suffix.lstrip("._") or WEIGHT


def _one_width(name: str, sizes: Sizes) -> Sizes:
    """Sizes of experts in which outputs are as wide as inputs; LayoutError if the shapes say otherwise."""
    width, out = sizes.known.get("in"), sizes.known.get("out")
    if width is not None and out is not None and width != out:
        raise LayoutError(
            f"{name!r}: its experts would have {plural(width, 'input')} and {plural(out, 'output')}; expected as many",
            hint="another orientation of the stack fits: experts, experts-transposed",
        )
    return sizes


def _insides(inside: str, sizes: Sizes) -> Iterator[str]:
    if not inside:
        yield ""
        return
    yield from (str(expert) for expert in range(sizes.of(rows.EXPERTS)))


def _joint(
    name: str,
    content: str,
    along: int,
    sizes: Sizes,
    *,
    parts: Mapping[str, tuple[PartTensor, ...]],
    shapes: Mapping[str, tuple[int, ...]] | None,
    layout: str,
) -> Joint:
    shape = rows.shape_of(name, content, along, rows.per_head(content, sizes))
    if shapes is not None and shape != shapes[name]:
        said = " ".join(f"{word}={size}" for word, size in used(content, sizes).items() if word != "in")
        raise LayoutError(
            f"{name!r} has shape {list(shapes[name])}; layout {layout} with {said} has {list(shape)}",
            hint="the facts in config.json or --spec are those of another model, or another layout is meant",
        )
    if prod(shape) > MAX_ELEMENTS:  # of a record, before its parts are listed
        raise LayoutError(f"{name!r} would have {plural(prod(shape), 'element')}; expected at most {MAX_ELEMENTS}")
    stored = rows.stored(name, content, along, parts, sizes=sizes)
    return Joint(stored, layout, content, along, used(content, sizes), parts, alone(parts))


def recorded(
    tensor: str,
    content: str,
    along: int,
    sizes: Mapping[str, int],
    *,
    parts: Mapping[str, Sequence[str]],
    shapes: Mapping[str, tuple[int, ...]],
    layout: str,
    is_fused: bool,
    companion: str = "",
    packing: Packing = USUAL,
) -> Joint:
    """A fused tensor as a record describes it, in a file that has it (`is_fused`) or its parts.

    LayoutError if the file has neither, or another.
    """
    if is_fused and tensor not in shapes:
        raise LayoutError(f"{tensor!r}: its record says that it is fused, and the file has no such tensor")
    rows.check(content, along, parts)
    known = rows.per_head(content, Sizes(sizes))
    made = {
        term: tuple(PartTensor(name, axes, shape) for name in names)
        for term, names in parts.items()
        for axes in (axes_of(term, content),)
        for shape in (rows.part_shape(axes, known),)
    }
    if not companion:
        return _joint(tensor, content, along, known, parts=made, shapes=shapes if is_fused else None, layout=layout)
    weight = _joint(tensor, content, along, known, parts=made, shapes=None, layout=layout)
    return following.following(weight, companion, shapes, packing)


def parts_of(joints: Iterable[Joint]) -> list[Stored]:
    """The parts of fused tensors as tensors of their own."""
    return list({part.name: part for joint in joints for part in joint.apart}.values())
