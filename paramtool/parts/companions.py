"""Companions: scales, zero points, packed codes and low-rank factors that follow a weight when its parts are moved.

    q_proj.weight  k_proj.weight  v_proj.weight             qkv_proj.weight
    q_proj.weight_scale_inv  ...                   ->       qkv_proj.weight_scale_inv      tiles of 128 x 128
    q_proj.qweight  q_proj.qzeros  q_proj.scales  q_proj.g_idx  ...                        GPTQ

Each has an element for a block of the weight's elements (`blocks`), so that its place follows from the weight's; where
a block would be cut the answer is a LayoutError.  A companion that has no axis along which parts are joined, such as
the scale of a whole tensor or the order of GPTQ's inputs, is one tensor for all of them: they must be equal, which only
the bytes can show, and the tensors share a part, so that the plan asks for it.

What a companion is follows from its name and its shape.  The names are those of the files:
  GPTQ    qweight [in/8, out], qzeros [groups, out/8], scales [groups, out], g_idx [in]; 8 codes of 4 bits in an int32
          (AutoGPTQ 0.7.1, auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py, `pack`)
  AWQ     qweight [in, out/8], qzeros [groups, out/8], scales [groups, out]; the 8 outputs in the order 0 2 4 6 1 3 5 7
          (AutoAWQ 0.2.9, awq/modules/linear/gemm.py, `from_linear`)
  compressed-tensors   weight_packed [out, in/8], weight_scale [out, groups], weight_zero_point [out/8, groups],
          weight_g_idx [in], weight_global_scale [1] (compressors/quantized_compressors)
  FP8     weight_scale_inv [out/128, in/128] (DeepSeek-V3, inference/kernel.py, `weight_dequant`); weight_scale,
          input_scale
  NVFP4   weight or weight_packed [out, in/2], weight_scale [out, in/16], weight_scale_2 or weight_global_scale; in
          files of compressed-tensors only integers have weight_shape, so that weight_packed without it is bytes
  MXFP4   blocks [..., out, in/32, 16], scales [..., out, in/32] (gpt-oss; transformers integrations/mxfp4.py)
  bitsandbytes   weight [out x in / 2, 1], weight.absmax [out x in / 64]; SCB [out] (functional.py, `quantize_4bit`)
  PEFT    lora_A.weight [rank, in], lora_B.weight [out, rank], lora_magnitude_vector [out]; in memory the weight itself
          is base_layer.weight, and factors have the adapter's name: lora_A.default.weight

Scales that are beside a weight in its own axes, one for a row or a tile, are turned where the weight is turned.  GPTQ,
AWQ, MXFP4 and low-rank factors have one form, whatever order the axes of the weight have when it is dequantised.  Codes
that are packed along the inputs of a row have no turned form and are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import prod

from paramtool.errors import LayoutError
from paramtool.parts.blocks import FLAT, IN, OUT, WHOLE, Axis, Image, image, lengths, roles
from paramtool.parts.low_rank import MERGE, factor_of, low_rank
from paramtool.parts.packing import METHODS, MXFP4, Packing
from paramtool.parts.pieces import Digit, Piece, Stored, whole

WHOLE_TENSOR = (
    "weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale", "input_zero_point", "output_scale",
    "activation_scale", "weight_format", "weight_quantizer._amax", "input_quantizer._amax", "weight.quant_map",
)  # fmt: skip
"""Companions that are one for a whole tensor, whatever their shape."""
OUTPUTS = (
    "bias",
    "SCB",
    "lora_magnitude_vector",
    "lora_magnitude_vector.weight",
    "lora_magnitude_vector.default.weight",
)
"""Companions with an element for each output."""
INPUTS = ("g_idx", "weight_g_idx", "pre_quant_scale", "input_quantizer._pre_quant_scale")
"""Companions with an element for each input."""
SCALES = ("weight_scale", "weight_scale_inv", "weight_zero_point", "weight_zero", "weight_scales", "w_scale", "scale")
"""Scales beside a weight: of the tensor, of rows, of groups of a row or of tiles, by their shape."""
GROUPED = ("qweight", "qzeros", "scales", "biases", "blocks")
"""Names that mean other things in other schemes."""
PAIR = ("blocks", "scales")
"""Codes and scales of MXFP4."""
BASE = "base_layer."
"""PEFT puts a weight and what belongs to it under this name, in memory (peft/tuners/tuners_utils.py)."""
REFUSED = {
    "weight_shape": "it is the shape of the weight before packing, which changes",
    "weight.nested_absmax": "its scales are quantised in blocks of 256, with an offset for the whole tensor",
    "weight.nested_quant_map": "its scales are quantised in blocks of 256, with an offset for the whole tensor",
    "weight.quant_state.bitsandbytes__nf4": "it is a text with the shape of the weight, which changes",
    "weight.quant_state.bitsandbytes__fp4": "it is a text with the shape of the weight, which changes",
    "lora_embedding_A": "it belongs to an embedding, and not to a projection",
    "lora_embedding_B": "it belongs to an embedding, and not to a projection",
}
"""Companions that would have to be written anew, and why."""


def is_companion(suffix: str) -> bool:
    """Whether a name behind a module's name is one that is known here.

    >>> is_companion("qweight"), is_companion("weight_scale_inv"), is_companion("running_mean")
    (True, True, False)
    """
    if suffix.startswith(BASE):
        suffix = suffix.removeprefix(BASE)
        return suffix == "weight" or is_companion(suffix)
    return suffix in KNOWN or factor_of(suffix) != ""


KNOWN = frozenset(
    (*WHOLE_TENSOR, *OUTPUTS, *INPUTS, *SCALES, *GROUPED, *REFUSED, "weight_packed", "weight.absmax")
)  # fmt: skip
"""The names of companions, but for low-rank factors."""


def shows_weight(suffix: str) -> bool:
    """Whether a tensor of this name behind a module's name shows that the module has a weight.

    >>> shows_weight("qweight"), shows_weight("base_layer.weight"), shows_weight("lora_B.weight"), shows_weight("bias")
    (True, True, True, False)
    """
    return suffix.removeprefix(BASE) in WEIGHTS or factor_of(suffix) == "B"


WEIGHTS = ("", "weight", "qweight", "weight_packed", "blocks")
"""What the weight of a module is called behind the module's name, packed or not."""


def logical(shapes: Mapping[str, tuple[int, ...]], packing: Packing, itemsize: int = 4) -> tuple[int, int] | None:
    """The [outputs, inputs] of a module's weight before it was packed; None where its tensors do not show them.

    `shapes` are those of the module's tensors, by suffix, and `itemsize` is that of its packed codes in bytes.

    >>> logical({"qweight": (64, 256), "qzeros": (4, 32), "scales": (4, 256), "g_idx": (512,)}, Packing())
    (256, 512)
    >>> logical({"qweight": (512, 32), "qzeros": (4, 32), "scales": (4, 256)}, Packing())
    (256, 512)
    >>> logical({"lora_A.weight": (8, 512), "lora_B.weight": (256, 8)}, Packing())
    (256, 512)
    """
    shapes = {suffix.removeprefix(BASE): shape for suffix, shape in shapes.items()}
    each = 8 * itemsize // packing.bits
    if "weight_packed" in shapes:
        out, packed = shapes["weight_packed"][-2:]
        return out, packed * (each if "weight_shape" in shapes else 2)
    if "qweight" in shapes and "scales" in shapes:
        first, last = shapes["qweight"][-2:]
        out = shapes["scales"][-1]
        if last == out:
            inside = shapes["g_idx"][-1] if "g_idx" in shapes else first * 32 // packing.bits
            return out, inside
        return (out, first) if last * each == out else None
    if "blocks" in shapes and "scales" in shapes and len(shapes["blocks"]) > 2:
        *_, out, count, nbytes = shapes["blocks"]
        return out, count * nbytes * 2
    if "weight" in shapes and len(shapes["weight"]) >= 2:
        out, inside = shapes["weight"][-2:]
        return out, inside
    return _of_factors(shapes)


def _of_factors(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int] | None:
    """The [outputs, inputs] that low-rank factors show: B has the outputs, and A the inputs."""
    found = {factor_of(suffix): shape for suffix, shape in shapes.items() if factor_of(suffix)}
    if found.keys() != {"A", "B"} or any(len(shape) != 2 for shape in found.values()):
        return None
    return found["B"][0], found["A"][1]


def follow(
    weight: Stored,
    suffix: str,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    packing: Packing = Packing(),  # noqa: B008 (a frozen value)
) -> Image:
    """Where one companion of a fused weight is, and where it is in each part.

    `weight` has the shape before packing, [.., outputs, inputs] in any order of axes, and its pieces' parts have
    [.., outputs, inputs].  `names` maps the fused weight's name and its parts' names to the companion's, `suffix` is
    what is behind their modules.  `shapes` are those of the companions that the file has: of all parts, or of the fused
    weight.  LayoutError where a block would be cut, where a shape fits no scheme, or where the companion has to be
    written anew.
    """
    bare = suffix.removeprefix(BASE)
    if bare in REFUSED:
        raise LayoutError(f"{names[weight.name]!r} cannot follow its weight: {REFUSED[bare]}", hint=QUANTISE)
    if factor_of(bare):
        return low_rank(weight, factor_of(bare), names, shapes, packing=packing)
    if packing.method == MXFP4:
        return _mxfp4(weight, bare, names, shapes, packing=packing)
    return _by_blocks(weight, bare, names, shapes, packing=packing)


def _by_blocks(
    weight: Stored,
    suffix: str,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    packing: Packing,
) -> Image:
    """A companion that has an element for a block of the weight's."""
    fused, parts = names[weight.name], lengths(weight)
    if suffix == "weight" and _is_unpacked(weight, names, shapes, parts):
        hub = {part: whole(names[part], shape) for part, shape in parts.items()}
        pieces = tuple(piece._replace(part=names[piece.part]) for piece in weight.pieces)
        return Image(Stored(fused, weight.shape, pieces), tuple(hub.values()))
    is_turned = suffix in SCALES and len(weight.shape) > 1 and _is_turned(weight)
    known, is_turned = _known(weight, suffix, names, shapes, packing=packing, is_turned=is_turned)
    if suffix in PACKED and len(weight.shape) > 1 and _is_turned(weight):
        raise LayoutError(
            f"{fused!r} cannot follow its weight: inputs come before outputs in {weight.name!r}, and its codes are "
            "packed along the inputs of a row",
            hint=QUANTISE,
        )
    axes = _one_scheme(suffix, known, packing)
    if axes is None:
        raise LayoutError(f"{fused!r} cannot follow its weight: no tensor of its name or of its parts is there")
    is_turned = is_turned and len(axes) > 1 and any(axis.role != WHOLE for axis in axes)
    made = image(weight, axes, fused, {part: names[part] for part in parts})
    made = made._replace(fused=_swapped(made.fused)) if is_turned else made
    _check_shape(made.fused, shapes, 0)
    for shape, one in zip(parts.values(), made.parts, strict=True):
        _check_shape(one, shapes, max(len(shape) - 2, 0))
    return Image(_shaped(made.fused, shapes), tuple(_shaped(one, shapes) for one in made.parts))


def _check_shape(one: Stored, shapes: Mapping[str, tuple[int, ...]], lead: int) -> None:
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


def _mxfp4(
    weight: Stored,
    suffix: str,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    packing: Packing,
) -> Image:
    """Codes and scales of MXFP4: rows of outputs, whatever order the axes of the weight have.

    A stack that is one part is [experts, inputs, outputs] (transformers integrations/mxfp4.py,
    `convert_moe_packed_tensors`).  vLLM has the codes under the weight's own name, with an axis less
    (models/gpt_oss.py, `_load_weights_mxfp4`).
    """
    if any(len(shape) == 3 for shape in lengths(weight).values()):
        pieces = (
            Piece(part, (*start[:-2], start[-1], start[-2]), (*digits[:-2], digits[-1], digits[-2]), at)
            for part, start, digits, at in weight.pieces
        )
        weight = Stored(weight.name, weight.shape, tuple(pieces))
    fused = names[weight.name]
    if suffix != "blocks" or not fused.endswith(VLLM):
        return _by_blocks(weight, suffix, names, shapes, packing=packing)
    apart = {**shapes, fused: (*shapes[fused][:-1], shapes[fused][-1] // NBYTES, NBYTES)} if fused in shapes else shapes
    made = _by_blocks(weight, suffix, names, apart, packing=packing)
    return made._replace(fused=_without_last_axis(made.fused))


def _without_last_axis(one: Stored) -> Stored:
    """A tensor whose last two axes are one."""
    last, length = len(one.shape) - 1, one.shape[-1]
    pieces = []
    for piece in one.pieces:
        digits = tuple(
            tuple(Digit(d.length, last - 1, d.step * length) if d.axis == last - 1
                  else Digit(d.length, min(d.axis, last - 1), d.step) for d in axis)
            for axis in piece.digits
        )  # fmt: skip
        at = (*piece.at[: last - 1], piece.at[last - 1] * length + piece.at[last])
        pieces.append(Piece(piece.part, piece.start, digits, at))
    return Stored(one.name, (*one.shape[: last - 1], one.shape[last - 1] * length), tuple(pieces))


def _is_turned(weight: Stored) -> bool:
    """Whether the inputs of a weight's parts come before their outputs."""
    where = roles(weight)
    return where.inside < where.out


def _swapped(one: Stored) -> Stored:
    """A tensor with its last two axes exchanged."""
    first, last = len(one.shape) - 2, len(one.shape) - 1
    other = {first: last, last: first}
    pieces = tuple(
        Piece(
            piece.part, piece.start,
            tuple(tuple(d._replace(axis=other.get(d.axis, d.axis)) for d in axis) for axis in piece.digits),
            (*piece.at[:-2], piece.at[-1], piece.at[-2]),
        )
        for piece in one.pieces
    )  # fmt: skip
    return Stored(one.name, (*one.shape[:-2], one.shape[-1], one.shape[-2]), pieces)


def with_method(packing: Packing, suffixes: Collection[str]) -> Packing:
    """What is known of packed weights, with the method that the names of a module's tensors show.

    >>> with_method(Packing(), ["blocks", "scales"]).method
    'mxfp4'
    """
    found = next((method for suffix, method in SHOWN.items() if suffix in suffixes), packing.method)
    return replace(packing, method=found if found in METHODS else "")


SHOWN = {"blocks": MXFP4, "qweight": "gptq", "biases": "mlx"}
"""{name of a tensor of a module: the method of its scales}; AWQ's have the same order as GPTQ's."""
VLLM = "_weight"
"""The end of the names of stacks in vLLM: `w13_weight` and `w13_weight_scale` are MXFP4's codes and scales, too."""
NBYTES = 16
"""Bytes of a block of MXFP4, 32 codes."""
PACKED = ("weight", "weight_packed", "weight_scale_2", "biases")
"""Codes of which several of a row are packed together, and what only such codes have beside them."""


def _is_unpacked(
    weight: Stored,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    parts: Mapping[str, tuple[int, ...]],
) -> bool:
    """Whether the codes have the shape of the weight, one for each element."""
    wanted = {names[weight.name]: weight.shape, **{names[part]: shape for part, shape in parts.items()}}
    return all(shapes[name] == shape for name, shape in wanted.items() if name in shapes)


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


QUANTISE = "convert the weights before they are quantised, or quantise again in the new layout"


Known = tuple[str, tuple[int, ...], tuple[int, int]]
"""(name, shape, the weight's [outputs, inputs]) of a companion, of one expert if there are several."""


def _known(
    weight: Stored,
    suffix: str,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    packing: Packing,
    is_turned: bool,
) -> tuple[list[Known], bool]:
    """The companions that the file has, and whether that of the fused weight is turned as the weight is.

    Where it fits both ways, element (i, j) belongs to the block (i, j) of the weight as it is stored.
    """
    parts = lengths(weight)
    found = []
    for part, length in parts.items():
        if names[part] in shapes:
            bare = shapes[names[part]][max(len(length) - 2, 0) :]
            found.append((names[part], bare, (length[-2:][0], length[-1])))
    if found or names[weight.name] not in shapes:
        return found, is_turned
    where = roles(weight)
    shape = shapes[names[weight.name]]
    lead = tuple(weight.shape[k] for k in where.rest)
    bare = shape[len(lead) :] if shape[: len(lead)] == lead else shape
    elements = weight.shape[where.out], weight.shape[where.inside]
    is_turned = is_turned and axes_of(suffix, bare[::-1], elements, packing) is not None
    return [(names[weight.name], bare[::-1] if is_turned else bare, elements)], is_turned


def _told(axes: Iterable[Axis]) -> str:
    return " x ".join(f"{axis.block} of {axis.role}" for axis in axes if axis.role != WHOLE) or "the whole tensor"


def _shaped(one: Stored, shapes: Mapping[str, tuple[int, ...]]) -> Stored:
    """A tensor that is stored with axes of length 1 more or less, with those; it has one element for each place."""
    shape = shapes.get(one.name, one.shape)
    if shape == one.shape or prod(one.shape) != 1:
        return one
    (piece,) = one.pieces
    if len(piece.digits) == len(shape):
        return one
    none = (0,) * len(shape)
    return Stored(one.name, shape, (Piece(piece.part, none, ((Digit(1, 0, 1),),) * len(shape), none),))


def axes_of(
    suffix: str, shape: tuple[int, ...], elements: tuple[int, int], packing: Packing
) -> tuple[Axis, ...] | None:
    """The axes of a companion of a weight of [outputs, inputs], by its name and its shape; None if it fits no scheme.

    >>> axes_of("weight_scale_inv", (2, 4), (256, 512), Packing())
    (Axis(role='out', block=128, per=1), Axis(role='in', block=128, per=1))
    >>> axes_of("weight_scale", (256, 1), (256, 512), Packing())
    (Axis(role='out', block=1, per=1), Axis(role='whole', block=1, per=1))
    """
    out, inside = elements
    if suffix in WHOLE_TENSOR or (prod(shape) == 1 and suffix in SCALES and elements != (1, 1)):
        return tuple(Axis(WHOLE, 1, length) for length in shape)
    if suffix in OUTPUTS:
        return _fitting(shape, ((OUT, out),))
    if suffix in INPUTS:
        return _fitting(shape, ((IN, inside),))
    if suffix == "weight.absmax":
        return (Axis(FLAT, packing.block),) if shape == (-(-out * inside // packing.block),) else None
    if suffix == "weight":
        return _codes(shape, elements)
    if suffix == "weight_packed":
        return _fitting(shape, ((OUT, out), (IN, inside)))
    if suffix == "blocks":
        lead = _fitting(shape[:2], ((OUT, out), (IN, inside)))
        return (*lead, Axis(WHOLE, 1, shape[2])) if lead and len(shape) == 3 else None
    if suffix == "qweight" and shape[1:] == (out,):
        return _fitting(shape, ((IN, inside), (OUT, out)))  # GPTQ
    if suffix in ("qweight", "qzeros"):
        return _fitting(shape, ((IN, inside), (OUT, out)))
    if suffix in ("scales", "biases"):
        return _by_method(shape, elements, packing.method)
    return _scales(shape, elements, packing) if suffix in SCALES else None


def _by_method(shape: tuple[int, ...], elements: tuple[int, int], method: str) -> tuple[Axis, ...] | None:
    """The axes of `scales`: [groups, outputs] of GPTQ and AWQ, [outputs, groups] of MLX and MXFP4; None if unsure."""
    length = dict(zip((OUT, IN), elements, strict=True))
    orders = [METHODS[method]] if method in METHODS else [(OUT, IN), (IN, OUT)]
    found = [
        tuple((role, length[role]) for role in order)
        for order in orders
        if len(shape) == 2 and shape[order.index(OUT)] == elements[0]
    ]
    return _fitting(shape, found[0]) if len(found) == 1 else None


def _codes(shape: tuple[int, ...], elements: tuple[int, int]) -> tuple[Axis, ...] | None:
    """Codes under the weight's own name: one for each element, several of a row packed, or all of them flat."""
    out, inside = elements
    if len(shape) == 2 and shape[1] == 1 and shape != elements and out * inside % shape[0] == 0:
        return Axis(FLAT, out * inside // shape[0]), Axis(WHOLE)
    return _fitting(shape, ((OUT, out), (IN, inside)))


def _scales(shape: tuple[int, ...], elements: tuple[int, int], packing: Packing) -> tuple[Axis, ...] | None:
    """Scales of rows, of groups of a row, or of tiles."""
    out, inside = elements
    if len(shape) == 1:
        return _fitting(shape, ((OUT, out),)) if shape[0] == out else None
    if len(shape) != 2:
        return None
    if shape == (out, 1):
        return Axis(OUT), Axis(WHOLE)
    if shape[0] == out:
        return _fitting(shape, ((OUT, out), (IN, inside)))
    tiles = tuple(Axis(role, block) for role, block in zip((OUT, IN), packing.tile, strict=True))
    if shape == tuple(axis.length(length) for axis, length in zip(tiles, elements, strict=True)):
        return tiles
    packed = 32 // packing.bits  # zero points of compressed-tensors: 8 outputs in an int32
    return (Axis(OUT, packed), *(_fitting(shape[1:], ((IN, inside),)) or ())) if shape[0] * packed == out else None


def _fitting(shape: tuple[int, ...], axes: tuple[tuple[str, int], ...]) -> tuple[Axis, ...] | None:
    """Axes with blocks of equal size; None if a length does not divide into them."""
    if len(shape) != len(axes) or any(not one or length % one for one, (_, length) in zip(shape, axes, strict=True)):
        return None
    return tuple(Axis(role, length // one) for one, (role, length) in zip(shape, axes, strict=True))
