"""What a configuration of Keras says is used or refused: models that Keras made and ran, converted and run by others.

tests/oracles/frameworks/make_keras_models.py makes each model with Keras 3 or tf_keras, saves it in every form, and
writes down its output.  Here the file is converted to ONNX and, where torch has such layers, to torch; ONNX Runtime and
torch run what came of it, by nothing but the record in the output, and must compute the same.  What no layout can say
is refused by name.  A few models here, all of them, and those of tf_keras, in `make oracles` (PARAMTOOL_EVERY_MODEL=1).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.torch
import torch

import paramtool
from paramtool.commands import relayout as relayout_command
from paramtool.errors import LayoutError, UsageError
from paramtool.layouts.spec import Spec, parse
from tests.examples import IS_EVERY_MODEL
from tests.oracles.running import run_torch
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "frameworks" / "make_keras_models.py"
PYTHONS = {"keras": Path(sys.executable), "tf_keras": ROOT / ".venv-oracles" / "tf" / "bin" / "python"}
BOUND, FAR = 1e-5, 0.05
ONNX_NAMES = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid", "hard_sigmoid": "HardSigmoid"}


@dataclass(frozen=True)
class Expected:
    """What should come of a model."""

    said: str = "backward=no"
    """What --spec has to say of its networks where nothing does."""
    is_torch: bool = True
    """Whether torch has all of its layers."""
    is_flipped: bool = False
    """Whether Keras leaves its output reversed in time."""
    refused: str = ""
    """Why it is, where its configuration is there."""
    refused_alone: str = ""
    """Why it is, whatever is said, where only weights are there."""


OWN = r"which is not a recurrent layer or cell of Keras"
BACK = {"said": "backward=yes", "is_torch": False, "is_flipped": True}
HARD = {"keras": "hard_sigmoid(0.16666667,0.5)", "tf_keras": "hard_sigmoid(0.2,0.5)"}
MODELS = {
    **{f"merge_{mode}": Expected(f"merge={mode}") for mode in ("sum", "ave", "mul", "concat", "none")},
    "merge_gru": Expected("merge=sum", is_torch=False),
    "merge_then_lstm": Expected("backward=no merge=sum", refused_alone="one direction has nothing to merge"),
    "merge_in_a_row": Expected("merge=ave"),
    "both_of_a_cell": Expected("merge=mul"),
    "both_given": Expected("merge=sum"),
    "both_differ": Expected("merge=sum", refused="directions that differ in more than their weights"),
    "both_backwards": Expected("merge=concat", refused="a Bidirectional of a layer with go_backwards"),
    "both_of_a_stack": Expected(refused="stack", refused_alone="is a cell of a stack in a Bidirectional"),
    "stack": Expected(),
    "stack_of_grus": Expected(is_torch=False),
    "stack_backwards": Expected(**BACK),
    "stack_of_one": Expected(),
    "stack_with_own": Expected(refused=f"is a mine>OwnCell by its configuration, {OWN}"),
    "cell": Expected(),
    "cell_of_gru": Expected("backward=no activation=relu", is_torch=False),
    "cell_of_rnn": Expected("backward=no activation=relu"),
    "cell_backwards": Expected("backward=yes gate_activation=HARD", is_torch=False, is_flipped=True),
    "cell_without_bias": Expected(),
    "own_cell": Expected(refused=f"is a mine>OwnCell by its configuration, {OWN}"),
    "own": Expected(refused=f"is a mine>Own by its configuration, {OWN}"),
    "backwards": Expected(**BACK),
    "backwards_rnn": Expected("backward=yes activation=tanh", is_torch=False, is_flipped=True),
    "activations": Expected("backward=no activation=relu gate_activation=HARD", is_torch=False),
    "training": Expected(),
    "in_a_row": Expected(),
    "without_bias": Expected("backward=no reset=before", is_torch=False),
    "in_time": Expected(),
    "conv": Expected(refused="no recurrent network", refused_alone="no recurrent network"),
}
FEW = ("merge_sum", "merge_none", "both_given", "stack", "cell_of_gru", "own_cell", "backwards", "activations")
"""Of these, Keras 3 makes the files in `make test`, too."""
FORMS = ("keras", "h5", "weights.h5", "legacy.h5")


def make(library: str, folder: Path, *names: str) -> None:
    """Have a library make the files of its models."""
    command = [PYTHONS[library], SCRIPT, library, folder, *names]
    environment = {**os.environ, "KERAS_BACKEND": "torch", "TF_USE_LEGACY_KERAS": "1"}
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(IS_EVERY_MODEL, reason="every model is converted below")
def test_a_few_models(tmp_path: Path) -> None:
    """Files of Keras 3: what they say is used or refused, and what weights alone do not say has to be said."""
    make("keras", tmp_path, *FEW)
    for k, name in enumerate(FEW):
        for form in (FORMS[k % 2], FORMS[2]):  # with a configuration, and without
            check("keras", tmp_path / f"{name}.{form}", tmp_path)
    check_controls(tmp_path)


@pytest.fixture(scope="module", params=["keras", "tf_keras"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(the library, a folder of its models)."""
    library = str(request.param)
    if not PYTHONS[library].exists():
        pytest.skip("make oracles makes the environment with tf_keras")
    folder = tmp_path_factory.mktemp(library)
    make(library, folder)
    return library, folder


@pytest.mark.skipif(not IS_EVERY_MODEL, reason="make oracles converts every model")
class TestEveryModel:
    """All models, in every form that the libraries write."""

    @pytest.mark.parametrize("name", MODELS)
    @pytest.mark.parametrize("form", FORMS)
    def test_model(self, made: tuple[str, Path], name: str, form: str, tmp_path: Path) -> None:
        """The same output, or an error that names what cannot be."""
        library, folder = made
        if library == "keras" and (form == "legacy.h5" or name == "both_backwards"):
            pytest.skip("Keras 3 writes no such file")
        check(library, folder / f"{name}.{form}", tmp_path)

    def test_controls(self, made: tuple[str, Path]) -> None:
        """The bound means something."""
        check_controls(made[1])


def check(library: str, path: Path, folder: Path) -> None:
    """One file of a model: with a configuration nothing has to be said; without one, what no tensor shows."""
    name, _, form = path.name.partition(".")
    expected, output = MODELS[name], folder / "o.safetensors"
    said = expected.said.replace("HARD", HARD[library])
    if form in FORMS[:2]:
        if not expected.refused:
            compare(path, expected, "", output)
        for target in ("torch", "onnx", "keras") if expected.refused else ():
            refused(path, expected.refused, target, "", output)
    elif expected.refused_alone:
        refused(path, None, "onnx", "", output)
        refused(path, expected.refused_alone, "onnx", said, output)
    else:
        refused(path, "no tensor of layout keras|fits 2 networks", "onnx", "", output)
        check_assumed(path, expected, output)
        if not expected.refused:  # what weights alone do not show is for the user to know
            compare(path, expected, said, output)


def refused(path: Path, says: str | None, target: str, said: str, output: Path) -> None:
    """It is, with exit code 5 and these words, and nothing is written."""
    output.unlink(missing_ok=True)
    with pytest.raises(LayoutError, match=says):
        relayout_command.convert(path, output, target=target, spec=said)
    assert not output.exists()


def check_assumed(path: Path, expected: Expected, output: Path) -> None:
    """Every activation that nobody said is in a warning, by name."""
    words = " ".join(word for word in expected.said.split() if "activation" not in word)
    report = relayout_command.convert(path, output, target="onnx", spec=words, force=True)
    for one in report.converted:
        lines = [line for line in report.warnings if line.startswith(repr(one.source.at))]
        facts = ("activation=tanh", "gate_activation=sigmoid") if one.spec.kind != "rnn" else ()
        assert all(any(f"assumed {fact}," in line for line in lines) for fact in facts), lines
        assert one.spec.kind != "rnn" or any("tanh or relu" in line for line in lines)


def check_controls(folder: Path) -> None:
    """What has to be said matters: the other direction, another merge mode, the usual activations compute others."""
    for name, said in (("backwards", "backward=no"), ("merge_sum", "merge=mul"), ("activations", "backward=no")):
        path = folder / f"{name}.weights.h5"
        x, wanted = arrays(path)
        assert np.abs(run(path, "onnx", said, folder / "control.safetensors", x) - wanted).max() > FAR, name


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("k_back.weights.h5", "backward=yes", Expected(is_torch=False, is_flipped=True)),
        ("k_bisum.keras", "", Expected()),
        ("k_stacked.h5", "", Expected()),
        ("k_cell.keras", "", Expected()),
    ],
)
def test_findings(findings: Path, tmp_path: Path, name: str, said: str, expected: Expected) -> None:
    """Files that were converted wrongly once, with the outputs that Keras gave."""
    shutil.copy(findings / name, tmp_path)
    shutil.copy(findings / f"{name.partition('.')[0]}.io.npz", tmp_path / f"{name.partition('.')[0]}.npz")
    if said:
        refused(tmp_path / name, "its direction in time", "torch", "", tmp_path / "o.safetensors")
    compare(tmp_path / name, expected, said, tmp_path / "o.safetensors")


def test_the_way_back_has_its_merge_mode(findings: Path, tmp_path: Path) -> None:
    """From Keras to torch and back: the record has kept what torch has no place for."""
    there, back = tmp_path / "t.safetensors", tmp_path / "k.safetensors"
    relayout_command.convert(findings / "k_bisum.keras", there, target="torch")
    report = relayout_command.convert(there, back, target="keras")
    (module,) = paramtool.read(back).modules
    assert "merge=sum" in module.spec.split()
    assert not [line for line in report.warnings if "merge" in line]
    with pytest.raises(UsageError, match="merge=sum, spec says merge=concat"):
        relayout_command.convert(there, tmp_path / "x.safetensors", target="keras", spec="merge=concat")


# --- running ----------------------------------------------------------------------------------------------------------


def compare(path: Path, expected: Expected, said: str, output: Path) -> None:
    """ONNX Runtime, and torch where it can, compute what Keras did; a target that cannot hold it refuses it."""
    x, wanted = arrays(path)
    wanted = wanted[:, ::-1] if expected.is_flipped else wanted
    for target in ("onnx", "torch"):
        if target == "torch" and not expected.is_torch:
            refused(path, "layout torch cannot hold it", target, said, output)
            continue
        found = run(path, target, said, output, x)
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() < BOUND, target


def arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(x, y), each (batch, steps, features): what stands before is one batch."""
    with np.load(path.parent / f"{path.name.split('.')[0]}.npz") as held:
        return tuple(held[name].reshape(-1, *held[name].shape[-2:]) for name in "xy")  # type: ignore[return-value]


def run(path: Path, target: str, said: str, output: Path, x: np.ndarray) -> np.ndarray:
    """The converted networks one after another, by what the output's record says of them; (batch, steps, features)."""
    report = relayout_command.convert(path, output, target=target, spec=said, force=True)
    weights, value = paramtool.load_file(output), np.swapaxes(x, 0, 1)
    modules = {module.at: module for module in paramtool.read(output).modules}
    for one in report.converted:
        facts: dict[str, Any] = parse(modules[one.at].spec)
        spec, own = Spec(**facts), {name: weights[full] for name, full in one.tensors.items()}
        if spec.merge not in ("concat", "none") and target == "torch":
            assert any(f"merge={spec.merge}" in line for line in report.warnings)
        value = merged(spec, (by_onnxruntime if target == "onnx" else by_torch)(spec, own, value))
    return np.swapaxes(value, 0, 1)


def merged(spec: Spec, y: np.ndarray) -> np.ndarray:
    """What the record says of the outputs of two directions; (steps, batch, directions, hidden) is what is given."""
    first, last = y[:, :, 0], y[:, :, -1]
    together = {"sum": first + last, "ave": (first + last) / 2, "mul": first * last}
    return together.get(spec.merge, y.reshape(*y.shape[:2], -1))


def by_torch(spec: Spec, weights: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """torch's own module."""
    states = [np.zeros((spec.directions, x.shape[1], spec.hidden), "f4")] * (2 if spec.kind == "lstm" else 1)
    if spec.activation == "relu":
        module = torch.nn.RNN(spec.input, spec.hidden, nonlinearity="relu")
        module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
        with torch.no_grad():
            y = module(torch.from_numpy(np.ascontiguousarray(x)))[0].numpy()
    else:
        y = run_torch(spec.kind, weights, np.ascontiguousarray(x), *states)[0]
    return y.reshape(*x.shape[:2], spec.directions, spec.hidden)


def by_onnxruntime(spec: Spec, weights: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """A node of ONNX Runtime with the attributes that the spec says."""
    direction = "bidirectional" if spec.bidirectional else "reverse" if spec.backward else "forward"
    attributes: dict[str, Any] = {"hidden_size": spec.hidden, "direction": direction}
    each = [spec.activation or "tanh"] * {"lstm": 2, "gru": 1, "rnn": 1}[spec.kind]
    words = ([spec.gate_activation] * (spec.kind != "rnn") + each) * spec.directions
    attributes["activations"] = [ONNX_NAMES[word.partition("(")[0]] for word in words]
    numbers = [tuple(map(float, word[:-1].partition("(")[2].split(","))) for word in words if "(" in word]
    if numbers:
        attributes |= {f"activation_{key}": [pair[k] for pair in numbers] for k, key in enumerate(("alpha", "beta"))}
    if spec.kind == "gru":
        attributes["linear_before_reset"] = int(spec.reset == "after")
    stored = {name: np.array(weights[name]) for name in "WRB" if name in weights}
    node = onnx.helper.make_node(spec.kind.upper(), ["X", *stored], ["Y"], **attributes)
    kind = onnx.TensorProto.FLOAT
    inputs, outputs = (onnx.helper.make_tensor_value_info(name, kind, None) for name in "XY")
    held = [onnx.numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = onnx.helper.make_graph([node], "one", [inputs], [outputs], held)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.swapaxes(np.asarray(session.run(["Y"], {"X": np.ascontiguousarray(x)})[0]), 1, 2)


def test_a_file_of_keras_1(findings: Path, tmp_path: Path) -> None:
    """Twelve arrays are one LSTM, nine one GRU; with the outputs that tf_keras gave, which joins the arrays itself."""
    folder = findings / "field" / "keras1"
    x, wanted = (np.load(folder / "k1_exp.npz")[name] for name in "xy")
    said = "backward=no gate_activation=sigmoid"
    relayout_command.convert(folder / "k1_lstm.h5", tmp_path / "t.safetensors", target="torch", spec=said)
    state = safetensors.torch.load_file(tmp_path / "t.safetensors")
    lstm = torch.nn.LSTM(5, 6, batch_first=True)
    lstm.load_state_dict({name.rpartition(".")[2]: one for name, one in state.items() if name.startswith("lstm_1/")})
    with torch.no_grad():
        found = lstm(torch.from_numpy(x))[0] @ state["dense_1/dense_1_W:0"] + state["dense_1/dense_1_b:0"]
    assert np.abs(found.numpy() - wanted).max() < 1e-6
    for name, kind in (("k1_lstm.h5", "lstm input=5 hidden=6"), ("k1_gru.h5", "gru input=5 hidden=6 reset=before")):
        assert [one.spec for one in paramtool.guess(folder / name).candidates] == [kind]
