"""Makes paramtool/model/ties.json: which names the classes of the installed transformers tie, and by default.

python docs/make_tie_table.py > paramtool/model/ties.json

Each class is built on the meta device, with two layers, a config that ties, and otherwise the defaults.  Where files of
save_pretrained have other names than the model, the class has a row for these, too.  Ties whose names depend on the
config, such as those of layers, are left out: all that have a number, but for those of a first layer alone, which are
the same with three layers.  `lacking` has the classes of which some are left out, and those that were not built.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from paramtool.torch._saved_names import saved_names

LAYERS = (
    "num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers", "num_decoder_layers", "depth",
)  # fmt: skip
"""What the configs of different models call the number of their layers."""


def defaults() -> dict[str, bool]:
    """{model type: the default of `tie_word_embeddings`}."""
    found = {}
    for model_type in sorted(CONFIG_MAPPING_NAMES):
        try:
            value = getattr(CONFIG_MAPPING[model_type](), "tie_word_embeddings", None)
        except Exception as error:  # a few want arguments, or a library that is not there
            print(f"{model_type}: {type(error).__name__}", file=sys.stderr)
            continue
        if isinstance(value, bool):
            found[model_type] = value
    return found


def models() -> Iterator[type[Any]]:
    """Every class of models of transformers."""
    for name in dir(transformers):
        try:
            found = getattr(transformers, name)
        except Exception:  # wants a library that is not there
            continue
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) and found.config_class:
            yield found


def configs(config: Any) -> Iterator[Any]:
    """A config and those in it."""
    yield config
    for value in vars(config).values():
        if isinstance(value, transformers.PretrainedConfig):
            yield from configs(value)


def built(cls: type[Any], layers: int) -> Any:
    """A model that ties what it can, without bytes; with 0 `layers`, as many as usual."""
    config = cls.config_class()
    for one in configs(config):
        one.tie_word_embeddings = True
        for key in LAYERS if layers else ():
            if isinstance(vars(one).get(key), int):
                setattr(one, key, min(layers, getattr(one, key)))
        if layers and isinstance(vars(one).get("layer_types"), list):
            one.layer_types = one.layer_types[:layers]
    with torch.device("meta"):
        return cls(config)


def ties(cls: type[Any]) -> tuple[list[dict[str, str]], bool]:
    """{name: the name that it is tied to} of a model, and the same of its files, where these have other names.

    And whether these are all of its ties.
    """
    for layers in (2, 0):
        try:
            model = built(cls, layers)
            break
        except Exception as error:  # a few want settings, or a library that is not there
            print(f"{cls.__name__}: {type(error).__name__}: {str(error)[:80]!r}", file=sys.stderr)
    else:
        static = getattr(cls, "_tied_weights_keys", None)
        found = dict(static) if isinstance(static, dict) else {}
        kept = {n: first for n, first in found.items() if is_plain(n) and n.endswith(("weight", "bias"))}
        return [kept], bool(found) and kept == found
    found = model.get_expanded_tied_weights_keys(all_submodels=True)
    more = built(cls, layers + 1).get_expanded_tied_weights_keys(all_submodels=True) if layers else {}
    is_first = found == more and not any(numbers(name) - {"0"} for tie in found.items() for name in tie)
    kept = {n: first for n, first in found.items() if is_first or not numbers(n) | numbers(first)}
    kept = {name: first for name, first in kept.items() if is_plain(name) and is_plain(first)}
    own = {name: torch.empty(2, 2, device="meta") for name in (*kept, *kept.values())}
    names, _ = saved_names(model, own)
    saved = {names.get(name, name): names.get(first, first) for name, first in kept.items()}
    return [kept] if saved == kept else [kept, saved], kept == found


def is_plain(name: str) -> bool:
    """Whether a name is that of a tensor, and no pattern."""
    return all(word.isidentifier() or word.isdecimal() for word in name.split("."))


def numbers(name: str) -> set[str]:
    """The numbers in a name, such as those of layers."""
    return {word for word in name.split(".") if word.isdecimal()}


def text() -> str:
    """The table, as paramtool/model/config.py reads it."""
    found = defaults()
    classes: dict[str, list[str]] = {}
    lacking = []
    for cls in models():
        rows, is_whole = ties(cls)
        for one in filter(None, rows):
            classes.setdefault(json.dumps(one), []).append(cls.__name__)
        if not is_whole:
            lacking.append(cls.__name__)
    made: Mapping[str, Any] = {
        "version": ".".join(transformers.__version__.split(".")[:2]),
        **{
            word: [model_type for model_type, default in found.items() if default is value]
            for word, value in (("tied", True), ("untied", False))
        },
        # {name: the name that it is tied to}, and the classes that tie so
        "classes": [[json.loads(one), names] for one, names in sorted(classes.items())],
        "lacking": lacking,
    }
    # a line for each list and each row
    rows = ",\n".join(f"  {json.dumps(row)}" for row in made["classes"])
    lines = [f' "{key}": {json.dumps(one)}' for key, one in made.items() if key != "classes"]
    return "{\n" + ",\n".join([*lines, f' "classes": [\n{rows}\n ]']) + "\n}\n"


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    print(text(), end="")
