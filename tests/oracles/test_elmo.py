"""ELMo: TensorFlow's weights against those that AllenNLP made of them, and against the equations of its cell."""

from __future__ import annotations

import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import paramtool
from tests.oracles.equations import Array, Arrays, sigmoid
from tests.oracles.running import below, close, random

WEIGHTS, TWIN = "allenai__allennlp__elmo/lm_weights.hdf5", "allenai__allennlp__elmo/simple_tagger_with_elmo_best.th"
AT = "text_field_embedder.token_embedder_elmo._elmo._elmo_lstm._elmo_lstm"
SIDES = ("forward", "backward")
STEPS, SAMPLES, LAYERS = 5, 3, 2
FAR = 0.01
"""The least that a wrong order of gates changes; AllenNLP's weights are small."""


def held(path: Path, at: str, layer: int) -> Arrays:
    """A cell's weights, as h5py reads them, in float64."""
    with h5py.File(path) as file:
        group = file[f"{at}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"]
        return {name: np.asarray(group[name][()], np.float64) for name in ("W_0", "B", "W_P_0")}


def cell(weights: Arrays, x: Array, order: tuple[int, ...] = (0, 1, 2, 3)) -> Array:
    """TensorFlow 1's LSTMCell with a projection, without clipping, over x (T, N, input); (T, N, projection).

    tensorflow/python/ops/rnn_cell_impl.py, LSTMCell.call: i, j, f, o; sigmoid(f + 1); m = (sigmoid(o) * tanh(c)) W_P.
    """
    h, c = np.zeros((x.shape[1], weights["W_P_0"].shape[1])), np.zeros((x.shape[1], len(weights["W_P_0"])))
    found = []
    for step in x:
        parts = np.split(np.hstack([step, h]) @ weights["W_0"] + weights["B"], 4, axis=1)
        i, j, f, o = (parts[k] for k in order)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(j)
        h = (sigmoid(o) * np.tanh(c)) @ weights["W_P_0"]
        found.append(h)
    return np.stack(found)


def module(weights: Arrays, layers: int) -> torch.nn.LSTM:
    """torch's own network that takes just these weights."""
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
    projection, hidden = tensors["weight_hr_l0"].shape
    made = torch.nn.LSTM(tensors["weight_ih_l0"].shape[1], hidden, layers, proj_size=projection)
    made.load_state_dict(tensors)
    return made.double()


def ran(made: torch.nn.LSTM, x: Array) -> Array:
    """Its outputs."""
    with torch.no_grad():
        return np.asarray(made(torch.from_numpy(x))[0].numpy())


@pytest.fixture(scope="module")
def inputs() -> Array:
    """(T, N, input)."""
    return 3 * random(STEPS, SAMPLES, 16).astype(np.float64)


@pytest.fixture(scope="module")
def converted(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file for torch."""
    output = tmp_path_factory.mktemp("elmo") / "elmo.safetensors"
    paramtool.convert(samples / WEIGHTS, output, target="torch")
    return dict(paramtool.load_file(output))


def test_equal_to_what_allennlp_made_of_it(samples: Path, tmp_path: Path) -> None:
    """Four cells, bit for bit: every tensor of each."""
    paramtool.convert(samples / WEIGHTS, tmp_path / "twin.safetensors", target="allennlp.elmo")
    found = paramtool.load_file(tmp_path / "twin.safetensors")
    expected = torch.load(samples / TWIN, weights_only=True, map_location="cpu")
    compared = 0
    for number, side in enumerate(SIDES):
        for layer in range(LAYERS):
            own = below(expected, f"{AT}.{side}_layer_{layer}")
            assert len(own) == 4
            for name, tensor in own.items():
                assert np.array_equal(found[f"RNN_{number}_layer_{layer}.{name}"], tensor.numpy())
                compared += 1
    assert compared == 16


def test_both_files_give_the_same_torch_networks(samples: Path, converted: dict[str, Any], tmp_path: Path) -> None:
    """From TensorFlow's names and from AllenNLP's, bit for bit; and AllenNLP's own come back."""
    paramtool.convert(samples / TWIN, tmp_path / "t.safetensors", source="allennlp.elmo", target="torch")
    twin = paramtool.load_file(tmp_path / "t.safetensors")
    for number, side in enumerate(SIDES):
        mine, theirs = below(converted, f"RNN_{number}"), below(twin, f"{AT}.{side}")
        assert set(mine) == set(theirs) and len(mine) == 5 * LAYERS
        assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    stacks = [f"{AT}.{side}" for side in SIDES]
    paramtool.convert(tmp_path / "t.safetensors", tmp_path / "b.safetensors", target="allennlp.elmo", at=stacks)
    back, expected = paramtool.load_file(tmp_path / "b.safetensors"), torch.load(samples / TWIN, weights_only=True)
    assert set(back) == set(expected)
    assert all(np.array_equal(np.asarray(back[name]), expected[name].numpy()) for name in expected)


@pytest.mark.parametrize("number", [0, 1], ids=SIDES)
def test_torch_computes_what_tensorflows_cells_compute(
    samples: Path, converted: dict[str, Any], inputs: Array, number: int
) -> None:
    """The two layers of a stack, one on the other; the backward stack is given the sequence from its end."""
    x = inputs[:: -1 if number else 1].copy()
    expected = x
    for layer in range(LAYERS):
        expected = cell(held(samples / WEIGHTS, f"RNN_{number}", layer), expected)
    close(ran(module(below(converted, f"RNN_{number}"), LAYERS), x), expected, 1e-6)


def test_every_other_order_of_gates_is_wrong(samples: Path, converted: dict[str, Any], inputs: Array) -> None:
    """i, j, f, o alone gives what the converted network computes."""
    weights = held(samples / WEIGHTS, "RNN_0", 0)
    first = {name: value for name, value in below(converted, "RNN_0").items() if name.endswith("_l0")}
    found = ran(module(first, 1), inputs)
    errors = {order: np.abs(cell(weights, inputs, order) - found).max() for order in permutations(range(4))}
    assert errors.pop((0, 1, 2, 3)) < 1e-6
    assert min(errors.values()) > FAR


def test_split_layers_and_their_sums_are_elmo(samples: Path, inputs: Array, tmp_path: Path) -> None:
    """What the warning says a program has to do: a module for each layer, and the input of the second added."""
    paramtool.convert(samples / WEIGHTS, tmp_path / "t.safetensors", target="torch", stack=["RNN_0=first,second"])
    found = paramtool.load_file(tmp_path / "t.safetensors")
    first = ran(module(below(found, "first"), 1), inputs)
    second = ran(module(below(found, "second"), 1), first) + first
    expected = cell(held(samples / WEIGHTS, "RNN_0", 0), inputs)
    close(first, expected, 1e-6)
    close(second, cell(held(samples / WEIGHTS, "RNN_0", 1), expected) + expected, 1e-6)


def test_the_command_warns_of_what_torch_lacks(samples: Path, tmp_path: Path) -> None:
    """Exit code 0; clipping and skip connections of each stack are warnings, and no fact is assumed."""
    arguments = ["convert", str(samples / WEIGHTS), "-o", str(tmp_path / "t.safetensors"), "--to", "torch"]
    result = subprocess.run([sys.executable, "-m", "paramtool", *arguments], capture_output=True, text=True)
    assert result.returncode == 0
    for at in ("RNN_0", "RNN_1"):
        assert f"'{at}': ELMo's cells clip the memory cell" in result.stderr
        assert f"'{at}': ELMo adds the input of each layer but the first" in result.stderr
    assert "assumed" not in result.stderr


def test_between_elmos_own_files_nothing_is_missing(samples: Path, tmp_path: Path) -> None:
    """AllenNLP's programs clip and add as well."""
    report = paramtool.convert(samples / WEIGHTS, tmp_path / "t.safetensors", target="allennlp.elmo")
    assert not [text for text in report.warnings if "ELMo" in text]
