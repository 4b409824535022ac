"""config.json as transformers writes it: strict JSON, read only for its settings of ties.

    {"model_type": "llava", "tie_word_embeddings": false,
     "text_config": {"model_type": "llama", "tie_word_embeddings": false}, ...}

transformers 5 reads the setting of the class that has both ends of a tie, usually the outermost; transformers 4 reads
that of `text_config` (PreTrainedConfig.get_text_config).  For 20 of its model types, the configs that transformers 5
writes by default have both settings, with different values.  The outer setting is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from paramtool.errors import FormatError, NoSuchFileError, UsageError
from paramtool.formats import strict_json
from paramtool.formats.files import is_folder
from paramtool.model.config import NONE, SHARE, SIDES, TEXT, WORDS, Config, given

NAME = "config.json"
QUANTISATION = "hf_quant_config.json"
"""ModelOpt's file beside it, which says how the weights are quantised."""
ALONE = ("quantize_config.json", "quant_config.json")
"""Files of settings of codes alone: AutoGPTQ's, and AutoAWQ's before 0.1.5."""
MAX_NBYTES = 16 << 20
"""The largest config; real ones have kilobytes, with many labels a few hundred."""
MAX_DEPTH = 8
T = TypeVar("T")
NESTED = ("decoder", "encoder", "generator", "text_encoder")
"""Nested configs whose names do not end in `_config`."""


def beside(path: str) -> str:
    """The path of the config of a file or a folder: the one that was given, else the one beside it; empty if none."""
    found = given() or (path if is_folder(path) else os.path.dirname(path))
    if found == NONE:
        return ""
    found = os.path.join(found, NAME) if not given() or is_folder(found) else found
    if given() and not os.path.exists(found):
        raise NoSuchFileError(found, "no such file; expected the config.json of a model, or a folder with one")
    return found if os.path.lexists(found) else ""


def read_beside(path: str, reader: Callable[[str], T]) -> tuple[T | None, str]:
    """The config of a file or a folder, as `reader` gives it; None, and why, where the one beside it cannot be read.

    FormatError if it was given.
    """
    found = beside(path)
    try:
        return (reader(found) if found else None), ""
    except FormatError as error:
        if given():
            raise
        return None, f"{error.message}; it was not used"


def place(path: str, hint: str = "--config PATH gives a config that is elsewhere") -> str:
    """The same; UsageError with the hint if there is none."""
    if found := beside(path):
        return found
    place = os.path.join(path if is_folder(path) else os.path.dirname(path), NAME)
    why = f"{place}: no such file" if not given() else f"{path}: its config is left out ({NONE})"
    raise UsageError(f"{why}; a config says which names a model ties", hint)


def read(path: str) -> Config:
    """What a config says about ties; FormatError if it is damaged or contradicts itself."""
    config = whole(path)
    said: dict[str, bool] = {}
    types: dict[str, str] = {}
    for prefix, one in _configs(path, config, "", 0):
        for key in (WORDS, SIDES, SHARE):
            if key in one:
                value = one[key]
                if not isinstance(value, bool):
                    raise FormatError(f"{path}: {_joined(prefix, key)!r} is {_kind(value)}; expected true or false")
                said[_joined(prefix, key)] = value
        if isinstance(model_type := one.get("model_type"), str):
            types[prefix] = model_type
        elif model_type is not None:
            raise FormatError(f"{path}: {_joined(prefix, 'model_type')!r} is {_kind(model_type)}; expected a string")
    classes = config.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else None
    if said.get(SIDES) and said.get(SHARE) is False:
        raise FormatError(
            f"{path}: contradicts itself: {SIDES!r} is true and {SHARE!r} is false; a decoder that shares its encoder "
            "has the encoder's embeddings",
            hint="give both settings the value that the weights have; inspect --config PATH reads an edited copy",
        )
    return Config(path, said, types, name if isinstance(name, str) else "")


def whole(path: str) -> dict[str, Any]:
    """The whole content of a config; FormatError if it is damaged."""
    try:
        config, _ = strict_json.strict_file(path, "a config", MAX_NBYTES)
    except FormatError as error:
        error.hint = error.hint or AGAIN
        raise
    if not isinstance(config, dict):
        raise FormatError(f"{path}: holds {_kind(config)}; expected an object, as transformers writes it", hint=AGAIN)
    return config


AGAIN = "copy or download the model's config.json again"


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


def _kind(value: object) -> str:
    """A value for a message: short strings and numbers as they are."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return "null" if value is None else f"{value!r:.40}"
