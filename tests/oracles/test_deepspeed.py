"""DeepSpeed runs, in its own environment, and reads its own folders: paramtool agrees, byte for byte.

`make oracles` makes the environment, and says in PARAMTOOL_DEEPSPEED where its Python is.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import paramtool
import paramtool.torch
from tests.formats import deepspeed_folders as folders
from tests.hostile.command import quick
from tests.laws.sharing import raw
from tests.patience import PATIENCE

PYTHON = os.environ.get("PARAMTOOL_DEEPSPEED", "")
SGD = {"optimizer": {"type": "SGD", "params": {"lr": 0.015625, "momentum": 0.5}}}
WIDE = {"data_types": {"grad_accum_dtype": "fp32"}}
RUNS: dict[str, dict[str, Any]] = {
    "stage 1, 3 ranks": {"stage": 1, "world": 3},
    "stage 2, momentum": {"stage": 2, "world": 2, "config": SGD, "converts": False},
    "stage 2, turns": {"stage": 2, "world": 2, "zero": {"round_robin_gradients": True}, "converts": False},
    "stage 1, gradients in float32": {"stage": 1, "world": 2, "config": WIDE, "reads": False},
    "stage 3, 3 ranks": {"stage": 3, "world": 3, "zero": {"sub_group_size": 20}},
}
"""`converts` is false where ds_to_universal wants Adam, or reads wrong mappings; `reads` where zero_to_fp32 refuses."""


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether dtype, shape and every byte agree."""
    return found.dtype == expected.dtype and found.shape == expected.shape and raw(found) == raw(expected)


@pytest.mark.parametrize("name", RUNS)
def test_deepspeed_agrees(name: str, tmp_path: Path) -> None:
    """The float32 parameters, and the state under the names."""
    if not PYTHON:
        pytest.skip("make oracles runs it, in its environment with DeepSpeed")
    asked = {"zero": {}, "config": {}, "reads": True, "converts": True} | RUNS[name]
    command = [PYTHON, "-W", "ignore", Path(__file__).with_name("run_deepspeed.py"), tmp_path, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert not done.returncode, done.stdout[-2000:] + done.stderr[-2000:]
    found = paramtool.torch.load_file(tmp_path / "saved")
    masters = {key.removeprefix("optimizer.fp32."): key for key in found if key.startswith("optimizer.fp32.")}
    masters = masters or {key.removeprefix("module."): key for key in found if key.startswith("module.")}
    for key, place in masters.items():
        if asked["stage"] < 3:
            assert same(found[place].to(torch.bfloat16), found[f"module.{key}"]), key
    if asked["reads"]:
        expected = torch.load(tmp_path / "zero_to_fp32.pt", weights_only=True)
        assert len(expected) > 5
        for key in expected.keys() & masters.keys() - {"ids"}:
            assert same(found[masters[key]], expected[key]), key
    if asked["converts"]:
        other = paramtool.torch.load_file(tmp_path / "universal")
        assert list(other) == list(found) and all(same(other[key], found[key]) for key in found)
        assert sum(_is_universal(tmp_path / "universal" / "zero", found, key) for key in masters) == 5


@pytest.mark.parametrize("stage", [1, 3])
def test_from_pretrained_opens_the_model(stage: int, tmp_path: Path) -> None:
    """A tied model of transformers that three ranks saved becomes one that `from_pretrained` opens, tied."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=8, vocab_size=30)
    model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16)
    parameters = {name: value.detach().float() for name, value in model.named_parameters()}
    shared = {"lm_head.weight": "transformer.wte.weight"}
    assert not shared.keys() & parameters.keys()
    folders.save(tmp_path / "ck" / "global_step4", [parameters], 3, stage, shared=shared)
    (tmp_path / "ck" / "latest").write_text("global_step4")
    config.save_pretrained(tmp_path / "ck")
    ran = quick("export", "ck", "--only", "model", "-o", "out", cwd=tmp_path)
    assert ran.code == 0, ran
    kind = torch.float32 if stage == 3 else torch.bfloat16
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=kind)
    assert opened.lm_head.weight is opened.transformer.wte.weight
    for name, value in opened.named_parameters():
        assert same(value.detach(), parameters[name].to(kind)), name


def _is_universal(zero: Path, found: dict[str, torch.Tensor], name: str) -> bool:
    """Whether a parameter has moments there; they are those that were found."""
    for slot in ("exp_avg", "exp_avg_sq"):
        path = zero / name / f"{slot}.pt"
        if not path.exists():
            return False
        value = torch.load(path, weights_only=True)
        mine = found[f"optimizer.state.{name}.{slot}"]
        assert same(mine, value["param"] if isinstance(value, dict) else value.reshape(mine.shape)), name
    return True
