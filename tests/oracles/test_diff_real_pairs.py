"""`diff` of pairs that other programs wrote: real samples, one network in two frameworks, a fine-tune, our own outputs.

torch, Keras, onnxruntime and transformers make the files and run the networks; NumPy measures what changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import save_file
from torch import nn
from transformers import (
    AutoModel,
    BertConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    Phi3Config,
    PretrainedConfig,
)

from paramtool.commands.dedup import dedup
from paramtool.commands.diff.diff import Diffed, diff
from paramtool.commands.diff.find_base import find_base
from paramtool.commands.export import export
from paramtool.model.diff import ADDED, CAST, CHANGED, LAYOUT, REMOVED, RENAMED, ROUNDED, SAME, TensorDiff
from tests.examples import IS_WHOLE
from tests.oracles.running import close, random

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
SILERO_TORCH = "snakers4__silero-vad__v3_silero_vad.jit"
SILERO_ONNX = "snakers4__silero-vad__v3_silero_vad.onnx"
GTCRN = "Xiaobin-Rong__gtcrn__model_trained_on_vctk.tar"
INPUT, HIDDEN = 6, 20


def of(samples: Path, name: str) -> Path:
    if not (samples / name).is_file():
        pytest.skip(f"{name} is not among the samples")
    return samples / name


def kinds(found: Diffed) -> set[str]:
    return {one.kind for one in found.tensors}


def by_names(found: Diffed) -> dict[tuple[tuple[str, ...], tuple[str, ...]], TensorDiff]:
    return {(one.a, one.b): one for one in found.tensors}


# --- samples ----------------------------------------------------------------------------------------------------------


NODES = {0: ("929", "930", "931"), 1: ("949", "950", "951")}
"""{layer: W, R and B of the node that the exporter made of it}; `modules` of the .onnx says the same."""


@cache
def apart(a: Path, b: Path) -> Diffed:
    """What is different between two samples: several tests look at the same pair."""
    return diff(a, b)


@pytest.mark.parametrize("layer", NODES)
def test_the_lstm_of_silero(samples: Path, layer: int) -> None:
    """One network of two layers in TorchScript is two nodes in ONNX: weights and biases of each, in both directions.

    In `make test` only in one: the other takes a quarter of a minute, and `test_onnx_beside_torch` has both.
    """
    torch_file, onnx_file = of(samples, SILERO_TORCH), of(samples, SILERO_ONNX)
    w, r, b = NODES[layer]
    own = {name: f"_model1.lstm.{name}_l{layer}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    there = by_names(apart(torch_file, onnx_file))
    back = by_names(apart(onnx_file, torch_file)) if IS_WHOLE else {}
    for names, found, how in (
        (((own["weight_ih"],), (w,)), there, "torch -> onnx"),
        (((own["weight_hh"],), (r,)), there, "torch -> onnx"),
        (((own["bias_ih"], own["bias_hh"]), (b,)), there, "torch -> onnx"),
        (((w,), (own["weight_ih"],)), back, "onnx -> torch"),
        (((r,), (own["weight_hh"],)), back, "onnx -> torch"),
        (((b,), (own["bias_ih"],)), back, "onnx -> torch"),
        (((b,), (own["bias_hh"],)), back, "onnx -> torch"),
    ):
        if found is there or IS_WHOLE:
            assert (found[names].kind, found[names].how) == (LAYOUT, how), names


def test_the_rest_of_silero(samples: Path) -> None:
    """onnx' own arrays judge each pair that is called a rename or a transpose; the second network is in A alone."""
    torch_file, onnx_file = of(samples, SILERO_TORCH), of(samples, SILERO_ONNX)
    found = apart(torch_file, onnx_file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = {name: value.numpy() for name, value in torch.jit.load(str(torch_file)).state_dict().items()}
    graph = onnx.load(str(onnx_file)).graph
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    judged = 0
    for one in found.tensors:
        is_pair = len(one.a) == len(one.b) == 1 and one.b[0] in arrays
        if one.kind in (RENAMED, LAYOUT) and is_pair and one.layout != "onnx":
            expected = script[one.a[0]] if one.kind == RENAMED else script[one.a[0]].T
            assert np.array_equal(expected, arrays[one.b[0]]), one
            judged += 1
    assert judged > 40
    gone = {name for one in found.tensors if one.kind == REMOVED for name in one.a}
    assert {name for name in script if name.startswith("_model2.")} <= gone
    assert not any(name.startswith("_model1.") for name in gone)
    assert not any(one.kind == ADDED for one in found.tensors)


@pytest.mark.parametrize("layer", [1, 6, 11, 16])
def test_the_folded_norms_of_silero(samples: Path, layer: int) -> None:
    """NumPy folds each of the four batch norms; the exporter gave numbers for names."""
    torch_file, onnx_file = of(samples, SILERO_TORCH), of(samples, SILERO_ONNX)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = {name: value.numpy() for name, value in torch.jit.load(str(torch_file)).state_dict().items()}
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(str(onnx_file)).graph.initializer}
    conv, norm = f"_model1.encoder.{layer}", f"_model1.encoder.{layer + 1}"
    scale = state[f"{norm}.weight"].astype("f8") / np.sqrt(state[f"{norm}.running_var"].astype("f8") + 1e-5)
    weight = state[f"{conv}.weight"] * scale[:, None, None]
    bias = (state[f"{conv}.bias"] - state[f"{norm}.running_mean"]) * scale + state[f"{norm}.bias"]
    changed = {one.a[0]: one for one in apart(torch_file, onnx_file).tensors if one.kind == CHANGED}
    for name, expected in ((f"{conv}.weight", weight), (f"{conv}.bias", bias)):
        one = changed[name]
        assert one.how == f"explained by a folded batch norm: {norm!r}, epsilon 1e-05"
        assert np.allclose(arrays[one.b[0]], expected, rtol=1e-5, atol=1e-6)


def test_gtcrn_saved_again(samples: Path, tmp_path: Path) -> None:
    """The training's checkpoint beside what torch.save and safetensors write of its model."""
    path = of(samples, GTCRN)
    whole = torch.load(path, map_location="cpu", weights_only=True)
    torch.save(whole, tmp_path / "whole.pt")
    torch.save(whole["model"], tmp_path / "model.pt")
    save_file({name: one.contiguous() for name, one in whole["model"].items()}, tmp_path / "model.safetensors")
    assert diff(path, tmp_path / "whole.pt").judge(strict=True)
    for name in ("model.pt", "model.safetensors") if IS_WHOLE else ("model.safetensors",):
        for found in (diff(path, tmp_path / name, only="model"), diff(tmp_path / "model.pt", tmp_path / name)):
            assert found.is_same and kinds(found) == {SAME} and len(found.tensors) == len(whole["model"])
        renamed = diff(path, tmp_path / name)
        moved = {one.b[0]: one.a[0] for one in renamed.tensors if one.kind == RENAMED}
        assert moved.keys() == whole["model"].keys()
        large = {new: old for new, old in moved.items() if whole["model"][new].numel() > 16}
        assert len(large) > 80 and all(old == f"model.{new}" for new, old in large.items())


# --- one network in two frameworks ------------------------------------------------------------------------------------


def lstm(layers: int, *, has_one_bias: bool = True) -> nn.LSTM:
    """An LSTM of torch; Keras has one bias where torch adds two, so one of them is zero."""
    torch.manual_seed(layers)
    made = nn.LSTM(INPUT, HIDDEN, layers)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if has_one_bias and name.startswith("bias_hh"):
                weight.zero_()
    return made


def in_keras(module: nn.LSTM) -> Any:
    """The same network in Keras, by the methods of both."""
    state = {name: one.numpy() for name, one in module.state_dict().items()}
    first = values = keras.Input((None, INPUT))
    layers = [keras.layers.LSTM(HIDDEN, return_sequences=True) for _ in range(module.num_layers)]
    for layer in layers:
        values = layer(values)
    for k, layer in enumerate(layers):
        bias = state[f"bias_ih_l{k}"] + state[f"bias_hh_l{k}"]
        layer.set_weights([state[f"weight_ih_l{k}"].T, state[f"weight_hh_l{k}"].T, bias])
    return keras.Model(first, values)


def outputs(module: nn.Module, x: np.ndarray, *states: np.ndarray) -> np.ndarray:
    given = tuple(map(torch.from_numpy, states))
    with torch.no_grad():
        found = module(torch.from_numpy(x), given if len(given) > 1 else given[0]) if given else module(torch.tensor(x))
    return np.asarray(found[0])


@pytest.mark.sample(3)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5"])
def test_keras_beside_torch(name: str, layers: int, tmp_path: Path) -> None:
    """The same weights in another layout, in both directions; the bias of zeros is a constant of torch's."""
    module = lstm(layers)
    model = in_keras(module)
    x = random(5, 3, INPUT)
    close(np.asarray(model.predict(x.transpose(1, 0, 2), verbose=0)).transpose(1, 0, 2), outputs(module, x))
    path = tmp_path / name
    (model.save if name.endswith(".keras") else model.save_weights)(path)
    torch.save(module.state_dict(), tmp_path / "m.pt")
    there = diff(tmp_path / "m.pt", path)
    assert there.is_same and kinds(there) <= {LAYOUT, RENAMED}, there.tensors
    back = diff(path, tmp_path / "m.pt")
    assert kinds(back) <= {LAYOUT, RENAMED}, back.tensors
    for found, how in ((there, "torch -> keras"), (back, "-> torch")):
        matrices = [one for one in found.tensors if any("weight" in name for name in (*one.a, *one.b))]
        assert len(matrices) == 2 * layers and all(how in one.how and one.layout for one in matrices)
        assert sum("constants" in one.how for one in found.tensors) == layers


def test_keras_with_another_number(tmp_path: Path) -> None:
    """One element of a bias that torch adds is no longer zero: not the same, whichever side is first."""
    module = lstm(1)
    in_keras(module).save_weights(tmp_path / "m.weights.h5")
    with torch.no_grad():
        module.bias_hh_l0[3] = 0.5
    torch.save(module.state_dict(), tmp_path / "m.pt")
    for a, b in (("m.pt", "m.weights.h5"), ("m.weights.h5", "m.pt")):
        found = diff(tmp_path / a, tmp_path / b)
        assert kinds(found) & {REMOVED, ADDED, CHANGED}, found.tensors
        assert not found.is_same


GATES = "weight_hh_l0 by other gates", "both matrices of a layer exchanged", "the two layers exchanged"


@pytest.mark.sample(4)
@pytest.mark.parametrize("wrong", [None, *GATES])
@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5", "m.h5"])
def test_keras_beside_torch_that_was_converted_wrongly(name: str, wrong: str | None, tmp_path: Path) -> None:
    """Every byte is found, and Keras and torch compute other things: a warning; and none for the right one."""
    torch.manual_seed(0)
    module = nn.LSTM(HIDDEN, HIDDEN, 2)
    layers = [keras.layers.LSTM(HIDDEN, return_sequences=True) for _ in range(2)]
    model = keras.Sequential([keras.Input((None, HIDDEN)), *layers])
    state = {key: one.detach().numpy().copy() for key, one in module.state_dict().items()}
    for k, layer in enumerate(layers):
        state[f"bias_hh_l{k}"][:] = 0
        layer.set_weights([state[f"weight_ih_l{k}"].T, state[f"weight_hh_l{k}"].T, state[f"bias_ih_l{k}"]])
    (model.save_weights if name == "m.weights.h5" else model.save)(tmp_path / name)
    if wrong == GATES[0]:
        state["weight_hh_l0"] = state["weight_hh_l0"].reshape(4, HIDDEN, HIDDEN)[[3, 1, 2, 0]].reshape(-1, HIDDEN)
    elif wrong == GATES[1]:
        state["weight_ih_l0"], state["weight_hh_l0"] = state["weight_hh_l0"], state["weight_ih_l0"]
    elif wrong == GATES[2]:
        state = {f"{key[:-1]}{1 - int(key[-1])}": one for key, one in state.items()}
    torch.save({f"net.{key}": torch.from_numpy(one) for key, one in state.items()}, tmp_path / "m.pt")
    for a, b in (("m.pt", name), (name, "m.pt")):
        found = diff(tmp_path / a, tmp_path / b)
        assert found.is_same == (wrong is None), (a, b, found)


@pytest.mark.parametrize("is_exchanged", [True, False])
def test_two_files_of_keras(is_exchanged: bool, tmp_path: Path) -> None:
    """Every tensor is one of the other under another name, and two are in each other's places."""
    layer = keras.layers.LSTM(HIDDEN)
    model = keras.Sequential([keras.Input((None, HIDDEN)), layer])
    model.save(tmp_path / "m.keras")
    kernel, recurrent, bias = layer.get_weights()
    layer.set_weights([recurrent, kernel, bias] if is_exchanged else [kernel, recurrent, bias])
    model.save(tmp_path / "m.h5")
    for a, b in (("m.keras", "m.h5"), ("m.h5", "m.keras")):
        found = diff(tmp_path / a, tmp_path / b)
        assert found.is_same != is_exchanged
        assert any("recurrent network" in text for text in found.doubts) == is_exchanged, found.doubts


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5", "m.h5"])
def test_a_gru_of_keras_with_one_bias_is_no_gru_with_it_twice(name: str, tmp_path: Path) -> None:
    """torch adds the two up."""
    layer = keras.layers.GRU(HIDDEN, reset_after=False, bias_initializer="random_normal")
    model = keras.Sequential([keras.Input((None, INPUT)), layer])
    (model.save_weights if name == "m.weights.h5" else model.save)(tmp_path / name)
    order = [1, 0, 2]  # z, r, h in Keras; r, z, n in torch
    kernel, recurrent, bias = (
        np.concatenate([np.split(one, 3, -1)[k] for k in order], -1).T.copy() for one in layer.get_weights()
    )
    state = {"weight_ih_l0": kernel, "weight_hh_l0": recurrent, "bias_ih_l0": bias, "bias_hh_l0": bias.copy()}
    torch.save({f"rnn.{key}": torch.from_numpy(one) for key, one in state.items()}, tmp_path / "m.pt")
    assert not diff(tmp_path / name, tmp_path / "m.pt").is_same
    assert not diff(tmp_path / "m.pt", tmp_path / name).is_same


@pytest.fixture(params=["lstm", "gru", "rnn"])
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[nn.Module, Path]]:
    """A network of two layers, and what torch.onnx writes of it; ONNX Runtime computes the same."""
    kind: str = request.param
    torch.manual_seed(3)
    module: Any = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind](INPUT, HIDDEN, 2)
    x = random(5, 3, INPUT)
    states = [random(2, 3, HIDDEN, seed=k) for k in range(1, 3 if kind == "lstm" else 2)]
    given = tuple(map(torch.from_numpy, states))
    path = tmp_path / "m.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.from_numpy(x), given if kind == "lstm" else given[0]), str(path), dynamo=False, verbose=False
        )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    close(session.run(None, dict(zip(names, [x, *states], strict=True)))[0], outputs(module, x, *states))
    torch.save(module.state_dict(), tmp_path / "m.pt")
    yield module, path


def test_onnx_beside_torch(exported: tuple[Any, Path]) -> None:
    """Every weight and bias by the layout's name, in both directions; what is left are the graph's own constants."""
    module, path = exported
    there = diff(path.parent / "m.pt", path)
    back = diff(path, path.parent / "m.pt")
    names = set(module.state_dict())
    assert {name for one in there.tensors if one.kind == LAYOUT for name in one.a} == names
    assert {one.b[0] for one in back.tensors if one.kind == LAYOUT} == names
    assert {one.how for one in there.tensors if one.kind == LAYOUT} == {"torch -> onnx"}
    assert {one.how for one in back.tensors if one.kind == LAYOUT} == {"onnx -> torch"}
    weights = {one.name for one in onnx.load(str(path)).graph.initializer}
    assert {name for one in there.tensors if one.kind == LAYOUT for name in one.b} == weights
    rest = [name for one in there.tensors if one.kind != LAYOUT for name in one.b]
    assert all("Constant" in name for name in rest)


def test_onnx_with_other_numbers(exported: tuple[Any, Path]) -> None:
    """One number of one bias is another: that tensor alone is told."""
    path = exported[1]
    model = onnx.load(str(path))
    bias = next(one for one in model.graph.initializer if list(one.dims) and one.dims[0] == 1 and len(one.dims) == 2)
    array = onnx.numpy_helper.to_array(bias).copy()
    array[0, 7] += 1
    bias.CopyFrom(onnx.numpy_helper.from_array(array, bias.name))
    onnx.save(model, str(path))
    found = diff(path.parent / "m.pt", path)
    wrong = {name for one in found.tensors if one.kind not in (LAYOUT, SAME, RENAMED) for name in one.b}
    assert bias.name in wrong and {name for name in wrong if "Constant" not in name} == {bias.name}


# --- a file and what is made of it ------------------------------------------------------------------------------------


def small(*, is_tied: bool) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=is_tied,
        )
    )  # fmt: skip


def test_a_file_beside_its_own_outputs(tmp_path: Path) -> None:
    """The deduplicated file and the plain one: same weights; the plain one has lost the tie."""
    torch.manual_seed(5)
    state = small(is_tied=True).state_dict()
    copied = "model.layers.1.mlp.up_proj.weight"
    state[copied] = state["model.layers.0.mlp.up_proj.weight"].clone()
    torch.save(state, tmp_path / "m.pt")
    dedup(tmp_path / "m.pt", tmp_path / "small.safetensors", min_equal_bytes=1024)
    export(tmp_path / "small.safetensors", tmp_path / "plain.safetensors", all_names=True)
    stored = load_numpy(tmp_path / "small.safetensors")
    assert copied not in stored and len(stored) == len(state) - 2
    found = diff(tmp_path / "m.pt", tmp_path / "small.safetensors")
    assert found.is_same and kinds(found) == {SAME} and len(found.tensors) == len(state)
    plain = diff(tmp_path / "m.pt", tmp_path / "plain.safetensors")
    assert kinds(plain) == {SAME} and len(plain.tensors) == len(state)
    assert plain.ties and not plain.is_same and all("in A only" in text for text in plain.ties)
    equal = load_numpy(tmp_path / "plain.safetensors")
    assert all(np.array_equal(equal[name], one.numpy()) for name, one in state.items())


# --- a fine-tune ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, what three steps of AdamW made of it on some words, and a model that has nothing to do with it."""
    place = tmp_path_factory.mktemp("tuned")
    for seed, name in ((11, "base"), (12, "other")):
        torch.manual_seed(seed)
        small(is_tied=False).save_pretrained(place / name)
    model = LlamaForCausalLM.from_pretrained(place / "base")
    for name, weight in model.named_parameters():
        weight.requires_grad_("norm" not in name)
    steps = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, weight_decay=0.0)
    words = torch.tensor([[3, 4, 5, 9, 21], [4, 9, 30, 3, 5]])
    for _ in range(3):
        steps.zero_grad()
        model(input_ids=words, labels=words).loss.backward()
        steps.step()
    model.save_pretrained(place / "tuned")
    return place


def test_a_fine_tune_beside_its_base(tuned: Path) -> None:
    """NumPy counts the elements and the rows, and measures the differences, of each tensor."""
    before, after = (load_numpy(tuned / name / "model.safetensors") for name in ("base", "tuned"))
    found = diff(tuned / "base", tuned / "tuned")
    assert sorted(one.b[0] for one in found.tensors) == sorted(after)
    assert kinds(found) == {SAME, CHANGED}
    for one in found.tensors:
        name = one.b[0]
        apart = np.abs(after[name].astype("f8") - before[name].astype("f8"))
        differs = after[name] != before[name]
        assert (one.kind == SAME) == (not differs.any()) == ("norm" in name), name
        if one.change is None:
            continue
        rows = {row for span in one.change.rows for row in range(span.start, span.stop)}
        assert rows == set(np.flatnonzero(differs.any(1)).tolist()) and one.change.row_count == len(rows)
        assert (one.change.elements, one.change.numel) == (differs.sum(), differs.size)
        assert one.change.largest == apart.max()
        assert one.change.mean == pytest.approx(apart.mean())
        norms = [np.linalg.norm(array.astype("f8")) for array in (apart, before[name])]
        assert one.change.relative == pytest.approx(norms[0] / norms[1])
    words = next(one for one in found.tensors if one.b == ("model.embed_tokens.weight",))
    assert words.change is not None and 0 < words.change.row_count <= 7


def test_the_base_of_a_fine_tune(tuned: Path) -> None:
    """Its base is named among others, in any order; its distance is near, and that of others is not."""
    for order in (["other", "base"], ["base", "other"]):
        found = find_base(tuned / "tuned", [tuned / name for name in order])
        assert found.base == str(tuned / "base")
        near, far = found.candidates
        assert near.distance < 0.1 < 1 < far.distance and near.sampled == far.sampled > 10
    assert find_base(tuned / "tuned", [tuned / "other"]).base == ""


def test_a_fine_tune_saved_in_half(tuned: Path, tmp_path: Path) -> None:
    """torch's own bfloat16 of the base, and back: rounded one way, cast without loss the other."""
    state = load_numpy(tuned / "base" / "model.safetensors")
    half = {name: torch.from_numpy(one).bfloat16() for name, one in state.items()}
    save_file(half, tmp_path / "half.safetensors")
    save_file({name: one.float() for name, one in half.items()}, tmp_path / "wide.safetensors")
    found = diff(tuned / "base" / "model.safetensors", tmp_path / "half.safetensors")
    assert not found.is_same and kinds(found) <= {"rounded", CAST}
    most = max(float(np.abs(one - half[name].float().numpy()).max()) for name, one in state.items())
    assert found.judge(atol=most) and not found.judge(atol=most / 2)
    wide = diff(tmp_path / "half.safetensors", tmp_path / "wide.safetensors")
    assert wide.is_same and kinds(wide) == {CAST}


# --- a fresh model, whose biases are zeros ----------------------------------------------------------------------------


def fresh_dense() -> keras.Sequential:
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((6, 6, 3)), layers.Conv2D(16, 3), layers.Flatten(), layers.Dense(24), layers.Dense(10)]
    )


def torch_names(model: keras.Sequential, names: list[str]) -> dict[str, torch.Tensor]:
    """The weights of Keras's layers as torch's layers hold them."""
    kernels = [one for layer in model.layers for one in layer.get_weights() if one.ndim > 1]
    biases = [one for layer in model.layers for one in layer.get_weights() if one.ndim == 1]
    turned = [np.transpose(one, (3, 2, 0, 1) if one.ndim == 4 else (1, 0)) for one in kernels]
    made = {f"{name}.weight": one for name, one in zip(names, turned, strict=True)}
    made |= {f"{name}.bias": one for name, one in zip(names, biases, strict=True)}
    return {name: torch.from_numpy(np.ascontiguousarray(one)) for name, one in made.items()}


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5", "m.h5"])
@pytest.mark.parametrize("names", [["conv", "fc1", "head"], ["0", "2", "3"]])
def test_a_fresh_keras_model_is_the_torch_model_with_its_kernels(name: str, names: list[str], tmp_path: Path) -> None:
    model = fresh_dense()
    (model.save_weights if name.endswith(".weights.h5") else model.save)(tmp_path / name)
    wanted = torch_names(model, names)
    torch.save(wanted, tmp_path / "m.pt")
    for ends in ((name, "m.pt"), ("m.pt", name)):
        found = diff(*(tmp_path / one for one in ends))
        assert found.is_same and kinds(found) == {LAYOUT, RENAMED}, [(one.a, one.b, one.kind) for one in found.tensors]
    wanted[f"{names[1]}.bias"] += 1
    torch.save(wanted, tmp_path / "m.pt")
    (other,) = (one for one in diff(tmp_path / name, tmp_path / "m.pt").tensors if one.kind not in (LAYOUT, RENAMED))
    assert other.kind == CHANGED and other.b == (f"{names[1]}.bias",)


class FourLinears(nn.Module):
    """What Keras's MultiHeadAttention computes, in four layers of torch: `attn.query` and so on."""

    def __init__(self, state: dict[str, torch.Tensor], heads: int) -> None:
        super().__init__()
        self.heads, self.layers = heads, nn.ModuleDict()
        for name in ("query", "key", "value", "out"):
            out, inner = state[f"attn.{name}.weight"].shape
            self.layers[name] = nn.Linear(inner, out)
        self.layers.load_state_dict({name.removeprefix("attn."): one for name, one in state.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            self.layers[name](x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for name in ("query", "key", "value")
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.layers["out"](mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("is_fresh", [True, False])
@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5"])
def test_keras_attention_beside_torch(name: str, joins: bool, is_fresh: bool, tmp_path: Path) -> None:
    """Biases [heads, size] beside [heads * size], zeros and others; one other number of one is told."""
    heads, size, width = 4, 8, 16
    values = keras.Input((5, width))
    attention = keras.layers.MultiHeadAttention(heads, size, seed=7)
    model = keras.Model(values, attention(values, values))
    if not is_fresh:
        attention.set_weights(
            [np.random.default_rng(k).normal(size=one.shape) for k, one in enumerate(attention.get_weights())]
        )
    (model.save_weights if name.endswith(".weights.h5") else model.save)(tmp_path / name)
    own = iter(attention.get_weights())
    state: dict[str, np.ndarray] = {}
    for part in ("query", "key", "value"):
        state |= {f"attn.{part}.weight": next(own).reshape(width, -1).T, f"attn.{part}.bias": next(own).reshape(-1)}
    state |= {"attn.out.weight": next(own).reshape(-1, width).T, "attn.out.bias": next(own)}
    made = {key: torch.from_numpy(np.array(one, order="C")) for key, one in state.items()}
    x = random(2, 5, width)
    close(np.asarray(model.predict(x, verbose=0)), FourLinears(made, heads)(torch.from_numpy(x)).detach(), 1e-4)
    if joins:  # as torch.nn.MultiheadAttention holds them
        for end in ("weight", "bias"):
            made[f"attn.in_proj_{end}"] = torch.cat(
                [made.pop(f"attn.{part}.{end}") for part in ("query", "key", "value")]
            )
    bias = made["attn.in_proj_bias" if joins else "attn.key.bias"]
    for is_other in (False, True):
        bias[9] += is_other
        torch.save(made, tmp_path / "m.pt")
        for ends in ((name, "m.pt"), ("m.pt", name)):
            found = diff(*(tmp_path / one for one in ends))
            assert found.is_same is not is_other, [(one.kind, one.a, one.b, one.how) for one in found.tensors]


# --- two layers exchanged ---------------------------------------------------------------------------------------------

MODELS: dict[str, PretrainedConfig] = {
    "GPTNeoX": GPTNeoXConfig(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128),
    "Phi3": Phi3Config(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96),
    "Bert": BertConfig(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96),
    "Mamba": MambaConfig(hidden_size=64, num_hidden_layers=3, state_size=8),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_tensor_exchanged_with_that_of_another_layer_is_changed(name: str, tmp_path: Path) -> None:
    """A table makes some of them of each other, as rotary pairs of heads of two rows: no program reads them so."""
    config = MODELS[name]
    config.vocab_size, config.pad_token_id = 100, 0
    model = AutoModel.from_config(config)
    state = {key: torch.randn_like(one) for key, one in model.state_dict().items() if one.is_floating_point()}
    save_file(state, tmp_path / "a.safetensors")
    twins = {key: key.replace(".1.", ".2.") for key in state if ".1." in key and state[key].numel() >= 64}
    for one, other in list(twins.items())[:: 1 if IS_WHOLE else 3]:
        for dtype in (torch.float32, torch.float16):
            b = state | {one: state[other].to(dtype), other: state[one].to(dtype)}
            save_file({key: tensor.clone() for key, tensor in b.items()}, tmp_path / "b.safetensors")
            found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
            told = {row.b[0]: (row.kind, row.how) for row in found.tensors if row.kind != SAME}
            words = "the same bytes as" if dtype == torch.float32 else "a cast of"
            assert told == {key: (CHANGED, f"{words} {twin!r} of A") for key, twin in ((one, other), (other, one))}, one


# --- a head that the config.json ties ---------------------------------------------------------------------------------


def tied_model(place: Path) -> GPT2LMHeadModel:
    """A GPT-2 as transformers saves it: one name of two."""
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=60, n_positions=16))
    model.save_pretrained(place)
    return model


def test_one_tie_that_both_declare_is_no_difference(tmp_path: Path) -> None:
    """The same model in safetensors, which drops the head, and as torch's own file, which shares its memory."""
    model = tied_model(tmp_path / "a")
    (tmp_path / "b").mkdir()
    torch.save(model.state_dict(), tmp_path / "b" / "pytorch_model.bin")
    model.config.save_pretrained(tmp_path / "b")
    for one, other in ("ab", "ba"):
        found = diff(tmp_path / one, tmp_path / other)
        assert found.is_same and not found.ties


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_tied_head_that_is_stored_twice_is_tied_otherwise(dtype: torch.dtype, tmp_path: Path) -> None:
    state = tied_model(tmp_path / "a").state_dict()
    save_file({name: one.to(dtype).clone() for name, one in state.items()}, tmp_path / "b.safetensors")
    found = diff(tmp_path / "a", tmp_path / "b.safetensors")
    (text,) = found.ties
    assert not found.is_same and text.endswith("by the config.json of A, and apart in B")
    assert kinds(found) == ({SAME} if dtype == torch.float32 else {ROUNDED, CAST})
    back = diff(tmp_path / "b.safetensors", tmp_path / "a")
    assert len(back.ties) == 1 and REMOVED not in kinds(back)


@pytest.mark.parametrize("front", ["module.", "_orig_mod.module."])
def test_a_tie_behind_a_prefix_that_a_config_declares(front: str, tmp_path: Path) -> None:
    """As `DistributedDataParallel` and `torch.compile` put it in front of all names."""
    model = tied_model(tmp_path / "a")
    torch.save({f"{front}{name}": one for name, one in model.state_dict().items()}, tmp_path / "b.pt")
    changed = {f"{front}{name}": one.clone() for name, one in model.state_dict().items()}
    changed[f"{front}lm_head.weight"][0, 0] += 1
    torch.save(changed, tmp_path / "c.pt")
    for one, other in (("a", "b.pt"), ("b.pt", "a")):
        assert diff(tmp_path / one, tmp_path / other).is_same
    for one, other in (("a", "c.pt"), ("c.pt", "a")):
        assert not diff(tmp_path / one, tmp_path / other).is_same


def test_a_copy_beside_a_config_that_ties_it_is_no_difference(tmp_path: Path) -> None:
    """A loader of either ties the two."""
    model = tied_model(tmp_path / "a")
    model.config.save_pretrained(tmp_path / "b")
    save_file({name: one.clone() for name, one in model.state_dict().items()}, tmp_path / "b" / "model.safetensors")
    for one, other in ("ab", "ba"):
        assert diff(tmp_path / one, tmp_path / other).is_same


def test_a_tied_copy_in_a_shorter_type_is_within_a_tolerance(tmp_path: Path) -> None:
    model = tied_model(tmp_path / "a")
    model.config.save_pretrained(tmp_path / "b")
    half = {name: one.bfloat16().clone() for name, one in model.state_dict().items()}
    save_file(half, tmp_path / "b" / "model.safetensors")
    for one, other in ("ab", "ba"):
        found = diff(tmp_path / one, tmp_path / other)
        assert not found.is_same and found.judge(atol=0.01), found.tensors
