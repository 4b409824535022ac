"""FP8 weights from their codes and scales: one scale for the tensor, for a row, or for a block of rows and columns.

    m.weight [256, 512] float8_e4m3fn    m.weight_scale_inv [2, 4] float32     ->  m.weight [256, 512] float32

Both conventions multiply: `weight_scale_inv` of DeepSeek-V3 (inference/kernel.py, `weight_dequant`) and of transformers
(integrations/finegrained_fp8.py, `Fp8Dequantize`), and `weight_scale` of compressed-tensors (quantization/lifecycle/
forward.py, `dequantize`), ModelOpt and vLLM.  The products are of the scales' type, as there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paramtool.errors import PlanError, listed, plural
from paramtool.lazy_dataclass import frozen
from paramtool.model import quantised
from paramtool.model.checkpoint import Entries
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View, contiguous
from paramtool.parts.blocks import IN, OUT
from paramtool.parts.schemes import Packing, axes_of

FP8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
SCALES = ("_scale_inv", "_scale")
"""What the scales are called behind the name of the codes."""
INPUTS = "input_scale"
"""The scale of a module's inputs, which only a module with such a weight has; those of outputs and of caches stay."""


@frozen
class Scaled:
    """The codes of a weight, and their scales."""

    codes: View
    scales: View
    """With an element for each block of codes, behind the axes of experts where these have scales of their own."""
    block: tuple[int, int]
    """Rows and columns of a block."""
    beside: tuple[str, ...]
    """The names that mean nothing without the codes: of the scales, and of those of activations."""

    @property
    def dtype(self) -> DType:
        """The type of the products."""
        return self.scales.dtype if self.scales.dtype.block_bytes > 1 else DTYPES["float32"]

    def target(self, name: str, dtype: DType) -> Target:
        """The weight as a tensor that will be stored."""
        shape = self.codes.shape
        here = contiguous(name, dtype, shape)
        lead = len(shape) - 2
        steps = (*self.scales.strides[:lead], *self.scales.strides[-2:])
        copies = []
        for first, rows in _spans(shape[-2], self.block[0]):
            for start, columns in _spans(shape[-1], self.block[1]):
                at = (first * self.block[0], start * self.block[1])
                sizes = (*shape[:lead], *(size for size, _ in (*rows, *columns)))
                parts = []
                for view in (here, self.codes):
                    inner = [view.strides[lead] * step for _, step in rows]
                    inner += [view.strides[lead + 1] * step for _, step in columns]
                    offset = view.offset + at[0] * view.strides[lead] + at[1] * view.strides[lead + 1]
                    parts.append(view.with_axes(sizes, (*view.strides[:lead], *inner), offset))
                inner = [steps[lead] * (step // self.block[0]) for _, step in rows]
                inner += [steps[lead + 1] * (step // self.block[1]) for _, step in columns]
                offset = self.scales.offset + first * steps[lead] + start * steps[lead + 1]
                scale = self.scales.with_axes(sizes, (*steps[:lead], *inner), offset)
                copies.append(Copy(parts[0], ((1, parts[1]),), scale=scale, names=(name,)))
        return Target(name, dtype, shape, tuple(copies))


def _spans(length: int, block: int) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
    """(the first block, {length: elements that a step moves} of its axes), of the whole blocks and of the rest.

    >>> list(_spans(300, 128)), list(_spans(4, 1)), list(_spans(4, 4))
    ([(0, ((2, 128), (128, 1))), (2, ((44, 1),))], [(0, ((4, 1),))], [(0, ((4, 1),))])
    """
    count, rest = divmod(length, block)
    if count:
        yield 0, ((length - rest, 1),) if count == 1 or block == 1 else ((count, block), (block, 1))
    if rest:
        yield count, ((rest, 1),)


def scaled(entries: Entries, packing: Packing, wanted: Iterable[str] | None = None) -> dict[str, Scaled]:
    """{codes: they and their scales}, of the codes `wanted`, else of all.

    PlanError lists those of another scheme, and those without scales.
    """
    groups = quantised.groups(entries)
    found: dict[str, Scaled] = {}
    wrong = []
    for name in groups if wanted is None else wanted:
        others = tuple(groups.get(name, ()))
        scales = [one for one in others if one in [name + end for end in SCALES]]
        gone = tuple(one for one in others if one in scales or one.endswith(INPUTS))
        more = [one for one in others if one not in gone and not one.endswith(quantised.OF_OTHERS)]
        codes, scale = (entries[one].value for one in (name, *(scales or [name])[:1]))
        if not isinstance(codes, View) or codes.dtype.name not in FP8:
            wrong.append(f"{name!r}: is {_told(codes)}; expected FP8 codes")
        elif len(scales) != 1 or more or not isinstance(scale, View):
            beside = ", ".join(map(repr, more or others))
            wrong.append(f"{name!r}: beside it are {beside}; expected {name + SCALES[1]!r}")
        elif (made := _of_shapes(codes, scale, packing, gone)) is None:
            wrong.append(
                f"{name!r}: is {_told(codes)}, and its scales are {_told(scale)}; expected one, one for a row, or one "
                f"for {' x '.join(map(str, packing.tile))} elements (weight_block_size of config.json)"
            )
        else:
            found[name] = made
    if wrong:
        raise PlanError(
            listed(f"{plural(len(wrong), 'quantised weight')} cannot be dequantised:", wrong[:10], len(wrong[10:])),
            hint="the library that wrote them dequantises them",
        )
    return found


def _told(value: object) -> str:
    return f"{value.dtype.name} {list(value.shape)}" if isinstance(value, View) else type(value).__name__


def _of_shapes(codes: View, scales: View, packing: Packing, beside: tuple[str, ...]) -> Scaled | None:
    """Codes with their scales; None where the shapes are of no scheme that is known, or the scales no numbers."""
    if len(codes.shape) < 2 or not scales.dtype.is_floating:
        return None
    *lead, out, inside = codes.shape
    shape, strides = scales.shape, scales.strides
    if lead and shape[: len(lead)] == tuple(lead) and len(shape) >= len(lead):
        outer, shape, strides = strides[: len(lead)], shape[len(lead) :], strides[len(lead) :]
    elif lead and scales.numel != 1:
        return None
    else:
        outer = (0,) * len(lead)
    axes = axes_of("weight_scale", shape, (out, inside), packing)
    if axes is None:
        return None
    block, steps = [out, inside], [0, 0]
    for axis, step in zip(axes, strides, strict=True):
        if axis.role in (OUT, IN):
            block[axis.role == IN], steps[axis.role == IN] = axis.block, step
    counts, tiles = ((-(-out // rows), -(-inside // columns)) for rows, columns in (block, packing.tile))
    if block[0] not in (1, out, packing.tile[0]) or (counts == tiles and block[1] not in (inside, packing.tile[1])):
        return None  # rows of another block than the config says, or two readings
    view = scales.with_axes((*lead, *counts), (*outer, *steps))
    return Scaled(codes, view, (block[0], block[1]), beside)
