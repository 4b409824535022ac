"""Tensors of one name under other keys: a program that reads one of the files fails on the other."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import paramtool
from paramtool.commands.diff.diff import Diffed, diff
from paramtool.commands.verify import verify
from tests.hostile.command import quick

W, V = torch.randn(4, 4), torch.randn(3)
PAIRS: dict[str, tuple[object, object, list[str]]] = {
    "one key": (
        {"a": {"b": W}}, {"a.b": W}, ["object 'a.b': is under the key 'a.b'; A has it under the keys 'a', 'b'"],
    ),
    "nested": (
        {"a.b": W, "a.c": V}, {"a": {"b": W, "c": V}},
        ["object 'a.b': is under the keys 'a', 'b'; A has it under the key 'a.b' (and 1 more tensor)"],
    ),
    "nested elsewhere": (
        {"m": {"a.b": {"c": W}}}, {"m": {"a": {"b.c": W}}},
        ["object 'm.a.b.c': is under the keys 'm', 'a', 'b.c'; A has it under the keys 'm', 'a.b', 'c'"],
    ),
    "types of keys": (
        {"0": W, "1": V}, {0: W, 1: V}, ["object 'at the top': key '0' is an int; A has a str (and 1 more key)"],
    ),
    "a type of keys below": (
        {"s": {True: {"m": W}}}, {"s": {"True": {"m": W}}}, ["object 's': key 'True' is a str; A has a bool"],
    ),
    "a number of NumPy's": ({0: W}, {np.int64(0): W}, ["object 'at the top': key '0' is a numpy."]),
    "a tuple": ({"m": [W, V], "e": 3}, {"m": (W, V), "e": 3}, ["object 'm': is a tuple; A has a list"]),
    "a dict": ({"m": [W, V], "e": 3}, {"m": {0: W, 1: V}, "e": 3}, ["object 'm': is a dict; A has a list"]),
    "a tuple at the top": ([W, V], (W, V), ["object 'at the top': is a tuple; A has a list"]),
}  # fmt: skip


def of(place: Path, a: object, b: object) -> Diffed:
    torch.save(a, place / "a.pt")
    torch.save(b, place / "b.pt")
    return diff(place / "a.pt", place / "b.pt")


@pytest.mark.parametrize("pair", PAIRS)
def test_other_keys_are_other_objects(tmp_path: Path, pair: str) -> None:
    a, b, said = PAIRS[pair]
    found = of(tmp_path, a, b)
    assert {one.kind for one in found.tensors} == {"same"}
    assert len(found.objects) == len(said) and not found.is_same
    assert found.objects[0].startswith(said[0])
    ran = quick("diff", "a.pt", "b.pt", "--exit-code", cwd=tmp_path)
    assert (ran.code, "objects" in ran.out) == (1, True)


def test_many_tensors_are_one_row(tmp_path: Path) -> None:
    many = {f"layers.{k}.weight": torch.randn(2) for k in range(100)}
    found = of(tmp_path, many, {"layers": {str(k): {"weight": many[f"layers.{k}.weight"]} for k in range(100)}})
    assert len(found.objects) == 1 and found.objects[0].endswith("(and 99 more tensors)")
    listed = {f"m{k}": [torch.randn(2)] for k in range(100)}
    found = of(tmp_path, listed, {key: tuple(held) for key, held in listed.items()})
    assert found.objects == ("object 'm0': is a tuple; A has a list (and 99 more places)",)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"a.b": W}, OrderedDict({"a.b": W})),
        ({"a": {"b": W}}, {"a": OrderedDict(b=W)}),
        ({"a": {"b": W}, 0: V}, {0: V, "a": {"b": W}}),
    ],
)
def test_the_same_keys(tmp_path: Path, a: object, b: object) -> None:
    """A subclass of dict, and the order of keys, are no other nesting."""
    assert of(tmp_path, a, b).is_same


def test_a_format_without_nesting_has_none(tmp_path: Path) -> None:
    """safetensors has names alone; what paramtool writes of a nested file keeps its keys in the record."""
    torch.save({"a": {"b": W}, 0: V}, tmp_path / "a.pt")
    save_file({"a.b": W, "0": V}, tmp_path / "plain.safetensors")
    for one, other in (("a.pt", "plain.safetensors"), ("plain.safetensors", "a.pt")):
        assert not any("key" in text for text in diff(tmp_path / one, tmp_path / other).objects)
    for name in ("written.safetensors", "written.pt"):
        paramtool.dedup(tmp_path / "a.pt", tmp_path / name)
        assert diff(tmp_path / "a.pt", tmp_path / name).is_same
    torch.save({"a.b": W, 0: V}, tmp_path / "flat.pt")
    assert len(diff(tmp_path / "flat.pt", tmp_path / "written.safetensors").objects) == 1


@pytest.mark.parametrize("change", ["a plain dict", "module. in front", "an OrderedDict of its own"])
@pytest.mark.parametrize("below", [False, True])
def test_versions_of_modules_are_metadata(change: str, below: bool, tmp_path: Path) -> None:
    """`Module.state_dict` gives its dict an attribute, which a program that makes another dict of it loses."""
    state = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)).state_dict()
    other = {
        "a plain dict": dict(state),
        "module. in front": nn.DataParallel(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))).state_dict(),
        "an OrderedDict of its own": OrderedDict(state.items()),
    }[change]
    if change == "module. in front":
        for name, one in state.items():
            other[f"module.{name}"] = one
    for a, b in ((state, other), (other, state)):
        found = of(tmp_path, {"model": a, "epoch": 3}, {"model": b, "epoch": 3}) if below else of(tmp_path, a, b)
        assert found.is_same and not found.objects
        assert len(found.metadata) == 1 and "_metadata" in found.metadata[0]
        assert not found.judge(strict=True)
    assert not of(tmp_path, {"model": state, "epoch": 3}, {"model": other, "epoch": 4}).is_same


@pytest.mark.filterwarnings("ignore")
def test_planner_data_of_dcp(tmp_path: Path) -> None:
    """What `dcp_to_torch_save` gives: `diff` calls it other where `verify` does."""
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    one, two = torch.ones(2, 2), torch.zeros(3)
    states = [{"m": {"a": one, "b": {"c": two}}}, {"m.a": one, "m.b.c": two}, {"m": {"a": one, "b.c": two}}]
    for k, state in enumerate(states):
        dcp.save(state, checkpoint_id=tmp_path / str(k), no_dist=True)
    for a, b in ((0, 1), (1, 0), (0, 2), (2, 0), (0, 0)):
        found = diff(tmp_path / str(a), tmp_path / str(b))
        assert found.is_same == (not verify(tmp_path / str(b), tmp_path / str(a)).differences) == (2 not in (a, b)), (
            found
        )
