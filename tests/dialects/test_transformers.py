"""`transformers-4` and `transformers-5`: laws, values, and files that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.dialects import opened, recognised, why_none
from paramtool.dialects.recognition import told
from paramtool.dialects.transformers import read, write
from paramtool.errors import LayoutError
from paramtool.parts.facts import NONE
from paramtool.parts.pieces import joined
from tests.dialects.asking_transformers import misnamed, numbered, shapes_of, values_of

Shapes = dict[str, tuple[int, ...]]
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 3}
OLMO = {
    "architectures": ["OlmoHybridForCausalLM"], "model_type": "olmo_hybrid", "linear_num_key_heads": 4,
    "linear_key_head_dim": 12, "linear_num_value_heads": 4, "linear_value_head_dim": 24,
}  # fmt: skip
KIMI = {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear"}
VISION = {
    "architectures": ["Kimi_K25ForConditionalGeneration"], "model_type": "kimi_k25",
    "vision_config": {"num_attention_heads": 3}, "text_config": {"model_type": "deepseek_v3"},
}  # fmt: skip
QWEN = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe",
    "text_config": {"model_type": "qwen3_vl_moe_text", "hidden_size": 8, "moe_intermediate_size": 6, "num_experts": 2},
}  # fmt: skip
ERNIE = {"architectures": ["Ernie4_5_VLMoeForConditionalGeneration"], "model_type": "ernie4_5_vl_moe"}
DORY = {"architectures": ["DoryForCausalLM"], "model_type": "dory"}
LOOP = {"architectures": ["Inkling2LoopForCausalLM"], "model_type": "inkling2_loop_text"}
INKLING = {"architectures": ["InklingForConditionalGeneration"], "model_type": "inkling_mm_model"}


def mixtral(experts: int = 3, layers: int = 2, hidden: int = 4, inner: int = 6) -> Shapes:
    found: Shapes = {"model.embed_tokens.weight": (32, hidden)}
    for layer in range(layers):
        head = f"model.layers.{layer}.block_sparse_moe"
        for expert in range(experts):
            for w, shape in (("w1", (inner, hidden)), ("w2", (hidden, inner)), ("w3", (inner, hidden))):
                found[f"{head}.experts.{expert}.{w}.weight"] = shape
        found[f"{head}.gate.weight"] = (experts, hidden)
    return found


def there_and_back(four: Shapes, config: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The values of `transformers-5`, after the laws held."""
    five = write(four, config)
    assert sorted(read(shapes_of(five), config)) == sorted(five)
    parts = numbered(four)
    made = {one.name: values_of(one, parts) for one in five}
    every = np.concatenate([one.ravel() for one in made.values()])
    assert (np.sort(every) == np.arange(len(every))).all(), "every element once"
    assert len(every) == sum(one.size for one in parts.values())
    return made


@given(st.integers(1, 12), st.integers(1, 2), st.integers(1, 5), st.integers(1, 5))
def test_mixtral(experts: int, layers: int, hidden: int, inner: int) -> None:
    four = mixtral(experts, layers, hidden, inner)
    made = there_and_back(four, {**MIXTRAL, "num_local_experts": experts})
    parts = numbered(four)
    head = "model.layers.0.block_sparse_moe.experts"
    gates = [np.concatenate([parts[f"{head}.{k}.w1.weight"], parts[f"{head}.{k}.w3.weight"]]) for k in range(experts)]
    assert (made["model.layers.0.mlp.experts.gate_up_proj"] == np.stack(gates)).all()
    downs = [parts[f"{head}.{k}.w2.weight"] for k in range(experts)]
    assert (made["model.layers.0.mlp.experts.down_proj"] == np.stack(downs)).all()


def test_joins_of_unequal_parts() -> None:
    """OLMo-Hybrid's three convolutions; transformers writes them as three parts of 64 rows."""
    head = "model.layers.0.linear_attn"
    read_parts = {
        piece.part: (piece.start, piece.shape, piece.at)
        for one in read({f"{head}.conv1d.weight": (192, 1, 4)}, OLMO)
        for piece in one.pieces
    }
    zero = (0, 0, 0)
    assert read_parts == {
        f"{head}.q_conv1d.weight": (zero, (48, 1, 4), (0, 0, 0)),
        f"{head}.k_conv1d.weight": (zero, (48, 1, 4), (48, 0, 0)),
        f"{head}.v_conv1d.weight": (zero, (96, 1, 4), (96, 0, 0)),
    }
    four = {f"{head}.{x}_conv1d.weight": (96 if x == "v" else 48, 1, 4) for x in "qkv"}
    made = there_and_back(four, OLMO)
    assert (made[f"{head}.conv1d.weight"] == np.concatenate(list(numbered(four).values()))).all()


@pytest.mark.parametrize(
    "config, rows, said",
    [
        ({key: value for key, value in OLMO.items() if key != "linear_value_head_dim"}, 192, "'linear_value_head_dim'"),
        (OLMO, 190, "48 \\+ 48 \\+ 96 = 192"),
        (KIMI, 190, "3 equal parts"),
    ],
)
def test_a_join_that_the_config_does_not_explain(config: dict[str, Any], rows: int, said: str) -> None:
    module = "linear_attn" if config is not KIMI else "self_attn"
    with pytest.raises(LayoutError, match=said) as caught:
        read({f"model.layers.0.{module}.conv1d.weight": (rows, 1, 4)}, config)
    assert "conv1d.weight" in str(caught.value) and "config.json" in caught.value.hint


def test_parts_of_other_sizes_than_the_config_says() -> None:
    """Equal parts, as transformers writes them: they are not those of the model."""
    head = "model.layers.0.linear_attn"
    with pytest.raises(LayoutError, match=r"\[64, 64, 64\].*\[48, 48, 96\]"):
        write({f"{head}.{x}_conv1d.weight": (64, 1, 4) for x in "qkv"}, OLMO)


def test_rotary_pairs_in_a_fused_projection() -> None:
    four = {"vision_tower.encoder.blocks.0.wqkv.weight": (36, 2), "vision_tower.encoder.blocks.0.wqkv.bias": (36,)}
    made = there_and_back(four, VISION)
    head = "model.vision_tower.layers.0.attn"
    weight = numbered(four)["vision_tower.encoder.blocks.0.wqkv.weight"].reshape(3, 12, 2)
    halves = weight.reshape(3, 3, 2, 2, 2).swapaxes(2, 3).reshape(3, 12, 2)  # heads of 4: (pair, 2) -> (2, pair)
    assert (made[f"{head}.q_proj.weight"] == halves[0]).all()
    assert (made[f"{head}.k_proj.weight"] == halves[1]).all()
    assert (made[f"{head}.v_proj.weight"] == weight[2]).all()
    with pytest.raises(LayoutError, match="num_attention_heads"):
        write(four, {**VISION, "vision_config": {}})
    with pytest.raises(LayoutError, match="12 rows are not 5 heads of pairs"):
        write(four, {**VISION, "vision_config": {"num_attention_heads": 5}})


def test_interleaved_gate_and_up() -> None:
    four = {"model.llm.layers.0.mlp.w13_dn.weight": (12, 2)}
    made = there_and_back(four, INKLING)
    weight = numbered(four)["model.llm.layers.0.mlp.w13_dn.weight"]
    assert (made["model.language_model.layers.0.mlp.gate_proj.weight"] == weight[0::2]).all()
    assert (made["model.language_model.layers.0.mlp.up_proj.weight"] == weight[1::2]).all()


def test_experts_of_two_towers() -> None:
    four = {
        f"model.layers.1.mlp.experts.{k}.{w}.weight": (3, inner) if w == "down_proj" else (inner, 3)
        for k, inner in enumerate((6, 6, 4, 4))
        for w in ("gate_proj", "up_proj", "down_proj")
    }  # fmt: skip
    five = shapes_of(write(four, ERNIE))
    head = "model.language_model.layers.1.mlp"
    assert five == {
        f"{head}.text_moe.experts.gate_up_proj": (2, 12, 3), f"{head}.vision_moe.experts.gate_up_proj": (2, 8, 3),
        f"{head}.text_moe.experts.down_proj": (2, 3, 6), f"{head}.vision_moe.experts.down_proj": (2, 3, 4),
    }  # fmt: skip
    there_and_back(four, ERNIE)
    odd = {name: shape for name, shape in four.items() if ".3." not in name}
    with pytest.raises(LayoutError, match="expected 2 equal towers"):
        write(odd, ERNIE)
    with pytest.raises(LayoutError, match="3, 2 experts, expected equal numbers"):
        read({**five, f"{head}.text_moe.experts.down_proj": (3, 3, 6)}, ERNIE)


def test_stacks_that_are_turned() -> None:
    """The files that people have are [experts, in, out]; names are the same in both dialects, and shapes tell."""
    name = "model.language_model.layers.0.mlp.experts.gate_up_proj"
    four, five = {name: (2, 8, 12)}, {name: (2, 12, 8)}
    assert shapes_of(write(four, QWEN)) == five
    assert (there_and_back(four, QWEN)[name] == numbered(four)[name].swapaxes(1, 2)).all()
    assert recognised(four, QWEN, lambda _: NONE) == ["transformers-4"]
    assert recognised(five, QWEN, lambda _: NONE) == ["transformers-5"]
    for convert, shapes in ((write, five), (read, four)):
        with pytest.raises(LayoutError, match=r"in memory|exchanged"):
            convert(shapes, QWEN)
    square = {**QWEN, "text_config": {**QWEN["text_config"], "moe_intermediate_size": 4}}  # type: ignore[dict-item]
    for convert in (read, write):
        with pytest.raises(LayoutError, match="two axes of one length"):
            convert({name: (2, 8, 8)}, square)
    assert recognised({name: (2, 8, 8)}, square, lambda _: NONE) == ["transformers-4", "transformers-5"]
    with pytest.raises(LayoutError, match=r"\[12, 8\] or \[8, 12\]"):
        write({name: (2, 9, 12)}, QWEN)


def test_two_blocks_that_are_one_layer() -> None:
    """Dory's files count attention and MLP apart."""
    four = {
        "backbone.embeddings.weight": (8, 2), "backbone.layers.2.mixer.q_proj.weight": (2, 2),
        "backbone.layers.2.mixer.g_proj.weight": (2, 2), "backbone.layers.2.attn_alpha": (2,),
        "backbone.layers.3.mixer.gate_proj.weight": (2, 2), "backbone.layers.3.mlp_alpha": (2,),
    }  # fmt: skip
    assert {one.name for one in write(four, DORY)} == {
        "model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.gate_proj.weight", "model.layers.1.lambda_1",
        "model.layers.1.mlp.gate_proj.weight", "model.layers.1.lambda_2",
    }  # fmt: skip
    there_and_back(four, DORY)
    assert told(four, DORY).dialects == ("transformers-4",)
    assert told(shapes_of(write(four, DORY)), DORY).dialects == ("transformers-5",)


def test_rows_of_four_queries_of_a_layer() -> None:
    heads = [f"model.llm.middle_cycle_cross_pass_{part}" for part in ("queries", "kv_queries")]
    four: Shapes = dict.fromkeys(heads, (6, 2))
    made = there_and_back(four, LOOP)
    queries, others = (numbered(four)[name].reshape(3, 2, 2) for name in heads)
    assert (
        made["model.message_input.query"] == np.stack([queries[:, 0], *others.swapaxes(0, 1), queries[:, 1]], 1)
    ).all()
    for shape in ((5, 2), (6, 3)):
        with pytest.raises(LayoutError, match=r"without groups of 2|differ beside axis"):
            write({**four, heads[0]: shape}, LOOP)
    with pytest.raises(LayoutError, match=r"expected \[layers, 4, hidden\]"):
        read({"model.message_input.query": (3, 3, 2)}, LOOP)


def test_experts_that_transformers_dequantises() -> None:
    """Without scales they are moved; with them, what transformers loads has other values."""
    head = "model.llm.layers.0.mlp.experts"
    four = {f"{head}.w13_weight": (2, 8, 4), f"{head}.w2_weight": (2, 4, 4)}
    config = {**LOOP, "n_routed_experts": 2}
    made = there_and_back(four, config)
    weight = numbered(four)[f"{head}.w13_weight"]
    assert (
        made["model.layers.0.mlp.experts.gate_up_proj"] == np.concatenate([weight[:, ::2], weight[:, 1::2]], 1)
    ).all()
    with pytest.raises(LayoutError, match="w13_weight_scale': a scale of quantised experts") as caught:
        write({**four, f"{head}.w13_weight_scale": (2, 8, 1)}, config)
    assert "not quantised" in caught.value.hint


def test_padded_rows_that_a_head_drops() -> None:
    config = {**LOOP, "vocab_size": 8, "unpadded_vocab_size": 6}
    assert shapes_of(write({"model.llm.unembed.weight": (6, 2)}, config)) == {"lm_head.weight": (6, 2)}
    there_and_back({"model.llm.unembed.weight": (6, 2)}, config)
    with pytest.raises(LayoutError, match=r"has 8 rows, of which the model keeps the first 6.*cut them first"):
        write({"model.llm.unembed.weight": (8, 2)}, config)
    with pytest.raises(LayoutError, match=r"config\.json does not say .unpadded_vocab_size"):
        write({"model.llm.unembed.weight": (8, 2)}, LOOP)


def test_one_projection_of_a_gated_delta_net() -> None:
    config = {"architectures": ["LaraMiniForCausalLM"], "model_type": "lara_mini", "linear_num_key_heads": 2,
              "linear_key_head_dim": 3, "linear_num_value_heads": 4, "linear_value_head_dim": 5}  # fmt: skip
    name = "model.layers.0.linear_attn.in_proj.weight"
    head = name.removesuffix(".weight")
    assert shapes_of(write({name: (60, 2)}, config)) == {
        f"{head}_qkv.weight": (32, 2), f"{head}_z.weight": (20, 2), f"{head}_b.weight": (4, 2),
        f"{head}_a.weight": (4, 2),
    }  # fmt: skip
    there_and_back({name: (60, 2)}, config)
    with pytest.raises(LayoutError, match=r"has 59 where the config says 32 \+ 20 \+ 4 \+ 4 = 60"):
        write({name: (59, 2)}, config)


# --- Refused ---------------------------------------------------------------------------------------------------------


def without(shapes: Shapes, *words: str) -> Shapes:
    return {name: shape for name, shape in shapes.items() if not all(word in name for word in words)}


@pytest.mark.parametrize(
    "four, said",
    [
        (without(mixtral(), "layers.1", "experts.1."), r"missing.*\n.*number 1"),
        (without(mixtral(), "layers.1", "experts.2.w3"), r"(?s)missing.*experts\.2\.w3"),
        (without(mixtral(), "layers.0", "w1"), r"'.experts.\*.w1.weight', which is not in the file"),
        ({**mixtral(), "model.layers.0.block_sparse_moe.experts.1.w1.weight": (5, 4)}, r"number 1 has shape \[5, 4\]"),
        (
            {**mixtral(), "model.layers.0.block_sparse_moe.experts.0.w1.weight_scale": (6,)},
            r"1 tensor of experts stays(?s:.)*scale",
        ),
        ({**mixtral(), "model.layers.1.mlp.gate.weight": (3, 4)}, r"1 name is not(?s:.)*model\.layers\.1\.mlp\.gate"),
        ({"a.LayerNorm.gamma": (4,), "a.LayerNorm.weight": (4,)}, "are both 'a.LayerNorm.weight'"),
    ],
    ids=["expert", "up", "all gates", "shape", "scale", "both dialects", "twice"],
)
def test_files_that_are_not_whole(four: Shapes, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        write(four, MIXTRAL)


def test_half_converted() -> None:
    four, five = mixtral(), shapes_of(write(mixtral(), MIXTRAL))
    mixed = without(four, "layers.1") | without(five, "layers.0")
    assert told(four, MIXTRAL).dialects == ("transformers-4",)
    assert told(five, MIXTRAL).dialects == ("transformers-5",)
    assert told(mixed, MIXTRAL).dialects == ()
    assert told(["model.norm.weight"], MIXTRAL).dialects == ("transformers-4", "transformers-5")
    for convert in (read, write):
        with pytest.raises(LayoutError, match=r"not of the dialect(?s:.)*layers"):
            convert(mixed, MIXTRAL)
    with pytest.raises(LayoutError, match="of the other dialect"):
        write(five, MIXTRAL)
    with pytest.raises(LayoutError, match="not of the dialect"):
        read(four, MIXTRAL)


@pytest.mark.parametrize("experts", [2, 4, 8])
def test_another_number_of_experts_than_the_config_says(experts: int) -> None:
    """A list whose last one is missing, or with one too many, looks whole."""
    config = {**MIXTRAL, "num_local_experts": experts}
    said = rf"found 3 experts, expected {experts}: config.json: num_local_experts"
    with pytest.raises(LayoutError, match=rf"block_sparse_moe.experts.0.w1.weight': {said}"):
        write(mixtral(), config)
    with pytest.raises(LayoutError, match=rf"mlp.experts.gate_up_proj': {said}"):
        read(shapes_of(write(mixtral(), MIXTRAL)), config)


def test_why_names_are_of_no_dialect() -> None:
    mixed = without(mixtral(), "layers.1") | without(shapes_of(write(mixtral(), MIXTRAL)), "layers.0")
    assert recognised(mixed, MIXTRAL, lambda _: NONE) == []
    said = why_none(mixed, MIXTRAL)
    assert said.startswith(
        "mixes transformers-4 ('model.layers.0.block_sparse_moe.experts.0.w1.weight', 10 tensors) and"
    )
    assert "transformers-5 ('model.layers.1.mlp." in said and said.endswith("3 tensors)")
    assert why_none({"a": (1,), "b": (1,)}, {"architectures": ["NoSuchModel"]}).startswith("its 2 names ('a', 'b') are")


@pytest.mark.parametrize(
    "name, config",
    [
        ("model.layers.1.mlp.experts.gate_up_proj", MIXTRAL),
        ("embeddings.token_embedding.weight",
         {"architectures": ["Tipsv2TextModel"], "model_type": "tipsv2_text_model"}),
        ("model.layers.1.mlp.shared_experts.up_proj.weight",
         {"architectures": ["LagunaForCausalLM"], "model_type": "laguna"}),
        ("model.language_model.norm.weight", ERNIE),
        ("model.embed_tokens.embed_norm.weight",
         {"architectures": ["Inkling2ForCausalLM"], "model_type": "inkling2_text"}),
    ],
)  # fmt: skip
def test_names_of_the_model_that_a_rule_would_change(name: str, config: dict[str, Any]) -> None:
    assert "transformers-5" in told([name], config).dialects


def test_names_that_another_program_has_too() -> None:
    """vLLM's `self_attn` for HRM is the name that transformers 5 has, of tensors that it takes apart."""
    config = {"architectures": ["HrmTextForCausalLM"], "model_type": "hrm_text"}
    head = "model.H_module.layers.0"
    four = {f"{head}.attn.gqkv_proj.weight": (16, 4), f"{head}.mlp.gate_up_proj.weight": (12, 4),
            f"{head}.attn.o_proj.weight": (4, 4)}  # fmt: skip
    assert recognised(four, config, lambda _: NONE) == ["transformers-4"]
    assert recognised(shapes_of(write(four, config)), config, lambda _: NONE) == ["transformers-5"]
    vllm = {name.replace(".attn.", ".self_attn."): shape for name, shape in four.items()}
    assert recognised(vllm, config, lambda _: NONE) == ["vllm"]


def test_half_of_a_pair() -> None:
    config = {"architectures": ["Dinov2Model"], "model_type": "dinov2"}
    with pytest.raises(LayoutError, match=r"'mlp\.up_proj\.weight', which is not in the file"):
        read({"encoder.layer.0.mlp.gate_proj.weight": (4, 2)}, config)


@pytest.mark.parametrize(
    "config, said",
    [
        ({}, "`architectures` is missing"),
        ({"architectures": []}, r"`architectures` is \[\]; expected"),
        ({"architectures": None}, "`architectures` is null; expected"),
        ({"architectures": ["NoSuchModel"]}, "'NoSuchModel' is not a model"),
        ({"architectures": ["LayoutLMv2Model"]}, "is not in the table"),
    ],
)
def test_configs_that_name_no_model(config: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        write({"a": (1,)}, config)


def test_the_hub_is_what_it_is() -> None:
    hub = opened("transformers-4", {}, lambda name: NONE)
    for convert in (hub.read, hub.write):
        stored = convert(mixtral())
        assert shapes_of(stored) == mixtral()
        assert all(list(joined(one.pieces, one.pieces)) for one in stored)


def test_names_that_the_model_decides() -> None:
    """transformers asks the model: `.norm.` is `.kv_norm.` everywhere but at the end of the model."""
    config = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4"}
    four = {"model.norm.weight": (4,), "layers.0.attn.norm.weight": (4,)}
    assert set(shapes_of(write(four, config))) == {"model.norm.weight", "layers.0.self_attn.kv_norm.weight"}


def test_names_that_the_rules_alone_get_wrong() -> None:
    """What docs/make_dialects.py puts into the table."""
    config = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4"}
    five = {"model.norm.weight": (4,), "layers.0.self_attn.kv_norm.weight": (4,)}
    assert misnamed(five, config) == {"model.kv_norm.weight": "model.norm.weight"}
