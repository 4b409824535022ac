"""Small models that set-ups of the site save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

SMALL = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def pretrained(folder: Path, kind: str, seed: int = 0, scaled: float = 1, **more: Any) -> Any:
    """A model of transformers, saved into a folder; `scaled` multiplies one of its matrices, as a fine-tune would."""
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**{**({} if kind == "GPT2" else SMALL), **more})
    head = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    model = getattr(transformers, kind + head)(config)
    if scaled != 1:
        with torch.no_grad():
            model.get_parameter("model.layers.1.mlp.up_proj.weight").mul_(scaled)
    model.save_pretrained(folder)
    return model


def tied(seed: int = 0) -> dict[str, torch.Tensor]:
    """The state of a model whose head is its embedding."""
    torch.manual_seed(seed)
    state = {"wte.weight": torch.randn(100, 32), "h.0.weight": torch.randn(64, 32), "head.bias": torch.zeros(100)}
    return {**state, "lm_head.weight": state["wte.weight"]}


def trained(path: Path) -> None:
    """A tied Llama after one step of AdamW, as a training script saves it."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SMALL, "intermediate_size": 64}, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}, path)


class Speech(nn.Module):
    """The model of docs/types.md."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8)
        self.lstm, self.head = nn.LSTM(8, 12), nn.Linear(12, 5)
