"""Latent attention (MLA): projections down to a latent and up from it, joined or apart.

Sources: transformers 5.23.0 `models/deepseek_v3/modeling_deepseek_v3.py`, vLLM 0.33.0
`model_executor/models/deepseek_mtp.py`, llama.cpp `conversion/deepseek.py`, mlx-lm d78bf58e `models/deepseek_v3.py`.
"""

from __future__ import annotations

from paramtool.parts.layout import FusedRow, PartGroup, PartLayout

GROUPS = (
    PartGroup(
        "latent-down",
        "latent attention: the projections down, of queries and of keys and values",
        {"q_a": "q_a_proj", "kv_a": "kv_a_proj_with_mqa"},
    ),
    PartGroup(
        "latent-kv-down",
        "latent attention: the latent of keys and values, and the one key with RoPE",
        {"kv_latent": "kv_a_proj", "k_rope": "k_rope_proj"},
    ),
    PartGroup(
        "latent-kv-up",
        "latent attention: keys, transposed for each head, and values from their latent",
        {"k_b": "k_b_proj", "v_b": "v_b_proj"},
        (("attn_k_b", "attn_v_b"), ("embed_q", "unembed_out")),
    ),
    PartGroup(
        "latent-q-up",
        "latent attention: queries without and with RoPE from their latent",
        {"q_nope": "q_nope_proj", "q_rope": "q_rope_proj"},
    ),
)
LAYOUTS = (
    PartLayout(
        "latent-down",
        "latent-down",
        "the latent of queries, then that of keys and values with the key that has RoPE",
        (FusedRow("fused_qkv_a_proj", "q_a[q_rank in] kv_a[kv_a_rank in]"),),
        models="DeepSeek, GLM-5 and Bailing in vLLM",
        source="vLLM `deepseek_mtp.py` 305",
    ),
    PartLayout(
        "latent-kv-down",
        "latent-kv-down",
        "the latent of keys and values, then the key that has RoPE",
        (FusedRow("kv_a_proj_with_mqa", "kv_latent[kv_rank in] k_rope[rope in]"),),
        models="DeepSeek-V2 and V3, Kimi, GLM",
        source="transformers `deepseek_v3` 387, 445",
    ),
    PartLayout(
        "latent-kv-up-per-head",
        "latent-kv-up",
        "for each head its key without RoPE and its value",
        (FusedRow("kv_b_proj", "{heads: k_b[nope kv_rank] v_b[value_dim kv_rank]}"),),
        models="DeepSeek-V2 and V3, Kimi, GLM; GGUF and MLX have the parts",
        source="transformers `deepseek_v3` 393, 416; llama.cpp `deepseek.py`; mlx-lm `deepseek_v3.py` 436-470",
    ),
    PartLayout(
        "latent-q-up-per-head",
        "latent-q-up",
        "for each head its query without RoPE, then with RoPE",
        (FusedRow("q_b_proj", "{heads: q_nope[nope q_rank] q_rope[rope q_rank]}"),),
        models="DeepSeek-V2 and V3, Kimi, GLM",
        source="transformers `deepseek_v3` 441",
    ),
)
