"""Changes with a known reason: `changed`, with the explanation, and never the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.model.diff import CHANGED
from tests.examples import examples

TYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explained")


def compared(place: Path, a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> Diffed:
    for name, tensors in (("a", a), ("b", b)):
        save_file({key: one.contiguous() for key, one in tensors.items()}, place / f"{name}.safetensors")
    return diff(place / "a.safetensors", place / "b.safetensors")


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32), dtype=st.sampled_from(TYPES), other=st.sampled_from(TYPES), back=st.booleans(),
    renamed=st.booleans(),
)  # fmt: skip
def test_a_zero_centred_norm(
    place: Path, seed: int, dtype: torch.dtype, other: torch.dtype, back: bool, renamed: bool
) -> None:
    """Weights and the same less 1, in any type, either of which was calculated, under one name or a shown one."""
    made = torch.Generator().manual_seed(seed)
    weight = (1 + 0.2 * torch.randn(64, generator=made)).to(dtype)
    centred = (weight.double() - 1).to(other)
    real = torch.randn(8, 8, generator=made)
    name = "layers.0" if renamed else "h.0"
    a, b = {"h.0.w": real, "h.0.norm.weight": weight}, {f"{name}.w": real, f"{name}.norm.weight": centred}
    a, b = (b, a) if back else (a, b)
    found = compared(place, a, b)
    (one,) = (one for one in found.tensors if one.b[0].endswith("norm.weight"))
    assert one.kind == CHANGED and one.how == f"explained by a zero-centred norm: {'+' if back else '-'} 1"
    assert not found.is_same() and one.change is not None and one.change.largest == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("spoilt", [0, 31, 63])
def test_one_other_element_is_no_zero_centred_norm(place: Path, spoilt: int) -> None:
    weight = 1 + 0.2 * torch.randn(64, generator=torch.Generator().manual_seed(0))
    centred = weight - 1
    centred[spoilt] += 1e-3
    (one,) = compared(place, {"norm.weight": weight}, {"norm.weight": centred}).tensors
    assert (one.kind, one.how) == (CHANGED, "")


def lstm(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {f"rnn.{name}": one.detach() for name, one in torch.nn.LSTM(6, 5).named_parameters()}


@pytest.mark.parametrize("back", [False, True])
def test_sums_of_biases(place: Path, back: bool) -> None:
    """PyTorch's two biases, and the one that Keras has, in either direction."""
    two = lstm(0)
    order = torch.arange(20)
    one = {
        "rnn.cell.kernel": two["rnn.weight_ih_l0"].T[:, order],
        "rnn.cell.recurrent_kernel": two["rnn.weight_hh_l0"].T[:, order],
        "rnn.cell.bias": (two["rnn.bias_ih_l0"] + two["rnn.bias_hh_l0"])[order],
    }
    a, b = (one, two) if back else (two, one)
    found = compared(place, a, b)
    kinds = {name: (each.kind, each.how) for each in found.tensors for name in each.b}
    biases = {name: kind for name, kind in kinds.items() if "bias" in name}
    assert not found.is_same()
    assert all(kind == CHANGED and "explained by sums of biases" in how for kind, how in biases.values()), kinds
    assert all(kind == "layout" for name, (kind, _) in kinds.items() if "bias" not in name), kinds


@pytest.mark.parametrize("back", [False, True])
def test_a_forget_bias(place: Path, back: bool) -> None:
    """TensorFlow 1 adds 1 to the forget gate at run time; BasicLSTMCell's file has no 1 in its bias."""
    two = lstm(1)
    i, f, g, o = (np.arange(5 * k, 5 * k + 5) for k in range(4))
    order = np.concatenate([i, g, f, o])
    whole = (two["rnn.bias_ih_l0"] + two["rnn.bias_hh_l0"])[order]
    whole[10:15] -= 1
    kernel = torch.cat([two["rnn.weight_ih_l0"].T, two["rnn.weight_hh_l0"].T])[:, order]
    tf1 = {"rnn/basic_lstm_cell/kernel": kernel, "rnn/basic_lstm_cell/bias": whole}
    a, b = (tf1, two) if back else (two, tf1)
    found = compared(place, a, b)
    kinds = {name: (each.kind, each.how) for each in found.tensors for name in each.b}
    assert not found.is_same()
    assert all(kind == CHANGED and "explained by" in how for name, (kind, how) in kinds.items() if "bias" in name), (
        kinds
    )
    assert all(kind == "layout" for name, (kind, _) in kinds.items() if "bias" not in name), kinds
