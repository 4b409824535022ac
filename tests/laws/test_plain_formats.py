"""The law of formats without a record: the format's own library finds every name, with its dtype, shape and bytes.

What a format cannot hold is refused by the name of the tensor, before anything is written.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import paramtool
from paramtool.errors import PlanError
from tests.contracts import makers_arrays, makers_msgpack
from tests.examples import IS_HARD, examples
from tests.laws.sharing import raw, same_values
from tests.laws.states import flat_states

law = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
COMMON = {"bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"}
NUMPY = COMMON | {"uint16", "uint32", "int16", "complex64", "complex128", "bfloat16"}


def opened_by_h5py(path: Path) -> dict[str, Any]:
    """Every dataset; one that has two names is one object."""
    found: dict[str, Any] = {}
    arrays: dict[Any, Any] = {}
    with h5py.File(path) as file:

        def visit(name: str, one: Any) -> None:
            if isinstance(one, h5py.Group):
                for part, inside in one.items():
                    visit(f"{name}/{part}" if name else part, inside)
            else:
                value = arrays.setdefault(h5py.h5o.get_info(one.id).addr, one[()])
                is_marked = one.attrs.get("dtype") == "bfloat16"
                found[name] = np.asarray(value).view(ml_dtypes.bfloat16) if is_marked else np.asarray(value)

        visit("", file)
    return found


def checked_as_mxnet(path: Path, state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The bytes that MXNet writes (`tests/formats/test_mxnet.py` proves the maker)."""
    arrays = {name: makers_arrays.array(value.contiguous()) for name, value in state.items()}
    assert path.read_bytes() == makers_arrays.saved(arrays)
    return arrays


Opened = Callable[[Path, dict[str, torch.Tensor]], dict[str, Any]]
FORMATS: dict[str, tuple[set[str], Opened]] = {
    "npz": (NUMPY, lambda path, state: makers_arrays.load_npz(path)),
    "h5": (NUMPY, lambda path, state: opened_by_h5py(path)),
    "params": (COMMON | {"bfloat16"}, checked_as_mxnet),
    "msgpack": (NUMPY | {"float8_e4m3fn", "float8_e5m2"}, lambda path, state: makers_msgpack.load(path)),
}
"""{suffix: (the dtypes that it has, how it is opened)}"""


def convert(state: dict[str, torch.Tensor], suffix: str, folder: str) -> tuple[Any, Path]:
    """What `convert` makes of a state dict."""
    source, output = Path(folder) / "model.pt", Path(folder) / f"model.{suffix}"
    torch.save(state, source)
    return paramtool.convert(source, output), output


def same_in_any_order(state: dict[str, torch.Tensor], found: dict[str, Any]) -> bool:
    """HDF5 lists names by the alphabet, and dicts in dicts have one place for the names inside."""
    assert set(state) == set(found)
    return same_values(state, {name: found[name] for name in state})


@pytest.mark.sample(3)
@pytest.mark.parametrize("suffix", FORMATS)
@law
@given(state=flat_states())
def test_every_tensor_that_it_has_a_form_for(suffix: str, state: dict[str, torch.Tensor]) -> None:
    """Types and shapes are refused by name; names that shared memory are warned of, or linked."""
    types, open_it = FORMATS[suffix]
    refused = {name for name, value in state.items() if str(value.dtype).removeprefix("torch.") not in types}
    refused |= {name for name, value in state.items() if suffix == "params" and not value.dim()}
    with tempfile.TemporaryDirectory() as folder:
        if refused:
            with pytest.raises(PlanError) as error:
                convert(state, suffix, folder)
            assert all(repr(name) in str(error.value) for name in sorted(refused)[:2])
            assert os.listdir(folder) == ["model.pt"]
            return
        report, output = convert(state, suffix, folder)
        found = open_it(output, state)
        assert same_in_any_order(state, found)
        if report.keeps_ties:
            assert paramtool.verify(output, Path(folder) / "model.pt").differences == ()
        else:
            assert "which names share memory" in report.warnings[0]


PARTS = ["a", "b", "/", ".", ".npy", "..", "\\", "\0", "ü", "\ud800", " ", "", "\n"]
LETTERS = st.lists(st.sampled_from(PARTS), max_size=4).map("".join)
NAMED = st.lists(st.one_of(LETTERS, st.text(max_size=5)), min_size=1, max_size=5, unique=True)


@pytest.mark.parametrize("suffix", FORMATS)
@law
@given(names=NAMED)
def test_names_come_back_or_are_refused(suffix: str, names: list[str]) -> None:
    """As they are, to the letter; what a library would mangle is an error with the name, and nothing is written."""
    open_it = FORMATS[suffix][1]
    state = {name: torch.full((2,), float(k)) for k, name in enumerate(names)}
    with tempfile.TemporaryDirectory() as folder:
        try:
            _, output = convert(state, suffix, folder)
        except PlanError as error:
            assert any(repr(name) in str(error) for name in names), error
            assert os.listdir(folder) == ["model.pt"]
            assert any(not name or set(name) & set("\0/.:\\") or not name.isprintable() for name in names), names
            return
        found = open_it(output, state)
        assert {name: raw(value) for name, value in found.items()} == {name: raw(v) for name, v in state.items()}


@pytest.mark.parametrize("suffix", FORMATS)
def test_shapes(suffix: str, tmp_path: Path) -> None:
    """Many axes, and lengths of every size that changes a header."""
    shapes = [(1,) * 30, (2, 0, 3), (0,), (15,), (16,), (32,), (70,), (127,), (128,), (256, 257), (65535,), (65536,)]
    state = {f"t{k}": torch.ones(shape) * k for k, shape in enumerate(shapes)}
    _, output = convert(state, suffix, str(tmp_path))
    assert same_in_any_order(state, FORMATS[suffix][1](output, state))


@pytest.mark.sample(2)
@pytest.mark.parametrize("suffix", FORMATS)
def test_many_names(suffix: str, tmp_path: Path) -> None:
    """More than the header of a small dict or group holds."""
    state = {f"layer{k % 40}/x{k}": torch.full((1,), float(k)) for k in range(3000 if IS_HARD else 1000)}
    _, output = convert(state, suffix, str(tmp_path))
    assert same_in_any_order(state, FORMATS[suffix][1](output, state))
