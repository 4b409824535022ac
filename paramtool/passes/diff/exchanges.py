"""Tensors that are exchanged under their new names, against the rename that the others show.

    most       model.layers.*.q.weight  ->  x.layers.*.q.weight
    exchanged  model.layers.3.q.weight  ->  x.layers.5.q.weight
               model.layers.5.q.weight  ->  x.layers.3.q.weight

Each of them is where the rename has another one.  Where frameworks count otherwise, such as `0, 2, 4` and `fc1, fc2,
fc3`, the order of the layers shows it.  A renumbering, such as that of layers 2-5 as 0-3, exchanges nothing:
the last of them is where the rename has none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from paramtool.passes.diff.names import Renames
from paramtool.passes.diff.numbering import layer_type, numbers

_BACK = re.compile("backward|reverse")
"""A word of the backward direction: torch's `weight_ih_l0_reverse`, Keras's `backward_layer`."""


def exchanged(pairs: Sequence[tuple[str, str]], is_alike: Callable[[str, str], bool]) -> list[str]:
    """The new names of the tensors that are exchanged, of proven pairs (old name, new name).

    `is_alike` says whether the tensors of two new names have one type and shape.
    """
    renames, held = Renames(pairs), {new for _, new in pairs}
    usual: dict[str, str] = {}
    """{new name: the one that the rename gives to the same tensor}, of those that another tensor has"""
    for old, new in pairs:
        other = next((one for one in renames.instead(old, new) if one in held and is_alike(one, new)), None)
        if other is not None:
            usual[new] = other
    found = dict.fromkeys([*_in_circles(usual), *_out_of_order(pairs, is_alike), *_turned(pairs)])
    return [new for _, new in pairs if new in found]


def _out_of_order(pairs: Sequence[tuple[str, str]], is_alike: Callable[[str, str], bool]) -> Iterator[str]:
    """The new names of layers of one number each that changed their order, where frameworks count otherwise.

    >>> list(_out_of_order([("0.w", "fc1.w"), ("2.w", "fc3.w"), ("4.w", "fc2.w")], lambda old, new: True))
    ['fc3.w', 'fc2.w']
    """
    groups: dict[tuple[str, str], list[tuple[list[int], list[int], str]]] = {}
    for old, new in pairs:
        mine, theirs = ([*map(int, numbers(name))] for name in (old, new))
        groups.setdefault((layer_type(old), layer_type(new)), []).append((mine, theirs, new))
    for rows in groups.values():
        olds, news = _varying([mine for mine, _, _ in rows]), _varying([theirs for _, theirs, _ in rows])
        if olds is None or news is None:
            continue
        group = [(one, other, new) for one, other, (_, _, new) in zip(olds, news, rows, strict=True)]
        places = {theirs: k for k, theirs in enumerate(sorted(theirs for _, theirs, _ in group))}
        moved = [new for k, (_, theirs, new) in enumerate(sorted(group)) if places[theirs] != k]
        yield from (new for new in moved if all(is_alike(new, other) for other in moved))


def _turned(pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The new names of both directions of a recurrent layer that are exchanged, in the words of torch and Keras.

    >>> list(_turned([("l.forward_layer/w", "l.w_l0_reverse"), ("l.backward_layer/w", "l.w_l0")]))
    ['l.w_l0_reverse', 'l.w_l0']
    """
    turned = [(old, new) for old, new in pairs if bool(_BACK.search(old)) != bool(_BACK.search(new))]
    if len({bool(_BACK.search(old)) for old, _ in turned}) == 2:
        yield from (new for _, new in turned)


def _varying(every: Sequence[Sequence[int]]) -> list[int] | None:
    """The numbers that are not the same in all names, if that is one of each; Keras's first layer has none."""
    most = max(map(len, every), default=0)
    if any(len(one) < most - 1 for one in every):
        return None
    whole = [one if len(one) == most else [-1, *one] for one in every]
    columns = [[*column] for column in zip(*whole, strict=True) if len({*column}) > 1]
    return columns[0] if len(columns) == 1 else None


def _in_circles(to: dict[str, str]) -> list[str]:
    """The names from which the steps lead back to them.

    >>> _in_circles({"a": "b", "b": "a", "c": "d", "d": "e"})
    ['a', 'b']
    """
    left, steps = dict(to), Counter(to.values())
    ends = [one for one in left if not steps[one]]
    while ends:
        other = left.pop(ends.pop())
        steps[other] -= 1
        if other in left and not steps[other]:
            ends.append(other)
    return list(left)
