"""Tensors that are exchanged under their new names, against the rename that the others show.

    most       model.layers.*.q.weight  ->  x.layers.*.q.weight
    exchanged  model.layers.3.q.weight  ->  x.layers.5.q.weight
               model.layers.5.q.weight  ->  x.layers.3.q.weight

Each of them is where the rename has another one.  A renumbering, such as that of layers 2-5 as 0-3, exchanges nothing:
the last of them is where the rename has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from paramtool.passes.diff.names import Renames


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
    return _in_circles(usual)


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
