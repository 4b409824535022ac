"""config.json as transformers writes it: strict JSON, of which only what is said of ties is looked at.

    {"model_type": "llava", "tie_word_embeddings": false,
     "text_config": {"model_type": "llama", "tie_word_embeddings": false}, ...}

transformers 5 reads the setting of the class that has both ends, mostly the outermost; transformers 4 reads that of
`text_config` (PreTrainedConfig.get_text_config).  Both are written and differ in the configs that transformers 5 itself
writes for 20 of its model types by default, so that the outer one counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from paramtool.errors import FormatError, UsageError
from paramtool.formats import strict_json
from paramtool.formats.files import is_folder
from paramtool.model.config import SHARE, SIDES, TEXT, WORDS, Config

NAME = "config.json"
MAX_NBYTES = 16 << 20
"""Real ones have kilobytes; those with many labels a few hundred."""
MAX_DEPTH = 8
NESTED = ("decoder", "encoder", "generator", "text_encoder")
"""Nested configs whose names do not end in `_config`."""


def place(path: str, given: str = "") -> str:
    """The config of a checkpoint: the one that was given, or the one in its folder; UsageError where there is none."""
    folder = given or (path if is_folder(path) else os.path.dirname(path))
    found = os.path.join(folder, NAME) if not given or is_folder(given) else given
    if not os.path.exists(found):
        raise UsageError(
            f"{found}: is not there; a config says which names a model ties",
            hint="" if given else "--config PATH names one that stands elsewhere",
        )
    return found


def read(path: str) -> Config:
    """What a config says of ties; FormatError where it is damaged, or says two things of one tie."""
    config = whole(path)
    said: dict[str, bool] = {}
    types: dict[str, str] = {}
    for prefix, one in _configs(path, config, "", 0):
        for key in (WORDS, SIDES, SHARE):
            if key in one:
                said[_joined(prefix, key)] = _truth(path, _joined(prefix, key), one[key])
        if isinstance(model_type := one.get("model_type"), str):
            types[prefix] = model_type
        elif model_type is not None:
            raise FormatError(f"{path}: {_joined(prefix, 'model_type')!r} is {_kind(model_type)}; expected a text")
    found = Config(path, said, types)
    _agree(found)
    return found


def whole(path: str) -> dict[str, Any]:
    """All that a config holds; FormatError where it is damaged."""
    config, _ = strict_json.strict_file(path, "a config", MAX_NBYTES)
    if not isinstance(config, dict):
        raise FormatError(f"{path}: holds {_kind(config)}; expected an object, as transformers writes it")
    return config


def _configs(path: str, config: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A config and those nested in it, each with its path."""
    yield prefix, config
    if depth == MAX_DEPTH:
        return
    for key, value in config.items():
        if key in TEXT and value is not None and not isinstance(value, dict):
            raise FormatError(f"{path}: {_joined(prefix, key)!r} is {_kind(value)}; expected an object")
        if isinstance(value, dict) and (key.endswith("_config") or key in NESTED):
            yield from _configs(path, value, _joined(prefix, key), depth + 1)


def _joined(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _truth(path: str, key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise FormatError(f"{path}: {key!r} is {_kind(value)}; expected true or false")
    return value


def _kind(value: object) -> str:
    """A value for a message: short texts and numbers as they are."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return "null" if value is None else f"{value!r:.40}"


def _agree(config: Config) -> None:
    """FormatError where two settings say different things of one tie."""
    said = config.said
    if said.get(SIDES) and said.get(SHARE) is False:
        raise _contradiction(config, SIDES, SHARE, "a decoder that is its encoder has the encoder's embeddings")


def _contradiction(config: Config, a: str, b: str, why: str) -> FormatError:
    shown = [f"{key!r} is {str(config.said[key]).lower()}" for key in (a, b)]
    return FormatError(
        f"{config.path}: contradicts itself: {shown[0]} and {shown[1]}; {why}",
        hint="make the two the same, as the weights are meant; --config PATH names an edited copy",
    )
