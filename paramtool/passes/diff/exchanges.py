"""Tensors that are exchanged under their new names, against the rename that the others show.

    most       model.layers.*.q.weight  ->  x.layers.*.q.weight
    exchanged  model.layers.3.q.weight  ->  x.layers.5.q.weight
               model.layers.5.q.weight  ->  x.layers.3.q.weight

Each of them is where the rename has another one.  Where frameworks count otherwise, such as `0, 2, 4` and `fc1, fc2,
fc3`, or `layer1.0` and `stages.0.0`, the order of the layers shows it.  A renumbering, such as that of layers 2-5 as
0-3, exchanges nothing: the last of them is where the rename has none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product

from paramtool.grouping import grouped
from paramtool.passes.diff.names import Renames, layer_place, layer_type, numbers, place_of

Alike = Callable[[str, str], bool]
"""Whether the tensors of two new names have one type and shape."""
_WORDS = re.compile(r"[^\W\d_]+|\d+")
"""Words and numbers: `layer_0` and `layers.0` have two each."""
_BACK = re.compile("backward|reverse")
"""A word of the backward direction: torch's `weight_ih_l0_reverse`, Keras's `backward_layer`."""
MAX_NUMBERS = 4
"""The most numbers in names that are tried in another order: `experts.2.layers.0` for `layers.0.experts.2`."""


def exchanged(pairs: Sequence[tuple[str, str]], is_alike: Alike) -> list[str]:
    """The new names of the tensors that are exchanged, of proven pairs (old name, new name)."""
    renames, held = Renames(pairs), {new for _, new in pairs}
    usual: dict[str, str] = {}
    """{new name: the one that the rename gives to the same tensor}, of those that another tensor has"""
    for old, new in pairs:
        other = next((one for one in renames.instead(old, new) if one in held and is_alike(one, new)), None)
        if other is not None:
            usual[new] = other
    others = (_of_other_types, _of_other_roles, _of_other_words)
    times = Counter(old for old, _ in pairs)
    singles = [(old, new) for old, new in pairs if times[old] == 1]
    moved = (new for one in others for new in one(singles, is_alike))
    found = dict.fromkeys([*_in_circles(usual), *_turned(pairs), *_out_of_order(pairs, is_alike), *moved])
    return [new for _, new in pairs if new in found]


def _out_of_order(pairs: Sequence[tuple[str, str]], is_alike: Alike) -> Iterator[str]:
    """The new names of layers that changed their order, where frameworks count otherwise.

    >>> list(_out_of_order([("0.w", "fc1.w"), ("2.w", "fc3.w"), ("4.w", "fc2.w")], lambda old, new: True))
    ['fc3.w', 'fc2.w']
    """
    groups = grouped(((layer_type(old), layer_type(new)), (old, new)) for old, new in pairs)
    for group in groups.values():
        olds, news = (_counted([pair[side] for pair in group]) for side in (0, 1))
        alike = _alike([new for _, new in group], is_alike)
        columns = range(len(news[0]))
        can_move = len(columns) <= MAX_NUMBERS and not any(-1 in one for one in news)
        ways = permutations(columns) if can_move else [columns]
        tried = (_moved(alike, olds, [[one[k] for k in way] for one in news]) for way in ways)
        yield from (group[k][1] for k in min(tried, key=len))


def _alike(names: Sequence[str], is_alike: Alike) -> list[list[int]]:
    """The positions of names whose tensors have one type and shape."""
    found: list[list[int]] = []
    for k, name in enumerate(names):
        own = next((group for group in found if is_alike(name, names[group[0]])), None)
        if own is None:
            found.append([k])
        else:
            own.append(k)
    return found


def _of_other_types(pairs: Sequence[tuple[str, str]], is_alike: Alike) -> Iterator[str]:
    """The new names of layers of two types that became the other type, against most of each type, or the first.

    A number at the end of a word can be that of a layer, or part of its type: `conv1` and `conv2` of each block.

    >>> pairs = [("a.0.w", "x1.w"), ("a.1.w", "x2.w"), ("a.2.w", "y1.w"), ("b.0.w", "x3.w"), ("b.1.w", "y2.w")]
    >>> list(_of_other_types([*pairs, ("b.2.w", "y3.w")], lambda old, new: True))
    ['y1.w', 'x3.w']
    """
    found: dict[str, None] = {}
    for type_of, other_type in product((layer_place, layer_type), repeat=2):
        types: dict[str, Counter[str]] = {}
        for old, new in pairs:
            types.setdefault(type_of(old), Counter())[other_type(new)] += 1
        usual = {mine: counts.most_common(1)[0][0] for mine, counts in types.items()}
        moved: dict[tuple[str, str], list[str]] = {}
        """{(usual type, type that they became): new names}"""
        for old, new in pairs:
            mine, theirs = usual[type_of(old)], other_type(new)
            if mine != theirs:
                moved.setdefault((mine, theirs), []).append(new)
        for (mine, theirs), names in moved.items():
            back = moved.get((theirs, mine), ())
            found |= dict.fromkeys(new for new in names if any(is_alike(new, other) for other in back))
    yield from found


def _counted(names: Sequence[str]) -> list[list[int]]:
    """The numbers of names of one type, as many of each: Keras's first layer has none."""
    every = [[*map(int, numbers(name))] for name in names]
    most = max(map(len, every))
    return [[-1] * (most - len(one)) + one for one in every]


def _moved(groups: Sequence[Sequence[int]], olds: Sequence[Sequence[int]], news: Sequence[Sequence[int]]) -> list[int]:
    """Which rows are not where they were, where both are sorted in each group; equal ones are in no order."""
    found: list[int] = []
    for group in groups:
        mine = sorted(group, key=lambda k: (olds[k], news[k]))
        theirs = sorted(group, key=lambda k: (news[k], olds[k]))
        found += [k for k, other in zip(mine, theirs, strict=True) if news[k] != news[other]]
    return found


def _of_other_roles(pairs: Sequence[tuple[str, str]], is_alike: Alike) -> Iterator[str]:
    """The new names of a weight that became a bias, and of a bias that became a weight, by the words of frameworks.

    >>> list(_of_other_roles([("bn.weight", "n/bias"), ("bn.bias", "n/scale")], lambda old, new: True))
    ['n/bias', 'n/scale']
    """
    turned: list[tuple[str, str, str]] = []
    for old, new in pairs:
        one, other = place_of(old), place_of(new)
        if one is not None and other is not None and one.role != other.role:
            turned.append((one.role, other.role, new))
    for _, role, new in turned:
        if any(other == role and is_alike(new, name) for other, _, name in turned if name != new):
            yield new


def _of_other_words(pairs: Sequence[tuple[str, str]], is_alike: Alike) -> Iterator[str]:
    """The new names in which one word became another, and in others the other way round: `encoder` and `decoder`.

    >>> list(_of_other_words([("encoder.w", "m.decoder.w"), ("decoder.w", "m.encoder.w")], lambda old, new: True))
    ['m.decoder.w', 'm.encoder.w']
    """
    became: dict[tuple[int, str, str], dict[str, str]] = {}
    for old, new in pairs:
        mine, theirs = _WORDS.findall(old), _WORDS.findall(new)
        for k in range(1, min(len(mine), len(theirs)) + 1):
            if mine[-k] != theirs[-k] and not (mine[-k].isdigit() or theirs[-k].isdigit()):
                swapped = [*theirs[:-k], mine[-k], *theirs[len(theirs) - k + 1 :]]
                became.setdefault((k, mine[-k], theirs[-k]), {})[".".join(swapped)] = new
    for (k, word, other), own in became.items():
        back = {".".join(_WORDS.findall(new)): new for new in became.get((k, other, word), {}).values()}
        yield from (new for name, new in own.items() if name in back and is_alike(new, back[name]))


def _turned(pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The new names of both directions of a recurrent layer that are exchanged, in the words of torch and Keras.

    >>> list(_turned([("l.forward_layer/w", "l.w_l0_reverse"), ("l.backward_layer/w", "l.w_l0")]))
    ['l.w_l0_reverse', 'l.w_l0']
    """
    turned = [(old, new) for old, new in pairs if bool(_BACK.search(old)) != bool(_BACK.search(new))]
    if len({bool(_BACK.search(old)) for old, _ in turned}) == 2:
        yield from (new for _, new in turned)


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
