"""Biases beside kernels whose axes moved: NumPy moves both, or the kernel alone."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from safetensors.numpy import save_file

from paramtool.commands.diff.diff import diff
from paramtool.model.diff import CAST, CHANGED, LAYOUT

WIDTH = 16


@pytest.mark.parametrize("heads, size", [(4, 8), (2, 3)])
@pytest.mark.parametrize("order", ["heads first", "heads last"])
@pytest.mark.parametrize("what", ["zeros", "follows", "stays", "another"])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_a_bias_of_heads(
    heads: int, size: int, order: str, what: str, dtype: Literal["f4", "f2"], tmp_path: Path
) -> None:
    """`query/bias` [heads, size] beside `query.bias` [heads * size]: the same where it moved as the kernel's axes did.

    One that stays beside axes that change places is other weights, although all its numbers are there.
    """
    random = np.random.default_rng(heads)
    kernel, bias = (
        random.normal(size=shape).astype("f2").astype("f4") for shape in ((WIDTH, heads, size), (heads, size))
    )
    bias = np.zeros_like(bias) if what == "zeros" else bias
    axes = (1, 2, 0) if order == "heads first" else (2, 1, 0)
    moved = bias if order == "heads first" or what == "stays" else bias.T
    a = {"attn/query/kernel": kernel, "attn/query/bias": bias}
    b = {"attn.query.weight": kernel.transpose(axes).reshape(-1, WIDTH), "attn.query.bias": moved.reshape(-1).copy()}
    b["attn.query.bias"][1] += what == "another"
    save_file(a, tmp_path / "a.safetensors")
    save_file({key: np.ascontiguousarray(one, dtype) for key, one in b.items()}, tmp_path / "b.safetensors")
    is_same = what in ("zeros", "follows") or (what, order) == ("stays", "heads first")
    for one, other in (("a", "b"), ("b", "a")):
        found = diff(tmp_path / f"{one}.safetensors", tmp_path / f"{other}.safetensors")
        told = [(row.kind, row.a, row.b, row.how) for row in found.tensors]
        assert found.is_same is is_same, told
        if is_same:
            assert {row.kind for row in found.tensors} == {LAYOUT if dtype == "f4" else CAST}, told
        if what == "stays" and not is_same and heads * size >= 16:
            assert any(row.kind == CHANGED and row.how.startswith("does not follow") for row in found.tensors), told
