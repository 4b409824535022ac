"""What no shape says of quantised weights and of low-rank factors, and a config or the user does."""

from __future__ import annotations

from paramtool.lazy_dataclass import dataclass
from paramtool.parts.blocks import IN, OUT

METHODS = {"gptq": (IN, OUT), "awq": (IN, OUT), "mlx": (OUT, IN), "mxfp4": (OUT, IN)}
"""{who quantised: the order of the axes of `scales`}"""
WRITERS = ("peft", "unsloth")
"""Who stacks the low-rank factors of experts: they order the columns of lora_B differently."""


@dataclass(frozen=True, slots=True)
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
