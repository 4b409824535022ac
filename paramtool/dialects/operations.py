"""What transformers 5 does to tensors when it loads them, as places: no value is read.

An operation takes tensors whose elements are known to be elements of tensors of a file, and gives tensors whose
elements are.  Only the direction from the file to the model is written down here.

Facts of transformers 5.24.0, core_model_loading.py: Chunk line 116, Split 154, Concatenate 187, Interleave 232,
MergeModulelist 259, Transpose 349, Conv3dToLinear 399, PermuteForRope 465, ErnieFuseAndSplitTextVisionExperts 645,
Inkling2LoopDequantizeExperts 772, Inkling2LoopMergeMessageQueries 823, Inkling2UnpadVocab 857.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from paramtool.errors import plural
from paramtool.model.view import Shape
from paramtool.parts.pieces import Digit, Digits, Piece, Stored


class Misfit(Exception):
    """Tensors that an operation cannot take; the text says what does not fit."""


class PartRun(NamedTuple):
    """A step through a tensor together with the step through a part that it stands for."""

    length: int
    of: int
    """The axis of the part."""
    stride: int
    """How far one of it moves along that axis."""
    axis: int
    """The axis of the tensor."""
    step: int


class PartBlock(NamedTuple):
    """Elements of a part that are in a tensor."""

    part: str
    start: tuple[int, ...]
    """For each axis of the part, the first index."""
    runs: tuple[PartRun, ...]
    at: tuple[int, ...]
    """For each axis of the tensor, the first index."""


class MovedTensor(NamedTuple):
    """A tensor that operations make, and whose elements it holds."""

    shape: Shape
    blocks: tuple[PartBlock, ...]


def hub(name: str, shape: Shape) -> MovedTensor:
    """A tensor of the file."""
    runs, zeros = _whole(shape)
    return MovedTensor(shape, (PartBlock(name, zeros, runs, zeros),))


@lru_cache(maxsize=1024)
def _whole(shape: Shape) -> tuple[tuple[PartRun, ...], tuple[int, ...]]:
    """The runs of a whole tensor, and its first index."""
    return tuple(PartRun(length, axis, 1, axis, 1) for axis, length in enumerate(shape)), (0,) * len(shape)


def side_by_side(tensors: Sequence[MovedTensor], axis: int) -> MovedTensor:
    """Tensors one after the other along an axis; Misfit where the other axes differ."""
    first = tensors[0].shape
    if axis >= len(first):
        raise Misfit(f"shape {list(first)} has no axis {axis}")
    blocks: list[PartBlock] = []
    length = 0
    for tensor in tensors:
        same = len(tensor.shape) == len(first) and all(
            a == b for k, (a, b) in enumerate(zip(tensor.shape, first, strict=True)) if k != axis
        )
        if not same:
            raise Misfit(f"shapes {list(first)} and {list(tensor.shape)} differ beside axis {axis}")
        for block in tensor.blocks:
            at = (*block.at[:axis], block.at[axis] + length, *block.at[axis + 1 :])
            blocks.append(block._replace(at=at) if length else block)
        length += tensor.shape[axis]
    return MovedTensor((*first[:axis], length, *first[axis + 1 :]), tuple(blocks))


def stacked(tensors: Sequence[MovedTensor], axis: int) -> MovedTensor:
    """Tensors of one shape along a new axis; Misfit where the shapes differ."""
    shape = tensors[0].shape
    blocks: list[PartBlock] = []
    for k, tensor in enumerate(tensors):
        if tensor.shape != shape:
            raise Misfit(f"number {k} has shape {list(tensor.shape)}, number 0 has {list(shape)}")
        for part, start, runs, at in tensor.blocks:
            blocks.append(PartBlock(part, start, _above(runs, axis), (*at[:axis], k, *at[axis:])))
    return MovedTensor((*shape[:axis], len(tensors), *shape[axis:]), tuple(blocks))


@lru_cache(maxsize=1024)
def _above(runs: tuple[PartRun, ...], axis: int) -> tuple[PartRun, ...]:
    """Runs in a tensor with a new axis."""
    return tuple(run._replace(axis=run.axis + (run.axis >= axis)) for run in runs)


def swapped(tensor: MovedTensor, a: int, b: int) -> MovedTensor:
    """Two axes exchanged."""
    order = list(range(len(tensor.shape)))
    if max(a, b) >= len(order):
        raise Misfit(f"shape {list(tensor.shape)} has no axis {max(a, b)}")
    order[a], order[b] = order[b], order[a]
    blocks = (
        PartBlock(
            one.part, one.start, tuple(run._replace(axis=order[run.axis]) for run in one.runs), _moved(one.at, order)
        )
        for one in tensor.blocks
    )
    return MovedTensor(_moved(tensor.shape, order), tuple(blocks))


def _moved(values: tuple[int, ...], order: Sequence[int]) -> tuple[int, ...]:
    return tuple(values[k] for k in order)


def shuffled(tensor: MovedTensor, axis: int, lengths: Sequence[int], order: Sequence[int]) -> MovedTensor:
    """An axis read as digits of these lengths, the slowest first, and its digits in another order.

    Misfit where the lengths do not make up the axis.
    """
    if axis >= len(tensor.shape) or prod(lengths) != tensor.shape[axis]:
        raise Misfit(f"shape {list(tensor.shape)} has no axis {axis} of {' x '.join(map(str, lengths))}")
    old = [prod(lengths[k + 1 :]) for k in range(len(lengths))]
    moved = [lengths[k] for k in order]
    new = {order[k]: prod(moved[k + 1 :]) for k in range(len(order))}
    digits = [(lengths[k], old[k], new[k]) for k in reversed(range(len(lengths)))]
    blocks = []
    for block in tensor.blocks:
        if block.at[axis]:
            raise NotImplementedError("a shuffle of joined tensors")
        runs = tuple(run for run in block.runs if run.axis != axis)
        mixed = [one for run in block.runs if run.axis == axis for one in _refined(run, digits)]
        blocks.append(block._replace(runs=(*runs, *mixed)))
    return MovedTensor(tensor.shape, tuple(blocks))


def _refined(run: PartRun, digits: Sequence[tuple[int, int, int]]) -> Iterator[PartRun]:
    """A run along an axis as runs along its digits (length, step, new step), given from the fastest."""
    length, step, stride = run.length, run.step, run.stride
    for total, weight, to in digits:
        if length == 1 and step >= weight * total:
            continue
        if not weight <= step < weight * total:
            continue
        many = min(length, weight * total // step)
        if step % weight or length % many:
            raise NotImplementedError("a shuffle of parts of digits")
        yield PartRun(many, run.of, stride, run.axis, step // weight * to)
        length, step, stride = length // many, step * many, stride * many


def unflattened(tensor: MovedTensor, axis: int, length: int) -> MovedTensor:
    """An axis of a tensor of the file as two, of which the second has this length; Misfit where it does not divide."""
    if axis >= len(tensor.shape) or tensor.shape[axis] % length:
        raise Misfit(f"has shape {list(tensor.shape)}, without groups of {length} along axis {axis}")
    count = tensor.shape[axis] // length
    blocks = []
    for block in tensor.blocks:
        runs: list[PartRun] = []
        for run in block.runs:
            if run.axis != axis:
                runs.append(run._replace(axis=run.axis + (run.axis > axis)))
                continue
            if (run.length, run.step) != (count * length, 1):
                raise NotImplementedError("groups of moved rows")
            runs.append(PartRun(count, run.of, run.stride * length, axis, 1))
            runs.append(PartRun(length, run.of, run.stride, axis + 1, 1))
        blocks.append(block._replace(runs=tuple(runs), at=(*block.at[: axis + 1], 0, *block.at[axis + 1 :])))
    return MovedTensor((*tensor.shape[:axis], count, length, *tensor.shape[axis + 1 :]), tuple(blocks))


def window(tensor: MovedTensor, axis: int, first: int, length: int) -> MovedTensor:
    """The indexes from `first` on along an axis."""
    blocks = [one for block in tensor.blocks for one in _cut(block, axis, first, first + length)]
    shape = (*tensor.shape[:axis], length, *tensor.shape[axis + 1 :])
    return MovedTensor(shape, tuple(blocks))


def _cut(block: PartBlock, axis: int, low: int, high: int) -> Iterator[PartBlock]:
    """What of a block is between two indexes of an axis, counted from the lower one."""
    base = block.at[axis]
    along = sorted((run for run in block.runs if run.axis == axis and run.length > 1), key=lambda run: -run.step)
    last = base + sum((run.length - 1) * run.step for run in along)
    if last < low or base >= high:
        return
    if low <= base and last < high:
        yield block._replace(at=(*block.at[:axis], base - low, *block.at[axis + 1 :]))
        return
    run, inner = along[0], sum((one.length - 1) * one.step for one in along[1:])
    begin = max(0, -((base + inner - low) // run.step))
    end = min(run.length, (high - 1 - base) // run.step + 1)
    whole = (max(0, -((base - low) // run.step)), min(run.length, (high - 1 - base - inner) // run.step + 1))
    for k in range(begin, end):
        if not whole[0] <= k < whole[1]:
            yield from _cut(_shifted(block, run, k, 1), axis, low, high)
    if whole[0] < whole[1]:
        yield from _cut(_shifted(block, run, whole[0], whole[1] - whole[0]), axis, low, high)


def _shifted(block: PartBlock, run: PartRun, first: int, length: int) -> PartBlock:
    """A block with fewer values of one run."""
    start = tuple(k + first * run.stride * (axis == run.of) for axis, k in enumerate(block.start))
    at = tuple(k + first * run.step * (axis == run.axis) for axis, k in enumerate(block.at))
    runs = tuple(one._replace(length=length) if one == run else one for one in block.runs)
    return PartBlock(block.part, start, runs, at)


def flattened(tensor: MovedTensor) -> MovedTensor:
    """Kernels [out, in, depth, height, width] as rows [out, in * depth * height * width]."""
    if len(tensor.shape) == 2:
        return tensor
    if len(tensor.shape) != 5:
        raise Misfit(f"shape {list(tensor.shape)} has {plural(len(tensor.shape), 'axis', 'axes')}, expected 5 or 2")
    weights = [prod(tensor.shape[k + 1 :]) for k in range(5)]
    blocks = []
    for block in tensor.blocks:
        runs = tuple(
            run if run.axis == 0 else run._replace(axis=1, step=run.step * weights[run.axis]) for run in block.runs
        )
        at = (block.at[0], sum(block.at[k] * weights[k] for k in range(1, 5)))
        blocks.append(PartBlock(block.part, block.start, runs, at))
    return MovedTensor((tensor.shape[0], weights[0]), tuple(blocks))


def stored(name: str, tensor: MovedTensor) -> Stored:
    """A tensor under its name, with the pieces that it holds."""
    pieces = tuple(piece for block in tensor.blocks for piece in _pieces(block))
    return Stored(name, tensor.shape, pieces)


def _pieces(block: PartBlock) -> Iterator[Piece]:
    """A block as boxes of its part: one, but for parts of which only each second row is here."""
    digits, strided = _digits(block.runs, len(block.start))
    if strided is None:
        yield Piece(block.part, block.start, digits, block.at)
        return
    for k in range(strided.length):
        yield from _pieces(_shifted(block, strided, k, 1))


@lru_cache(maxsize=1024)
def _digits(runs: tuple[PartRun, ...], rank: int) -> tuple[tuple[Digits, ...], PartRun | None]:
    """For each axis of a part its digits; and a run, if one steps over rows of the part that others do not have."""
    found: list[Digits] = []
    for axis in range(rank):
        along = [run for run in runs if run.of == axis]
        expected = 1
        for run in sorted(along, key=lambda run: run.stride):
            if run.stride != expected and run.length > 1:
                return (), run
            expected *= run.length
        kept = along if len(along) == 1 else [run for run in along if run.length > 1]
        slowest_first = sorted(kept, key=lambda run: -run.stride)
        found.append(tuple(Digit(run.length, run.axis, run.step) for run in slowest_first) or (Digit(1, 0, 1),))
    return tuple(found), None
