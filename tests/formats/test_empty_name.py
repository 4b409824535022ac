"""A tensor under the key "" keeps that name, from any format to any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import paramtool
import paramtool.torch
from tests.hostile.command import quick
from tests.laws.sharing import partition, same_values

T = torch.arange(3000.0)
STATES = {
    "first": {"": T, "a": T + 1},
    "beside its old name": {"": T, "tensor": T + 1},
    "tied": {"a": T, "": T, "b": T[7:]},
    "owner": {"": T, "a": T, "b": T[7:], "c": T.clone()},
    "alone": {"": T},
    "nested": {"m": {"": T, "w": T}, "": {"": T + 2}},
}


def names(tree: object, path: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    """The tensors of nested dicts, as they are called."""
    if not isinstance(tree, dict):
        return {".".join(path): tree}  # type: ignore[dict-item]
    return {name: t for key, child in tree.items() for name, t in names(child, (*path, key)).items()}


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("key", STATES)
def test_the_name_is_kept(key: str, suffix: str, tmp_path: Path) -> None:
    """Read, written, proved, loaded by torch, written again as the same bytes."""
    path, out = tmp_path / "m.pt", tmp_path / f"out.{suffix}"
    torch.save(STATES[key], path)
    expected = names(STATES[key])
    assert list(paramtool.read(path).entries) == list(expected)
    paramtool.dedup(path, out)
    assert not paramtool.verify(out, path).differences
    loaded = paramtool.torch.load_file(out)
    assert partition(loaded) == partition(expected)
    assert same_values(expected, loaded)
    if suffix == "pt":
        again = torch.load(out, weights_only=True)
        assert list(again) == list(STATES[key]) and all(map(torch.equal, names(again).values(), expected.values()))
    paramtool.dedup(out, tmp_path / f"again.{suffix}")
    assert out.read_bytes() == (tmp_path / f"again.{suffix}").read_bytes()


@pytest.mark.parametrize("save", [
    lambda path: safetensors.torch.save_file({"": T, "a": T + 1}, path.with_suffix(".safetensors")),
    lambda path: np.savez(path.with_suffix(".npz"), **{"": T.numpy(), "a": T.numpy()}),
], ids=["safetensors", "npz"])  # fmt: skip
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_so_it_is_of_other_formats(save: Callable[[Path], None], suffix: str, tmp_path: Path) -> None:
    """The libraries allow it, and their files become torch's as well."""
    save(tmp_path / "m")
    (path,) = tmp_path.iterdir()
    paramtool.dedup(path, tmp_path / f"out.{suffix}", equal=False)
    assert list(paramtool.load_file(tmp_path / f"out.{suffix}")) == ["", "a"]


def test_exports_keep_it(tmp_path: Path) -> None:
    """Nothing was taken from the name, so nothing of it is missing; a rule that takes all of a name is refused."""
    torch.save(STATES["tied"], tmp_path / "m.pt")
    ran = quick("export", "m.pt", "--all-names", "-o", "out.safetensors", cwd=tmp_path)
    assert ran.code == 0, ran
    assert safetensors.torch.load_file(tmp_path / "out.safetensors").keys() == {"a", "", "b"}
    ran = quick("export", "m.pt", "--all-names", "--rename", "b*=*", "-o", "out2.safetensors", cwd=tmp_path)
    assert ran.code == 2 and "'b': its new name is empty" in ran.err, ran


def test_reports_show_it(tmp_path: Path) -> None:
    """As a pair of quotes: nothing would not be seen."""
    torch.save(STATES["owner"], tmp_path / "m.pt")
    lines = quick("inspect", "m.pt", "--digest", cwd=tmp_path).out.splitlines()
    assert any(line.startswith("tensor  ''  [3000]") for line in lines), lines
    assert any(line.startswith("shared  ''  [3000]") for line in lines), lines
    assert "''" in quick("--verbose", "dedup", "m.pt", cwd=tmp_path).out


def test_a_bare_tensor_has_a_name_of_ours(tmp_path: Path) -> None:
    """The whole value of a file has no key at all."""
    torch.save(T, tmp_path / "m.pt")
    assert list(paramtool.read(tmp_path / "m.pt").entries) == ["tensor"]
