"""Megatron-Core: the names of GPT models, tensor parallel size 1.

Sources: NVIDIA-NeMo/Megatron-Bridge 067f987df, `src/megatron/bridge/models/` (MB); the lines are those of
`mapping_registry` unless others are given.  Queries, keys and values per KV group: MB `conversion/param_mapping.py`
1654, 3143; gate and up one below the other at tensor parallel size 1: MB the same file, 2591.  Mixtral:
NVIDIA/Megatron-LM d98e8a64dd, `tools/checkpoint/loader_mixtral_hf.py`.

Norms are written under the names of Transformer Engine's fused layers (`linear_qkv.layer_norm_weight`), and those of
the local implementation (`input_layernorm.weight`) are read, too.  Experts are written as grouped experts
(`experts.linear_fc1.weight0`), and those of SequentialMLP (`experts.local_experts.0.linear_fc1.weight`) are read, too.
"""

from __future__ import annotations

from paramtool.dialects.template import Caveat, DialectTable, ModelRows, Row, general, next_tokens, padded

_IN, _OUT = "model.layers.{layer}.", "decoder.layers.{layer}."
_GROUPS = "{kv_heads: q[(group head_dim) in] k[head_dim in] v[value_dim in]}"
_GATED = "gate[ffn in] up[ffn in]"


def _layer(name: str, part: str, *, is_read_only: bool = False, when: str = "", source: str = "") -> Row:
    """Another name inside a layer."""
    return Row(
        _OUT + name, {"w": _IN + part}, is_read_only=is_read_only, when=when and _IN + when, source=source
    )  # fmt: skip


def _gated(name: str, module: str, gate: str = "gate_proj", up: str = "up_proj", *, is_read_only: bool = False) -> Row:
    parts = {"gate": f"{_IN}{module}.{gate}.weight", "up": f"{_IN}{module}.{up}.weight"}
    source = "MB conversion/param_mapping.py:2591"
    return Row(_OUT + name, parts, _GATED, is_read_only=is_read_only, source=source)


_EMBEDDING = (
    Row("embedding.word_embeddings.weight", {"w": "model.embed_tokens.weight"}, source="MB llama/llama_bridge.py:113"),
    Row("decoder.final_layernorm.{kind}", {"w": "model.norm.{kind}"}, source="MB llama/llama_bridge.py:113"),
)
_HEAD = (Row("output_layer.weight", {"w": "lm_head.weight"}, source="MB llama/llama_bridge.py:113"),)
_ATTENTION = (
    Row(
        _OUT + "self_attention.linear_qkv.{kind}",
        {term: f"{_IN}self_attn.{term}_proj.{{kind}}" for term in "qkv"},
        _GROUPS,
        source="MB conversion/param_mapping.py:1654, 3143",
    ),
    _layer("self_attention.linear_proj.{kind}", "self_attn.o_proj.{kind}", source="MB llama/llama_bridge.py:113"),
    _layer("self_attention.linear_qkv.layer_norm_{kind}", "input_layernorm.{kind}"),
    _layer("input_layernorm.{kind}", "input_layernorm.{kind}", is_read_only=True),
)
_QK_NORMS = tuple(
    _layer(
        f"self_attention.{term}_layernorm.weight", f"self_attn.{term}_norm.weight", source="MB qwen/qwen3_bridge.py:57"
    )
    for term in "qk"
)
_MLP = (
    _gated("mlp.linear_fc1.weight", "mlp"),
    _layer("mlp.linear_fc2.weight", "mlp.down_proj.weight"),
)
_MLP_NORM = (
    _layer("mlp.linear_fc1.layer_norm_{kind}", "post_attention_layernorm.{kind}"),
    _layer("pre_mlp_layernorm.{kind}", "post_attention_layernorm.{kind}", is_read_only=True),
)
_MOE_NORM = (
    _layer("pre_mlp_layernorm.weight", "post_attention_layernorm.weight", source="MB qwen/qwen3_moe_bridge.py:72"),
)


def _experts(
    module: str = "mlp", gate: str = "gate_proj", down: str = "down_proj", up: str = "up_proj"
) -> tuple[Row, ...]:
    """Experts that are a list in transformers, grouped or local in Megatron."""
    one = module + ".experts.{expert}"
    local = "mlp.experts.local_experts.{expert}."
    return (
        _gated("mlp.experts.linear_fc1.weight{expert}", one, gate, up),
        _gated(local + "linear_fc1.weight", one, gate, up, is_read_only=True),
        _layer("mlp.experts.linear_fc2.weight{expert}", f"{one}.{down}.weight"),
        _layer(local + "linear_fc2.weight", f"{one}.{down}.weight", is_read_only=True),
    )


def _router(name: str) -> Row:
    return _layer("mlp.router.weight", name, source="MB qwen/qwen3_moe_bridge.py:72")


_LLAMA = (*_EMBEDDING, *_HEAD, *_ATTENTION, *_MLP, *_MLP_NORM)
_GEMMA2_NORMS = (
    _layer(
        "mlp.linear_fc1.layer_norm_weight", "pre_feedforward_layernorm.weight", source="MB gemma/gemma2_bridge.py:82"
    ),
    _layer("mlp.linear_fc2.post_layernorm.weight", "post_feedforward_layernorm.weight"),
    _layer("self_attention.linear_proj.post_layernorm.weight", "post_attention_layernorm.weight"),
)
_NEMOTRON = (
    *_EMBEDDING,
    *_HEAD,
    *_ATTENTION,
    _layer("mlp.linear_fc1.weight", "mlp.up_proj.weight", source="MB nemotron/nemotron_bridge.py:74"),
    _layer("mlp.linear_fc2.weight", "mlp.down_proj.weight"),
    *_MLP_NORM,
)
_SHARED = (
    _gated("mlp.shared_experts.linear_fc1.weight", "mlp.shared_experts"),
    _layer("mlp.shared_experts.linear_fc2.weight", "mlp.shared_experts.down_proj.weight"),
    _layer("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias", source="MB deepseek/common.py:18"),
)
_SOME_DENSE = (  # the norm before the MLP has its own module only where there are experts
    _layer("pre_mlp_layernorm.weight", "post_attention_layernorm.weight", when="mlp.gate.weight"),
    _layer("mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight", source="MB deepseek/common.py:18"),
)
_MLA = (
    _layer("input_layernorm.weight", "input_layernorm.weight", source="MB deepseek/common.py:18"),
    _layer("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
    _layer("self_attention.linear_q_proj.weight", "self_attn.q_proj.weight"),
    _layer("self_attention.linear_q_down_proj.weight", "self_attn.q_a_proj.weight"),
    _layer("self_attention.linear_q_up_proj.weight", "self_attn.q_b_proj.weight"),
    _layer("self_attention.linear_q_up_proj.layer_norm_weight", "self_attn.q_a_layernorm.weight"),
    _layer("self_attention.q_layernorm.weight", "self_attn.q_a_layernorm.weight", is_read_only=True),
    _layer("self_attention.linear_kv_down_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    _layer("self_attention.linear_kv_up_proj.weight", "self_attn.kv_b_proj.weight"),
    _layer("self_attention.linear_kv_up_proj.layer_norm_weight", "self_attn.kv_a_layernorm.weight"),
    _layer("self_attention.kv_layernorm.weight", "self_attn.kv_a_layernorm.weight", is_read_only=True),
)
_STACKED = {
    "linear_fc1.weight": ("gate_up_proj", "experts in (ffn two)", "w[(two ffn) in]"),
    "linear_fc1.bias": ("gate_up_proj_bias", "experts (ffn two)", "w[(two ffn)]"),
    "linear_fc2.weight": ("down_proj", "experts ffn out", "w[out ffn]"),
    "linear_fc2.bias": ("down_proj_bias", "experts out", "w[out]"),
}
"""gpt-oss: stacks in transformers, [experts, inputs, outputs], rows of the gate and of up in turn."""


def _stacked() -> tuple[Row, ...]:
    rows = []
    for name, (part, axes, pattern) in _STACKED.items():
        module, _, kind = name.partition(".")
        for text, is_read_only in (
            (f"mlp.experts.{module}.{kind}{{expert}}", False),
            (f"mlp.experts.local_experts.{{expert}}.{module}.{kind}", True),
        ):
            parts = {"w": f"{_IN}mlp.experts.{part}"}
            source = "MB gpt_oss/gpt_oss_bridge.py:162, 243, 275"
            rows.append(Row(_OUT + text, parts, pattern, axes={"w": axes}, is_read_only=is_read_only, source=source))
    return tuple(rows)


_GPT_OSS = (
    *_EMBEDDING,
    *_HEAD,
    *_ATTENTION,
    *_MOE_NORM,
    _layer(
        "self_attention.core_attention.softmax_offset", "self_attn.sinks", source="MB gpt_oss/gpt_oss_bridge.py:176"
    ),
    _layer("mlp.router.{kind}", "mlp.router.{kind}"),
    *_stacked(),
)
_GEMMA = Caveat("the norms of Gemma are stored around 0 on both sides: no value changes")

TABLE = DialectTable(
    "megatron",
    "Megatron-Core, names of GPT models",
    "Megatron-Bridge 067f987df",
    (
        ModelRows(
            ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"), _LLAMA, layouts="qkv-per-group, gate-up"
        ),
        ModelRows(("Qwen3ForCausalLM",), (*_LLAMA, *_QK_NORMS), layouts="qkv-per-group, gate-up"),
        ModelRows(("GemmaForCausalLM",), _LLAMA, (_GEMMA,), layouts="qkv-per-group, gate-up"),
        ModelRows(
            ("Gemma2ForCausalLM",),
            (*_EMBEDDING, *_HEAD, *_ATTENTION, *_MLP, *_GEMMA2_NORMS),
            (_GEMMA,),
            layouts="qkv-per-group, gate-up",
        ),
        ModelRows(
            ("Gemma3ForCausalLM",),
            (*_EMBEDDING, *_HEAD, *_ATTENTION, *_MLP, *_GEMMA2_NORMS, *_QK_NORMS),
            (_GEMMA,),
            layouts="qkv-per-group, gate-up",
        ),
        ModelRows(("NemotronForCausalLM",), _NEMOTRON, layouts="qkv-per-group"),
        ModelRows(
            ("Qwen3MoeForCausalLM", "OlmoeForCausalLM"),
            (
                *_EMBEDDING,
                *_HEAD,
                *_ATTENTION,
                *_QK_NORMS,
                *_SOME_DENSE,
                *_MLP,
                _router("mlp.gate.weight"),
                *_experts(),
            ),
            layouts="qkv-per-group, experts each gate-up",
        ),
        ModelRows(
            ("MixtralForCausalLM",),
            (
                *_EMBEDDING,
                *_HEAD,
                *_ATTENTION,
                *_MOE_NORM,
                _router("block_sparse_moe.gate.weight"),
                *_experts("block_sparse_moe", "w1", "w2", "w3"),
            ),
            layouts="qkv-per-group, experts each gate-up",
        ),
        ModelRows(
            ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
            (*_EMBEDDING, *_HEAD, *_MLA, *_SOME_DENSE, *_MLP, _router("mlp.gate.weight"), *_experts(), *_SHARED),
            (next_tokens("the layers for multi-token prediction keep their names"),),
            layouts="gate-up, experts each gate-up",
        ),
        ModelRows(
            ("Glm4MoeForCausalLM",),
            (
                *_EMBEDDING,
                *_HEAD,
                *_ATTENTION,
                *_QK_NORMS,
                *_SOME_DENSE,
                *_MLP,
                _router("mlp.gate.weight"),
                *_experts(),
                *_SHARED,
            ),
            (next_tokens("the layers for multi-token prediction keep their names"),),
            layouts="qkv-per-group, experts each gate-up",
        ),
        ModelRows(("GptOssForCausalLM",), _GPT_OSS, layouts="qkv-per-group, experts each gate-up"),
    ),
    {
        "Qwen3NextForCausalLM": "it changes values: MB qwen/qwen3_next_bridge.py stores the norm of linear attention "
        "minus 1 (RMSNorm2ZeroCenteredRMSNormMapping); no layout changes values",
        "Qwen3_5ForCausalLM": "it changes values: MB qwen/qwen35_bridge.py stores the norm of linear attention minus 1",
        "Qwen3_5MoeForCausalLM": "it changes values: MB qwen/qwen35_bridge.py stores the norm of linear attention "
        "minus 1",
    },
    (
        general("One file for tensor parallel size 1; Megatron splits its own checkpoints by rank."),
        padded(
            "Megatron pads the vocabulary to a multiple of 128 unless told otherwise; rows are neither added nor "
            "removed here.",
            128,
        ),
    ),
    vocabulary=("model.embed_tokens.weight", "lm_head.weight"),
)
