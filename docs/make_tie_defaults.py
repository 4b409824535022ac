"""Makes paramtool/passes/config_ties/defaults.json: what the installed transformers takes for `tie_word_embeddings`.

python docs/make_tie_defaults.py > paramtool/passes/config_ties/defaults.json
"""

from __future__ import annotations

import json
import sys

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES


def defaults() -> dict[str, bool]:
    """{model type: the default}."""
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


def text() -> str:
    """The table, as paramtool/passes/config_ties/declared.py reads it."""
    found = defaults()
    made = {
        "version": ".".join(transformers.__version__.split(".")[:2]),
        **{
            word: [model_type for model_type, default in found.items() if default is value]
            for word, value in (("tied", True), ("untied", False))
        },
    }
    return json.dumps(made, indent=1) + "\n"


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    print(text(), end="")
