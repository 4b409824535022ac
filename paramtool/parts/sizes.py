"""Sizes: the lengths of the axes of parts, given, calculated from others, or solved from a shape.

heads=6 kv_heads=2        group = 3 query heads for each KV head
head_dim=64               two x half = 2 x 32; value_dim = 64 if nobody says another
rotary=16                 the first 16 of a head's 64 are rotated, rest = 48
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from math import prod

from paramtool.errors import LayoutError
from paramtool.package_data import package_data

VOCABULARY = json.loads(package_data("parts", "vocabulary.json"))
"""`sizes`, {word: what it counts}; `composed`, {word: the words that it can be split into, slowest first}; `parts`,
{part: the axes of its tensor}; `kinds`, {kind of a group: the facts that `--spec` may give for it}; `keys` and `also`,
{word: what configs, and other programs, call it}."""
MEANINGS: Mapping[str, str] = VOCABULARY["sizes"]
"""{word: what it counts}, for documents and errors."""
COMPOSED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    word: tuple(tuple(split.split()) for split in splits) for word, splits in VOCABULARY["composed"].items()
}
"""{axis: the axes that it can be split into, slowest first}"""
CHECK = "check the facts in config.json or --spec"


class UnknownSize(LayoutError):
    """A size that no shape tells and that nobody gave."""

    def __init__(self, word: str) -> None:
        """`word` is the size that is lacking."""
        super().__init__(f"{word} is not known ({MEANINGS.get(word, 'an axis of the pattern')})")
        self.word = word


class Sizes:
    """Lengths by word; a word that follows from others is calculated."""

    def __init__(self, given: Mapping[str, int]) -> None:
        """`given` are lengths that are known."""
        self.known = dict(given)
        self._calculated: dict[str, int] = {}
        self._lacking: set[str] = set()

    def of(self, word: str) -> int:
        """The length of an axis; UnknownSize if it is not known, LayoutError if it is no whole number."""
        if (found := self.known.get(word)) is not None:
            return found
        if (found := self._calculated.get(word)) is None:
            if word.isdigit():
                return int(word)
            if word not in _DERIVED:
                raise UnknownSize(word)
            found = self._calculated[word] = _DERIVED[word](self)
        return found

    def knows(self, word: str) -> bool:
        """Whether a length is given or follows."""
        return self.find(word) is not None

    def find(self, word: str) -> int | None:
        """The length of an axis, or None if it is not known; LayoutError as of `of`."""
        if (found := self.known.get(word)) is not None:
            return found
        if word in self._lacking or (word not in _DERIVED and not word.isdigit()):
            return None
        try:
            return self.of(word)
        except UnknownSize:
            self._lacking.add(word)
            return None

    def product(self, words: Iterable[str]) -> int:
        """The product of several lengths; errors as of `of`."""
        return prod(map(self.of, words))

    def parted(self, words: Iterable[str]) -> tuple[list[str], int]:
        """The words whose length is not known, and the product of the others; LayoutError as of `of`."""
        lengths = [(word, self.find(word)) for word in words]
        return [word for word, one in lengths if one is None], prod(one for _, one in lengths if one is not None)

    def with_one(self, word: str, length: int) -> Sizes:
        """The same with one more."""
        return Sizes({**self.known, word: length})


def _divided(sizes: Sizes, whole: str, by: str) -> int:
    length, parts = sizes.of(whole), sizes.of(by)
    if not parts or length % parts:
        raise LayoutError(f"{whole}={length} does not divide into {by}={parts}", hint=CHECK)
    return length // parts


def _half(sizes: Sizes) -> int:
    rotary = sizes.of("rotary")
    if rotary % 2:
        raise LayoutError(f"rotary={rotary} is odd; RoPE rotates pairs", hint=CHECK)
    return rotary // 2


def _rest(sizes: Sizes) -> int:
    rest = sizes.of("head_dim") - sizes.of("rotary")
    if rest < 0:
        raise LayoutError(f"rotary={sizes.of('rotary')} is more than head_dim={sizes.of('head_dim')}")
    return rest


def _quotient(whole: str, by: str) -> Callable[[Sizes], int]:
    return lambda sizes: _divided(sizes, whole, by)


_DERIVED: Mapping[str, Callable[[Sizes], int]] = {
    **{word: _quotient(whole, by) for whole, splits in COMPOSED.items() for by, word in splits},
    "two": lambda sizes: 2,
    "value_dim": lambda sizes: sizes.of("head_dim"),
    "half": _half,
    "rest": _rest,
    "kv_joint": lambda sizes: sizes.of("kv_rank") + sizes.of("rope"),
}
