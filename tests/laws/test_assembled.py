"""A tensor whose elements are in several storages reads as NumPy's, however boxes tile it, in any order and range."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paramtool.engine.read.source import Source
from paramtool.engine.write.staging import Staged
from paramtool.engine.write.writer import write
from paramtool.formats.files import open_source
from paramtool.formats.output import OutputFile
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Copy, Plan, Target, check
from paramtool.model.storage import Assembled, ByteRange, Part, Storage
from paramtool.model.view import View, contiguous, contiguous_strides

Box = tuple[tuple[int, int], ...]
"""(start, stop) on each axis."""


def cut(draw: st.DrawFn, box: Box, depth: int) -> list[Box]:
    """A box, or the boxes that tile it."""
    long = [k for k, (start, stop) in enumerate(box) if stop - start > 1]
    if not depth or not long or draw(st.integers(0, 3)) == 0:
        return [box]
    axis = draw(st.sampled_from(long))
    start, stop = box[axis]
    middle = draw(st.integers(start + 1, stop - 1))
    halves = ((*box[:axis], side, *box[axis + 1 :]) for side in ((start, middle), (middle, stop)))
    return [one for half in halves for one in cut(draw, half, depth - 1)]


@st.composite
def assembled(draw: st.DrawFn, folder: str) -> tuple[Checkpoint, np.ndarray, View]:
    """A checkpoint with one assembled tensor in a file of shuffled parts; its values; its window."""
    dtype = DTYPES[draw(st.sampled_from(["uint8", "float16", "float32", "complex128"]))]
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=4)))
    kind = {1: "u1", 2: "u2", 4: "u4", 16: "V16"}[dtype.block_bytes]
    count = int(np.prod(shape, dtype=int))
    raw = np.random.default_rng(count).integers(0, 256, count * dtype.block_bytes, "u1")
    values = raw.view(kind).reshape(shape)
    boxes = draw(st.permutations(cut(draw, tuple((0, n) for n in shape), 5)))
    path = Path(folder) / "parts"
    data, storages, parts = b"", {}, []
    strides = contiguous_strides(shape)
    for number, box in enumerate(boxes):
        block = values[tuple(slice(*side) for side in box)]
        order = draw(st.permutations(range(len(shape))))  # how its axes are stored
        gap = draw(st.integers(0, 3)) * dtype.block_bytes
        stored = contiguous_strides([block.shape[k] for k in order])
        places = tuple(stored[order.index(k)] for k in range(len(shape)))
        held = bytes(gap) + np.ascontiguousarray(block.transpose(order)).tobytes()
        start = len(data) + draw(st.integers(0, 5))
        data = data.ljust(start, b"?") + held
        storages[number] = Storage(number, len(held), ByteRange(str(path), start, len(data)))
        offset = sum(begin * step for (begin, _), step in zip(box, strides, strict=True))
        there = View(number, dtype, gap // dtype.block_bytes, block.shape, places)
        parts.append(Part(View(-1, dtype, offset, block.shape, strides), there))
    whole = len(boxes)
    storages[whole] = Storage(whole, values.nbytes, Assembled(tuple(parts)))
    path.write_bytes(data)
    file, source = open_source(str(path))
    file.close()
    view = contiguous(whole, dtype, shape)
    return Checkpoint("made", (source,), storages, {"w": Entry(view)}), values, view


@given(st.data())
def test_every_range_of_bytes(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, values, view = data.draw(assembled(folder))
        raw = values.tobytes()
        start = data.draw(st.integers(0, len(raw)))
        stop = data.draw(st.integers(start, len(raw)))
        with Source(checkpoint) as source:
            assert source.read(int(view.storage), start, stop - start) == raw[start:stop]
            assert b"".join(map(bytes, source.row_major(view))) == raw
            box = tuple(slice(*sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in view.shape)
            assert source.array(view)[box].tobytes() == values[box].tobytes()


@given(st.data())
def test_copies_of_it_are_written(data: st.DataObject) -> None:
    """Of the whole, of a slice of it, transposed or not, to a target or to a window of one; runs are read once."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, values, view = data.draw(assembled(folder))
        order = tuple(data.draw(st.permutations(range(len(view.shape)))))
        low = [data.draw(st.integers(0, n - 1)) for n in view.shape]
        high = [data.draw(st.integers(k + 1, n)) for k, n in zip(low, view.shape, strict=True)]
        if data.draw(st.booleans()):
            low, high = [0 for _ in low], list(view.shape)
        offset = sum(k * step for k, step in zip(low, view.strides, strict=True))
        taken = View(
            view.storage, view.dtype, offset,
            tuple(high[k] - low[k] for k in order), tuple(view.strides[k] for k in order),
        )  # fmt: skip
        expected = values[tuple(map(slice, low, high))].transpose(order)
        shape = (2, *taken.shape) if data.draw(st.booleans()) else taken.shape
        steps = contiguous_strides(shape)
        windows = [
            View("t", view.dtype, k * steps[0], taken.shape, steps[1:]) if len(shape) > len(taken.shape)
            else contiguous("t", view.dtype, shape)
            for k in range(2 if len(shape) > len(taken.shape) else 1)
        ]  # fmt: skip
        target = Target("t", view.dtype, shape, tuple(Copy(window, ((1, taken),)) for window in windows))
        check(Plan((target,)), ["t"], checkpoint.storages)
        with Staged(str(Path(folder) / "out"), False, force=True) as staged, Source(checkpoint) as source:
            runs = source.runs(taken)
            write(staged, [OutputFile("", (target,))], source)
            written = Path(staged.file("")).read_bytes()
            assert written == expected.tobytes() * len(windows)
            if taken.is_contiguous:
                assert source.nbytes_read == target.nbytes
        assert runs == [taken] or sum(run.nbytes for run in runs) == taken.nbytes
        assert not {run.storage for run in runs if runs != [taken]} & {taken.storage}
