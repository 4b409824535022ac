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
    with pytest.raises(UsageError, match=r"does not name it, and has 2 models: 'm.pt', 'other.pt'") as caught:
        load(folder / "m.safetensors", lock=folder / "two.lock")
    assert caught.value.hint == "locked_as='m.pt' names the one that is meant"
    load(folder / "m.safetensors", lock=folder / "two.lock", locked_as="m.pt")
    with pytest.raises(LockError, match="other numbers"):
        load(folder / "m.safetensors", lock=folder / "two.lock", locked_as="other.pt")
    with pytest.raises(UsageError, match=r"has no model 'n.pt'; it has 2 models: 'm.pt', 'other.pt'"):
        load(folder / "m.pt", lock=folder / "two.lock", locked_as="n.pt")
    for more in ({"locked_as": "m.pt"}, {"content_only": True}):
        with pytest.raises(UsageError, match="is given without a lock"):
            load(folder / "m.pt", **more)
    text = (folder / "paramtool.lock").read_text()
    (folder / "edited.lock").write_text(text.replace("float32", "float64"))
    with pytest.raises(FormatError, match=r"edited\.lock:\d+"):
        load(folder / "m.pt", lock=folder / "edited.lock")
    with pytest.raises(NoSuchFileError):
        load(folder / "m.pt", lock=folder / "gone.lock")


class Tied(nn.Module):
    """Two names of one parameter, or of two with equal numbers."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3, bias=False)
        self.b = nn.Linear(3, 3, bias=False)
        if tied:
            self.b.weight = self.a.weight


TIED_LOADERS: dict[str, Load] = {
    **LOADERS, "load_model": lambda path, **more: paramtool.torch.load_model(Tied(), path, **more),
}  # fmt: skip


@pytest.mark.parametrize("load", TIED_LOADERS.values(), ids=list(TIED_LOADERS))
def test_other_ties_are_refused(load: Load, tmp_path: Path) -> None:
    """Equal numbers that share no memory, or share it now; the line of the lock, and how to judge tensors alone."""
    torch.manual_seed(0)
    state = Tied().state_dict()
    torch.save(state, tmp_path / "tied.pt")
    torch.save({name: tensor.clone() for name, tensor in state.items()}, tmp_path / "apart.pt")
    paramtool.dedup(tmp_path / "tied.pt", tmp_path / "tied.safetensors")
    for name in ("tied", "apart"):
        paramtool.lock([tmp_path / f"{name}.pt"], tmp_path / f"{name}.lock")
    line = next(
        number for number, one in enumerate((tmp_path / "tied.lock").read_text().split("\n"), 1) if "tied a" in one
    )
    said = {"tied": rf"line {line}: 'b.weight' shared memory with 'a.weight'", "apart": "and did not before"}
    for lock, other in (("tied", "apart"), ("apart", "tied")):
        load(tmp_path / f"{lock}.pt", lock=tmp_path / f"{lock}.lock")
        with pytest.raises(LockError, match=said[lock]) as caught:
            load(tmp_path / f"{other}.pt", lock=tmp_path / f"{lock}.lock")
        assert "content_only=True" in caught.value.hint
        load(tmp_path / f"{other}.pt", lock=tmp_path / f"{lock}.lock", content_only=True)
    load(tmp_path / "tied.safetensors", lock=tmp_path / "tied.lock")


def test_a_model_that_lost_a_tie_of_the_lock(tmp_path: Path) -> None:
    """The file is the locked one; the model would train its two names apart.  Nothing changes."""
    torch.manual_seed(0)
    torch.save({f"model.{name}": tensor for name, tensor in Tied().state_dict().items()}, tmp_path / "m.pt")
    paramtool.lock([tmp_path / "m.pt"], tmp_path / "l")
    model = Tied(tied=False)
    before = model.a.weight.clone()
    for more in ({}, {"assign": True}):
        with pytest.raises(
            LockError, match=r"'b.weight' shares memory with 'a.weight' in the lock, and not in the mod"
        ):
            paramtool.torch.load_model(model, tmp_path / "m.pt", prefix="model", lock=tmp_path / "l", **more)
    assert torch.equal(model.a.weight, before)
    paramtool.torch.load_model(model, tmp_path / "m.pt", prefix="model", lock=tmp_path / "l", content_only=True)
    with torch.device("meta"):
        fresh = Tied()
    paramtool.torch.load_model(fresh, tmp_path / "m.pt", prefix="model", lock=tmp_path / "l", assign=True)
    assert fresh.a.weight is fresh.b.weight


def test_equal_tensors_that_dedup_stores_once_are_no_tie(tmp_path: Path) -> None:
    """Equal is not tied: neither the lock of the deduplicated file nor the model says that they share memory."""
    zeros = torch.zeros(64, 64)
    model = nn.ModuleDict({"a": nn.Linear(64, 64), "b": nn.Linear(64, 64)})
    torch.save(
        {name: zeros[: len(tensor)].clone() for name, tensor in model.state_dict().items() if "w" in name}
        | {name: tensor for name, tensor in model.state_dict().items() if "b" in name[1:]},
        tmp_path / "m.pt",
    )
    paramtool.dedup(tmp_path / "m.pt", tmp_path / "m.safetensors", min_equal_bytes=1)
    paramtool.lock([tmp_path / "m.pt"], tmp_path / "l")
    paramtool.torch.load_model(model, tmp_path / "m.safetensors", lock=tmp_path / "l")
    assert model["a"].weight.data_ptr() != model["b"].weight.data_ptr()


def test_what_is_not_loaded_is_not_judged(tmp_path: Path) -> None:
    """Objects and files: another epoch, another container."""
    state = model().state_dict()
    torch.save({"model": state, "epoch": 1}, tmp_path / "m.pt")
    torch.save({"model": state, "epoch": 2}, tmp_path / "later.pt")
    paramtool.lock([tmp_path / "m.pt"], tmp_path / "l")
    assert {one.id for one in paramtool.check([tmp_path / "later.pt"], lock=tmp_path / "l").findings} == {
        "PT401", "PT402",
    }  # fmt: skip
    paramtool.torch.load_model(nn.LSTM(3, 4), tmp_path / "later.pt", lock=tmp_path / "l")
    paramtool.load_file(tmp_path / "later.pt", lock=tmp_path / "l")


def test_crcs_are_not_compared_as_in_torch(folder: Path) -> None:
    """A byte that changed is loaded as by torch.load; `check` and a lock find it."""
    damaged = folder / "m.pt"
    data = bytearray(damaged.read_bytes())
    number = torch.load(damaged)["weight_ih_l0"].numpy().tobytes()
    data[data.index(number) + 1] ^= 1
    damaged.write_bytes(data)
    loaded, expected = nn.LSTM(3, 4), nn.LSTM(3, 4)
    paramtool.torch.load_model(loaded, damaged)
    expected.load_state_dict(torch.load(damaged, mmap=True))
    assert all(torch.equal(tensor, expected.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    assert not torch.equal(loaded.weight_ih_l0, model().weight_ih_l0)
    with pytest.raises((LockError, FormatError)):
        paramtool.torch.load_model(model(), damaged, lock=folder / "paramtool.lock")
    with pytest.raises(FormatError, match="the archive says"):
        paramtool.torch.load_file(damaged)
