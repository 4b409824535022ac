"""The numbers of layers and experts in names, as frameworks write them: `h.3`, `Dense_3`, `layer3`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import zip_longest

_NUMBER = re.compile(r"(?<![0-9])(?<!vars/)(?<![./]w)[0-9]+(?=[./_]|$)")
"""A number that is a word of a name, or ends one: that of `h.3`, `Dense_3`, `layer3`.

Keras's `vars/3` is no layer, nor are Llama's matrices `w1`, `w2`, `w3` and vLLM's `w13`, which is two of them."""
_WORD = re.compile(r"(?<![^./])(?<!vars/)[0-9]+(?![^./])")
"""One that is a word of its own."""
_BLANK = "\0"


def numbers(name: str) -> list[str]:
    """The numbers of a name, of layers and experts.

    >>> numbers("h.3.fc1.weight"), numbers("params/Dense_12/kernel"), numbers("layers/conv2d/vars/0")
    (['3', '1'], ['12'], [])
    """
    return _NUMBER.findall(name)


def numberless(name: str) -> str:
    """A name without them: the same for all layers."""
    return _NUMBER.sub(_BLANK, name)


def renumbered(name: str, others: Iterable[str]) -> str:
    """A name with other numbers, as many as it has.

    >>> renumbered("h.3.fc1.weight", ["7", "1"])
    'h.7.fc1.weight'
    """
    return _filled(numberless(name), others)


def number_words(name: str) -> list[str]:
    """The numbers that are words of their own.

    >>> number_words("h.3.fc1.weight"), number_words("params/Dense_12/kernel")
    (['3'], [])
    """
    return _WORD.findall(name)


def without_number_words(name: str) -> str:
    """A name without them: the same for all layers whose numbers are words."""
    return _WORD.sub(_BLANK, name)


def with_number_words(name: str, others: Iterable[str]) -> str:
    """A name with others of them, as many as it has.

    >>> with_number_words("h.3.fc1.weight", ["7"])
    'h.7.fc1.weight'
    """
    return _filled(without_number_words(name), others)


def _filled(template: str, numbers: Iterable[str]) -> str:
    return "".join(map("".join, zip_longest(template.split(_BLANK), numbers, fillvalue="")))


def layer_place(name: str) -> str:
    """A name without the numbers that are words, or else without its first number: of one layer after the other.

    Other numbers say which tensor of a layer it is.

    >>> layer_place("h.3.w2") == layer_place("h.4.w2"), layer_place("h.3.w2") == layer_place("h.3.w1")
    (True, False)
    >>> layer_place("dense/vars/0") == layer_place("dense_1/vars/0")
    True
    """
    if number_words(name):
        return without_number_words(name)
    return _NUMBER.sub(_BLANK, name, count=1).replace(f"_{_BLANK}", "")


def layer_type(name: str) -> str:
    """A name without its numbers, the same for Keras's `dense` and `dense_1`."""
    return numberless(name).replace(f"_{_BLANK}", "")
