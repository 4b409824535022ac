"""`diff` of one convolutional network in Keras and in torch: both run it, and the axes are those that were moved."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras

from paramtool.commands.diff.diff import diff
from paramtool.model.diff import LAYOUT, RENAMED

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
IN, WIDE, OUT = 16, 24, 32


def networks() -> tuple[keras.Model, nn.Module]:
    """A convolution, a depthwise one and a dense layer in Keras, and the same network in torch."""
    layers = keras.layers
    theirs = keras.Sequential(
        [
            keras.Input((9, 8, IN)),
            layers.Conv2D(WIDE, (3, 2), name="conv"),
            layers.DepthwiseConv2D((3, 2), name="depthwise"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(OUT, name="dense"),
        ]
    )
    random = np.random.default_rng(0)
    theirs.set_weights([random.normal(size=one.shape).astype("f4") for one in theirs.get_weights()])
    conv, _, depthwise, _, dense, _ = (torch.from_numpy(one.copy()) for one in theirs.get_weights())
    mine = nn.Sequential(
        nn.Conv2d(IN, WIDE, (3, 2)),
        nn.Conv2d(WIDE, WIDE, (3, 2), groups=WIDE),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(WIDE, OUT),
    )
    kernels = {"0": conv.permute(3, 2, 0, 1), "1": depthwise.permute(2, 3, 0, 1), "4": dense.T}
    biases = (torch.from_numpy(one.copy()) for one in theirs.get_weights()[1::2])
    state = {f"{name}.weight": one.contiguous() for name, one in kernels.items()}
    state |= {f"{name}.bias": one for name, one in zip(kernels, biases, strict=True)}
    mine.load_state_dict(state)
    return theirs, mine


@pytest.mark.parametrize("suffix", ["model.keras", "model.weights.h5"])
def test_kernels_of_keras_and_torch(tmp_path: Path, suffix: str) -> None:
    theirs, mine = networks()
    x = np.random.default_rng(1).normal(size=(2, 9, 8, IN)).astype("f4")
    with torch.no_grad():
        own = mine(torch.from_numpy(x).permute(0, 3, 1, 2)).numpy()
    assert np.allclose(np.asarray(theirs.predict(x, verbose=0)), own, atol=1e-3)
    path = tmp_path / suffix
    (theirs.save if suffix.endswith("keras") else theirs.save_weights)(path)
    save_file(mine.state_dict(), tmp_path / "torch.safetensors")
    there = diff(path, tmp_path / "torch.safetensors").tensors
    assert {one.b[0]: (one.kind, one.how) for one in there} == {
        "0.weight": (LAYOUT, "axes (3, 2, 0, 1)"),
        "1.weight": (LAYOUT, "axes (2, 3, 0, 1)"),
        "4.weight": (LAYOUT, "transposed"),
        "0.bias": (RENAMED, ""),
        "1.bias": (RENAMED, ""),
        "4.bias": (RENAMED, ""),
    }
    back = diff(tmp_path / "torch.safetensors", path).tensors
    assert {one.a[0]: one.how for one in back if one.kind == LAYOUT} == {
        "0.weight": "axes (2, 3, 1, 0)", "1.weight": "axes (2, 3, 0, 1)", "4.weight": "transposed",
    }  # fmt: skip
