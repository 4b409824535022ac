"""`are_disjoint` says the same as marking every byte, and its work does not grow with the size of the windows."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.model import tiling
from paramtool.model.dtype import DTYPES
from paramtool.model.tiling import are_disjoint, unread
from paramtool.model.view import View, contiguous
from tests.examples import examples

BF16 = DTYPES["bfloat16"]


def elements(view: View) -> list[int]:
    """Where each element is."""
    found = [view.offset]
    for size, stride in zip(view.shape, view.strides, strict=True):
        found = [place + k * stride for place in found for k in range(size)]
    return found if view.numel else []


@st.composite
def views(draw: st.DrawFn) -> list[View]:
    """Windows that take turns in nested rooms, in any order, some of them moved."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    shared = draw(st.sets(st.integers(0, len(lengths) - 1)))
    strides, step = [], 1
    for length in reversed(lengths):
        strides.insert(0, step)
        step *= length
    offsets = [0]
    for k in range(len(lengths)):
        if k not in shared:
            offsets = [at + n * strides[k] for at in offsets for n in range(lengths[k])]
    own = sorted(shared, key=lambda k: draw(st.integers(0, 9)))
    shape, steps = tuple(lengths[k] for k in own), tuple(strides[k] for k in own)
    found = [View("w", BF16, at, shape, steps) for at in offsets]
    for _ in range(draw(st.integers(0, 2))):
        k = draw(st.integers(0, len(found) - 1))
        found[k] = View("w", BF16, draw(st.integers(0, step)), found[k].shape, found[k].strides)
    return draw(st.permutations(found))


@settings(max_examples=examples(300), deadline=None)
@given(views(), st.sampled_from((0, 64)))
def test_it_says_what_marking_says(found: list[View], many: int) -> None:
    """Whether nothing is written twice, by pairs and by marks."""
    every = [place for view in found for place in elements(view)]
    before, tiling.MANY = tiling.MANY, many
    try:
        assert are_disjoint(found) == (len(set(every)) == len(every))
    finally:
        tiling.MANY = before


def interleaved(experts: int, ffn: int, width: int) -> list[View]:
    """Gates and ups of experts, row by row in turn; and the same transposed, column by column."""
    size = 2 * ffn * width
    rows = [
        View("w", BF16, k * size + side * width, (ffn, width), (2 * width, 1))
        for k in range(experts)
        for side in (0, 1)
    ]
    columns = [
        View("w", BF16, (experts + k) * size + side, (width, ffn), (2 * ffn, 2))
        for k in range(experts)
        for side in (0, 1)
    ]
    return [*rows, *columns]


def test_stacks_of_experts_take_no_room() -> None:
    """4 TB of experts that take turns: no room for their elements, and one moved by an element is found."""
    found = interleaved(256, 1 << 16, 1 << 15)
    tracemalloc.start()
    assert are_disjoint(found)
    moved = found[301]
    found[301] = View("w", BF16, moved.offset + 1, moved.shape, moved.strides)
    assert not are_disjoint(found)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_experts_in_the_middle_take_turns_too() -> None:
    """[inputs, experts, outputs]: all windows have one slow axis."""
    experts, width, ffn = 300, 1 << 20, 64
    found = [View("w", BF16, k * ffn, (width, ffn), (experts * ffn, 1)) for k in range(experts)]
    assert are_disjoint(found)
    assert not are_disjoint([*found, found[7]])


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.data())
def test_what_windows_do_not_read_is_counted(a: int, b: int, c: int, data: st.DataObject) -> None:
    """As by marking every element, whether windows share elements or not."""
    whole = contiguous(0, DTYPES["float32"], (a, b, c))
    places = np.arange(a * b * c).reshape(a, b, c)
    windows, read = [], set()
    for _ in range(data.draw(st.integers(0, 4))):
        bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in (a, b, c)]
        box = tuple(slice(*one) for one in bounds)
        shape = tuple(high - low for low, high in bounds)
        offset = sum(low * step for (low, _), step in zip(bounds, whole.strides, strict=True))
        windows.append(View(0, DTYPES["float32"], offset if 0 not in shape else 0, shape, whole.strides))
        read |= set(places[box].reshape(-1).tolist())
    assert unread(whole, windows) == whole.numel - len(read)
