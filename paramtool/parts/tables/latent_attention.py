"""Multi-head latent attention (MLA): projections to low ranks joined, and those from them head by head.

Sources: transformers 5.23.0 (`models/deepseek_v3/modeling_deepseek_v3.py` is "deepseek_v3"), vLLM 0.33.0, llama.cpp
`conversion/deepseek.py`, mlx-lm d78bf58e.
"""

from __future__ import annotations

from paramtool.parts.layout import FusedRow, PartGroup, PartLayout

GROUPS = (
    PartGroup(
        "latent",
        "latent attention: the projections to low ranks",
        {"q_a": "q_a_proj", "kv_a": "kv_a_proj_with_mqa"},
    ),
    PartGroup(
        "latent-kv",
        "latent attention: the latent of keys and values, and the key that all heads rotate",
        {"latent": "kv_a_proj", "k_rope": "k_rope_proj"},
    ),
    PartGroup(
        "latent-heads",
        "latent attention: keys without RoPE and values of each head",
        {"k_nope": "k_b_proj", "v_b": "v_b_proj"},
    ),
    PartGroup(
        "latent-queries",
        "latent attention: queries without RoPE and with it",
        {"q_nope": "q_nope_proj", "q_rope": "q_rope_proj"},
    ),
)
LAYOUTS = (
    PartLayout(
        "mla-down",
        "latent",
        "to the rank of queries; then to the latent of keys and values, and the key that is rotated",
        (FusedRow("fused_qkv_a_proj", "q_a[q_rank in] kv_a[kv_joint in]"),),
        models="DeepSeek, GLM-5 and Bailing in vLLM and SGLang",
        source="vLLM `deepseek_mtp.py` 305",
    ),
    PartLayout(
        "mla-kv-a",
        "latent-kv",
        "the latent of keys and values, then the key that all heads rotate",
        (FusedRow("kv_a_proj_with_mqa", "latent[kv_rank in] k_rope[rope in]"),),
        models="DeepSeek-V2 and V3, Kimi, GLM",
        source="transformers `deepseek_v3` 387, 445",
    ),
    PartLayout(
        "mla-kv-b",
        "latent-heads",
        "for each head its key without RoPE and its value",
        (FusedRow("kv_b_proj", "{heads: k_nope[nope in] v_b[value_dim in]}"),),
        models="DeepSeek-V2 and V3, Kimi, GLM",
        source="transformers `deepseek_v3` 393, 416",
    ),
    PartLayout(
        "mla-kv-b-stacks",
        "latent-heads",
        "stacks of heads, [heads, rank, key] and [heads, value, rank]",
        (
            FusedRow("k_b_proj", "k_nope[heads in nope]", along=2),
            FusedRow("v_b_proj", "v_b[heads value_dim in]", along=1),
        ),
        models="GGUF (attn_k_b, attn_v_b), MLX (embed_q, unembed_out)",
        source="llama.cpp `conversion/deepseek.py`; mlx-lm `deepseek_v3.py` 436-470",
    ),
    PartLayout(
        "mla-q-b",
        "latent-queries",
        "for each head its query without RoPE, and that with it",
        (FusedRow("q_b_proj", "{heads: q_nope[nope in] q_rope[rope in]}"),),
        models="DeepSeek-V2 and V3",
        source="transformers `deepseek_v3` 441",
    ),
)
