"""Attention: queries, keys and values in one tensor.

The axes of a part are those of a Linear for it alone: q (heads head_dim) x in, k (kv_heads head_dim) x in, v (kv_heads
value_dim) x in.  Sources: transformers 5.23.0 (`models/NAME/modeling_NAME.py` unless another file is named), vLLM
0.33.0, NVIDIA-NeMo/Megatron-Bridge 067f987df (`models/conversion/param_mapping.py`).
"""

from __future__ import annotations

from paramtool.parts.layout import FusedRow, PartGroup, PartLayout
from paramtool.parts.words import APART

_NAMES = APART["qkv"][1:]
GROUPS = (
    PartGroup("qkv", "attention: queries, keys and values", {"q": "q_proj", "k": "k_proj", "v": "v_proj"}, _NAMES),
    PartGroup("kv", "attention: keys and values", {"k": "k_proj", "v": "v_proj"}, tuple(names[1:] for names in _NAMES)),
    PartGroup("qk", "attention: queries and keys", {"q": "q_proj", "k": "k_proj"}, tuple(n[:2] for n in _NAMES)),
    PartGroup("q-gate", "attention: queries and the gate of its output", {"q": "q_proj", "z": "gate_proj"}),
    PartGroup(
        "qkv-gate",
        "attention: queries, the gate of its output, keys and values",
        {"q": "q_proj", "z": "gate_proj", "k": "k_proj", "v": "v_proj"},
    ),
    PartGroup(
        "qkv-scalar-gate",
        "attention: queries, keys, values and one gate for each head",
        {"q": "q_proj", "k": "k_proj", "v": "v_proj", "s": "g_proj"},
    ),
    PartGroup("rope", "attention: queries and keys, each a tensor", {"q": "q_proj", "k": "k_proj"}),
    PartGroup("broadcast", "attention: queries and outputs", {"q": "q_proj", "o": "o_proj"}),
)
_Q, _K, _V = "q[(heads head_dim) in]", "k[(kv_heads head_dim) in]", "v[(kv_heads value_dim) in]"
_SAME = ("qkv", "qkv-per-head", "qkv-per-element", "qkv-per-group", "qvk-per-chunk", "qkv-per-chunk")


def _like(name: str) -> tuple[str, ...]:
    return tuple(other for other in _SAME if other != name)


LAYOUTS = (
    PartLayout(
        "qkv",
        "qkv",
        "queries, then keys, then values",
        (FusedRow("qkv_proj", f"{_Q} {_K} {_V}"),),
        models="torch.nn.MultiheadAttention, ViT, Phi-3, MPT, DBRX, ModernBERT, GPTBigCode and Falcon-7B with one KV "
        "head, GLM, ChatGLM, Baichuan, MiMo-V2, vLLM in memory",
        source="transformers `phi3` 203-222, `dbrx` 187-207, `mpt` 100, `gpt_bigcode` 200-203, `falcon` 272, "
        "`modernbert` 261; vLLM `model_executor/layers/linear.py` 1119-1160",
        like=_like("qkv"),
    ),
    PartLayout(
        "qkv-per-head",
        "qkv",
        "for each head its query, its key and its value",
        (FusedRow("query_key_value", "{heads: q[head_dim in] k[head_dim in] v[value_dim in]}"),),
        models="GPT-NeoX, BLOOM, Persimmon, Falcon-RW, GPTBigCode without multi-query, Megatron checkpoint version 2",
        source="transformers `bloom` 214, `gpt_neox` 193-196, `falcon` 267, `persimmon` 229, `gpt_bigcode` 206-211",
        like=_like("qkv-per-head"),
    ),
    PartLayout(
        "qkv-per-element",
        "qkv",
        "for each element of each head its query, its key and its value",
        (FusedRow("query_key_value", "{heads head_dim: q[1 in] k[1 in] v[1 in]}"),),
        models="Megatron checkpoint version 1.0",
        source="Megatron-LM `fix_query_key_value_ordering` (megatron/training/checkpointing.py)",
        like=_like("qkv-per-element"),
    ),
    PartLayout(
        "qkv-per-group",
        "qkv",
        "for each KV head its queries, its key and its value",
        (FusedRow("query_key_value", "{kv_heads: q[(group head_dim) in] k[head_dim in] v[value_dim in]}"),),
        models="Falcon-40B, Megatron-Core, InternLM2, torchtitan, MiMo-V2-Flash in Megatron",
        source="transformers `falcon` 254-258; Megatron-Bridge 1654, 3143; llama.cpp `conversion/internlm.py`",
        like=_like("qkv-per-group"),
    ),
    PartLayout(
        "qvk-per-chunk",
        "qkv",
        "for each chunk of heads their queries, their values and their keys",
        (
            FusedRow(
                "qkv_proj",
                "{chunks: q[(chunk_heads head_dim) in] v[(chunk_kv_heads value_dim) in] "
                "k[(chunk_kv_heads head_dim) in]}",
            ),
        ),
        models="CodeGen, with 4 chunks",
        source="transformers `codegen` 152-160: mp_num = 4",
        like=_like("qvk-per-chunk"),
    ),
    PartLayout(
        "qkv-per-chunk",
        "qkv",
        "for each chunk of heads their queries, their keys and their values",
        (
            FusedRow(
                "qkv_proj",
                "{chunks: q[(chunk_heads head_dim) in] k[(chunk_kv_heads head_dim) in] "
                "v[(chunk_kv_heads value_dim) in]}",
            ),
        ),
        models="MiMo-V2.5 Pro, files of tensor-parallel ranks that were joined row by row",
        source="vLLM `mimo_v2.py` 528-620, where the number of chunks is the model's num_key_value_heads and not the "
        "layer's (vllm#42803)",
        like=_like("qkv-per-chunk"),
    ),
    PartLayout(
        "qkv-conv1d",
        "qkv",
        "queries, then keys, then values; transposed, [inputs, outputs]",
        (FusedRow("c_attn", "q[in (heads head_dim)] k[in (kv_heads head_dim)] v[in (kv_heads value_dim)]", along=1),),
        models="GPT-2 and the first GPT",
        source="transformers `gpt2`: Conv1D of pytorch_utils.py",
    ),
    PartLayout(
        "kv",
        "kv",
        "keys, then values",
        (FusedRow("kv_proj", f"{_K} {_V}"),),
        models="JetMoE, Whisper and encoder-decoders in vLLM",
        source="transformers `jetmoe` 463; vLLM `whisper.py` 812",
        like=("kv-per-head",),
    ),
    PartLayout(
        "kv-per-head",
        "kv",
        "for each KV head its key and its value",
        (FusedRow("kv_proj", "{kv_heads: k[head_dim in] v[value_dim in]}"),),
        models="Megatron's cross attention, MXNet's interleaved_matmul_encdec operators",
        source="Megatron-Bridge 1950, 3752; MXNet 1.9.1 src/operator/contrib/transformer.cc",
        like=("kv",),
    ),
    PartLayout(
        "kv-conv1d",
        "kv",
        "keys, then values; transposed, [inputs, outputs]",
        (FusedRow("c_attn", "k[in (kv_heads head_dim)] v[in (kv_heads value_dim)]", along=1),),
        models="GPT-2's cross attention, beside q_attn",
        source="transformers `gpt2` 100-102, 174: Conv1D(2 * embed_dim, embed_dim), split into keys and values",
    ),
    PartLayout(
        "qk",
        "qk",
        "queries, then keys",
        (FusedRow("qk_proj", f"{_Q} {_K}"),),
        models="K2-Horizon in vLLM",
        source="vLLM `k2_horizon.py` 1484",
    ),
    PartLayout(
        "q-gate-per-head",
        "q-gate",
        "for each head its query and its gate",
        (FusedRow("q_proj", "{heads: q[head_dim in] z[head_dim in]}"),),
        models="Qwen3-Next, Qwen3.5",
        source="transformers `qwen3_next` 269",
    ),
    PartLayout(
        "qkv-gate-per-group",
        "qkv-gate",
        "for each KV head its queries, their gates, its key and its value",
        (
            FusedRow(
                "linear_qkv",
                "{kv_heads: q[(group head_dim) in] z[(group head_dim) in] k[head_dim in] v[value_dim in]}",
            ),
        ),
        models="Qwen3-Next and Qwen3.5 in Megatron",
        source="Megatron-Bridge 3088-3200",
    ),
    PartLayout(
        "qkv-scalar-gate",
        "qkv-scalar-gate",
        "for each KV head its queries, its key and its value; then a row for each head's gate",
        (
            FusedRow(
                "linear_qkv",
                "{kv_heads: q[(group head_dim) in] k[head_dim in] v[value_dim in]} s[heads in]",
            ),
        ),
        models="Step-3.5 and MiMo in Megatron",
        source="Megatron-Bridge 1870, 3203-3246, 3448",
    ),
    PartLayout(
        "qkv-scalar-gate-expanded",
        "qkv-scalar-gate",
        "for each KV head its queries, their gates, each repeated for every element of its head, its key and its value",
        (
            FusedRow(
                "linear_qkv",
                "{kv_heads: q[(group head_dim) in] s[(group head_dim) in] k[head_dim in] v[value_dim in]}",
            ),
        ),
        models="the same with attention_output_gate; going back needs equal copies, which the bytes must show",
        source="Megatron-Bridge 3215-3240, 3475",
    ),
    PartLayout(
        "rope-pairs",
        "rope",
        "RoPE in pairs (interleaved), where the parts have it in halves",
        (
            FusedRow("q_proj", "{heads: q.rot[(half two) in] q.rest[rest in]}"),
            FusedRow("k_proj", "{kv_heads: k.rot[(half two) in] k.rest[rest in]}"),
        ),
        models="Llama of Meta and Mistral's own files, GGUF, torchtune, torchtitan",
        source="transformers `core_model_loading.py` 465; llama.cpp `conversion/llama.py` permute",
    ),
    PartLayout(
        "heads-by-position",
        "broadcast",
        "query heads in the order of their positions in a group, then of groups; columns of the output in that order",
        (
            FusedRow("q_proj", "q[(group kv_heads head_dim) in]"),
            FusedRow("o_proj", "o[out (group kv_heads value_dim)]", along=1),
        ),
        models="PLaMo-13B in GGUF",
        source="llama.cpp `conversion/plamo.py`",
    ),
)
