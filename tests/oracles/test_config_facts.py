"""Facts from configs are what transformers' modules really have, in every model that it builds.

Each model is built on the meta device from its config, and from configs with other numbers, absent keys and null ones.
What a config does not say may be absent; nothing may be wrong.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.examples import IS_EVERY_MODEL

pytest.importorskip("transformers")

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from paramtool.errors import LayoutError
from paramtool.parts.config_facts import VERSION, KnownModel, from_config, tower_of
from tests.oracles.attention_sizes import CHANGES, Observed, built, observations, saved
from tests.oracles.zoo_models import architectures

FEW = (
    "bart", "bert", "bloom", "clip", "codegen", "dbrx", "deepseek_v3", "falcon", "gemma2", "gemma3_text", "gpt2",
    "gpt_bigcode", "gpt_neox", "gpt_oss", "jetmoe", "llama", "llava", "mixtral", "modernbert", "mpt", "olmo_hybrid",
    "phi3", "qwen2", "qwen2_vl", "qwen3_moe", "qwen3_next", "t5", "vit", "whisper",
)  # fmt: skip
"""Model types whose configs are changed in every way."""
QUICK = ("bloom", "clip", "falcon", "gpt2", "gpt_neox", "llama", "mixtral", "mpt", "phi3", "t5")
"""Those that `make test` looks at; with PARAMTOOL_EVERY_MODEL=1 all are looked at."""
TYPES = sorted(architectures()) if IS_EVERY_MODEL else QUICK
QKV = ("q_proj", "k_proj", "v_proj")
HEADLESS_ROTARY = "head_dim added"
"""A change that some rotary positions see, and not the attention that they are for: no model."""


def wrong(one: Observed) -> dict[str, tuple[int, int]]:
    """{word: (what the module has, what the config is said to say)}, where they differ."""
    whole, tower = (one.config, "") if one.tower is None else (one.whole, one.tower)
    try:
        known = from_config(whole, ".".join(filter(None, [tower, one.side]))).sizes
    except LayoutError:
        return {}
    skipped = {"rotary"} if one.change == HEADLESS_ROTARY else set()
    return {
        word: (size, known[word])
        for word, size in one.sizes.items()
        if word in known and word not in skipped and known[word] != size
    }


@pytest.mark.sample(3)
@pytest.mark.parametrize("model_type", TYPES)
def test_configs_say_what_modules_have(model_type: str) -> None:
    seen = list(observations([model_type], CHANGES if model_type in FEW else CHANGES[:6]))
    problems = [(one.name, one.change, found) for one in seen if (found := wrong(one))]
    assert not problems, problems[:5]
    for one in seen:
        if one.tower is not None and not one.change:
            found = tower_of(f"{one.name}.weight", one.whole)
            known = from_config(one.whole, found).sizes if found is not None else {}
            assert all(known.get(word, size) == size for word, size in one.sizes.items()), (one.name, found)


@pytest.mark.sample(2)
@pytest.mark.parametrize("model_type", sorted({*TYPES} & {*FEW} - {"jetmoe"}))
def test_common_models_say_their_heads(model_type: str) -> None:
    """Absent is right for a few modules of odd models, and not for these; jetmoe has one kv_proj and no q to count."""
    said: Counter[str] = Counter()
    for one in observations([model_type], ("", "keys absent, more heads")):
        whole, tower = (one.config, "") if one.tower is None else (one.whole, one.tower)
        known = from_config(whole, ".".join(filter(None, [tower, one.side]))).sizes
        said.update(word for word, size in one.sizes.items() if known.get(word) == size)
    assert said["heads"] or said["kv_heads"]


@pytest.mark.parametrize("is_saved", [True, False], ids=["layer_types", "by default"])
@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("mimo_v2_flash", {}),
        ("mimo_v2_flash", {"num_key_value_heads": 2, "num_attention_heads": 8, "head_dim": 24, "v_head_dim": 16}),
        ("inkling_text", {}),
        ("inkling_text", {"swa_num_attention_heads": 8, "swa_num_key_value_heads": 2, "swa_head_dim": 64}),
        ("inkling_text", {"local_layer_ids": [0, 3]}),
        ("inkling2_text", {"num_key_value_heads": 4, "swa_num_key_value_heads": 16, "head_dim": 64}),
    ],
)
def test_layers_of_two_kinds_have_the_heads_that_the_facts_say(
    model_type: str, changes: dict[str, object], is_saved: bool
) -> None:
    """Each layer of the class is compared with the facts about its own name; both kinds are there."""
    small = {"num_hidden_layers": 7, **changes}
    model = built(model_type, small)
    assert model is not None
    config = saved(model.config) if is_saved else {"model_type": model_type, **small}
    known, kinds = KnownModel(config), set()
    for name, module in model.named_modules():
        if name.startswith("layers.") and name.endswith("self_attn"):
            facts = known.facts(f"model.{name}").sizes
            parts = {key: getattr(one, "linear", one) for key, one in module.named_children() if key in QKV}
            rows = {key: one.weight.shape[0] for key, one in parts.items()}
            assert rows["q_proj"] == facts["heads"] * facts["head_dim"], name
            assert rows["k_proj"] == facts["kv_heads"] * facts["head_dim"], name
            assert rows["v_proj"] == facts["kv_heads"] * facts["value_dim"], name
            assert facts["kv_heads"] == facts["heads"] // module.num_key_value_groups, name
            kinds.add(facts["kv_heads"])
    assert len(kinds) == 2


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("key", ["num_experts", "num_local_experts"])
def test_both_keys_of_experts_mean_what_the_class_has(model_type: str, key: str) -> None:
    """Version 5 writes num_local_experts for both, and its classes read either (`attribute_map`)."""
    config = {"model_type": model_type, key: 6, "num_hidden_layers": 1, "architectures": []}
    model = built(model_type, config)
    assert model is not None
    written = saved(model.config)
    assert written["num_local_experts"] == 6 and "num_experts" not in written
    stacks = [p.shape[0] for name, p in model.named_parameters() if name.endswith("gate_up_proj")]
    assert stacks == [from_config(config).sizes["experts"]] == [from_config(written).sizes["experts"]] == [6]


def test_the_table_is_for_the_installed_version() -> None:
    if not transformers.__version__.startswith(f"{VERSION}."):
        pytest.skip(f"the table is for transformers {VERSION}: make it again with docs/make_config_keys.py")
    assert "llama" in CONFIG_MAPPING_NAMES
