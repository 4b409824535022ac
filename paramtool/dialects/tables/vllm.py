"""vLLM's modules in memory, tensor parallel size 1, as `save_sharded_state` writes them.

The rows come from `vllm_0_33.json`, which a script makes, and from the lists below, for loading that is code.  Lines
are of vLLM 0.33.0, `vllm/model_executor/`.
  queries, keys and values one below the other   layers/linear.py 1119-1160
  experts [experts, 2 width, inputs]             layers/fused_moe/unquantized_fused_moe_method.py 60-120
  `experts.routed_experts.w13_weight`            layers/fused_moe/layer.py 480, routed_experts.py 1137
  `model-rank-0-part-0.safetensors`              model_executor/model_loader/sharded_state_loader.py 40, 190
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from paramtool.dialects.template import Caveat, DialectTable, ModelRows, Row, general, next_tokens, of_words, padded
from paramtool.errors import LayoutError
from paramtool.model.view import Shapes
from paramtool.package_data import package_data

_QKV = "q[(heads head_dim) in] k[(kv_heads head_dim) in] v[(kv_heads value_dim) in]"
_PER_GROUP = "{kv_heads: q[(group head_dim) in] k[head_dim in] v[value_dim in]}"
_GATED = "gate[ffn in] up[ffn in]"
_STACK = "gate[experts ffn in] up[experts ffn in]"
_EXPERTS = "{path}.experts.routed_experts."
_KERNELS = of_words(
    "Some kernels rearrange experts after loading and before saving: FlashInfer's puts up before gate, AITER's "
    "shuffles (layers/fused_moe/oracle/unquantized.py); this is the form of the others.",
    "experts",
)
_MOE = "layers/fused_moe/unquantized_fused_moe_method.py:60"


NAMES: Mapping[str, Any] = json.loads(package_data("dialects", "tables", "vllm_0_33.json"))
"""Names in the models of vLLM that differ from those in transformers' files (docs/make_vllm_names.py made it).

`ties`: (head, embedding, architectures that make them one parameter where the config ties them).  `groups`, whose
loading is names and joins: (architectures, the lines of `load_weights`, renames, fused tensors, an expert's three
weights in the file); names are without the path before them and without `.weight` or `.bias`.  `computed`:
{architecture: where code does more}; some of them are below, by hand.  `others`: {group of models/registry.py:
architectures in no table}.
`digest`: SHA-256 of the lines `PATH SHA-256` of the files that were read.
"""


def _fused(name: str, parts: tuple[str, ...], source: str) -> Row:
    """A tensor of queries, keys and values, or of gate and up."""
    terms = ("q", "k", "v") if len(parts) == 3 else ("gate", "up")
    templates = {term: f"{{path}}.{part}.{{kind}}" for term, part in zip(terms, parts, strict=True)}
    return Row(f"{{path}}.{name}.{{kind}}", templates, _QKV if len(parts) == 3 else _GATED, source=source)


def _experts(gate: str, down: str, up: str) -> tuple[Row, ...]:
    """The stacks of FusedMoE, for experts that are a list in the file."""
    one = "{path}.experts.{expert}."
    both = {"gate": f"{one}{gate}.{{kind}}", "up": f"{one}{up}.{{kind}}"}
    return (
        Row(_EXPERTS + "w13_{kind}", both, _STACK, along=1, source=_MOE),
        Row(_EXPERTS + "w2_{kind}", {"down": f"{one}{down}.{{kind}}"}, "down[experts out ffn]", along=1, source=_MOE),
    )


def _renamed(was: str, new: str, kind: str) -> Row:
    """A name in which something takes the place of something else."""
    before, after = {"prefix": ("", "{rest}"), "suffix": ("{path}", "")}.get(kind, ("{path}", "{rest}"))
    return Row(before + new + after, {"w": before + was + after})


def _generated() -> Iterator[ModelRows]:
    for models, places, renames, fused, experts in NAMES["groups"]:
        source = " ".join(f"models/{place}" for place in places)
        rows = [
            *(_experts(*experts) if experts else ()),
            *(_fused(name, parts, source) for name, parts in fused),
            *(_renamed(*rename) for rename in renames),
        ]
        caveats = (_KERNELS,) if experts else ()
        kinds = dict.fromkeys("qkv" if len(parts) == 3 else "gate-up" for _, parts in fused)
        yield ModelRows(
            tuple(models), tuple(rows), caveats, layouts=", ".join((*kinds, *(("experts",) if experts else ())))
        )


_ALL = (
    _fused("qkv_proj", ("q_proj", "k_proj", "v_proj"), "models/llama.py:459"),
    _fused("gate_up_proj", ("gate_proj", "up_proj"), "models/llama.py:459"),
)
_QWEN2_MOE = (
    *_experts("gate_proj", "down_proj", "up_proj"),
    _fused("qkv_proj", ("q_proj", "k_proj", "v_proj"), "models/qwen2_moe.py:425"),
    _fused("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"), "models/qwen2_moe.py:425"),
    _fused(
        "shared_expert.gate_up_proj", ("shared_expert.gate_proj", "shared_expert.up_proj"), "models/qwen2_moe.py:425"
    ),
)
_GLM4_MOE = (
    *_QWEN2_MOE[:3],
    _fused(
        "shared_experts.gate_up_proj", ("shared_experts.gate_proj", "shared_experts.up_proj"), "models/glm4_moe.py:404"
    ),
)
_PER_HEAD = "{heads: q[head_dim in] k[head_dim in] v[value_dim in]}"
_BLOOM = (
    Row(
        "{path}.query_key_value.{kind}",
        {"w": "{path}.query_key_value.{kind}"},
        "q[(heads head_dim) in] k[(heads head_dim) in] v[(heads value_dim) in]",
        axes={"k": "(heads head_dim) in", "v": "(heads value_dim) in"},
        held=_PER_HEAD,
        source="models/bloom.py:283-300",
    ),
)
_FALCON = (
    Row(
        "{path}.query_key_value.{kind}",
        {"w": "{path}.query_key_value.{kind}"},
        _QKV,
        held=_PER_GROUP,
        source="models/falcon.py:425-470",
    ),
)
_GPT2 = tuple(
    row
    for name in ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj")
    for row in (
        Row(
            f"{{path}}.{name}.weight",
            {"w": f"{{path}}.{name}.weight"},
            "w[out in]",
            axes={"w": "in out"},
            source="models/gpt2.py:249-259",
        ),
        Row(f"{{path}}.{name}.bias", {"w": f"{{path}}.{name}.bias"}),
    )
)
_STACKED = {
    "w13_weight": ("gate_up_proj", "experts in ffn", "w[experts ffn in]"),
    "w13_bias": ("gate_up_proj_bias", "", ""),
    "w2_weight": ("down_proj", "experts ffn out", "w[experts out ffn]"),
    "w2_bias": ("down_proj_bias", "", ""),
}
"""gpt-oss: [experts, inputs, outputs] in the file; rows of the gate and of up stay in turn."""
_GPT_OSS = (
    *(
        Row(
            _EXPERTS + name,
            {"w": "{path}.experts." + part},
            pattern,
            axes={"w": axes} if axes else None,
            source="models/gpt_oss.py:1147-1240",
        )
        for name, (part, axes, pattern) in _STACKED.items()
    ),
    Row(
        "{path}.attn.qkv_proj.{kind}",
        {term: f"{{path}}.self_attn.{term}_proj.{{kind}}" for term in "qkv"},
        _QKV,
        source="models/gpt_oss.py:1311",
    ),
    Row("{path}.embedding.weight", {"w": "{path}.embed_tokens.weight"}, source="models/gpt_oss.py:1375"),
    Row("{path}.attn.{rest}", {"w": "{path}.self_attn.{rest}"}, source="models/gpt_oss.py"),
)
_LLAMA4 = (
    Row(
        _EXPERTS + "w13_weight",
        {"w": "{path}.experts.gate_up_proj"},
        "w[experts ffn in]",
        axes={"w": "experts in ffn"},
        source="models/llama4.py:430-540",
    ),
    Row(
        _EXPERTS + "w2_weight",
        {"w": "{path}.experts.down_proj"},
        "w[experts out ffn]",
        axes={"w": "experts ffn out"},
        source="models/llama4.py:430-540",
    ),
    Row(
        "{path}.qkv_proj.weight",
        {term: f"{{path}}.{term}_proj.weight" for term in "qkv"},
        "q[(heads two half) in] k[(kv_heads two half) in] v[(kv_heads value_dim) in]",
        axes={"q": "(heads half two) in", "k": "(kv_heads half two) in"},
        source="models/llama4.py:805-845",
    ),
    *_ALL[1:],
)
_GRANITE_MOE = (
    Row(_EXPERTS + "w13_weight", {"w": "{path}.input_linear.weight"}, source="models/granitemoe.py:308"),
    Row(_EXPERTS + "w2_weight", {"w": "{path}.output_linear.weight"}, source="models/granitemoe.py:308"),
    Row("{path}.gate.weight", {"w": "{path}.router.layer.weight"}, source="models/granitemoe.py:308"),
    _fused("qkv_proj", ("q_proj", "k_proj", "v_proj"), "models/granitemoe.py:386"),
)
_MLA = (
    *_experts("gate_proj", "down_proj", "up_proj"),
    _ALL[1],
    Row(
        "{path}.fused_qkv_a_proj.weight",
        {"q_a": "{path}.q_a_proj.weight", "kv_a": "{path}.kv_a_proj_with_mqa.weight"},
        "q_a[q_rank in] kv_a[latent in]",
        axes={"q_a": "q_rank in", "kv_a": "latent in"},
        when="{path}.q_a_proj.weight",
        source="models/deepseek_v2.py:1051, 1594-1620",
    ),
)
HEAD = "lm_head.weight"
"""The head that vLLM looks for in a file: where the config ties it and the file has it, vLLM takes it for untied until
both are loaded and equal (config/model.py 1255, transformers_utils/config.py 1538, model_loader/weight_tying.py).  So
sharded_state opens a tied model that has both tensors; with one of them it misses the other, whichever that is."""


def _has_head(architecture: str) -> bool:
    """Whether vLLM keeps the head of a model; of LlamaModel and its like it takes the outputs before it."""
    return not architecture.endswith("Model") or architecture.endswith("LMHeadModel")


_NEXT_TOKENS = next_tokens("vLLM leaves the layers for multi-token prediction out of this model; they are kept here")
_BY_HAND = (
    ModelRows(
        ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
        _MLA,
        (_KERNELS, _NEXT_TOKENS),
        layouts="MLA down projections, gate-up, experts",
    ),
    ModelRows(("Qwen2MoeForCausalLM",), _QWEN2_MOE, (_KERNELS,), layouts="qkv, gate-up, experts"),
    ModelRows(("Glm4MoeForCausalLM",), _GLM4_MOE, (_KERNELS,), layouts="qkv, gate-up, experts"),
    ModelRows(("Glm4ForCausalLM",), _ALL[:1], (_NEXT_TOKENS,), layouts="qkv"),
    ModelRows(("GPT2LMHeadModel",), _GPT2, layouts="transposed"),
    ModelRows(("BloomForCausalLM",), _BLOOM, layouts="qkv"),
    ModelRows(("FalconForCausalLM",), _FALCON, layouts="qkv"),
    ModelRows(
        ("Llama4ForCausalLM",),
        _LLAMA4,
        (Caveat("queries and keys are in pairs for RoPE in transformers' files, and in halves in vLLM"), _KERNELS),
        layouts="qkv in halves, gate-up, experts",
    ),
    ModelRows(("GptOssForCausalLM",), _GPT_OSS, (_KERNELS,), layouts="qkv, experts-interleaved"),
    ModelRows(("GraniteMoeForCausalLM",), _GRANITE_MOE, (_KERNELS,), layouts="qkv, experts"),
)

_CHANGES = "it changes values: A_log becomes A = -exp(A_log) when vLLM loads it; no layout changes values"
_REFUSED = {
    name: _CHANGES if "A_log" in place else f"its loading is code that does more than join and rename ({place})"
    for name, place in NAMES["computed"].items()
    if not any(name in family.models for family in _BY_HAND)
}


_WHY = {
    "_TRANSFORMERS_SUPPORTED_MODELS": "vLLM runs transformers' own class",
    "_PREVIOUSLY_SUPPORTED_MODELS": "vLLM no longer has this class",
    "_MULTIMODAL_MODELS": "the class has several towers, whose packed mappings the table does not carry",
    "_SPECULATIVE_DECODING_MODELS": "the class drafts tokens for another, and the table does not carry its mapping",
}
"""{group of vLLM's registry: why its models have no rows}"""
_UNREAD = {
    name: f"{_WHY.get(group, 'the table does not carry its packed mapping')} (models/registry.py, {group})"
    for group, names in NAMES["others"].items()
    for name in names
}


def _check(config: Mapping[str, Any], made: Shapes) -> None:
    """LayoutError for a cross attention: vLLM's GPT-2 has none (models/gpt2.py 200)."""
    if name := next((one for one in made if ".crossattention." in one), ""):
        raise LayoutError(
            f"{name!r} is of a cross attention; vLLM {NAMES['version']} runs this model without one "
            "(models/gpt2.py 200: assert not config.add_cross_attention)",
            hint="transformers runs it as it is; --to transformers-5 is its form in memory",
        )


TABLE = DialectTable(
    "vllm",
    "vLLM's modules in memory",
    NAMES["version"],
    (*_generated(), *_BY_HAND),
    _REFUSED,
    (
        general(
            "Tensor parallel size 1: `model-rank-0-part-0.safetensors` of save_sharded_state, load format "
            "sharded_state."
        ),
        padded(
            "vLLM pads the vocabulary to a multiple of 64 (layers/vocab_parallel_embedding.py 36); rows are neither "
            "added nor removed here, and sharded_state loads a shorter tensor into the longer one.",
            64,
        ),
    ),
    vocabulary=("{path}.embed_tokens.weight", "{path}.wte.weight", "{path}.word_embeddings.weight", "lm_head.weight"),
    file="model-rank-0-part-0.safetensors",
    check=_check,
    unread=_UNREAD,
    tied={
        name: (HEAD, tied) for head, tied, names in NAMES["ties"] if head == HEAD for name in names if _has_head(name)
    },
    embeddings={name: tied for _, tied, names in NAMES["ties"] for name in names},
)
