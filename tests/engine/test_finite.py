"""NaN and infinity by bits: every code of every small type against ml_dtypes, floats against NumPy, any view."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import save_file

import paramtool
from paramtool.engine.read.finite import BITS, NotFinite, _block, counted, has_nonfinite
from paramtool.engine.read.source import Source
from paramtool.model.dtype import DTYPES
from tests.versions import needs


def expected(array: np.ndarray) -> tuple[int, int]:
    """What NumPy and ml_dtypes say: how many are NaN, how many infinite."""
    wide = array if array.dtype.kind in "fc" else array.astype(np.float32)
    nan = np.isnan(wide)
    return int(nan.sum()), int((~np.isfinite(wide) & ~nan).sum())


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [name for name in BITS if DTYPES[name].block_bytes <= 2])
def test_every_code_of_a_small_type(name: str) -> None:
    """One by one: 256 or 65,536 of them."""
    kind = f"u{DTYPES[name].block_bytes}"
    codes = np.arange(1 << (8 * DTYPES[name].block_bytes), dtype=kind)
    values = codes.view(np.dtype(getattr(ml_dtypes, name, name))).astype(np.float32)
    for one, value in zip(codes.reshape(-1, 1), values.reshape(-1, 1), strict=True):
        found = _block(memoryview(one.tobytes()), BITS[name], kind, 1)
        assert found[:2] == expected(value), (name, one)


def test_every_other_type_has_no_nan() -> None:
    """Integers, truth values, and the small floats whose codes are all finite, as ml_dtypes says."""
    for name, dtype in DTYPES.items():
        if has_nonfinite(dtype):
            continue
        assert not name.startswith(("complex", "bfloat"))
        if hasattr(ml_dtypes, name):
            info = ml_dtypes.finfo(getattr(ml_dtypes, name)) if name.startswith("float") else None
            codes = np.arange(1 << info.bits, dtype="u1") if info else np.zeros(0, "u1")
            assert np.isfinite(codes.view(getattr(ml_dtypes, name)).astype(np.float32)).all()
        else:
            assert "float" not in name or name == "float4_e2m1fn_x2", name


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["f2", "f4", "f8", "c8", "c16"]), st.data())
def test_floats_and_complex_numbers_as_numpy_says(kind: str, data: st.DataObject) -> None:
    """Counts of a whole array; a complex number is NaN if a part of it is, else infinite if one is."""
    real = "f4" if kind == "c8" else "f8" if kind == "c16" else kind
    size = data.draw(st.integers(1, 40)) * (2 if kind[0] == "c" else 1)
    parts = data.draw(arrays.arrays(real, size, elements=st.sampled_from([0.0, np.nan, np.inf, -np.inf, 2.0])))
    bits = BITS[np.dtype(real).name]
    found = _block(memoryview(parts.tobytes()), bits, f"u{parts.dtype.itemsize}", 2 if kind[0] == "c" else 1)
    assert found[:2] == expected(parts.view(kind))
    bad = np.flatnonzero(~np.isfinite(parts.view(kind)))
    assert found.first == (bad[0] if len(bad) else 0)


OTHERS = [
    pytest.param(dtype, marks=needs("torch", "2.2", "saves this type"))
    for dtype in (torch.float8_e5m2, torch.complex32)
]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *OTHERS, torch.complex64])
def test_a_transposed_view_and_a_long_one(dtype: torch.dtype, tmp_path: Path) -> None:
    """The first place is in row-major order of the view; blocks end where no number ends, and nothing is missed."""
    long = torch.zeros(3_000_001, dtype=torch.float32)
    long[2_999_999] = float("nan")
    matrix = torch.zeros(5, 7)
    matrix[4, 1] = float("inf")
    state = {"long": long.to(dtype), "turned": matrix.to(dtype).t(), "part": matrix.to(dtype)[3:, 1:]}
    torch.save(state, tmp_path / "m.pt")
    checkpoint = paramtool.read(tmp_path / "m.pt")
    windows = dict(checkpoint.windows())
    with Source(checkpoint) as source:
        found = {name: counted(source, view) for name, view in windows.items()}
    assert {name: one.total for name, one in found.items()} == dict.fromkeys(state, 1)
    assert found["long"].place((3_000_001,)) == [2_999_999]
    assert found["turned"].place((7, 5)) == [1, 4] and found["part"].place((2, 6)) == [1, 0]


def test_an_empty_tensor_and_a_scalar(tmp_path: Path) -> None:
    torch.save({"none": torch.zeros(0, 3), "one": torch.tensor(float("nan"))}, tmp_path / "m.pt")
    checkpoint = paramtool.read(tmp_path / "m.pt")
    with Source(checkpoint) as source:
        found = {name: counted(source, view) for name, view in checkpoint.windows()}
    assert found["none"] == NotFinite() and found["one"].place(()) == []


def test_the_rule_reads_in_blocks(tmp_path: Path) -> None:
    """A tensor of 64 MB is judged with a quarter of its size."""
    save_file({"w": torch.zeros(16_000_000), "i": torch.zeros(3, dtype=torch.int32)}, tmp_path / "m.safetensors")
    checkpoint = paramtool.read(tmp_path / "m.safetensors")
    (view,) = (view for name, view in checkpoint.windows() if name == "w")
    with Source(checkpoint) as source:
        tracemalloc.start()
        try:
            assert counted(source, view) == NotFinite()
            assert tracemalloc.get_traced_memory()[1] < view.nbytes // 4
        finally:
            tracemalloc.stop()
