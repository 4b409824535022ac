"""Widths by config.json against shapes; the oracles run the rules over every class of transformers."""

from __future__ import annotations

from typing import Any

import pytest

from paramtool.errors import LayoutError
from paramtool.parts import widths

CONFIG: dict[str, Any] = {
    "model_type": "mixtral", "hidden_size": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 5,
    "intermediate_size": 7, "num_local_experts": 2, "num_hidden_layers": 2,
}  # fmt: skip
AT = "model.layers.0"
RIGHT = {
    f"{AT}.self_attn.q_proj.weight": (20, 12), f"{AT}.self_attn.k_proj.weight": (10, 12),
    f"{AT}.self_attn.v_proj.weight": (10, 12), f"{AT}.self_attn.o_proj.weight": (12, 20),
    f"{AT}.block_sparse_moe.experts.0.w1.weight": (7, 12), f"{AT}.block_sparse_moe.experts.0.w2.weight": (12, 7),
    f"{AT}.mlp.experts.gate_up_proj": (2, 14, 12), f"{AT}.mlp.experts.down_proj": (2, 12, 7),
    "model.embed_tokens.weight": (99, 12), f"{AT}.block_sparse_moe.gate.weight": (2, 12),
}  # fmt: skip


def test_what_fits() -> None:
    assert widths.contradictions(RIGHT, CONFIG) == []
    turned = {f"{AT}.mlp.experts.gate_up_proj": (2, 12, 14), f"{AT}.mlp.experts.down_proj": (2, 7, 12)}
    assert widths.contradictions(turned, CONFIG) == []


@pytest.mark.parametrize("name", [name for name in RIGHT if "embed" not in name and "gate.w" not in name])
@pytest.mark.parametrize("axis", [-1, -2])
def test_each_axis(name: str, axis: int) -> None:
    shape = list(RIGHT[name])
    shape[axis] += 1
    (found,) = widths.contradictions({name: tuple(shape)}, CONFIG)
    assert found.name == name and f"along axis {len(shape) + axis}" in found.expected
    with pytest.raises(LayoutError, match=r"1 shape contradicts config\.json:"):
        widths.check({name: tuple(shape)}, CONFIG)


@pytest.mark.parametrize("model_type", ["", "no_such_model", "swin"])
def test_models_that_are_not_known(model_type: str) -> None:
    assert widths.contradictions(RIGHT, {**CONFIG, "model_type": model_type, "hidden_size": 99}) == []


def test_a_value_that_is_no_number() -> None:
    assert widths.contradictions(RIGHT, {**CONFIG, "hidden_size": "12", "intermediate_size": None}) == []


def test_weights_of_inputs_and_outputs() -> None:
    config = {"model_type": "gpt2", "n_embd": 8, "n_head": 2}
    assert widths.contradictions({"h.0.attn.c_attn.weight": (8, 24)}, config) == []
    assert len(widths.contradictions({"h.0.attn.c_attn.weight": (24, 8)}, config)) == 1


def test_one_line_for_all_layers() -> None:
    shapes = {f"model.layers.{k}.mlp.gate_proj.weight": (9, 12) for k in range(5)}
    (found,) = widths.contradictions(shapes, {**CONFIG, "model_type": "llama"})
    assert str(found) == (
        "'model.layers.0.mlp.gate_proj.weight' has shape [9, 12] (and 4 tensors like it); expected 7 "
        "(config.json: intermediate_size) along axis 0"
    )
