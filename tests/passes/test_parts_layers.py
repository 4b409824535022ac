"""Layers against each other and against config.json: missing, too many, or without what the others have."""

from __future__ import annotations

from typing import Any

import pytest

from paramtool.errors import LayoutError
from paramtool.passes.parts import dialect_change

LLAMA: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": 4}
OWN = ("self_attn.q_proj.weight", "input_layernorm.weight")


def names(*which: int, at: str = "model.layers", own: tuple[str, ...] = OWN) -> list[str]:
    return [f"{at}.{k}.{name}" for k in which for name in own]


def test_all_layers_are_no_contradiction() -> None:
    assert dialect_change.check(names(0, 1, 2, 3), LLAMA) == []


@pytest.mark.parametrize(
    "there, says",
    [((0, 1, 3), "model.layers has 3 of them: no 2"), ((2, 3), "has 2 of them: no 0, 1"),
     ((0, 1, 2, 3, 4), "config.json says 4 layers (num_hidden_layers); model.layers has 1 more: 4"),
     (tuple(range(12)), "has 8 more: 4, 5, 6, 7 and 4 more")],
)  # fmt: skip
def test_another_number_of_layers(there: tuple[int, ...], says: str) -> None:
    with pytest.raises(LayoutError) as error:
        dialect_change.check(names(*there), LLAMA)
    assert says in error.value.message


def test_a_model_type_that_is_not_known_is_a_warning() -> None:
    config = {**LLAMA, "model_type": "mine"}
    (line,) = dialect_change.check(names(0, 1, 3), config)
    assert "has 3 of them: no 2" in line
    (line,) = dialect_change.check([*names(0, 1, 2, 3), "model.layers.1.self_attn.q_norm.weight"], config)
    assert line == "'model.layers.0' has no 'self_attn.q_norm.weight' (and 2 layers like it); 'model.layers.1' has"


def test_a_number_that_no_model_has() -> None:
    assert dialect_change.check(names(0), {**LLAMA, "num_hidden_layers": 10**12}) == []


@pytest.mark.parametrize("name", ["self_attn.q_norm.weight", "post_attention_layernorm.weight", "mlp.extra"])
@pytest.mark.parametrize("which", [(1,), (0, 1, 3)], ids=["one has it", "one lacks it"])
def test_what_not_all_layers_have(name: str, which: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError, match=rf"has no '{name}'"):
        dialect_change.check([*names(0, 1, 2, 3), *names(*which, own=(name,))], LLAMA)


PREDICTS = [*names(4), "model.layers.4.eh_proj.weight", "model.layers.4.enorm.weight"]


def test_layers_that_predict_further_tokens() -> None:
    """By their names, or by a key of the config; they have more than the others."""
    assert dialect_change.check([*names(0, 1, 2, 3), *PREDICTS], LLAMA) == []
    said = {**LLAMA, "num_nextn_predict_layers": 1}
    assert dialect_change.check(names(0, 1, 2, 3, 4), said) == []
    with pytest.raises(LayoutError, match="has 1 more"):
        dialect_change.check(names(0, 1, 2, 3, 4), {**said, "num_nextn_predict_layers": 0})


SORTS = {**LLAMA, "layer_types": ["sliding_attention", "full_attention"] * 2}


def test_layers_of_two_sorts_are_not_compared() -> None:
    sinks = names(0, 2, own=("self_attn.sinks",))
    assert dialect_change.check([*names(0, 1, 2, 3), *sinks], SORTS) == []
    with pytest.raises(LayoutError, match=r"'model\.layers\.2' has no 'self_attn\.sinks'"):
        dialect_change.check([*names(0, 1, 2, 3), *sinks[:1]], SORTS)


def test_model_types_whose_layers_differ() -> None:
    """T5 has its bias of positions in the first block, ModernBERT no norm before its first attention."""
    own = ("layer.0.SelfAttention.q.weight", "layer.0.layer_norm.weight")
    blocks = names(0, 1, at="encoder.block", own=own)
    bias = ["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    config = {"model_type": "t5", "num_layers": 2}
    assert dialect_change.check([*blocks, *bias], config) == []
    with pytest.raises(LayoutError, match=r"'encoder\.block\.1' has no 'layer\.0\.layer_norm\.weight'"):
        dialect_change.check([*blocks[:-1], *bias], config)
    modern = names(0, 1, 2, 3, own=("attn.Wqkv.weight", "attn_norm.weight"))
    modern.remove("model.layers.0.attn_norm.weight")
    assert dialect_change.check(modern, {**LLAMA, "model_type": "modernbert"}) == []
    with pytest.raises(LayoutError, match=r"'model\.layers\.0' has no 'attn_norm\.weight'"):
        dialect_change.check(modern, LLAMA)


def test_two_blocks_that_are_one_layer() -> None:
    """Dory's config counts the blocks of its files; in memory, two of them are one layer."""
    config = {"model_type": "dory", "num_hidden_layers": 4, "layer_types": ["full_attention", "mlp"] * 2}
    parts = ("q_proj", "up_proj")
    file = [f"backbone.layers.{k}.mixer.{parts[k % 2]}.weight" for k in range(4)]
    memory = [f"model.layers.{k}.{at}.weight" for k in range(2) for at in ("self_attn.q_proj", "mlp.up_proj")]
    for names_of in (file, memory):
        assert dialect_change.check(names_of, config) == []
        with pytest.raises(LayoutError, match=r"config\.json says [42] layers"):
            dialect_change.check(names_of[:-2], config)


def test_quantised_layers_may_be_left_as_they_are() -> None:
    own = names(1, 2, 3, own=("self_attn.k_scale",))
    config = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    assert dialect_change.check([*names(0, 1, 2, 3), *own], config) == []
    with pytest.raises(LayoutError, match="k_norm"):
        dialect_change.check([*names(0, 1, 2, 3), *names(1, own=("self_attn.k_norm.weight",))], config)


def test_adapters_of_some_layers() -> None:
    """An adapter need not have factors in all layers."""
    assert dialect_change.check(["model.layers.2.self_attn.q_proj.lora_A.weight"], LLAMA) == []
