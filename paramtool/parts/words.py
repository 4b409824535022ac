"""What files call the parts of attention, gated MLPs and experts, and the tensors that hold several of them.

Nothing is imported here, so that `inspect` looks at names before it needs a table.  A test compares the names of parts
with those of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping

APART: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "qkv": (
        ("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"),
        ("to_q", "to_k", "to_v"), ("wq", "wk", "wv"), ("q", "k", "v"),
    ),
    "gate-up": (("gate_proj", "up_proj"), ("w1", "w3"), ("wi_0", "wi_1"), ("gate", "up")),
    "experts": (
        ("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("gate", "up", "down"),
        ("linear", "linear_v", "linear_1"),
    ),
}  # fmt: skip
"""{kind of a group: the names of its parts, in each way that files have them}"""
FUSED: Mapping[str, str] = {
    "qkv_proj": "qkv", "query_key_value": "qkv", "c_attn": "qkv", "Wqkv": "qkv", "qkv": "qkv", "W_pack": "qkv",
    "wqkv": "qkv", "att_proj": "qkv", "attn_qkv": "qkv", "linear_qkv": "qkv", "qkv_linear": "qkv",
    "QKV": "qkv", "in_proj_weight": "qkv", "gate_up_proj": "gate-up", "up_gate_proj": "gate-up", "w13": "gate-up",
    "gate_up": "gate-up",
}  # fmt: skip
"""{name of a fused tensor: the kind of its group}"""
OF_FAMILIES: Mapping[str, str] = {
    "in_proj": "qkv", "kv_proj": "kv", "to_kv": "kv", "Wi": "gate-up", "dense_h_to_4h": "gate-up",
    "weights_in": "gate-up", "input_linear": "gate-up", "ff_proj": "gate-up",
}  # fmt: skip
"""The same for names that are fused tensors in some families only: other models have other things under them."""
STACKS: tuple[tuple[str, ...], ...] = (
    ("gate_up_proj", "down_proj"), ("w13_weight", "w2_weight"), ("gate_proj", "up_proj", "down_proj"),
    ("w1", "v1", "w2"),
)  # fmt: skip
"""Names of the stacks in a module of experts, which are tensors themselves, without `.weight`."""
FLAT = STACKS[3]
"""Experts below each other in matrices."""
LAYER_STACKS = ("input_linear", "output_linear")
"""Layers whose weights are stacks (transformers 5.23.0 `jetmoe` 79, 252-254; `granitemoe` files)."""
TORCH_MHA = "in_proj_weight"
"""The tensor of torch.nn.MultiheadAttention (torch/nn/modules/activation.py): queries, then keys, then values."""
WEIGHTS = ("weight", "qweight", "weight_packed")
"""What the weight of a layer is called, quantised or not."""
OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj", "proj", "wo", "Wo", "linear_proj", "output.dense", "out_lin")
"""What the output projection beside an attention is called: it has as many inputs as there are rows of queries."""
