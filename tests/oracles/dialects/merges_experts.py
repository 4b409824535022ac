"""Our own equations of models with experts in vLLM and in Megatron-Core, beside `merges`.

vLLM 0.33.0          layers/fused_moe: `experts.routed_experts.w13_weight` [experts, 2 F, N], gate above up, and
                     `w2_weight` [experts, N, F]
Megatron-Core        mlp.experts.linear_fc1.weightK: gate above up of expert K; the norm before it has its own module
                     (Megatron-Bridge 067f987df, models/conversion/param_mapping.py 2591, qwen/qwen3_moe_bridge.py 72)
"""

from __future__ import annotations

import re

import torch

from tests.oracles.dialects import merges
from tests.oracles.dialects.equations import Sizes, gated
from tests.oracles.dialects.merges import Tensors

EXPERT = re.compile(r"(model\.layers\.(\d+)\.\w+\.experts)\.(\d+)\.(\w+)\.weight")
PARTS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
MEGATRON = {
    "self_attn.q_norm.": "self_attention.q_layernorm.", "self_attn.k_norm.": "self_attention.k_layernorm.",
    "mlp.gate.": "mlp.router.", "block_sparse_moe.gate.": "mlp.router.",
    "post_attention_layernorm.": "pre_mlp_layernorm.",
}  # fmt: skip


def _experts(tensors: Tensors) -> dict[tuple[str, int], dict[str, list[torch.Tensor]]]:
    """{(module of the experts, layer): {gate, up, down: one for each expert}}"""
    found: dict[tuple[str, int], dict[str, list[torch.Tensor]]] = {}
    each = [(match, tensor) for name, tensor in tensors.items() if (match := EXPERT.fullmatch(name))]
    for match, tensor in sorted(each, key=lambda one: int(one[0][3])):
        parts = found.setdefault((match[1], int(match[2])), {})
        parts.setdefault(PARTS[match[4]], []).append(tensor)
    return found


def _others(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not EXPERT.fullmatch(name)}


def vllm(tensors: Tensors, sizes: Sizes) -> dict[str, torch.Tensor]:
    """A model of experts as vLLM has it in memory."""
    made = merges.vllm(_others(tensors), sizes)
    for (module, _), parts in _experts(tensors).items():
        both = [torch.cat(pair) for pair in zip(parts["gate"], parts["up"], strict=True)]
        made[f"{module}.routed_experts.w13_weight"] = torch.stack(both)
        made[f"{module}.routed_experts.w2_weight"] = torch.stack(parts["down"])
    return made


def megatron(tensors: Tensors, sizes: Sizes) -> dict[str, torch.Tensor]:
    """A model of experts with Megatron-Core's names, in one rank."""
    others = _others(tensors)
    made = {name: one for name, one in merges.megatron(others, sizes).items() if "linear_fc1.layer_norm" not in name}
    for name, tensor in others.items():
        _, dot, rest = name.partition(".layers.")
        number, _, inside = rest.partition(".")
        for own, theirs in MEGATRON.items():
            if dot and inside.startswith(own):
                made[f"decoder.layers.{number}.{theirs}{inside.removeprefix(own)}"] = tensor
    for (_, layer), parts in _experts(tensors).items():
        at = f"decoder.layers.{layer}.mlp.experts"
        for k, (gate, up, down) in enumerate(zip(parts["gate"], parts["up"], parts["down"], strict=True)):
            made |= {f"{at}.linear_fc1.weight{k}": torch.cat([gate, up]), f"{at}.linear_fc2.weight{k}": down}
    return made


def of_vllm(found: Tensors, layer: int, layout: str) -> dict[str, torch.Tensor]:
    """gate, up and down [experts, ...] of a layer."""
    at = next(n for n in found if n.startswith(f"model.layers.{layer}.") and n.endswith("w13_weight"))
    gate, up = gated(found[at], layout, 1)
    return {"gate": gate, "up": up, "down": found[at.replace("w13", "w2")]}


def of_megatron(found: Tensors, layer: int, layout: str) -> dict[str, torch.Tensor]:
    """The same of Megatron-Core's."""
    at = f"decoder.layers.{layer}.mlp.experts.linear_fc"
    count = sum(name.startswith(f"{at}1.weight") for name in found)
    gate, up = gated(torch.stack([found[f"{at}1.weight{k}"] for k in range(count)]), layout, 1)
    return {"gate": gate, "up": up, "down": torch.stack([found[f"{at}2.weight{k}"] for k in range(count)])}
