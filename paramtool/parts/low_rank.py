"""Low-rank factors of weights, W + B A: rows of W are rows of B, and inputs of W are those of A."""

from __future__ import annotations

from collections.abc import Mapping

from paramtool.errors import LayoutError
from paramtool.parts.blocks import IN, OUT, WHOLE, Axis, Image, image, lengths, roles
from paramtool.parts.packing import WRITERS, Packing
from paramtool.parts.pieces import Digit, Piece, Stored


def factor_of(suffix: str) -> str:
    """`A` or `B` for a low-rank factor: `lora_A.weight`, `lora_B.default.weight`, `lora_A`."""
    words = suffix.split(".")
    if words[0] in ("lora_A", "lora_B") and words[-1] in ("weight", words[0]):
        return words[0][-1]
    return ""


MERGE = "merge the adapter into the weights first, and convert those"


def low_rank(
    weight: Stored,
    factor: str,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    packing: Packing,
) -> Image:
    """The factors A [rank, inputs] and B [outputs, rank] of W + B A.

    Rows of W are rows of B, so that one pair of a fused weight is a pair of each part, with one A for all.  Pairs of
    parts are one pair only where their A are equal; else the sum has a larger rank, and no tensor of this one.
    """
    fused, parts = names[weight.name], lengths(weight)
    own = [shapes[names[part]] for part in parts if names[part] in shapes]
    shape = (own or [shapes.get(fused, ())])[0]
    if len(weight.shape) == 3 and all(len(one) == 2 for one in parts.values()):
        return _stacked(weight, factor, names, shapes, packing=packing)
    if len(weight.shape) != 2 or any(len(one) != 2 for one in parts.values()):
        raise LayoutError(f"{fused!r}: low-rank factors follow weights with two axes, and stacks of them", hint=MERGE)
    if len(shape) != 2 or any(len(one) != 2 for one in own):
        raise LayoutError(f"{fused!r} has shape {list(shape)}; expected two axes, one of them the rank")
    ranks = {one[0 if factor == "A" else 1] for one in own or [shape]}
    if len(ranks) > 1:
        raise LayoutError(
            f"{fused!r} cannot be made: the low-rank factors of its parts have ranks "
            f"{', '.join(map(str, sorted(ranks)))}",
            hint=MERGE,
        )
    rank = Axis(WHOLE, 1, ranks.pop())
    axes = (rank, Axis(IN)) if factor == "A" else (Axis(OUT), rank)
    try:
        return image(weight, axes, fused, {part: names[part] for part in parts})
    except LayoutError as error:
        raise LayoutError(
            f"{fused!r} cannot follow its weight: parts of other inputs each have their own factors",
            hint=MERGE,
        ) from error


def _stacked(
    weight: Stored,
    factor: str,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    packing: Packing,
) -> Image:
    """The factors of stacked experts: A [(expert rank) inputs], B [outputs (rank expert)] or [outputs (expert rank)].

    PEFT has the first order of B and Unsloth the second (unslothai/unsloth#6930); no shape tells which.
    """
    fused, parts = names[weight.name], lengths(weight)
    if packing.writer not in WRITERS:
        raise LayoutError(
            f"{fused!r}: the low-rank factors of stacked experts are in the order (rank expert) if PEFT wrote them, "
            "and (expert rank) if Unsloth did; nothing says who did",
            hint=f"say who wrote the adapter, {' or '.join(WRITERS)}, or {MERGE.partition(',')[0]}",
        )
    where = roles(weight)
    experts = weight.shape[where.rest[0]]
    rank_axis = 0 if factor == "A" else 1
    own = {shapes[names[part]][rank_axis] for part in parts if names[part] in shapes}
    if not own and fused in shapes:
        own = {shapes[fused][rank_axis] // experts}
    if len(own) != 1:
        raise LayoutError(f"{fused!r}: the low-rank factors of its parts have several ranks, or none", hint=MERGE)
    rank = Axis(WHOLE, 1, own.pop())
    axes = (rank, Axis(IN)) if factor == "A" else (Axis(OUT), rank)
    made = image(weight, axes, fused, {part: names[part] for part in parts})
    is_inner = factor == "B" and packing.writer == "peft"
    found = _without_stack(made.fused, rank_axis, (experts, rank.per), is_inner)
    if fused in shapes and shapes[fused] != found.shape:
        raise LayoutError(f"{fused!r} has shape {list(shapes[fused])}; expected {list(found.shape)}")
    return Image(found, made.parts)


def _without_stack(stack: Stored, rank_axis: int, counts: tuple[int, int], is_inner: bool) -> Stored:
    """A stack [experts, .., ..] whose first axis is put beside the rank, inside or outside of it."""
    experts, rank = counts
    expert_step, rank_step = (1, experts) if is_inner else (rank, 1)
    shape = tuple(length * experts if k == rank_axis else length for k, length in enumerate(stack.shape[1:]))
    pieces = []
    for piece in stack.pieces:
        digits = tuple(
            tuple(Digit(d.length, d.axis - 1, d.step * (rank_step if d.axis - 1 == rank_axis else 1)) for d in axis)
            for axis in piece.digits
        )
        at = tuple(
            here * rank_step + piece.at[0] * expert_step if k == rank_axis else here
            for k, here in enumerate(piece.at[1:])
        )
        pieces.append(Piece(piece.part, piece.start, digits, at))
    return Stored(stack.name, shape, tuple(pieces))
