"""Companions: scales, zero points, packed codes and low-rank factors that follow a weight when its parts are moved.

    q_proj.weight  k_proj.weight  v_proj.weight             qkv_proj.weight
    q_proj.weight_scale_inv  ...                   ->       qkv_proj.weight_scale_inv      tiles of 128 x 128
    q_proj.qweight  q_proj.qzeros  q_proj.scales  q_proj.g_idx  ...                        GPTQ

Each has an element for a block of the weight's elements (`blocks`), so that its place follows from the weight's; where
a block would be cut the answer is a LayoutError.  A companion that has no axis along which parts are joined, such as
the scale of a whole tensor or the order of GPTQ's inputs, is one tensor for all of them: they must be equal, which only
the bytes can show, and the tensors share a part, so that the plan asks for it.  `schemes` has the names of companions,
and the axes of each.

Scales that are beside a weight in its own axes, one for a row or a tile, are turned where the weight is turned.  GPTQ,
AWQ, MXFP4 and low-rank factors have one form, whatever order the axes of the weight have when it is dequantised.  Codes
that are packed along the inputs of a row have no turned form and are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from paramtool.errors import LayoutError
from paramtool.model.view import Shape, Shapes
from paramtool.parts.blocks import IN, OUT, WHOLE, Axis, Image, image, roles
from paramtool.parts.operations import swapped, with_one_axis
from paramtool.parts.pieces import Digit, Piece, Stored, part_shapes
from paramtool.parts.schemes import (
    BASE,
    INPUTS,
    MXFP4,
    REFUSED,
    SCALES,
    WHOLE_TENSOR,
    WRITERS,
    Packing,
    axes_of,
    factor_of,
)

# --- Followers: the companions of one name, such as `weight_scale`, of a fused weight and of its parts ---------------


class Followers(NamedTuple):
    """The companions of one name of a fused weight and of its parts, as far as a file has them."""

    weight: Stored
    """In the shape before packing, [.., outputs, inputs] in any order of axes; its pieces' parts have [.., outputs,
    inputs]."""
    suffix: str
    """The end of their names, behind those of the modules: `weight_scale`."""
    names: Mapping[str, str]
    """{the fused weight, or a part of it: its companion}"""
    shapes: Mapping[str, Shape]
    """{companion: its shape}, of those that the file has: of all parts, or of the fused weight."""
    packing: Packing = Packing()

    @property
    def fused(self) -> str:
        """The name of the companion of the fused weight."""
        return self.names[self.weight.name]

    @property
    def parts(self) -> dict[str, Shape]:
        """{part of the weight: its shape}"""
        return part_shapes([self.weight])

    @property
    def own(self) -> dict[str, Shape]:
        """{part of the weight: the shape of its companion}, of those that the file has."""
        return {part: self.shapes[self.names[part]] for part in self.parts if self.names[part] in self.shapes}

    def image(self, axes: Sequence[Axis]) -> Image:
        """The companions as images of the weight, for these axes; LayoutError where a block would be cut."""
        return image(self.weight, axes, self.fused, {part: self.names[part] for part in self.parts})


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


QUANTISE = "convert the weights before they are quantised, or quantise again in the new layout"
VLLM = "_weight"
"""The end of the names of stacks in vLLM: `w13_weight` and `w13_weight_scale` are MXFP4's codes and scales, too."""
NBYTES = 16
"""Bytes of a block of MXFP4, 32 codes."""
PACKED = ("weight", "weight_packed", "weight_scale_2", "biases")
"""Codes of which several of a row are packed together, and what only such codes have beside them."""


def follow(found: Followers) -> Image:
    """Where one companion of a fused weight is, and where it is in each part.

    LayoutError where a block would be cut, where a shape fits no scheme, or where the companion has to be written anew.
    """
    found = found._replace(suffix=found.suffix.removeprefix(BASE))
    if found.suffix in REFUSED:
        raise LayoutError(f"{found.fused!r} cannot follow its weight: {REFUSED[found.suffix]}", hint=QUANTISE)
    if factor_of(found.suffix):
        return low_rank(found)
    return _mxfp4(found) if found.packing.method == MXFP4 else _by_blocks(found)


def _by_blocks(found: Followers) -> Image:
    """A companion that has an element for a block of the weight's."""
    weight, suffix, shapes = found.weight, found.suffix, found.shapes
    is_turned = suffix in (*SCALES, *PACKED) and len(weight.shape) > 1 and _is_turned(weight)
    if is_turned and suffix in PACKED and not (suffix == "weight" and _is_unpacked(found)):
        raise LayoutError(
            f"{found.fused!r} cannot follow its weight: inputs come before outputs in {weight.name!r}, and its codes "
            "are packed along the inputs of a row",
            hint=QUANTISE,
        )
    known, is_turned = _known(found, is_turned)
    axes = _one_scheme(suffix, known, found.packing)
    if axes is None:
        raise LayoutError(f"{found.fused!r} cannot follow its weight: no tensor of its name or of its parts is there")
    made = found.image(axes)
    if is_turned and len(axes) > 1 and any(axis.role != WHOLE for axis in axes):
        last = len(made.fused.shape) - 1
        made = made._replace(fused=swapped(made.fused, last - 1, last))
    _check_shape(made.fused, shapes, 0)
    for shape, one in zip(found.parts.values(), made.parts, strict=True):
        _check_shape(one, shapes, max(len(shape) - 2, 0))
    return Image(_shaped(made.fused, shapes), tuple(_shaped(one, shapes) for one in made.parts))


def _check_shape(one: Stored, shapes: Shapes, lead: int) -> None:
    """LayoutError if a tensor of the file has another shape, not counting `lead` axes of experts."""
    found, expected = shapes.get(one.name, one.shape)[lead:], one.shape[lead:]
    if found != expected and (prod(found) != 1 or prod(expected) != 1):
        raise LayoutError(f"{one.name!r} has shape {list(shapes[one.name])}; expected {list(one.shape)}")


def _one_scheme(suffix: str, known: Iterable[Known], packing: Packing) -> tuple[Axis, ...] | None:
    """The axes of companions that the file has; None if it has none, LayoutError if they are not of one scheme."""
    axes, first = None, ""
    for name, shape, elements in known:
        found = axes_of(suffix, shape, elements, packing)
        if found is None:
            raise LayoutError(
                f"{name!r} has shape {list(shape)}, which fits no scheme for a weight of {elements[0]} x {elements[1]}",
                hint=QUANTISE,
            )
        if axes is not None and found != axes:
            raise LayoutError(f"{name!r} has other blocks than {first!r}: {_told(found)}, and {_told(axes)}")
        axes, first = found, first or name
    return axes


def _mxfp4(found: Followers) -> Image:
    """Codes and scales of MXFP4: rows of outputs, whatever order the axes of the weight have.

    A stack that is one part is [experts, inputs, outputs] (transformers integrations/mxfp4.py,
    `convert_moe_packed_tensors`).  vLLM has the codes under the weight's own name, with an axis less
    (models/gpt_oss.py, `_load_weights_mxfp4`).
    """
    if any(len(shape) == 3 for shape in found.parts.values()):
        pieces = (
            Piece(part, (*start[:-2], start[-1], start[-2]), (*digits[:-2], digits[-1], digits[-2]), at)
            for part, start, digits, at in found.weight.pieces
        )
        found = found._replace(weight=found.weight._replace(pieces=tuple(pieces)))
    if found.suffix != "blocks" or not found.fused.endswith(VLLM):
        return _by_blocks(found)
    if (shape := found.shapes.get(found.fused)) is not None:
        apart = (*shape[:-1], shape[-1] // NBYTES, NBYTES)
        found = found._replace(shapes={**found.shapes, found.fused: apart})
    made = _by_blocks(found)
    last = len(made.fused.shape) - 1
    return made._replace(fused=with_one_axis(made.fused, last - 1, last))


def _is_turned(weight: Stored) -> bool:
    """Whether the inputs of a weight's parts come before their outputs."""
    where = roles(weight)
    return where.inside < where.out


def _is_unpacked(found: Followers) -> bool:
    """Whether the codes have the shape of the weight, one for each element."""
    wanted = {found.weight.name: found.weight.shape, **found.parts}
    return all(found.shapes.get(found.names[name], shape) == shape for name, shape in wanted.items())


def why_one(name: str) -> str:
    """Why parts that are joined have one companion of this name, and what to do if they have not; empty for others.

    >>> why_one("q_proj.g_idx")
    'one order of inputs serves all parts that are joined; quantise them together, or leave them apart'
    """
    words = name.split(".")
    for suffix in (".".join(words[k:]) for k in range(len(words))):
        if factor_of(suffix) == "A":
            return f"parts that are joined have one A: with several the rank would be their sum; {MERGE}"
        if suffix in INPUTS:
            return "one order of inputs serves all parts that are joined; quantise them together, or leave them apart"
        if suffix in WHOLE_TENSOR or suffix in SCALES:
            return "one scale serves all parts that are joined; quantise them together, or leave them apart"
    return ""


Known = tuple[str, Shape, tuple[int, int]]
"""(name, shape, the weight's [outputs, inputs]) of a companion, of one expert if there are several."""


def _known(found: Followers, is_turned: bool) -> tuple[list[Known], bool]:
    """The companions that the file has, and whether that of the fused weight is turned as the weight is.

    Where it fits both ways, element (i, j) belongs to the block (i, j) of the weight as it is stored.
    """
    weight, parts = found.weight, found.parts
    known = []
    for part, shape in found.own.items():
        length = parts[part]
        known.append((found.names[part], shape[max(len(length) - 2, 0) :], (length[-2:][0], length[-1])))
    if known or found.fused not in found.shapes:
        return known, is_turned
    where = roles(weight)
    shape = found.shapes[found.fused]
    lead = tuple(weight.shape[k] for k in where.rest)
    bare = shape[len(lead) :] if shape[: len(lead)] == lead else shape
    elements = weight.shape[where.out], weight.shape[where.inside]
    is_turned = is_turned and axes_of(found.suffix, bare[::-1], elements, found.packing) is not None
    return [(found.fused, bare[::-1] if is_turned else bare, elements)], is_turned


def _told(axes: Iterable[Axis]) -> str:
    return " x ".join(f"{axis.block} of {axis.role}" for axis in axes if axis.role != WHOLE) or "the whole tensor"


def _shaped(one: Stored, shapes: Shapes) -> Stored:
    """A tensor that is stored with axes of length 1 more or less, with those; it has one element for each place."""
    shape = shapes.get(one.name, one.shape)
    if shape == one.shape or prod(one.shape) != 1:
        return one
    (piece,) = one.pieces
    if len(piece.digits) == len(shape):
        return one
    none = (0,) * len(shape)
    return Stored(one.name, shape, (Piece(piece.part, none, ((Digit(1, 0, 1),),) * len(shape), none),))
