"""Renames that proven pairs of names show, for tensors whose bytes alone prove nothing.

Fresh norms are ones and fresh biases zeros: equal bytes say little.  They match under another name only where the
names of others, whose bytes differ from all the rest, ask for it.

    proven     h.3.attn.c_attn.weight  ->  layers.3.attn.qkv.weight
    shows      h.*.attn.c_attn.weight  ->  layers.*.attn.qkv.weight      the same names with other numbers
    and        h.3.attn                ->  layers.3.attn                 the places above, where the rest is the same
    proven     params/Dense_0/kernel   ->  fc.weight
    shows      params/Dense_0/bias     ->  fc.bias                       what is beside it, by each framework's word
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import permutations, product, takewhile, zip_longest
from typing import NamedTuple

from paramtool.grouping import grouped

NUMBER = re.compile(r"(?<![^./])[0-9]+(?![^./])")
"""A segment of a name that is a number."""
_SEPARATOR = re.compile("[./]")
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
        separators = {one for _, new in pairs for one in _SEPARATOR.findall(new)}
        self._separator = separators.pop() if len(separators) == 1 else None
        """What is between the words of all names in the second; None where they differ."""
        self._known: dict[str, Counter[str]] = {}
        """{a name or a place, without its numbers: the same in the second}"""
        self._of_words: dict[str, Counter[str]] = {}
        """The same without the numbers that are words, of names in which the others differ: `gate` and `w1`"""
        self._proved: dict[str, Counter[str]] = {}
        """{a name or a place: the same in the second}, with any numbers"""
        self._against: Counter[tuple[str, str]] = Counter()
        """{names without their numbers: how many pairs have other numbers}"""
        self._of_place: dict[str, set[str]] = {}
        """{a name or a place of the second: those of the first that it was proved to be}"""
        self._heads: dict[str, Counter[str]] = {}
        """{a name or a place of the first: what was found for it}"""
        self._ends: Counter[tuple[str, str]] = Counter()
        """{(how names end, how they end in the second): how many}, where words came in between, or left"""
        times = Counter(old for old, _ in pairs)
        for old, new in pairs:
            self._ends.update(_other_ends(old, new))
            for mine, theirs in _shown(old, new):
                if numbers(mine) == numbers(theirs):
                    self._known.setdefault(numberless(mine), Counter())[numberless(theirs)] += 1
                elif number_words(mine) == number_words(theirs) and times[old] == 1:
                    found = self._of_words.setdefault(without_number_words(mine), Counter())
                    found[without_number_words(theirs)] += 1
                else:
                    self._against[numberless(mine), numberless(theirs)] += 1
                self._proved.setdefault(mine, Counter())[theirs] += 1
                self._of_place.setdefault(theirs, set()).add(mine)

    def of(self, name: str) -> Iterator[str]:
        """Names that one could have in the second checkpoint, the most likely first."""
        place = place_of(name)
        for one in self._of(name, place):
            other = place_of(one)
            if place is not None and other is not None:
                # most places of these names have other numbers in the second, and this one was not proved
                own, new = numberless(place.at), numberless(other.at)
                against = self._against[own, new]
                known = self._known.get(own, Counter())[new]
                if against and against >= known and other.at not in self._proved.get(place.at, ()):
                    continue
            yield one

    def _of(self, name: str, place: ModulePlace | None) -> Iterator[str]:
        for level in self._levels(name, self._anywhere):
            yield from level
        if place is not None:
            for level in self._levels(place.at, self._anywhere):
                for at in level:
                    yield from spelled(ModulePlace(at, place.role), self._separator)
            yield from spelled(place, self._separator)
        for (end, other), _ in self._ends.most_common():
            if name.endswith(end):
                yield name.removesuffix(end) + other

    def instead(self, name: str, own: str) -> Iterator[str]:
        """Names that more pairs ask for than for `own`, the one that it has: by the name itself, then by its places.

        Of several that are asked for at one place, one that differs from `own` in numbers only, else the most likely.
        """
        like = numberless(own)
        for level in self._levels(name, self._filled):
            more = [other for other, count in level.items() if other != own and count > level[own]]
            if more:
                yield next((other for other in more if numberless(other) == like), more[0])

    def _levels(self, name: str, found: Callable[[str], Counter[str]]) -> Iterator[Counter[str]]:
        """{name that one could have: how many pairs ask for it}, by the name itself, then by each place above it."""
        for at in (len(name), *reversed(_cuts(name)), 0):
            heads = found(name[:at])
            if not heads:
                yield heads
                continue
            tail, between = name[at:].lstrip("./"), self._separator or name[at : at + 1] or "."
            if self._separator is not None:
                tail = _SEPARATOR.sub(self._separator, tail)
            yield Counter({between.join(filter(None, [head, tail])): count for head, count in heads.items()})

    def _anywhere(self, head: str) -> Counter[str]:
        """Those that it was proved to be, then the same as `_filled`, without those that others were proved to be."""
        if head not in self._heads:
            found = Counter(self._proved.get(head, Counter()))
            for one, count in self._filled(head).items():
                if head in self._of_place.get(one, {head}):
                    found[one] += count
            self._heads[head] = found
        return self._heads[head]

    def _filled(self, head: str) -> Counter[str]:
        """{the same name or place in the second: how many pairs ask for it}, with the numbers of the first."""
        found, own = Counter[str](), numberless(head)
        for template, count in self._known.get(own, Counter()).most_common():
            if count > self._against[own, template]:
                found[renumbered(template, numbers(head))] += count
        for template, count in self._of_words.get(without_number_words(head), Counter()).most_common():
            if count > self._against[own, numberless(template)]:
                found[with_number_words(template, number_words(head))] += count
        return found


def _shown(old: str, new: str) -> Iterator[tuple[str, str]]:
    """Two names, and the places above them that correspond: above equal ends, at equal depths, of one layer."""
    mine, theirs = _cuts(old), _cuts(new)
    found = {(old, new): None}
    if len(mine) == len(theirs):
        found |= {(old[:k], new[:to]): None for k, to in zip(mine, theirs, strict=True)}
    found |= dict.fromkeys(_above_equal_ends(old, new))
    one, other = place_of(old), place_of(new)
    if one is not None and other is not None and one.role == other.role:
        found[one.at, other.at] = None
        found |= dict.fromkeys(_above_equal_ends(one.at, other.at))
    yield from found


def _above_equal_ends(old: str, new: str) -> Iterator[tuple[str, str]]:
    """The places above two names whose last words are the same, one word after the other."""
    mine, theirs = [0, *_cuts(old)], [0, *_cuts(new)]
    words = zip(_SEPARATOR.split(old)[::-1], _SEPARATOR.split(new)[::-1], strict=False)
    for same, _ in enumerate(takewhile(lambda both: both[0] == both[1], words), 1):
        yield old[: mine[-same]], new[: theirs[-same]]


def spelling(name: str) -> tuple[str, ...]:
    """The words of a name, whatever is between them.

    >>> spelling("0.weight/zero_point") == spelling("0._weight_zero_point") == ("0", "weight", "zero", "point")
    True
    """
    return tuple(filter(None, re.split("[._/]", name)))


def _other_ends(old: str, new: str) -> Iterator[tuple[str, str]]:
    """How two names end that begin alike, where one has words that the other lacks in front of the last ones.

    >>> list(_other_ends("q_proj.lora_A.weight", "q_proj.lora_A.default.weight"))
    [('.weight', '.default.weight')]
    """
    alike = [at for at, to in zip(_cuts(old), _cuts(new), strict=False) if at == to and old[:at] == new[:at]]
    if alike:
        mine, theirs = old[alike[-1] :], new[alike[-1] :]
        if mine != theirs and (mine.endswith(theirs) or theirs.endswith(mine)):
            yield mine, theirs


def _cuts(name: str) -> list[int]:
    """Where its words end, but for the last."""
    return [found.start() for found in _SEPARATOR.finditer(name)]


# --- The numbers of layers and experts in names, as frameworks write them: `h.3`, `Dense_3`, `layer3` -----------------


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


# --- Where a tensor is in a network, and what it is there, by the last word of its name -------------------------------
#
# params/Dense_0/kernel    params/Dense_0   weight
#     fc.bias                  fc               bias
#     layers/dense/vars/1      layers/dense     bias       Keras 3 numbers the variables of a layer
#
# Frameworks call the same tensor of a layer by other words: torch, Flax (`flax.linen.Dense`, `.Conv`, `.BatchNorm`),
# Keras (`keras.layers.Dense`, `.Embedding`, `.BatchNormalization`), Haiku (`haiku.Linear`, `.LayerNorm`) and MXNet's
# symbols, whose words follow an underscore (`fc1_weight`).


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


# --- Tensors that are exchanged under their new names, against the rename that the others show -----------------------


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
