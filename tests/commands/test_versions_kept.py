"""The versions of modules in a state dict, `_metadata`: whatever a command writes holds them, or its report names them.

torch's modules read them, to know the order and the names that an older version had; a loss would change values.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paramtool
import paramtool.torch
from paramtool.model import objects
from paramtool.passes.module_versions import versions_of

NAMES = ["m.pt", "m.safetensors", "m.npz", "m.h5", "m.params", "m.msgpack", "m.ckpt", "folder", "dcp"]
MORE: dict[str, dict[str, Any]] = {"folder": {"max_shard_size": 100}, "dcp": {"format": "dcp"}}


class Transposed(nn.Module):
    """The other way round since version 2."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.w, self.lin = nn.Parameter(torch.randn(3, 3)), nn.Linear(3, 2)

    def _load_from_state_dict(self, state: Any, prefix: str, versions: Any, *rest: Any) -> None:
        if versions.get("version", 1) < 2:
            state[f"{prefix}w"] = state[f"{prefix}w"].t()
        super()._load_from_state_dict(state, prefix, versions, *rest)


WRITING: dict[str, Callable[..., Any]] = {
    "export": lambda *args, **more: paramtool.export(*args, all_names=True, **more),
    "export a prefix": lambda *args, **more: paramtool.export(*args, all_names=True, prefix="lin.", **more),
    "export other names": lambda *args, **more: paramtool.export(*args, all_names=True, rename=["w=u"], **more),
    "convert": paramtool.convert,
    "convert to a type": lambda *args, **more: paramtool.convert(*args, dtype="float16", **more),
    "dedup": paramtool.dedup,
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", WRITING)
def test_kept_or_named(command: str, name: str, nested: bool, tmp_path: Path) -> None:
    model = Transposed()
    state = model.state_dict()
    torch.save({"model": state, "epoch": 3} if nested else state, source := tmp_path / "source.pt")
    options = {**MORE.get(name, {}), **({"only": "model"} if nested else {})}
    try:
        report = WRITING[command](source, tmp_path / name, **options)
    except (paramtool.errors.UsageError, paramtool.errors.PlanError, TypeError) as error:
        pytest.skip(f"is not written: {error}")
    found = versions_of(paramtool.read(report.output).objects)
    if found is None:
        assert any("'_metadata'" in text or "attributes" in text for text in report.left_out)
    else:
        parted = command == "export other names"  # `u` is no more what the model calls it
        assert any("_metadata" in text for text in report.left_out) == parted
        if "w" in paramtool.read(report.output).entries and "type" not in command:
            loaded = Transposed()
            paramtool.torch.load_model(loaded, report.output)
            assert torch.equal(loaded.w, model.w)


@pytest.mark.parametrize(
    ("more", "versions", "lost"),
    [
        ({"rename": ["enc.*=encoder.*"]}, {"": 1, "encoder": 1, "encoder.0": 1, "encoder.1": 2, "encoder.2": 1,
          "w": 2}, ""),
        ({"rename": ["*=model.*"]}, {f"model{at}": n for at, n in
          {"": 1, ".enc": 1, ".enc.0": 1, ".enc.1": 2, ".enc.2": 1, ".w": 2}.items()}, ""),
        ({"prefix": "enc."}, {"": 1, "0": 1, "1": 2, "2": 1}, ""),
        ({"rename": ["enc.1.*=bn.*"]}, {"": 1, "enc": 1, "enc.0": 1, "bn": 2, "enc.2": 1, "w": 2}, ""),
        ({"prefix": "enc.", "rename": ["1.weight=n.gamma"]}, {"": 1, "0": 1, "2": 1}, "'enc.1'"),
    ],
)  # fmt: skip
def test_versions_move_with_their_modules(more: Any, versions: Any, lost: str, tmp_path: Path) -> None:
    """A module has its version under its new name, if all of its tensors have that name; any other is named."""
    enc = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.ReLU())
    torch.save(nn.ModuleDict({"enc": enc, "w": Transposed()}).state_dict(), tmp_path / "a.pt")
    report = paramtool.export(tmp_path / "a.pt", tmp_path / "b.pt", all_names=True, **more)
    found = torch.load(tmp_path / "b.pt")._metadata
    assert {at: one["version"] for at, one in found.items() if not at.endswith("lin")} == versions
    assert [one for one in report.left_out if "_metadata" in one] == (
        [f"the versions ('_metadata') of modules whose tensors parted: {lost}"] if lost else []
    )


def test_a_whole_training_loses_them_by_name(tmp_path: Path) -> None:
    """Its sections become one list of names, of which none is a module's."""
    torch.save({"model": Transposed().state_dict()}, source := tmp_path / "m.pt")
    assert any("'_metadata'" in one for one in paramtool.export(source, tmp_path / "o.pt", all_names=True).left_out)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("target", ["torch", "torch.cell"])
@pytest.mark.parametrize("name", ["m.pt", "m.safetensors", "m.npz"])
def test_versions_of_renamed_modules(name: str, target: str, nested: bool, tmp_path: Path) -> None:
    """They are those of the new name, or are named where the module became another."""
    state = nn.ModuleDict({"enc": nn.LSTM(2, 3), "bn": nn.BatchNorm1d(3)}).state_dict()
    torch.save({"net": state} if nested else state, tmp_path / "a.pt")
    at = "net." if nested else ""
    rename = {f"{at}enc": f"{at}rnn"}
    report = paramtool.convert(tmp_path / "a.pt", tmp_path / name, target=target, rename=rename)
    said = " ".join(report.left_out)
    tree = paramtool.read(report.output).objects
    found = versions_of(objects.subtree(tree, "net") if nested else tree)
    if name == "m.npz":
        assert "_metadata" in said
        return
    assert isinstance(found, objects.Mapping)
    assert [key for key, _ in found.items] == ["", "rnn" if target == "torch" else "enc", "bn"]
    assert ("'enc'" in said) == (target != "torch"), report


class Gates(nn.LSTM):
    """Gates in another order since version 2."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, versions: Any, *rest: Any) -> None:
        if versions.get("version", 1) < 2:
            state.update({name: one.flip(0) for name, one in state.items() if name.startswith(prefix)})
        super()._load_from_state_dict(state, prefix, versions, *rest)


def test_a_renamed_module_is_not_taken_for_an_older_one(tmp_path: Path) -> None:
    net = nn.ModuleDict({"rnn": Gates(2, 3)})
    torch.save(net.state_dict(), tmp_path / "a.pt")
    paramtool.convert(tmp_path / "a.pt", tmp_path / "b.pt", target="torch", rename={"rnn": "net.rnn"})
    other = nn.ModuleDict({"net": nn.ModuleDict({"rnn": Gates(2, 3)})})
    other.load_state_dict(torch.load(tmp_path / "b.pt"))
    assert all(torch.equal(one, other.state_dict()[f"net.{name}"]) for name, one in net.state_dict().items())


def test_versions_there_and_back(tmp_path: Path) -> None:
    """Modules that are joined keep their versions for when they are taken apart."""
    layer = nn.ModuleDict({"attn": nn.ModuleDict({f"{name}_proj": nn.Linear(4, 4) for name in "qkvo"})})
    net = nn.ModuleDict({"layers": nn.ModuleList([layer]), "rnn": nn.LSTM(2, 3)})
    torch.save(net.state_dict(), tmp_path / "a.pt")
    fused = paramtool.fuse(tmp_path / "a.pt", tmp_path / "b.pt", layout="qkv")
    assert "'layers.0.attn.q_proj', 'layers.0.attn.k_proj', 'layers.0.attn.v_proj'" in " ".join(fused.left_out)
    paramtool.convert(tmp_path / "b.pt", tmp_path / "c.pt", target="torch", rename={"rnn": "net"})
    paramtool.convert(tmp_path / "c.pt", tmp_path / "d.pt", target="torch", rename={"net": "rnn"})
    paramtool.unfuse(tmp_path / "d.pt", tmp_path / "e.pt")
    assert list(torch.load(tmp_path / "e.pt")._metadata.items()) == list(net.state_dict()._metadata.items())
    assert not paramtool.diff(tmp_path / "a.pt", tmp_path / "e.pt").metadata
