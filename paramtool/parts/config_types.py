"""The types of the settings that a config.json says sizes by: a number in quotes is a mistake, not an absent key.

    {"model_type": "mixtral", "num_local_experts": "8"}     num_local_experts is '8'; expected a whole number

Facts of transformers 5.23.0: the annotations of its configuration classes, of which every class was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from paramtool.errors import LayoutError, listed, plural
from paramtool.parts.config_facts import NESTED, RANKS, ROWS, SIDES, TOWERS, is_known
from paramtool.parts.facts import KEYS
from paramtool.parts.families import Config
from paramtool.parts.widths import FFN, HIDDEN, exceptions

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")
OF_SIDE = ("{}_layers", "num_{}_layers", "{}_num_hidden_layers")
"""Keys that say how many layers there are: of a model, and of the encoder or the decoder of one."""
COUNTS = ("vocab_size", "num_kv_shared_layers", "zero_expert_num", "kv_n_heads", "first_k_dense_replace")
FLAGS = (
    "new_decoder_architecture", "multi_query", "multi_query_attention", "alibi", "attention_k_eq_v",
    "tie_word_embeddings",
)  # fmt: skip
NUMBERS = ("partial_rotary_factor", "rotary_pct")
INNER = ("attn_config", "ffn_config")
"""Parts of a config of MPT and DBRX that say sizes, and are no tower."""
NOT_SIZES = ("multiplier", "auto_adjust")
"""In keys that have the name of a width, and say something else of it (lfm2)."""
LISTS: Mapping[str, Sequence[str]] = {key: types.split() for key, types in exceptions()["lists"].items()}
"""{key: the model types that have a list there, with a number for each layer or stage}."""


def check(config: Config, where: str) -> None:
    """LayoutError for settings of the wrong type, all of them; `where` is the path of the config."""
    if lines := list(_wrong(config, "")):
        raise LayoutError(
            listed(f"{where}: {plural(len(lines), 'setting has', 'settings have')} the wrong type:", lines),
            hint="correct it as the model's configuration class has it; nothing was assumed",
        )


def _wrong(config: Config, path: str) -> Iterator[str]:
    """A line for each setting of a config, and of those in it, that has the wrong type."""
    model_type = config.get("model_type")
    known = model_type if isinstance(model_type, str) and is_known(model_type) else ""
    towers = TOWERS.get(model_type, {}) if isinstance(model_type, str) else {}
    for key, value in config.items():
        if value is None:
            continue
        at = f"{path}{key}"
        if isinstance(value, Mapping) and (key in NESTED or key in INNER or key.endswith("_config")):
            if not key.startswith("quantization"):
                yield from _wrong(value, f"{at}.")
        elif key in ("text_config", "vision_config", "audio_config", *towers):
            yield f"{at} is {_shown(value)}; expected an object"
        elif expected := _expected(key, value, known):
            yield f"{at} is {_shown(value)}; expected {expected}"


def _expected(key: str, value: object, model_type: str) -> str:
    """The type that a setting should have; empty if it has it, or if the key says nothing here.

    `model_type` is empty where its configuration class is not known.
    """
    rule = _rule(key)
    if rule is None or (key == "num_hidden_layers" and model_type == "lxmert"):  # an object: vision, language, cross
        return ""
    expected, fits = rule
    if fits(value):
        return ""
    if isinstance(value, list) and expected == WHOLE and (not model_type or model_type in LISTS.get(key, ())):
        return "" if all(map(_is_whole, value)) else f"{expected}, or a list of them"
    return expected


WHOLE = "a whole number"


@cache
def _rule(key: str) -> tuple[str, Callable[[object], bool]] | None:
    """What a key expects, in words, and what tells it; None for a key that nothing here reads."""
    if key in RANKS or any(key in KEYS[word] for word in RANKS):
        return f"{WHOLE} or 'auto'", lambda value: _is_whole(value) or value == "auto"
    if key in _sizes() or ((HIDDEN.fullmatch(key) or FFN.fullmatch(key)) and not any(one in key for one in NOT_SIZES)):
        return WHOLE, _is_whole
    if key in FLAGS:
        return "true or false", lambda value: isinstance(value, bool)
    if key in NUMBERS:
        return "a number", lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)
    if key == "model_type":
        return "a string", _is_text
    if key in ("architectures", "layer_types"):
        example = ', as in ["LlamaForCausalLM"]' if key == "architectures" else ""
        return f"a list of strings{example}", lambda found: isinstance(found, list) and all(map(_is_text, found))
    return None


@cache
def _sizes() -> frozenset[str]:
    """The keys that say a size, or a number of layers."""
    found = {key for keys in KEYS.values() for key in keys} | {*LAYERS, *COUNTS}
    found |= {key.format(side) for key in OF_SIDE for side in SIDES}
    for rules in ROWS.values():
        for rule in rules.split():
            keys = rule.partition("=")[2].partition(":")[0]
            found |= {key for key in keys.split("|") if key and not key.startswith("*") and "." not in key}
    return frozenset(found)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _shown(value: object) -> str:
    """A value for a message."""
    if isinstance(value, Mapping):
        return "an object"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else f"{value!r:.40}"
