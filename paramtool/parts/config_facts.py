"""What a model's config.json says of its sizes, in the words of `facts`.

The keys are those that transformers' config classes really have, and what a class takes where a key is absent
(`config_keys.json`, made by docs/make_config_keys.py, which builds each model and compares).  A row of that table is

    llama heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads head_dim=head_dim:hidden/heads ...

    word=KEY|KEY:DEFAULT   the value of the first key that the config has; DEFAULT where it has none: a number, another
                           word, or `hidden/heads`
    word=KEY:DEFAULT:NULL  the same, and what null stands for; without NULL it is the default, if that is no number
    word=:DEFAULT          no key says it
    rotary=*FACTOR@KEY     a share of head_dim: that of rope_parameters, of an outer key, or FACTOR

A composite model has other defaults for some of its towers: their rows are `voxtral>text_config>llama`.
A config of a model type that the table lacks says only what is written under usual keys.  A composite model has configs
in its config; `tower_of` says which one a tensor belongs to.  What cannot be told is absent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from paramtool.errors import LayoutError
from paramtool.package_data import package_data
from paramtool.parts import families
from paramtool.parts.facts import KEYS, MAX_SIZE, NONE, Facts, derived, merged
from paramtool.parts.families import Config
from paramtool.parts.schemes import packing_of

_KEYS = json.loads(package_data("parts", "config_keys.json"))
VERSION: str = _KEYS["version"]
"""The version of transformers."""
ROWS: Mapping[str, str] = {
    **{name: row for row, names in _KEYS["rows"].items() for name in names},
    "dbrx": "heads=n_heads|num_attention_heads:16 hidden=d_model|hidden_size:2048 "
    "kv_heads=attn_config.kv_n_heads:1 head_dim=:hidden/heads rotary=:head_dim experts=ffn_config.moe_num_experts:4",
    "jetmoe": "kv_heads=num_key_value_heads:16 group=num_experts_per_tok:2 head_dim=kv_channels:128 "
    "experts=num_local_experts|num_experts:8",
}
"""{a model type, or one and a half of it, `bart/encoder`: its rules}.  A model type has no row where no rule gave what
its modules have, and a row lacks the words that differ from layer to layer.  By hand are model types whose modules do
not show their sizes (transformers 5.23.0: configuration_dbrx.py 42, 75, 122; modeling_dbrx.py 173-187, where
num_key_value_heads beside attn_config is not read; configuration_jetmoe.py `__post_init__`, where each expert that a
token takes has its heads of q)."""
TOWERS: Mapping[str, dict[str, str]] = {
    name: dict(one.split("=") for one in row.split()) for row, names in _KEYS["towers"].items() for name in names
}
"""{model type: {key of a nested config: its model type, after < where its keys may stand in the outer config}}."""
SIDES = ("encoder", "decoder")
"""Halves of a model that one config describes, each with its own keys."""
RANKS = ("q_rank", "kv_rank", "dt_rank")
"""Words of `KEYS` whose keys have no default: absent, null or 'auto' is no rank."""
WRITTEN = (*RANKS, "linear_key_dim", "linear_value_dim")
"""Words of `KEYS` whose keys have one meaning in every model type, and are read also where the table has no rule for
them.  OLMo-Hybrid calculates the last two where they are absent (transformers 5.23.0:
olmo_hybrid/configuration_olmo_hybrid.py 138-141): they are not known then."""
UNEQUAL = re.compile(r"^(swa|global|sliding|local|encoder|decoder)_\w*(heads|head_dim)$|_per_layer$|^block_configs$")
"""Keys of configs whose layers or halves differ in their heads: `KEYS` do not say which."""


def from_config(config: Config, tower: str = "", *, layers: str = "") -> Facts:
    """The facts of one tower of a model; none where the config does not say them.

    `tower` is the path of a nested config, the last step of which may be `encoder` or `decoder` as a half of one config
    (`tower_of` gives it).  `layers` is the kind of the layer (`layer_kinds`).  LayoutError if the config contradicts
    itself.

    >>> str(from_config({"model_type": "llama", "num_attention_heads": 4, "hidden_size": 64}))
    'heads=4 kv_heads=4 hidden=64 head_dim=16 rotary=16 value_dim=16 group=1'
    """
    found = _nested(config, tower)
    if found is None:
        return NONE
    model_type, own, path, _, _ = found
    inner = families.of_kind(own, layers, model_type) if layers else own
    reader = ConfigReader(inner, f"config.json: {path}." if path else "config.json: ")
    if chunks := families.chunks(own):
        reader.add("chunks", chunks, "num_key_value_heads of the model, with fused_qkv")
    if model_type in MODEL_TYPES:
        reader.take_all(MODEL_TYPES[model_type](reader))
        return derived(Facts(reader.sizes, reader.said))
    key = _row_key(found)
    if not key:
        is_plain = (model_type or not path) and model_type not in TOWERS and not _known(model_type)
        return derived(_plain(reader)) if is_plain else NONE
    reader.take_all(f"{ROWS[key]} {families.rules(model_type, layers)}")
    for word in WRITTEN:
        if word not in reader.sizes and any(inner.get(one) not in (None, 0, "auto") for one in KEYS[word]):
            reader.take(word, "|".join(KEYS[word]) + ":")
    reader.drop_unequal()
    said = {word: families.source(one, own, layers, model_type) for word, one in reader.said.items()}
    return derived(Facts(reader.sizes, said))


def config_of(config: Config, tower: str = "") -> tuple[str, Config]:
    """The model type of a tower, empty where nothing says it, and its config.

    >>> config_of({"model_type": "llava", "text_config": {"model_type": "phi3"}}, "text_config")[0]
    'phi3'
    """
    found = _nested(config, tower)
    return ("", {}) if found is None else (found.model_type, found.config)


class _Tower(NamedTuple):
    """A nested config."""

    model_type: str
    config: Config
    path: str
    side: str
    outer: str
    """`voxtral>text_config>` for the tower of another config, else ""."""


def _nested(config: Config, tower: str) -> _Tower | None:
    """The config of a tower; None if there is none, or if nothing says its model type."""
    model_type, path, side, outer = _text(config.get("model_type")), "", "", ""
    for step in filter(None, tower.split(".")):
        inner = config.get(step)
        if isinstance(inner, Mapping):
            outer = f"{model_type}>{step}>"
            model_type = _text(inner.get("model_type")) or _default_type(model_type, step)
            config, path = inner, f"{path}.{step}" if path else step
        elif step in SIDES and not side:
            side = step
        elif step in _flat(model_type):
            outer, model_type = f"{model_type}>{step}>", _default_type(model_type, step)
        else:
            return None
    return _Tower(model_type, config, path, side, outer)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _default_type(model_type: str, key: str) -> str:
    """The model type of a nested config that does not say it."""
    return TOWERS.get(model_type, {}).get(key, "").lstrip("<")


def _flat(model_type: str) -> list[str]:
    """Nested configs whose keys may stand in the outer config, as in files of older versions."""
    return [key for key, value in TOWERS.get(model_type, {}).items() if value.startswith("<")]


def _row_key(tower: _Tower) -> str:
    """The key of the rules for a config: for its place in another, for a half of it, or for its model type."""
    own, placed = tower.model_type, f"{tower.outer}{tower.model_type}"
    for name in (placed, own) if tower.outer else (own,):
        for key in (f"{name}/{tower.side}", name) if tower.side else (name,):
            if key in ROWS:
                return key
        if any(f"{name}/{side}" in ROWS for side in SIDES):
            return ""
    return ""


def is_known(model_type: str) -> bool:
    """Whether the keys of a model type's config were compared with its modules."""
    return model_type in MODEL_TYPES or _known(model_type)


def _known(model_type: str) -> bool:
    return any(key in ROWS for key in (model_type, *(f"{model_type}/{side}" for side in SIDES)))


def _plain(reader: ConfigReader) -> Facts:
    """What a config of an unknown model type says under usual keys."""
    if any(UNEQUAL.search(key) for key in reader.config):
        return NONE
    for word, keys in KEYS.items():
        reader.take(word, "|".join(keys) + ":")
    return Facts(reader.sizes, reader.said)


STEMS = {
    "vision": ("visual", "vision", "vit", "image_encoder", "video_tower", "image_tower", "image_embed"),
    "text": ("language_model", "text", "llm"),
    "audio": ("audio", "speech_encoder", "audio_embed"),
    "speech": ("speech_encoder", "speech_model"),
    "backbone": ("backbone", "pixel_level_module", "conv_encoder"),
    "semantic_model": ("semantic_encoder", "semantic_model"),
}
"""{a nested config's key without `_config`: how segments of tensor names begin that belong to it}; others: the key."""
NESTED = (*SIDES, "generator", "text_encoder", "audio_encoder")
"""Nested configs whose keys do not end in `_config`."""
BACKBONE = re.compile(r"^(model\.|transformer\.|base_model\.)*(layers|h|blocks|block)\.\d+\.")
"""Names of a text model's layers without a segment that says so."""


def tower_of(name: str, config: Config) -> str | None:
    """The path of the nested config that a tensor belongs to, "" for the outermost; None where it cannot be told.

    >>> config = {"text_config": {"model_type": "llama"}, "vision_config": {"model_type": "clip_vision_model"}}
    >>> tower_of("vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight", config)
    'vision_config'
    >>> tower_of("language_model.model.layers.0.self_attn.q_proj.weight", config)
    'text_config'
    >>> tower_of("multi_modal_projector.linear_1.weight", config) is None
    True
    """
    steps: list[str] = []
    rest = name.split(".")
    model_type = _text(config.get("model_type"))
    while inner := _towers(config, model_type):
        before = next((k for k, one in enumerate(rest) if one.isdecimal()), len(rest))
        place = next(((k, key) for k, one in enumerate(rest[:before]) for key in inner if _belongs(one, key)), None)
        if place is None:
            if _known(model_type) and not any(one is config for one in inner.values()):
                break  # the outer one's own layers
            if "text_config" not in inner or not BACKBONE.search(".".join(rest)):
                return None
            rest_from, key = 0, "text_config"
        else:
            rest_from, key = place[0] + 1, place[1]
        steps.append(key)
        model_type = _text(inner[key].get("model_type")) or _default_type(model_type, key)
        flat = inner[key] is config
        config, rest = inner[key], rest[rest_from:]
        if flat:
            break
    side = next((one for one in rest if one in SIDES), "")
    if side and any(f"{model_type}/{one}" in ROWS for one in SIDES):
        steps.append(side)
    elif not side and any(f"{model_type}/{one}" in ROWS for one in SIDES) and model_type not in ROWS:
        return None
    return ".".join(steps)


def _towers(config: Config, model_type: str) -> dict[str, Config]:
    """The nested configs that describe towers, flat ones among them."""
    found: dict[str, Config] = {
        key: value
        for key, value in config.items()
        if isinstance(value, Mapping)
        and (key.endswith("_config") or key in NESTED)
        and not key.startswith(("attn_", "ffn_", "quantization"))
    }
    found |= {key: config for key in _flat(model_type) if key not in found}
    return found


def _belongs(segment: str, key: str) -> bool:
    stem = key.removesuffix("_config")
    return any(segment == one or segment.startswith(f"{one}_") for one in STEMS.get(stem, (stem,)))


# --- Model types whose sizes hang on flags of their configs, or are constants of their code --------------------------


def _falcon(reader: ConfigReader) -> str:
    """transformers 5.23, modeling_falcon.py 200-245: heads of k and v are num_kv_heads in the new architecture or
    without multi_query, else one.
    """
    flag = reader.config.get
    is_one = flag("new_decoder_architecture", False) is not True and flag("multi_query", True) is True
    kv_heads = ":1" if is_one else "num_kv_heads|n_head_kv:heads"
    return (
        f"heads=num_attention_heads|n_head:71 hidden=hidden_size|n_embed:4544 kv_heads={kv_heads} "
        f"head_dim=:hidden/heads{_without_alibi(reader)}"
    )


def _refined_web(reader: ConfigReader) -> str:
    """The first files of Falcon, with their own code: n_head_kv is there in 40B, which has no flag, and multi_query
    in the others.
    """
    multi_query = reader.config.get("multi_query")
    rules = "heads=n_head|num_attention_heads: hidden=hidden_size|n_embed: head_dim=:hidden/heads"
    if "n_head_kv" in reader.config or "num_kv_heads" in reader.config:
        rules += " kv_heads=n_head_kv|num_kv_heads:"
    elif isinstance(multi_query, bool):
        rules += f" kv_heads={':1' if multi_query else ':heads'}"
    return rules + _without_alibi(reader)


def _without_alibi(reader: ConfigReader) -> str:
    return "" if reader.config.get("alibi", False) is not False else " rotary=:head_dim"


def _gpt_bigcode(reader: ConfigReader) -> str:
    """modeling_gpt_bigcode.py 90-110: one head of k and v with multi_query."""
    kv_heads = ":heads" if reader.config.get("multi_query", True) is False else ":1"
    return (
        f"heads=n_head|num_attention_heads:12 hidden=n_embd|hidden_size:768 kv_heads={kv_heads} head_dim=:hidden/heads"
    )


def _chatglm(reader: ConfigReader) -> str:
    """Its own configuration_chatglm.py: multi_query_group_num counts only with multi_query_attention (read so by vLLM
    0.33, models/chatglm.py 61-80).
    """
    kv_heads = "multi_query_group_num:" if reader.config.get("multi_query_attention") is True else ":heads"
    return f"heads=num_attention_heads: kv_heads={kv_heads} head_dim=kv_channels:"


def _codegen(reader: ConfigReader) -> str:
    """modeling_codegen.py 145-160: 4 blocks of q, v and k, a constant of the code."""
    reader.add("chunks", 4, "4 blocks in every model of codegen")
    return (
        "heads=n_head|num_attention_heads:16 hidden=n_embd|hidden_size:4096 kv_heads=:heads head_dim=:hidden/heads "
        "rotary=rotary_dim:64"
    )


MODEL_TYPES: Mapping[str, Callable[[ConfigReader], str]] = {
    "falcon": _falcon,
    "RefinedWeb": _refined_web,
    "RefinedWebModel": _refined_web,
    "gpt_bigcode": _gpt_bigcode,
    "chatglm": _chatglm,
    "codegen": _codegen,
}
"""{model type: what gives its rules}"""


# --- Reading sizes from one config by rules, with the key that said each; `config_facts` says how a rule is written --


OTHERS = re.compile(r"^(num_)?(swa|global|sliding|local|cross)_\w*(heads|head_dim)$|^linear_(num_heads|head_dim)$")
"""Keys for some layers only, beside those for the others."""


class ConfigReader:
    """Takes sizes from a config by their rules."""

    def __init__(self, config: Config, where: str) -> None:
        self.config = config
        self.where = where
        self.sizes: dict[str, int] = {}
        self.said: dict[str, str] = {}

    def take_all(self, rules: str) -> None:
        """Add what the rules of a row give."""
        for rule in rules.split():
            self.take(*rule.split("=", 1))

    def take(self, word: str, rule: str) -> None:
        """Add what a rule gives, if it gives anything."""
        if rule.startswith("*"):
            self.share(word, rule[1:])
            return
        keys, default, null = (*rule.split(":"), "")[:3]
        key, value = self.value(keys)
        if isinstance(value, int) and not isinstance(value, bool):
            self.add(word, value, key)
        elif key and isinstance(value, (str, float, bool)):
            raise LayoutError(f"{self.where}{key} is {value!r:.40}; expected a whole number")
        elif key and value is not None:
            return  # a list with a number for each layer, or another class's form
        elif key and null:
            self.follow(word, null)
        elif not default.isdecimal():
            self.follow(word, default)
        elif not key:
            self.add(word, int(default), f"{keys.partition('|')[0] or word} is absent, and the default")

    def value(self, keys: str) -> tuple[str, object]:
        """The first of some keys that the config has, and its value; LayoutError if two of them differ."""
        found = []
        for key in filter(None, keys.split("|")):
            *steps, last = key.split(".")
            config: object = self.config
            for step in steps:
                config = config.get(step) if isinstance(config, Mapping) else None
            if isinstance(config, Mapping) and last in config:
                found.append((key, config[last]))
        for key, value in found[1:]:
            if value != found[0][1]:
                raise LayoutError(f"{self.where}{found[0][0]} is {found[0][1]!r:.40}, and {key} is {value!r:.40}")
        return found[0] if found else ("", None)

    def follow(self, word: str, expression: str) -> None:
        """A word that is another, or the quotient of two, rounded down as transformers does, where those are known."""
        words = [one for one in expression.split("/") if one]
        if not words or any(one not in self.sizes for one in words):
            return
        size = self.sizes[words[0]]
        if len(words) > 1:
            size //= self.sizes[words[1]]
        if not size:
            return
        self.sizes[word] = size
        self.said[word] = " / ".join(dict.fromkeys(self.said[one] for one in words))

    def add(self, word: str, size: int, source: str) -> None:
        if not 1 <= size <= MAX_SIZE:
            raise LayoutError(f"{self.where}{source} is {size}; expected a number from 1 to {MAX_SIZE}")
        self.sizes[word] = size
        self.said[word] = f"{self.where}{source}"

    def share(self, word: str, default: str) -> None:
        """A share of head_dim, rounded down as transformers does (modeling_rope_utils.py, `int(head_dim * factor)`)."""
        head_dim = self.sizes.get("head_dim")
        default, _, outside = default.partition("@")
        factors = self.factors(outside) or {"the default share": float(default)}
        if head_dim is None or len(set(factors.values())) > 1:
            return
        key, factor = next(iter(factors.items()))
        if 0 < factor <= 1 and (size := int(head_dim * factor)):
            self.sizes[word] = size
            self.said[word] = f"{self.where}{key}, {self.said['head_dim'].removeprefix(self.where)}"

    def drop_unequal(self) -> None:
        """Forget what other layers of the same config have in another number: `swa_num_key_value_heads`."""
        for key, value in self.config.items():
            if not OTHERS.search(key) or not isinstance(value, int):
                continue
            dim = "value_dim" if key.endswith("v_head_dim") else "head_dim"
            word = "kv_heads" if "key_value" in key or "kv" in key else "heads" if key.endswith("heads") else dim
            if self.sizes.get(word, value) != value:
                for one in (word, *(("rotary", "value_dim") if word == "head_dim" else ())):
                    self.sizes.pop(one, None)
                    self.said.pop(one, None)

    def factors(self, outside: str) -> dict[str, float]:
        """The shares that a config says, those for kinds of layers among them."""
        found = {}
        for outer in ("rope_parameters", "rope_scaling"):
            inner = self.config.get(outer)
            if isinstance(inner, Mapping):
                for path, one in [(outer, inner), *((f"{outer}.{k}", v) for k, v in inner.items())]:
                    factor = one.get("partial_rotary_factor") if isinstance(one, Mapping) else None
                    if isinstance(factor, (int, float)) and not isinstance(factor, bool):
                        found[f"{path}.partial_rotary_factor"] = float(factor)
        factor = self.config.get(outside)
        if isinstance(factor, (int, float)) and not isinstance(factor, bool):
            found[outside] = float(factor)
        return found


# --- What is known of one model beside its tensors: its config.json, and what the user says with `--spec` ------------


class KnownModel:
    """The config of a model, and the facts about its modules; it remembers which facts were asked for."""

    def __init__(self, config: Config, spec: Facts = NONE) -> None:
        """`config` is the parsed config.json, empty if there is none."""
        self.config = config
        self.packing = packing_of(config)
        self._spec = spec
        self._towers: dict[tuple[str, str], Facts] = {}
        self._used: dict[tuple[str, int], str] = {}

    def facts(self, name: str) -> Facts:
        """The facts about the module or tensor of a name: of its tower and kind of layer, and of `--spec`."""
        tower = tower_of(name, self.config) if self.config else None
        if tower is None:
            found = self._spec
        else:
            key = tower, families.kind(name, *config_of(self.config, tower))
            if key not in self._towers:
                self._towers[key] = merged(config=from_config(self.config, tower, layers=key[1]), spec=self._spec)
            found = self._towers[key]
        self._used.update({(word, size): found.said[word] for word, size in found.sizes.items()})
        return found

    def check(self, name: str, known: Facts) -> None:
        """LayoutError if facts about a module or tensor contradict those of the config or of `--spec`."""
        found = self.facts(name)
        both = known.sizes.keys() & found.sizes.keys()
        merged(
            Facts({word: known.sizes[word] for word in both}, known.said),
            Facts({word: found.sizes[word] for word in both}, found.said),
        )

    def sizes(self, name: str) -> Mapping[str, int]:
        """The sizes among the facts about a module or tensor."""
        return self.facts(name).sizes

    def said(self, needed: Iterable[tuple[str, int]] | None = None) -> dict[str, str]:
        """{`heads=12`: who said it} of the facts that were asked for, or of those among them that are `needed`."""
        wanted = None if needed is None else set(needed)
        return {
            f"{word}={size}": said
            for (word, size), said in self._used.items()
            if wanted is None or (word, size) in wanted
        }
