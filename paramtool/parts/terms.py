"""The parts that patterns speak of, and the axes of their own tensors.

Those of projections are a Linear's of PyTorch, [outputs, inputs]; those of convolutions [channels, 1, taps].
"""

from __future__ import annotations

from collections.abc import Mapping

_LINEAR_KEYS, _LINEAR_VALUES = "(linear_key_heads linear_key_dim)", "(linear_value_heads linear_value_dim)"
PARTS: Mapping[str, str] = {
    "q": "(heads head_dim) in",
    "k": "(kv_heads head_dim) in",
    "v": "(kv_heads value_dim) in",
    "gate": "ffn in",
    "up": "ffn in",
    "down": "out ffn",
    "o": "out (heads value_dim)",
    "z": "(heads head_dim) in",
    "s": "heads in",
    "mlp": "ffn in",
    "shift": "out in",
    "scale": "out in",
    # latent attention
    "q_a": "q_rank in",
    "kv_a": "kv_a_rank in",
    "kv_latent": "kv_rank in",
    "k_rope": "rope in",
    "q_nope": "(heads nope) q_rank",
    "q_rope": "(heads rope) q_rank",
    "k_b": "heads kv_rank nope",
    "v_b": "heads value_dim kv_rank",
    # linear attention
    "lq": f"{_LINEAR_KEYS} in",
    "lk": f"{_LINEAR_KEYS} in",
    "lv": f"{_LINEAR_VALUES} in",
    "lz": f"{_LINEAR_VALUES} in",
    "lb": "linear_value_heads in",
    "la": "linear_value_heads in",
    "q_conv": f"{_LINEAR_KEYS} 1 taps",
    "k_conv": f"{_LINEAR_KEYS} 1 taps",
    "v_conv": f"{_LINEAR_VALUES} 1 taps",
    # state spaces
    "ssm_x": "inner in",
    "ssm_z": "inner in",
    "ssm_b": "(groups state) in",
    "ssm_c": "(groups state) in",
    "ssm_dt": "state_heads in",
    "x_dt": "dt_rank in",
    "x_b": "state in",
    "x_c": "state in",
    "x_conv": "inner 1 taps",
    "b_conv": "(groups state) 1 taps",
    "c_conv": "(groups state) 1 taps",
    "conv": "channels 1 taps",
}
"""{part: the axes of its own tensor}"""
