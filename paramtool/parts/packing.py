"""What no shape says of quantised weights and of low-rank factors, and a config or the user does."""

from __future__ import annotations

from collections.abc import Mapping

from paramtool.lazy_dataclass import frozen

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
