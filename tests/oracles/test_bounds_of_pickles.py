"""The bounds of pickles, judged by torch: what torch.save writes stays far below them, packed anew or not.

And keys that are not equal to themselves are as many as torch.load finds.
"""

from __future__ import annotations

import argparse
import io
import math
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paramtool import formats
from paramtool.formats.torch import names as torch_names
from paramtool.model.objects import Mapping, TensorRef
from tests.examples import IS_WHOLE
from tests.hostile.makers_pickle import PROTO, text
from tests.hostile.makers_torch import DATA, number, parts, tensor
from tests.hostile.worst import get, put, zipped

ENOUGH = {zipfile.ZIP_STORED: 3, zipfile.ZIP_DEFLATED: 2}
"""How many times as much as a real checkpoint needs is allowed at the least; torch itself deflates nothing."""


def adam(many: int) -> object:
    """A training checkpoint: many small parameters, and their state."""
    names = [f"model.layers.{k // 8}.block.{k % 8}.weight" for k in range(many)]
    state = {k: {"step": torch.tensor(1.0), "exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)} for k in range(many)}
    return {
        "model": {name: torch.ones(2) for name in names},
        "optimizer": {
            "state": state,
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": list(range(many))}],
        },
    }


def eight_bit(many: int) -> object:
    """The state of an 8-bit optimizer: tables of 256 values that all parameters share, and scales for blocks."""
    table = torch.linspace(-1, 1, 256)
    shared = {"qmap1": table, "qmap2": table.neg()}

    def one() -> dict[str, object]:
        return {"step": 1, "state1": torch.zeros(4, dtype=torch.uint8), "absmax1": torch.ones(1), **shared}

    return {"state": {k: one() for k in range(many)}, "param_groups": [{"params": list(range(many))}]}


def vocabulary(many: int) -> object:
    """A tokenizer's vocabulary and merges in a checkpoint, under two names."""
    words = {f"token{k}": k for k in range(many)}
    return {"vocab": words, "model": {"w": torch.ones(2)}, "hyper": {"vocab": words, "merges": [*words]}}


def lightning(many: int) -> object:
    """Callbacks, loops and hyperparameters, a history of losses, and one object at several places."""
    settings = argparse.Namespace(lr=0.1, names=[f"n{k}" for k in range(50)])
    history = [{"epoch": k, "loss": 1 / (k + 1), "best": False, "note": None} for k in range(many)]
    return {
        "state_dict": {f"net.{k}.weight": torch.ones(2) for k in range(100)},
        "callbacks": {f"ModelCheckpoint{{'monitor': 'loss{k}'}}": {"best": {}, "scores": history} for k in range(2)},
        "hyper_parameters": settings,
        "loops": [settings] * 20,
        "labels": ["a cat", "a dog"] * many,
    }  # fmt: skip


def modules(many: int) -> object:
    """A network pickled whole whose layers are one layer, as ALBERT's."""
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8)
    return torch.nn.ModuleList([layer] * many)


PART = 1 if IS_WHOLE else 2
"""`make test` makes them half as large: what they need grows as what is allowed does."""
CASES: dict[str, Callable[[], object]] = {
    "adam": lambda: adam(2000 // PART),
    "eight bit": lambda: eight_bit(3000 // PART),
    "vocabulary": lambda: vocabulary(30_000 // PART),
    "lightning": lambda: lightning(5000 // PART),
    "modules": lambda: modules(100 // PART),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
@pytest.mark.parametrize("key", CASES)
def test_real_checkpoints_stay_far_below(
    key: str, method: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of what is allowed is enough for each."""
    torch.save(CASES[key](), tmp_path / "made.pt")
    with zipfile.ZipFile(tmp_path / "made.pt") as old, zipfile.ZipFile(tmp_path / "model.pt", "w", method) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    bounds = torch_names.Bounds.of

    def part(nbytes: int) -> torch_names.Bounds:
        found = bounds(nbytes)
        times = ENOUGH[method]
        return torch_names.Bounds(found.places // times, found.tensors // times, found.characters // times)

    monkeypatch.setattr(torch_names.Bounds, "of", part)
    found = formats.read(tmp_path / "model.pt", allow_unknown=True)
    assert len(found.entries) == len(formats.read(tmp_path / "made.pt", allow_unknown=True).entries) > 0


KEYS: dict[str, bytes] = {
    "one NaN": get(1),
    "another": get(2),
    "a new one": b"G\x7f\xf8\0\0\0\0\0\0",
    "0": number(0),
    "'0'": text("0"),
    "-0.0": b"G\x80\0\0\0\0\0\0\0",
    "False": b"\x89",
    "a tuple with a NaN": get(1) + b"\x85",
    "a tuple with a new one": b"G\x7f\xf8\0\0\0\0\0\0\x85",
    "None": b"N",
    "'nan'": text("nan"),
}


@given(st.lists(st.sampled_from([*KEYS]), max_size=12))
def test_keys_are_those_that_torch_finds(keys: list[str]) -> None:
    """As many, of the same types and in the same order: one object is one key, and two that are NaN are two."""
    nan = b"G\x7f\xf8\0\0\0\0\0\0"
    body = nan + put(1) + nan + put(2) + b"}(" + b"".join(KEYS[key] + tensor() for key in keys) + b"u"
    data = zipped(*parts(PROTO + body + b".", s0=DATA))
    held: dict[Any, Any] = torch.load(io.BytesIO(data), weights_only=False)
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        file.write(data)
        file.flush()
        found = formats.read(file.name)
    assert isinstance(found.objects, Mapping)
    ours = [key for key, _ in found.objects.items]
    assert list(map(_told, ours)) == list(map(_told, held)) and len(found.entries) == len(held)
    assert all(isinstance(child, TensorRef) for _, child in found.objects.items)


def _told(key: object) -> str:
    """A key with its type; all that are NaN look alike."""
    if isinstance(key, tuple):
        return str([_told(one) for one in key])
    return "NaN" if isinstance(key, float) and math.isnan(key) else f"{type(key).__name__} {key!r}"
