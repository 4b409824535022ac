"""Weights put into Keras models: Keras opens the output and computes what PyTorch computes, all else is as it was."""

from __future__ import annotations

import json
import os
import re
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import paramtool
from paramtool.cli.main import cli
from paramtool.errors import FormatError, LayoutError, OutputError, PlanError, UsageError

keras = pytest.importorskip("keras")
h5py = pytest.importorskip("h5py")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras 3.15's own
TOKENS, STEPS = 20, 6


class Words(nn.Module):
    """An embedding, an LSTM, a GRU in both directions, two more LSTMs in one module, a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(TOKENS, 5)
        self.enc = nn.LSTM(5, 4, batch_first=True)
        self.bi = nn.GRU(4, 3, batch_first=True, bidirectional=True)
        self.top = nn.LSTM(6, 5, 2, batch_first=True)
        self.fc = nn.Linear(5, 7)

    def forward(self, x: Any) -> Any:
        return self.fc(self.top(self.bi(self.enc(self.emb(x))[0])[0])[0][:, -1])


class Pictures(nn.Module):
    """Convolutions of every kind, norms, one layer used twice, and a part of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.deep = nn.Conv2d(4, 8, 2, groups=4)
        self.up = nn.ConvTranspose2d(8, 6, 2)
        self.shared = nn.Linear(6, 6)
        self.sub = nn.Sequential()
        self.sub.inner = nn.Linear(6, 6)
        self.ln = nn.LayerNorm(6)

    def forward(self, x: Any) -> Any:
        x = self.up(self.deep(self.norm(self.conv(x)))).mean((2, 3))
        return self.ln(self.shared(self.shared(self.sub.inner(x))))


def words_model() -> Any:
    k = keras.layers
    return keras.Sequential(
        [
            keras.Input((STEPS,)),
            k.Embedding(TOKENS, 5, name="emb"),
            k.LSTM(4, return_sequences=True, name="enc"),
            k.Bidirectional(k.GRU(3, return_sequences=True), name="bi"),
            k.Dropout(0.5),
            k.LSTM(5, return_sequences=True, name="first"),
            k.LSTM(5, name="second"),
            k.Dense(7, name="fc"),
        ]
    )


def pictures_model() -> Any:
    k = keras.layers
    x = given = keras.Input((8, 8, 3))
    x = k.BatchNormalization(name="norm", epsilon=1e-5)(k.Conv2D(4, 3, name="conv")(x))
    x = k.Conv2DTranspose(6, 2, name="up")(k.DepthwiseConv2D(2, depth_multiplier=2, name="deep")(x))
    sub = keras.Sequential([keras.Input((6,)), k.Dense(6, name="inner")], name="sub")
    shared = k.Dense(6, name="shared")
    x = shared(shared(sub(k.GlobalAveragePooling2D()(x))))
    return keras.Model(given, k.LayerNormalization(name="ln", epsilon=1e-5)(x))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that were trained for a step, in every form, and PyTorch's weights for them."""
    folder = tmp_path_factory.mktemp("models")
    keras.utils.set_random_seed(0)
    torch.manual_seed(0)
    for name, module, make, batch in (
        ("words", Words(), words_model, np.ones((2, STEPS), "i4")),
        ("pictures", Pictures(), pictures_model, np.ones((2, 8, 8, 3), "f4")),
    ):
        for values in module.buffers():
            if values.dtype.is_floating_point:
                values.copy_(torch.rand_like(values) + 0.5)
        torch.save(module.state_dict(), folder / f"{name}.pt")
        model = make()
        model.compile("adam", keras.losses.MeanSquaredError())
        model.fit(batch, np.zeros((2, *model.output_shape[1:])), verbose=0)
        for suffix in (".keras", ".h5", ".weights.h5"):
            (model.save_weights if suffix.startswith(".w") else model.save)(folder / f"{name}{suffix}")
    return folder


INPUTS: dict[str, tuple[Callable[[], Any], Callable[[], nn.Module], Any]] = {
    "words": (words_model, Words, np.arange(4 * STEPS, dtype="i4").reshape(4, STEPS) % TOKENS),
    "pictures": (pictures_model, Pictures, np.random.default_rng(1).random((2, 8, 8, 3)).astype("f4")),
}
STACK = ("top=first,second",)


def expected(models: Path, name: str) -> Any:
    """What PyTorch computes."""
    _, module, batch = INPUTS[name]
    own = module().eval()
    own.load_state_dict(torch.load(models / f"{name}.pt"))
    given = torch.tensor(batch)
    return own(given.permute(0, 3, 1, 2) if given.ndim == 4 else given).detach().numpy()


def opened(path: Path, name: str) -> Any:
    """The model as Keras opens it."""
    if path.name.endswith(".weights.h5"):
        model = INPUTS[name][0]()
        model.load_weights(path)
        return model
    return keras.saving.load_model(path, compile=path.suffix == ".keras")


@pytest.mark.sample(2)
@pytest.mark.parametrize("suffix", [".keras", ".h5", ".weights.h5"])
@pytest.mark.parametrize("name", ["words", "pictures"])
def test_keras_computes_what_torch_computes(name: str, suffix: str, models: Path, tmp_path: Path) -> None:
    model, output = models / f"{name}{suffix}", tmp_path / f"out{suffix}"
    maps = STACK if name == "words" else ()
    report = paramtool.convert(models / f"{name}.pt", output, into=model, map=maps, strict=True)
    assert report.verified and report.into is not None and not report.into.unfilled
    unused = {"norm.num_batches_tracked"} if name == "pictures" else set()
    assert set(report.into.unused) == unused
    found = opened(output, name).predict(INPUTS[name][2], verbose=0)
    np.testing.assert_allclose(found, expected(models, name), atol=1e-6)
    assert_only_weights_changed(model, output, set(report.into.targets))


def weights_of(path: Path) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The HDF5 file of a model and {dataset: its bytes in it}, by h5py and zipfile."""
    data = path.read_bytes()
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            data = archive.read("model.weights.h5")
    found: dict[str, tuple[int, int]] = {}
    path.with_suffix(".tmp").write_bytes(data)
    with h5py.File(path.with_suffix(".tmp")) as file:
        file.visititems(
            lambda name, item: (
                found.setdefault(name, (item.id.get_offset(), item.nbytes)) and None
                if isinstance(item, h5py.Dataset) and item.nbytes
                else None
            )
        )
    path.with_suffix(".tmp").unlink()
    return data, found


def assert_only_weights_changed(model: Path, output: Path, filled: set[str]) -> None:
    """Every byte outside of the filled datasets is the model's, and in a zip outside of the CRC of the weights."""
    (before, places), (after, same) = weights_of(model), weights_of(output)
    assert places == same
    left, right = bytearray(before), bytearray(after)
    for name in filled:
        start, nbytes = places[name]
        assert left[start : start + nbytes] != right[start : start + nbytes] or not any(right[start : start + nbytes])
        left[start : start + nbytes] = right[start : start + nbytes] = bytes(nbytes)
    assert left == right
    if model.suffix == ".keras":
        old, new = model.read_bytes(), output.read_bytes()
        at = old.index(before)
        outside = [k for k in range(len(old)) if old[k] != new[k] and not at <= k < at + len(before)]
        assert len(old) == len(new) and len(outside) <= 8


def test_the_optimizer_is_kept_and_said_to_be_old(models: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.keras"
    report = paramtool.convert(models / "words.pt", output, into=models / "words.keras", map=STACK)
    before, after = (keras.saving.load_model(path).optimizer for path in (models / "words.keras", output))
    pairs = zip(before.variables, after.variables, strict=True)
    assert all(np.array_equal(np.array(a), np.array(b)) for a, b in pairs)
    assert any("belongs to the old weights" in text for text in report.warnings)


def test_back_from_keras_gives_the_same_values(models: Path, tmp_path: Path) -> None:
    """The output as a source: into itself it changes nothing."""
    paramtool.convert(models / "pictures.pt", tmp_path / "one.keras", into=models / "pictures.keras")
    more = {"optimizer_state": ["drop"]}
    paramtool.convert(tmp_path / "one.keras", tmp_path / "two.h5", into=models / "pictures.h5", **more)
    paramtool.convert(tmp_path / "two.h5", tmp_path / "three.keras", into=tmp_path / "one.keras", **more)
    assert (tmp_path / "three.keras").read_bytes() == (tmp_path / "one.keras").read_bytes()


def test_networks_of_one_size_are_not_guessed(models: Path, tmp_path: Path) -> None:
    """`top` has a layer (6, 5) and a layer (5, 5); by shape each fits one layer of the model."""
    report = paramtool.convert(models / "words.pt", tmp_path / "out.keras", into=models / "words.keras")
    assert report.into is not None
    pairs = {(one.pair.source.name, one.pair.model.name) for one in report.into.networks}
    assert pairs == {("enc", "enc"), ("bi", "bi"), ("top[0]", "first"), ("top[1]", "second")}


def torch_file(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    torch.save(tensors, path)
    return path


def keras_file(path: Path, layers: list[Any], shape: tuple[int, ...]) -> Path:
    keras.Sequential([keras.Input(shape), *layers]).save(path)
    return path


def test_two_layers_of_one_shape_are_refused_with_the_lines_to_type(tmp_path: Path) -> None:
    source = torch_file(tmp_path / "m.pt", {"left.weight": torch.ones(3, 3), "right.weight": torch.zeros(3, 3)})
    dense = keras.layers.Dense
    model = keras_file(tmp_path / "m.keras", [dense(3, use_bias=False, name=n) for n in ("one", "two")], (3,))
    with pytest.raises(LayoutError, match="2 layers of the source could be 2 layers of the model") as error:
        paramtool.convert(source, tmp_path / "out.keras", into=model)
    assert error.value.exit_code == 5 and "--map left=one --map right=two" in error.value.hint
    maps = re.findall(r"--map (\S+=\w+)", error.value.hint)
    paramtool.convert(source, tmp_path / "out.keras", into=model, map=maps)
    with zipfile.ZipFile(tmp_path / "out.keras") as archive, archive.open("model.weights.h5") as file:
        assert h5py.File(file)["layers/dense/vars/0"][()].sum() == 9


def test_numbered_layers_go_in_order(tmp_path: Path) -> None:
    source = torch_file(tmp_path / "m.pt", {"0.weight": torch.ones(3, 3), "2.weight": torch.zeros(3, 3)})
    dense = keras.layers.Dense
    layers = [dense(3, use_bias=False, name=name) for name in ("dense", "dense_1")]
    model = keras_file(tmp_path / "m.keras", layers, (3,))
    report = paramtool.convert(source, tmp_path / "out.keras", into=model)
    assert report.into is not None
    assert [(one.source, one.model, one.how) for one in report.into.layers] == [
        ("0", "dense", "order"),
        ("2", "dense_1", "order"),
    ]


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (lambda k: k.LSTM(4, activation="relu", name="enc"), r"activation=relu"),
        (lambda k: k.GRU(4, reset_after=False, name="enc"), r"reset=before"),
        (lambda k: k.LSTM(4, go_backwards=True, name="enc"), r"the model is lstm input=5 hidden=4 backward"),
        (lambda k: k.Bidirectional(k.LSTM(4), merge_mode="sum", name="enc"), r"merge=concat.*merge=sum"),
    ],
    ids=["activation", "reset", "backward", "merge"],
)
def test_another_network_is_refused_with_both_specs(layer: Any, words: str, tmp_path: Path) -> None:
    made = layer(keras.layers)
    kind = nn.GRU if "gru" in type(made).__name__.lower() else nn.LSTM
    own = kind(5, 4, bidirectional="Bi" in type(made).__name__).state_dict()
    source = torch_file(tmp_path / "m.pt", {f"enc.{name}": value for name, value in own.items()})
    model = keras_file(tmp_path / "m.keras", [made], (STEPS, 5))
    with pytest.raises(LayoutError, match=words):
        paramtool.convert(source, tmp_path / "out.keras", into=model)
    assert not (tmp_path / "out.keras").exists()


def test_every_mismatch_is_in_one_error(tmp_path: Path) -> None:
    source = torch_file(
        tmp_path / "m.pt",
        {"a.weight": torch.ones(3, 4), "b.weight": torch.ones(5, 3, dtype=torch.float64), "b.bias": torch.ones(6)},
    )
    layers = [keras.layers.Dense(7, name="a"), keras.layers.Dense(5, name="b")]
    model = keras_file(tmp_path / "m.keras", layers, (4,))
    with pytest.raises(LayoutError) as error:
        paramtool.convert(source, tmp_path / "out.keras", into=model)
    text = error.value.message
    assert "'a.weight' has shape [3, 4]" in text and "'b.weight' has shape" in text and "'b.bias' has shape [6]" in text


def test_narrow_numbers_are_widened_and_wide_ones_refused(tmp_path: Path) -> None:
    values = torch.randn(3, 4)
    model = keras_file(tmp_path / "m.keras", [keras.layers.Dense(3, name="fc")], (4,))
    for dtype in (torch.float16, torch.bfloat16):
        own = {"fc.weight": values.to(dtype), "fc.bias": values[:, 0].to(dtype)}
        source = torch_file(tmp_path / "m.pt", own)
        report = paramtool.convert(source, tmp_path / "out.keras", into=model, force=True)
        assert report.into is not None and report.into.layers[0].fillings[0].widened == str(dtype).split(".")[1]
        found = keras.saving.load_model(tmp_path / "out.keras").get_weights()
        assert np.array_equal(found[0], own["fc.weight"].float().numpy().T)
    source = torch_file(tmp_path / "m.pt", {"fc.weight": values.double(), "fc.bias": values[:, 0].double()})
    with pytest.raises(LayoutError, match=r"float64.*float32") as error:
        paramtool.convert(source, tmp_path / "out.keras", into=model, force=True)
    assert "--dtype" in error.value.hint


def test_what_is_left_on_both_sides_is_listed(tmp_path: Path) -> None:
    source = torch_file(tmp_path / "m.pt", {"fc.weight": torch.ones(3, 4), "more.weight": torch.ones(9, 9)})
    model = keras_file(tmp_path / "m.keras", [keras.layers.Dense(3, name="fc")], (4,))
    output = tmp_path / "out.keras"
    command = ["convert", str(source), "--into", str(model), "-o", str(output), "--json"]
    found = CliRunner().invoke(cli, command)
    assert isinstance(found.exception, LayoutError) and "'more.weight' of the source has no" in str(found.exception)
    found = CliRunner().invoke(cli, [*command, "--partial"])
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert said["into"]["unfilled"] == ["layers/dense/vars/1"] and said["into"]["unused"] == ["more.weight"]
    assert "1 tensor of the model keep" in found.stderr
    with pytest.raises(LayoutError, match="would keep the old values"):
        paramtool.convert(source, output, into=model, strict=True, force=True, partial=True)


def test_names_and_places(models: Path, tmp_path: Path) -> None:
    source, model = models / "words.pt", models / "words.keras"
    with pytest.raises(UsageError, match=r"ends as the model does, in \.keras"):
        paramtool.convert(source, tmp_path / "out.h5", into=model)
    with pytest.raises(OutputError, match="is an input"):
        paramtool.convert(source, model, into=model, force=True)
    with pytest.raises(OutputError, match="is an input"):
        paramtool.convert(tmp_path / "x.keras", tmp_path / "x.keras", into=_copy(model, tmp_path / "x.keras"))
    with pytest.raises(UsageError, match=r"the model's networks are keras\.vars"):
        paramtool.convert(source, tmp_path / "out.keras", into=model, target="onnx")
    with pytest.raises(UsageError, match="expected two networks, two layers or two tensors"):
        paramtool.convert(source, tmp_path / "out.keras", into=model, map=["enc=nothing"])
    with pytest.raises(UsageError, match="replaces weights in the model files of"):
        paramtool.convert(source, tmp_path / "out.pt", into=source)
    with pytest.raises(UsageError, match="into which layer of a model"):
        paramtool.convert(source, tmp_path / "out.pt", map=["enc=nothing"])


def _copy(path: Path, to: Path) -> Path:
    to.write_bytes(path.read_bytes())
    return to


def test_datasets_that_are_not_one_run_are_refused_by_name(tmp_path: Path) -> None:
    source = torch_file(tmp_path / "m.pt", {"fc.weight": torch.ones(3, 4)})
    for how in ({"chunks": (2, 2)}, {"compression": "gzip"}, {"dtype": ">f4"}):
        with h5py.File(tmp_path / "m.weights.h5", "w") as file:
            group = file.create_group("layers/dense/vars")
            group.attrs["name"] = "fc"
            group.create_dataset("0", data=np.zeros((4, 3), how.pop("dtype", "f4")), **how)
        with pytest.raises(PlanError, match=r"'layers/dense/vars/0' is stored (in chunks|big-endian)"):
            paramtool.convert(source, tmp_path / "out.weights.h5", into=tmp_path / "m.weights.h5")


def test_one_dataset_under_two_names(tmp_path: Path) -> None:
    """Hard links: filled once; sources that differ are refused."""
    with h5py.File(tmp_path / "m.h5", "w") as file:
        for name in ("a", "b"):
            file.create_group(f"{name}/{name}")
        file["a/a/kernel:0"] = np.zeros((4, 3), "f4")
        file["b/b/kernel:0"] = file["a/a/kernel:0"]
    values = torch.randn(3, 4)
    tied = torch_file(tmp_path / "tied.pt", {"a.weight": values, "b.weight": values})
    report = paramtool.convert(tied, tmp_path / "out.h5", into=tmp_path / "m.h5", strict=True)
    assert report.into is not None and len(report.into.targets) == 1
    with h5py.File(tmp_path / "out.h5") as file:
        assert np.array_equal(file["b/b/kernel:0"], values.numpy().T)
    apart = torch_file(tmp_path / "apart.pt", {"a.weight": values, "b.weight": values + 1})
    with pytest.raises(LayoutError, match="are one tensor of the model"):
        paramtool.convert(apart, tmp_path / "out.h5", into=tmp_path / "m.h5", force=True)
    alone = torch_file(tmp_path / "alone.pt", {"a.weight": values})
    report = paramtool.convert(alone, tmp_path / "out.h5", into=tmp_path / "m.h5", force=True, strict=True)
    assert report.into is not None and not report.into.unfilled


def test_a_model_that_changes_meanwhile_is_noticed(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paramtool.commands import into

    model = _copy(models / "words.keras", tmp_path / "m.keras")
    real = into.write

    def changed(*args: Any) -> None:
        real(*args)
        os.utime(model, ns=(1, 1))

    monkeypatch.setattr(into, "write", changed)
    with pytest.raises(FormatError, match="changed while it was read"):
        paramtool.convert(models / "words.pt", tmp_path / "out.keras", into=model, verify=False)
    assert not (tmp_path / "out.keras").exists()


def test_a_truncated_model_is_refused(models: Path, tmp_path: Path) -> None:
    data = (models / "words.keras").read_bytes()
    for length in (0, 3, 30, len(data) // 2, len(data) - 1):
        (tmp_path / "m.keras").write_bytes(data[:length])
        with pytest.raises(FormatError):
            paramtool.convert(models / "words.pt", tmp_path / "out.keras", into=tmp_path / "m.keras")
        assert not (tmp_path / "out.keras").exists()


def test_textgenrnn_in_keras_3(samples: Path, tmp_path: Path) -> None:
    """Weights of Keras 2's CuDNNLSTM, which Keras 3 dropped; the outputs are calculated here from the file itself."""

    @keras.saving.register_keras_serializable("textgenrnn")
    class AttentionWeightedAverage(keras.layers.Layer):  # type: ignore[misc,name-defined,unused-ignore]
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(shape=(shape[-1], 1), name="attention_W")

        def call(self, x: Any) -> Any:
            share = keras.ops.softmax(keras.ops.squeeze(keras.ops.matmul(x, self.w), -1))
            return keras.ops.sum(x * keras.ops.expand_dims(share, -1), 1)

    k = keras.layers
    given = keras.Input((STEPS,), name="input")
    words = k.Embedding(465, 100, name="embedding")(given)
    one = k.LSTM(128, return_sequences=True, name="rnn_1")(words)
    two = k.LSTM(128, return_sequences=True, name="rnn_2")(one)
    seen = AttentionWeightedAverage(name="attention")(k.Concatenate(name="rnn_concat")([words, one, two]))
    model = keras.Model(given, k.Dense(465, activation="softmax", name="output")(seen))
    model.save(tmp_path / "m.keras")
    source = samples / "minimaxir__textgenrnn__hacker_news.hdf5"
    report = paramtool.convert(source, tmp_path / "out.keras", into=tmp_path / "m.keras", strict=True)
    assert any("does not say backward=no" in text for text in report.warnings)
    batch = np.arange(2 * STEPS).reshape(2, STEPS) * 7
    found = keras.saving.load_model(tmp_path / "out.keras").predict(batch, verbose=0)
    np.testing.assert_allclose(found, _textgenrnn(source, batch), atol=1e-6)


def _textgenrnn(path: Path, batch: Any) -> Any:
    """The model in NumPy: each gate of a CuDNNLSTM has the bytes of its (hidden, in) matrix."""
    with h5py.File(path) as file:
        own = {name.rpartition("/")[2] + name.partition("/")[0]: file[name][()] for name in _datasets(file)}
    x = own["embeddings:0embedding"][batch].astype("f8")
    parts = [x]
    for at in ("rnn_1", "rnn_2"):
        kernel, recurrent = own[f"kernel:0{at}"], own[f"recurrent_kernel:0{at}"]
        gates = [
            (kernel[:, g : g + 128].reshape(128, -1), recurrent[:, g : g + 128].reshape(128, 128))
            for g in range(0, 512, 128)
        ]
        bias = own[f"bias:0{at}"].reshape(2, 4, 128).sum(0)
        h = c = np.zeros((len(batch), 128))
        steps = []
        for t in range(batch.shape[1]):
            i, f, g, o = (x[:, t] @ w.T + h @ u.T + b for (w, u), b in zip(gates, bias, strict=True))
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            h = _sigmoid(o) * np.tanh(c)
            steps.append(h)
        x = np.stack(steps, 1)
        parts.append(x)
    seen = np.concatenate(parts, -1)
    share = _softmax((seen @ own["attention_W:0attention"])[..., 0])
    return _softmax((seen * share[..., None]).sum(1) @ own["kernel:0output"] + own["bias:0output"])


def _datasets(file: Any) -> list[str]:
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_the_line_that_verifies_it(suffix: str, models: Path, tmp_path: Path) -> None:
    source, model, output = models / "words.pt", models / f"words{suffix}", tmp_path / f"out{suffix}"
    runner = CliRunner()
    made = runner.invoke(cli, ["convert", str(source), "--into", str(model), "-o", str(output), "--map", STACK[0]])
    line = re.findall(r"paramtool (verify .*)", made.stdout)[0]
    ran = runner.invoke(cli, shlex.split(line))
    assert ran.exit_code == 0 and "compared: tensors, all other bytes" in ran.stdout, ran.output
    data = output.read_bytes()
    body, places = weights_of(output)
    base = data.index(body)
    weight = next(name for name in places if name.endswith(("dense/vars/0", "fc/kernel")))
    for at, words in ((base + places[weight][0], "differs from its source"), (base + 100, "")):
        output.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        ran = runner.invoke(cli, shlex.split(line))
        assert "difference: " in ran.output or isinstance(ran.exception, FormatError), (
            ran.output
        )  # a zip has a CRC of its own
        assert suffix == ".keras" or not words or words in ran.output
    output.write_bytes(data)
    other = paramtool.verify(output, models / "words.pt", into=model, map=STACK)
    assert not other.differences and other.names == len(places) - _optimizer(places)
    with pytest.raises(UsageError, match="what went into a model"):
        paramtool.verify(output, source, map=STACK)


def _optimizer(places: dict[str, tuple[int, int]]) -> int:
    return sum(name.startswith("optimizer") for name in places)


def test_a_model_in_memory(models: Path) -> None:
    model = words_model()
    before = [np.array(value) for value in model.get_weights()]
    with pytest.raises(LayoutError, match="has 1 layer"):
        paramtool.keras.load_into(model, models / "words.pt", map=["enc=first,second"])
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    report = paramtool.keras.load_into(model, models / "words.pt", map=STACK, strict=True)
    found = model.predict(INPUTS["words"][2], verbose=0)
    np.testing.assert_allclose(found, expected(models, "words"), atol=1e-6)
    assert len(report.filled) == len(before) and not report.unused
    assert report.filled["layers/dense/vars/0"] == ("fc.weight",)


def test_a_tree_like_that_of_flax(tmp_path: Path) -> None:
    """By flax' conventions, written out; an oracle runs flax itself."""
    cell = nn.LSTMCell(6, 5)
    tensors = {f"cell.{name}": value for name, value in cell.state_dict().items()}
    shapes = {"Dense_0.weight": (3, 8), "Dense_0.bias": (3,), "Conv_0.weight": (4, 3, 2, 2)}
    shapes |= {f"bn.{name}": (4,) for name in ("weight", "bias", "running_mean", "running_var")}
    tensors |= {name: torch.randn(shape) for name, shape in shapes.items()}
    source = torch_file(tmp_path / "m.pt", tensors)

    def zeros(*shape: int) -> Any:
        return np.zeros(shape, "f4")

    gates = {f"i{g}": {"kernel": zeros(6, 5)} for g in "ifgo"}
    gates |= {f"h{g}": {"kernel": zeros(5, 5), "bias": zeros(5)} for g in "ifgo"}
    like = {
        "params": {
            "Dense_0": {"kernel": zeros(8, 3), "bias": zeros(3)},
            "Conv_0": {"kernel": zeros(2, 2, 3, 4)},
            "bn": {"scale": zeros(4), "bias": zeros(4)},
            "cell": gates,
        },
        "batch_stats": {"bn": {"mean": zeros(4), "var": zeros(4)}},
    }
    with pytest.raises(LayoutError, match=r"'Dense_0.weight' .*its inputs can be a flattened image"):
        paramtool.flax.load(source, like=like)
    found = paramtool.flax.load(source, like=like, flatten="channels-last")
    own = {name: value.detach().numpy() for name, value in tensors.items()}
    assert np.array_equal(found["params"]["Dense_0"]["kernel"], own["Dense_0.weight"].T)
    assert np.array_equal(found["params"]["Conv_0"]["kernel"], own["Conv_0.weight"].transpose(2, 3, 1, 0))
    assert np.array_equal(found["batch_stats"]["bn"]["var"], own["bn.running_var"])
    assert np.array_equal(found["params"]["bn"]["scale"], own["bn.weight"])
    for k, gate in enumerate("ifgo"):
        rows = slice(5 * k, 5 * k + 5)
        assert np.array_equal(found["params"]["cell"][f"i{gate}"]["kernel"], own["cell.weight_ih"][rows].T)
        bias = own["cell.bias_ih"][rows] + own["cell.bias_hh"][rows]
        assert np.array_equal(found["params"]["cell"][f"h{gate}"]["bias"], bias)
    like["params"]["more"] = {"kernel": zeros(9, 9)}
    with pytest.raises(LayoutError, match="would keep the old values"):
        paramtool.flax.load(source, like=like, flatten="channels-last")
    kept = paramtool.flax.load(source, like=like, strict=False, flatten="channels-last")
    assert kept["params"]["more"]["kernel"] is like["params"]["more"]["kernel"]


def test_a_keras_file_needs_a_model(tmp_path: Path) -> None:
    source = torch_file(tmp_path / "m.pt", {"fc.weight": torch.ones(3, 4)})
    with pytest.raises(UsageError, match=r"`convert --into MODEL\.keras` writes a whole model"):
        paramtool.convert(source, tmp_path / "out.keras")


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_names_that_keras_made_go_by_order(suffix: str, tmp_path: Path) -> None:
    """Two models of one process: the second's first layer may be called as the first's second one."""

    def model() -> Any:
        layers = [keras.layers.Dense(3, use_bias=False), keras.layers.Dense(3, use_bias=False)]
        return keras.Sequential([keras.Input((3,)), *layers])

    keras.backend.clear_session()
    one = model()
    one.save(tmp_path / f"one{suffix}")
    keras.backend.clear_session()
    keras.layers.Dense(1)
    model().save(tmp_path / f"two{suffix}")
    paramtool.convert(tmp_path / f"one{suffix}", tmp_path / f"out{suffix}", into=tmp_path / f"two{suffix}", strict=True)
    found = keras.saving.load_model(tmp_path / f"out{suffix}", compile=False)
    assert all(np.array_equal(a, b) for a, b in zip(found.get_weights(), one.get_weights(), strict=True))


def test_what_keras_computes_otherwise_is_said(tmp_path: Path) -> None:
    """Keras' epsilon is 100 times PyTorch's: weights cannot show it."""
    state = nn.ModuleDict({"conv": nn.Conv2d(3, 4, 3), "bn": nn.BatchNorm2d(4), "fc": nn.Linear(4, 5)}).state_dict()
    source = torch_file(tmp_path / "m.pt", state)

    def warnings(epsilon: float) -> str:
        norm = keras.layers.BatchNormalization(epsilon=epsilon, name="bn")
        layers = [keras.layers.Conv2D(4, 3, name="conv"), norm, keras.layers.Dense(5, name="fc")]
        model = keras_file(tmp_path / "m.keras", layers, (4, 4, 3))
        return "; ".join(paramtool.convert(source, tmp_path / "out.keras", into=model, force=True).warnings)

    assert "'bn' with epsilon 0.001" in warnings(1e-3)
    assert "epsilon" not in warnings(1e-5)
    again = paramtool.convert(tmp_path / "out.keras", tmp_path / "b.keras", into=tmp_path / "m.keras")
    assert not again.warnings  # both are of Keras


@pytest.mark.parametrize("kind", ["BatchNormalization", "LayerNormalization"])
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_fresh_norms_of_other_names(suffix: str, kind: str, tmp_path: Path) -> None:
    """Any of them is right, whatever their epsilons, which are the model's, where the source does not say them."""

    def model(*names: str, **more: float) -> keras.Model:
        norms = [getattr(keras.layers, kind)(name=name, **more) for name in names]
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="a"), *norms])

    one, other = model("p", "q"), model("x", "y")
    one.save_weights(tmp_path / "s.weights.h5") if suffix == ".weights.h5" else one.save(tmp_path / "s.keras")
    other.save(tmp_path / "m.keras")
    model("x", "y", epsilon=1e-5).save(tmp_path / "other.keras")
    report = paramtool.convert(tmp_path / f"s{suffix}", tmp_path / "o.keras", into=tmp_path / "m.keras", strict=True)
    assert not report.warnings
    found = keras.saving.load_model(tmp_path / "o.keras", compile=False)
    assert all(np.array_equal(a, b) for a, b in zip(found.get_weights(), one.get_weights(), strict=True))
    if suffix == ".keras":
        with pytest.raises(LayoutError, match=r"epsilon=0\.001; the model has epsilon=1e-05"):
            paramtool.convert(tmp_path / "s.keras", tmp_path / "o2.keras", into=tmp_path / "other.keras")
        return
    (said,) = paramtool.convert(tmp_path / f"s{suffix}", tmp_path / "o2.keras", into=tmp_path / "other.keras").warnings
    assert "'x', 'y' with epsilon 1e-05" in said and "Keras's default is 0.001" in said


@pytest.mark.parametrize(("name", "is_filled"), [("Conv_0", True), ("conv1", True), ("conv_up", False)])
def test_a_flax_layer_that_may_be_a_transposed_convolution(name: str, is_filled: bool, tmp_path: Path) -> None:
    """flax mirrors the kernels of transposed convolutions, and no tensor shows which a layer is: only its name does."""
    import paramtool.flax

    source = torch_file(tmp_path / "m.pt", {f"{name}.weight": torch.randn(2, 3, 4, 5)})
    like = {"params": {name: {"kernel": np.zeros((4, 5, 3, 2), np.float32)}}}
    if is_filled:
        found = paramtool.flax.load(source, like=like)["params"][name]["kernel"]
        assert np.array_equal(found, torch.load(source)[f"{name}.weight"].numpy().transpose(2, 3, 1, 0))
    else:
        with pytest.raises(LayoutError):
            paramtool.flax.load(source, like=like)
