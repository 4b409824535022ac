"""Schemes: what the companions of a weight are called, and which axes each has.

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
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shape, Shapes
from paramtool.parts.blocks import FLAT, IN, OUT, WHOLE, Axis

# --- What no shape says of quantised weights and of low-rank factors, and a config or the user does ------------------


MXFP4 = "mxfp4"
METHODS = {"gptq": ("in rows",), "awq": ("in rows",), "mlx": ("rows in",), MXFP4: ("rows in",)}
"""{who quantised: the axes of `scales`, as in `schemes.AXES`}"""
WRITERS = ("peft", "unsloth")
"""Who stacks the low-rank factors of experts: they order the columns of lora_B differently."""


@frozen
class Packing:
    """What no shape says of quantised weights."""

    bits: int = 4
    """Of a code, where several are packed into an integer."""
    tile: tuple[int, int] = (128, 128)
    """Outputs and inputs of a tile with one scale: `weight_block_size`."""
    block: int = 64
    """Elements that share a scale where codes are stored flat: bitsandbytes' `blocksize`."""
    method: str = ""
    """`quant_method` of the config, one of `METHODS`; "" if nobody said: shapes tell, but for a few."""
    writer: str = ""
    """Of low-rank factors of stacked experts, one of `WRITERS`; "" if nobody said."""


def packing_of(config: Mapping[str, object], bits: int = 4) -> Packing:
    """What a config says of quantised weights: bits of a code, tiles, the method; `bits` where it says none."""
    found = config.get("quantization_config", config.get("quantization"))  # MLX has the second
    said: Mapping[str, object] = found if isinstance(found, dict) else {}
    groups = said.get("config_groups")  # compressed-tensors
    every = list(groups.values()) if isinstance(groups, dict) else []
    weights = every[0].get("weights") if len(every) == 1 and isinstance(every[0], dict) else None
    if isinstance(weights, dict):
        said = {"bits": weights.get("num_bits"), "weight_block_size": weights.get("block_structure"), **said}
    usual = Packing()
    width, tile, method = said.get("bits"), said.get("weight_block_size"), said.get("quant_method")
    sizes = tuple(tile) if isinstance(tile, list) and all(type(size) is int and size > 0 for size in tile) else ()
    return Packing(
        bits=width if type(width) is int and width in (2, 3, 4, 8) else bits,
        tile=(sizes[0], sizes[1]) if len(sizes) == 2 else usual.tile,
        method=method if isinstance(method, str) and method in METHODS else usual.method,
    )


# --- Schemes: what the companions of a weight are called, and which axes each has ------------------------------------


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
PAIR = ("blocks", "scales")
"""Codes and scales of MXFP4."""
BASE = "base_layer."
"""PEFT puts a weight and what belongs to it under this name, in memory (peft/tuners/tuners_utils.py)."""
AXES: Mapping[str, tuple[str, ...]] = {
    "weight": ("out in", "codes 1"),
    "weight_packed": ("out in",),
    "weight.absmax": ("flat",),
    "blocks": ("out in *",),
    **dict.fromkeys(("qweight", "qzeros"), ("in out",)),
    **dict.fromkeys(("scales", "biases"), ("in rows", "rows in")),
    **dict.fromkeys(SCALES, ("rows", "rows 1", "rows in", "tiles columns", "words in")),
    **dict.fromkeys(OUTPUTS, ("out",)),
    **dict.fromkeys(INPUTS, ("in",)),
}
"""{companion: the axes that it can have, the first that its shape fits}

    out, in           blocks of outputs, of inputs; rows: each output
    tiles, columns    blocks of outputs and of inputs that have one scale, of which configs say the size
    words             outputs whose zero points are packed into one integer: compressed-tensors
    flat, codes       blocks of all elements, row by row: those with a scale, those that are packed together
    *, 1              an axis of its own, of any length or of length 1
"""
REFUSED = {
    "weight_shape": "it is the shape of the weight before packing, which changes",
    "weight.nested_absmax": "its scales are quantised in blocks of 256, with an offset for the whole tensor",
    "weight.nested_quant_map": "its scales are quantised in blocks of 256, with an offset for the whole tensor",
    "weight.quant_state.bitsandbytes__nf4": "it is a string with the shape of the weight, which changes",
    "weight.quant_state.bitsandbytes__fp4": "it is a string with the shape of the weight, which changes",
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


KNOWN = frozenset((*WHOLE_TENSOR, *AXES, *REFUSED)) - {"weight"}
"""The names of companions, but for low-rank factors."""


def shows_weight(suffix: str) -> bool:
    """Whether a tensor of this name behind a module's name shows that the module has a weight.

    >>> shows_weight("qweight"), shows_weight("base_layer.weight"), shows_weight("lora_B.weight"), shows_weight("bias")
    (True, True, True, False)
    """
    return suffix.removeprefix(BASE) in WEIGHTS or factor_of(suffix) == "B"


WEIGHTS = ("", "weight", "qweight", "weight_packed", "blocks")
"""What the weight of a module is called behind the module's name, packed or not."""


def logical(shapes: Shapes, packing: Packing, itemsize: int = 4) -> tuple[int, int] | None:
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
    # The [outputs, inputs] that low-rank factors show: B has the outputs, and A the inputs
    found = {factor_of(suffix): shape for suffix, shape in shapes.items() if factor_of(suffix)}
    if found.keys() != {"A", "B"} or any(len(shape) != 2 for shape in found.values()):
        return None
    return found["B"][0], found["A"][1]


def factor_of(suffix: str) -> str:
    """`A` or `B` for a low-rank factor: `lora_A.weight`, `lora_B.default.weight`, `lora_A`."""
    words = suffix.split(".")
    if words[0] in ("lora_A", "lora_B") and words[-1] in ("weight", words[0]):
        return words[0][-1]
    return ""


def module_of(name: str) -> str:
    """The module that a low-rank factor belongs to; empty for other tensors.

    >>> module_of("h.0.qkv_proj.lora_A.default.weight"), module_of("h.0.qkv_proj.weight")
    ('h.0.qkv_proj', '')
    """
    if "lora_" not in name:
        return ""
    words = name.split(".")
    at = next((k for k in range(len(words)) if factor_of(".".join(words[k:]))), 0)
    return ".".join(words[:at])


def with_method(packing: Packing, suffixes: Collection[str]) -> Packing:
    """What is known of packed weights, with the method that the names of a module's tensors show.

    >>> with_method(Packing(), ["blocks", "scales"]).method
    'mxfp4'
    """
    found = next((method for suffix, method in SHOWN.items() if suffix in suffixes), packing.method)
    return replace(packing, method=found if found in METHODS else "")


SHOWN = {"blocks": MXFP4, "qweight": "gptq", "biases": "mlx"}
"""{name of a tensor of a module: the method of its scales}; AWQ's have the same order as GPTQ's."""


def axes_of(suffix: str, shape: Shape, elements: tuple[int, int], packing: Packing) -> tuple[Axis, ...] | None:
    """The axes of a companion of a weight of [outputs, inputs], by its name and its shape; None if it fits no scheme.

    >>> axes_of("weight_scale_inv", (2, 4), (256, 512), Packing())
    (Axis(role='out', block=128, per=1), Axis(role='in', block=128, per=1))
    >>> axes_of("weight_scale", (256, 1), (256, 512), Packing())
    (Axis(role='out', block=1, per=1), Axis(role='whole', block=1, per=1))
    """
    if suffix in WHOLE_TENSOR or (prod(shape) == 1 and suffix in SCALES and elements != (1, 1)):
        return tuple(Axis(WHOLE, 1, length) for length in shape)
    patterns = AXES.get(suffix, ())
    if suffix in ("scales", "biases"):
        patterns = METHODS.get(packing.method, patterns)
        if len(patterns) > 1 and shape[:1] == shape[1:]:
            return None  # either order fits
    for pattern in patterns:
        words = pattern.split()
        axes = [_axis(word, size, elements, packing) for word, size in zip(words, shape, strict=False)]
        if len(words) == len(shape) and None not in axes:
            return tuple(filter(None, axes))
    return None


def _axis(word: str, size: int, elements: tuple[int, int], packing: Packing) -> Axis | None:
    """The axis of that size, by a word of `AXES`; None if it has another size."""
    (out, inside), each = elements, 32 // packing.bits
    role, length, block = {
        "out": (OUT, out, 0),
        "in": (IN, inside, 0),
        "rows": (OUT, out, 1),
        "tiles": (OUT, out, packing.tile[0]),
        "columns": (IN, inside, packing.tile[1]),
        "words": (OUT, out if out % each == 0 else 0, each),
        "flat": (FLAT, out * inside, packing.block),
        "codes": (FLAT, out * inside, 0),
        "1": (WHOLE, 0, 1),
        "*": (WHOLE, 0, 1),
    }[word]
    if not block and (not size or length % size):
        return None
    axis = Axis(role, block or length // size, size if word == "*" else 1)
    return axis if axis.length(length) == size else None
