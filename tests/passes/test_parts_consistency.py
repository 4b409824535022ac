"""Names that contradict each other: forms that are mixed, and modules that lack a part."""

from __future__ import annotations

from typing import Any

import pytest

from paramtool.errors import LayoutError
from paramtool.passes.parts import consistency

QKV = ("q_proj", "k_proj", "v_proj")


def names(*layers: tuple[str, ...], at: str = "model.layers.{}.self_attn.{}.weight") -> list[str]:
    return [at.format(k, child) for k, children in enumerate(layers) for child in children]


def test_one_form_is_no_contradiction() -> None:
    consistency.check(names((*QKV, "o_proj"), (*QKV, "o_proj")), {})
    consistency.check(names(("qkv_proj", "o_proj"), ("qkv_proj", "o_proj")), {})


@pytest.mark.parametrize("other", ["qkv_proj", "query_key_value", "c_attn"])
def test_two_forms_in_layers(other: str) -> None:
    with pytest.raises(LayoutError, match=rf"layers\.\*\.self_attn: q_proj, k_proj, v_proj apart .* {other} fused"):
        consistency.check(names((*QKV, "o_proj"), (other, "o_proj")), {})


def test_two_names_of_parts() -> None:
    with pytest.raises(LayoutError, match=r"q_proj, k_proj, v_proj apart .* and wq, wk, wv apart"):
        consistency.check(names(QKV, ("wq", "wk", "wv")), {})


def test_a_list_and_a_stack_of_experts() -> None:
    listed = [f"layers.0.mlp.experts.{k}.{part}_proj.weight" for k in (0, 1) for part in ("gate", "up", "down")]
    stacked = [f"layers.1.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")]
    with pytest.raises(LayoutError, match=r"layers\.\*\.mlp\.experts: gate_proj, up_proj, down_proj apart"):
        consistency.check(listed + stacked, {})


def test_layers_of_two_sorts_under_one_name() -> None:
    """MiniMax: linear attention, which has a gate and a norm, and attention."""
    consistency.check(names(("qkv_proj", "output_gate", "out_proj", "norm"), (*QKV, "o_proj")), {})


def test_all_places_at_once() -> None:
    mixed = names((*QKV, "o_proj"), ("qkv_proj", "o_proj"))
    mixed += names(("gate_proj", "up_proj"), ("gate_up_proj",), at="model.layers.{}.mlp.{}.weight")
    with pytest.raises(LayoutError, match="2 places mix two forms"):
        consistency.check(mixed, {})
    with pytest.raises(LayoutError, match="1 place mixes two forms"):
        consistency.check(mixed, {}, ["model.layers.*.mlp"])


def test_a_missing_part_beside_a_bias_too_many() -> None:
    """The layer has a tensor of its own, and still lacks what the other has."""
    odd = [*names((*QKV, "o_proj"), ("q_proj", "v_proj", "o_proj")), "model.layers.1.self_attn.q_proj.bias"]
    with pytest.raises(LayoutError, match=r"layers\.1\.self_attn' has no k_proj\.weight; 'model\.layers\.0"):
        consistency.check(odd, {})


@pytest.mark.parametrize("missing", [*QKV, "o_proj"])
def test_a_module_without_a_part(missing: str) -> None:
    whole = (*QKV, "o_proj")
    fewer = tuple(name for name in whole if name != missing)
    with pytest.raises(LayoutError, match=rf"layers\.1\.self_attn' has no {missing}\.weight; 'model\.layers\.0"):
        consistency.check(names(whole, fewer), {})


def test_a_bias_of_one_layer() -> None:
    biased = [f"h.{k}.attn.c_attn.{kind}" for k in (0, 1) for kind in ("weight", "bias")]
    with pytest.raises(LayoutError, match=r"'h\.1\.attn' has no c_attn\.bias"):
        consistency.check(biased[:-1], {})


def test_modules_that_have_something_else() -> None:
    """Latent attention in some layers, which has its own projections of keys and values."""
    consistency.check(names((*QKV, "o_proj"), ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")), {})
    consistency.check(names((*QKV, "o_proj", "sinks"), (*QKV, "o_proj")), {})


SHARED: dict[str, Any] = {"model_type": "gemma3n_text", "num_hidden_layers": 2, "num_kv_shared_layers": 1}


@pytest.mark.parametrize("config, is_so", [(SHARED, True), ({**SHARED, "num_kv_shared_layers": 0}, False), ({}, False)])
def test_keys_and_values_of_an_earlier_layer(config: dict[str, Any], is_so: bool) -> None:
    shared = names((*QKV, "o_proj"), ("q_proj", "o_proj"))
    if is_so:
        consistency.check(shared, config)
        return
    with pytest.raises(LayoutError, match=r"has no k_proj.weight, v_proj.weight"):
        consistency.check(shared, config)


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_values_that_are_the_keys(kind: str) -> None:
    config = {"model_type": "gemma4_text", "attention_k_eq_v": True, "layer_types": ["sliding_attention", kind]}
    same = names((*QKV, "o_proj"), ("q_proj", "k_proj", "o_proj"))
    if kind == "full_attention":
        consistency.check(same, config)
        return
    with pytest.raises(LayoutError, match=r"has no v_proj.weight"):
        consistency.check(same, config)


@pytest.mark.parametrize("weight", ["weight", "qweight", "base_layer.weight"])
def test_a_bias_that_one_layer_lacks(weight: str) -> None:
    """Also of packed weights, which are companions of nothing here, and beside adapters in memory."""
    weights = names(QKV, QKV, QKV, at="model.layers.{}.attn.{}." + weight)
    biases = [one.removesuffix("weight").removesuffix("q") + "bias" for one in weights]
    found = weights if weight != "qweight" else []
    consistency.check([*found, *biases], {})
    consistency.check(weights, {})
    with pytest.raises(LayoutError, match=r"attn' has no k_proj\.(base_layer\.)?bias"):
        consistency.check([*found, *biases[:4], *biases[5:]], {})


@pytest.mark.parametrize("end", ["", "_blocks"])
def test_a_stack_without_its_bias(end: str) -> None:
    stacks = [f"layers.{k}.mlp.experts.{name}{end}" for k in range(2) for name in ("gate_up_proj", "down_proj")]
    biases = [one.removesuffix(end) + "_bias" for one in stacks]
    consistency.check(stacks + biases, {})
    with pytest.raises(LayoutError, match=r"'layers\.1\.mlp\.experts' has no gate_up_proj_bias"):
        consistency.check(stacks + [one for k, one in enumerate(biases) if k != 2], {})


def test_what_is_no_bias_of_a_part() -> None:
    """Buffers of GPT-2 and GPT-NeoX, and biases of norms."""
    consistency.check(["h.0.attn.bias", "h.0.attn.c_attn.weight", "h.1.attn.c_attn.weight", "h.1.norm.weight"], {})
    consistency.check(["h.0.norm.weight", "h.0.norm.bias", "h.1.norm.weight"], {})


def test_an_expert_with_one_more_tensor() -> None:
    """Whatever it is called: it would be left behind where the others become stacks."""
    at = "model.layers.0.block_sparse_moe.experts"
    listed = [f"{at}.{k}.{part}.weight" for k in range(3) for part in ("w1", "w2", "w3")]
    consistency.check(listed, {})
    with pytest.raises(LayoutError, match=r"1 expert has more than the others:\n.*experts\.2' has w4\.weight"):
        consistency.check([*listed, f"{at}.2.w4.weight"], {})


@pytest.mark.parametrize("rows", [23, 25, 1])
def test_a_bias_of_another_length(rows: int) -> None:
    weight, bias = "h.0.attn.query_key_value.weight", "h.0.attn.query_key_value.bias"
    for shape in ((24, 8), (8, 24)):  # a Linear, and GPT-2's layer
        consistency.check_biases({weight: shape, bias: (24,)})
        with pytest.raises(LayoutError, match="1 bias does not fit the weight"):
            consistency.check_biases({weight: shape, bias: (rows,)})
        consistency.check_biases({weight: shape, bias: (rows,)}, scaled={weight})


def test_biases_of_stacks() -> None:
    at = "mlp.experts.gate_up_proj"
    consistency.check_biases({at: (3, 8, 10), f"{at}_bias": (3, 10)})
    for shape in ((2, 10), (3, 9)):
        with pytest.raises(LayoutError, match="1 bias does not fit"):
            consistency.check_biases({at: (3, 8, 10), f"{at}_bias": shape})
