"""New numbers for an optimizer whose tensors are numbered, in the order of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paramtool.model.optimizer import NumberedSlots

FORM = "keras"


class NewNumbers(NamedTuple):
    """The tensors of an optimizer after a change of the parameters."""

    names: dict[str, str]
    """{tensor that stays what it is: its new name}"""
    made: dict[tuple[int, str], str]
    """{(which parameter, slot): the name of the new tensor}, of those that are made."""
    order: tuple[str, ...]
    """All new names, in order."""


def numbered(lists: Sequence[NumberedSlots], kept: Sequence[int | None]) -> NewNumbers:
    """The numbers of all tensors, where the optimizer has an entry for each of `kept`: an old one, or None.

    None is a new entry.

    >>> one = NumberedSlots("v/", ("v/0", "v/1", "v/2"), 1, (("m",),))
    >>> numbered([one], [None, 1])
    NewNumbers(names={'v/0': 'v/0', 'v/2': 'v/2'}, made={(0, 'm'): 'v/1'}, order=('v/0', 'v/1', 'v/2'))
    """
    names: dict[str, str] = {}
    made: dict[tuple[int, str], str] = {}
    order: list[str] = []
    for one in lists:
        before = {(k, slot): one.names[at] for at, k, slot in one.places(one.count)}
        new: list[str] = [f"{one.prefix}{k}" for k in range(one.head)]
        names |= dict(zip(one.names[: one.head], new, strict=True))
        for at, k, slot in one.places(len(kept)):
            new.append(f"{one.prefix}{at}")
            old = kept[k]
            if old is None:
                made[k, slot] = new[-1]
            else:
                names[before[old, slot]] = new[-1]
        for name in one.names[len(one.names) - one.tail :] if one.tail else ():
            new.append(f"{one.prefix}{len(new)}")
            names[name] = new[-1]
        order += new
    return NewNumbers(names, made, tuple(order))
