"""The parts of one fused tensor are named by one layout, where it is the map of all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from paramtool.commands.diff.diff import diff
from paramtool.model.diff import LAYOUT

AT = "model.layers.0.self_attn."


@pytest.mark.parametrize("chunks", [1, 4])
def test_queries_have_the_layout_of_keys_and_values(chunks: int, tmp_path: Path) -> None:
    """Queries come first in each chunk of many layouts: where keys and values are, one alone has them."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 48, 20)).astype("f4")
    fused = np.concatenate([part.reshape(chunks, -1, 20) for part in (q, v, k)], 1).reshape(-1, 20)
    parts = {f"{AT}{name}_proj.weight": part for name, part in (("q", q), ("k", k), ("v", v))}
    save_file({f"{AT}qkv_proj.weight": fused}, tmp_path / "a.safetensors")
    save_file(parts, tmp_path / "b.safetensors")
    found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert {(one.kind, one.layout) for one in found.tensors} == {(LAYOUT, "qvk-per-chunk")}, found.tensors
