"""The installed torch and transformers, which build the model of a config.json: they may be missing, or damaged.

Only `paramtool.torch` knows them: it is imported by its name, where both are installed, and only when somebody asks,
since that takes seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import cast

from paramtool.errors import UsageError
from paramtool.lazy_dataclass import frozen
from paramtool.passes.compat.wanted import Wanted

NEEDED = ("torch", "transformers")


def load() -> ModuleType:
    """`paramtool.torch.transformers_models`; ImportError where a library is missing, or raises something on import.

    A library beside another version of what it needs raises what it likes: OSError without a shared library of CUDA,
    RuntimeError or ValueError beside another NumPy.
    """
    for name in NEEDED:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import_module(name)
        except Exception as error:
            kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
            raise ImportError(f"{name} cannot be imported: {kind}{error}", name=name) from error
    return import_module("paramtool.torch.transformers_models")


def load_if_installed() -> ModuleType | None:
    """The same; None where one is not installed, and also, with a warning, where one cannot be imported."""
    if any(find_spec(name) is None for name in NEEDED):
        return None
    try:
        return load()
    except ImportError as error:
        warnings.warn(f"what the class of a config.json says is left out: {error}", stacklevel=1)
        return None


def wanted(path: str) -> tuple[Mapping[str, Wanted], Mapping[str, Wanted]]:
    """`wanted_from_config` of it: what the model of a config.json wants, and what its files hold if that is other.

    UsageError where torch or transformers cannot be imported; more errors as of `paramtool.torch.names_from_config`.
    """
    try:
        models = load()
    except ImportError as error:
        missing = isinstance(error.__cause__, ModuleNotFoundError)
        hint = f"python -c 'import {error.name}' says the same"
        hint = "pip install 'paramtool[torch]' 'transformers>=5'" if missing else hint
        raise UsageError(
            f"{path}: the model of a config is built with torch and transformers; {error}", hint=hint
        ) from None
    return cast("tuple[Mapping[str, Wanted], Mapping[str, Wanted]]", models.wanted_from_config(path))


# --- The names, shapes and ties of the model of a config.json, for the commands that ask for them ---------------------


Shapes = Mapping[str, tuple[int, ...] | None]
"""{name: shape}; None where any will do."""


@frozen
class NamedShapes:
    """The names of a model as its state dict or its files have them."""

    shapes: Shapes
    ties: Mapping[str, str]
    """{name: the first of the names that are one tensor}."""


@frozen
class ConfigModel:
    """What the model of a config.json holds."""

    config: str
    """The path of the config.json."""
    own: NamedShapes
    """As its state dict has them."""
    saved: NamedShapes | None
    """As save_pretrained writes them; None where that makes no difference."""


def model_of(path: str) -> ConfigModel:
    """The model of a config.json, which transformers builds on the meta device.

    UsageError where it or torch cannot be imported; more errors as of `paramtool.torch.names_from_config`.
    """
    both = wanted(path)
    own, saved = (
        {name: (one.view.shape, one.alias_set) for name, one in found.items() if one.view is not None} for found in both
    )
    named = [
        NamedShapes({n: shape for n, (shape, _) in found.items()}, {n: tie for n, (_, tie) in found.items()})
        for found in (own, saved)
    ]
    return ConfigModel(path, named[0], named[1] if saved else None)
