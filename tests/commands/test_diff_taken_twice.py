"""Tensors made of what others are made of: the first has no such tensor, whatever the map is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.model.diff import ADDED, LAYOUT

W = torch.randn(24, 40, generator=torch.Generator().manual_seed(0))
MAPS: dict[str, tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]] = {
    "transposed": (W, torch.t),
    "rows backwards": (W, lambda one: one.flip(0)),
    "rows in another order": (W, lambda one: one[torch.randperm(24, generator=torch.Generator().manual_seed(1))]),
    "transposed and cast": (W.half().float(), lambda one: one.T.half()),
    "a vector in three parts": (W[:3, :32].reshape(-1), lambda one: one.view(3, 32)[[1, 0, 2]].reshape(-1)),
}


def compared(place: Path, a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> Diffed:
    for side, state in (("a", a), ("b", b)):
        save_file({name: one.contiguous().clone() for name, one in state.items()}, place / f"{side}.safetensors")
    return diff(place / "a.safetensors", place / "b.safetensors")


@pytest.mark.parametrize("name", MAPS)
def test_one_tensor_of_a_is_no_two_of_b(name: str, tmp_path: Path) -> None:
    """As the two biases of a cell that a program adds up, or a layer that was written twice."""
    whole, moved = MAPS[name]
    found = compared(tmp_path, {"w": whole}, {"p": moved(whole), "q": moved(whole)})
    assert [(one.kind, one.b) for one in found.tensors] == [(found.tensors[0].kind, ("p",)), (ADDED, ("q",))]
    assert found.tensors[0].a == ("w",) and not found.is_same
    assert found.tensors[1].how == "made of 'w' of A, as 'p' is"


@pytest.mark.parametrize("name", MAPS)
def test_the_own_name_comes_first(name: str, tmp_path: Path) -> None:
    whole, moved = MAPS[name]
    found = compared(tmp_path, {"w": whole}, {"p": moved(whole), "w": moved(whole)})
    kinds = {one.b[0]: one.kind for one in found.tensors}
    assert kinds["p"] == ADDED and kinds["w"] != ADDED


@pytest.mark.parametrize("name", ["transposed", "rows backwards", "rows in another order", "transposed and cast"])
@pytest.mark.parametrize("count", [2, 5])
def test_as_many_equal_tensors_are_the_same(name: str, count: int, tmp_path: Path) -> None:
    """Experts that are copies of one layer, in both; with one more in the second, that one is new."""
    whole, moved = MAPS[name]
    a = {f"experts.{k}.w": whole for k in range(count)}
    assert compared(tmp_path, a, {f"e.{k}": moved(whole) for k in range(count)}).is_same
    found = compared(tmp_path, a, {f"e.{k}": moved(whole) for k in range(count + 1)})
    assert [one.kind for one in found.tensors].count(ADDED) == 1 and not found.is_same


def test_names_that_share_memory_are_one_tensor(tmp_path: Path) -> None:
    """A tied head, which the second stores transposed under two names: only the tie differs, and A has one name."""
    turned = W.T.contiguous()
    torch.save({"w": W}, tmp_path / "a.pt")
    torch.save({"p": turned, "q": turned}, tmp_path / "b.pt")
    found = diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert {one.kind for one in found.tensors} == {LAYOUT}


@pytest.mark.parametrize("name", ["transposed", "rows backwards", "rows in another order", "transposed and cast"])
def test_a_tie_of_both_under_other_names(name: str, tmp_path: Path) -> None:
    """Each name has its own; stored apart in one of the two, only the tie differs."""
    whole, moved = MAPS[name]
    other = moved(whole).contiguous()
    torch.save({"x": whole, "y": whole}, tmp_path / "a.pt")
    torch.save({"p": other, "q": other}, tmp_path / "b.pt")
    for a, b in (("a.pt", "b.pt"), ("b.pt", "a.pt")):
        found = diff(tmp_path / a, tmp_path / b)
        assert sorted(one.a[0] for one in found.tensors) == sorted("xy" if a == "a.pt" else "pq")
        assert found.is_same and not found.ties
    torch.save({"p": other, "q": other.clone()}, tmp_path / "c.pt")
    assert diff(tmp_path / "a.pt", tmp_path / "c.pt").ties == ("'q': shares memory with 'p' in A only",)
