"""Our own equations of what other systems have in memory and in their files, written from their sources.

vLLM 0.33.0          model_executor/layers/linear.py: QKVParallelLinear has the rows of q, k and v one below the other,
                     MergedColumnParallelLinear gate and up; SiluAndMul: silu of the first half times the second
Megatron-Core        self_attention.linear_qkv: each group's heads of q, its k, its v; mlp.linear_fc1: gate above up;
                     norms inside the linear layers, as Transformer Engine has them
                     (Megatron-Bridge 067f987df, models/conversion/param_mapping.py 1654, 2591)
Meta's Llama         wq and wk have the values that turn together side by side
                     (transformers 5.23.0, models/llama/convert_llama_weights_to_hf.py, permute)
timm 1.0.31          models/vision_transformer.py: attn.qkv is reshaped to (3, heads, head_dim)

Each takes the tensors of a Llama, or a ViT, that transformers 5 saved, and gives {name: tensor}.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from tests.oracles.dialects.equations import Sizes, pairs_of_halves, put

Tensors = Mapping[str, torch.Tensor]
META = {
    "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
MEGATRON = {"self_attn.o_proj": "self_attention.linear_proj", "mlp.down_proj": "mlp.linear_fc2"}
MEGATRON_NORMS = {
    "input_layernorm": "self_attention.linear_qkv.layer_norm", "post_attention_layernorm": "mlp.linear_fc1.layer_norm",
}  # fmt: skip
TIMM = {
    "attention.o_proj": "attn.proj", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2", "layernorm_before": "norm1",
    "layernorm_after": "norm2",
}  # fmt: skip


ENCODER = {
    "attention.output.dense": "self_attn.out_proj", "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "linear1", "output.dense": "linear2", "output.LayerNorm": "norm2",
}  # fmt: skip


def _layers(tensors: Tensors, prefix: str) -> dict[int, dict[str, torch.Tensor]]:
    """{layer: {name inside it: tensor}}"""
    found: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(rf"{re.escape(prefix)}\.(\d+)\.(.+)", name):
            found.setdefault(int(match[1]), {})[match[2]] = tensor
    return found


def _fused(layer: Tensors, names: Mapping[str, str], sizes: Sizes, layout: str) -> dict[str, torch.Tensor]:
    """{weight, bias: the fused tensor} of q, k and v, {part: name of the module}."""
    found = {}
    for kind in ("weight", "bias"):
        if f"{names['q']}.{kind}" in layer:
            found[kind] = put({part: layer[f"{name}.{kind}"] for part, name in names.items()}, layout, sizes)
    return found


QKV = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj"}


def _gate_up(layer: Tensors) -> dict[str, torch.Tensor]:
    """{weight, bias: gate above up}"""
    kinds = [kind for kind in ("weight", "bias") if f"mlp.gate_proj.{kind}" in layer]
    return {kind: torch.cat([layer[f"mlp.gate_proj.{kind}"], layer[f"mlp.up_proj.{kind}"]]) for kind in kinds}


def vllm(tensors: Tensors, sizes: Sizes) -> dict[str, torch.Tensor]:
    """A Llama as vLLM has it in memory."""
    made = {name: tensor for name, tensor in tensors.items() if not re.search(r"\.([qkv]|gate|up)_proj\.", name)}
    for number, layer in _layers(tensors, "model.layers").items():
        at = f"model.layers.{number}"
        made |= {f"{at}.self_attn.qkv_proj.{k}": v for k, v in _fused(layer, QKV, sizes, "qkv").items()}
        made |= {f"{at}.mlp.gate_up_proj.{kind}": value for kind, value in _gate_up(layer).items()}
    return made


def megatron(tensors: Tensors, sizes: Sizes) -> dict[str, torch.Tensor]:
    """A Llama with Megatron-Core's names, in one rank."""
    made = {
        "embedding.word_embeddings.weight": tensors["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": tensors["model.norm.weight"],
        "output_layer.weight": tensors["lm_head.weight"],
    }
    layout = "qkv-per-group" if 1 < sizes.kv_heads < sizes.heads else "qkv-per-head"
    for number, layer in _layers(tensors, "model.layers").items():
        at = f"decoder.layers.{number}"
        made |= {f"{at}.self_attention.linear_qkv.{k}": v for k, v in _fused(layer, QKV, sizes, layout).items()}
        made |= {f"{at}.mlp.linear_fc1.{kind}": value for kind, value in _gate_up(layer).items()}
        made |= _renamed(layer, MEGATRON, at)
        made |= {f"{at}.{name}_weight": layer[f"{own}.weight"] for own, name in MEGATRON_NORMS.items()}
    return made


def meta(tensors: Tensors, sizes: Sizes) -> dict[str, torch.Tensor]:
    """A Llama with Meta's names and order of rotary values."""
    made = {
        "tok_embeddings.weight": tensors["model.embed_tokens.weight"],
        "norm.weight": tensors["model.norm.weight"],
        "output.weight": tensors["lm_head.weight"],
    }
    for number, layer in _layers(tensors, "model.layers").items():
        turned = dict(layer)
        for part, heads in (("q", sizes.heads), ("k", sizes.kv_heads)):
            for kind in ("weight", "bias"):
                if (name := f"{QKV[part]}.{kind}") in layer:
                    turned[name] = pairs_of_halves(layer[name], heads)
        made |= _renamed(turned, META, f"layers.{number}")
    return made


def timm(tensors: Tensors, sizes: Sizes) -> dict[str, torch.Tensor]:
    """A ViT of transformers with timm's names."""
    made = {
        "cls_token": tensors["vit.embeddings.cls_token"],
        "pos_embed": tensors["vit.embeddings.position_embeddings"],
    }
    for kind in ("weight", "bias"):
        made[f"patch_embed.proj.{kind}"] = tensors[f"vit.embeddings.patch_embeddings.projection.{kind}"]
        made[f"norm.{kind}"] = tensors[f"vit.layernorm.{kind}"]
        made[f"head.{kind}"] = tensors[f"classifier.{kind}"]
    names = {part: f"attention.{part}_proj" for part in "qkv"}
    for number, layer in _layers(tensors, "vit.layers").items():
        at = f"blocks.{number}"
        made |= {f"{at}.attn.qkv.{kind}": value for kind, value in _fused(layer, names, sizes, "qkv").items()}
        made |= _renamed(layer, TIMM, at)
    return made


BERT_QKV = {"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value"}


def torch_encoder(tensors: Tensors, sizes: Sizes) -> dict[str, torch.Tensor]:
    """The layers of a BERT as `torch.nn.TransformerEncoder` has them."""
    made = {}
    for number, layer in _layers(tensors, "bert.encoder.layer").items():
        at = f"layers.{number}"
        made |= {f"{at}.self_attn.in_proj_{kind}": v for kind, v in _fused(layer, BERT_QKV, sizes, "qkv").items()}
        made |= _renamed(layer, ENCODER, at)
    return made


def interleaved(tensors: Tensors, sizes: Sizes) -> dict[str, torch.Tensor]:
    """q, k and v of a BERT as gluon-nlp hands them to MXNet's interleaved operators."""
    made = {}
    for number, layer in _layers(tensors, "bert.encoder.layer").items():
        cell = f"encoder.transformer_cells.{number}.attention_cell"
        made |= {f"{cell}.in_{kind}": v for kind, v in _fused(layer, BERT_QKV, sizes, "qkv-per-head").items()}
    return made


def _renamed(layer: Tensors, names: Mapping[str, str], at: str) -> dict[str, torch.Tensor]:
    made = {}
    for name, tensor in layer.items():
        module, _, kind = name.rpartition(".")
        if module in names:
            made[f"{at}.{names[module]}.{kind}"] = tensor
    return made
