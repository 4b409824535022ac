"""A model that `convert --into` filled computes what the source computed: both are run, or it is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paramtool
from paramtool.errors import LayoutError
from tests.versions import exporting

keras = pytest.importorskip("keras")
onnxruntime = pytest.importorskip("onnxruntime")
from tests.oracles import into_cases  # noqa: E402 - it imports keras
from tests.oracles.into_cases import FILLED, FLATTENED, REFUSED, Case, filled_with_noise, k, net, seq  # noqa: E402

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


@pytest.mark.parametrize("case", FILLED, ids=lambda case: case.name)
def test_keras_computes_what_torch_computes(case: Case, tmp_path: Path) -> None:
    compare(case, tmp_path)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("case", FLATTENED, ids=lambda case: case.name)
def test_flattened_images(case: Case, suffix: str, tmp_path: Path) -> None:
    """The rows move once `--flatten` says the order of the source, and not before."""
    flatten = case.more.get("flatten", "channels-first")
    case = case._replace(suffix=suffix, more={})
    with pytest.raises(LayoutError, match=r"an image of . channels is flattened there") as error:
        compare(case, tmp_path)
    assert f"--flatten {flatten}" in error.value.hint and error.value.exit_code == 5
    compare(case, tmp_path, flatten=flatten)


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


@pytest.mark.parametrize(("make", "dynamo"), [(plain, False), (plain, True), (crnn, False)])
def test_onnxruntime_computes_what_torch_computes(make: Any, dynamo: bool, tmp_path: Path) -> None:
    """PyTorch and ONNX flatten alike."""
    torch.manual_seed(0)
    one, two, x = make().eval(), filled_with_noise(make()), torch.rand(1, 3, 5, 5)
    if dynamo:
        pytest.importorskip("onnxscript")
    model = exported(one, x, tmp_path / "m.onnx", **({"dynamo": True} if dynamo else {}))
    torch.save(two.state_dict(), tmp_path / "s.pt")
    paramtool.convert(tmp_path / "s.pt", tmp_path / "out.onnx", into=model)
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
