"""A model that `convert --into` filled computes what the source computed: both are run, or it is refused."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import paramtool
from paramtool.cli.main import cli
from paramtool.errors import LayoutError, UnsafeError
from tests.hostile.command import quick
from tests.versions import exporting

keras = pytest.importorskip("keras")
onnxruntime = pytest.importorskip("onnxruntime")
from tests.oracles import into_cases  # noqa: E402 - it imports keras
from tests.oracles.into_cases import FILLED, FLATTENED, MIXED, PERMUTED, REFUSED, Case, filled_with_noise, k, net, seq  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras 3.15's own
ATOL = 2e-5
"""Sums of a few dozen numbers around 1 in float32, in other orders."""


def saved_model(model: Any, path: Path) -> Path:
    (model.save_weights if path.name.endswith(".weights.h5") else model.save)(path)
    return path


def saved_case(case: Case, folder: Path) -> tuple[nn.Module, Any, Path, dict[str, Any]]:
    """The module and the model of a case, the file of the model, and options; the weights are in `s.pt`."""
    keras.utils.set_random_seed(1)
    module, more = filled_with_noise(case.source()), dict(case.more)
    state = dict(module.state_dict()) | more.pop("extra", {})
    state |= {name: state[other] for name, other in more.pop("tied", {}).items()}
    torch.save(state, folder / "s.pt")
    model = case.model()
    return module, model, saved_model(model, folder / f"m{case.suffix}"), more


def by_keras(path: Path, model: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What Keras computes with the weights in a file."""
    if path.name.endswith(".weights.h5"):
        model.load_weights(path)
    else:
        model = keras.saving.load_model(path, compile=False)
    found: np.ndarray[Any, Any] = model.predict(x, verbose=0)
    return found


def for_keras(case: Case, x: torch.Tensor) -> np.ndarray[Any, Any]:
    """An input in Keras' order of axes."""
    moves = case.moves or ((0, 2, 3, 1) if len(case.shape) == 3 else tuple(range(x.ndim)))
    return x.permute(moves).numpy()


def compare(case: Case, folder: Path, **more: Any) -> None:
    """Fill the model, and run both."""
    module, model, path, said = saved_case(case, folder)
    output = folder / f"out{case.suffix}"
    paramtool.convert(folder / "s.pt", output, into=path, **said, **more)
    x = torch.rand(2, *case.shape)
    np.testing.assert_allclose(
        by_keras(output, model, for_keras(case, x)), module(x).detach().numpy(), atol=ATOL, rtol=1e-5
    )
    assert not paramtool.verify(output, folder / "s.pt", into=path, **said, **more).differences


def both_files(cases: Sequence[Case]) -> list[Any]:
    """Cases in each file that Keras loads again."""
    return [pytest.param(one, suffix, id=f"{one.name}-{suffix}") for one in cases for suffix in one.suffixes]


@pytest.mark.parametrize("case", FILLED, ids=lambda case: case.name)
def test_keras_computes_what_torch_computes(case: Case, tmp_path: Path) -> None:
    compare(case, tmp_path)


@pytest.mark.parametrize(("case", "suffix"), both_files(FLATTENED))
def test_flattened_images(case: Case, suffix: str, tmp_path: Path) -> None:
    """The rows move once `--flatten` says the order of the source, and not before."""
    flatten = case.more.get("flatten", "channels-first")
    case = case._replace(suffix=suffix, more={})
    with pytest.raises(LayoutError, match=r"an image of . channels is flattened there") as error:
        compare(case, tmp_path)
    assert f"--flatten {flatten}" in error.value.hint and error.value.exit_code == 5
    compare(case, tmp_path, flatten=flatten)


@pytest.mark.parametrize(("case", "suffix"), both_files(PERMUTED))
def test_images_whose_axes_are_moved_back(case: Case, suffix: str, tmp_path: Path) -> None:
    """Nothing has to move, whether `--flatten` says so or not."""
    for flatten in ("", "channels-first"):
        compare(case._replace(suffix=suffix), tmp_path, flatten=flatten)
        (tmp_path / f"out{suffix}").unlink()


@pytest.mark.parametrize("case", MIXED, ids=lambda case: case.name)
def test_images_in_neither_order(case: Case, tmp_path: Path) -> None:
    for flatten in ("", "channels-first", "channels-last"):
        with pytest.raises(LayoutError, match="an image is flattened there") as error:
            compare(case, tmp_path, flatten=flatten)
        assert error.value.exit_code == 5 and "--flatten channels" not in error.value.hint


def test_an_image_beside_other_values_is_not_reordered(tmp_path: Path) -> None:
    """Which of the rows are the image's is not known; what the source has in Keras' order stays."""
    case = Case("", into_cases.Beside, into_cases.beside_model, (3, 5, 4))
    _, _, path, _ = saved_case(case, tmp_path)
    for flatten in ("", "channels-first"):
        with pytest.raises(LayoutError, match="its order hidden by other values beside it"):
            paramtool.convert(tmp_path / "s.pt", tmp_path / "out.keras", into=path, flatten=flatten)
    paramtool.convert(tmp_path / "s.pt", tmp_path / "out.keras", into=path, flatten="channels-last")


def test_an_image_made_of_what_is_not_reordered(tmp_path: Path) -> None:
    """The outputs of a recurrent layer have the order of its units, which its own inputs have, too."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.r, self.c = nn.GRU(3, 24, batch_first=True), nn.ConvTranspose2d(4, 2, 2)

    model = seq((5, 3), k.GRU(24, name="r"), k.Reshape((3, 2, 4)), k.Conv2DTranspose(2, 2, name="c")).save
    model(tmp_path / "m.keras")
    torch.save(filled_with_noise(Steps()).state_dict(), tmp_path / "s.pt")
    for flatten, words in (("", "is flattened there"), ("channels-first", "an image is made of its outputs")):
        with pytest.raises(LayoutError, match=words):
            paramtool.convert(tmp_path / "s.pt", tmp_path / "o.keras", into=tmp_path / "m.keras", flatten=flatten)
    paramtool.convert(tmp_path / "s.pt", tmp_path / "o.keras", into=tmp_path / "m.keras", flatten="channels-last")


@keras.saving.register_keras_serializable("tests")
def doubled(x: Any) -> Any:
    """A function that a file of Keras names, and holds no code of."""
    return x * 2


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_lambda_hides_the_order(suffix: str, tmp_path: Path) -> None:
    """`--flatten` says the order of the source, and not what a function does: the error names it, and what to do."""

    def case(layer: Any) -> Case:
        return into_cases.through("", lambda x: x.flatten(1) * 2, layer, k.Flatten())._replace(suffix=suffix)

    for flatten in ("", "channels-first", "channels-last"):
        with pytest.raises(
            LayoutError, match="an image is flattened there, its order hidden by Lambda 'twice'"
        ) as error:
            compare(case(k.Lambda(doubled, name="twice")), tmp_path, flatten=flatten)
        assert "Rescaling" in error.value.hint
    compare(case(k.Rescaling(2.0)), tmp_path, flatten="channels-first")


OWN: dict[str, tuple[Any, ...]] = {  # {what the model has of its own: the layers of the model}
    "batch norm": (lambda: k.Dense(4, name="a"), lambda: k.BatchNormalization(), lambda: k.Dense(2, name="b")),
    "layer norm": (lambda: k.Dense(4, name="a"), lambda: k.LayerNormalization(), lambda: k.Dense(2, name="b")),
    "slopes": (lambda: k.Dense(4, name="a"), lambda: k.PReLU(), lambda: k.Dense(2, name="b")),
    "bias": (lambda: k.Dense(4, name="a"), lambda: k.EinsumDense("bi,io->bo", 4), lambda: k.Dense(2, name="b")),
}


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".weights.h5"])
@pytest.mark.parametrize("own", OWN)
def test_what_the_model_has_of_its_own_changes_nothing(own: str, suffix: str, tmp_path: Path) -> None:
    """The source lacks it: refused, and `--partial` leaves it and names it."""
    source = net(a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    torch.save(filled_with_noise(source).state_dict(), tmp_path / "s.pt")
    model = noisy(seq((3,), *(layer() for layer in OWN[own])))
    path, output = saved_model(model, tmp_path / f"m{suffix}"), tmp_path / f"out{suffix}"
    with pytest.raises(LayoutError, match="of the model would keep its values") as error:
        paramtool.convert(tmp_path / "s.pt", output, into=path)
    assert error.value.exit_code == 5 and not output.exists()
    report = paramtool.convert(tmp_path / "s.pt", output, into=path, partial=True)
    assert report.into is not None and len(report.into.targets) == 4 and report.into.unfilled


def test_a_neutral_norm_of_the_model_stays(tmp_path: Path) -> None:
    """The statistics of a fresh batch norm change nothing."""
    source = net(a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    torch.save(filled_with_noise(source).state_dict(), tmp_path / "s.pt")
    norm = k.BatchNormalization(epsilon=1e-7)
    path = saved_model(seq((3,), k.Dense(4, name="a"), norm, k.Dense(2, name="b")), tmp_path / "m.keras")
    paramtool.convert(tmp_path / "s.pt", tmp_path / "out.keras", into=path)
    x = torch.rand(2, 3)
    found = by_keras(tmp_path / "out.keras", None, x.numpy())
    np.testing.assert_allclose(found, source(x).detach().numpy(), atol=ATOL)


@pytest.mark.parametrize("own", [nn.BatchNorm1d(4), nn.LayerNorm(4), nn.PReLU(4)], ids=lambda one: type(one).__name__)
def test_what_an_exported_model_has_of_its_own(own: nn.Module, tmp_path: Path) -> None:
    torch.save(filled_with_noise(net(a=nn.Linear(3, 4), b=nn.Linear(4, 2))).state_dict(), tmp_path / "s.pt")
    model = filled_with_noise(net(a=nn.Linear(3, 4), n=own, b=nn.Linear(4, 2))).eval()
    more = {"training": torch.onnx.TrainingMode.PRESERVE, "dynamo": False}
    path = exported(model, torch.rand(2, 3), tmp_path / "m.onnx", **more)
    with pytest.raises(LayoutError, match=r"'n\.\w+' of the model would keep its values"):
        paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=path)
    paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=path, partial=True)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("beside", [(), (k.Dropout(0.5),), (k.Lambda(lambda x: x * 3, name="more"),)])
def test_a_model_with_code_is_unsafe(beside: tuple[Any, ...], suffix: str, tmp_path: Path) -> None:
    """Whether or not the rest succeeds."""
    torch.save(nn.ModuleDict({"fc": nn.Linear(4, 3)}).state_dict(), tmp_path / "s.pt")
    code = k.Lambda(lambda x: x * 2, name="code")
    path = saved_model(seq((4,), k.Dense(3, name="fc"), code, *beside), tmp_path / f"m{suffix}")
    output = tmp_path / f"out{suffix}"
    with pytest.raises(UnsafeError, match="marshal"):
        paramtool.convert(tmp_path / "s.pt", output, into=path)
    assert not output.exists()
    paramtool.convert(tmp_path / "s.pt", output, into=path, allow_unknown=True)
    with pytest.raises(UnsafeError, match="marshal"):
        paramtool.verify(output, tmp_path / "s.pt", into=path)
    assert not paramtool.verify(output, tmp_path / "s.pt", into=path, allow_unknown=True).differences


def test_what_a_lambda_hides_can_be_put_in_by_hand(tmp_path: Path) -> None:
    """As the hint of the error says."""
    case = into_cases.through("", lambda x: x.flatten(1) * 2, k.Lambda(lambda x: x * 2, name="twice"), k.Flatten())
    module, _, path, _ = saved_case(case, tmp_path)
    state = torch.load(tmp_path / "s.pt")
    (weight,) = (name for name, one in state.items() if one.ndim == 2)
    state[weight] = state[weight].unflatten(1, (4, 9)).transpose(1, 2).flatten(1).t().contiguous()
    torch.save(state, tmp_path / "s.pt")
    maps = [f"{weight}=layers/dense/vars/0:as-is", f"{weight.replace('weight', 'bias')}=layers/dense/vars/1"]
    output = tmp_path / "out.keras"
    paramtool.convert(tmp_path / "s.pt", output, into=path, map=maps, allow_unknown=True)
    x = torch.rand(2, *case.shape)
    found = keras.saving.load_model(output, compile=False, safe_mode=False).predict(for_keras(case, x), verbose=0)
    np.testing.assert_allclose(found, module(x).detach().numpy(), atol=ATOL, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize(("case", "words"), REFUSED, ids=lambda one: one.name if isinstance(one, Case) else "")
def test_what_would_compute_something_else_is_refused(case: Case, words: str, tmp_path: Path) -> None:
    """With values that change outputs; `--partial` fills the rest."""
    _, _, path, more = saved_case(case, tmp_path)
    output = tmp_path / f"out{case.suffix}"
    with pytest.raises(LayoutError) as error:
        paramtool.convert(tmp_path / "s.pt", output, into=path, **more)
    assert words in error.value.message + error.value.hint and not output.exists()
    report = paramtool.convert(tmp_path / "s.pt", output, into=path, **more, partial=True)
    assert report.into is not None and report.into.unused
    assert not paramtool.verify(output, tmp_path / "s.pt", into=path, **more, partial=True).differences


def exported(module: nn.Module, x: torch.Tensor, path: Path, **more: Any) -> Path:
    """A module as an exporter of torch writes it; without `dynamo` the tracing one does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(path), **{**exporting(), **more}, verbose=False)
    return path


def by_onnxruntime(path: Path, x: torch.Tensor) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: np.ndarray[Any, Any] = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    return found


def cnn(bias: bool = True) -> nn.Module:
    """A convolution, a norm, and a dense layer on the flattened image."""
    return net(
        conv=nn.Conv2d(3, 4, 3, bias=bias), bn=nn.BatchNorm2d(4), act=nn.ReLU(), flat=nn.Flatten(), fc=nn.Linear(36, 5)
    )


def crnn() -> nn.Module:
    """A recurrent layer on the rows of an image."""
    rows = into_cases.Fn(lambda x: x.permute(0, 3, 1, 2).flatten(2))
    return net(
        conv=nn.Conv2d(3, 4, 3), rows=rows, rnn=nn.LSTM(12, 6, batch_first=True), o=into_cases.Fn(into_cases.last)
    )


def plain() -> nn.Module:
    """The same without the norm."""
    return net(**{name: layer for name, layer in cnn().named_children() if name != "bn"})


class Block(nn.Module):
    """Layers whose weights exporters store with more axes, and under numbers."""

    def __init__(self, size: int, groups: int) -> None:
        super().__init__()
        self.act, self.gn, self.conv = nn.PReLU(size), nn.GroupNorm(groups, size), nn.Conv2d(size, size, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.act(self.gn(self.conv(x)))
        return found


class Blocks(nn.Module):
    """Several of one size, whose order is not that in which they run, and norms of one channel in a group."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.blocks = Block(6, 3), nn.ModuleList([Block(6, 6), Block(6, 2)])
        self.first, self.act = nn.Conv2d(3, 6, 1), nn.PReLU()
        self.norms = nn.Sequential(nn.InstanceNorm2d(6, affine=True), nn.InstanceNorm2d(6))
        for value in self.parameters():  # exporters store equal values once
            nn.init.normal_(value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.norms(self.first(x)))
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.last(x).mean((2, 3))
        return found


def test_equal_values_that_an_exporter_stored_once(tmp_path: Path) -> None:
    """They are of several layers, and none of these is filled."""
    model, x = Blocks(), torch.rand(1, 3, 5, 5)
    for layer in model.modules():
        if isinstance(layer, (nn.PReLU, nn.GroupNorm)):
            layer.load_state_dict({name: torch.ones_like(one) for name, one in layer.state_dict().items()})
    path, output = exported(model.eval(), x, tmp_path / "m.onnx"), tmp_path / "out.onnx"
    torch.save(filled_with_noise(Blocks()).state_dict(), tmp_path / "s.pt")
    with pytest.raises(LayoutError, match=r"'blocks\.1\.gn\.weight' of the source has no place"):
        paramtool.convert(tmp_path / "s.pt", output, into=path)
    report = paramtool.convert(tmp_path / "s.pt", output, into=path, partial=True)
    assert report.into is not None and "last.act.weight" in report.into.unused
    assert not {"last.act.weight", "blocks.0.gn.bias"} & {
        one.source for layer in report.into.layers for one in layer.fillings
    }


@pytest.mark.parametrize(
    ("make", "dynamo"), [(plain, False), (plain, True), (crnn, False), (Blocks, False), (Blocks, True)]
)
def test_onnxruntime_computes_what_torch_computes(make: Any, dynamo: bool, tmp_path: Path) -> None:
    """PyTorch and ONNX flatten alike."""
    torch.manual_seed(0)
    one, two, x = make().eval(), filled_with_noise(make()), torch.rand(1, 3, 5, 5)
    if dynamo:
        pytest.importorskip("onnxscript")
    model = exported(one, x, tmp_path / "m.onnx", **({"dynamo": True} if dynamo else {}))
    torch.save(two.state_dict(), tmp_path / "s.pt")
    paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=model, strict=True)
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "out.onnx", x), two(x).detach().numpy(), atol=ATOL)


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".weights.h5"])
def test_keras_into_keras(suffix: str, tmp_path: Path) -> None:
    """Both sides flatten alike."""

    def model() -> Any:
        return seq((5, 5, 3), k.Conv2D(4, 3, name="c"), k.Flatten(name="f"), k.Dense(2, name="fc"))

    keras.utils.set_random_seed(1)
    one, two = model(), model()
    one.save(tmp_path / "s.keras")
    path = saved_model(two, tmp_path / f"m{suffix}")
    paramtool.convert(tmp_path / "s.keras", tmp_path / f"out{suffix}", into=path, strict=True)
    x = np.random.default_rng(0).random((2, 5, 5, 3)).astype("f4")
    np.testing.assert_allclose(by_keras(tmp_path / f"out{suffix}", two, x), one.predict(x, verbose=0), atol=1e-6)


class Attention(nn.Module):
    """Weights that one module has beside its layers, of which an exporter says the module only."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(4, 2, batch_first=True, **more)
        self.keys, self.values = nn.Linear(4, self.attn.kdim), nn.Linear(4, self.attn.vdim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.attn.in_proj_bias is not None:
            found: torch.Tensor = self.attn(x, x, x, need_weights=False)[0] + self.keys(x) + self.values(x)
        else:
            found = self.attn(x, self.keys(x), self.values(x), need_weights=False)[0]
        return found


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.mark.parametrize(
    ("make", "dynamo"),
    [
        (encoder, True),
        (lambda: net(one=Attention(), two=Attention()), True),
        (lambda: net(one=Attention(), two=Attention()), False),
        (lambda: net(one=Attention(kdim=6, vdim=5, bias=False)), True),
    ],
    ids=["encoder", "attention", "attention-traced", "other-sizes"],
)
def test_attention_into_its_own_export(make: Any, dynamo: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    one, two, x = make().eval(), filled_with_noise(make()), torch.rand(2, 3, 4)
    for value in one.parameters():  # exporters store equal values once
        nn.init.normal_(value)
    if dynamo:
        pytest.importorskip("onnxscript")
    model = exported(one, x, tmp_path / "m.onnx", **({"dynamo": True} if dynamo else {}))
    torch.save(two.state_dict(), tmp_path / "s.pt")
    paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=model)
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "out.onnx", x), two(x).detach().numpy(), atol=ATOL)
    assert not paramtool.verify(tmp_path / "out.onnx", tmp_path / "s.pt", into=model).differences


def saved_state(module: nn.Module, folder: Path) -> nn.Module:
    torch.save(filled_with_noise(module).state_dict(), folder / "s.pt")
    return module


FOLDERS = ("traced", "dynamo", "onnxsim", "onnxruntime")


def folded(how: str, path: Path, module: nn.Module, x: torch.Tensor) -> Path:
    """A model in which a norm is folded into the convolution before it, by somebody's optimiser."""
    if how == "traced":
        return exported(module, x, path)
    if how == "dynamo":
        pytest.importorskip("onnxscript")
        return exported(module, x, path, dynamo=True)
    onnx = pytest.importorskip("onnx")
    plain = exported(module, x, path.with_suffix(".plain.onnx"), training=torch.onnx.TrainingMode.PRESERVE)
    if how == "onnxsim":
        made, is_right = pytest.importorskip("onnxsim").simplify(onnx.load(str(plain)))
        assert is_right
        onnx.save(made, str(path))
        return path
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
    return path


@pytest.mark.parametrize("bias", [True, False], ids=["with bias", "without"])
@pytest.mark.parametrize("how", FOLDERS)
def test_a_norm_that_an_exporter_folded(how: str, bias: bool, tmp_path: Path) -> None:
    """Nothing of a checkpoint has the weights of the joined layer: refused, unless the norm changes nothing."""
    torch.manual_seed(0)
    x = torch.rand(2, 3, 5, 5)
    model = folded(how, tmp_path / "m.onnx", filled_with_noise(cnn(bias)), x)
    two = saved_state(cnn(bias), tmp_path)
    try:
        paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=model)
    except LayoutError as error:
        assert error.exit_code == 5
    else:  # not folded after all
        found = by_onnxruntime(tmp_path / "out.onnx", x)
        np.testing.assert_allclose(found, two(x).detach().numpy(), atol=ATOL)
    torch.save({name: value for name, value in two.state_dict().items() if "bn." not in name}, tmp_path / "less.pt")
    with nullcontext() if bias and how != "traced" else pytest.raises(LayoutError):
        paramtool.convert(tmp_path / "less.pt", tmp_path / "less.onnx", into=model)


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".weights.h5"])
def test_variables_of_one_name_that_are_other_parts(suffix: str, tmp_path: Path) -> None:
    """`vars/0` of a norm without scale and shift is its mean, and that of another its scale."""
    keras.utils.set_random_seed(1)
    one = noisy(seq((4,), k.Dense(3, name="fc"), k.BatchNormalization(), k.Dense(2, name="b")))
    two = seq((4,), k.Dense(3, name="fc"), k.BatchNormalization(scale=False, center=False), k.Dense(2, name="b"))
    one.save(tmp_path / "s.keras")
    path = saved_model(two, tmp_path / f"m{suffix}")
    with pytest.raises(LayoutError):
        paramtool.convert(tmp_path / "s.keras", tmp_path / f"out{suffix}", into=path)


def cnn_in_keras() -> Any:
    return seq(
        (5, 5, 3), k.Conv2D(4, 3, name="conv"), k.BatchNormalization(name="bn", epsilon=1e-5), k.ReLU(), k.Flatten(),
        k.Dense(5, name="fc"),
    )  # fmt: skip


def noisy(model: Any) -> Any:
    """A model of Keras with other numbers everywhere."""
    random = np.random.default_rng(5)
    model.set_weights([random.random(value.shape).astype("f4") * 0.8 + 0.1 for value in model.get_weights()])
    return model


@pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "dynamo"])
@pytest.mark.parametrize("suffix", [".keras", ".h5", ".weights.h5"])
def test_keras_into_onnx(suffix: str, dynamo: bool, tmp_path: Path) -> None:
    """The graph flattens channels first, and the source channels last."""
    x = torch.rand(2, 3, 5, 5)
    torch.manual_seed(0)
    more = {"dynamo": True} if dynamo else {}
    plain = net(**{name: layer for name, layer in cnn().named_children() if name != "bn"})
    model = exported(plain.eval(), x, tmp_path / "m.onnx", **more)
    source = noisy(seq((5, 5, 3), k.Conv2D(4, 3, name="conv"), k.ReLU(), k.Flatten(), k.Dense(5, name="fc")))
    saved_model(source, tmp_path / f"s{suffix}")
    with pytest.raises(LayoutError, match="an image of 4 channels is flattened there, channels-first in the model"):
        paramtool.convert(tmp_path / f"s{suffix}", tmp_path / "out.onnx", into=model)
    if suffix != ".weights.h5":
        with pytest.raises(LayoutError, match="the source says that its images are channels-last"):
            paramtool.convert(tmp_path / f"s{suffix}", tmp_path / "out.onnx", into=model, flatten="channels-first")
    paramtool.convert(tmp_path / f"s{suffix}", tmp_path / "out.onnx", into=model, flatten="channels-last")
    expected = source.predict(x.permute(0, 2, 3, 1).numpy(), verbose=0)
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "out.onnx", x), expected, atol=ATOL)


def test_onnx_into_keras(tmp_path: Path) -> None:
    """The other way round, with a norm as a node of its own."""
    x = torch.rand(2, 3, 5, 5)
    module = filled_with_noise(cnn())
    exported(module, x, tmp_path / "s.onnx", training=torch.onnx.TrainingMode.PRESERVE)
    model = saved_model(cnn_in_keras(), tmp_path / "m.keras")
    with pytest.raises(LayoutError, match="an image of 4 channels is flattened there"):
        paramtool.convert(tmp_path / "s.onnx", tmp_path / "out.keras", into=model)
    paramtool.convert(tmp_path / "s.onnx", tmp_path / "out.keras", into=model, flatten="channels-first", strict=True)
    found = by_keras(tmp_path / "out.keras", None, x.permute(0, 2, 3, 1).numpy())
    np.testing.assert_allclose(found, module(x).detach().numpy(), atol=ATOL, rtol=1e-5)


@pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "dynamo"])
def test_torch_into_a_graph_that_flattens_channels_last(dynamo: bool, tmp_path: Path) -> None:
    """One model on both sides: PyTorch may flatten as it likes, and the graph shows that it did."""
    torch.manual_seed(0)
    x = torch.rand(2, 3, 5, 5)

    def model() -> nn.Module:
        rows = into_cases.Fn(lambda x: x.permute(0, 2, 3, 1).flatten(1))
        return net(conv=nn.Conv2d(3, 4, 3), flat=rows, fc=nn.Linear(36, 5)).eval()

    path = exported(model(), x, tmp_path / "m.onnx", **({"dynamo": True} if dynamo else {}))
    two = saved_state(model(), tmp_path)
    paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=path, strict=True)
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "out.onnx", x), two(x).detach().numpy(), atol=ATOL)


def on_channels() -> nn.Module:
    """A dense layer on the channels of an image."""
    permute = into_cases.Fn(lambda x: x.permute(0, 3, 1, 2))
    layers = {"conv": nn.Conv2d(3, 4, 3), "last": into_cases.Fn(into_cases.on_channels), "a": nn.Linear(4, 5)}
    return net(**layers, first=permute, flat=nn.Flatten(), fc=nn.Linear(45, 2)).eval()


@pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "dynamo"])
def test_a_dense_layer_on_channels_in_onnx(dynamo: bool, tmp_path: Path) -> None:
    """What it gives is an image, too: from Keras its rows move once `--flatten` says so."""
    torch.manual_seed(0)
    x = torch.rand(2, 3, 5, 5)
    path = exported(on_channels(), x, tmp_path / "m.onnx", **({"dynamo": True} if dynamo else {}))
    two = saved_state(on_channels(), tmp_path)
    paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=path, strict=True)
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "out.onnx", x), two(x).detach().numpy(), atol=ATOL)
    source = noisy(
        seq((5, 5, 3), k.Conv2D(4, 3, name="conv"), k.Dense(5, name="a"), k.Flatten(), k.Dense(2, name="fc"))
    )
    saved_model(source, tmp_path / "s.keras")
    with pytest.raises(LayoutError, match="an image of 5 channels is flattened there"):
        paramtool.convert(tmp_path / "s.keras", tmp_path / "last.onnx", into=path)
    paramtool.convert(tmp_path / "s.keras", tmp_path / "last.onnx", into=path, flatten="channels-last")
    expected = source.predict(x.permute(0, 2, 3, 1).numpy(), verbose=0)
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "last.onnx", x), expected, atol=ATOL, rtol=1e-5)


@pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "dynamo"])
def test_a_norm_over_an_image_in_onnx(dynamo: bool, tmp_path: Path) -> None:
    x = torch.rand(2, 3, 5, 5)
    path = exported(
        into_cases.normed(3).source().eval(), x, tmp_path / "m.onnx", **({"dynamo": True} if dynamo else {})
    )
    source = noisy(into_cases.normed(3).model())
    saved_model(source, tmp_path / "s.keras")
    with pytest.raises(LayoutError, match="an image of 3 channels is flattened there"):
        paramtool.convert(tmp_path / "s.keras", tmp_path / "out.onnx", into=path)
    paramtool.convert(tmp_path / "s.keras", tmp_path / "out.onnx", into=path, flatten="channels-last")
    expected = source.predict(x.permute(0, 2, 3, 1).numpy(), verbose=0)
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "out.onnx", x), expected, atol=ATOL, rtol=1e-5)


@pytest.mark.parametrize("shared", [None, [1, 2], [1, 3]], ids=str)
def test_slopes_from_keras_into_keras(shared: list[int] | None, tmp_path: Path) -> None:
    """Also those of every place, which no other library has."""

    def model() -> Any:
        return noisy(seq((4, 4, 3), k.Rescaling(2.0, offset=-1), k.PReLU(shared_axes=shared, name="p"), k.Flatten()))

    source = model()
    saved_model(source, tmp_path / "s.keras")
    source.layers[1].set_weights([source.layers[1].get_weights()[0] + 1])
    saved_model(source, tmp_path / "m.keras")
    paramtool.convert(tmp_path / "s.keras", tmp_path / "out.keras", into=tmp_path / "m.keras", strict=True)
    x = np.random.default_rng(0).random((2, 4, 4, 3)).astype("f4")
    np.testing.assert_allclose(by_keras(tmp_path / "out.keras", None, x), model().predict(x, verbose=0), atol=1e-6)


def test_keras_in_memory(tmp_path: Path) -> None:
    """`load_into` knows the configuration of the model."""
    import paramtool.keras

    module, model = saved_state(cnn(), tmp_path), cnn_in_keras()
    before = model.get_weights()
    with pytest.raises(LayoutError, match="an image of 4 channels is flattened there"):
        paramtool.keras.load_into(model, tmp_path / "s.pt")
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    paramtool.keras.load_into(model, tmp_path / "s.pt", flatten="channels-first", strict=True)
    x = torch.rand(2, 3, 5, 5)
    found = model.predict(x.permute(0, 2, 3, 1).numpy(), verbose=0)
    np.testing.assert_allclose(found, module(x).detach().numpy(), atol=ATOL, rtol=1e-5)


def test_a_file_of_weights_does_not_say_what_is_flattened(tmp_path: Path) -> None:
    """What can be an image by its size is refused; nothing is moved in such a file, so channels-first is, too."""
    saved_state(cnn(), tmp_path)
    model = saved_model(cnn_in_keras(), tmp_path / "m.weights.h5")
    for more in ({}, {"flatten": "channels-first"}):
        with pytest.raises(LayoutError, match="its inputs can be a flattened image"):
            paramtool.convert(tmp_path / "s.pt", tmp_path / "out.weights.h5", into=model, **more)
    paramtool.convert(tmp_path / "s.pt", tmp_path / "out.weights.h5", into=model, flatten="channels-last")


def test_a_model_with_its_data_beside(tmp_path: Path) -> None:
    """The line that `convert` prints verifies both files."""
    torch.manual_seed(0)
    x = torch.rand(1, 40)
    model = exported(net(fc=nn.Linear(40, 40)), x, tmp_path / "m.onnx", dynamo=True, external_data=True)
    assert (tmp_path / "m.onnx.data").exists()
    saved_state(net(fc=nn.Linear(40, 40)), tmp_path)
    output = tmp_path / "out.onnx"
    ran = CliRunner().invoke(cli, ["convert", str(tmp_path / "s.pt"), "--into", str(model), "-o", str(output)])
    line = re.findall(r"paramtool (verify .*)", ran.stdout)[0]
    ran = CliRunner().invoke(cli, shlex.split(line))
    assert ran.exit_code == 0 and "compared: tensors, all other bytes" in ran.stdout
    data = bytearray((tmp_path / "out.onnx.data").read_bytes())
    data[100] ^= 1
    (tmp_path / "out.onnx.data").write_bytes(data)
    ran = CliRunner().invoke(cli, shlex.split(line))
    assert "'fc.weight': differs from its source" in ran.output


@pytest.mark.parametrize(
    ("source", "model", "hint"),
    [
        ("wnb.pt", "wn_new.onnx", "remove_weight_norm"),
        ("wn.pt", "wn.keras", "remove_parametrizations"),
        ("wn_old.pt", "wn_old.keras", "remove_weight_norm"),
        ("wn_old.pt", "wn_old.onnx", "remove_weight_norm"),
    ],
)
def test_weight_norm_of_the_findings(source: str, model: str, hint: str, findings: Path, tmp_path: Path) -> None:
    folder = findings / "field" / "weight-norm"
    output = tmp_path / f"out{Path(model).suffix}"
    with pytest.raises(LayoutError) as error:
        paramtool.convert(folder / source, output, into=folder / model)
    assert hint in error.value.hint and not output.exists()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_an_activation_that_the_source_does_not_say(tmp_path: Path) -> None:
    """A state dict of torch does not show tanh or relu: the model's is taken, and that is said."""
    layers = [keras.Input((5, 4)), keras.layers.SimpleRNN(4, name="l")]
    keras.Sequential(layers).save(tmp_path / "m.keras")
    torch.save({f"l.{name}": value for name, value in torch.nn.RNN(4, 4).state_dict().items()}, tmp_path / "m.pt")
    ran = quick("convert", "m.pt", "--into", "m.keras", "-o", "o.keras", cwd=tmp_path)
    assert ran.code == 0 and "the source does not say activation=tanh" in ran.err, ran


def on_both(*layers: Any, shape: tuple[int, ...] = (8,)) -> Any:
    return seq(shape, k.Dense(6, name="fc"), *layers)


SETTINGS: dict[str, tuple[tuple[int, ...], list[Any], list[Any]]] = {
    "epsilon": ((8,), [k.BatchNormalization(epsilon=1e-3)], [k.BatchNormalization(epsilon=0.5)]),
    "epsilon of a layer norm": ((8,), [k.LayerNormalization()], [k.LayerNormalization(epsilon=0.5)]),
    "groups": ((4, 8), [k.GroupNormalization(2)], [k.GroupNormalization(3)]),
    "axis": ((6, 6), [k.BatchNormalization(axis=1)], [k.BatchNormalization(axis=2)]),
    "axis of a layer norm": ((6, 6), [k.LayerNormalization(axis=1)], [k.LayerNormalization(axis=2)]),
    "activation": ((8,), [k.Dense(3, "relu")], [k.Dense(3, "tanh")]),
    "strides": ((9, 4), [k.Conv1D(2, 3, strides=1)], [k.Conv1D(2, 3, strides=2)]),
    "padding": ((9, 4), [k.Conv1D(2, 3)], [k.Conv1D(2, 3, padding="causal")]),
}


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_both_files_say(name: str, suffix: str, tmp_path: Path) -> None:
    """Weights cannot change what a layer computes besides: the whole is refused, or the layer is left."""
    shape, ours, theirs = SETTINGS[name]
    source = noisy(on_both(*map(fresh, ours), shape=shape))
    paths = [saved_model(source, tmp_path / f"s{suffix}")]
    paths += [saved_model(on_both(*map(fresh, layers), shape=shape), tmp_path / f"{at}{suffix}")
              for at, layers in (("other", theirs), ("same", ours))]  # fmt: skip
    source, other, same = paths
    with pytest.raises(LayoutError, match=r"the source has .*; the model has ") as error:
        paramtool.convert(source, tmp_path / f"out{suffix}", into=other)
    assert error.value.exit_code == 5
    report = paramtool.convert(source, tmp_path / f"out{suffix}", into=other, partial=True)
    assert report.into is not None and report.into.unfilled and any("the source has" in one for one in report.warnings)
    report = paramtool.convert(source, tmp_path / f"out{suffix}", into=same, strict=True, force=True)
    assert not report.warnings


def fresh(layer: Any) -> Any:
    """The layer again, without weights."""
    return type(layer).from_config(layer.get_config())


def test_settings_that_change_no_output(tmp_path: Path) -> None:
    """Names, initializers, regularizers, rates and what serves training may differ."""
    source = noisy(seq((8,), k.Dense(6), k.BatchNormalization()))
    source.save(tmp_path / "s.keras")
    model = seq(
        (8,), k.Dense(6, kernel_initializer="ones", kernel_regularizer="l2", bias_constraint="non_neg", name="own"),
        k.BatchNormalization(axis=1, momentum=0.5, trainable=False, gamma_initializer="zeros"),
    )  # fmt: skip
    model.save(tmp_path / "m.keras")
    assert not paramtool.convert(tmp_path / "s.keras", tmp_path / "out.keras", into=tmp_path / "m.keras").warnings
    x = np.random.default_rng(0).random((2, 8), "f4")
    np.testing.assert_allclose(by_keras(tmp_path / "out.keras", None, x), source.predict(x, verbose=0), atol=ATOL)


@pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "dynamo"])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5])
def test_epsilon_of_keras_and_of_onnx(epsilon: float, dynamo: bool, tmp_path: Path) -> None:
    source = noisy(seq((8,), k.Dense(6, name="fc"), k.LayerNormalization(name="n", epsilon=1e-3)))
    source.save(tmp_path / "s.keras")
    module, x = net(fc=nn.Linear(8, 6), n=nn.LayerNorm(6, eps=epsilon)), torch.rand(2, 8)
    model = exported(module, x, tmp_path / "m.onnx", dynamo=dynamo)
    if epsilon == 1e-3:
        paramtool.convert(tmp_path / "s.keras", tmp_path / "out.onnx", into=model)
        found = by_onnxruntime(tmp_path / "out.onnx", x)
        np.testing.assert_allclose(found, source.predict(x.numpy(), verbose=0), atol=ATOL)
        return
    with pytest.raises(LayoutError, match=r"epsilon=0\.001; the model has epsilon=0\.5"):
        paramtool.convert(tmp_path / "s.keras", tmp_path / "out.onnx", into=model)


def test_a_setting_that_only_the_model_says(tmp_path: Path) -> None:
    torch.save(filled_with_noise(net(fc=nn.Linear(8, 6), n=nn.LayerNorm(6))).state_dict(), tmp_path / "s.pt")
    for epsilon in (1e-5, 0.25):
        module = net(fc=nn.Linear(8, 6), n=nn.LayerNorm(6, eps=epsilon))
        model = exported(module, torch.rand(2, 8), tmp_path / "m.onnx", dynamo=False)
        said = paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=model, force=True).warnings
        assert any("'n' with epsilon 0.25" in one for one in said) == (epsilon == 0.25)


@pytest.mark.parametrize("shape", [(8, 3), (4, 2, 3)], ids=str)
def test_an_input_that_is_flattened(shape: tuple[int, ...], tmp_path: Path) -> None:
    """A sequence is flattened as an image is: nothing shows where the source has its channels."""
    module = filled_with_noise(net(flat=nn.Flatten(), fc=nn.Linear(24, 7)))
    torch.save(module.state_dict(), tmp_path / "s.pt")
    model = saved_model(seq(shape, k.Flatten(), k.Dense(7, name="fc")), tmp_path / "m.keras")
    with pytest.raises(LayoutError, match="an image of 3 channels is flattened"):
        paramtool.convert(tmp_path / "s.pt", tmp_path / "out.keras", into=model)
    x = torch.rand(2, *shape)
    for flatten, given in (("channels-first", x.movedim(-1, 1)), ("channels-last", x)):
        output = tmp_path / f"{flatten}.keras"
        paramtool.convert(tmp_path / "s.pt", output, into=model, flatten=flatten)
        found = by_keras(output, None, x.numpy())
        np.testing.assert_allclose(found, module(given.contiguous()).detach().numpy(), atol=ATOL)


def test_a_permutation_that_only_the_source_has(tmp_path: Path) -> None:
    source = noisy(seq((4, 5), k.Permute((2, 1)), k.Flatten(), k.Dense(3, name="fc")))
    source.save(tmp_path / "s.keras")
    model = saved_model(seq((4, 5), k.Flatten(), k.Dense(3, name="fc")), tmp_path / "m.keras")
    with pytest.raises(LayoutError, match="an image of 5 channels is flattened"):
        paramtool.convert(tmp_path / "s.keras", tmp_path / "out.keras", into=model)
    paramtool.convert(tmp_path / "s.keras", tmp_path / "out.keras", into=model, flatten="channels-first")
    x = np.random.default_rng(0).random((2, 4, 5), "f4")
    np.testing.assert_allclose(by_keras(tmp_path / "out.keras", None, x), source.predict(x, verbose=0), atol=ATOL)


def test_an_exporter_is_blamed_only_in_an_export(tmp_path: Path) -> None:
    source = filled_with_noise(net(fc=nn.Linear(4, 3), bn=nn.BatchNorm1d(3)))
    torch.save(source.state_dict(), tmp_path / "s.pt")
    model = saved_model(seq((4,), k.Dense(3, name="fc")), tmp_path / "m.keras")
    with pytest.raises(LayoutError, match="has no place in the model") as error:
        paramtool.convert(tmp_path / "s.pt", tmp_path / "out.keras", into=model)
    assert "TrainingMode" not in error.value.hint and "--partial" in error.value.hint


def moving(axes: tuple[int, int] | None) -> nn.Module:
    """Two dense layers, between which features change places, or do not."""
    rows = into_cases.Fn(lambda x: x.reshape(-1, 3, 4).transpose(1, 2).flatten(1) if axes else x)
    return net(a=nn.Linear(6, 12), t=rows, b=nn.Linear(12, 5)).eval()


def moving_in_keras(axes: tuple[int, int] | None) -> Any:
    rows = [k.Reshape((3, 4)), k.Permute(axes), k.Flatten()] if axes else []
    return seq((6,), k.Dense(12, name="a"), *rows, k.Dense(5, name="b"))


@pytest.mark.parametrize("target", ["m.keras", "m.h5", "traced.onnx", "dynamo.onnx"])
def test_features_that_change_places_between_two_layers(target: str, tmp_path: Path) -> None:
    """A state dict does not say it: `--flatten` does.  Two descriptions that say the same need nothing."""
    x, axes = torch.rand(2, 6), (2, 1)

    def model(axes: tuple[int, int] | None, name: str) -> Path:
        if name.endswith(".onnx"):
            more = {"dynamo": True, "external_data": False} if "dynamo" in name else {}
            return exported(moving(axes), x, tmp_path / name, **more)
        return saved_model(moving_in_keras(axes), tmp_path / name)

    path, output = model(axes, target), tmp_path / f"out{Path(target).suffix}"
    module = saved_state(moving(axes), tmp_path)
    with pytest.raises(LayoutError, match="moves the outputs of a layer to other places") as error:
        paramtool.convert(tmp_path / "s.pt", output, into=path)
    flatten = re.findall(r"--flatten (\S+),", error.value.hint)[0]
    paramtool.convert(tmp_path / "s.pt", output, into=path, flatten=flatten, strict=True)
    run = by_onnxruntime if output.suffix == ".onnx" else lambda path, x: by_keras(path, None, x.numpy())
    np.testing.assert_allclose(run(output, x), module(x).detach().numpy(), atol=ATOL)
    source = noisy(moving_in_keras(axes))
    source.save(tmp_path / "s.keras")
    paramtool.convert(tmp_path / "s.keras", output, into=path, strict=True, force=True)
    np.testing.assert_allclose(run(output, x), source.predict(x.numpy(), verbose=0), atol=ATOL)
    for one, other in ((None, path), (axes, model(None, f"plain-{target}"))):
        saved_model(noisy(moving_in_keras(one)), tmp_path / "s.keras")
        with pytest.raises(LayoutError, match=r"moves the outputs of a layer to other places.* does not") as error:
            paramtool.convert(tmp_path / "s.keras", output, into=other, force=True)
        assert error.value.exit_code == 5


def test_mixed_tokens_need_no_word(tmp_path: Path) -> None:
    """A dense layer that takes another axis has other sizes: a source without the moves could not have run."""

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.channels = nn.Linear(6, 6), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.channels(self.tokens(x.transpose(1, 2)).transpose(1, 2))
            return found

    x = torch.rand(2, 6, 8)
    path, module = exported(Mixer(), x, tmp_path / "m.onnx"), saved_state(Mixer(), tmp_path)
    paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=path, strict=True)
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "out.onnx", x), module(x).detach().numpy(), atol=ATOL)


FUNCTIONS: dict[str, tuple[nn.Module, Any, Any]] = {  # {name: torch's, the same of Keras, another}
    "gelu": (nn.GELU(), lambda: k.Activation("gelu"), lambda: k.ReLU()),
    "gelu by hand": (
        into_cases.Fn(lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5))),
        lambda: k.Activation("gelu"),
        lambda: k.Dropout(0.5),
    ),
    "leaky": (nn.LeakyReLU(0.3), lambda: k.LeakyReLU(0.3), lambda: k.LeakyReLU(0.2)),
    "hardswish": (nn.Hardswish(), lambda: k.Activation("hard_silu"), lambda: k.Activation("silu")),
    "softplus": (nn.Softplus(), lambda: k.Activation("softplus"), lambda: k.Activation("softsign")),
    "scaled": (into_cases.Fn(lambda x: x * 0.5 + 1), lambda: k.Rescaling(0.5, 1.0), lambda: k.Rescaling(0.5)),
    "softmax": (nn.Softmax(-1), lambda: k.Softmax(), lambda: k.Activation("sigmoid")),
    "a norm": (nn.LayerNorm(5, 1e-3), lambda: k.LayerNormalization(name="r"), None),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_between_layers_that_both_files_say(name: str, tmp_path: Path) -> None:
    """However exporters take them apart: the same function fills, and another one does not."""
    theirs, same, other = FUNCTIONS[name]
    x = torch.randn(3, 8)
    module = filled_with_noise(net(a=nn.Linear(8, 5), r=theirs, b=nn.Linear(5, 2))).eval()
    models = [
        exported(module, x, tmp_path / f"{dynamo}.onnx", **({"dynamo": True} if dynamo else {})) for dynamo in (0, 1)
    ]
    models.append(exported(module, x, tmp_path / "old.onnx", opset_version=13) if name != "a norm" else models[0])

    def keras_model(layer: Any, path: str) -> Path:
        return saved_model(noisy(seq((8,), k.Dense(5, name="a"), layer(), k.Dense(2, name="b"))), tmp_path / path)

    right = keras_model(same, "same.keras")
    for model in models:
        paramtool.convert(model, tmp_path / "out.keras", into=right, force=True)
        np.testing.assert_allclose(by_keras(tmp_path / "out.keras", None, x.numpy()), module(x).detach(), atol=ATOL)
        paramtool.convert(right, tmp_path / "out.onnx", into=model, force=True)
        wanted = by_keras(right, None, x.numpy())
        np.testing.assert_allclose(by_onnxruntime(tmp_path / "out.onnx", x), wanted, atol=ATOL)
    if name == "a norm":
        return
    wrong = keras_model(other, "other.keras")
    for source, target in (
        [(model, wrong) for model in models] + [(wrong, model) for model in models] + [(right, wrong)]
    ):
        with pytest.raises(LayoutError, match="function of its outputs") as error:
            paramtool.convert(source, tmp_path / f"bad{target.suffix}", into=target)
        assert error.value.exit_code == 5


@pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "dynamo"])
@pytest.mark.parametrize(
    ("theirs", "same", "other"),
    [
        (nn.Conv2d(4, 6, 3, padding=1), {"padding": "same"}, {"padding": "valid"}),
        (nn.Conv2d(4, 6, 3, stride=2), {"strides": 2}, {"strides": 2, "padding": "same"}),
        (nn.ConvTranspose2d(4, 6, 4, 2, 1), {"strides": 2, "padding": "same"}, {"strides": 2}),
        (nn.ConvTranspose2d(4, 6, 2, 3, output_padding=1), {"strides": 3}, {"strides": 3, "output_padding": 0}),
    ],
    ids=["same", "valid", "transposed", "transposed with more"],
)
def test_padding_of_keras_and_of_onnx(theirs: Any, same: Any, other: Any, dynamo: bool, tmp_path: Path) -> None:
    x = torch.rand(2, 4, 8, 8)
    layer = k.Conv2D if isinstance(theirs, nn.Conv2d) else k.Conv2DTranspose
    model = exported(net(c=theirs), x, tmp_path / "m.onnx", **({"dynamo": True} if dynamo else {}))
    sources = [noisy(seq((8, 8, 4), layer(6, theirs.kernel_size, name="c", **more))) for more in (same, other)]
    for k_, source in enumerate(sources):
        source.save(tmp_path / f"{k_}.keras")
    paramtool.convert(tmp_path / "0.keras", tmp_path / "out.onnx", into=model)
    found = by_onnxruntime(tmp_path / "out.onnx", x).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(found, sources[0].predict(x.permute(0, 2, 3, 1).numpy(), verbose=0), atol=1e-4)
    if "output_padding" not in other:
        with pytest.raises(LayoutError, match="the source has pads="):
            paramtool.convert(tmp_path / "1.keras", tmp_path / "bad.onnx", into=model)


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_a_fresh_norm_of_the_model_divides_by_epsilon(suffix: str, tmp_path: Path) -> None:
    source = net(a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    torch.save(filled_with_noise(source).state_dict(), tmp_path / "s.pt")
    model = seq((3,), k.BatchNormalization(), k.Dense(4, name="a"), k.Dense(2, name="b"))
    path = saved_model(model, tmp_path / f"m{suffix}")
    with pytest.raises(LayoutError, match="would keep its values") as error:
        paramtool.convert(tmp_path / "s.pt", tmp_path / f"out{suffix}", into=path)
    assert "epsilon of 1e-7" in error.value.hint


@pytest.mark.parametrize("layer", [k.BatchNormalization, k.LayerNormalization])
@pytest.mark.parametrize("lacks", [("scale",), ("center",), ("scale", "center")], ids=" ".join)
def test_a_norm_without_a_place_for_all(layer: Any, lacks: Sequence[str], tmp_path: Path) -> None:
    """The hint says how the model is made that has the places, and that model is filled."""
    norm = nn.BatchNorm1d(4) if layer is k.BatchNormalization else nn.LayerNorm(4)
    module = filled_with_noise(net(a=nn.Linear(3, 4), n=norm)).eval()
    torch.save(module.state_dict(), tmp_path / "s.pt")
    more = dict.fromkeys(lacks, False)
    if not (layer is k.LayerNormalization and len(lacks) == 2):
        seq((3,), k.Dense(4, name="a"), layer(name="n", epsilon=1e-5, **more)).save(tmp_path / "m.keras")
        with pytest.raises(LayoutError, match="has no place in the model") as error:
            paramtool.convert(tmp_path / "s.pt", tmp_path / "out.keras", into=tmp_path / "m.keras")
        assert all(f"{word}=True" in error.value.hint for word in lacks)


WAYS: dict[str, tuple[Any, Any, Any]] = {  # {what lies between: the source's, the same in other layers, another}
    "a sum": (
        lambda x: k.Add()([k.Dense(8, "relu", name="a")(x), x]),
        lambda x: k.Add()([k.ReLU()(k.Dense(8, name="a")(x)), x]),
        lambda x: k.Multiply()([k.Dense(8, "relu", name="a")(x), x]),
    ),
    "side by side": (
        lambda x: k.Concatenate()([k.Dense(4, name="a")(x), k.Dense(4, name="b")(x)]),
        lambda x: k.Dropout(0.5)(k.Concatenate()([k.Dense(4, name="a")(x), k.Dense(4, name="b")(x)])),
        lambda x: k.Concatenate()([k.Dense(4, name="b")(x), k.Dense(4, name="a")(x)]),
    ),
    "a scaled input": (
        lambda x: k.Dense(8, name="a")(k.Rescaling(0.5)(x)),
        lambda x: k.Dense(8, name="a")(k.Rescaling(0.5, 0.0)(x)),
        lambda x: k.Dense(8, name="a")(k.Rescaling(0.25)(x)),
    ),
    "a pool": (
        lambda x: k.Flatten()(k.MaxPooling1D(2)(k.Reshape((4, 2))(k.Dense(8, name="a")(x)))),
        lambda x: k.Reshape((4,))(k.MaxPool1D(2)(k.Reshape((4, 2))(k.Dense(8, name="a")(x)))),
        lambda x: k.Flatten()(k.AveragePooling1D(2)(k.Reshape((4, 2))(k.Dense(8, name="a")(x)))),
    ),
}


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("name", WAYS)
def test_the_way_between_layers_of_keras(name: str, suffix: str, tmp_path: Path) -> None:
    def model(way: Any) -> Any:
        x = keras.Input((8,))
        return keras.Model(x, k.Dense(2, name="o")(way(x)))

    source, same, other = map(model, WAYS[name])
    paths = [
        saved_model(one, tmp_path / f"{at}{suffix}") for at, one in (("s", noisy(source)), ("m", same), ("n", other))
    ]
    paramtool.convert(paths[0], tmp_path / f"out{suffix}", into=paths[1], strict=True)
    x = np.random.default_rng(0).standard_normal((3, 8)).astype("f4")
    found = by_keras(tmp_path / f"out{suffix}", None, x)
    np.testing.assert_allclose(found, source.predict(x, verbose=0), atol=ATOL)
    with pytest.raises(LayoutError, match="function of its"):
        paramtool.convert(paths[0], tmp_path / f"bad{suffix}", into=paths[2])


class Rotary(nn.Module):
    """Positions by cosines and sines, which are calculated, or kept in no file."""

    def __init__(self, is_table: bool) -> None:
        super().__init__()
        self.q, self.o, self.is_table = nn.Linear(16, 16), nn.Linear(16, 4), is_table
        self.register_buffer("inv_freq", 10000 ** (torch.arange(8) / -8), persistent=False)
        self.register_buffer("table", self.angles(64), persistent=False)

    def angles(self, count: int) -> torch.Tensor:
        found = torch.outer(torch.arange(count).float(), self.inv_freq)  # type: ignore[arg-type]
        return torch.stack([found.cos(), found.sin()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.table[:, : x.shape[1]] if self.is_table else self.angles(x.shape[1])  # type: ignore[index]
        a, b = self.q(x).chunk(2, -1)
        y = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        out: torch.Tensor = self.o((y @ y.transpose(1, 2)).softmax(-1) @ x)
        return out


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "dynamo"])
def test_tables_of_positions_that_an_exporter_calculated(dynamo: bool, is_table: bool, tmp_path: Path) -> None:
    """No weight is in them: the model's own state dict fills its export."""
    module, x = Rotary(is_table), torch.rand(2, 12, 16)
    torch.save(module.state_dict(), tmp_path / "s.pt")
    model = exported(Rotary(is_table), x, tmp_path / "m.onnx", dynamo=dynamo)
    paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=model)
    with torch.no_grad():
        np.testing.assert_allclose(by_onnxruntime(tmp_path / "out.onnx", x), module(x), atol=ATOL)


class Placed(Rotary):
    """The same with a table that was trained."""

    def __init__(self, is_table: bool) -> None:
        super().__init__(is_table)
        self.places = nn.Parameter(self.angles(64)[0] + torch.rand(64, 8) / 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.places[:12].repeat(1, 2))


def test_a_table_that_was_trained_is_none(tmp_path: Path) -> None:
    model = exported(Placed(True), torch.rand(2, 12, 16), tmp_path / "m.onnx", dynamo=False)
    torch.save(Rotary(True).state_dict(), tmp_path / "s.pt")
    with pytest.raises(LayoutError, match="of the model would keep its values") as error:
        paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=model)
    assert error.value.message.count("would keep") == 1


class Turned(nn.Module):
    """A layer whose weight is `in out`, as Conv1D of transformers has it."""

    def __init__(self, taken: int, made: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(taken, made)), nn.Parameter(torch.rand(made))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


@pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "dynamo"])
@pytest.mark.parametrize("layer", [Turned, nn.Linear])
def test_matrices_are_as_one_shows_that_is_not_square(layer: Any, dynamo: bool, tmp_path: Path) -> None:
    """The square one is not transposed where the other fits as it is, and is where the other fits only so."""

    def made(one: Any) -> nn.Module:
        return filled_with_noise(
            nn.Sequential(one(8, 24), nn.Tanh(), one(24, 24), nn.LayerNorm(24, elementwise_affine=False))
        )

    source, x = made(layer), torch.rand(2, 5, 8)
    torch.save(source.state_dict(), tmp_path / "s.pt")
    model = exported(made(Turned), x, tmp_path / "m.onnx", dynamo=dynamo)
    paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=model)
    with torch.no_grad():
        np.testing.assert_allclose(by_onnxruntime(tmp_path / "out.onnx", x), source(x), atol=1e-4)


# --- what is not compared is said ------------------------------------------------------------------------------------


def two_inputs(function: Any) -> Any:
    """A model of two layers of one shape, and what is made of both."""
    x = keras.Input((6, 4), name="x")
    return keras.Model(x, k.Dense(3, name="end")(function(k.Dense(5, name="one")(x), k.Dense(5, name="two")(x))))


def attention(*order: int, **more: Any) -> Any:
    def made(a: Any, b: Any) -> Any:
        layer = k.MultiHeadAttention(2, 3, name="mha")
        return layer(*[(a, b)[i] for i in order], **more)

    return made


def states(part: int) -> Any:
    return lambda a, b: k.Reshape((1, 5))(k.LSTM(5, return_state=True, name="rnn")(a)[part])


UNLIKE: dict[str, tuple[Any, Any]] = {
    "axis of a softmax": (lambda a, b: k.Softmax(axis=1)(a), lambda a, b: k.Softmax(axis=2)(a)),
    "axes of a product": (lambda a, b: k.Dot((2, 1))([a, k.Permute((2, 1))(b)]), lambda a, b: k.Dot((2, 2))([a, b])),
    "how it is enlarged": (
        lambda a, b: k.Reshape((-1, 5))(k.UpSampling2D()(k.Reshape((6, 1, 5))(a))),
        lambda a, b: k.Reshape((-1, 5))(k.UpSampling2D(interpolation="bilinear")(k.Reshape((6, 1, 5))(a))),
    ),
    "part of the states": (states(1), states(2)),
    "a part of the outputs": (lambda a, b: a[:, :3], lambda a, b: a[:, 3:]),
    "query and value": (attention(0, 1), attention(1, 0)),
    "an argument of a call": (attention(0, 1), attention(0, 1, use_causal_mask=True)),
    "inside another model": (
        lambda a, b: inner(k.Softmax(axis=1))(a),
        lambda a, b: inner(k.Softmax(axis=2))(a),
    ),
}  # fmt: skip


def inner(*layers: Any) -> Any:
    return keras.Sequential([keras.Input((6, 5)), k.Dense(5, name="inside"), *map(fresh, layers)], name="inner")


def not_compared(folder: Path, source: str, model: str) -> bool:
    output = folder / f"{source} in {model}"
    report = paramtool.convert(folder / source, output, into=folder / model)
    (said,) = [one for one in report.warnings if "not compared" in one] or [""]
    assert bool(said) == ("run both" in said)
    return bool(said)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("name", UNLIKE)
def test_what_two_models_of_keras_differ_in_is_named(name: str, suffix: str, tmp_path: Path) -> None:
    """They are filled, and compute something else, which the command does not pass over."""
    for at, function in zip(("s", "other"), UNLIKE[name], strict=True):
        keras.utils.set_random_seed(len(at))
        saved_model(two_inputs(function), tmp_path / f"{at}{suffix}")
        saved_model(noisy(two_inputs(function)), tmp_path / f"{at} again{suffix}")
    for at in ("s", "other"):
        assert not not_compared(tmp_path, f"{at} again{suffix}", f"{at}{suffix}")
    assert not_compared(tmp_path, f"s again{suffix}", f"other{suffix}")


class Two(nn.Module):
    """Two layers of one shape, and what is made of both."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.one, self.two, self.end = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 3)
        self.rnn, self.function = nn.LSTM(5, 5, batch_first=True), function
        self.register_buffer("scale", torch.rand(5) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.end(self.function(self, self.one(x), self.two(x)))
        return out


def enlarged(x: torch.Tensor, mode: str) -> torch.Tensor:
    return nn.functional.interpolate(x.transpose(1, 2), scale_factor=2.0, mode=mode).transpose(1, 2)


UNLIKE_IN_ONNX: dict[str, tuple[Any, Any]] = {
    "axis of a softmax": (lambda m, a, b: a.softmax(1), lambda m, a, b: a.softmax(2)),
    "order of a product": (
        lambda m, a, b: a @ b.transpose(1, 2) @ a, lambda m, a, b: b @ a.transpose(1, 2) @ a
    ),
    "how it is enlarged": (
        lambda m, a, b: enlarged(a, "nearest"), lambda m, a, b: enlarged(a, "linear"),
    ),
    "part of the states": (
        lambda m, a, b: m.rnn(a)[1][0].transpose(0, 1), lambda m, a, b: m.rnn(a)[1][1].transpose(0, 1)
    ),
    "a part of the outputs": (lambda m, a, b: a[:, :3] + b[:, :3], lambda m, a, b: a[:, 3:] + b[:, 3:]),
    "which of two layers": (lambda m, a, b: (a * b).softmax(1) + a, lambda m, a, b: (a * b).softmax(1) + b),
    "a number": (lambda m, a, b: a * 0.5 + b, lambda m, a, b: a * 0.25 + b),
}  # fmt: skip


@pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "dynamo"])
@pytest.mark.parametrize("name", UNLIKE_IN_ONNX)
def test_what_two_graphs_differ_in_is_named(name: str, dynamo: bool, tmp_path: Path) -> None:
    """They are filled, or refused; a graph of the same program gets the weights of another without a word."""
    for at, function in zip(("s", "other"), UNLIKE_IN_ONNX[name], strict=True):
        for again in ("", " again"):
            exported(
                filled_with_noise(Two(function)), torch.rand(1, 6, 4), tmp_path / f"{at}{again}.onnx", dynamo=dynamo
            )
    for at in ("s", "other"):
        assert not not_compared(tmp_path, f"{at} again.onnx", f"{at}.onnx")
    with suppress(LayoutError):
        assert not_compared(tmp_path, "s again.onnx", "other.onnx")
