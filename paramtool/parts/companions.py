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
  PEFT    lora_A.weight [rank, in], lora_B.weight [out, rank], lora_magnitude_vector [out]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from paramtool.errors import LayoutError
from paramtool.parts.blocks import FLAT, IN, OUT, WHOLE, Axis, Image, image, lengths, roles
from paramtool.parts.low_rank import factor_of, low_rank
from paramtool.parts.packing import METHODS, Packing
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
    known = (*WHOLE_TENSOR, *OUTPUTS, *INPUTS, *SCALES, *GROUPED, *REFUSED, "weight_packed", "weight.absmax")
    return suffix in known or factor_of(suffix) != ""


def logical(shapes: Mapping[str, tuple[int, ...]], packing: Packing, itemsize: int = 4) -> tuple[int, int] | None:
    """The [outputs, inputs] of a module's weight before it was packed; None where its tensors do not show them.

    `shapes` are those of the module's tensors, by suffix, and `itemsize` is that of its packed codes in bytes.

    >>> logical({"qweight": (64, 256), "qzeros": (4, 32), "scales": (4, 256), "g_idx": (512,)}, Packing())
    (256, 512)
    >>> logical({"qweight": (512, 32), "qzeros": (4, 32), "scales": (4, 256)}, Packing())
    (256, 512)
    """
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
    if "blocks" in shapes and len(shapes["blocks"]) > 2:
        *_, out, count, nbytes = shapes["blocks"]
        return out, count * nbytes * 2
    if "weight" in shapes and len(shapes["weight"]) >= 2:
        out, inside = shapes["weight"][-2:]
        return out, inside
    return None


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
    fused = names[weight.name]
    if suffix in REFUSED:
        raise LayoutError(f"{fused!r} cannot follow its weight: {REFUSED[suffix]}", hint=QUANTISE)
    if factor_of(suffix):
        return low_rank(weight, factor_of(suffix), names, shapes, packing=packing)
    parts = lengths(weight)
    if suffix == "weight" and _is_unpacked(weight, names, shapes, parts):
        hub = {part: whole(names[part], shape) for part, shape in parts.items()}
        pieces = tuple(piece._replace(part=names[piece.part]) for piece in weight.pieces)
        return Image(Stored(fused, weight.shape, pieces), tuple(hub.values()))
    known = _known(weight, names, shapes, parts)
    axes = None
    for name, shape, elements in known:
        found = axes_of(suffix, shape, elements, packing)
        if found is None:
            raise LayoutError(
                f"{name!r} has shape {list(shape)}, which fits no scheme for a weight of {elements[0]} x {elements[1]}",
                hint=QUANTISE,
            )
        if axes is not None and found != axes:
            raise LayoutError(f"{name!r} has other blocks than {known[0][0]!r}: {_told(found)}, and {_told(axes)}")
        axes = found
    if axes is None:
        raise LayoutError(f"{fused!r} cannot follow its weight: no tensor of its name or of its parts is there")
    made = image(weight, axes, fused, {part: names[part] for part in parts})
    for one in (made.fused, *made.parts):
        if one.name in shapes and prod(one.shape) != prod(shapes[one.name]):
            raise LayoutError(f"{one.name!r} has shape {list(shapes[one.name])}; expected {list(one.shape)}")
    return Image(_shaped(made.fused, shapes), tuple(_shaped(one, shapes) for one in made.parts))


def _is_unpacked(
    weight: Stored,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    parts: Mapping[str, tuple[int, ...]],
) -> bool:
    """Whether the codes have the shape of the weight, one for each element."""
    wanted = {names[weight.name]: weight.shape, **{names[part]: shape for part, shape in parts.items()}}
    return all(shapes[name] == shape for name, shape in wanted.items() if name in shapes)


QUANTISE = "convert the weights before they are quantised, or quantise again in the new layout"


def _known(
    weight: Stored,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    parts: Mapping[str, tuple[int, ...]],
) -> list[tuple[str, tuple[int, ...], tuple[int, int]]]:
    """(name, shape, the weight's [outputs, inputs]) of each companion that the file has."""
    found = [(names[part], shapes[names[part]], shape[-2:]) for part, shape in parts.items() if names[part] in shapes]
    if not found and names[weight.name] in shapes:
        where = roles(weight)
        shape = shapes[names[weight.name]]
        lead = tuple(weight.shape[k] for k in where.rest)
        bare = shape[len(lead) :] if shape[: len(lead)] == lead else shape
        found = [(names[weight.name], bare, (weight.shape[where.out], weight.shape[where.inside]))]
    return [(name, shape, (elements[0], elements[1])) for name, shape, elements in found]


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
    """Axes with blocks of equal size; None if a length does not divide into so many."""
    if len(shape) != len(axes) or any(not one or length % one for one, (_, length) in zip(shape, axes, strict=True)):
        return None
    return tuple(Axis(role, length // one) for one, (role, length) in zip(shape, axes, strict=True))
