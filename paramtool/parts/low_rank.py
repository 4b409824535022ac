"""Low-rank factors of weights, W + B A: rows of W are rows of B, and inputs of W are those of A."""

from __future__ import annotations

from paramtool.errors import LayoutError
from paramtool.parts.blocks import IN, OUT, WHOLE, Axis, Image, roles
from paramtool.parts.followers import Followers
from paramtool.parts.packing import WRITERS
from paramtool.parts.pieces import with_one_axis
from paramtool.parts.schemes import factor_of


def factors(name: str, suffix: str) -> tuple[str, ...]:
    """The factors that show the outputs and the inputs of a weight, given one of them; none for other tensors.

    >>> factors("h.0.q_proj.lora_A.weight", "lora_A.weight")
    ('h.0.q_proj.lora_B.weight', 'h.0.q_proj.lora_A.weight')
    """
    if not (own := factor_of(suffix)):
        return ()
    base = name.removesuffix(suffix)
    return tuple(f"{base}{suffix.replace(f'lora_{own}', f'lora_{letter}')}" for letter in "BA")


MERGE = "merge the adapter into the weights first, and convert those"


def low_rank(found: Followers) -> Image:
    """The factors A [rank, inputs] or B [outputs, rank] of W + B A.

    Rows of W are rows of B, so that one pair of a fused weight is a pair of each part, with one A for all.  Pairs of
    parts are one pair only where their A are equal; otherwise the sum has a larger rank, which no pair of
    this rank can hold.
    """
    weight, fused, parts, own = found.weight, found.fused, found.parts, list(found.own.values())
    shape = (own or [found.shapes.get(fused, ())])[0]
    if len(weight.shape) == 3 and all(len(one) == 2 for one in parts.values()):
        return _stacked(found)
    if len(weight.shape) != 2 or any(len(one) != 2 for one in parts.values()):
        raise LayoutError(f"{fused!r}: low-rank factors follow weights with two axes, and stacks of them", hint=MERGE)
    if len(shape) != 2 or any(len(one) != 2 for one in own):
        raise LayoutError(f"{fused!r} has shape {list(shape)}; expected two axes, one of them the rank")
    ranks = {one[_rank_axis(found)] for one in own or [shape]}
    if len(ranks) > 1:
        raise LayoutError(
            f"{fused!r} cannot be made: the low-rank factors of its parts have ranks "
            f"{', '.join(map(str, sorted(ranks)))}",
            hint=MERGE,
        )
    try:
        return _image(found, ranks.pop())
    except LayoutError as error:
        raise LayoutError(
            f"{fused!r} cannot follow its weight: parts of other inputs each have their own factors",
            hint=MERGE,
        ) from error


def _rank_axis(found: Followers) -> int:
    return 0 if factor_of(found.suffix) == "A" else 1


def _image(found: Followers, rank: int) -> Image:
    """The factors as images of the weight: an axis of `rank`, and the weight's rows or inputs."""
    axis = Axis(WHOLE, 1, rank)
    return found.image((Axis(OUT), axis) if _rank_axis(found) else (axis, Axis(IN)))


def _stacked(found: Followers) -> Image:
    """The factors of stacked experts: A [(expert rank) inputs], B [outputs (rank expert)] or [outputs (expert rank)].

    PEFT has the first order of B and Unsloth the second (unslothai/unsloth#6930); no shape tells which.
    """
    fused, shapes, writer = found.fused, found.shapes, found.packing.writer
    rank_axis = _rank_axis(found)
    if writer not in WRITERS:
        raise LayoutError(
            f"{fused!r}: the low-rank factors of stacked experts are in the order (rank expert) if PEFT wrote them, "
            "and (expert rank) if Unsloth did; nothing says who did",
            hint=MERGE,
        )
    experts = found.weight.shape[roles(found.weight).rest[0]]
    own = {one[rank_axis] for one in found.own.values()}
    if not own and fused in shapes:
        own = {shapes[fused][rank_axis] // experts}
    if len(own) != 1:
        raise LayoutError(f"{fused!r}: the low-rank factors of its parts have several ranks, or none", hint=MERGE)
    rank = own.pop()
    made = _image(found, rank)
    of_expert, of_rank = 0, rank_axis + 1
    is_inner = rank_axis == 1 and writer == "peft"
    stack = with_one_axis(made.fused, *((of_rank, of_expert) if is_inner else (of_expert, of_rank)))
    if fused in shapes and shapes[fused] != stack.shape:
        raise LayoutError(f"{fused!r} has shape {list(shapes[fused])}; expected {list(stack.shape)}")
    return Image(stack, made.parts)
