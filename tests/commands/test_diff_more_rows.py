"""A vocabulary that is padded, or has new words: changed, and the row says that the others are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paramtool.commands.diff.diff import diff
from paramtool.model.diff import CHANGED, TensorDiff

WORDS = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
MORE = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def compared(place: Path, a: torch.Tensor, b: torch.Tensor) -> tuple[TensorDiff, ...]:
    for name, tensor in (("a", a), ("b", b)):
        save_file({"embed.weight": tensor.contiguous()}, place / f"{name}.safetensors")
    return diff(place / "a.safetensors", place / "b.safetensors").tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("zeros", [False, True])
def test_more_rows(zeros: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """torch.nn.Embedding with rows behind those that there were."""
    words, more = (tensor.mul(20).to(dtype) for tensor in (WORDS, MORE))
    (one,) = compared(tmp_path, words, torch.cat([words, torch.zeros_like(more) if zeros else more]))
    assert one.kind == CHANGED and one.shapes == ((16, 8), (20, 8))
    assert one.how == f"B has 4 more rows{' of zeros' * zeros}; the other 16 are the same"


@pytest.mark.parametrize(
    "other",
    [torch.cat([WORDS[:15], MORE]), torch.cat([MORE, WORDS]), torch.randn(20, 4), torch.zeros(0, 8), torch.zeros(())],
    ids=["another row", "rows before", "other columns", "none", "a number"],
)
def test_other_rows_are_not_explained(other: torch.Tensor, tmp_path: Path) -> None:
    for a, b in ((WORDS, other), (other, WORDS)):
        assert not any("the same" in one.how for one in compared(tmp_path, a, b))
