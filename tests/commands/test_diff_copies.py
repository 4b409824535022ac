"""`diff` of tensors with equal rows: none is lost where both hold one as often, and else it says how many are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paramtool.commands.diff import lines
from paramtool.commands.diff.diff import diff
from paramtool.model.diff import LAYOUT, REMOVED

torch.manual_seed(3)
ROWS = torch.randn(12, 16)
PADDED = torch.cat([torch.zeros(5, 16), ROWS, ROWS[:3], torch.zeros(4, 16)])
ORDER = torch.randperm(len(PADDED), generator=torch.Generator().manual_seed(4))


def test_equal_rows_in_another_order(tmp_path: Path) -> None:
    save_file({"w": PADDED}, tmp_path / "a.safetensors")
    save_file({"x": PADDED[ORDER]}, tmp_path / "b.safetensors")
    found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert found.is_same and [one.kind for one in found.tensors] == [LAYOUT]


def test_equal_experts_that_were_stacked(tmp_path: Path) -> None:
    """Of two equal experts the map can name one twice: the other is in the stack all the same."""
    experts = [torch.randn(6, 16) for _ in range(3)]
    every = [*experts, experts[1].clone()]
    save_file({f"one.{k}": tensor for k, tensor in enumerate(every)}, tmp_path / "a.safetensors")
    save_file({"all": torch.stack([every[k] for k in (3, 0, 2, 1)])}, tmp_path / "b.safetensors")
    for pair in (("a", "b"), ("b", "a")):
        found = diff(*(tmp_path / f"{name}.safetensors" for name in pair))
        assert found.is_same, found


@pytest.mark.parametrize("copies", [1, 3])
def test_copies_that_are_lost_are_counted(copies: int, tmp_path: Path) -> None:
    """B holds a row less often than A: other weights."""
    save_file({"w": PADDED}, tmp_path / "a.safetensors")
    save_file({"x": PADDED[copies:].flip(0)}, tmp_path / "b.safetensors")
    found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert not found.is_same
    (lost,) = (one for one in found.tensors if one.kind == REMOVED)
    assert lost.how.startswith(f"{16 * copies} of {PADDED.numel()} elements")


def test_rows_are_read_again_only_where_some_were_never_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B has each row twice, and all of A is found: nothing is to be given."""
    read: list[object] = []
    monkeypatch.setattr(lines, "_digests", lambda source, lines, which: read.append(which) or iter(()))
    save_file({"w": ROWS}, tmp_path / "a.safetensors")
    save_file({"x": torch.cat([ROWS, ROWS]).flip(0)}, tmp_path / "b.safetensors")
    found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert found.is_same and [one.kind for one in found.tensors] == [LAYOUT] and not read


W, V = torch.randn(16, 8), torch.randn(200)
MOVED = {
    "rows": (W, W[torch.randperm(16)]),
    "columns": (W, W.flip(1)),
    "halves": (W, W.roll(8, 0)),
    "a vector": (V, V.roll(100)),
}


@pytest.mark.parametrize("case", MOVED)
def test_equal_tensors_that_moved_alike_under_their_names(case: str, tmp_path: Path) -> None:
    """Either could be made of the first one: each is tried with its own name first."""
    for name, tensor in zip("ab", MOVED[case], strict=True):
        save_file({"x": tensor.contiguous(), "y": tensor.clone()}, tmp_path / f"{name}.safetensors")
    for pair in (("a", "b"), ("b", "a")):
        found = diff(*(tmp_path / f"{name}.safetensors" for name in pair))
        assert [(one.kind, one.a, one.b) for one in found.tensors] == [
            (LAYOUT, (name,), (name,)) for name in ("x", "y")
        ], found
        assert found.doubts and not any(one.is_unique for one in found.tensors)
