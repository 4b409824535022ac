"""transformers' own two forms of a model: names and shapes, on the meta device."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import transformers
from torch import nn
from transformers import core_model_loading
from transformers.conversion_mapping import get_model_conversion_mapping

from paramtool.parts.pieces import Stored
from tests.oracles.zoo_models import SETTINGS, _with, candidates, on_meta

Shapes = dict[str, tuple[int, ...]]


def small(name: str) -> nn.Module:
    """A model of a class on the meta device, small if its config can be made small."""
    cls = getattr(transformers, name)
    kind = cls.config_class
    settings = SETTINGS.get(kind.model_type, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for data in candidates(kind(**settings.get("", {})).to_dict()):
            try:
                return on_meta(cls, kind.from_dict(_with(data, settings)))
            except Exception:  # whatever a model's code makes of numbers that do not fit
                continue
        return on_meta(cls, kind(**settings.get("", {})))


def config_of(model: Any) -> dict[str, Any]:
    """The config.json that save_pretrained writes."""
    found: dict[str, Any] = json.loads(model.config.to_json_string())
    return found | {"architectures": [type(model).__name__]}


def in_memory(model: nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def as_saved(model: Any) -> Shapes:
    """What save_pretrained writes by default: transformers 4's names and tensors."""
    saved = core_model_loading.revert_weight_conversion(model, dict(model.state_dict()))
    return {name: tuple(tensor.shape) for name, tensor in saved.items()}


def has_rules(model: Any) -> bool:
    return bool(get_model_conversion_mapping(model, add_legacy=False))


def hub_of(stored: Iterable[Stored]) -> Shapes:
    """The tensors that pieces are of."""
    found: dict[str, tuple[int, ...]] = {}
    for one in stored:
        for piece in one.pieces:
            ends = tuple(a + b for a, b in zip(piece.start, piece.shape, strict=True))
            old = found.get(piece.part, ends)
            found[piece.part] = tuple(max(a, b) for a, b in zip(old, ends, strict=True))
    return found


def elements(one: Stored) -> int:
    return sum(math.prod(piece.shape) for piece in one.pieces)


def shapes_of(stored: Iterable[Stored]) -> Shapes:
    return {one.name: one.shape for one in stored}


def different(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What one has and the other lacks, or has with another shape."""
    return [
        f"{name}: ours {ours.get(name)}, theirs {theirs.get(name)}"
        for name in {**theirs, **ours}
        if ours.get(name) != theirs.get(name)
    ]
