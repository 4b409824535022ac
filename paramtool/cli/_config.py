"""The names of the model of a config.json, for the commands that ask for them."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from paramtool.errors import UsageError
from paramtool.formats.hf_config import NAME


def asked(config: str, path: str) -> str:
    """The config.json that a flag names, a folder's or a file, or the one beside a checkpoint."""
    return config if os.path.isfile(config) else _beside(config or path)


def _beside(path: str) -> str:
    """The config.json of a folder, or the one beside a file."""
    return os.path.join(path if os.path.isdir(path) else os.path.dirname(path), NAME)


def names_of(path: str) -> dict[str, dict[str, Any]]:
    """{name: shape} and {name: first name of its alias set} of the model of a config.

    `saved_names` and `saved_ties` are those that save_pretrained writes, empty where these are the same.  Only
    `paramtool.torch` knows torch: it is imported by its name, when it is asked for.
    """
    try:
        both = import_module("paramtool.torch.transformers_models").wanted_from_config(path)
    except ImportError as error:
        raise UsageError(f"{path}: a model is built by torch and transformers: {error}",
                         hint="pip install 'paramtool[torch]' transformers") from None  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for which, wanted in zip(("", "saved_"), both, strict=True):
        tensors = {name: one for name, one in wanted.items() if one.view is not None}
        found[f"{which}names"] = {name: one.view.shape for name, one in tensors.items()}
        found[f"{which}ties"] = {name: one.alias_set for name, one in tensors.items()}
    return found
