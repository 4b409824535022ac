"""Renames that proven pairs of names show, for tensors whose bytes alone prove nothing.

Fresh norms are ones and fresh biases zeros: equal bytes say little.  They match under another name only where the
names of others, whose bytes differ from all the rest, ask for it.

    proven     h.3.attn.c_attn.weight  ->  layers.3.attn.qkv.weight
    shows      h.*.attn.c_attn.weight  ->  layers.*.attn.qkv.weight      the same names with other numbers
    and        h.3.attn                ->  layers.3.attn                 the places above, where the rest is the same
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
"""A segment of a name that is a number."""
SEPARATORS = (("/", "."), (".", "/"))
"""What is between the words of names: Flax and Keras have `/` where torch has `.`."""


def short(names: Iterable[str]) -> dict[str, str]:
    """{name: the name from where it differs from others, without `.weight`}; the last word of a single one.

    >>> short(["l.0.q.weight", "l.0.k.weight"])
    {'l.0.q.weight': 'q', 'l.0.k.weight': 'k'}
    >>> short(["l.0.q.weight"]), short(["l.0.weight"])
    ({'l.0.q.weight': 'q'}, {'l.0.weight': 'weight'})
    """
    parts = {name: name.removesuffix(".weight").split(".") for name in names}
    first = next(iter(parts.values()), [])
    if len(parts) == 1:
        return {name: name.rpartition(".")[2] if first[-1].isdecimal() else first[-1] for name in parts}
    same = 0
    while parts and all(len(one) > same + 1 and one[same] == first[same] for one in parts.values()):
        same += 1
    return {name: ".".join(one[same:]) for name, one in parts.items()}


class Renames:
    """What proven pairs of names say of other names."""

    def __init__(self, proven: Iterable[tuple[str, str]]) -> None:
        """`proven` are pairs: a name in the first checkpoint, and the name of the same in the second."""
        pairs = list(proven)
        self._separators = [
            (mine, theirs)
            for mine, theirs in SEPARATORS
            if pairs and all(old != new == old.replace(mine, theirs) for old, new in pairs)
        ]
        """What is between the words of all names, in the first and in the second, where nothing else differs."""
        self._known: dict[str, Counter[str]] = {}
        """{a name or a place, its numbers as `*`: the same in the second}"""
        for old, new in pairs:
            for mine, theirs in _shown(old, new):
                if NUMBER.findall(mine) == NUMBER.findall(theirs):
                    self._known.setdefault(NUMBER.sub("*", mine), Counter())[NUMBER.sub("*", theirs)] += 1

    def of(self, name: str) -> Iterator[str]:
        """Names that one could have in the second checkpoint, the most likely first."""
        for level in self._levels(name):
            yield from level
        for mine, theirs in self._separators:
            yield name.replace(mine, theirs)

    def instead(self, name: str, own: str) -> Iterator[str]:
        """Names that more pairs ask for than for `own`, the one that it has: by the name itself, then by its places.

        Of several that are asked for at one place, one that differs from `own` in numbers only, else the most likely.
        """
        like = NUMBER.sub("*", own)
        for level in self._levels(name):
            more = [other for other, count in level.items() if other != own and count > level[own]]
            if more:
                yield next((other for other in more if NUMBER.sub("*", other) == like), more[0])

    def _levels(self, name: str) -> Iterator[Counter[str]]:
        """{name that one could have: how many pairs ask for it}, by the name itself, then by each place above it."""
        head, tail = name, ""
        while True:
            known = self._known.get(NUMBER.sub("*", head), Counter()).most_common()
            numbers = NUMBER.findall(head)
            yield Counter({".".join(filter(None, [_filled(one, numbers), tail])): count for one, count in known})
            if not head:
                return
            head, _, last = head.rpartition(".")
            tail = f"{last}.{tail}" if tail else last


def _filled(template: str, numbers: Iterable[str]) -> str:
    rest = iter(numbers)
    return ".".join(next(rest, "*") if one == "*" else one for one in template.split("."))


def _shown(old: str, new: str) -> Iterator[tuple[str, str]]:
    """Two names, and the places above them that correspond: above equal ends, and at equal depths."""
    mine, theirs = old.split("."), new.split(".")
    found = {(old, new): None}
    if len(mine) == len(theirs):
        found |= {(".".join(mine[:k]), ".".join(theirs[:k])): None for k in range(1, len(mine))}
    while mine and theirs and mine[-1] == theirs[-1]:
        mine.pop()
        theirs.pop()
        found[".".join(mine), ".".join(theirs)] = None
    yield from found


PACKED = ("qweight", "qzeros", "weight_packed", "blocks", "g_idx")
"""The last words of names of packed codes (parts/schemes)."""
SCALES = re.compile(r"scale|absmax|zero|SCB")
"""What the last word of a name has beside packed codes."""


def packed(names: Iterable[str]) -> set[str]:
    """The names that packed codes can have: other tensors beside them say what their rows are, and no search can.

    >>> sorted(packed(["m.qweight", "m.scales", "n.weight", "n.weight_scale", "o.weight"]))
    ['m.qweight', 'n.weight']
    """
    every = list(names)
    scaled = {name.rpartition(".")[0] for name in every if SCALES.search(name.rpartition(".")[2])}
    return {
        name
        for name in every
        if name.rpartition(".")[2] in PACKED or (name.endswith(".weight") and name.removesuffix(".weight") in scaled)
    }
