"""Makes paramtool/passes/config_ties/_defaults.py: what the installed transformers takes for `tie_word_embeddings`.

python docs/make_tie_defaults.py > paramtool/passes/config_ties/_defaults.py
"""

from __future__ import annotations

import sys
import textwrap

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

HEAD = '''"""The default of `tie_word_embeddings` for each model type, in transformers {version}.

Made by docs/make_tie_defaults.py: the value in a config of each class of `CONFIG_MAPPING`, made without arguments.
Model types whose configs have no such setting, or cannot be made without arguments, are in neither set.
"""

VERSION = "{version}"
"""The version of transformers."""
'''


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
    """The module."""
    version = ".".join(transformers.__version__.split(".")[:2])
    parts = [HEAD.format(version=version)]
    found = defaults()
    for name, value in (("TIED", True), ("UNTIED", False)):
        words = " ".join(model_type for model_type, default in found.items() if default is value)
        lines = textwrap.fill(words, 116, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
        parts.append(f'_{name} = """\n{lines}\n"""\n{name} = frozenset(_{name}.split())\n')
    return "".join(parts)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    print(text(), end="")
