"""`convert --into MODEL.onnx`: onnxruntime computes what torch computes, and nothing but the weights has changed."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import paramtool
from paramtool.errors import FormatError, LayoutError, OutputError, PlanError
from tests.versions import exporting


class Tagger(nn.Module):
    """An embedding, an LSTM of two layers, a norm, a linear layer and a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 5)
        self.lstm = nn.LSTM(5, 4, 2, bidirectional=True)
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 3)
        self.gru = nn.GRU(3, 2, 2, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.gru(self.fc(self.norm(self.lstm(self.emb(x))[0])))[0]
        return found

    given = torch.arange(6).reshape(3, 2)


class Convolutions(nn.Module):
    """Convolutions of each kind, batch norms, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3)
        self.bn = nn.BatchNorm1d(4)
        self.deep = nn.Conv1d(4, 4, 1, groups=4)
        self.up = nn.ConvTranspose1d(4, 3, 2)
        self.lin = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.lin(self.up(self.deep(torch.relu(self.bn(self.conv(x))))).mean(-1))
        return found

    given = torch.linspace(-1, 1, 56).reshape(2, 4, 7)


def random(module: nn.Module, seed: int) -> nn.Module:
    """A module with other numbers everywhere, statistics among them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=generator) + 0.1)
    return module.eval()


def exported(path: Path, module: nn.Module, **more: Any) -> Path:
    """A module as torch's exporter writes it, with a batch norm as a node of its own."""
    more = {"training": torch.onnx.TrainingMode.PRESERVE, **more}
    made = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (module.given,), made, **exporting(), **more)  # type: ignore[arg-type]
    path.write_bytes(made.getvalue())
    return path


def computed(path: Path, x: torch.Tensor) -> np.ndarray:
    """What onnxruntime computes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    found: np.ndarray = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    return found


def saved(path: Path, **tensors: np.ndarray) -> Path:
    """A torch file of these arrays."""
    torch.save({name.replace("__", "."): torch.from_numpy(value) for name, value in tensors.items()}, path)
    return path


def skeleton(model: onnx.ModelProto, names: set[str]) -> bytes:
    """A model without the values of some tensors."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in tensors_of(made.graph):
        if tensor.name in names:
            for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "external_data"):
                tensor.ClearField(field)
            tensor.ClearField("data_location")
    return made.SerializeToString(deterministic=True)


def tensors_of(graph: onnx.GraphProto) -> list[TensorProto]:
    """Every tensor of a graph, with those of Constant nodes and of graphs in nodes; named as paramtool names them."""
    found = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                attribute.t.name = node.output[0]
                found.append(attribute.t)
            if attribute.HasField("g"):
                found += tensors_of(attribute.g)
    return found


@pytest.mark.parametrize("kind", [Tagger, Convolutions])
def test_exported_models(tmp_path: Path, kind: type[nn.Module]) -> None:
    """A model of torch's exporter, with names and axes of its own, gets the weights of another state dict."""
    one, two = random(kind(), 1), random(kind(), 2)
    model = exported(tmp_path / "model.onnx", one)
    torch.save(two.state_dict(), tmp_path / "m.pt")
    report = paramtool.convert(tmp_path / "m.pt", tmp_path / "out.onnx", into=model, strict=True)
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)
    x: torch.Tensor = two.given  # type: ignore[assignment]
    expected = two(x).detach().numpy()
    assert np.allclose(computed(tmp_path / "out.onnx", x), expected, atol=2e-6)
    assert not np.allclose(computed(model, x), expected, atol=1e-2)
    assert {line.removeprefix("tensor ") for line in report.left_out} <= {"'bn.num_batches_tracked'"}
    before, after = onnx.load(str(model)), onnx.load(str(tmp_path / "out.onnx"))
    assert skeleton(before, set(report.plan.names)) == skeleton(after, set(report.plan.names))
    old, new = model.read_bytes(), (tmp_path / "out.onnx").read_bytes()
    changed = sum(a != b for a, b in zip(old, new, strict=True))
    assert changed <= report.plan.nbytes
    again = paramtool.convert(tmp_path / "m.pt", tmp_path / "again.onnx", into=model)
    assert (tmp_path / "again.onnx").read_bytes() == new
    assert again.warnings == ()


def test_a_model_that_is_folded_whole_says_why_nothing_fits(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv1d(6, 6, 3), nn.BatchNorm1d(6)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.ones(2, 6, 5),), str(tmp_path / "model.onnx"), **exporting())
    torch.save(model.state_dict(), tmp_path / "m.pt")
    with pytest.raises(LayoutError, match=r"nothing in .* the exporter folded another layer"):
        paramtool.convert(tmp_path / "m.pt", tmp_path / "out.onnx", into=tmp_path / "model.onnx")


def test_a_folded_layer_is_told(tmp_path: Path) -> None:
    """Weights that the exporter made from two layers are nobody's, and are left with a warning."""
    model = exported(tmp_path / "model.onnx", random(Convolutions(), 1), training=torch.onnx.TrainingMode.EVAL)
    torch.save(random(Convolutions(), 2).state_dict(), tmp_path / "m.pt")
    with pytest.raises(LayoutError, match=r"'bn\.running_mean' of the source has no place") as error:
        paramtool.convert(tmp_path / "m.pt", tmp_path / "out.onnx", into=model)
    assert "TrainingMode.PRESERVE" in error.value.hint
    report = paramtool.convert(tmp_path / "m.pt", tmp_path / "out.onnx", into=model, partial=True)
    assert any("folded another layer, mostly a batch norm" in line for line in report.warnings)
    with pytest.raises(LayoutError, match="onnx::Conv"):
        paramtool.convert(tmp_path / "m.pt", tmp_path / "out2.onnx", into=model, strict=True)
    (name,) = [n for n in paramtool.read(model).entries if n.startswith("onnx::Conv") and n.endswith("0")][:1] or [""]
    if name:
        with pytest.raises((PlanError, LayoutError)):
            paramtool.convert(tmp_path / "m.pt", tmp_path / "out3.onnx", into=model, map=(f"conv.weight={name}",))


W, B = np.arange(6, dtype="f4").reshape(2, 3), np.arange(2, dtype="f4")
NEW = {"fc__weight": W + 10, "fc__bias": B + 10}


def dense(*initializers: TensorProto, nodes: tuple[onnx.NodeProto, ...] = (), **more: Any) -> onnx.ModelProto:
    """A model of one Gemm."""
    gemm = helper.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["y"], name="gemm", transB=1)
    graph = helper.make_graph(
        [*nodes, gemm],
        "g",
        [helper.make_tensor_value_info("x", 1, ["n", 3]), *more.pop("inputs", [])],
        [helper.make_tensor_value_info("y", 1, ["n", 2])],
        list(initializers),
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, **more)
    made.metadata_props.add(key="author", value="ü")
    return made


def plain_tensors() -> list[TensorProto]:
    """The two tensors, in raw_data."""
    return [numpy_helper.from_array(W, "fc.weight"), numpy_helper.from_array(B, "fc.bias")]


def values(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a model, as onnx reads them."""
    return {
        tensor.name: numpy_helper.to_array(tensor, str(path.parent))
        for tensor in tensors_of(onnx.load(str(path)).graph)
    }


def formed(how: str) -> onnx.ModelProto:
    """The model with its numbers in one of the places that they can have."""
    raw = plain_tensors()
    if how == "raw_data":
        return dense(*raw)
    if how == "input":  # IR versions before 4 list initializers as inputs
        inputs = [helper.make_tensor_value_info(one.name, 1, one.dims) for one in raw]
        return dense(*raw, inputs=inputs)
    if how == "constant":
        return dense(nodes=tuple(helper.make_node("Constant", [], [one.name], value=one) for one in raw))
    return dense(*(helper.make_tensor(one.name, 1, one.dims, numpy_helper.to_array(one).ravel()) for one in raw))


@pytest.mark.parametrize("form", ["raw_data", "float_data", "constant", "input"])
def test_forms_of_a_tensor(tmp_path: Path, form: str) -> None:
    """Wherever the numbers of a tensor are, they are replaced, and onnx finds everything else unchanged."""
    model = tmp_path / "model.onnx"
    onnx.save(formed(form), str(model))
    paramtool.convert(saved(tmp_path / "m.pt", **NEW), tmp_path / "out.onnx", into=model)
    assert model.stat().st_size == (tmp_path / "out.onnx").stat().st_size
    found = values(tmp_path / "out.onnx")
    assert np.array_equal(found["fc.weight"], W + 10)
    assert np.array_equal(found["fc.bias"], B + 10)
    both = [skeleton(onnx.load(str(path)), {"fc.weight", "fc.bias"}) for path in (model, tmp_path / "out.onnx")]
    assert both[0] == both[1]
    if form != "input":
        x = np.ones((1, 3), "f4")
        assert np.allclose(computed(tmp_path / "out.onnx", torch.from_numpy(x)), x @ (W + 10).T + B + 10)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_lengths_follow(tmp_path: Path, depth: int) -> None:
    """Numbers with a tag each, or in varints, become raw_data: the lengths of all messages around them follow."""
    from tests.formats.test_onnx import field, tag

    tagged = b"\x08\x03\x10\x01" + b"".join(tag(4, 5) + part.tobytes() for part in B.repeat(2)[:3]) + field(8, b"a")
    half = helper.make_tensor("b", TensorProto.FLOAT16, [200], np.arange(200)).SerializeToString()
    kept = numpy_helper.from_array(np.arange(3), "kept").SerializeToString()
    inner = field(2, b"g") + field(5, kept) + field(5, tagged) + field(5, half) + field(10, b"text")
    for _ in range(depth):
        node = field(3, b"n") + field(4, b"If") + field(5, field(1, b"body") + field(6, inner) + b"\xa0\x01\x05")
        inner = field(1, node)
    (tmp_path / "model.onnx").write_bytes(
        b"\x08\x0a" + field(7, inner) + field(8, b"\x10\x14") + field(14, field(1, b"k"))
    )
    at = "n/body/" * depth
    new = {"a": np.arange(3, dtype="f4") + 5, "b": np.arange(200, dtype="f2") * 2}
    maps = [f"{name}={at}{name}" for name in "ab"]
    paramtool.convert(saved(tmp_path / "m.pt", **new), tmp_path / "out.onnx", into=tmp_path / "model.onnx", map=maps)
    found = values(tmp_path / "out.onnx")
    assert np.array_equal(found["a"], new["a"])
    assert np.array_equal(found["b"], new["b"])
    both = [skeleton(onnx.load(str(tmp_path / name)), set("ab")) for name in ("model.onnx", "out.onnx")]
    assert both[0] == both[1]


class TestDataBeside:
    """Models whose tensors are in another file."""

    def made(self, folder: Path, **more: Any) -> Path:
        """A model with two tensors in one file, and one inside."""
        model = dense(*plain_tensors())
        model.graph.initializer.append(numpy_helper.from_array(np.arange(4), "kept"))
        onnx.save(model, str(folder / "model.onnx"), save_as_external_data=True, size_threshold=0, **more)
        return folder / "model.onnx"

    @pytest.mark.parametrize("together", [True, False])
    def test_the_new_file(self, tmp_path: Path, together: bool) -> None:
        """All data goes to one new file; the old ones and the model stay as they are."""
        model = self.made(tmp_path, all_tensors_to_one_file=together, location="w.bin" if together else None)
        before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
        report = paramtool.convert(saved(tmp_path / "m.pt", **NEW), tmp_path / "out.onnx", into=model)
        assert [Path(path).name for path in report.files] == ["out.onnx.data", "out.onnx"]
        assert {name: (tmp_path / name).read_bytes() for name in before} == before
        onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)
        assert {name: value.tolist() for name, value in values(tmp_path / "out.onnx").items()} == {
            "fc.weight": (W + 10).tolist(), "fc.bias": (B + 10).tolist(), "kept": [0, 1, 2, 3],
        }  # fmt: skip
        names = {"fc.weight", "fc.bias", "kept"}
        models = [onnx.load(str(path), load_external_data=False) for path in (model, tmp_path / "out.onnx")]
        assert skeleton(models[0], names) == skeleton(models[1], names)
        with pytest.raises(OutputError, match=r"out\.onnx\.data: exists"):
            paramtool.convert(tmp_path / "m.pt", tmp_path / "out.onnx", into=model, force=True)

    def test_shared_ranges(self, tmp_path: Path) -> None:
        """Two names of one range get one value; a slice that would change unseen is refused."""
        model = self.made(tmp_path, location="w.bin")
        proto = onnx.load(str(model), load_external_data=False)
        weight = proto.graph.initializer[0]
        for name, rows in (("twin", 2), ("slice", 1)):
            twin = proto.graph.initializer.add()
            twin.CopyFrom(weight)
            twin.name, twin.dims[0] = name, rows
            next(entry for entry in twin.external_data if entry.key == "length").value = str(rows * 12)
            model.write_bytes(proto.SerializeToString())
            if name == "twin":
                paramtool.convert(saved(tmp_path / "m.pt", **NEW), tmp_path / "out.onnx", into=model)
                assert np.array_equal(values(tmp_path / "out.onnx")["twin"], W + 10)
        with pytest.raises(PlanError, match="shares bytes with 'slice'"):
            paramtool.convert(tmp_path / "m.pt", tmp_path / "out2.onnx", into=model, partial=True)


class TestRefused:
    """What cannot be given other values."""

    def test_equal_values_that_the_exporter_stored_once(self, tmp_path: Path) -> None:
        """A fresh batch norm has scale = variance = 1: the exporter keeps one tensor for both."""
        fresh = Convolutions().eval()
        model = exported(tmp_path / "model.onnx", fresh)
        torch.save(random(Convolutions(), 2).state_dict(), tmp_path / "m.pt")
        with pytest.raises((PlanError, LayoutError), match=r"bn\."):
            paramtool.convert(tmp_path / "m.pt", tmp_path / "out.onnx", into=model)

    def test_quantised_models(self, tmp_path: Path) -> None:
        """Whole numbers with scales are refused by name."""
        quantised = numpy_helper.from_array(np.ones((2, 3), "i1"), "fc.weight_q")
        scale = numpy_helper.from_array(np.float32(0.5), "scale")
        node = helper.make_node("DequantizeLinear", ["fc.weight_q", "scale"], ["fc.weight"], name="dq")
        onnx.save(dense(quantised, scale, plain_tensors()[1], nodes=(node,)), str(tmp_path / "model.onnx"))
        source = saved(tmp_path / "m.pt", q=np.zeros((2, 3), "i1"))
        for partial, words in ((False, "'scale' of the model would keep its values"), (True, "reads it by scales")):
            with pytest.raises(PlanError if partial else LayoutError, match=words):
                paramtool.convert(
                    source, tmp_path / "out.onnx", into=tmp_path / "model.onnx", map=("q=fc.weight_q",), partial=partial
                )
        assert "'fc.weight_q'" in paramtool.read(tmp_path / "model.onnx").notes[0]
        biased = saved(tmp_path / "b.pt", fc__bias=B + 10)
        with pytest.raises(LayoutError, match=r"'fc\.weight_q' of the model would keep its values"):
            paramtool.convert(biased, tmp_path / "out.onnx", into=tmp_path / "model.onnx")
        report = paramtool.convert(biased, tmp_path / "out.onnx", into=tmp_path / "model.onnx", partial=True)
        assert any("quantised" in line for line in report.warnings)
        assert any("old values" in line and "fc.weight_q" in line for line in report.warnings)

    def test_names_that_say_nothing(self, tmp_path: Path) -> None:
        """Two layers of one shape and no names are ambiguous until somebody says which is which."""

        class Two(nn.Module):
            given = torch.ones(1, 3, 3)

            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                found: torch.Tensor = self.b(self.a(x).relu())
                return found

        one, two = random(Two(), 1), random(Two(), 2)
        proto = onnx.load(str(exported(tmp_path / "model.onnx", one)))
        renamed = {tensor.name: f"t{k}" for k, tensor in enumerate(proto.graph.initializer)}
        for tensor in proto.graph.initializer:
            tensor.name = renamed[tensor.name]
        for k, node in enumerate(proto.graph.node):
            node.name = f"node{k}"
            for j, name in enumerate(node.input):
                node.input[j] = renamed.get(name, name)
        onnx.save(proto, str(tmp_path / "model.onnx"))
        torch.save(two.state_dict(), tmp_path / "m.pt")
        with pytest.raises(LayoutError) as caught:
            paramtool.convert(tmp_path / "m.pt", tmp_path / "out.onnx", into=tmp_path / "model.onnx")
        assert "--map" in caught.value.hint
        nodes = [node.name for node in proto.graph.node if node.op_type == "MatMul"]
        maps = tuple(f"{at}={node}" for at, node in zip("ab", nodes, strict=True))
        paramtool.convert(tmp_path / "m.pt", tmp_path / "out.onnx", into=tmp_path / "model.onnx", map=maps)
        found = computed(tmp_path / "out.onnx", Two.given)
        assert np.allclose(found, two(Two.given).detach().numpy(), atol=1e-6)

    def test_truncated_models(self, tmp_path: Path) -> None:
        """Cut at any byte, a model is an error or is whole without its end; nothing is left behind."""
        data = formed("raw_data").SerializeToString()
        source = saved(tmp_path / "m.pt", **NEW)
        for stop in range(2, len(data), 3):
            (tmp_path / "model.onnx").write_bytes(data[:stop])
            try:
                paramtool.convert(source, tmp_path / "out.onnx", into=tmp_path / "model.onnx", force=True)
            except FormatError:
                continue
            onnx.load(str(tmp_path / "out.onnx"))
        assert set(os.listdir(tmp_path)) <= {"m.pt", "model.onnx", "out.onnx"}


def test_a_model_that_paramtool_wrote(tmp_path: Path) -> None:
    """A model of recurrent networks is filled with another training of them."""
    nets = [nn.LSTM(3, 4, 2, bidirectional=True).eval() for _ in range(2)]
    for k, one in enumerate(nets):
        torch.save({f"a.{n}": v for n, v in one.state_dict().items()}, tmp_path / f"{k}.pt")
        paramtool.convert(tmp_path / f"{k}.pt", tmp_path / f"{k}.onnx")
    paramtool.convert(tmp_path / "1.pt", tmp_path / "out.onnx", into=tmp_path / "0.onnx", strict=True)
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "1.onnx").read_bytes()
