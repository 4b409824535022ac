"""transformers-4 and transformers-5: what paramtool writes is what transformers itself saves in its two forms.

A few families here, all of `conversion_mapping` in `make oracles` (PARAMTOOL_EVERY_MODEL=1).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.integrations import finegrained_fp8

from tests.dialects.test_transformers_table import skip_if_outdated
from tests.examples import IS_EVERY_MODEL
from tests.oracles.dialects import converting, families, forms
from tests.oracles.dialects.forms import Wrong
from tests.oracles.dialects.models import fill
from tests.oracles.real_models import single_thread

__all__ = ["single_thread"]  # a fixture
FEW = (
    "mixtral",
    "qwen3_vl_moe",
    "ernie4_5_vl_moe",
    "olmo_hybrid",
    "inkling2_text",
    "gte",
    "inkling2_loop_text",
    "lara_mini",
)
KEYS = list(families.converted()) if IS_EVERY_MODEL else list(FEW)
needs_converter = pytest.mark.skipif(not converting.FORMS, reason="this paramtool has no dialects")
NOT_BUILT = {"inkling_mm_model": "No module named 'scipy'"}
"""{key: why no model of it is built here}; with scipy, as in the zoo's environment, it is"""


def made(key: str, variant: str, folder: Path) -> forms.Forms:
    """A model in its two forms; skipped where it is known that there is none, or where the table is outdated."""
    skip_if_outdated()
    try:
        model = families.build(key, variant)
    except ValueError as error:
        if NOT_BUILT.get(key, "?") in str(error):
            pytest.skip(str(error))
        raise
    return forms.both(model, folder)


@pytest.mark.parametrize("key", KEYS)
def test_the_forms_differ(key: str, tmp_path: Path) -> None:
    """A test of a conversion between them can fail: some tensor is cut, joined, stacked or turned.

    Of Qwen3-VL-MoE only the form of version 4 that people have differs, and transformers opens that one, too.
    """
    one = made(key, "odd", tmp_path)
    if key in forms.REPAIRED:
        with pytest.raises(Wrong):
            forms.same(forms.right_four(one, key), forms.tensors(one.four), "transformers' own")
    if key != "qwen3_vl_moe":
        assert one.changed


@pytest.mark.sample(2)
@needs_converter
@pytest.mark.parametrize("variant", families.VARIANTS)
@pytest.mark.parametrize("key", KEYS)
def test_each_form_becomes_the_other(key: str, variant: str, tmp_path: Path) -> None:
    assert forms.between(made(key, variant, tmp_path), key, tmp_path).startswith("ok")


@needs_converter
def test_equal_thirds_are_refused(tmp_path: Path) -> None:
    """The file of OLMo-Hybrid that transformers itself writes contradicts its config."""
    one = made("olmo_hybrid", "odd", tmp_path)
    said = converting.refusal(converting.convert, one.four, out=tmp_path / "out", target=forms.FIVE)
    assert "conv1d" in said


DORY = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 4, "n_input_layers": 1, "n_output_layers": 1}  # fmt: skip
INKLING = {"vocab_size": 96, "unpadded_vocab_size": 90, "hidden_size": 16, "num_hidden_layers": 2, "head_dim": 4,
           "num_attention_heads": 4, "num_key_value_heads": 2, "swa_num_attention_heads": 4, "swa_head_dim": 4,
           "swa_num_key_value_heads": 2, "d_rel": 4, "rel_extent": 16, "moe_intermediate_size": 12,
           "n_routed_experts": 3, "num_experts_per_tok": 2, "n_layers_per_attn_res_block": 2,
           "eos_token_id": 1}  # fmt: skip


def of_class(name: str, settings: Mapping[str, Any], folder: Path) -> forms.Forms:
    """A model of a class that is newer than some versions of transformers, in its two forms."""
    skip_if_outdated()
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).eval()
    fill(model, 0)
    return forms.both(model, folder)


@needs_converter
def test_transformers_opens_two_blocks_for_each_layer(tmp_path: Path) -> None:
    """Dory: transformers 5.24 opens the files that people have, and does not write them."""
    one = of_class("Dory", DORY, tmp_path)
    five = forms.tensors(one.five)
    made = converting.convert(one.five, tmp_path / "made 4", forms.FOUR)
    four = forms.tensors(made)
    assert {int(name.split(".")[2]) for name in four if ".layers." in name} == set(range(6))
    for k in range(3):
        at = f"model.layers.{k}"
        assert torch.equal(
            four[f"backbone.layers.{2 * k}.mixer.g_proj.weight"], five[f"{at}.self_attn.gate_proj.weight"]
        )
        assert torch.equal(four[f"backbone.layers.{2 * k + 1}.mixer.up_proj.weight"], five[f"{at}.mlp.up_proj.weight"])
        assert torch.equal(four[f"backbone.layers.{2 * k}.attn_alpha"], five[f"{at}.lambda_1"])
        assert torch.equal(four[f"backbone.layers.{2 * k + 1}.mlp_alpha"], five[f"{at}.lambda_2"])
    forms.opens(one.model, made, "two blocks for each layer")
    back = converting.convert(made, tmp_path / "made 5", forms.FIVE)
    forms.same(five, forms.tensors(back), "there and back")
    forms.opens(one.model, back, "one block for each layer")


@needs_converter
def test_padded_rows_of_a_head(tmp_path: Path) -> None:
    """Inkling 2: transformers 5.24 drops them, and writes zeros; it opens a head without them, too."""
    one = of_class("Inkling2Text", INKLING, tmp_path)
    padded = forms.tensors(one.four)["model.llm.unembed.weight"]
    assert padded.shape[0] == 96 and not padded[90:].any()
    assert "cut them first" in converting.refusal(
        converting.convert, one.four, out=tmp_path / "refused", target=forms.FIVE
    )
    made = converting.convert(one.five, tmp_path / "made 4", forms.FOUR)
    forms.opens(one.model, made, "without padded rows")
    expected = {**forms.tensors(one.four), "model.llm.unembed.weight": padded[:90]}
    forms.same(expected, forms.tensors(made), "but for the padded rows")
    back = converting.convert(made, tmp_path / "made 5", forms.FIVE)
    forms.same(forms.tensors(one.five), forms.tensors(back), "there and back")


@pytest.mark.skipif(not IS_EVERY_MODEL, reason="make oracles")
def test_every_family_of_experts_is_built() -> None:
    """58 keys of transformers 5.23.0; another version may have more."""
    keys = families.of_experts()
    assert len(keys) >= 58
    assert set(NOT_BUILT) < set(keys)


@pytest.mark.parametrize("change", ["value", "name", "shape", "type"])
def test_any_difference_is_wrong(change: str) -> None:
    one = {"a": torch.arange(4.0), "b": torch.arange(6.0)}
    forms.same(one, {name: value.clone() for name, value in one.items()}, "equal")
    other = {
        "value": {**one, "a": torch.tensor([0.0, 1.0, 2.0, 4.0])},
        "name": {"a": one["a"], "c": one["b"]},
        "shape": {**one, "b": one["b"].reshape(2, 3)},
        "type": {**one, "b": one["b"].double()},
    }[change]
    with pytest.raises(Wrong):
        forms.same(one, other, change)


@needs_converter
@pytest.mark.parametrize("name, experts", [("Mixtral", "num_local_experts"), ("DeepseekV3", "n_routed_experts")])
def test_quantised_experts_have_the_names_of_transformers(name: str, experts: str) -> None:
    """Names and shapes of a model with weights of 8 bits, as transformers itself replaces its modules."""
    from paramtool.parts.config_facts import KnownModel
    from paramtool.passes.parts.dialect_change import dialect_change

    sizes = {"hidden_size": 256, "intermediate_size": 384, "moe_intermediate_size": 384, "num_hidden_layers": 1,
             "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64, "first_k_dense_replace": 0,
             "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}  # fmt: skip
    kind = getattr(transformers, f"{name}Config")
    config = kind(**sizes, **{experts: 4}, pad_token_id=0)
    with torch.device("meta"):
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    quantised = transformers.FineGrainedFP8Config(weight_block_size=(128, 128))
    model = finegrained_fp8.replace_with_fp8_linear(model, ["lm_head", "gate"], quantization_config=quantised)
    said = {"weight_block_size": [128, 128], "quant_method": "fp8"}
    whole = {**config.to_dict(), "architectures": [type(model).__name__], "quantization_config": said}
    known = KnownModel(whole)
    five = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    assert any(key.endswith("experts.gate_up_proj_scale_inv") for key in five)
    made = dialect_change(five, (forms.FIVE, forms.FOUR), known).change.made
    four = {one.name: one.shape for one in made}
    assert sum(".experts." in key and key.endswith(".weight_scale_inv") for key in four) >= 12
    back = dialect_change(four, (forms.FOUR, forms.FIVE), known).change.made
    assert {one.name: one.shape for one in back} == five
