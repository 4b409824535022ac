"""Makes paramtool/parts/config_keys.json: which keys of a config.json say how many heads a model has, by transformers.

python docs/make_config_keys.py > paramtool/parts/config_keys.json

Each model of the installed transformers is built on the meta device, from its default config and from configs with
other numbers of heads, with keys left out and with keys that are null.  A rule is kept if it gives what the modules
really have in every one of them; a word without such a rule is left out, and reported on stderr.  Takes 15 minutes.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from paramtool.errors import ParamtoolError
from paramtool.parts import config_facts
from paramtool.parts.config_facts import MODEL_TYPES, ConfigReader
from tests.oracles.attention_sizes import Observed, observations

KEYS = {
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "encoder_attention_heads",
              "num_encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "attn_config.kv_n_heads",
                 "num_key_value_attention_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "d_kv", "attention_head_size", "dim_head", "attention_head_dim", "kv_channels", "d_head",
                 "head_size", "attention_key_size"),
    "value_dim": ("v_head_dim", "value_head_dim"),
    "hidden": ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "hidden_dim", "emb_dim", "embedding_dim",
               "d_embed", "encoder_hidden_size", "width", "model_dim"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "ffn_config.moe_num_experts",
                "num_moe_experts"),
    "nope": ("qk_nope_head_dim",), "rope": ("qk_rope_head_dim",),
    "linear_key_heads": ("linear_num_key_heads",), "linear_value_heads": ("linear_num_value_heads",),
    "linear_key_dim": ("linear_key_head_dim",), "linear_value_dim": ("linear_value_head_dim",),
    "state_heads": ("mamba_n_heads", "num_heads", "mamba_num_heads", "n_mamba_heads"),
    "state_dim": ("mamba_d_head", "head_dim", "mamba_head_dim", "mamba_headdim"),
    "groups": ("mamba_n_groups", "n_groups", "mamba_ngroups"),
    "state": ("mamba_d_state", "state_size", "ssm_state_size"),
}  # fmt: skip
"""{word: keys that may say it, the first of which is preferred}."""
SIDED = {
    "heads": "{}_attention_heads {}_num_attention_heads num_{}_attention_heads {}_num_heads num_{}_heads",
    "kv_heads": "{}_num_key_value_heads {}_key_value_heads {}_kv_heads", "head_dim": "{}_head_dim",
    "hidden": "{}_hidden_size {}_hidden_dim {}_embed_dim",
}  # fmt: skip
"""The same, for one half of a model."""
WITHOUT = {"kv_heads": (":heads", ":1"), "head_dim": (":hidden/heads",), "value_dim": (":head_dim",)}
"""Rules without a key."""
ORDER = ("heads", "kv_heads", "hidden", "head_dim", "value_dim", "rotary", "experts")
IMPLIED = {"value_dim": ":head_dim"}
"""Rules that every row has."""


def rules(word: str, side: str, config: Mapping[str, Any], mapped: Mapping[str, str]) -> Iterator[str]:
    """The rules that could give a word for a class whose default config this is."""
    if word == "rotary":
        yield ":head_dim"
        if isinstance(size := _at(config, "rotary_dim"), int):
            yield f"rotary_dim:{size}"
        for share in (1.0, 0.5, 0.25, 0.75, 0.4, 0.2, 0.1, 0.334):
            yield from (f"*{share}{outside}" for outside in ("@partial_rotary_factor", "@rotary_pct", ""))
        return
    keys = [*(SIDED.get(word, "").format(*[side] * 9).split() if side else ()), *KEYS.get(word, ())]
    for key in keys:
        absent = _at(config, key)
        if absent is _MISSING:
            if key == "head_dim" == word:  # a field that many modules look for, and their config classes lack
                yield f"{key}:hidden/heads"
            continue
        names = "|".join(
            [key, *(name for name, to in mapped.items() if to == key and not (side and name in KEYS["heads"]))]
        )
        yield from (f"{names}{default}" for default in WITHOUT.get(word, ()))
        if isinstance(absent, int) and not isinstance(absent, bool):
            yield f"{names}:{absent}"
            yield from (f"{names}:{absent}{default}" for default in WITHOUT.get(word, ()))
        if word not in WITHOUT:
            yield f"{names}:"
    yield from WITHOUT.get(word, ())


_MISSING = object()


def _at(config: Any, path: str) -> Any:
    for step in path.split("."):
        if not isinstance(config, Mapping) or step not in config:
            return _MISSING
        config = config[step]
    return config


def row(found: list[Observed], side: str) -> dict[str, str]:
    """The rules that hold in all observations of a model type, {word: rule}."""
    cls = classes()[found[0].model_type]
    default = json.loads(cls().to_json_string()) if cls is not None else dict(found[0].config)
    mapped = getattr(cls, "attribute_map", {})
    seen = {word for one in found for word in one.sizes}
    words = [*ORDER, *sorted(seen - set(ORDER))]
    chosen: dict[str, str] = {}
    attention = [("heads", "kv_heads", "hidden", "head_dim", "value_dim")]
    for group in [*attention, *((word,) for word in words if word not in attention[0])]:
        if not seen & set(group):
            continue
        best: dict[str, str] = {}
        options = [[*rules(word, side, default, mapped), ""] if word in {*seen, "hidden"} else [""] for word in group]
        for choice in itertools.islice(itertools.product(*options), 4000):
            rule = {word: one for word, one in zip(group, choice, strict=True) if one}
            if len(rule) > len(best) and all(holds({**chosen, **rule}, one, group) for one in found):
                best = rule
                if len(best) == len([option for option in options if len(option) > 1]):
                    break
        chosen |= best
        for word in seen & set(group):
            if word not in best:
                print(f"{found[0].model_type} {side}: no rule for {word}", file=sys.stderr)
    for word in set(chosen) - seen - ({"hidden"} if "hidden" in chosen.get("head_dim", "") else set()):
        del chosen[word]
    return chosen if set(chosen) - {"hidden"} else {}


def holds(rule: Mapping[str, str], one: Observed, words: tuple[str, ...]) -> bool:
    """Whether rules give what was observed.

    A head_dim that a class does not know reaches its rotary positions all the same, and not its attention.
    """
    if words == ("rotary",) and one.change == "head_dim added":
        return True
    reader = ConfigReader(one.config, "")
    try:
        for word, text in rule.items():
            reader.take(word, text)
    except ParamtoolError:
        return one.change == "head_dim added"  # both keys of one size, with different numbers: refused
    return all(reader.sizes.get(word) == one.sizes[word] for word in words if word in one.sizes and word in rule)


def classes() -> dict[str, Any]:
    """{model type: its config class}, those of nested configs among them."""
    if not _CLASSES:
        for model_type in sorted(CONFIG_MAPPING_NAMES):
            _add(CONFIG_MAPPING[model_type])
    return _CLASSES


_CLASSES: dict[str, Any] = {}


def _add(cls: Any) -> None:
    if cls.model_type and cls.model_type not in _CLASSES:
        try:
            cls()
        except Exception:
            return
        _CLASSES[cls.model_type] = cls
    for inner in (cls.sub_configs or {}).values():
        if inner is not transformers.AutoConfig:
            _add(inner)


def towers(model_type: str) -> dict[str, str]:
    """{key of a nested config: the model type that it has where it does not say one, after < if it may be flat}."""
    cls = classes().get(model_type)
    if cls is None:
        return {}
    found = {}
    for key, kind in (cls.sub_configs or {}).items():
        inner = _made(cls, {key: {}}, key) or _made(cls, {}, key)
        name = inner.model_type if inner is not None else "" if kind is transformers.AutoConfig else kind.model_type
        if not name:
            continue
        flat = _made(cls, {"num_attention_heads": 2, "hidden_size": 66, "num_hidden_layers": 3}, key)
        is_flat = flat is not None and getattr(flat, "hidden_size", 0) == 66
        found[key] = f"<{name}" if is_flat else name
    return found


def _made(cls: Any, config: dict[str, Any], key: str) -> PreTrainedConfig | None:
    try:
        inner = getattr(cls.from_dict(config), key, None)
    except Exception:
        return None
    return inner if isinstance(inner, PreTrainedConfig) else None


def text(found: Mapping[str, dict[str, str]], nested: Mapping[str, dict[str, str]]) -> str:
    version = ".".join(transformers.__version__.split(".")[:2])
    by_rule: dict[str, list[str]] = defaultdict(list)
    for name, rule in found.items():
        words = sorted(rule, key=lambda word: (ORDER.index(word) if word in ORDER else len(ORDER), word))
        by_rule[" ".join(f"{word}={rule[word]}" for word in words if IMPLIED.get(word) != rule[word])].append(name)
    by_tower: dict[str, list[str]] = defaultdict(list)
    for name, keys in nested.items():
        by_tower[" ".join(f"{key}={value}" for key, value in keys.items())].append(name)
    made = {
        "version": version,
        "rows": dict(sorted(by_rule.items(), key=lambda item: item[1])),
        "towers": dict(sorted(by_tower.items(), key=lambda item: item[1])),
    }
    return json.dumps(made, indent=1) + "\n"


def table(seen: Iterable[Observed]) -> dict[str, dict[str, str]]:
    """{model type, with a half or a tower of another before it where these have rules of their own: rules}."""
    alone: dict[str, list[Observed]] = defaultdict(list)
    inside: dict[str, dict[str, list[Observed]]] = defaultdict(lambda: defaultdict(list))
    for one in seen:
        if not one.model_type or one.model_type in MODEL_TYPES:
            continue
        if one.tower and one.tower.split(".")[-1] not in config_facts.SIDES:
            inside[one.model_type][f"{_outer(one)}>{one.tower.split('.')[-1]}>{one.model_type}"].append(one)
        else:
            alone[one.model_type].append(one)
    found: dict[str, dict[str, str]] = {}
    for model_type in sorted({*alone, *inside}):
        towers_of = inside[model_type]
        first = alone[model_type] or [one for some in towers_of.values() for one in some]
        own = of_type(model_type, first)
        if not own and not alone[model_type]:
            first = max(towers_of.values(), key=len)
            own = of_type(model_type, first)
        found |= own
        for path, some in towers_of.items():
            if some is not first and not all(_holds_all(own, model_type, one) for one in some):
                special = of_type(path, some)
                found |= special or {path: {}}
                print(f"{path}: rules of its own", file=sys.stderr)
    return found


def pruned(rows: dict[str, dict[str, str]], seen: Iterable[Observed]) -> None:
    """Take out of rows what is wrong for any observation, as it is read in the end."""
    seen = list(seen)
    for one in seen:
        if not any(key in rows for key in (one.model_type, f"{one.model_type}/{one.side}")):
            rows.setdefault(one.model_type, {})  # a type that is known, and says nothing
    config_facts.ROWS.clear()
    config_facts.ROWS.update(
        {key: " ".join(f"{word}={rule}" for word, rule in row.items()) for key, row in rows.items()}
    )
    for one in seen:
        tower = ".".join(filter(None, [one.tower or "", one.side]))
        whole = one.whole if one.tower is not None else one.config
        key = config_facts.row_of(whole, tower)
        try:
            known = config_facts.from_config(whole, tower).sizes
        except ParamtoolError:
            continue
        wrong = {word for word, size in one.sizes.items() if known.get(word, size) != size}
        if one.change == "head_dim added":
            wrong -= {"rotary"}
        if wrong & {"head_dim", "value_dim"}:
            wrong |= {"head_dim", "rotary"}
        if gone := wrong & rows.get(key, {}).keys():
            print(f"{key}: {', '.join(sorted(gone))} wrong in {one.architecture} {one.change}", file=sys.stderr)
            rows[key] = {word: rule for word, rule in rows[key].items() if word not in gone}
            config_facts.ROWS[key] = " ".join(f"{word}={rule}" for word, rule in rows[key].items())


def _outer(one: Observed) -> str:
    """The model type of the config that a tower's config is in."""
    config: Any = one.whole
    model_type = one.architecture
    for step in str(one.tower).split(".")[:-1]:
        config = config[step]
        model_type = config.get("model_type", "") or classes()[model_type].sub_configs[step].model_type
    return model_type


def _holds_all(own: Mapping[str, dict[str, str]], model_type: str, one: Observed) -> bool:
    """Whether the rules of a model type give nothing wrong for an observation."""
    rule = own.get(f"{model_type}/{one.side}") or own.get(model_type) or {}
    return all(holds(rule, one, (word,)) for word in one.sizes)


def of_type(name: str, found: list[Observed]) -> dict[str, dict[str, str]]:
    """The rules for a model type, or for each half of it where they differ."""
    whole = row(found, "")
    sides = {one.side for one in found} - {""}
    if ("heads" in whole and "head_dim" in whole) or not sides:
        return {name: whole} if whole else {}
    halves = {side: row([one for one in found if one.side == side], side) for side in sorted(sides)}
    if all("heads" in half for half in halves.values()):
        return {f"{name}/{side}": half for side, half in halves.items()}
    return {name: whole} if whole else {}


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    seen = list(observations(progress=True))
    rows = table(seen)
    pruned(rows, seen)
    nested = {name: keys for name in sorted(classes()) if (keys := towers(name))}
    print(text(rows, nested), end="")


if __name__ == "__main__":
    main()
