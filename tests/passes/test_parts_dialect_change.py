"""A model in another dialect, by its names and shapes alone."""

from __future__ import annotations

from typing import Any

import pytest

from paramtool.errors import LayoutError
from paramtool.parts.config_facts import KnownModel
from paramtool.passes.parts.dialect_change import dialect_change, dialect_of

HUB, MEMORY = "transformers-4", "transformers-5"
CONFIG: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 2, "hidden_size": 4,
    "intermediate_size": 6, "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip
AT = "model.layers.0.block_sparse_moe"
FOUR: dict[str, tuple[int, ...]] = {
    f"{AT}.gate.weight": (2, 4),
    **{
        f"{AT}.experts.{k}.{name}.weight": (4, 6) if name == "w2" else (6, 4)
        for k in (0, 1)
        for name in ("w1", "w2", "w3")
    },
}
FIVE = {
    "model.layers.0.mlp.gate.weight": (2, 4),
    "model.layers.0.mlp.experts.gate_up_proj": (2, 12, 4),
    "model.layers.0.mlp.experts.down_proj": (2, 4, 6),
}


def test_there_and_back() -> None:
    model = KnownModel(CONFIG)
    there = dialect_change(FOUR, (HUB, MEMORY), model).change
    assert {one.name: one.shape for one in there.made} == FIVE
    back = dialect_change(FIVE, (MEMORY, HUB), model).change
    assert {one.name: one.shape for one in back.made} == FOUR
    assert {frozenset(one.pieces) for one in back.read} == {frozenset(one.pieces) for one in there.made}


@pytest.mark.parametrize("shapes, expected", [(FOUR, HUB), (FIVE, MEMORY)])
def test_names_show_the_dialect(shapes: dict[str, tuple[int, ...]], expected: str) -> None:
    assert dialect_of("f", shapes, KnownModel(CONFIG)) == expected


def test_names_of_two_dialects_are_refused() -> None:
    mixed = {**FOUR, "model.layers.1.mlp.gate.weight": (2, 4), "model.layers.1.mlp.experts.down_proj": (2, 4, 6)}
    with pytest.raises(LayoutError, match="f: mixes"):
        dialect_of("f", mixed, KnownModel(CONFIG))


@pytest.mark.parametrize("target", [MEMORY, "vllm"])
def test_a_missing_expert_is_named_in_every_dialect(target: str) -> None:
    """One check for the dialects of transformers and those of tables."""
    shapes = {name: shape for name, shape in FOUR.items() if ".experts.1." not in name}
    with pytest.raises(LayoutError, match=r"found 1 expert, expected 2: config.json: num_local_experts; missing: 1"):
        dialect_change(shapes, (HUB, target), KnownModel(CONFIG))


def test_weights_that_are_packed_are_not_compared_with_the_config() -> None:
    """NVFP4 has two elements in a byte, under the weight's own name."""
    at = f"{AT}.experts.0.w1"
    shapes = {**FOUR, f"{at}.weight": (6, 2), f"{at}.weight_scale": (6, 1)}
    with pytest.raises(LayoutError, match=r"has shape \[6, 2\]; expected 4 \(config\.json: hidden_size\)"):
        dialect_change({**FOUR, f"{at}.weight": (6, 2)}, (HUB, "vllm"), KnownModel(CONFIG))
    with pytest.raises(LayoutError) as error:  # about something else: the other weights have no scales
        dialect_change(shapes, (HUB, "vllm"), KnownModel(CONFIG))
    assert "contradict" not in str(error.value)
