"""ONNX models of recurrent networks: from other libraries' layouts, with data beside them, refused, and read back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import paramtool
from paramtool import layouts
from paramtool.errors import LayoutError, OutputError, PlanError, UsageError
from paramtool.formats.onnx import write as onnx_write
from paramtool.layouts.layout import stored
from paramtool.layouts.spec import Spec, parse
from tests.laws.test_onnx_models import close, outputs, run

FIXTURES = Path(__file__).parents[2] / "fixtures"


def saved(path: Path, **modules: nn.Module) -> Path:
    """A torch file of these modules."""
    torch.save({f"{at}.{n}": v for at, one in modules.items() for n, v in one.state_dict().items()}, path)
    return path


def torch_network(state: dict[str, torch.Tensor], at: str, spec: str) -> nn.RNNBase:
    """The network of a spec as torch has it, with these weights."""
    words = dict(word.partition("=")[::2] for word in spec.split()[1:])
    kind = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[spec.split()[0]]
    own = {name.removeprefix(at).lstrip("."): value for name, value in state.items() if name.startswith(at)}
    facts: dict[str, Any] = {"nonlinearity": words["activation"]} if "activation" in words else {}
    made = kind(
        int(words["input"]), int(words["hidden"]), int(words.get("layers", 1)), bias="bias_ih_l0" in own,
        bidirectional="bidirectional" in words, **facts,
    )  # fmt: skip
    made.load_state_dict(own)
    return made.eval()


SOURCES = {
    "mxnet, gates": (FIXTURES / "mxnet/gates-0001/gates-0001.params", {}),
    "mxnet, gluon": (FIXTURES / "mxnet/gluon_lstm/gluon_lstm.params", {"source": "mxnet.unfused"}),
    "mxnet, fused": (FIXTURES / "mxnet/fused_cell-0001/fused_cell-0001.params", {"skip_unsupported": True}),
    "keras 3": (
        FIXTURES / "keras/layers3/layers3.keras",
        {"skip_unsupported": True, "at": ("layers/bidirectional", "*/simple_rnn")},
    ),
}


@pytest.mark.parametrize("key", SOURCES)
def test_from_other_libraries(tmp_path: Path, key: str) -> None:
    """What onnxruntime computes is what torch computes of the same file converted to torch."""
    source, more = SOURCES[key]
    plain = tmp_path / "plain.safetensors"
    made = paramtool.convert(source, plain, target="torch", at=more.get("at", ()), source=more.get("source"))
    paramtool.convert(source, tmp_path / "m.onnx", **more)
    assert not paramtool.verify(plain, source).differences
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    from safetensors.torch import load_file

    state = load_file(plain)
    x: dict[str, torch.Tensor] = {}
    expected = {}
    for one in made.converted:
        at = f"{one.at}." if one.at else ""
        network = torch_network(state, one.at, str(one.spec))
        x[f"{at}X"] = torch.randn(3, 2, one.spec.input)
        expected[at] = outputs(network, x[f"{at}X"])
    found = run(tmp_path / "m.onnx", x)
    assert all(close(found, value, at) for at, value in expected.items())


class TestDataBeside:
    """A model that is too large for one message."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The limit is 6 kB."""
        monkeypatch.setattr(onnx_write, "MAX_MODEL_NBYTES", 6_000)

    def test_by_onnxruntime(self, tmp_path: Path) -> None:
        """The file beside the model is found; tied networks have one range each, equal ones do not."""
        torch.manual_seed(0)
        one, twin = nn.LSTM(3, 4, 2).eval(), nn.LSTM(3, 4, 2).eval()
        twin.load_state_dict(one.state_dict())
        source = saved(tmp_path / "m.pt", a=one, b=one, c=twin)
        report = paramtool.convert(source, tmp_path / "m.onnx")
        assert [Path(path).name for path in report.files] == ["m.onnx.data", "m.onnx"]
        assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data", "m.pt"]
        onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
        x = {f"{at}.X": torch.randn(2, 3, 3) for at in "abc"}
        found = run(tmp_path / "m.onnx", x)
        assert all(close(found, outputs(one, x[f"{at}.X"]), f"{at}.") for at in "abc")
        places = {
            tensor.name: next(entry.value for entry in tensor.external_data if entry.key == "offset")
            for tensor in onnx.load(str(tmp_path / "m.onnx"), load_external_data=False).graph.initializer
            if tensor.external_data
        }
        assert places["a.layer0.W"] == places["b.layer0.W"] != places["c.layer0.W"]
        graph = paramtool.alias_graph(paramtool.read(tmp_path / "m.onnx"))
        assert graph.names["b.layer0.W"].alias_set == "a.layer0.W"
        assert graph.names["c.layer0.W"].alias_set == "c.layer0.W"

    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        """--force replaces a model and never the data that it refers to; a failure leaves neither file."""
        source = saved(tmp_path / "m.pt", a=nn.LSTM(3, 4, 2))
        (tmp_path / "m.onnx.data").write_bytes(b"old")
        for force in (False, True):
            with pytest.raises(OutputError, match=r"m\.onnx\.data: exists"):
                paramtool.convert(source, tmp_path / "m.onnx", force=force)
        assert (tmp_path / "m.onnx.data").read_bytes() == b"old"
        assert not (tmp_path / "m.onnx").exists()
        (tmp_path / "m.onnx.data").unlink()
        (tmp_path / "m.onnx").write_bytes(b"old")
        with pytest.raises(OutputError, match="exists"):
            paramtool.convert(source, tmp_path / "m.onnx")
        assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.pt"]
        paramtool.convert(source, tmp_path / "m.onnx", force=True)
        onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)

    def test_a_failed_move_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the model cannot be put in its place, its data is taken away again."""
        from paramtool.engine.write import staging

        rename = staging.rename

        def refusing(old: str, new: str, flags: int) -> bool:
            if new.endswith("m.onnx"):
                raise FileExistsError
            return rename(old, new, flags)

        monkeypatch.setattr(staging, "rename", refusing)
        with pytest.raises(OutputError, match="by another process"):
            paramtool.convert(saved(tmp_path / "m.pt", a=nn.LSTM(3, 4, 2)), tmp_path / "m.onnx")
        assert os.listdir(tmp_path) == ["m.pt"]

    def test_a_killed_run(self, tmp_path: Path) -> None:
        """Killed between the two moves, a run leaves the old model as it was, and data that nothing refers to."""
        source = saved(tmp_path / "m.pt", a=nn.LSTM(3, 4, 2))
        (tmp_path / "m.onnx").write_bytes(b"old")
        script = (
            "import os, paramtool\n"
            "from paramtool.formats.onnx import write\n"
            "write.MAX_MODEL_NBYTES = 6_000\n"
            "os.replace = lambda *names: os._exit(9)\n"
            "paramtool.convert('m.pt', 'm.onnx', force=True)\n"
        )
        assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False).returncode == 9
        assert (tmp_path / "m.onnx").read_bytes() == b"old"
        assert len(left := [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]) == 1
        with pytest.raises(OutputError, match="exists") as caught:
            paramtool.convert(source, tmp_path / "m.onnx", force=True)
        assert "remove both" in caught.value.hint
        (tmp_path / "m.onnx.data").unlink()
        report = paramtool.convert(source, tmp_path / "m.onnx", force=True)
        assert any(left[0] in line for line in report.warnings)
        assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data", "m.pt"]
        onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)

    def test_permissions(self, tmp_path: Path) -> None:
        """Both files can be read by those who can read the source."""
        source = saved(tmp_path / "m.pt", a=nn.LSTM(3, 4, 2))
        source.chmod(0o640)
        report = paramtool.convert(source, tmp_path / "m.onnx")
        umask = os.umask(0o022)
        os.umask(umask)
        assert {oct(os.stat(path).st_mode & 0o777) for path in report.files} == {oct(0o640 & ~umask)}


class TestRefused:
    """What no such model holds."""

    def test_other_tensors(self, tmp_path: Path) -> None:
        """They are named, and left out on request; verify's line knows."""
        source = saved(tmp_path / "m.pt", a=nn.GRU(2, 3), out=nn.Linear(3, 2))
        with pytest.raises(PlanError, match=r"out\.weight") as caught:
            paramtool.convert(source, tmp_path / "m.onnx")
        assert "--into" in caught.value.hint
        report = paramtool.convert(source, tmp_path / "m.onnx", skip_unsupported=True)
        assert [line for line in report.left_out if "'out.weight'" in line]
        assert list(paramtool.read(tmp_path / "m.onnx").entries) == ["a.W", "a.R", "a.B"]

    @pytest.mark.parametrize(
        ("module", "says"),
        [
            (nn.LSTM(2, 3, proj_size=2), "projection"),
            (nn.RNN(2, 3), "activation=tanh"),
            (nn.LSTM(2, 3, dtype=torch.bfloat16), "bfloat16"),
        ],
        ids=["projection", "activation", "type"],
    )
    def test_by_name(self, tmp_path: Path, module: nn.Module, says: str) -> None:
        """Projections, an activation that nobody said, and types that the operators lack."""
        with pytest.raises((LayoutError, PlanError)) as caught:
            paramtool.convert(saved(tmp_path / "m.pt", a=module), tmp_path / "m.onnx")
        assert says in f"{caught.value} {caught.value.hint}"

    def test_other_layouts(self, tmp_path: Path) -> None:
        """The layout of such a file is ONNX' own."""
        with pytest.raises(UsageError, match="layout onnx"):
            paramtool.convert(saved(tmp_path / "m.pt", a=nn.GRU(2, 3)), tmp_path / "m.onnx", target="keras")


class TestReadBack:
    """What the reader makes of a written model."""

    def written(self, folder: Path, **modules: nn.Module) -> onnx.ModelProto:
        """The written model of these modules."""
        paramtool.convert(saved(folder / "m.pt", **modules), folder / "m.onnx", force=True)
        return onnx.load(str(folder / "m.onnx"))

    def test_the_same_bytes(self, tmp_path: Path) -> None:
        """Nothing of the machine or of the time is in the file."""
        one = nn.LSTM(2, 3, 2)
        self.written(tmp_path, a=one)
        first = (tmp_path / "m.onnx").read_bytes()
        self.written(tmp_path, a=one)
        assert (tmp_path / "m.onnx").read_bytes() == first

    def test_its_bytes_are_protobufs_own(self, tmp_path: Path) -> None:
        """protobuf writes the same bytes for the same model."""
        made = self.written(tmp_path, a=nn.LSTM(2, 3, 2, bidirectional=True), b=nn.GRU(2, 3))
        assert made.SerializeToString(deterministic=True) == (tmp_path / "m.onnx").read_bytes()

    @pytest.mark.parametrize("change", ["a node", "a wire", "an attribute", "the text", "no text"])
    def test_a_changed_graph_is_not_believed(self, tmp_path: Path, change: str) -> None:
        """Where the nodes are not as the metadata says, each is described alone."""
        made = self.written(tmp_path, a=nn.LSTM(3, 3, 2))
        nodes = [node for node in made.graph.node if node.op_type == "LSTM"]
        if change == "a node":
            nodes[1].name = "other"
        elif change == "a wire":
            nodes[1].input[0] = "a.X"
        elif change == "an attribute":
            nodes[1].attribute.append(onnx.helper.make_attribute("clip", 1.0))
        elif change == "the text":
            made.metadata_props[0].value = '{"a": {"nodes": 1}}'
        else:
            del made.metadata_props[:]
        onnx.save(made, str(tmp_path / "n.onnx"))
        found = paramtool.read(tmp_path / "n.onnx")
        assert sorted(module.at for module in found.modules) == sorted(node.name for node in nodes)
        assert any("metadata says" in note for note in found.notes) == (change not in ("the text", "no text"))
        has_defaults = change in ("the text", "no text")
        assert ("a.initial_h" in found.entries) == has_defaults

    def test_defaults_that_were_changed_are_tensors(self, tmp_path: Path) -> None:
        """An initial state that somebody set is no longer a default of zeros."""
        made = self.written(tmp_path, a=nn.GRU(3, 2))
        (state,) = [tensor for tensor in made.graph.initializer if tensor.name == "a.initial_h"]
        state.raw_data = np.ones((1, 1, 2), "f4").tobytes()
        onnx.save(made, str(tmp_path / "n.onnx"))
        found = paramtool.read(tmp_path / "n.onnx")
        assert found.entries["a.initial_h"]
        assert "initial_state" in found.modules[0].spec

    def test_truncated(self, tmp_path: Path) -> None:
        """A model that ends too early is called truncated or damaged, at any byte, and not an unknown file."""
        self.written(tmp_path, a=nn.GRU(1, 1))
        data = (tmp_path / "m.onnx").read_bytes()
        for stop in range(2, len(data), 3):
            (tmp_path / "t.onnx").write_bytes(data[:stop])
            try:
                paramtool.read(tmp_path / "t.onnx")
            except paramtool.FormatError as error:
                assert "not in a format" not in str(error)
            else:
                assert data[stop:].count(b"paramtool.networks") or stop > len(data) - 100

    def test_a_function_is_noted(self, tmp_path: Path) -> None:
        """An LSTM inside a local function is not described; the other networks of the file are converted."""
        made = self.written(tmp_path, a=nn.LSTM(3, 2))
        node = onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="inside", hidden_size=2)
        made.functions.append(
            onnx.helper.make_function("d", "f", ["x", "w", "r"], ["y"], [node], [onnx.helper.make_opsetid("", 14)])
        )
        onnx.save(made, str(tmp_path / "n.onnx"))
        found = paramtool.read(tmp_path / "n.onnx")
        assert [module.at for module in found.modules] == ["a"]
        assert any("is in a function that gets R, W" in note for note in found.notes)
        paramtool.convert(tmp_path / "n.onnx", tmp_path / "n.pt", target="torch")
        assert torch.equal(
            torch.load(tmp_path / "n.pt")["a.weight_ih_l0"], torch.load(tmp_path / "m.pt")["a.weight_ih_l0"]
        )


def onnx_network(folder: Path, words: str) -> tuple[Spec, dict[str, np.ndarray]]:
    """A model of one network `a` of ONNX' own layout, and the tensors of it."""
    spec = Spec(**{"input": 2, "hidden": 3, **parse(words)})  # type: ignore[arg-type]
    layout = layouts.find("onnx")
    tensors = stored(layout, layout.form(spec, {}), spec, {})
    arrays = {one.name: np.random.default_rng(0).random(one.shape, "f4") - np.float32(0.5) for one in tensors}
    save_file({f"a.{name}": array for name, array in arrays.items()}, folder / "m.safetensors")
    report = paramtool.convert(folder / "m.safetensors", folder / "m.onnx", source="onnx", at=("a",), spec=words)
    assert not any("merge" in line for line in report.warnings)
    return spec, arrays


FUNCTIONS = {
    "linear": lambda x: x,
    "affine(0.5,0.25)": lambda x: 0.5 * x + 0.25,
    "scaled_tanh(1.5,0.5)": lambda x: 1.5 * np.tanh(0.5 * x),
    "leaky_relu(0.1)": lambda x: np.where(x < 0, 0.1 * x, x),
    "softsign": lambda x: x / (1 + abs(x)),
}


@pytest.mark.sample(17)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("merge", ["concat", "sum", "ave", "mul", "none"])
def test_activations_and_merges(tmp_path: Path, function: str, merge: str) -> None:
    """onnxruntime computes what the equations of an RNN of two directions give, and the spec is read back."""
    spec, arrays = onnx_network(tmp_path, f"rnn bidirectional activation={function} merge={merge}")
    x = np.linspace(-1, 1, 24, dtype="f4").reshape(4, 3, 2)
    both = []
    for d in range(2):
        h, rows = np.zeros((3, 3), "f4"), []
        for step in x[:: 1 - 2 * d]:
            bias = arrays["B"][d].reshape(2, 3).sum(0)
            h = FUNCTIONS[function](step @ arrays["W"][d].T + h @ arrays["R"][d].T + bias)
            rows.append(h)
        both.append(np.stack(rows[:: 1 - 2 * d]))
    merged = {
        "concat": np.concatenate(both, -1), "sum": both[0] + both[1], "ave": (both[0] + both[1]) / 2,
        "mul": both[0] * both[1], "none": np.stack(both, 2),
    }[merge]  # fmt: skip
    found = run(tmp_path / "m.onnx", {"a.X": torch.from_numpy(x)})["a.Y"]
    assert found.shape == merged.shape
    assert np.allclose(found, merged, atol=1e-6)
    (module,) = paramtool.read(tmp_path / "m.onnx").modules
    assert Spec(**parse(module.spec)) == spec  # type: ignore[arg-type]


SAID = [
    ("lstm peephole", "P"),
    ("lstm coupled", "input_forget"),
    ("gru reset=before clip=2", "clip"),
    ("lstm gate_activation=hard_sigmoid(0.2,0.5)", "activation_beta"),
    ("lstm backward", "direction"),
    ("lstm initial_state", "initial_h"),
]


@pytest.mark.parametrize(("words", "has"), SAID)
def test_facts_that_torch_lacks(tmp_path: Path, words: str, has: str) -> None:
    """Networks that only ONNX computes keep every fact: the model reads back as the same spec, and onnx checks it."""
    spec, _ = onnx_network(tmp_path, words)
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    (module,) = paramtool.read(tmp_path / "m.onnx").modules
    assert Spec(**parse(module.spec)) == spec  # type: ignore[arg-type]
    (node,) = [one for one in onnx.load(str(tmp_path / "m.onnx")).graph.node if one.op_type in ("LSTM", "GRU")]
    assert has in {attribute.name for attribute in node.attribute} or any(has in name for name in node.input)
    run(tmp_path / "m.onnx", {"a.X": torch.randn(4, 2, 2)})
