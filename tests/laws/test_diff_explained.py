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
    assert not found.is_same and one.change is not None and one.change.largest == pytest.approx(1, abs=0.02)


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
    assert not found.is_same
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
    assert not found.is_same
    assert all(kind == CHANGED and "explained by" in how for name, (kind, how) in kinds.items() if "bias" in name), (
        kinds
    )
    assert all(kind == "layout" for name, (kind, _) in kinds.items() if "bias" not in name), kinds


def moved(one: dict[str, torch.Tensor], rows: int | None = None) -> dict[str, torch.Tensor]:
    """The same network, whose input biases are moved into the recurrent ones; or the first rows of them."""
    found = {name: tensor.clone() for name, tensor in one.items()}
    for name in (name for name in one if "bias_ih" in name):
        found[name.replace("ih", "hh")][:rows] += one[name][:rows]
        found[name][:rows] = 0
    return found


def named(of: type[torch.nn.RNNBase], **more: object) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {f"rnn.{name}": one.detach() for name, one in of(6, 20, **more).named_parameters()}  # type: ignore[arg-type]


def reasons(found: Diffed) -> dict[str, str]:
    return {one.b[0]: one.how for one in found.tensors if one.kind == CHANGED}


KEPT, FORGET = "explained by sums of biases, which are the same", "a number that is added (a forget bias)"


@pytest.mark.sample(2)
@pytest.mark.parametrize("at", ["rnn", "model.encoder"])
@pytest.mark.parametrize("dtype", TYPES)
def test_sums_of_biases_in_one_layout(place: Path, at: str, dtype: torch.dtype) -> None:
    """Two biases of torch, and all of it in one of them: in either direction, for all layers."""
    a = {name: one.to(dtype) for name, one in named(torch.nn.LSTM, num_layers=2, bidirectional=True).items()}
    b = {name.replace("rnn", at): one for name, one in moved(a).items()}
    for one, other in ((a, b), (b, a)):
        found = compared(place, one, other)
        assert not found.is_same
        assert reasons(found) == {name: f"{KEPT}, torch" for name in other if "bias" in name}
    assert all(one.change is not None and one.change.elements for one in found.tensors if one.kind == CHANGED)


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_forget_bias_in_one_layout(place: Path, is_moved: bool) -> None:
    a = named(torch.nn.LSTM)
    b = moved(a) if is_moved else {name: one.clone() for name, one in a.items()}
    b["rnn.bias_hh_l0"][20:40] += 1
    why = f"{KEPT}, and {FORGET}" if is_moved else f"explained by {FORGET}"
    changed = {"rnn.bias_hh_l0", *(["rnn.bias_ih_l0"] if is_moved else [])}
    assert reasons(compared(place, a, b)) == dict.fromkeys(changed, f"{why}: + 1, torch")
    assert reasons(compared(place, b, a)) == dict.fromkeys(changed, f"{why}: - 1, torch")


def test_what_no_kept_sum_explains(place: Path) -> None:
    """One other element, another gate, the gate of a GRU that multiplies one of its biases, or other weights."""
    a, gru = named(torch.nn.LSTM), named(torch.nn.GRU)
    one, gate, weights = moved(a), {name: tensor.clone() for name, tensor in a.items()}, moved(a)
    one["rnn.bias_hh_l0"][3] += 1e-3
    gate["rnn.bias_hh_l0"][40:60] += 1
    weights["rnn.weight_hh_l0"][0, 0] += 1
    for b in (one, gate, weights):
        assert set(reasons(compared(place, a, b)).values()) == {""}
    assert set(reasons(compared(place, gru, moved(gru))).values()) == {""}
    assert set(reasons(compared(place, gru, moved(gru, 40))).values()) == {f"{KEPT}, torch"}
