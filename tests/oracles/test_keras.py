"""Keras and h5py read the same files: every tensor, in Keras' own order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import verify as verify_command
from tests.laws.sharing import described, raw

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
FIXTURES = Path(__file__).parents[2] / "fixtures/keras"
FILES = {"layers3": "layers3.keras", "whole_model": "whole_model.h5"}
TEXTGEN = "minimaxir__textgenrnn__hacker_news.hdf5"
ANOMALY = "chen0040__keras-anomaly-detection__bidirectional-lstm-auto-encoder-weights.h5"
LETTERS = "sam-coble__seq2seq__letter_model.jld2"


def weights_of(path: Path) -> dict[str, np.ndarray]:
    """The weights of the model alone."""
    return {name: array for name, array in paramtool.load_file(path).items() if not name.startswith("optimizer")}


@pytest.mark.parametrize("name", sorted(FILES))
class TestFixtures:
    """Files of Keras itself."""

    def test_weights_in_keras_order(self, name: str) -> None:
        """The names, in order, hold what Keras loads into the weights of the model, in its order."""
        path = FIXTURES / name / FILES[name]
        model = keras.models.load_model(path, compile=False)
        expected = [np.asarray(weight.numpy()) for layer in model.layers for weight in layer.weights]
        found = list(weights_of(path).values())
        assert len(found) == len(expected) > 10
        for array, weight in zip(found, expected, strict=True):
            assert (described(weight), raw(weight)) == (described(array), raw(array))

    def test_modules(self, name: str) -> None:
        """What the makers know of their recurrent layers is an input."""
        expected = json.loads((FIXTURES / name / "expected.json").read_text())["modules"]
        modules = paramtool.read(FIXTURES / name / FILES[name]).modules
        assert [[m.at, m.layout, m.spec, dict(m.tensors)] for m in modules] == expected

    def test_weights_alone(self, name: str, tmp_path: Path) -> None:
        """Saved without a configuration, the same layers are found, and said only as far as their shapes prove."""
        model = keras.models.load_model(FIXTURES / name / FILES[name], compile=False)
        model.save_weights(tmp_path / "m.weights.h5")
        checkpoint = paramtool.read(tmp_path / "m.weights.h5")
        whole = paramtool.read(FIXTURES / name / FILES[name])
        assert len(checkpoint.modules) == len(whole.modules)
        words = {frozenset(m.spec.split()) for m in checkpoint.modules}
        assert all(any(less <= frozenset(m.spec.split()) for less in words) for m in whole.modules)
        assert "no configuration" in checkpoint.notes[0]

    def test_dedup(self, name: str, tmp_path: Path) -> None:
        """A dedup holds the same, verify agrees, and dedup of it gives the same bytes."""
        once, twice = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
        dedup_command.dedup(FIXTURES / name / FILES[name], once)
        dedup_command.dedup(once, twice)
        assert verify_command.verify(once, FIXTURES / name / FILES[name]).differences == ()
        assert once.read_bytes() == twice.read_bytes()


def test_bfloat16_of_keras(tmp_path: Path) -> None:
    """HDF5 has no bfloat16; what Keras writes instead is read as that."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype="bfloat16", name="d")])
    model.save(tmp_path / "m.keras")
    found = paramtool.load_file(tmp_path / "m.keras")
    assert {str(array.dtype) for array in found.values()} == {"bfloat16"}
    expected = keras.ops.convert_to_numpy(keras.ops.cast(model.layers[0].kernel, "float32"))
    assert np.array_equal(found["layers/dense/vars/0"].astype("f4"), expected)


@pytest.mark.parametrize(("name", "count"), [(TEXTGEN, 10), (ANOMALY, 8)])
def test_samples(samples: Path, name: str, count: int, tmp_path: Path) -> None:
    """Files of other people: every dataset has the bytes that h5py reads, in the order of their attributes."""
    found = paramtool.load_file(samples / name)
    with h5py.File(samples / name) as file:
        listed = [
            f"{layer}/{weight}" for layer in words(file, "layer_names") for weight in words(file[layer], "weight_names")
        ]
        expected = {path: file[path][()] for path in listed}
    assert list(found) == listed
    assert len(found) == count
    for key, array in expected.items():
        assert (described(array), raw(array)) == (described(found[key]), raw(found[key])), key
    dedup_command.dedup(samples / name, tmp_path / "o.safetensors")
    assert verify_command.verify(tmp_path / "o.safetensors", samples / name).differences == ()


def words(group: Any, name: str) -> list[str]:
    """A list in an attribute."""
    return [word.decode() for word in group.attrs[name]]


def test_modules_of_samples(samples: Path) -> None:
    """Two CuDNNLSTM, by their biases of 8H; a Bidirectional of Keras 2.1, of which nobody says the activations."""
    modules = paramtool.read(samples / TEXTGEN).modules
    assert [(m.at, m.layout, m.spec) for m in modules] == [
        ("rnn_1/rnn_1", "keras.cudnn", "lstm input=100 hidden=128"),
        ("rnn_2/rnn_2", "keras.cudnn", "lstm input=128 hidden=128"),
    ]
    checkpoint = paramtool.read(samples / ANOMALY)
    (module,) = checkpoint.modules
    assert (module.layout, module.spec) == ("keras", "lstm input=1 hidden=64 bidirectional")
    assert list(module.tensors.values()) == list(checkpoint.entries)[:6]
    assert "hard_sigmoid" in checkpoint.notes[0]


def test_a_sample_of_julia(samples: Path, tmp_path: Path) -> None:
    """Every array that the struct refers to, in Julia's shape."""
    found = paramtool.load_file(samples / LETTERS)
    with h5py.File(samples / LETTERS) as file:
        held = file["single_stored_object"][()]
        expected = {name: file[held[name]][()].T for name in held.dtype.names if isinstance(held[name], h5py.Reference)}
    assert len(expected) == 9
    assert {f"single_stored_object.{name}": (described(a), raw(a)) for name, a in expected.items()} == {
        name: (described(array), raw(array)) for name, array in found.items()
    }
    dedup_command.dedup(samples / LETTERS, tmp_path / "o.safetensors")
    assert verify_command.verify(tmp_path / "o.safetensors", samples / LETTERS).differences == ()
