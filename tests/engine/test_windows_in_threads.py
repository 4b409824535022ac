"""Windows compared and moved by several threads: as NumPy sees them, and no thread is left."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool import formats
from paramtool.engine.read import elements, pairs, streams, threads
from paramtool.engine.read.source import Source
from paramtool.engine.read.threads import Threads
from paramtool.engine.write import arithmetic
from paramtool.errors import FormatError
from paramtool.formats.safetensors.read import stored_names
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View, contiguous_strides

SHAPE = (6, 10, 7)


@pytest.fixture(autouse=True)
def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything in several pieces, by three threads."""
    for module, name, value in (
        (streams, "THREADS_NBYTES", 0), (streams, "MAX_BLOCK_NBYTES", 96), (streams, "TILES_NBYTES", 300),
        (pairs, "MAX_BLOCK_NBYTES", 96), (pairs, "CORES", 3),
        (arithmetic, "CORES", 3), (arithmetic, "THREADS_NBYTES", 0), (arithmetic, "TILE", 9),
        (arithmetic, "BAND_NBYTES", 512), (elements, "SPAN_NBYTES", 64), (elements, "TILE", 8), (threads, "CORES", 3),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


def saved(folder: Path, arrays: dict[str, np.ndarray]) -> dict[str, int]:
    """A safetensors file of raw bytes, and the number of each tensor's storage."""
    from safetensors.numpy import save_file

    save_file(arrays, folder / "m.safetensors")
    return {name: number for number, name in enumerate(stored_names(str(folder / "m.safetensors")))}


def alive() -> list[threading.Thread]:
    """The threads that paramtool started."""
    return [one for one in threading.enumerate() if getattr(one, "_target", None) == Threads._run or "_run" in one.name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("windows")


@given(
    st.sampled_from(["uint8", "float16", "float32", "complex128"]),
    st.permutations(range(3)),
    st.one_of(st.none(), st.integers(0, 419)),
)
def test_the_same_bytes_in_any_order_of_axes(folder: Path, name: str, order: list[int], place: int | None) -> None:
    """One byte that differs is found, wherever it is; NaNs and zeros are their bits."""
    dtype = DTYPES[name]
    random = np.random.default_rng(0)
    a = random.integers(0, 256, (*SHAPE, dtype.block_bytes), "u1")
    b = a.transpose(*order, 3).copy("C")
    if place is not None:
        b.reshape(-1, dtype.block_bytes)[place, -1] ^= 0x80
    numbers = saved(folder, {"a": a.reshape(-1), "b": b.reshape(-1)})
    strides = contiguous_strides(SHAPE)
    moved = View(numbers["a"], dtype, 0, tuple(SHAPE[k] for k in order), tuple(strides[k] for k in order))
    whole = View(numbers["b"], dtype, 0, moved.shape, contiguous_strides(moved.shape))
    with Source(formats.read_file(str(folder / "m.safetensors"))) as source:
        for one, other in ((moved, whole), (whole, moved)):
            assert pairs.same_bytes(source, one, source, other) == (place is None)
        target = Target(
            "t", dtype, moved.shape, (Copy(View("t", dtype, 0, moved.shape, whole.strides), ((1, moved),)),)
        )
        made = b"".join(bytes(band) for band in arithmetic.bands(target, source))
    assert made == np.ascontiguousarray(a.transpose(*order, 3)).tobytes()
    assert alive() == []


def test_the_first_piece_that_fails_is_what_is_said(folder: Path) -> None:
    """A file that ends early: the error of the first missing piece, and no thread is left."""
    numbers = saved(folder, {"a": np.zeros(2000, "u1"), "b": np.zeros(2000, "u1")})
    path = folder / "m.safetensors"
    with pytest.raises(FormatError, match="ends at byte"), Source(formats.read_file(str(path))) as source:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 1500)
        one, other = (View(numbers[name], DTYPES["uint8"], 0, (2000,), (1,)) for name in "ab")
        streams.same_window(source, one, source, other, threads=3)
    assert alive() == []


def test_no_thread_is_left_where_the_caller_is_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt), Threads(3) as started:
        promises = [started.submit(lambda: sum(range(1000))) for _ in range(50)]
        assert promises[0].result() == sum(range(1000))
        raise KeyboardInterrupt
    assert alive() == []


def test_a_transpose_is_made_in_one_memory_with_the_longest_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bands are as large as two of others together would be, so that each run of the source is twice as long."""
    numbers = saved(folder, {"a": np.arange(400 * 64, dtype="f4")})
    turned = View(numbers["a"], DTYPES["float32"], 0, (64, 400), (1, 64))
    target = Target(
        "t", turned.dtype, turned.shape, (Copy(View("t", turned.dtype, 0, (64, 400), (400, 1)), ((1, turned),)),)
    )
    monkeypatch.setattr(arithmetic, "BAND_NBYTES", 32 * 1600)
    with Source(formats.read_file(str(folder / "m.safetensors"))) as source:
        bands = [(len(band), band.ctypes.data) for band in arithmetic.bands(target, source)]
    assert len(bands) == 2
    assert len({*bands}) == 1
