"""Flux's recurrent networks in BSON files: torch computes with the converted weights what Flux's equations give.

There is no Julia here: the files are put together as BSON.jl writes them (`tests/contracts/julia.py`), pymongo reads
the weights for the equations, and these are written from src/layers/recurrent.jl (`equations.flux_cell`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bson
import numpy as np
import pytest

import paramtool
from paramtool.errors import LayoutError
from tests.contracts.julia import Struct, Type, array, named_tuple, save
from tests.oracles.equations import HIDDEN, INPUT, Array, Arrays, Network, flux_cell, flux_packed, unroll
from tests.oracles.running import below, close, random, run_onnx, run_torch

STEPS, SAMPLES = 5, 3
GATES = {"rnn": 1, "lstm": 4, "gru": 3}
NAMES = {"rnn": "RNN", "lstm": "LSTM", "gru": "GRU"}


def weights(kind: str) -> dict[str, Array]:
    """Wi, Wh and b in float32, as Flux shapes them."""
    rows = GATES[kind] * HIDDEN
    return {"Wi": random(rows, INPUT, seed=1), "Wh": random(rows, HIDDEN, seed=2), "b": random(rows, seed=3)}


def layer(kind: str, version: str, activation: str, bias: bool = True) -> Any:
    """A layer of Flux with these weights: as a struct of 0.16, 0.13 or 0.11, or as 0.16's `Flux.state`."""
    own = weights(kind)
    held: list[Any] = [own["Wi"], own["Wh"], own["b"] if bias else False]
    first = [Struct(Type(f"NNlib.#{activation}"), [])] if kind == "rnn" else []
    if version == "state":
        names = (["\u03c3"] if first else []) + ["Wi", "Wh", "b" if kind == "gru" else "bias"]
        return named_tuple(cell=named_tuple(**dict(zip(names, [()] * len(first) + held, strict=True))))
    name = f"Flux.{NAMES[kind]}"
    if version == "0.16":
        return Struct(Type(name), [Struct(Type(f"{name}Cell"), [*first, *held])])
    zeros = [np.zeros((HIDDEN, 1) if version == "0.13" else HIDDEN, "f4") for _ in range(2 if kind == "lstm" else 1)]
    if version == "0.13":
        state: Any = tuple(zeros) if kind == "lstm" else zeros[0]
        return Struct(Type("Flux.Recur"), [Struct(Type(f"{name}Cell"), [*first, *held, state]), state], mutable=True)
    inner = Struct(Type(f"{name}Cell"), [*first, *held, *zeros], mutable=True)
    return Struct(Type("Flux.Recur"), [inner, zeros[0], zeros[0]], mutable=True)


def read_by_pymongo(path: Path) -> list[Array]:
    """Wi, Wh and, if it is there, b, in float64: the first arrays of the file with more than one number of zeros."""
    found: list[Array] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict) and value.get("tag") == "array":
            found.append(array(value).astype(np.float64))
        elif isinstance(value, dict):
            for child in value.values():
                walk(child)
        elif isinstance(value, list):
            for child in value:
                walk(child)

    walk(bson.decode(path.read_bytes()))
    return [each for each in found if each.any()]


def expected(kind: str, path: Path, x: Array, states: list[Array], activation: str) -> Array:
    """Outputs by Flux's equations."""
    names = ["cell.Wi", "cell.Wh", "cell.b" if kind == "gru" else "cell.bias"]
    arrays: Arrays = dict(zip(names, read_by_pymongo(path), strict=False))
    network = Network(kind, activation=activation)
    return unroll(network, [flux_cell(network, arrays, "")], x, states)[0]


def numbers(kind: str) -> tuple[Array, list[Array]]:
    """x (T, N, input), and h0 with, for an LSTM, c0."""
    states = [random(1, SAMPLES, HIDDEN, seed=k) for k in range(5, 5 + (2 if kind == "lstm" else 1))]
    return random(STEPS, SAMPLES, INPUT, seed=4), states


@pytest.mark.parametrize("version", ["0.16", "0.13", "0.11", "state"])
@pytest.mark.parametrize(("kind", "activation"), [("lstm", "tanh"), ("gru", "tanh"), ("rnn", "tanh")])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_torch_computes_what_flux_computes(
    tmp_path: Path, version: str, kind: str, activation: str, bias: bool
) -> None:
    """Through the command's own plan, without a word on what the file holds, except where it does not say it."""
    path = save(tmp_path / "m.bson", model=Struct(Type("Flux.Chain"), [(layer(kind, version, activation, bias),)]))
    unsaid = "rnn activation=tanh" if (kind, version) == ("rnn", "state") else ""
    paramtool.convert(path, tmp_path / "t.safetensors", target="torch", spec=unsaid)
    found = paramtool.load_file(tmp_path / "t.safetensors")
    at = next(name for name in found if "weight_ih_l0" in name).removesuffix(".weight_ih_l0")
    x, states = numbers(kind)
    close(run_torch(kind, below(found, at), x, *states)[0], expected(kind, path, x, states, activation), 2e-6)


def test_the_section_of_a_model(tmp_path: Path) -> None:
    """The whole tree is then an object whose fields are tensors: they are exchanged for the new ones, and verified."""
    path = save(tmp_path / "m.bson", model=Struct(Type("Flux.Chain"), [(layer("lstm", "0.16", "tanh"),)]), epoch=3)
    paramtool.convert(path, tmp_path / "t.safetensors", target="torch", only="model")
    found = paramtool.load_file(tmp_path / "t.safetensors")
    at = next(name for name in found if "weight_ih_l0" in name).removesuffix(".weight_ih_l0")
    x, states = numbers("lstm")
    close(run_torch("lstm", below(found, at), x, *states)[0], expected("lstm", path, x, states, "tanh"), 2e-6)
    assert paramtool.verify(tmp_path / "t.safetensors", path, only="model").differences == ()


def test_the_activation_is_the_files(tmp_path: Path) -> None:
    """relu stands in the record; a function that torch has not is refused, and one that a state lacks is asked for."""
    path = save(tmp_path / "m.bson", model=layer("rnn", "0.16", "relu"))
    paramtool.convert(path, tmp_path / "t.safetensors", target="torch")
    (module,) = paramtool.read(tmp_path / "t.safetensors").modules
    assert "activation=relu" in module.spec
    path = save(tmp_path / "m.bson", model=layer("rnn", "0.16", "gelu"))
    with pytest.raises(LayoutError, match=r"its activation is NNlib.#gelu; expected tanh or relu"):
        paramtool.convert(path, tmp_path / "u.safetensors", target="torch")
    path = save(tmp_path / "m.bson", model=layer("rnn", "state", "tanh"))
    with pytest.raises(LayoutError, match="the file does not say its activation"):
        paramtool.convert(path, tmp_path / "u.safetensors", target="torch")


def test_an_initial_state_that_was_trained_is_not_dropped(tmp_path: Path) -> None:
    """torch has no place for it."""
    made = layer("lstm", "0.13", "tanh")
    made.fields[0].fields[3][0][1] = 0.5
    path = save(tmp_path / "m.bson", model=made)
    with pytest.raises(LayoutError, match=r"initial h .* is not zero"):
        paramtool.convert(path, tmp_path / "t.safetensors", target="torch")


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_onnxs_layout_runs_in_onnx_runtime(tmp_path: Path, kind: str) -> None:
    """W, R and B of the converted file, as they are."""
    path = save(tmp_path / "m.bson", model=layer(kind, "0.13", "tanh"))
    paramtool.convert(path, tmp_path / "o.safetensors", target="onnx")
    found = below(paramtool.load_file(tmp_path / "o.safetensors"), "model.cell")
    x, states = numbers(kind)
    more = {"linear_before_reset": 1} if kind == "gru" else {}
    close(run_onnx(kind, found, x, *states, **more), expected(kind, path, x, states, "tanh"), 2e-6)


def test_gruv3_is_refused_by_torch_and_held_by_keras(tmp_path: Path) -> None:
    """It resets before the product; its third block of Wh is never used."""
    own = weights("gru")
    wh = own["Wh"].copy()
    wh[2 * HIDDEN :] = 0
    cell = Struct(Type("Flux.GRUv3Cell"), [own["Wi"], wh, own["b"], random(HIDDEN, HIDDEN, seed=9)])
    path = save(tmp_path / "m.bson", model=Struct(Type("Flux.GRUv3"), [cell]))
    with pytest.raises(LayoutError, match="applies the reset gate after"):
        paramtool.convert(path, tmp_path / "t.safetensors", target="torch")
    paramtool.convert(path, tmp_path / "k.safetensors", target="keras")
    found = paramtool.load_file(tmp_path / "k.safetensors")
    kernel = next(value for name, value in found.items() if name.endswith("recurrent_kernel"))
    assert np.array_equal(kernel[:, 2 * HIDDEN :], random(HIDDEN, HIDDEN, seed=9).T)


@pytest.mark.parametrize("kind", ["lstm", "rnn"])
def test_the_packed_matrix_of_pull_request_1855(tmp_path: Path, kind: str) -> None:
    """One matrix [Wi Wh b], columns by columns."""
    own = weights(kind)
    packed = np.hstack([own["Wi"], own["Wh"], own["b"][:, None]])
    path = save(tmp_path / "m.bson", model=named_tuple(W=packed))
    words = f"{kind} hidden={HIDDEN} input={INPUT}" + (" activation=tanh" if kind == "rnn" else "")
    paramtool.convert(path, tmp_path / "t.safetensors", source="flux.packed", target="torch", spec=words, at=["model"])
    found = below(paramtool.load_file(tmp_path / "t.safetensors"), "model")
    x, states = numbers(kind)
    (matrix,) = read_by_pymongo(path)
    network = Network(kind)
    close(
        run_torch(kind, found, x, *states)[0], unroll(network, flux_packed(network, {"W": matrix}), x, states)[0], 2e-6
    )
