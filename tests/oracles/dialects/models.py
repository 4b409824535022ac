"""Small models of transformers with odd sizes, for what a family's attention and experts have to show.

Heads are no power of two, groups are fewer than heads, no width is twice another where it need not be; every value is
random by a seed, those of norms and biases, too, so that no wrong order of rows can pass.  Nothing is downloaded.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import nn

LENGTH, WORDS = 7, 96
FORMS = {"transformers-4": True, "transformers-5": False}
"""{dialect: what `save_pretrained(save_original_format=...)` has to be told}"""


@dataclass(frozen=True)
class Attention:
    """The attention of a family: where it is, and what its equations are."""

    heads: int
    kv_heads: int
    head_dim: int
    module: str
    """A regular expression for the names of the attention modules."""
    output: str
    """The module that gets the heads' results, as a path from the attention module; `..` goes up."""
    fused: str = ""
    """The module inside with the fused weight; empty where q, k and v are apart."""
    layout: str = ""
    """The layout of its rows, a name of `equations.LAYOUTS`."""
    apart: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    """Where q, k and v are apart, the modules inside."""
    position: str = ""
    """halves or pairs (rotary orders), bias, scaled bias (added before they are scaled), or empty."""
    causal: bool = True
    scale: float | None = None
    clip: float | None = None
    """The largest value of q, k and v."""
    transposed: bool = False
    """The weights are [in, out], as those of GPT-2's Conv1D."""


@dataclass(frozen=True)
class Gated:
    """The gated MLP of a family."""

    module: str
    """A regular expression for the names of the MLPs."""
    output: str = "down_proj"
    """The module inside that gets what was gated."""
    fused: str = ""
    """The module inside with gate above up; empty where they are apart."""
    apart: tuple[str, str] = ("gate_proj", "up_proj")
    activation: str = "silu"


@dataclass(frozen=True)
class Experts:
    """The experts of a family, as transformers 5 holds them, and the names that version 4 wrote."""

    module: str
    """A regular expression for the names of the modules with the experts."""
    layout: str = "gate-up"
    """The order of the rows of gate and up: gate-up or gate-up-interleaved."""
    orientation: str = "linear"
    """linear: [experts, out, in];  matmul: [experts, in, out];  flat: [experts x out, in]."""
    names: Mapping[str, str] = field(default_factory=dict)
    """{gate, up, down: the name inside the module in a file of transformers-4}, with {} for the expert; or nothing."""
    inside: str = ""
    """Where paramtool puts the list of experts, after the name of the module."""
    stacks: tuple[str, str] = ("gate_up_proj", "down_proj")
    """The names inside the module in memory."""
    activation: str = "silu"


@dataclass(frozen=True)
class Family:
    """A model type with odd sizes."""

    name: str
    architecture: str
    config: Mapping[str, Any]
    attention: tuple[Attention, ...] = ()
    experts: Experts | None = None
    gated: Gated | None = None
    inputs: str = "tokens"
    """tokens, pixels, both, or pair (of an encoder and a decoder)."""
    implementation: str = "eager"
    """Which attention runs it.  Version 5.23.0's eager Falcon adds ALiBi twice: modeling_falcon.py 394 and 775."""

    def build(self, seed: int = 0, **settings: Any) -> nn.Module:
        """The model, with random values everywhere."""
        kind: Any = getattr(transformers, self.architecture)
        config = kind.config_class(**{**self.config, **settings})
        config._attn_implementation = self.implementation
        torch.manual_seed(seed)
        model: nn.Module = kind(config).eval()
        fill(model, seed)
        return model

    def given(self) -> dict[str, torch.Tensor]:
        """What the model is run on."""
        generator = torch.Generator().manual_seed(5)
        ids = torch.randint(5, WORDS - 5, (2, LENGTH), generator=generator)
        pixels = torch.randn(2, 3, 24, 24, generator=generator)
        return {
            "tokens": {"input_ids": ids},
            "pixels": {"pixel_values": pixels},
            "both": {"input_ids": ids, "pixel_values": pixels},
            "pair": {"input_ids": ids, "decoder_input_ids": ids.flip(1)[:, :5]},
        }[self.inputs]


def fill(model: nn.Module, seed: int = 0) -> None:
    """Random values in every parameter: matrices keep the size of what they multiply, norms are about 1."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                values *= 1.4 / max(parameter.shape[-1], 1) ** 0.5
            elif name.endswith("weight"):
                values = 1 + 0.3 * values
            else:
                values *= 0.3
            parameter.copy_(values)


@contextmanager
def quiet() -> Any:
    """transformers says nothing, and draws no bars."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
        transformers.logging.enable_progress_bar()


def saved(model: nn.Module, folder: Path, dialect: str) -> Path:
    """The folder, in which transformers saved the model in one of its two forms."""
    with quiet():
        model.save_pretrained(folder, save_original_format=FORMS[dialect])  # type: ignore[operator]
    return folder


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a folder's files."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(load_file(path))
    for path in sorted(folder.glob("consolidated.*.pth")):  # Meta's
        found.update(torch.load(path, weights_only=True))
    return found


def results(model: nn.Module, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Its logits, or what it has instead."""
    with torch.no_grad():
        found = model(**given)
    for key in ("logits", "logits_per_text", "last_hidden_state"):
        if getattr(found, key, None) is not None:
            return getattr(found, key)  # type: ignore[no-any-return]
    return found[0]  # type: ignore[no-any-return]


def opened(family: Family, folder: Path) -> nn.Module:
    """What from_pretrained makes of a folder; AssertionError where it misses or does not expect a name."""
    kind: Any = getattr(transformers, family.architecture)
    with quiet():
        model, told = kind.from_pretrained(folder, output_loading_info=True,
                                           attn_implementation=family.implementation)  # fmt: skip
    wrong = {key: sorted(map(str, names)) for key, names in told.items() if names}
    assert not wrong, wrong
    return model.eval()  # type: ignore[no-any-return]


# --- the families ----------------------------------------------------------------------------------------------------

_LLAMA = {
    "vocab_size": WORDS, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 3, "head_dim": 12, "max_position_embeddings": 32, "tie_word_embeddings": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Heads of 12 values, so that 6 of them are wider than the model."""
_LIST = {"gate": "{}.gate_proj.weight", "up": "{}.up_proj.weight", "down": "{}.down_proj.weight"}
_W123 = {"gate": "{}.w1.weight", "up": "{}.w3.weight", "down": "{}.w2.weight"}


def _attention(module: str = r"layers\.\d+\.self_attn$", output: str = "o_proj", **more: Any) -> tuple[Attention, ...]:
    settings = {"heads": 6, "kv_heads": 3, "head_dim": 12, "position": "halves", **more}
    return (Attention(module=module, output=output, **settings),)


def _falcon(**settings: Any) -> dict[str, Any]:
    return {"vocab_size": WORDS, "hidden_size": 72, "num_hidden_layers": 2, "num_attention_heads": 6, "bias": True,
            "ffn_hidden_size": 40, "max_position_embeddings": 32, "tie_word_embeddings": False,
            "bos_token_id": 1, "eos_token_id": 2, **settings}  # fmt: skip


_IN_FALCON = {"module": r"self_attention$", "output": "dense", "fused": "query_key_value"}
_CLIP = {"hidden_size": 60, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 6,
         "projection_dim": 28}  # fmt: skip
_BIGCODE = {"vocab_size": WORDS, "n_positions": 32, "n_embd": 72, "n_layer": 2, "n_head": 6, "n_inner": 40,
            "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}  # fmt: skip
_BERT_LIKE = {"vocab_size": WORDS, "hidden_size": 60, "intermediate_size": 44, "num_hidden_layers": 2,
              "num_attention_heads": 6, "max_position_embeddings": 32, "pad_token_id": 0}  # fmt: skip

FAMILIES = (
    Family(
        "GPT-2", "GPT2LMHeadModel",
        {"vocab_size": WORDS, "n_positions": 32, "n_embd": 60, "n_layer": 2, "n_head": 6, "n_inner": 44,
         "bos_token_id": 1, "eos_token_id": 2},
        _attention(r"h\.\d+\.attn$", "c_proj", kv_heads=6, head_dim=10, fused="c_attn", layout="qkv", position="",
                   transposed=True),
    ),
    Family(
        "BERT", "BertForMaskedLM", _BERT_LIKE,
        _attention(r"attention\.self$", "../output.dense", kv_heads=6, head_dim=10, apart=("query", "key", "value"),
                   position="", causal=False),
    ),
    Family(
        "GPT-NeoX", "GPTNeoXForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 72, "intermediate_size": 40, "num_hidden_layers": 2,
         "num_attention_heads": 6, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2,
         "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
        _attention(r"attention$", "dense", kv_heads=6, fused="query_key_value", layout="qkv-per-head"),
    ),
    Family(
        "BLOOM", "BloomForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 60, "n_layer": 2, "n_head": 6, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2},
        _attention(r"self_attention$", "dense", kv_heads=6, head_dim=10, fused="query_key_value",
                   layout="qkv-per-head", position="bias"),
    ),
    Family(
        "Falcon-RW", "FalconForCausalLM",
        _falcon(alibi=True, multi_query=False, new_decoder_architecture=False, parallel_attn=False),
        _attention(kv_heads=6, position="scaled bias", layout="qkv-per-head", **_IN_FALCON),
        implementation="sdpa",
    ),
    Family(
        "Falcon-7B", "FalconForCausalLM",
        _falcon(alibi=False, multi_query=True, new_decoder_architecture=False, parallel_attn=True),
        _attention(kv_heads=1, layout="qkv", **_IN_FALCON),
    ),
    Family(
        "Falcon-40B", "FalconForCausalLM",
        _falcon(alibi=False, multi_query=True, new_decoder_architecture=True, num_kv_heads=3, parallel_attn=True),
        _attention(kv_heads=3, layout="qkv-per-group", **_IN_FALCON),
    ),
    Family(
        "MPT", "MptForCausalLM",
        {"vocab_size": WORDS, "d_model": 60, "n_heads": 6, "n_layers": 2, "expansion_ratio": 2, "max_seq_len": 32},
        _attention(r"attn$", "out_proj", kv_heads=6, head_dim=10, fused="Wqkv", layout="qkv", position="bias"),
    ),
    Family(
        "Phi-3", "Phi3ForCausalLM", {key: value for key, value in _LLAMA.items() if key != "head_dim"}
        | {"hidden_size": 72, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        _attention(fused="qkv_proj", layout="qkv"), gated=Gated(r"layers\.\d+\.mlp$", fused="gate_up_proj"),
    ),
    Family("Llama", "LlamaForCausalLM", {**_LLAMA, "attention_bias": True, "mlp_bias": True}, _attention(),
           gated=Gated(r"layers\.\d+\.mlp$")),
    Family("Qwen2", "Qwen2ForCausalLM", _LLAMA | {"hidden_size": 72}, _attention(),
           gated=Gated(r"layers\.\d+\.mlp$")),
    Family(
        "Mixtral", "MixtralForCausalLM", {**_LLAMA, "num_local_experts": 5, "num_experts_per_tok": 3},
        _attention(), Experts(r"mlp\.experts$", names=_W123),
    ),
    Family(
        "Qwen3-MoE", "Qwen3MoeForCausalLM",
        {**_LLAMA, "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "decoder_sparse_step": 1,
         "mlp_only_layers": [], "attention_bias": True},
        (), Experts(r"mlp\.experts$", names=_LIST),
    ),
    Family(
        "gpt-oss", "GptOssForCausalLM",
        {**_LLAMA, "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 16,
         "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {"rope_type": "default",
         "rope_theta": 10000.0}},
        (), Experts(r"mlp\.experts$", "gate-up-interleaved", "matmul", activation="gpt-oss"),
    ),
    Family(
        "Llama 4", "Llama4ForCausalLM",
        {**_LLAMA, "intermediate_size_mlp": 44, "num_local_experts": 5, "num_experts_per_tok": 1,
         "interleave_moe_layer_step": 1, "attention_chunk_size": 16, "use_qk_norm": False},
        (), Experts(r"feed_forward\.experts$", "gate-up", "matmul", activation="llama4"),
    ),
    Family(
        "DBRX", "DbrxForCausalLM",
        {"vocab_size": WORDS, "d_model": 72, "n_heads": 6, "n_layers": 2, "max_seq_len": 32,
         "attn_config": {"kv_n_heads": 3, "clip_qkv": 2.5, "rope_theta": 10000.0},
         "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 5, "moe_top_k": 3, "hidden_size": 72,
                        "ffn_act_fn": {"name": "silu"}}},
        _attention(r"norm_attn_norm\.attn$", "out_proj", fused="Wqkv", layout="qkv", clip=2.5),
        Experts(r"ffn\.experts$", "gate-up", "flat", inside=".mlp"),
    ),
    Family(
        "JetMoE", "JetMoeForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 52, "num_hidden_layers": 2, "num_key_value_heads": 3, "kv_channels": 12,
         "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40, "max_position_embeddings": 32,
         "activation_function": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2},
        (), Experts(r"layers\.\d+\.mlp$", stacks=("input_linear.weight", "output_linear.weight"), activation="jetmoe"),
    ),
    Family(
        "CodeGen", "CodeGenForCausalLM",
        {"vocab_size": WORDS, "n_positions": 32, "n_ctx": 32, "n_embd": 96, "n_layer": 2, "n_head": 12,
         "rotary_dim": 6, "n_inner": 40, "bos_token_id": 1, "eos_token_id": 2},
        _attention(r"attn$", "out_proj", heads=12, kv_heads=12, head_dim=8, fused="qkv_proj", layout="qvk-in-4",
                   position="codegen"),
    ),
    Family(
        "GPTBigCode", "GPTBigCodeForCausalLM", {**_BIGCODE, "multi_query": False},
        _attention(r"attn$", "c_proj", kv_heads=6, fused="c_attn", layout="qkv-per-head", position=""),
    ),
    Family(
        "GPTBigCode MQA", "GPTBigCodeForCausalLM", {**_BIGCODE, "multi_query": True},
        _attention(r"attn$", "c_proj", kv_heads=1, fused="c_attn", layout="qkv", position=""),
    ),
    Family(
        "T5", "T5ForConditionalGeneration",
        {"vocab_size": WORDS, "d_model": 52, "d_kv": 10, "d_ff": 44, "num_layers": 2, "num_heads": 6,
         "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0, "tie_word_embeddings": False},
        _attention(r"encoder.*SelfAttention$", "o", kv_heads=6, head_dim=10, apart=("q", "k", "v"), position="bias",
                   causal=False, scale=1.0),
        gated=Gated(r"DenseReluDense$", "wo", apart=("wi_0", "wi_1"), activation="gelu tanh"), inputs="pair",
    ),
    Family(
        "BART", "BartForConditionalGeneration",
        {"vocab_size": WORDS, "d_model": 60, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6,
         "decoder_attention_heads": 6, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44, "max_position_embeddings": 32,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        _attention(r"encoder\.layers\.\d+\.self_attn$", "out_proj", kv_heads=6, head_dim=10, position="",
                   causal=False),
        inputs="pair",
    ),
    Family(
        "ViT", "ViTForImageClassification",
        {"hidden_size": 60, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 6,
         "image_size": 24, "patch_size": 6, "num_labels": 9},
        _attention(r"attention(\.attention)?$", "o_proj", kv_heads=6, head_dim=10, position="", causal=False),
        inputs="pixels",
    ),
    Family(
        "CLIP", "CLIPModel",
        {"text_config": {**_CLIP, "vocab_size": WORDS, "max_position_embeddings": 32, "eos_token_id": 2,
                         "bos_token_id": 1, "pad_token_id": 0},
         "vision_config": {**_CLIP, "image_size": 24, "patch_size": 6}, "projection_dim": 28},
        (
            *_attention(r"text_model.*self_attn$", "out_proj", kv_heads=6, head_dim=10, position=""),
            *_attention(r"vision_model.*self_attn$", "out_proj", kv_heads=6, head_dim=10, position="", causal=False),
        ),
        inputs="both",
    ),
    Family(
        "ModernBERT", "ModernBertForMaskedLM",
        _BERT_LIKE | {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "global_attn_every_n_layers": 2,
                      "local_attention": 64, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1,
                      "eos_token_id": 2},
        _attention(r"attn$", "Wo", kv_heads=6, head_dim=10, fused="Wqkv", layout="qkv", causal=False),
        gated=Gated(r"layers\.\d+\.mlp$", "Wo", "Wi", activation="gelu"),
    ),
    Family(
        "OLMo-Hybrid", "OlmoHybridForCausalLM",
        {key: value for key, value in _LLAMA.items() if key != "head_dim"}
        | {"hidden_size": 72, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 3,
           "linear_num_value_heads": 3, "linear_key_head_dim": 10, "linear_value_head_dim": 14},
    ),
)  # fmt: skip
NAMES = [family.name for family in FAMILIES]
BY_NAME = {family.name: family for family in FAMILIES}
