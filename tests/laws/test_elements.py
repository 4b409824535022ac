"""Reading a window piece by piece gives what NumPy's as_strided sees, whatever the window, and asks for few bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.engine.read import elements
from paramtool.engine.read.elements import Elements, equal, move, take
from paramtool.errors import FormatError
from paramtool.formats import files, gather
from paramtool.model.dtype import DTYPES
from paramtool.model.tiling import within
from paramtool.model.view import View
from tests.examples import examples
from tests.patience import PATIENCE

DATA = np.random.default_rng(0).integers(0, 256, 1 << 16, "u1")


class File:
    """Bytes that are read like a file's, and how many were."""

    def __init__(self) -> None:
        self.nbytes = 0

    def read(self, start: int, buffer: memoryview) -> None:
        self.nbytes += len(buffer)
        assert start + len(buffer) <= len(DATA), "read behind the end"
        buffer[:] = DATA[start : start + len(buffer)].data


@st.composite
def windows(draw: st.DrawFn, most: int = 3000, least_stride: int = 0) -> View:
    dtype = DTYPES[draw(st.sampled_from(["uint8", "float16", "float32", "complex128"]))]
    axes = draw(st.lists(st.tuples(st.integers(1, 6), st.integers(least_stride, most)), max_size=3))
    shape, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    view = View(0, dtype, draw(st.integers(0, 50)), shape, strides)
    while view.byte_stop > len(DATA):
        strides = tuple(s // 2 for s in strides)
        view = View(0, dtype, view.offset, shape, strides)
    return view


def strided(view: View) -> np.ndarray:
    size = view.dtype.block_bytes
    kind = {1: "u1", 2: "u2", 4: "u4", 16: "V16"}[size]
    return np.ndarray(view.shape, kind, DATA.data, view.byte_start, [s * size for s in view.strides])


@settings(max_examples=examples(60), deadline=PATIENCE)
@given(
    nbytes=st.integers(1, 700), gap=st.integers(-3, 6000), count=st.integers(1, 1100), base=st.integers(0, 9),
    most=st.sampled_from([None, 1, 5000]), pieces_read=st.sampled_from([None, 0, 3, 1024]),
)  # fmt: skip
def test_pieces_of_a_file(
    nbytes: int, gap: int, count: int, base: int, most: int | None, pieces_read: int | None, tmp_path_factory: Any
) -> None:
    """Pieces that stand some bytes apart are those of the file, even where a call of the system reads fewer bytes."""
    step = max(1, nbytes + gap)
    count = min(count, (len(DATA) - base - nbytes) // step + 1)
    path = tmp_path_factory.getbasetemp() / "pieces.bin"
    if not path.exists():
        path.write_bytes(DATA)
    buffer = bytearray(count * nbytes)

    def reads_less(descriptor: int, buffers: list[memoryview], start: int) -> int:
        return read(descriptor, [buffers[0][:most]] if most else buffers, start)

    def copies_less(pid: int, here: int, count: int, there: int, pieces: int, flags: int) -> int:
        if not pieces_read:
            return -1
        return int(copy(pid, here, count, there, min(pieces, pieces_read), flags))  # and the call says how many bytes

    read, copy = files._READ_INTO, gather._copy()
    with path.open("rb") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_READ_INTO", reads_less)
        if copy is None or pieces_read is None:
            patch.setattr(gather, "_copy", lambda: None)
        else:
            patch.setattr(gather, "_copy", lambda: copies_less)
        files.Placed(file, base).rows(0, step, memoryview(buffer), nbytes)
    raw = DATA.tobytes()
    assert bytes(buffer) == b"".join(raw[base + k * step : base + k * step + nbytes] for k in range(count))


@pytest.mark.skipif(gather._copy() is None, reason="the system copies no pieces of a process's memory")
def test_pieces_of_a_file_that_was_truncated(tmp_path: Path) -> None:
    """The file ended while it was mapped: that is an error, and no signal."""
    path = tmp_path / "pieces.bin"
    path.write_bytes(DATA.tobytes() * 8)
    buffer = bytearray(64 * 100)
    with path.open("r+b") as file:
        files.Placed(file, 0).rows(0, 4096, memoryview(buffer), 100)
        assert file in gather._mappings
        os.truncate(path, 40 * 4096 + 50)
        assert gather.gather(file, 0, 4096, memoryview(buffer), 100) >= 40 * 100
        with pytest.raises(FormatError, match="ends at byte"):
            files.Placed(file, 0).rows(0, 4096, memoryview(buffer), 100)


@pytest.mark.parametrize("strides", [(2, 2), (1, 1), (1, 2), (0, 3), (4, 1), (0, 0)])
def test_windows_that_overlap(strides: tuple[int, int]) -> None:
    """Some have as many elements as they span, and are no run of bytes."""
    view = View(0, DTYPES["float32"], 5, (3, 3), strides)
    found = Elements(lambda: File().read, "u4", view.byte_start, view.shape, strides=[4 * stride for stride in strides])
    assert found.all().tobytes() == strided(view).tobytes()
    assert found.transpose((1, 0))[1:, :2].tobytes() == strided(view).T[1:, :2].tobytes()


@given(st.one_of(windows(), windows(most=12), windows(most=3)), st.data())
def test_a_box_is_what_numpy_sees(view: View, data: st.DataObject) -> None:
    expected = strided(view)
    size = view.dtype.block_bytes
    order = data.draw(st.permutations(range(len(view.shape))))
    box = []
    for length in (view.shape[k] for k in order):
        low = data.draw(st.integers(0, length - 1))
        box.append(data.draw(st.one_of(st.just(low), st.builds(slice, st.just(low), st.integers(low, length)))))
    read = File().read
    found = Elements(
        lambda: read, expected.dtype.str, view.byte_start, view.shape, strides=[s * size for s in view.strides]
    )
    assert found.transpose(order)[tuple(box)].tobytes() == expected.transpose(order)[tuple(box)].tobytes()
    assert found.all().tobytes() == expected.tobytes()


@given(windows(most=1 << 14))
def test_no_more_is_read_than_the_pages_that_are_touched(view: View) -> None:
    expected = strided(view)
    file = File()
    size = view.dtype.block_bytes
    Elements(
        lambda: file.read, expected.dtype.str, view.byte_start, view.shape, strides=[s * size for s in view.strides]
    ).all()
    gaps = elements.GAP_PIECES * len(view.shape)
    assert file.nbytes <= view.numel * (elements.PAGE_NBYTES + size * (1 + gaps))
    assert file.nbytes <= max(view.nbytes, view.byte_stop - view.byte_start) * max(1, len(view.shape))


def test_large_windows_are_read_in_pieces(monkeypatch) -> None:
    """What is near is read together, but never more of it at once than SPAN_NBYTES."""
    monkeypatch.setattr(elements, "SPAN_NBYTES", 1000)
    largest = 0

    def read(start: int, buffer: memoryview) -> None:
        nonlocal largest
        largest = max(largest, len(buffer))
        buffer[:] = DATA[start : start + len(buffer)].data

    view = View(0, DTYPES["float32"], 3, (50, 20), (40, 2))
    found = Elements(lambda: read, "u4", view.byte_start, view.shape, strides=[160, 8]).all()
    assert found.tobytes() == strided(view).tobytes()
    assert largest <= 1000


@given(st.lists(st.integers(0, len(DATA) - 64), max_size=40), st.integers(0, 64))
def test_scattered_places_come_in_the_order_they_were_asked_for(starts: list[int], nbytes: int) -> None:
    found = take(File().read, np.array(starts, np.int64), nbytes)
    assert [row.tobytes() for row in found] == [DATA[at : at + nbytes].tobytes() for at in starts]


@given(windows(most=60, least_stride=1), st.integers(1, 40))
def test_bands_of_a_storage_meet_every_element_of_a_window_once(view: View, band: int) -> None:
    size = view.dtype.block_bytes
    seen = np.zeros(view.shape, int)
    for low in range(0, view.byte_stop, band * size):
        for box in within(view, low, low + band * size):
            seen[box] += 1
            at = strided(view)[box]
            start = view.byte_start + size * sum(b.start * s for b, s in zip(box, view.strides, strict=True))
            assert low <= start
            assert (
                start + sum((n - 1) * s for n, s in zip(at.shape, at.strides, strict=True)) + size <= low + band * size
            )
    assert (seen == 1).all()


@settings(max_examples=examples(20), deadline=None)
@given(
    st.permutations(range(3)),
    st.tuples(st.integers(1, 3), st.integers(200, 600), st.integers(500, 1100)),
    st.sampled_from(["u1", "u4", "u8", "V16"]),
    st.data(),
)
def test_arrays_in_other_orders_move_and_compare(
    order: list[int], shape: tuple[int, ...], kind: str, data: st.DataObject
) -> None:
    """Tile by tile, as NumPy does it; one changed bit is seen, wherever it is."""
    nbytes = np.dtype(kind).itemsize * int(np.prod(shape))
    values = np.random.default_rng(0).integers(0, 256, nbytes, "u1").view(kind).reshape(shape)
    turned = np.empty([shape[k] for k in order], kind).transpose([order.index(k) for k in range(3)])
    move(turned, values)
    assert turned.tobytes() == values.tobytes()
    assert equal(turned, values)
    assert equal(values, turned)
    values.reshape(-1).view("u1")[data.draw(st.integers(0, nbytes - 1))] ^= 1
    assert not equal(turned, values)
    assert not equal(values, turned)


STARVED = """
import _testcapi
import numpy as np
from paramtool.engine.read.elements import equal, same

one = np.arange(1 << 14, dtype="u4")
square, turned = one.reshape(128, 128), np.asfortranarray(one.reshape(128, 128))
changed = one.view("u1").copy()
changed[7777] ^= 1
for call, wanted in (
    (lambda: same(one.view("u1"), one.copy().view("u1")), True),
    (lambda: same(one.view("u1"), changed), False),
    (lambda: same(one.view("u1")[1:], changed[1:]), False),
    (lambda: equal(square, turned), True),
):
    assert call() is wanted
    for number in range(1, 60):
        _testcapi.set_nomemory(number, number + 1)
        try:
            found = call()
        except (MemoryError, SystemError):
            found = wanted
        finally:
            _testcapi.remove_mem_hooks()
        assert found is wanted, number
"""


def test_comparing_without_memory_is_an_error_or_right() -> None:
    """Whichever request of Python fails (a SystemError says it, too): NumPy's `==` ends the process."""
    pytest.importorskip("_testcapi")
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
