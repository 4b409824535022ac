"""The line that `dedup` prints for loading an adapter, run by PEFT on the model that it is for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import paramtool
import paramtool.torch
from tests import typed_lines
from tests.hostile.command import quick

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


def base() -> Any:
    """A small model."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, **sizes))


CONFIGS: dict[str, Callable[[], Any]] = {
    "LoRA": lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
    "LoRA, and whole modules": lambda: peft.LoraConfig(
        r=4, target_modules=["q_proj"], modules_to_save=["lm_head"], init_lora_weights=False
    ),
    "factors of zeros": lambda: peft.LoraConfig(r=32, target_modules=["q_proj", "v_proj"]),
    "IA3": lambda: peft.IA3Config(target_modules=["q_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
}


@pytest.mark.parametrize("what", ["folder", "file"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_an_adapter_is_loaded(kind: str, what: str, tmp_path: Path) -> None:
    """Every tensor of it is in the model afterwards; of a file, into a model that has such an adapter."""
    if kind == "prompt" and what == "file":
        pytest.skip("a file of a prompt alone has no name that PEFT alone gives")
    made = peft.get_peft_model(base(), CONFIGS[kind]())
    made.save_pretrained(tmp_path / "in")
    source = "in" if what == "folder" else "in/adapter_model.safetensors"
    ran = quick("dedup", source, "-o", "out" if what == "folder" else "out.safetensors", cwd=tmp_path)
    assert ran.code == 0, ran
    (line,) = typed_lines.python(ran.out)
    given = {
        "peft": peft,
        "paramtool": paramtool,
        "base": base(),
        "model": peft.get_peft_model(base(), CONFIGS[kind]()),
    }
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        loaded = eval(line, given)
    finally:
        os.chdir(here)
    model = loaded if line.startswith("peft.PeftModel") else given["model"]
    held, expected = model.state_dict(), made.state_dict()
    assert held.keys() == expected.keys() and all(torch.equal(held[name], expected[name]) for name in expected)
