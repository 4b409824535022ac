"""Planted maps of recurrent networks: each layout that holds a network of PyTorch's is found without hints."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from paramtool.commands.diff.diff import diff
from paramtool.layouts.spec import Spec
from paramtool.model.diff import CHANGED, LAYOUT, RENAMED, SAME
from tests.laws.conversions import NAMES, can_hold, move, neutral
from tests.laws.diff_trials.kinds_networks import NONE, ONE_BIAS, WRITERS, a_net, in_the_second
from tests.laws.diff_trials.kinds_parts import spoilt
from tests.versions import exporting

SPECS = [Spec(kind=kind, input=6, hidden=16, layers=1, bias=False) for kind in ("lstm", "gru", "rnn")]
CASES = [(name, spec) for spec in SPECS for name in NAMES if can_hold(name, spec) and name != "torch"]


def files(place: Path, name: str, spec: Spec) -> tuple[Path, Path]:
    """A network as PyTorch stores it, and in another layout, by an executor of copies that is not ours."""
    source = neutral(spec, 0, inner_bias=False)
    made = move(source, name)
    found = []
    for side, network in (("a", source), ("b", made)):
        arrays: Mapping[str, np.ndarray] = network.arrays()
        names = network.network.tensors
        save_file({names[own]: array for own, array in arrays.items()}, place / f"{side}.safetensors")
        found.append(place / f"{side}.safetensors")
    return found[0], found[1]


@pytest.mark.sample(14)
@pytest.mark.parametrize("name, spec", CASES, ids=[f"{name}-{spec.kind}" for name, spec in CASES])
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_a_network_in_another_layout(name: str, spec: Spec, back: bool, tmp_path: Path) -> None:
    if back and name == "paddle":
        pytest.skip("has every tensor under two names, and those that PyTorch lacks are told")
    a, b = files(tmp_path, name, spec)[:: -1 if back else 1]
    found = diff(a, b)
    told = [one for one in found.tensors if one.kind not in (SAME, RENAMED)]
    assert found.is_same, [(one.kind, one.a, one.b, one.how) for one in found.tensors]
    assert all(one.kind == LAYOUT for one in told)


@pytest.mark.sample(14)
@pytest.mark.parametrize("name, spec", CASES, ids=[f"{name}-{spec.kind}" for name, spec in CASES])
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_a_network_that_is_stored_column_by_column(name: str, spec: Spec, back: bool, tmp_path: Path) -> None:
    """NumPy stores `w.T` as it is: the same map is found whichever side is stored so, and another number is told."""
    if name == "paddle":
        pytest.skip("has every tensor under two names, and those that PyTorch lacks are told")
    if name == "keras.cudnn":
        pytest.skip("its rows go on in the next rows, which no window on columns follows")
    a, b = files(tmp_path, name, spec)[:: -1 if back else 1]
    arrays = {key: np.asfortranarray(one) for key, one in load_file(b).items()}
    if all(one.flags.c_contiguous for one in arrays.values()):
        pytest.skip("vectors are stored in one order")
    for is_other in (False, True):
        next(iter(arrays.values())).T.reshape(-1)[-1] += is_other
        np.savez(tmp_path / "b.npz", **arrays)
        found, back_found = diff(a, tmp_path / "b.npz"), diff(tmp_path / "b.npz", a)
        for one in (found, back_found):
            assert one.is_same is not is_other, [(one.kind, one.a, one.b, one.how) for one in one.tensors]


ADDED_AT_RUN_TIME = ("haiku", "tf1.basic")
"""Layouts whose program adds 1 to the forget gate."""


def with_forget_bias(name: str, has_zero_bias: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """An LSTM of PyTorch, and `[W_ih.T; W_hh.T]` with gates i g f o as Haiku or TensorFlow 1 names it.

    Both libraries add 1 to the forget gate when they run the network, so the stored bias has 1 less.
    """
    random = np.random.default_rng(4)
    wide, deep, bias = (random.normal(size=shape).astype("f4") for shape in ((4, 16, 6), (4, 16, 16), (4, 16)))
    zeros = np.zeros(64, "f4")
    torch = {"weight_ih_l0": wide.reshape(64, 6), "weight_hh_l0": deep.reshape(64, 16), "bias_ih_l0": bias.reshape(-1)}
    torch |= {"bias_hh_l0": zeros} if has_zero_bias else {"bias_hh_l0": random.normal(size=64).astype("f4")}
    order = [0, 2, 1, 3]
    own = (bias + torch["bias_hh_l0"].reshape(4, 16))[order]
    own[2] -= 1
    matrix = np.concatenate([wide[order].reshape(64, 6), deep[order].reshape(64, 16)], axis=1).T
    names = {
        "haiku": ("lstm/linear/w", "lstm/linear/b"),
        "tf1.basic": ("basic_lstm_cell/kernel", "basic_lstm_cell/bias"),
    }
    return {f"lstm.{key}": one for key, one in torch.items()}, dict(
        zip(names[name], (matrix, own.reshape(-1)), strict=True)
    )


@pytest.mark.parametrize("name", ADDED_AT_RUN_TIME)
@pytest.mark.parametrize("has_zero_bias", [False, True], ids=["two biases", "one bias"])
@pytest.mark.parametrize("order", "CF")
def test_a_library_that_adds_a_forget_bias(name: str, has_zero_bias: bool, order: Any, tmp_path: Path) -> None:
    """The matrices are the same in both directions, the bias alone is changed, and the row says why."""
    torch, other = with_forget_bias(name, has_zero_bias)
    np.savez(tmp_path / "torch.npz", **torch)
    np.savez(tmp_path / "other.npz", **{key: np.asarray(one, order=order) for key, one in other.items()})
    for a, b in (("torch.npz", "other.npz"), ("other.npz", "torch.npz")):
        found = diff(tmp_path / a, tmp_path / b)
        changed = [one for one in found.tensors if one.kind != LAYOUT]
        biases = {name for name in (*torch, *other) if "bias" in name or name.endswith("/b")}
        assert {one.kind for one in changed} == {CHANGED} and not found.is_same, found.tensors
        assert all("explained by" in one.how and "bias" in one.how for one in changed)
        assert all(set(one.a) | set(one.b) <= biases for one in changed)
        assert any("constants" in one.how for one in found.tensors) == (has_zero_bias and a == "other.npz")


def layered() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """An LSTM of two layers as PyTorch names it, its second biases zero, and as two modules of Keras."""
    random = np.random.default_rng(4)
    state, keras = {}, {}
    for layer, size in enumerate((6, 16)):
        wide, deep, bias = (random.normal(size=shape).astype("f4") for shape in ((64, size), (64, 16), (64,)))
        zeros = np.zeros(64, "f4")
        own = {"weight_ih": wide, "weight_hh": deep, "bias_ih": bias, "bias_hh": zeros}
        state |= {f"rnn.{name}_l{layer}": one for name, one in own.items()}
        own = {"kernel": wide.T.copy(), "recurrent_kernel": deep.T.copy(), "bias": bias}
        keras |= {f"enc{layer}/{name}": one for name, one in own.items()}
    return state, keras


@pytest.mark.sample(6)
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
@pytest.mark.parametrize("wrong", ["", "rnn.bias_hh_l1", "rnn.bias_ih_l0", "rnn.weight_hh_l1"])
def test_layers_that_are_modules_of_their_own(wrong: str, back: bool, tmp_path: Path) -> None:
    """Each layer is found, and a bias of zeros that the other layout adds to the first; one other number is told."""
    state, keras = layered()
    if wrong:
        state[wrong] = np.where(np.arange(state[wrong].shape[-1]) == 3, np.float32(9), state[wrong])
    for name, tensors in (("a", state), ("b", keras)):
        save_file(tensors, tmp_path / f"{name}.safetensors")
    a, b = (tmp_path / "a.safetensors", tmp_path / "b.safetensors")[:: -1 if back else 1]
    found = diff(a, b)
    told = [one for one in found.tensors if one.kind not in (RENAMED, LAYOUT)]
    assert found.is_same == (not wrong) == (not told), [(one.kind, one.a, one.b, one.how) for one in found.tensors]
    assert any(wrong in (*one.a, *one.b) for one in told) or not wrong


@pytest.mark.sample(4)
@pytest.mark.parametrize("old, new", [*permutations(WRITERS, 2)])
@pytest.mark.parametrize("biases", ["none", "first", "both"])
def test_two_libraries_of_which_neither_is_torch(old: str, new: str, biases: str, tmp_path: Path) -> None:
    """NumPy writes both, by their documented orders of gates; a second bias of zeros is the same as none."""
    if biases == "both" and {old, new} & {*ONE_BIAS}:
        pytest.skip("a library with one bias has the sum of both, which is another test")
    net = a_net(np.random.default_rng(5), "lstm", biases)
    for side, name in (("a", old), ("b", new)):
        arrays = {key: np.ascontiguousarray(one) for key, one in WRITERS[name](net, "rnn").items()}
        save_file(arrays, tmp_path / f"{side}.safetensors")
    found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert found.is_same, [(one.kind, one.a, one.b, one.how) for one in found.tensors]
    assert all(one.kind in (LAYOUT, RENAMED, SAME) for one in found.tensors)
    name = next(iter(arrays))
    arrays[name] = arrays[name].copy()
    arrays[name].reshape(-1)[-1] += 1
    save_file(arrays, tmp_path / "b.safetensors")
    assert not diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors").is_same


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_a_negative_zero_is_not_the_zero_that_a_layout_leaves_out(back: bool, tmp_path: Path) -> None:
    """Keras has no second bias; one of zeros is the same network, and one with -0.0 has other bytes."""
    net = a_net(np.random.default_rng(5), "lstm", "first")
    keras = {key: np.ascontiguousarray(one) for key, one in WRITERS["keras"](net, "rnn").items()}
    torch = {key: np.ascontiguousarray(one) for key, one in WRITERS["torch"](net, "rnn").items()}
    for is_negative in (False, True):
        torch["rnn.bias_hh_l0"][-1] = -0.0 if is_negative else 0.0
        for name, arrays in (("a", keras), ("b", torch)):
            save_file(arrays, tmp_path / f"{name}.safetensors")
        a, b = (tmp_path / "a.safetensors", tmp_path / "b.safetensors")[:: -1 if back else 1]
        assert diff(a, b).is_same is not is_negative


TWO_BIASES = ("torch", "mxnet", "mxnet.v2", "onnx", "chainer")


@pytest.mark.sample(12)
@pytest.mark.parametrize("old", sorted({*WRITERS} - {*TWO_BIASES}))
@pytest.mark.parametrize("new", TWO_BIASES)
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_one_bias_in_the_second_of_two(old: str, new: str, kind: str, back: bool, tmp_path: Path) -> None:
    """Flax keeps an LSTM's bias on the recurrent side, and converters put it into torch's `bias_hh`."""
    net = a_net(np.random.default_rng(5), kind, "first")
    if kind in NONE.get(old, ()) or kind not in ONE_BIAS.get(old, ()):
        pytest.skip("the library has another form of this network, or both biases")
    one, moved = WRITERS[old](net, "rnn"), WRITERS[new](in_the_second(net), "rnn")
    name, other = spoilt(np.random.default_rng(7), moved)
    for arrays, is_same in ((moved, True), ({**moved, name: other}, False)):
        for side, tensors in (("a", one), ("b", arrays)):
            save_file(
                {key: np.ascontiguousarray(one) for key, one in tensors.items()}, tmp_path / f"{side}.safetensors"
            )
        a, b = (tmp_path / "a.safetensors", tmp_path / "b.safetensors")[:: -1 if back else 1]
        found = diff(a, b)
        told = [(one.kind, one.a, one.b, one.how) for one in found.tensors]
        assert found.is_same is is_same, told


@pytest.mark.parametrize("said", ["", "relu"])
def test_an_activation_that_no_tensor_shows(said: str, tmp_path: Path) -> None:
    """A file that says it beside one that cannot."""
    spec = Spec(kind="rnn", input=6, hidden=16, layers=1, bias=False, activation=said)
    a, b = files(tmp_path, "keras", spec)
    assert diff(a, b).is_same and diff(b, a).is_same


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_parts_that_follow_each_other_in_one_storage(kind: str, tmp_path: Path) -> None:
    """torch's GPU layout: all weights of a network in one storage.  No element is lost, and none is there twice."""
    torch.manual_seed(0)
    module: Any = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[kind](8, 16)
    numbers = torch.cat([one.detach().reshape(-1) for one in module.parameters()])
    state, at = {}, 0
    for name, one in module.state_dict().items():
        state[f"net.{name}"] = numbers[at : at + one.numel()].view(one.shape)
        at += one.numel()
    torch.save(state, tmp_path / "a.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.randn(3, 1, 8),), str(tmp_path / "b.onnx"), **exporting())
    for a, b in (("a.pt", "b.onnx"), ("b.onnx", "a.pt")):
        found = diff(tmp_path / a, tmp_path / b)
        assert found.is_same, [(one.kind, one.a, one.b, one.how) for one in found.tensors]
