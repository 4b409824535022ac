"""The names, shapes and ties of the model of a config.json, for the commands that ask for them."""

from __future__ import annotations

from collections.abc import Mapping

from paramtool.commands import models_of_transformers
from paramtool.lazy_dataclass import frozen

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
    both = models_of_transformers.wanted(path)
    own, saved = (
        {name: (one.view.shape, one.alias_set) for name, one in wanted.items() if one.view is not None}
        for wanted in both
    )
    named = [
        NamedShapes({n: shape for n, (shape, _) in found.items()}, {n: tie for n, (_, tie) in found.items()})
        for found in (own, saved)
    ]
    return ConfigModel(path, named[0], named[1] if saved else None)
