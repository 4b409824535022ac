"""What `inspect` says of attention, gated MLPs and experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import paramtool
from tests.attention import LLAMA, MIXTRAL, folder_of
from tests.cli.test_reports import rows
from tests.hostile.command import quick
from tests.startup.test_imports import modules


def fused(path: Path, config: dict[str, Any] | None = None) -> Path:
    """The attention of a GPT-NeoX."""
    path.mkdir()
    state = {f"gpt_neox.layers.{k}.attention.query_key_value.weight": torch.randn(24, 8) for k in range(3)}
    state |= {f"gpt_neox.layers.{k}.attention.dense.weight": torch.randn(8, 8) for k in range(3)}
    save_file(state, path / "model.safetensors")
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def inspected(path: Path) -> dict[str, Any]:
    ran = quick("inspect", str(path), "--json", cwd=path.parent)
    assert ran.code == 0, ran
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_parts_of_a_model(tmp_path: Path) -> None:
    folder_of(tmp_path / "m", MIXTRAL)
    ran = quick("inspect", "m", cwd=tmp_path)
    (line,) = rows(ran, "parts")
    assert line.split("  ") == [
        "model.layers", "2 layers: q, k, v apart; experts as a list of 3", "names of transformers-4",
    ]  # fmt: skip


def test_a_config_that_decides(tmp_path: Path) -> None:
    ran = quick("inspect", str(fused(tmp_path / "m", {"model_type": "gpt_neox"})), cwd=tmp_path)
    assert "query_key_value fused: qkv-per-head by config.json (gpt_neox)" in ran.out and not rows(ran, "decide")


def test_what_would_decide(tmp_path: Path) -> None:
    path = fused(tmp_path / "m")
    ran = quick("inspect", str(path), cwd=tmp_path)
    (line,) = rows(ran, "decide")
    assert line.startswith("gpt_neox.layers.*.attention") and "config.json" in line
    (group,) = inspected(path)["parts"]["towers"][0]["groups"]
    assert group["layout"] == "" and len(group["fits"]) > 2 and group["decide"]


def test_a_damaged_config_is_no_error(tmp_path: Path) -> None:
    path = fused(tmp_path / "m")
    (path / "config.json").write_text("{")
    assert "fit" in quick("inspect", str(path), cwd=tmp_path).out


def test_what_paramtool_fused_says_so_itself(tmp_path: Path) -> None:
    folder_of(tmp_path / "m", LLAMA)
    paramtool.fuse(tmp_path / "m", tmp_path / "f", layout="qkv-per-group")
    (tmp_path / "f" / "config.json").unlink()
    groups = inspected(tmp_path / "f")["parts"]["towers"][0]["groups"]
    assert [(one["layout"], one["source"]) for one in groups if one["kind"] == "qkv"] == [
        ("qkv-per-group", "its record")
    ]


def test_nothing_for_files_that_have_none(tmp_path: Path) -> None:
    torch.save({"conv.weight": torch.randn(3, 3)}, tmp_path / "m.pt")
    assert not rows(quick("inspect", "m.pt", cwd=tmp_path), "parts")
    assert "parts" not in inspected(tmp_path / "m.pt")


def test_a_file_without_parts_imports_no_table(tmp_path: Path) -> None:
    torch.save({"conv.weight": torch.randn(3, 3)}, tmp_path / "m.pt")
    loaded = modules(tmp_path, "inspect", "m.pt")
    assert not [name for name in loaded if name.startswith(("paramtool.parts", "paramtool.passes"))]


def test_parts_apart_import_no_table(tmp_path: Path) -> None:
    """Most models of text: names are enough."""
    folder_of(tmp_path / "m", LLAMA)
    loaded = modules(tmp_path, "inspect", "m")
    assert "paramtool.passes.parts.groups" in loaded
    assert not {"paramtool.parts.families", "paramtool.dialects"} & loaded
