"""Loading with a lock: the locked weights are loaded in any container, and others before anything changes are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import paramtool
import paramtool.torch
from paramtool.errors import FormatError, LockError, ModelError, NoSuchFileError, UsageError

State = dict[str, torch.Tensor]
Load = Callable[..., object]


def model() -> nn.Module:
    """An LSTM with values of its own."""
    torch.manual_seed(0)
    return nn.LSTM(3, 4)


LOADERS: dict[str, Load] = {
    "load_model": lambda path, **more: paramtool.torch.load_model(model(), path, **more),
    "torch.load_file": paramtool.torch.load_file,
    "load_file": paramtool.load_file,
}
each_loader = pytest.mark.parametrize("load", LOADERS.values(), ids=list(LOADERS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """m.pt; the same as m.safetensors; other.pt with one number more; paramtool.lock of m.pt."""
    state = model().state_dict()
    torch.save(state, tmp_path / "m.pt")
    save_file(state, tmp_path / "m.safetensors")
    other = {name: tensor.clone() for name, tensor in state.items()}
    other["bias_hh_l0"][3] += 1
    torch.save(other, tmp_path / "other.pt")
    paramtool.lock([tmp_path / "m.pt"], tmp_path / "paramtool.lock")
    return tmp_path


@each_loader
def test_the_locked_weights_are_loaded(load: Load, folder: Path) -> None:
    """In another container, too, and into a fresh model."""
    for name in ("m.pt", "m.safetensors"):
        load(folder / name, lock=folder / "paramtool.lock")
    fresh = nn.LSTM(3, 4)
    paramtool.torch.load_model(fresh, folder / "m.safetensors", lock=folder / "paramtool.lock")
    assert all(torch.equal(tensor, model().state_dict()[name]) for name, tensor in fresh.state_dict().items())


@each_loader
def test_other_weights_are_refused(load: Load, folder: Path) -> None:
    lines = (folder / "paramtool.lock").read_text().split("\n")
    with pytest.raises(LockError, match=r"1 difference from .*not the locked ones") as caught:
        load(folder / "other.pt", lock=folder / "paramtool.lock")
    at = next(number for number, line in enumerate(lines, 1) if line.startswith("tensor bias_hh_l0"))
    assert f"line {at}: 'bias_hh_l0': has other numbers" in str(caught.value)
    assert isinstance(caught.value, (ModelError, RuntimeError)) and caught.value.exit_code == 6


def test_the_model_stays_as_it_was(folder: Path) -> None:
    fresh = nn.LSTM(3, 4)
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    with pytest.raises(LockError):
        paramtool.torch.load_model(fresh, folder / "other.pt", strict=False, lock=folder / "paramtool.lock")
    assert all(torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict().items())


@each_loader
def test_another_name_and_more_tensors_are_refused(load: Load, folder: Path) -> None:
    """Whatever the model would take: a renamed model is not the locked one, nor is one with a tensor more."""
    state = model().state_dict()
    torch.save({f"x.{name}": tensor for name, tensor in state.items()}, folder / "renamed.pt")
    torch.save(state | {"more": torch.zeros(1)}, folder / "more.pt")
    for name, words in (("renamed.pt", "under other names"), ("more.pt", "'more' is not in the lock")):
        with pytest.raises(LockError, match=words):
            load(folder / name, lock=folder / "paramtool.lock")


@each_loader
def test_locks_that_say_nothing(load: Load, folder: Path) -> None:
    """One of headers, of several other models, that is damaged, or that is not there."""
    paramtool.lock([folder / "m.pt"], folder / "headers.lock", headers=True)
    with pytest.raises(UsageError, match="nothing about numbers"):
        load(folder / "m.pt", lock=folder / "headers.lock")
    paramtool.lock([folder / "m.pt", folder / "other.pt"], folder / "two.lock")
    load(folder / "other.pt", lock=folder / "two.lock")
    with pytest.raises(UsageError, match="does not name it"):
        load(folder / "m.safetensors", lock=folder / "two.lock")
    text = (folder / "paramtool.lock").read_text()
    (folder / "edited.lock").write_text(text.replace("float32", "float64"))
    with pytest.raises(FormatError, match=r"edited\.lock:\d+"):
        load(folder / "m.pt", lock=folder / "edited.lock")
    with pytest.raises(NoSuchFileError):
        load(folder / "m.pt", lock=folder / "gone.lock")
