"""Small checkpoints with attention, gated MLPs and experts, for tests of what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, FFN, EXPERTS, LAYERS = 4, 2, 4, 6, 5, 3, 2
LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "hidden_size": HIDDEN, "intermediate_size": FFN,
    "num_hidden_layers": LAYERS, "vocab_size": 7, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL: Mapping[str, Any] = {
    **LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": EXPERTS,
}  # fmt: skip
State = dict[str, torch.Tensor]


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama or a Mixtral, as transformers 4 writes them."""
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    hidden, ffn, rows = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (rows, hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            found[f"{at}.self_attn.{name}_proj.weight"] = (count * dim, hidden)
        found[f"{at}.self_attn.o_proj.weight"] = (hidden, heads * dim)
        if config["model_type"] == "mixtral":
            found[f"{at}.block_sparse_moe.gate.weight"] = (config["num_local_experts"], hidden)
            for expert in range(config["num_local_experts"]):
                inside = f"{at}.block_sparse_moe.experts.{expert}"
                found |= {f"{inside}.w1.weight": (ffn, hidden), f"{inside}.w3.weight": (ffn, hidden)}
                found[f"{inside}.w2.weight"] = (hidden, ffn)
        else:
            found |= {f"{at}.mlp.{name}_proj.weight": (ffn, hidden) for name in ("gate", "up")}
            found[f"{at}.mlp.down_proj.weight"] = (hidden, ffn)
        found |= {f"{at}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    return {**found, "model.norm.weight": (hidden,), "lm_head.weight": (rows, hidden)}


def state_of(config: Mapping[str, Any], seed: int = 0) -> State:
    """Random weights of a model."""
    made = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=made) for name, shape in _shapes(config).items()}


def folder_of(path: Path, config: Mapping[str, Any], state: State | None = None) -> Path:
    """A folder with a model and its config."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(state_of(config) if state is None else state, path / "model.safetensors", metadata={"format": "pt"})
    return path
