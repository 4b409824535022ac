"""Where a tensor is in a network, and what it is there, by the last word of its name.

    params/Dense_0/kernel    params/Dense_0   weight
    fc.bias                  fc               bias
    layers/dense/vars/1      layers/dense     bias       Keras 3 numbers the variables of a layer

Frameworks call the same tensor of a layer by other words: torch, Flax (`flax.linen.Dense`, `.Conv`, `.BatchNorm`),
Keras (`keras.layers.Dense`, `.Embedding`, `.BatchNormalization`), Haiku (`haiku.Linear`, `.LayerNorm`) and MXNet's
symbols, whose words follow an underscore (`fc1_weight`).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import NamedTuple

WORDS = {
    "weight": ("weight", "kernel", "scale", "gamma", "embedding", "embeddings", "w", "vars/0"),
    "bias": ("bias", "beta", "offset", "b", "vars/1"),
    "mean": ("running_mean", "moving_mean", "mean", "vars/2"),
    "variance": ("running_var", "moving_variance", "moving_var", "var", "vars/3"),
}
"""{what a tensor is: the words for it}"""
_ROLES = {word: role for role, words in WORDS.items() for word in words}
_ENDS = re.compile(
    rf"(?P<at>(?:.*[./])?)(?P<word>{'|'.join(_ROLES)})|(?P<symbol>.*[^./_])_(?P<end>weight|bias|gamma|beta|moving_\w+)"
)


class ModulePlace(NamedTuple):
    """Where a tensor is, and what it is there."""

    at: str
    """The name of the module."""
    role: str
    """A key of WORDS."""


def place_of(name: str) -> ModulePlace | None:
    """Where a tensor is and what; None if its last word does not say what it is.

    >>> place_of("params/Dense_0/kernel"), place_of("h.0.attn.qkv"), place_of("fc1_bias")
    (ModulePlace(at='params/Dense_0', role='weight'), None, ModulePlace(at='fc1', role='bias'))
    """
    found = _ENDS.fullmatch(name)
    if found is None:
        return None
    if found["word"] is not None:
        return ModulePlace(found["at"][:-1], _ROLES[found["word"]])
    return ModulePlace(found["symbol"], _ROLES[found["end"]]) if found["end"] in _ROLES else None


def spelled(place: ModulePlace, separator: str | None = None) -> Iterator[str]:
    """The names that a tensor can have; `separator` is what is in front of the last word, if it is known.

    >>> list(spelled(ModulePlace("fc", "bias")))[:4]
    ['fc.bias', 'fc/bias', 'fc_bias', 'fc.beta']
    """
    for word in WORDS[place.role]:
        yield from (f"{place.at}{between}{word}" for between in separator or "./_") if place.at else (word,)


def biases_of(weight: str, names: Container[str]) -> list[str]:
    """The names among some that the bias beside a weight has; none beside another tensor.

    >>> biases_of("attn.in_proj_weight", {"attn.in_proj_bias", "attn.out_proj.bias"})
    ['attn.in_proj_bias']
    """
    place = place_of(weight)
    if place is None or place.role != "weight":
        return []
    return [name for name in spelled(ModulePlace(place.at, "bias")) if name in names]
