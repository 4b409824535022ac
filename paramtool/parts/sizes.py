"""Sizes: the lengths of the axes of parts, given, calculated from others, or solved from a shape.

heads=6 kv_heads=2        group = 3 query heads for each KV head
head_dim=64               two x half = 2 x 32; value_dim = 64 if nobody says another
rotary=16                 the first 16 of a head's 64 are rotated, rest = 48
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paramtool.errors import LayoutError

COMPOSED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "heads": (("kv_heads", "group"), ("chunks", "chunk_heads")),
    "kv_heads": (("chunks", "chunk_kv_heads"),),
    "head_dim": (("two", "half"),),
    "ffn": (("chunks", "chunk_ffn"),),
    "linear_key_heads": (("chunks", "chunk_key_heads"),),
    "linear_value_heads": (("linear_key_heads", "value_group"), ("chunks", "chunk_value_heads")),
    "inner": (("chunks", "chunk_inner"),),
    "groups": (("chunks", "chunk_groups"),),
    "state_heads": (("chunks", "chunk_state_heads"),),
}
"""{axis: the axes that it can be split into, slowest first}"""
MEANINGS: Mapping[str, str] = {
    "heads": "attention heads",
    "kv_heads": "heads of keys and values; as many as heads without grouped queries",
    "group": "query heads for each KV head: heads / kv_heads",
    "head_dim": "elements of a head of queries and keys",
    "value_dim": "elements of a head of values, where they are not head_dim",
    "rotary": "the first elements of a head that RoPE rotates, where they are not all",
    "rest": "the elements of a head that RoPE leaves alone",
    "two": "the two elements of a pair that RoPE rotates",
    "half": "pairs that RoPE rotates in a head: rotary / 2",
    "chunks": "pieces of a tensor that were made for separate devices",
    "chunk_heads": "heads in a chunk",
    "chunk_kv_heads": "KV heads in a chunk",
    "experts": "experts of a layer",
    "ffn": "width of an MLP or an expert",
    "in": "inputs of a projection",
    "out": "outputs of a projection",
    "rows": "rows of equal parts",
    "chunk_ffn": "the width of an MLP in a chunk",
    "linear_key_heads": "heads of keys of linear attention",
    "linear_key_dim": "elements of a head of keys of linear attention",
    "linear_value_heads": "heads of values of linear attention",
    "linear_value_dim": "elements of a head of values of linear attention",
    "taps": "the width of a convolution",
    "channels": "channels of a convolution",
    "q_rank": "the rank of queries (MLA)",
    "kv_rank": "the rank of keys and values (MLA)",
    "nope": "elements of a head without RoPE (MLA)",
    "rope": "elements of a head with RoPE (MLA)",
    "kv_joint": "the rank of keys and values, and the key that all heads rotate: kv_rank + rope (MLA)",
    "width": "outputs of a modulation",
    "inner": "the inner width of a state space layer",
    "state": "the states of a state space layer",
    "groups": "groups of B and C of a state space layer",
    "state_heads": "heads of a state space layer",
    "dt_rank": "the rank of the time steps of a Mamba layer",
}
"""{word: what it counts}, for documents and errors."""


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


_DERIVED: Mapping[str, Callable[[Sizes], int]] = {
    "two": lambda sizes: 2,
    "value_dim": lambda sizes: sizes.of("head_dim"),
    "half": _half,
    "rest": _rest,
    "group": lambda sizes: _divided(sizes, "heads", "kv_heads"),
    "chunk_heads": lambda sizes: _divided(sizes, "heads", "chunks"),
    "chunk_kv_heads": lambda sizes: _divided(sizes, "kv_heads", "chunks"),
    "chunk_ffn": lambda sizes: _divided(sizes, "ffn", "chunks"),
    "kv_joint": lambda sizes: sizes.of("kv_rank") + sizes.of("rope"),
    "chunk_inner": lambda sizes: _divided(sizes, "inner", "chunks"),
    "chunk_groups": lambda sizes: _divided(sizes, "groups", "chunks"),
    "chunk_state_heads": lambda sizes: _divided(sizes, "state_heads", "chunks"),
    "chunk_key_heads": lambda sizes: _divided(sizes, "linear_key_heads", "chunks"),
    "chunk_value_heads": lambda sizes: _divided(sizes, "linear_value_heads", "chunks"),
    "value_group": lambda sizes: _divided(sizes, "linear_value_heads", "linear_key_heads"),
}
