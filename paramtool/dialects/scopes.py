"""Which rules a model of transformers has: its own, and those of the models that are parts of it.

The table (tables/transformers_5_24.json) is made by docs/make_dialects.py from transformers' source and classes.
Which part's rules apply is decided as `get_model_conversion_mapping` does (conversion_mapping.py of 5.23.0, line 2630).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from paramtool.dialects.renaming import NameRule, from_table
from paramtool.errors import LayoutError
from paramtool.package_data import package_data
from paramtool.parts.families import Config

TABLE = "transformers_5_24.json"


@cache
def table() -> Mapping[str, Any]:
    """The generated table: `version`, `rules`, `aliases`, `autos`, `classes`, `names`, `unbuilt`."""
    found: dict[str, Any] = json.loads(package_data("dialects", "tables", TABLE))
    found["classes"] = {name: row for names, row in found["classes"].items() for name in names.split()}
    return found


def version() -> str:
    """Of transformers, which the table speaks for."""
    return str(table()["version"])


@cache
def under(key: str) -> tuple[NameRule, ...] | None:
    """The rules of a class or a model type; None where it has none."""
    rows = table()["rules"].get(table()["aliases"].get(key, key))
    return None if rows is None else tuple(from_table(row, key) for row in rows)


class ModelPart(NamedTuple):
    """A model, or a model that is a part of one."""

    path: str
    name: str
    """Of its class."""
    model_type: str
    config: Config


def modules(config: Config) -> Iterator[ModelPart]:
    """The model of a config.json and its parts, each before its own parts; LayoutError where it is not known."""
    name = architecture(config)
    known = table()["classes"]
    if not known.get(name, ("", ""))[1]:  # those without a model type are only parts of others
        raise LayoutError(
            f"config.json: {name!r} is not a model of transformers {version()}",
            hint="the names and tensors of the two dialects are known for its models alone",
        )
    if name in table()["unbuilt"]:
        raise LayoutError(f"config.json: which models are parts of {name!r} is not in the table for {version()}")
    yield from _inside(ModelPart("", name, str(config.get("model_type") or known[name][1]), config))


def architecture(config: Config) -> str:
    """`architectures[0]`; LayoutError where a config does not say it."""
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    is_there = "architectures" in config
    found = f"{json.dumps(names):.60}; expected a list of strings" if is_there else "missing"
    verb, where = ("write", "into") if is_there else ("add", "to")
    raise LayoutError(
        f"config.json does not say which model it is of: `architectures` is {found}",
        hint=f'{verb} "architectures": ["LlamaForCausalLM"], with the name of the class, {where} a copy of it',
    )


def _inside(module: ModelPart) -> Iterator[ModelPart]:
    yield module
    classes = table()["classes"]
    _, usual, *parts = classes.get(module.name, ("", ""))
    for path, name, key, model_type in parts:
        config: Any = module.config
        for step in filter(None, key.split(".")):
            config = config.get(step) if isinstance(config, Mapping) else None
        config = config if isinstance(config, Mapping) else {}
        if key:
            model_type = str(config.get("model_type") or model_type)
        elif model_type == usual:  # made of its parent's config, whatever type that is of
            model_type = module.model_type
        if name.startswith("@"):
            name = table()["autos"][name[1:]].get(model_type, "")
            if not name:
                continue  # a model that transformers does not have: no rules are known
        yield from _inside(ModelPart(f"{module.path}.{path}".removeprefix("."), name, model_type, config))


def rules(config: Config) -> list[NameRule]:
    """All rules of the model of a config.json, in their order; LayoutError where the model is not known."""
    found: list[NameRule] = []
    seen: dict[str, list[str]] = {}
    prefix = ""

    def covered(key: str, path: str) -> bool:
        return any(one == "" or path.startswith(f"{one}.") for one in seen.get(key, ()))

    for module in modules(config):
        if not module.path:
            prefix = table()["classes"][module.name][0]
        if covered(module.name, module.path):
            continue
        own = under(module.name)
        by_class = own is not None
        if own is None and not covered(module.model_type, module.path):
            own = under(module.model_type)
        if own is None:
            continue
        scope = module.path.removeprefix(prefix).removeprefix(".") if module.path else None
        found += [replace(rule, scope=scope, base=prefix, config=module.config) for rule in own]
        seen.setdefault(module.name, []).append(module.path)
        if not by_class:
            seen.setdefault(module.model_type, []).append(module.path)
    return found


WORDS_OF_MANY = frozenset(["", "backbone", "encoder", "decoder", "text_model", "vision_model", "audio_model",
                           "language_model", "vision_encoder"])  # fmt: skip
"""Names of base models that are those of parts of other models, too."""


def foreign_word(names: Iterable[str], config: Config) -> tuple[str, str]:
    """(the word that names begin with, the one that the class has instead), where they are those of another model.

    Empty words where that cannot be told.  The word is that of a base model, `base_model_prefix` of its class.

    >>> llama = {"architectures": ["LlamaForCausalLM"]}
    >>> foreign_word(["gpt_neox.layers.0.attention.dense.weight"], llama)
    ('gpt_neox', 'model')
    >>> foreign_word(["model.layers.0.mlp.down_proj.weight", "lm_head.weight"], llama)
    ('', '')
    """
    classes = table()["classes"]
    name = architecture(config)
    own, _, *parts = classes.get(name, ("", ""))
    first = Counter(one.partition(".")[0] for one in names)
    inside = {own.partition(".")[0], *(path.partition(".")[0] for path, *_ in parts)}
    if own in WORDS_OF_MANY or not first or not inside.isdisjoint(first):
        return "", ""
    word, count = first.most_common(1)[0]
    is_base = word not in WORDS_OF_MANY and any(word == one[0] for one in classes.values())
    return (word, own) if is_base and 2 * count > first.total() else ("", "")


_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def template(name: str) -> str:
    """A name with `#` for each number between dots: `layers.#.norm.weight`."""
    return _NUMBER.sub("#", name)


def names(architecture: str) -> Mapping[str, str]:
    """{what the rules give: what the model has}, as templates, where transformers goes by the names of the model.

    A name that the model has is not renamed, and the prefix of the base model comes or goes as the model has it
    (rename_source_key, core_model_loading.py 1590; convert_and_load_state_dict_in_model, 1740).
    """
    found: Mapping[str, str] = table()["names"].get(architecture, {})
    return found


def as_named(name: str, names: Mapping[str, str]) -> str:
    """A name as the model has it."""
    new = names.get(template(name))
    if new is None:
        return name
    numbers = iter(_NUMBER.findall(name))
    return re.sub("#", lambda _: next(numbers), new)


def legacy() -> list[NameRule]:
    """Rules for names of old files, whichever model they are of; they are never undone."""
    return list(under("legacy") or ())
