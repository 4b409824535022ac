"""What the record of parts says after some of it was used, and names that it gives back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import paramtool
from paramtool.errors import LayoutError, UsageError
from paramtool.formats.record import parts as record
from paramtool.model.parts import PartsRecord
from tests.attention import LLAMA, folder_of


def record_in(folder: Path) -> PartsRecord:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return record.decode("model.safetensors", file.metadata() or {})


def names(folder: Path) -> set[str]:
    return set(load_file(folder / "model.safetensors"))


@pytest.fixture
def fused(tmp_path: Path) -> Path:
    """Two layers whose queries, keys and values are fused."""
    paramtool.fuse(folder_of(tmp_path / "m", LLAMA), tmp_path / "fused", layout="qkv")
    return tmp_path / "fused"


def test_one_module_and_then_the_others(fused: Path, tmp_path: Path) -> None:
    """What --at took apart is not said to be fused any more."""
    paramtool.unfuse(fused, tmp_path / "one", layout="qkv", at=["*.0.self_attn"])
    known = record_in(tmp_path / "one")
    assert [one.tensor for one in known.fused] == ["model.layers.1.self_attn.qkv_proj.weight"]
    assert [one.tensor for one in known.unfused] == ["model.layers.0.self_attn.qkv_proj.weight"]
    paramtool.unfuse(tmp_path / "one", tmp_path / "all")
    assert names(tmp_path / "all") == names(tmp_path / "m")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("m", "all"))
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("command", ["fuse", "unfuse"])
def test_a_record_gives_names_back_and_takes_no_others(command: str, fused: Path, tmp_path: Path) -> None:
    """--rename would be ignored in silence."""
    source = fused
    if command == "fuse":
        source = tmp_path / "apart"
        paramtool.unfuse(folder_of(tmp_path / "own", LLAMA, {"a.qkv.weight": torch.ones(32, 6)}), source, layout="qkv")
    name = "qkv_proj" if command == "fuse" else "q_proj"
    with pytest.raises(UsageError, match=f"--rename '{name}'.*record"):
        getattr(paramtool, command)(source, tmp_path / "out", layout="qkv", rename={name: "other"})
    assert not (tmp_path / "out").exists()


def test_a_name_is_not_empty(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--rename 'qkv_proj'"):
        paramtool.fuse(folder_of(tmp_path / "m", LLAMA), tmp_path / "out", layout="qkv", rename={"qkv_proj": ""})


def test_parts_without_elements_are_refused(tmp_path: Path) -> None:
    state = {f"a.{part}_proj.weight": torch.zeros(0, 6) for part in "qkv"}
    with pytest.raises(LayoutError, match=r"a\.q_proj\.weight' has shape \[0, 6\]"):
        paramtool.fuse(folder_of(tmp_path / "m", {}, state), tmp_path / "out", layout="qkv")


def test_a_record_says_heads_and_not_that_keys_have_as_many(tmp_path: Path) -> None:
    """The example of the documentation: sizes that follow from others need not be said."""
    weight = torch.randn(12 * 3 * 4, 5)
    said = {
        "tensor": "a.qkv.weight", "layout": "qkv-per-head", "along": 0,
        "pattern": "{heads: q[head_dim in] k[head_dim in] v[value_dim in]}",
        "sizes": {"heads": 12, "head_dim": 4, "in": 5},
        "parts": {part: [f"a.{part}.weight"] for part in "qkv"},
    }  # fmt: skip
    path = tmp_path / "m.safetensors"
    save_file({"a.qkv.weight": weight}, path, {record.KEY: json.dumps({"version": 1, "fused": [said]})})
    paramtool.unfuse(path, tmp_path / "out.safetensors")
    made = load_file(tmp_path / "out.safetensors")
    for k, part in enumerate("qkv"):
        assert torch.equal(made[f"a.{part}.weight"], weight.reshape(12, 3, 4, 5)[:, k].reshape(48, 5))
