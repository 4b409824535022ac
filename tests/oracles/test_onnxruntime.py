"""ONNX Runtime and Keras 3, run on networks that paramtool converted from torch modules, against torch.

Each library runs in a process of its own by its script in `frameworks/`, which knows nothing of paramtool; what cases
look like on disk is told in `frameworks/_case_files.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.examples import IS_WHOLE
from tests.laws.conversions import Held, held, move
from tests.oracles.equations import HIDDEN, INPUT, Array, Arrays, Network
from tests.oracles.test_equations import FAR, by_reference, expected, inputs, onnx_lstm, reset_before, weights
from tests.patience import PATIENCE

FRAMEWORKS = Path(__file__).parent / "frameworks"
TIGHT = 1e-5
"""The largest difference between float32 arithmetic there and float64 arithmetic here."""
SIZES = ((1, 1), (1, 2), (2, 1), (2, 2))
PLAIN = [
    Network(kind, *size, bias, activation=activation)
    for kind, activation in (("lstm", "tanh"), ("gru", "tanh"), ("rnn", "tanh"), ("rnn", "relu"))
    for size in SIZES
    for bias in (True, False)
]
BEFORE = [Network("gru", *size, reset="before") for size in SIZES]
PEEPHOLES = [Network("lstm", *size, peephole=True) for size in SIZES]


def source(network: Network, named: Arrays) -> Held:
    """The network in a layout that can hold it: torch, or one that is put together by hand."""
    if network.reset == "before":
        return reset_before(network, named)
    if network.peephole:
        return onnx_lstm(network, named)
    return held({f"net.{name}": array for name, array in named.items()}, "torch", network.spec)


def write_case(folder: Path, network: Network, layout: str, tensors: Arrays) -> None:
    """One case for a script: what the network is, its weights, and what to run it on."""
    folder.mkdir()
    said = {"layout": layout, "kind": network.kind, "input": INPUT, "hidden": HIDDEN, "layers": network.layers}
    said |= {"directions": network.directions, "projection": 0, "bias": network.bias, "peephole": network.peephole}
    said |= {"reset": network.reset if network.kind == "gru" else None, "options": {}}
    said |= {"activation": network.activation if network.kind == "rnn" else None}
    (folder / "case.json").write_text(json.dumps(said))
    np.savez(folder / "tensors.npz", **tensors)
    x, states = inputs(network)
    named = dict(zip(("h0", "c0"), states, strict=False))
    np.savez(folder / "inputs.npz", x=x.astype("f4"), **{name: array.astype("f4") for name, array in named.items()})


def run(script: str, root: Path, **environment: str) -> None:
    """Run a script on a folder of cases."""
    command = [sys.executable, str(FRAMEWORKS / script), str(root)]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr[-2000:]


def difference(folder: Path, wanted: list[Array]) -> float:
    """The largest difference between what a script computed and what is wanted, of numbers above 1 as a ratio."""
    said = json.loads((folder / "outputs.json").read_text())
    assert "ran" in said, said
    with np.load(folder / "outputs.npz") as found:
        pairs = [(found[name], array) for name, array in zip(("y", "hn", "cn"), wanted, strict=False)]
    return max(float((np.abs(a - b) / np.maximum(1, np.abs(b))).max()) for a, b in pairs)


def wanted_of(network: Network, named: Arrays) -> list[Array]:
    """torch's outputs, or those of the equations for what torch has not."""
    if network.reset == "before" or network.peephole:
        return by_reference(network, named)
    return expected(network, named)


def check(root: Path, layouts: tuple[str, ...], networks: list[Network], script: str, **environment: str) -> None:
    """Convert, run and compare networks in each of some layouts; every one of them has to be run."""
    todo = {}
    for layout in layouts:
        for k, network in enumerate(networks):
            named = weights(network, seed=k)
            folder = root / f"{layout}-{k}"
            write_case(folder, network, layout, move(source(network, named), layout).arrays())
            todo[folder] = network, wanted_of(network, named)
    run(script, root, **environment)
    errors = {f"{folder.name} {network}": difference(folder, wanted) for folder, (network, wanted) in todo.items()}
    assert {name: found for name, found in errors.items() if found > TIGHT} == {}


def test_onnxruntime_computes_what_torch_computes(tmp_path: Path) -> None:
    """LSTM with peepholes and without, GRU on both sides of the reset, RNN; one and two layers and directions."""
    networks = PLAIN + BEFORE + PEEPHOLES
    check(tmp_path, ("onnx",), networks, "run_onnxruntime.py")


@pytest.mark.slow
def test_keras_computes_what_torch_computes(tmp_path: Path) -> None:
    """Layers filled by name, and files of Keras 3 filled by path."""
    networks = [*PLAIN[::3], *BEFORE] if IS_WHOLE else [*PLAIN[::5], *BEFORE[::3]]
    check(tmp_path, ("keras", "keras.vars"), networks, "run_keras.py", KERAS_BACKEND="torch")


def test_onnxruntime_sees_what_is_wrong(tmp_path: Path) -> None:
    """Gates of an LSTM in torch's order, a GRU reset on the other side, and a peephole left out are far off."""
    lstm, gru, blind = Network("lstm"), Network("gru"), Network("lstm", peephole=True)
    networks = (lstm, gru, blind)
    tensors = {network: move(source(network, weights(network)), "onnx").arrays() for network in networks}
    i, o, f, c = np.split(tensors[lstm]["W"], 4, axis=1)
    write_case(tmp_path / "a", lstm, "onnx", {**tensors[lstm], "W": np.concatenate([i, f, c, o], axis=1)})
    write_case(tmp_path / "b", replace(gru, reset="before"), "onnx", tensors[gru])
    write_case(tmp_path / "c", blind, "onnx", {**tensors[blind], "P": 0 * tensors[blind]["P"]})
    run("run_onnxruntime.py", tmp_path)
    for name, network in zip("abc", networks, strict=True):
        assert difference(tmp_path / name, wanted_of(network, weights(network))) > FAR


def test_scripts_know_nothing_of_paramtool() -> None:
    """What proves a conversion shares no code with it: not the scripts, and not what they import from beside them."""
    texts = {path.name: path.read_text() for path in FRAMEWORKS.glob("run_*.py")}
    beside = {name for text in texts.values() for name in re.findall(r"^from (_[a-z]\w+) import", text, re.MULTILINE)}
    texts |= {name: (FRAMEWORKS / f"{name}.py").read_text() for name in beside}
    imports = re.compile(r"^\s*(import|from) (paramtool|tests)", re.MULTILINE)
    assert [name for name, text in texts.items() if imports.search(text)] == []
