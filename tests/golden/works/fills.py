"""`convert --into`: a model of Keras or ONNX that was filled computes what the model computes whose weights it got.

Each case is a module of torch and the same model in Keras.  Keras' files of it, ONNX models of both exporters of torch,
and weights that come from any of these, all get the weights of another one, and Keras and ONNX Runtime run the output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from tests.golden.works import Facts, Jobs
from tests.golden.works.files import done

k = keras.layers


class Case(NamedTuple):
    """A model, in torch and in Keras."""

    module: Callable[[], nn.Module]
    layers: Callable[[Any], Any]
    """What Keras computes of an input, in the order of Keras: channels last."""
    shape: tuple[int, ...]
    """Of an input of torch, without the batch; of indices where the last size is 0."""
    is_image: bool = False


class Last(nn.Module):
    """A recurrent network and a layer on its last step; or on all."""

    def __init__(self, rnn: nn.RNNBase, every: bool = False) -> None:
        super().__init__()
        self.rnn, self.every = rnn, every
        self.fc = nn.Linear(rnn.hidden_size * (2 if rnn.bidirectional else 1), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.rnn(x)[0]
        if not self.every and self.rnn.bidirectional:
            width = self.rnn.hidden_size
            y = torch.cat([y[:, -1, :width], y[:, 0, width:]], -1)
        elif not self.every:
            y = y[:, -1]
        out: torch.Tensor = self.fc(y)
        return out


class Pool(nn.Module):
    """The mean over all places."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(tuple(range(2, x.ndim)))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.enc = nn.Embedding(20, 6), nn.LSTM(6, 5, batch_first=True)
        self.bi, self.fc = nn.GRU(5, 4, batch_first=True, bidirectional=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(self.bi(self.enc(self.emb(x))[0])[0])
        return out


class Branches(nn.Module):
    """Two branches that are added, one layer used twice, and a part of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.shared = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 5)
        self.sub = nn.Sequential(nn.Linear(5, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.sub(self.shared(self.shared(self.left(x) + self.right(x))))
        return out


def branches(x: Any) -> Any:
    shared = k.Dense(5, name="shared")
    both = k.Add()([k.Dense(5, name="left")(x), k.Dense(5, name="right")(x)])
    return k.Dense(2, name="sub_0")(shared(shared(both)))


def chain(*layers: Any) -> Callable[[Any], Any]:
    """Layers one after the other; each is made by the call that it stands in."""

    def build(x: Any) -> Any:
        for layer in layers:
            x = layer()(x)
        return x

    return build


def norm(**more: Any) -> Any:
    return partial(k.BatchNormalization, epsilon=1e-5, **more)


def rnn(kind: str, layer: Any, both: bool = False, every: bool = False, **more: Any) -> Case:
    """One network of one layer."""

    def keras_layer() -> Any:
        one = layer(4, return_sequences=every)
        return k.Bidirectional(one, name="rnn") if both else one

    module = getattr(nn, kind)
    return Case(
        lambda: Last(module(5, 4, batch_first=True, bidirectional=both, **more), every),
        chain(keras_layer, partial(k.Dense, 3, name="fc")),
        (6, 5),
    )


S = nn.Sequential
CASES: dict[str, Case] = {
    "dense": Case(lambda: S(nn.Linear(4, 3)), chain(partial(k.Dense, 3)), (4,)),
    "dense without a bias": Case(
        lambda: S(nn.Linear(4, 3, bias=False)), chain(partial(k.Dense, 3, use_bias=False)), (4,)
    ),
    "perceptron": Case(
        lambda: S(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)),
        chain(partial(k.Dense, 8, "relu"), partial(k.Dense, 6, "relu"), partial(k.Dense, 2)),
        (4,),
    ),
    "square perceptron": Case(
        lambda: S(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)),
        chain(partial(k.Dense, 4, "relu"), partial(k.Dense, 4, "relu"), partial(k.Dense, 4)),
        (4,),
    ),
    "dense on every step": Case(lambda: S(nn.Linear(4, 3)), chain(partial(k.Dense, 3)), (5, 4)),
    "batch norm": Case(lambda: S(nn.Linear(4, 3), nn.BatchNorm1d(3)), chain(partial(k.Dense, 3), norm()), (4,)),
    "batch norm without gamma and beta": Case(
        lambda: S(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)),
        chain(partial(k.Dense, 3), norm(center=False, scale=False)),
        (4,),
    ),
    "layer norm": Case(
        lambda: S(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)),
        chain(partial(k.Dense, 6), partial(k.LayerNormalization, epsilon=1e-5), partial(k.Dense, 2)),
        (4,),
    ),
    "group norm": Case(
        lambda: S(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)),
        chain(partial(k.Conv2D, 4, 3), partial(k.GroupNormalization, 2, epsilon=1e-5)),
        (3, 7, 7), True,
    ),
    "convolution": Case(lambda: S(nn.Conv2d(3, 4, (2, 3))), chain(partial(k.Conv2D, 4, (2, 3))), (3, 7, 8), True),
    "convolution without a bias, norm": Case(
        lambda: S(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 1)),
        chain(partial(k.Conv2D, 4, 3, use_bias=False), norm(), k.ReLU, partial(k.Conv2D, 5, 1)),
        (3, 7, 7), True,
    ),
    "convolution of one axis": Case(lambda: S(nn.Conv1d(3, 4, 3)), chain(partial(k.Conv1D, 4, 3)), (3, 9), True),
    "convolution of three axes": Case(
        lambda: S(nn.Conv3d(2, 3, 2)), chain(partial(k.Conv3D, 3, 2)), (2, 4, 5, 6), True
    ),
    "convolution of a dilation": Case(
        lambda: S(nn.Conv2d(3, 4, 3, dilation=2, stride=1)),
        chain(partial(k.Conv2D, 4, 3, dilation_rate=2)),
        (3, 9, 9), True,
    ),
    "convolution in groups": Case(
        lambda: S(nn.Conv2d(4, 6, 3, groups=2)), chain(partial(k.Conv2D, 6, 3, groups=2)), (4, 7, 7), True
    ),
    "depthwise": Case(
        lambda: S(nn.Conv2d(3, 6, 3, groups=3), nn.Conv2d(6, 4, 1)),
        chain(partial(k.DepthwiseConv2D, 3, depth_multiplier=2), partial(k.Conv2D, 4, 1)),
        (3, 7, 7), True,
    ),
    "transposed convolution": Case(
        lambda: S(nn.ConvTranspose2d(3, 4, 2, stride=2)),
        chain(partial(k.Conv2DTranspose, 4, 2, strides=2)),
        (3, 5, 5), True,
    ),
    "transposed convolution of one axis": Case(
        lambda: S(nn.ConvTranspose1d(3, 4, 2, stride=2)),
        chain(partial(k.Conv1DTranspose, 4, 2, strides=2)),
        (3, 5), True,
    ),
    "image classifier": Case(
        lambda: S(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), Pool(), nn.Linear(6, 2)),
        chain(
            partial(k.Conv2D, 4, 3), norm(), k.ReLU, partial(k.Conv2D, 6, 3), k.GlobalAveragePooling2D,
            partial(k.Dense, 2),
        ),
        (3, 8, 8), True,
    ),
    "flattened image of one place": Case(
        lambda: S(nn.Conv2d(3, 4, 5), nn.Flatten(), nn.Linear(4, 2)),
        chain(partial(k.Conv2D, 4, 5), k.Flatten, partial(k.Dense, 2)),
        (3, 5, 5), True,
    ),
    "flattened image of one channel": Case(
        lambda: S(nn.Conv2d(3, 1, 3), nn.Flatten(), nn.Linear(9, 2)),
        chain(partial(k.Conv2D, 1, 3), k.Flatten, partial(k.Dense, 2)),
        (3, 5, 5), True,
    ),
    "flattened steps": Case(
        lambda: S(nn.Linear(4, 3), nn.Flatten(), nn.Linear(15, 2)),
        chain(partial(k.Dense, 3), k.Flatten, partial(k.Dense, 2)),
        (5, 4),
    ),
    "prelu": Case(lambda: S(nn.Linear(4, 3), nn.PReLU(3)), chain(partial(k.Dense, 3), k.PReLU), (4,)),
    "embedding": Case(
        lambda: S(nn.Embedding(20, 5), nn.Linear(5, 2)), chain(partial(k.Embedding, 20, 5), partial(k.Dense, 2)), (6, 0)
    ),
    "words": Case(
        Words,
        chain(
            partial(k.Embedding, 20, 6, name="emb"), partial(k.LSTM, 5, return_sequences=True, name="enc"),
            lambda: k.Bidirectional(k.GRU(4, return_sequences=True), name="bi"), partial(k.Dense, 3, name="fc"),
        ),
        (7, 0),
    ),
    "branches": Case(Branches, branches, (4,)),
    "lstm": rnn("LSTM", k.LSTM),
    "lstm, every step": rnn("LSTM", k.LSTM, every=True),
    "lstm without a bias": rnn("LSTM", partial(k.LSTM, use_bias=False), bias=False),
    "lstm of both directions": rnn("LSTM", k.LSTM, both=True),
    "lstm of both directions, every step": rnn("LSTM", k.LSTM, both=True, every=True),
    "gru": rnn("GRU", k.GRU),
    "gru of both directions, every step": rnn("GRU", k.GRU, both=True, every=True),
    "gru without a bias": rnn("GRU", partial(k.GRU, use_bias=False), bias=False),
    "rnn": rnn("RNN", k.SimpleRNN),
    "rnn of both directions": rnn("RNN", k.SimpleRNN, both=True),
}  # fmt: skip


def example(case: Case) -> torch.Tensor:
    torch.manual_seed(2)
    if case.shape[-1] == 0:
        return torch.randint(0, 20, (3, *case.shape[:-1]))
    return torch.randn(3, *case.shape)


def module_of(case: Case, seed: int) -> nn.Module:
    """With values that no initialiser gives."""
    torch.manual_seed(seed)
    module = case.module().eval()
    with torch.no_grad():
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) * 0.8 + 0.1)
    return module


def keras_model(case: Case) -> Any:
    shape = case.shape[:-1] if case.shape[-1] == 0 else case.shape
    given = keras.Input((*shape[1:], shape[0]) if case.is_image else shape)
    return keras.Model(given, case.layers(given))


EXPORTERS: dict[str, dict[str, Any]] = {
    "traced.onnx": {"dynamo": False, "training": torch.onnx.TrainingMode.PRESERVE},
    "exported.onnx": {"dynamo": True},
    "not-optimised.onnx": {"dynamo": True, "optimize": False},
}
"""{file: options}: the first keeps norms as nodes."""


def onnx_model(case: Case, path: Path) -> None:
    """With other weights than are put into it, all in one file."""
    torch.onnx.export(module_of(case, 5), (example(case),), str(path), **EXPORTERS[path.name], verbose=False)
    model = onnx.load(str(path))
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)
    onnx.save_model(model, str(path))


def computed(path: Path, case: Case) -> np.ndarray:
    """What the filled model computes, in the order of torch."""
    x = example(case).numpy()
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found: np.ndarray = session.run(None, {session.get_inputs()[0].name: x})[0]
        return found
    if path.name.endswith(".weights.h5"):
        model = keras_model(case)
        model.load_weights(path)
    else:
        model = keras.saving.load_model(path, compile=False)
    y = model.predict(np.moveaxis(x, 1, -1) if case.is_image else x, verbose=0)
    return np.moveaxis(y, -1, 1) if case.is_image and y.ndim == x.ndim else y


def fill(case: Case, folder: Path, source: str, target: str, *more: str) -> None:
    """The output computes what torch computes, and the line that verifies it holds."""
    output = f"out.{target}"
    done("convert", source, "--into", target, "-o", output, "--force", *more, cwd=folder)
    with torch.no_grad():
        expected = module_of(case, 1)(example(case)).numpy()
    np.testing.assert_allclose(computed(folder / output, case), expected, atol=2e-5)
    said = [word for word in more if word != "--strict"]
    done("verify", output, "--against", source, "--into", target, *said, cwd=folder)


def of(case: Case) -> Callable[[Path], Facts]:
    """The job of a case."""

    def job(folder: Path) -> Facts:
        torch.save(module_of(case, 1).state_dict(), folder / "m.pt")
        done("dedup", "m.pt", "-o", "m.safetensors", cwd=folder)
        model = keras_model(case)
        targets = ["m.keras", "m.h5", "m.weights.h5"]
        for target in targets:
            (model.save_weights if ".weights" in target else model.save)(folder / target)
        for name in EXPORTERS:
            try:
                onnx_model(case, folder / name)
            except Exception:
                continue
            targets.append(name)
        for target in targets:
            yield f"m.pt into {target}", partial(fill, case, folder, "m.pt", target)
            yield f"m.pt into {target}, strictly", partial(fill, case, folder, "m.pt", target, "--strict")
        yield "m.safetensors into m.keras", partial(fill, case, folder, "m.safetensors", "m.keras")
        for source in [one for one in targets if (folder / f"out.{one}").exists()]:
            for target in ("m.keras", "traced.onnx"):
                if source != target and target in targets:
                    yield (
                        f"{source} that was filled into {target}",
                        partial(fill, case, folder, f"out.{source}", target),
                    )

    return job


JOBS: Jobs = {name: of(case) for name, case in CASES.items()}
