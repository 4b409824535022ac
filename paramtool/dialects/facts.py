"""Sizes that neither the names nor the shapes of fused tensors give: of parts that a rule of transformers joins.

transformers turns a join into equal parts when it saves, so what it writes of unequal ones is wrong.  Here each join is
either of equal parts by the equations of its model, or its sizes are numbers of config.json.  The facts are those of
transformers 5.23.0, of Lara-Mini and GLM-4-MoE of 5.24.0; each has its file and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paramtool.dialects.operations import Misfit
from paramtool.dialects.renaming import NameRule
from paramtool.model.view import Shape

Config = Mapping[str, Any]
PAIRS = (("gate_proj", "up_proj"), ("w1", "w3"), ("fc1", "fc3"))
"""Sources that are gate and up of one gated MLP: act(gate x) * (up x) needs equal rows."""
EQUAL = {
    ("self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight", "self_attn.v_conv1d.weight"):
        "kimi_linear/modeling_kimi_linear.py 589, glm5_next/modeling_glm5_next.py 643: conv_dim = qkv_dim * 3",
    ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"):
        "bailing_hybrid/modeling_bailing_hybrid.py 669: conv_dim = qkv_dim * 3",
}  # fmt: skip
"""{sources: where the model says that they have equal rows}."""


class NoFact(Exception):
    """A number that decides and that the config does not say."""


def number(config: Config | None, *keys: str) -> int:
    """The first of the keys that the config says a positive number under; NoFact where it says none."""
    for key in keys:
        value = (config or {}).get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    raise NoFact(" or ".join(repr(key) for key in keys))


def _olmo_hybrid(config: Config) -> tuple[int, ...]:
    """key_dim, key_dim, value_dim (olmo_hybrid/modeling_olmo_hybrid.py 583-586, 606)."""
    key = number(config, "linear_num_key_heads") * number(config, "linear_key_head_dim")
    value = number(config, "linear_num_value_heads") * number(config, "linear_value_head_dim")
    return key, key, value


def _molmo2_words(config: Config) -> tuple[int, ...]:
    """vocab_size and additional_vocab_size (molmo2/modeling_molmo2.py 652)."""
    return number(config, "vocab_size"), number(config, "additional_vocab_size")


def _lara_mini(config: Config) -> tuple[int, ...]:
    """q, k and v; z; b; a (lara_mini/modeling_lara_mini.py 574-575, 606-609)."""
    key, _, value = _olmo_hybrid(config)
    heads = number(config, "linear_num_value_heads")
    return 2 * key + value, value, heads, heads


def _attention(config: Config) -> tuple[int, ...]:
    """Heads of q, and of k and v (molmo2/modeling_molmo2.py 250-264, glm4_moe/modeling_glm4_moe.py 181-194)."""
    heads = number(config, "num_attention_heads")
    try:
        dim = number(config, "head_dim")
    except NoFact:
        dim = number(config, "hidden_size") // max(heads, 1)
    groups = number(config, "num_key_value_heads")
    return heads * dim, groups * dim, groups * dim


SIZES: Mapping[tuple[str, ...], Callable[[Config], tuple[int, ...]]] = {
    ("linear_attn.q_conv1d.weight", "linear_attn.k_conv1d.weight", "linear_attn.v_conv1d.weight"): _olmo_hybrid,
    ("wte.embedding", "wte.new_embedding"): _molmo2_words,
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"): _attention,
    ("q_proj", "k_proj", "v_proj"): _attention,
    tuple(f"linear_attn.in_proj_{part}" for part in ("qkv", "z", "b", "a")): _lara_mini,
}
"""{names of the parts: their sizes by the config of the module}."""


def is_pair(sources: Sequence[str]) -> bool:
    """Whether sources are gate and up of one MLP."""
    ends = tuple(re.sub(r"\.?(weight|bias)$", "", source).rpartition(".")[2] for source in sources)
    return ends in PAIRS


def is_known(rule: NameRule) -> bool:
    """Whether the sizes of every join of a rule are known, so that it can be undone."""
    for name, *parameters in rule.operations:
        if name == "Concatenate" and not (parameters[1] or is_pair(rule.sources)):
            return rule.sources in EQUAL or rule.sources in SIZES
        if name == "Split":
            return rule.targets in SIZES
    return True


def sizes(rule: NameRule, total: int, root: Config, shards: str | None) -> Shape:
    """The sizes of what a `Concatenate` of a rule joins.

    NoFact where nothing says them, Misfit where the config says others.
    """
    if shards is not None:
        return _equal(total, number(text_config(rule.config or root), shards))
    if is_pair(rule.sources) or rule.sources in EQUAL:
        return _equal(total, len(rule.sources))
    return _of_config(rule, rule.sources, total)


def split_sizes(rule: NameRule, total: int) -> Shape:
    """The sizes of what a `Split` of a rule gives; errors as of `sizes`."""
    return _of_config(rule, rule.targets, total)


def _of_config(rule: NameRule, names: tuple[str, ...], total: int) -> tuple[int, ...]:
    if names not in SIZES:
        raise NoFact(f"the sizes of {', '.join(names)}")
    found = SIZES[names](rule.config or {})
    if sum(found) != total:
        raise Misfit(f"has {total} where the config says {' + '.join(map(str, found))} = {sum(found)}")
    return found


def _equal(total: int, count: int) -> tuple[int, ...]:
    if not count or total % count:
        raise Misfit(f"has {total}, which is not {count} equal parts")
    return (total // count,) * count


def text_config(config: Config) -> Config:
    """The part of a config that is of text (PreTrainedConfig.get_text_config, configuration_utils.py 1519)."""
    for key in ("text_encoder", "decoder", "generator", "text_config"):
        if isinstance(config.get(key), Mapping):
            found: Config = config[key]
            return found
    return config


HEADS = ("num_attention_heads", "heads")
"""The number of heads; `heads` where transformers did not write the config (step3p7/configuration_step3p7.py 71)."""


def rope_heads(root: Config, subconfig: str | None) -> int:
    """The heads that a rotary permutation goes by, of the whole model's config (core_model_loading.py 480)."""
    config = root.get(subconfig, root) if subconfig else root
    return number(config, *HEADS)


def expected(rule: NameRule, root: Config) -> tuple[int, int]:
    """The last two axes that a stack of experts has in the model (qwen3_vl_moe/modeling_qwen3_vl_moe.py 93-94)."""
    config = text_config(rule.config or root)
    hidden, inner = number(config, "hidden_size"), number(config, "moe_intermediate_size")
    return (2 * inner, hidden) if rule.targets[0].endswith("gate_up_proj") else (hidden, inner)
