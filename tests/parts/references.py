"""How each layout of parts stores them, as array operations: no pattern and no piece is used here.

Each takes the parts {term: array, or one for each expert}, [outputs, inputs] as a Linear has them, and sizes; it gives
the fused arrays in the order of the layout.  The rows are those of the sources that the tables name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Reference = Callable[..., Sequence[Array]]
REFERENCES: dict[str, Reference] = {}


def reference(name: str) -> Callable[[Reference], Reference]:
    """The reference of a layout."""

    def add(made: Reference) -> Reference:
        REFERENCES[name] = made
        return made

    return add


def fused(name: str, parts: Mapping[str, Any], sizes: Mapping[str, int]) -> Sequence[Array]:
    """The arrays of a layout."""
    return REFERENCES[name](sizes, **parts)


def _split(array: Array, *lengths: int) -> Array:
    """The first axis as several."""
    return array.reshape(*lengths, *array.shape[1:])


def _flat(array: Array, count: int) -> Array:
    """The first axes as one."""
    return array.reshape(-1, *array.shape[count:])


def _per(count: int, *parts: Array) -> Array:
    """For each of `count`, its share of every part."""
    return _flat(np.concatenate([_split(one, count, -1) for one in parts], 1), 2)


def _in_turn(*parts: Array) -> Array:
    """A row of each in turn."""
    return _flat(np.stack(parts, 1), 2)


@reference("qkv")
def _qkv(s: Any, q: Array, k: Array, v: Array) -> list[Array]:
    return [np.concatenate([q, k, v])]


@reference("qkv-per-head")
def _qkv_per_head(s: Any, q: Array, k: Array, v: Array) -> list[Array]:
    return [_per(s["heads"], q, k, v)]


@reference("qkv-per-element")
def _qkv_per_element(s: Any, q: Array, k: Array, v: Array) -> list[Array]:
    return [_in_turn(q, k, v)]


@reference("qkv-per-group")
def _qkv_per_group(s: Any, q: Array, k: Array, v: Array) -> list[Array]:
    rows = []
    for group in range(s["kv_heads"]):
        share = s["heads"] // s["kv_heads"] * s["head_dim"]
        rows += [q[group * share : (group + 1) * share]]
        rows += [k[group * s["head_dim"] : (group + 1) * s["head_dim"]]]
        rows += [v[group * s["value_dim"] : (group + 1) * s["value_dim"]]]
    return [np.concatenate(rows)]


@reference("qvk-per-chunk")
def _qvk_per_chunk(s: Any, q: Array, k: Array, v: Array) -> list[Array]:
    return [_per(s["chunks"], q, v, k)]


@reference("qkv-per-chunk")
def _qkv_per_chunk(s: Any, q: Array, k: Array, v: Array) -> list[Array]:
    return [_per(s["chunks"], q, k, v)]


@reference("qkv-conv1d")
def _qkv_conv1d(s: Any, q: Array, k: Array, v: Array) -> list[Array]:
    return [np.concatenate([q.T, k.T, v.T], -1)]


@reference("kv")
def _kv(s: Any, k: Array, v: Array) -> list[Array]:
    return [np.concatenate([k, v])]


@reference("kv-per-head")
def _kv_per_head(s: Any, k: Array, v: Array) -> list[Array]:
    return [_per(s["kv_heads"], k, v)]


@reference("kv-conv1d")
def _kv_conv1d(s: Any, k: Array, v: Array) -> list[Array]:
    return [np.concatenate([k.T, v.T], -1)]


@reference("qk")
def _qk(s: Any, q: Array, k: Array) -> list[Array]:
    return [np.concatenate([q, k])]


@reference("q-gate-per-head")
def _q_gate_per_head(s: Any, q: Array, z: Array) -> list[Array]:
    return [_per(s["heads"], q, z)]


@reference("qkv-gate-per-group")
def _qkv_gate_per_group(s: Any, q: Array, z: Array, k: Array, v: Array) -> list[Array]:
    return [_per(s["kv_heads"], q, z, k, v)]


@reference("qkv-scalar-gate")
def _qkv_scalar_gate(s: Any, q: Array, k: Array, v: Array, s_: Array) -> list[Array]:
    return [np.concatenate([_per(s["kv_heads"], q, k, v), s_])]


@reference("qkv-scalar-gate-expanded")
def _qkv_scalar_gate_expanded(s: Any, q: Array, k: Array, v: Array, s_: Array) -> list[Array]:
    return [_per(s["kv_heads"], q, np.repeat(s_, s["head_dim"], 0), k, v)]


def _pairs(array: Array, heads: int, rotary: int) -> Array:
    """Rotated elements of each head from halves to pairs."""
    by_head = _split(array, heads, -1)
    low, high, rest = by_head[:, : rotary // 2], by_head[:, rotary // 2 : rotary], by_head[:, rotary:]
    mixed = by_head[:, :rotary].copy()
    mixed[:, 0::2], mixed[:, 1::2] = low, high
    return _flat(np.concatenate([mixed, rest], 1), 2)


@reference("rope-pairs")
def _rope_pairs(s: Any, q: Array, k: Array) -> list[Array]:
    return [_pairs(q, s["heads"], s["rotary"]), _pairs(k, s["kv_heads"], s["rotary"])]


@reference("heads-by-position")
def _heads_by_position(s: Any, q: Array, o: Array) -> list[Array]:
    groups, group = s["kv_heads"], s["heads"] // s["kv_heads"]
    rows = _flat(_split(q, groups, group, -1).swapaxes(0, 1), 3)
    if o.ndim == 1:  # a bias is of outputs, which stay
        return [rows, o]
    return [rows, _flat(_split(o.T, groups, group, -1).swapaxes(0, 1), 3).T]


@reference("gate-up")
def _gate_up(s: Any, gate: Array, up: Array) -> list[Array]:
    return [np.concatenate([gate, up])]


@reference("up-gate")
def _up_gate(s: Any, gate: Array, up: Array) -> list[Array]:
    return [np.concatenate([up, gate])]


@reference("gate-up-interleaved")
def _gate_up_interleaved(s: Any, gate: Array, up: Array) -> list[Array]:
    return [_in_turn(gate, up)]


@reference("gate-up-per-chunk")
def _gate_up_per_chunk(s: Any, gate: Array, up: Array) -> list[Array]:
    return [_per(s["chunks"], gate, up)]


Experts = Sequence[Array]


@reference("experts")
def _experts(s: Any, gate: Experts, up: Experts, down: Experts) -> list[Array]:
    return [np.concatenate([np.stack(gate), np.stack(up)], 1), np.stack(down)]


@reference("experts-interleaved")
def _experts_interleaved(s: Any, gate: Experts, up: Experts, down: Experts) -> list[Array]:
    return [np.stack([_in_turn(*both) for both in zip(gate, up, strict=True)]), np.stack(down)]


@reference("experts-transposed")
def _experts_transposed(s: Any, gate: Experts, up: Experts, down: Experts) -> list[Array]:
    both = [np.concatenate([a.T, b.T], -1) for a, b in zip(gate, up, strict=True)]
    return [np.stack(both), np.stack([one.T for one in down])]


@reference("experts-transposed-interleaved")
def _experts_transposed_interleaved(s: Any, gate: Experts, up: Experts, down: Experts) -> list[Array]:
    both = np.stack([_in_turn(a, b).T for a, b in zip(gate, up, strict=True)])
    return [both, np.stack([one.T for one in down])]


@reference("experts-apart")
def _experts_apart(s: Any, gate: Experts, up: Experts, down: Experts) -> list[Array]:
    return [np.stack(gate), np.stack(up), np.stack(down)]


@reference("experts-flat")
def _experts_flat(s: Any, gate: Experts, up: Experts, down: Experts) -> list[Array]:
    return [np.concatenate(gate), np.concatenate(up), np.concatenate([one.T for one in down])]


@reference("convs")
def _convs(s: Any, q_conv: Array, k_conv: Array, v_conv: Array) -> list[Array]:
    return [np.concatenate([q_conv, k_conv, v_conv])]


@reference("shared-experts-interleaved")
def _shared_experts(s: Any, gate: Experts, up: Experts, down: Experts) -> list[Array]:
    return [np.stack([_in_turn(*both) for both in zip(gate, up, strict=True)]), np.stack(down)]


@reference("linear-qkv-z")
def _linear_qkv_z(s: Any, linear_q: Array, linear_k: Array, linear_v: Array, linear_z: Array) -> list[Array]:
    return [np.concatenate([linear_q, linear_k, linear_v]), linear_z]


@reference("qkvz")
def _qkvz(s: Any, linear_q: Array, linear_k: Array, linear_v: Array, linear_z: Array) -> list[Array]:
    return [np.concatenate([linear_q, linear_k, linear_v, linear_z])]


@reference("qkvz-per-head")
def _qkvz_per_head(s: Any, linear_q: Array, linear_k: Array, linear_v: Array, linear_z: Array) -> list[Array]:
    return [_per(s["linear_key_heads"], linear_q, linear_k, linear_v, linear_z)]


@reference("qkvz-per-chunk")
def _qkvz_per_chunk(s: Any, linear_q: Array, linear_k: Array, linear_v: Array, linear_z: Array) -> list[Array]:
    return [_per(s["chunks"], linear_q, linear_k, linear_v, linear_z)]


@reference("ba")
def _ba(s: Any, linear_b: Array, linear_a: Array) -> list[Array]:
    return [np.concatenate([linear_b, linear_a])]


@reference("ba-per-head")
def _ba_per_head(s: Any, linear_b: Array, linear_a: Array) -> list[Array]:
    return [_per(s["linear_key_heads"], linear_b, linear_a)]


@reference("mla-down")
def _mla_down(s: Any, q_a: Array, kv_a: Array) -> list[Array]:
    return [np.concatenate([q_a, kv_a])]


@reference("mla-kv-a")
def _mla_kv_a(s: Any, latent: Array, k_rope: Array) -> list[Array]:
    return [np.concatenate([latent, k_rope])]


@reference("mla-kv-b")
def _mla_kv_b(s: Any, k_nope: Array, v_b: Array) -> list[Array]:
    return [_per(s["heads"], k_nope, v_b)]


@reference("mla-kv-b-stacks")
def _mla_kv_b_stacks(s: Any, k_nope: Array, v_b: Array) -> list[Array]:
    keys = _split(k_nope, s["heads"], -1)
    return [keys if keys.ndim == 2 else keys.swapaxes(1, 2), _split(v_b, s["heads"], -1)]


@reference("mla-q-b")
def _mla_q_b(s: Any, q_nope: Array, q_rope: Array) -> list[Array]:
    return [_per(s["heads"], q_nope, q_rope)]


@reference("mamba-in")
def _mamba_in(s: Any, ssm_x: Array, ssm_z: Array) -> list[Array]:
    return [np.concatenate([ssm_x, ssm_z])]


@reference("mamba-steps")
def _mamba_steps(s: Any, dt_low: Array, b_state: Array, c_state: Array) -> list[Array]:
    return [np.concatenate([dt_low, b_state, c_state])]


@reference("mamba2-in")
def _mamba2(s: Any, ssm_z: Array, ssm_x: Array, ssm_b: Array, ssm_c: Array, ssm_dt: Array) -> list[Array]:
    return [np.concatenate([ssm_z, ssm_x, ssm_b, ssm_c, ssm_dt])]


@reference("mamba2-in-per-chunk")
def _mamba2_per_chunk(s: Any, ssm_z: Array, ssm_x: Array, ssm_b: Array, ssm_c: Array, ssm_dt: Array) -> list[Array]:
    return [_per(s["chunks"], ssm_z, ssm_x, ssm_b, ssm_c, ssm_dt)]


@reference("mamba2-convs")
def _mamba2_convs(s: Any, x_conv: Array, b_conv: Array, c_conv: Array) -> list[Array]:
    return [np.concatenate([x_conv, b_conv, c_conv])]


@reference("qkv-mlp")
def _qkv_mlp(s: Any, q: Array, k: Array, v: Array, mlp: Array) -> list[Array]:
    return [np.concatenate([q, k, v, mlp])]


@reference("shift-scale")
def _shift_scale(s: Any, shift: Array, scale: Array) -> list[Array]:
    return [np.concatenate([shift, scale])]


@reference("scale-shift")
def _scale_shift(s: Any, shift: Array, scale: Array) -> list[Array]:
    return [np.concatenate([scale, shift])]


@reference("linear-qkv")
def _linear_qkv(s: Any, linear_q: Array, linear_k: Array, linear_v: Array) -> list[Array]:
    return [np.concatenate([linear_q, linear_k, linear_v])]


@reference("conv-flat")
def _conv_flat(s: Any, conv: Array) -> list[Array]:
    return [conv[:, 0] if conv.ndim == 3 else conv]


@reference("conv-last")
def _conv_last(s: Any, conv: Array) -> list[Array]:
    return [conv.swapaxes(1, 2) if conv.ndim == 3 else conv]
