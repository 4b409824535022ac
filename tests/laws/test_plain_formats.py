"""The law of formats without a record: the library of the format finds every name, with its dtype, shape and bytes."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import torch
from hypothesis import HealthCheck, assume, given, settings

import paramtool
from tests.laws.sharing import same_values
from tests.laws.states import flat_states

law = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
TYPES = {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128"}


@law
@given(flat_states())
def test_npz_by_numpy(state: dict[str, torch.Tensor]) -> None:
    """NumPy's own reader; names that shared memory are warned of, and stored each for itself."""
    state = {name: value for name, value in state.items() if str(value.dtype).removeprefix("torch.") in TYPES}
    assume(state)
    with tempfile.TemporaryDirectory() as folder:
        source, output = os.path.join(folder, "model.pt"), os.path.join(folder, "model.npz")
        torch.save(state, source)
        report = paramtool.convert(source, output)
        with np.load(output) as found:
            assert same_values(state, dict(found))
        together = len({value.untyped_storage().data_ptr() for value in state.values() if value.numel()})
        if together == len([value for value in state.values() if value.numel()]):
            assert report.keeps_ties
