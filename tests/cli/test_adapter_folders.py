"""`convert --to` of a folder with an adapter of PEFT, which PEFT opens by the name of its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.hostile.command import Ran, quick

FILE = "adapter_model.safetensors"


def run(*words: object) -> Ran:
    """One command."""
    return quick(*words, cwd=Path.cwd())


@pytest.mark.parametrize("name", [FILE, "adapter_model.bin"])
def test_the_file_of_an_adapter_keeps_its_name(name: str, tmp_path: Path) -> None:
    """There and back; and nothing is said of the rows of a vocabulary, which it has not."""
    folder = tmp_path / "in"
    folder.mkdir()
    places = [f"base_model.model.model.layers.0.self_attn.{one}_proj" for one in "qkv"]
    state = {f"{at}.lora_A.weight": torch.ones(2, 8) for at in places}
    state |= {f"{at}.lora_B.weight": torch.randn(8, 2) for at in places}
    (save_file if name == FILE else torch.save)(state, folder / name)
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "k_proj", "v_proj"]})
    )
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "hidden_size": 8,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "num_hidden_layers": 1,
                "intermediate_size": 12,
                "vocab_size": 96,
                "tie_word_embeddings": False,
            }
        )
    )
    ran = run("convert", folder, "--to", "vllm", "-o", tmp_path / "v")
    assert ran.code == 0 and "vocabulary" not in ran.err, ran
    assert run("convert", tmp_path / "v", "--to", "transformers-4", "-o", tmp_path / "b").code == 0
    for output in ("v", "b"):
        assert {path.name for path in (tmp_path / output).glob("*.safetensors")} == {FILE}
    back = load_file(tmp_path / "b" / FILE)
    assert back.keys() == state.keys() and all(torch.equal(back[key], state[key]) for key in back)
