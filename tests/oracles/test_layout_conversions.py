"""Layouts on real files of six frameworks: what is converted has the bytes, and computes the numbers, of its source."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import onnx
import onnxruntime
import pytest

import paramtool
from paramtool.commands import inspect as inspect_command
from paramtool.commands import relayout as relayout_command
from paramtool.errors import LayoutError
from tests.hostile.command import command
from tests.laws.sharing import raw
from tests.oracles.frameworks import reference
from tests.oracles.running import Arrays, below, close, random, run_onnx, run_torch

GTCRN = "Xiaobin-Rong__gtcrn__model_trained_on_vctk.tar"
RNN_VECTORS = "NVIDIA__TensorRT__quant_rnn_test_vectors.pt"
SILERO_TORCH = "snakers4__silero-vad__v3_silero_vad.jit"
SILERO_ONNX = "snakers4__silero-vad__v3_silero_vad.onnx"
OPENNMT = "OpenNMT__OpenNMT-py__test_model2_old.pt"
BIPEDAL = "dgriff777__a3c_continuous__BipedalWalker-v2.dat"
QUAREL = "allenai__allennlp__quarel_best.th"
TAGGER = "allenai__allennlp__simple_tagger_full_best.th"
MXNET = "chen0040__mxnet-sentiment-analysis__lstm-softmax-net.params"
CUDNN_LSTM = "minimaxir__textgenrnn__hacker_news.hdf5"
BIDIRECTIONAL = "chen0040__keras-anomaly-detection__bidirectional-lstm-auto-encoder-weights.h5"
LETTERS = "sam-coble__seq2seq__letter_model.jld2"
SMALL_ONNX = "NVIDIA__TensorRT__lstm.onnx"
OLD_ONNX = "onnx__onnx__test_operator_lstm.onnx"


def against_reference(weights: Arrays) -> None:
    """torch's LSTM and the equations in NumPy agree on these weights."""
    hidden, directions = weights["weight_hh_l0"].shape[1], 2 if "weight_ih_l0_reverse" in weights else 1
    x, h0 = random(5, 2, weights["weight_ih_l0"].shape[1]), random(directions, 2, hidden)
    c0 = random(directions, 2, hidden, seed=1)
    expected = reference.run("lstm", weights, x, h0, c0)
    for found, name in zip(run_torch("lstm", weights, x, h0, c0), ("y", "hn", "cn"), strict=True):
        close(found, expected[name], 1e-4)  # float32 against float64; cells of several units


@pytest.fixture(scope="module")
def pair(samples: Path) -> tuple[Arrays, Arrays]:
    """The tensors of both files."""
    return paramtool.load_file(samples / SILERO_TORCH), paramtool.load_file(samples / SILERO_ONNX)


class TestSilero:
    """A voice detector as TorchScript, and its first network, exported by its authors, as ONNX.

    There the LSTM of two layers is two nodes, LSTM_589 and LSTM_600.
    """

    NODES = ("LSTM_589", "LSTM_600")

    def test_torch_to_onnx(self, pair: tuple[Arrays, Arrays], samples: Path, tmp_path: Path) -> None:
        """Converted, layer k of the first network is byte for byte what the exporter made the inputs of node k."""
        report = relayout_command.convert(samples / SILERO_TORCH, tmp_path / "o.safetensors", target="onnx")
        assert [str(one.spec) for one in report.converted] == ["lstm input=64 hidden=64 layers=2"] * 2
        found = paramtool.load_file(tmp_path / "o.safetensors")
        for layer, names in enumerate([("929", "930", "931"), ("949", "950", "951")]):
            for own, name in zip("WRB", names, strict=True):
                one, other = (found[f"_model{k}.lstm.layer{layer}.{own}"] for k in (1, 2))
                assert one.shape == pair[1][name].shape
                assert raw(one) == raw(pair[1][name])
                assert raw(other) != raw(pair[1][name])

    def test_aliases_that_stay_are_told(self, samples: Path, tmp_path: Path) -> None:
        """The names in `_flat_weights` that shared memory with the 16 weights are kept, and a warning says so."""
        report = relayout_command.convert(samples / SILERO_TORCH, tmp_path / "o.safetensors", target="onnx")
        assert any(w.startswith("16 other names share memory") and "_flat_weights" in w for w in report.warnings)

    def test_onnx_to_torch(self, pair: tuple[Arrays, Arrays], samples: Path, tmp_path: Path) -> None:
        """The two nodes of the ONNX file become the tensors of the TorchScript file, byte for byte."""
        report = relayout_command.convert(samples / SILERO_ONNX, tmp_path / "t.safetensors", target="torch")
        assert [one.at for one in report.converted] == list(self.NODES)
        found = paramtool.load_file(tmp_path / "t.safetensors")
        for layer, node in enumerate(self.NODES):
            for own in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                assert raw(found[f"{node}.{own}_l0"]) == raw(pair[0][f"_model1.lstm.{own}_l{layer}"])

    def test_two_nodes_become_one_network(self, pair: tuple[Arrays, Arrays], samples: Path, tmp_path: Path) -> None:
        """Stacked, the nodes are the TorchScript file's LSTM of two layers, byte for byte."""
        path, stack = tmp_path / "t.safetensors", ("LSTM_589,LSTM_600=_model1.lstm",)
        relayout_command.convert(samples / SILERO_ONNX, path, target="torch", stack=stack)
        own = below(paramtool.load_file(path), "_model1.lstm")
        expected = below(pair[0], "_model1.lstm")
        assert own.keys() == {name for name in expected if not name.startswith("_flat")}
        assert all(raw(value) == raw(expected[name]) for name, value in own.items())

    def test_one_network_becomes_two_nodes(self, pair: tuple[Arrays, Arrays], samples: Path, tmp_path: Path) -> None:
        """And the other way round, byte for byte what the exporter wrote."""
        path, stack = tmp_path / "o.safetensors", ("_model1.lstm=LSTM_589,LSTM_600",)
        relayout_command.convert(samples / SILERO_TORCH, path, target="onnx", stack=stack)
        found = paramtool.load_file(path)
        for node, names in zip(self.NODES, [("929", "930", "931"), ("949", "950", "951")], strict=True):
            for own, name in zip("WRB", names, strict=True):
                assert raw(found[f"{node}.{own}"]) == raw(pair[1][name])

    def test_the_model_runs_it(self, pair: tuple[Arrays, Arrays], samples: Path, tmp_path: Path) -> None:
        """What goes through the LSTM inside the ONNX model, torch's LSTM with converted weights makes the same of."""
        model = onnx.load(samples / SILERO_ONNX)
        nodes = {node.name: node for node in model.graph.node if node.name in self.NODES}
        first, second = (nodes[name] for name in self.NODES)
        names = [*first.input[:1], *first.input[5:], *second.input[5:], first.output[0], second.output[0]]
        for name in names:
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        given = {"input": random(1, 1536), "h0": random(2, 1, 64), "c0": random(2, 1, 64, seed=1)}
        x, h0, c0, h1, c1, y0, y1 = session.run(names, given)
        relayout_command.convert(samples / SILERO_ONNX, tmp_path / "t.safetensors", target="torch")
        found = paramtool.load_file(tmp_path / "t.safetensors")
        close(run_torch("lstm", below(found, self.NODES[0]), x, h0, c0)[0], y0[:, 0])
        close(run_torch("lstm", below(found, self.NODES[1]), y0[:, 0], h1, c1)[0], y1[:, 0])
        both = below(pair[0], "_model1.lstm")
        own = {name: value for name, value in both.items() if not name.startswith("_flat")}
        close(run_torch("lstm", own, x, np.concatenate([h0, h1]), np.concatenate([c0, c1]))[0], y1[:, 0])


def test_mxnet_to_torch(samples: Path, tmp_path: Path) -> None:
    """A Gluon LSTM has torch's bytes under other names, and torch makes of them what the equations say."""
    relayout_command.convert(samples / MXNET, tmp_path / "t.safetensors", source="mxnet", target="torch")
    before, found = paramtool.load_file(samples / MXNET), paramtool.load_file(tmp_path / "t.safetensors")
    own = below(found, "lstm0")
    pairs = {"weight_ih": "i2h_weight", "weight_hh": "h2h_weight", "bias_ih": "i2h_bias", "bias_hh": "h2h_bias"}
    assert {n: raw(v) for n, v in own.items()} == {f"{a}_l0": raw(before[f"lstm0_l0_{b}"]) for a, b in pairs.items()}
    against_reference(own)


class TestCudnnLSTM:
    """Two CuDNNLSTM layers in a file of Keras 2: the bytes of a kernel are those of (hidden, in) matrices."""

    CELLS = (("rnn_1", 100), ("rnn_2", 128))

    def gates(self, array: np.ndarray) -> list[np.ndarray]:
        """The matrices (hidden, in) of the gates i f g o, as tf_keras' hdf5_format.py turns them over."""
        return [block.reshape(128, -1) for block in np.split(array, 4, axis=1)]

    def test_to_torch(self, samples: Path, tmp_path: Path) -> None:
        """Rows of torch's matrices are the gates' blocks read row by row, and the two biases stay apart."""
        relayout_command.convert(
            samples / CUDNN_LSTM, tmp_path / "t.safetensors", source="keras.cudnn", target="torch", spec="backward=no"
        )
        found = paramtool.load_file(tmp_path / "t.safetensors")
        with h5py.File(samples / CUDNN_LSTM) as file:
            for cell, width in self.CELLS:
                own, group = below(found, f"{cell}/{cell}"), file[cell][cell]
                assert own["weight_ih_l0"].shape == (512, width)
                assert raw(own["weight_ih_l0"]) == raw(np.concatenate(self.gates(group["kernel:0"][()])))
                assert raw(own["weight_hh_l0"]) == raw(np.concatenate(self.gates(group["recurrent_kernel:0"][()])))
                assert raw(own["bias_ih_l0"]) + raw(own["bias_hh_l0"]) == raw(group["bias:0"][()])
                against_reference(own)

    def test_to_keras(self, samples: Path, tmp_path: Path) -> None:
        """An LSTM's kernels are the gates' matrices transposed, its bias the sum: what tf_keras makes of the file."""
        report = relayout_command.convert(
            samples / CUDNN_LSTM, tmp_path / "k.safetensors", target="keras", spec="backward=no"
        )
        assert [[change.kind for change in one.changes] for one in report.converted] == [["summed"]] * 2
        found = paramtool.load_file(tmp_path / "k.safetensors")
        with h5py.File(samples / CUDNN_LSTM) as file:
            for cell, _ in self.CELLS:
                own, group = below(found, f"{cell}/{cell}", "/"), file[cell][cell]
                for part in ("kernel", "recurrent_kernel"):
                    expected = np.concatenate([gate.T for gate in self.gates(group[f"{part}:0"][()])], axis=1)
                    assert raw(own[part]) == raw(expected)
                assert raw(own["bias"]) == raw(group["bias:0"][()].reshape(2, -1).sum(axis=0))

    def test_is_no_plain_keras(self, samples: Path, tmp_path: Path) -> None:
        """Said to be `keras`, it is still read as what its shapes show."""
        report = relayout_command.convert(
            samples / CUDNN_LSTM, tmp_path / "t.safetensors", source="keras", target="torch", spec="backward=no"
        )
        assert [one.source.layout.name for one in report.converted] == ["keras.cudnn"] * 2


class TestBidirectional:
    """A Bidirectional(LSTM) of Keras 2.1.2, weights only."""

    AT = "bidirectional_1/bidirectional_1"
    SAID = "gate_activation=sigmoid merge=concat"
    """The file is of a version whose gates are hard sigmoids unless another was chosen, and says neither that nor what
    becomes of the two outputs."""

    @pytest.mark.parametrize("source", [None, "keras"])
    def test_to_torch(self, samples: Path, tmp_path: Path, source: str | None) -> None:
        """One network of both directions; kernels are transposed, the one bias is in the first of two."""
        report = relayout_command.convert(
            samples / BIDIRECTIONAL, tmp_path / "t.safetensors", source=source, target="torch", spec=self.SAID
        )
        assert [str(one.spec) for one in report.converted] == ["lstm input=1 hidden=64 bidirectional"]
        own = below(paramtool.load_file(tmp_path / "t.safetensors"), self.AT)
        with h5py.File(samples / BIDIRECTIONAL) as file:
            for side, end in (("forward", ""), ("backward", "_reverse")):
                group = file[self.AT][f"{side}_lstm_1"]
                assert raw(own[f"weight_ih_l0{end}"]) == raw(group["kernel:0"][()].T)
                assert raw(own[f"weight_hh_l0{end}"]) == raw(group["recurrent_kernel:0"][()].T)
                assert raw(own[f"bias_ih_l0{end}"]) == raw(group["bias:0"][()])
                assert not own[f"bias_hh_l0{end}"].any()
        against_reference(own)

    def test_back(self, samples: Path, tmp_path: Path) -> None:
        """Back in Keras' layout, every byte is as it was."""
        relayout_command.convert(samples / BIDIRECTIONAL, tmp_path / "t.safetensors", target="torch", spec=self.SAID)
        relayout_command.convert(tmp_path / "t.safetensors", tmp_path / "k.safetensors", target="keras")
        found = below(paramtool.load_file(tmp_path / "k.safetensors"), self.AT, "/")
        with h5py.File(samples / BIDIRECTIONAL) as file:
            for side in ("forward", "backward"):
                for part in ("kernel", "recurrent_kernel", "bias"):
                    expected = file[self.AT][f"{side}_lstm_1"][f"{part}:0"][()]
                    assert raw(found[f"{side}_layer/{part}"]) == raw(expected)

    def test_its_gates(self, samples: Path, tmp_path: Path) -> None:
        """The version's usual gates are hard sigmoids: it has to be said; with them, it goes to no torch."""
        with pytest.raises(LayoutError, match="the file does not say its gate_activation") as error:
            relayout_command.convert(
                samples / BIDIRECTIONAL, tmp_path / "t.safetensors", target="torch", spec="merge=concat"
            )
        assert "hard_sigmoid(0.2,0.5)" in error.value.hint
        spec = "gate_activation=hard_sigmoid(0.2,0.5) merge=concat"
        with pytest.raises(LayoutError, match="gate_activation"):
            relayout_command.convert(samples / BIDIRECTIONAL, tmp_path / "x.safetensors", target="torch", spec=spec)
        assert relayout_command.convert(
            samples / BIDIRECTIONAL, tmp_path / "o.safetensors", target="onnx", spec=spec
        ).written


class TestOpenNMT:
    """An LSTM and, in a list of its own, one LSTMCell whose biases are rows."""

    CELL = "decoder.rnn.layers.0"

    def test_fused(self, samples: Path, tmp_path: Path) -> None:
        """Both become their parts in order, each where it stood."""
        report = relayout_command.fuse(samples / OPENNMT, tmp_path / "f.safetensors", layout="cudnn", only="model")
        assert [one.at for one in report.converted] == ["encoder.rnn", self.CELL]
        before, found = paramtool.load_file(samples / OPENNMT), paramtool.load_file(tmp_path / "f.safetensors")
        assert before[f"model.{self.CELL}.bias_ih"].shape == (1, 400)
        for at, end in (("encoder.rnn", "_l0"), (self.CELL, "")):
            parts = [f"model.{at}.{own}{end}" for own in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            assert raw(found[f"{at}.flat_weights"]) == b"".join(raw(before[part]) for part in parts)

    def test_the_cell_goes_back_to_its_names(self, samples: Path, tmp_path: Path) -> None:
        """A list with one cell is not counted as a stack of layers: the way back has the list's number in its names."""
        relayout_command.fuse(
            samples / OPENNMT, tmp_path / "f.safetensors", layout="cudnn", only="model", at=(self.CELL,)
        )
        relayout_command.unfuse(tmp_path / "f.safetensors", tmp_path / "b.safetensors", target="torch.cell")
        before, found = paramtool.load_file(samples / OPENNMT), paramtool.load_file(tmp_path / "b.safetensors")
        expected = {name: raw(value) for name, value in below(before, f"model.{self.CELL}").items()}
        assert {name: raw(value) for name, value in below(found, self.CELL).items()} == expected

    def test_one_after_the_other(self, samples: Path, tmp_path: Path) -> None:
        """In a file in which one network is fused, the other can still be."""
        relayout_command.fuse(
            samples / OPENNMT, tmp_path / "1.safetensors", layout="cudnn", only="model", at=("encoder.rnn",)
        )
        relayout_command.fuse(tmp_path / "1.safetensors", tmp_path / "2.safetensors", layout="cudnn", at=(self.CELL,))
        relayout_command.fuse(samples / OPENNMT, tmp_path / "3.safetensors", layout="cudnn", only="model")
        two, three = (paramtool.load_file(tmp_path / f"{k}.safetensors") for k in (2, 3))
        assert {n: raw(v) for n, v in two.items()} == {n: raw(v) for n, v in three.items()}

    def test_onnx_runs(self, samples: Path, tmp_path: Path) -> None:
        """ONNX Runtime gets the same from the converted encoder and cell as torch from the old tensors."""
        relayout_command.convert(samples / OPENNMT, tmp_path / "o.safetensors", target="onnx", only="model")
        before, found = paramtool.load_file(samples / OPENNMT), paramtool.load_file(tmp_path / "o.safetensors")
        for at, width in (("encoder.rnn", 50), (self.CELL, 150)):
            own = {n.removesuffix("_l0") + "_l0": v for n, v in below(before, f"model.{at}").items()}
            own = {name: value.reshape(-1) if "bias" in name else value for name, value in own.items()}
            x, h0, c0 = random(4, 2, width), random(1, 2, 100), random(1, 2, 100, seed=1)
            close(run_onnx("lstm", below(found, at), x, h0, c0), run_torch("lstm", own, x, h0, c0)[0])


def test_a_cell_to_cudnn_and_keras(samples: Path, tmp_path: Path) -> None:
    """An LSTMCell of torch before 0.4: fused, its parts in order; in Keras' layout, transposed, with biases summed."""
    before = below(paramtool.load_file(samples / BIPEDAL), "lstm")
    relayout_command.fuse(samples / BIPEDAL, tmp_path / "f.safetensors", layout="cudnn")
    parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    found = paramtool.load_file(tmp_path / "f.safetensors")["lstm.flat_weights"]
    assert raw(found) == b"".join(raw(before[part]) for part in parts)
    relayout_command.convert(samples / BIPEDAL, tmp_path / "k.safetensors", target="keras")
    own = below(paramtool.load_file(tmp_path / "k.safetensors"), "lstm", "/")
    assert (raw(own["kernel"]), raw(own["recurrent_kernel"])) == (raw(before[parts[0]].T), raw(before[parts[1]].T))
    assert raw(own["bias"]) == raw(before["bias_ih"] + before["bias_hh"])


def test_a_split_that_is_kept(samples: Path, tmp_path: Path) -> None:
    """With `keep_split`, the way back from one bias gives the bytes of the two."""
    relayout_command.convert(samples / BIPEDAL, tmp_path / "k.safetensors", target="keras", keep_split=True)
    relayout_command.convert(tmp_path / "k.safetensors", tmp_path / "t.safetensors", target="torch.cell")
    before, found = paramtool.load_file(samples / BIPEDAL), paramtool.load_file(tmp_path / "t.safetensors")
    assert {n: raw(v) for n, v in found.items()} == {n: raw(v) for n, v in before.items()}


@pytest.mark.parametrize(("name", "modules"), [
    (QUAREL, {"_encoder._module": "_l0", "_decoder_step._decoder_cell": ""}),
    (TAGGER, {"encoder._module": "_l0"}),
])  # fmt: skip
def test_allennlp(samples: Path, tmp_path: Path, name: str, modules: dict[str, str]) -> None:
    """Fused are the parts in order; the rest, a tied embedding among it, is as it was."""
    relayout_command.fuse(samples / name, tmp_path / "f.safetensors", layout="cudnn")
    before, found = paramtool.load_file(samples / name), paramtool.load_file(tmp_path / "f.safetensors")
    gone = set()
    for at, end in modules.items():
        parts = [f"{at}.{own}{end}" for own in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        assert raw(found.pop(f"{at}.flat_weights")) == b"".join(raw(before[part]) for part in parts)
        gone |= set(parts)
    assert {n: raw(v) for n, v in found.items()} == {n: raw(v) for n, v in before.items() if n not in gone}
    tied = [
        [m.name for m in members] for _, members in inspect_command.inspect(tmp_path / "f.safetensors").graph.groups()
    ]
    assert tied == [[m.name for m in members] for _, members in inspect_command.inspect(samples / name).graph.groups()]


class TestOnnx:
    """ONNX files of other people."""

    def test_against_the_model(self, samples: Path, tmp_path: Path) -> None:
        """ONNX Runtime's outputs of the file itself are those of torch's LSTM with the converted weights."""
        report = relayout_command.convert(samples / SMALL_ONNX, tmp_path / "t.safetensors", target="torch")
        assert any("initial_c" in warning for warning in report.warnings)
        found = paramtool.load_file(tmp_path / "t.safetensors")
        session = onnxruntime.InferenceSession(samples / SMALL_ONNX, providers=["CPUExecutionProvider"])
        x = random(4, 3, 6)
        y, h, c = session.run(["Y", "Y_h", "Y_c"], {"X": x})
        mine = run_torch("lstm", below(found, "Y"), x, np.zeros((1, 3, 5), np.float32), found["initial_c"])
        for value, expected in zip(mine, (y[:, 0], h, c), strict=True):
            close(value, expected)

    def test_weights_that_the_graph_computes(self, samples: Path, tmp_path: Path) -> None:
        """Exported by PyTorch 0.3, gates put in order by the graph: refused, with the reason, and nothing written."""
        with pytest.raises(LayoutError, match=r"'48'.*the graph computes B, R, W: no stored tensor has the values"):
            relayout_command.convert(samples / OLD_ONNX, tmp_path / "t.safetensors", target="torch")
        assert list(tmp_path.iterdir()) == []


LETTERS_TOML = """
[[layout]]
name = "letters"
max_directions = 1

[[layout.form]]
kind = "rnn"
gates = "h"
tensors = [
  {name = "[layer{layer}.]Wax", content = "W[hidden in]"},
  {name = "[layer{layer}.]Waa", content = "R[hidden rec]"},
  {name = "[layer{layer}.]ba", content = "bW+bR[hidden]"},
]
"""


def test_a_network_written_by_hand(samples: Path, tmp_path: Path) -> None:
    """A layout of one's own takes the encoder of a Julia program to torch, which computes what its equation says."""
    (tmp_path / "letters.toml").write_text(LETTERS_TOML)
    ran = command(
        "convert", samples / LETTERS, "-o", "t.safetensors", "--from", "letters", "--to", "torch",
        "--layout-file", "letters.toml", "--spec", "rnn activation=tanh", cwd=tmp_path,
    )  # fmt: skip
    assert ran.code == 0, ran
    own = below(paramtool.load_file(tmp_path / "t.safetensors"), "single_stored_object")
    own = {name: value for name, value in own.items() if name.endswith("_l0")}
    with h5py.File(samples / LETTERS) as file:
        stored = file["single_stored_object"][()]
        wax, waa, ba = (np.asarray(file[stored[name]][()]).T for name in ("Wax", "Waa", "ba"))  # columns come first
    x, a = random(3, 1, 28).astype(np.float64), random(1, 1, 5).astype(np.float64)
    y, _ = run_torch("rnn", own, x, a)
    for step in range(3):
        a = np.tanh(a @ waa.T + x[step] @ wax.T + ba)
        close(y[step], a[0], 1e-12)


SAID = [
    (("fuse", GTCRN, "--layout", "cudnn"), 0, "no copy: its parts are one run of bytes already"),
    (("fuse", RNN_VECTORS, "--layout", "cudnn"), 0, "QuantGRUCell::test_quant_different_prec.state"),
    (("fuse", RNN_VECTORS, "--layout", "cudnn", "--at", "*GRU::*"), 2, "matches 3 modules"),
    (("convert", SILERO_ONNX, "--to", "torch", "--rename", "LSTM_589=lstm"), 0, "LSTM_600"),
    (("convert", MXNET, "--from", "mxnet", "--to", "torch"), 0, "lstm input=100 hidden=64"),
    (("convert", MXNET, "--to", "torch"), 5, "its names occur in layout mxnet"),
    (("convert", CUDNN_LSTM, "--to", "torch", "--spec", "backward=no"), 0, "keras.cudnn -> torch"),
    (("convert", CUDNN_LSTM, "--to", "torch"), 5, '--spec "backward=no"'),
    (("convert", BIDIRECTIONAL, "--to", "haiku", "--spec", "gate_activation=sigmoid"), 5, '--spec "merge=concat"'),
    (("convert", BIDIRECTIONAL, "--to", "haiku", "--spec", "gate_activation=hard_sigmoid(0.2,0.5) merge=concat"), 5,
     "layouts that hold it: keras, keras.vars"),
    (("convert", OLD_ONNX, "--to", "torch"), 5, "the graph computes B, R, W"),
    (("convert", OPENNMT, "--only", "encoder", "--to", "onnx"), 2, "its sections: 'model'"),
    (("unfuse", BIPEDAL, "--layout", "cudnn"), 5, "no vector fits as a network of layout cudnn"),
    (("convert", "kakaobrain__g2pm__np_ckpt.pkl", "--to", "onnx"), 0, "torch -> onnx"),
]  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize(("words", "code", "says"), SAID)
def test_commands(samples: Path, tmp_path: Path, words: tuple[str, ...], code: int, says: str) -> None:
    """What a person types ends with its exit code, and the message says what was done or what to do."""
    verb, name, *rest = words
    ran = command(verb, samples / name, "-o", "out.safetensors", *rest, cwd=tmp_path)
    assert ran.code == code, ran
    assert says in (ran.err if code else ran.out)
    assert (tmp_path / "out.safetensors").exists() == (code == 0)
    assert "Traceback" not in ran.err
