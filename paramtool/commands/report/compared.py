"""The section of the page about how two checkpoints differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from paramtool.commands.diff.diff import Diffed
from paramtool.commands.report.differences import (
    MAX_STRIPS,
    TINTS,
    ChangedRows,
    change_words,
    changed,
    changed_rows,
    scale,
    verdicts,
)
from paramtool.commands.report.modules import separator_of, tree
from paramtool.commands.report.page import finding_list, module_table
from paramtool.commands.report.sharing import SharedGroup, group, last_words, numberless
from paramtool.drawing.document import (
    NAME,
    NUMBER,
    WORDS,
    PageSection,
    as_table,
    figure,
    figures,
    folded,
    paragraph,
    table,
    treemap,
)  # fmt: skip
from paramtool.drawing.markup import EMPTY, Markup, breakable, joined, tag
from paramtool.drawing.palette import SERIES, series
from paramtool.drawing.strips import Ribbon, heat, key, ribbons, shares, stacked, wired
from paramtool.errors import leading, plural
from paramtool.grouping import grouped
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.diff import ADDED, CHANGED, REMOVED, ROUNDED, SAME, UNDECIDED, LinePlace, TensorDiff, counts
from paramtool.model.diff import WORDS as VERDICTS
from paramtool.model.display import size, span

MAX_TIES, MAX_MAPS = 12, 16
"""Figures of each section."""
FEW = 10
"""A table of no more rows is open."""
ENOUGH = "; `diff --json` lists all"


def sections(
    found: Diffed, checkpoints: tuple[Checkpoint, Checkpoint], graphs: tuple[AliasGraph, AliasGraph], memory: int
) -> Iterator[PageSection]:  # fmt: skip
    """The verdict with a treemap, what changed in sharing, changed rows as heat, and the maps of what moved."""
    yield PageSection("difference", "How B differs from A", _verdict(found, checkpoints[1]))
    if ties := changes(*graphs, found.tensors):
        yield PageSection("ties", "What changed in sharing", _ties(ties))
    if every := changed(found):
        drawn = changed_rows(every[:MAX_STRIPS], *checkpoints, memory)
        yield PageSection("rows", "Where numbers changed", _rows(every, drawn))
    if others := [one for one in found.tensors if one.kind != SAME and one not in every]:
        # What is the same elsewhere, what only one of the two has, and what could not be decided
        columns = {"In A": NAME, "In B": NAME, "Verdict": WORDS, "How": WORDS}
        made = (
            (
                leading(one.a),
                leading(one.b),
                VERDICTS[one.kind],
                change_words(one) + ("" if one.is_unique else "; not unique"),
            )
            for one in others
        )
        maps = move_figures(others)
        lead = (
            "The upper strips are A's tensors, the lower ones B's, and each band leads rows or columns to their place."
        )
        caption = "Tensors that are in other places, of another type, or in one checkpoint only"
        rows = folded(plural(others, "tensor"), table(columns, made, caption, ENOUGH), is_open=len(others) <= FEW)
        body = figures(lead if maps else "", map(_map, maps[:MAX_MAPS]), len(maps) - MAX_MAPS, "map", rows)
        yield PageSection("moved", "What moved, came or went", body)


def summary(found: Diffed) -> str:
    """The verdict in a sentence."""
    if found.judge(strict=True):
        return "A and B are the same, name by name."
    if found.is_same:
        return "A and B are the same weights: only names, layouts, lossless casts or metadata differ."
    if {*counts(found.tensors)}.isdisjoint((CHANGED, ADDED, REMOVED, UNDECIDED, ROUNDED)):
        what = " and ".join(word for word, texts in (("ties", found.ties), ("objects", found.objects)) if texts)
        return f"A and B hold the same weights, but their {what} differ."
    return "A and B are not the same weights."


def _verdict(found: Diffed, b: Checkpoint) -> Markup:
    many = counts(found.tensors)
    tensors = list(verdicts(found, b))
    nbytes = {kind: sum(one.nbytes for one in tensors if one.role == kind) for kind in many}
    bar = stacked(
        (VERDICTS[kind], nbytes[kind], TINTS[kind], "", f"{plural(many[kind], 'tensor')}, {size(nbytes[kind])}")
        for kind in many
    )
    root = tree(tensors, separator_of(b.entries))
    rows = [("warning", "ties", text) for text in found.ties[:100]]
    rows += [("note", "objects", text) for text in found.objects[:100]]
    rows += [("note", "metadata", text) for text in found.metadata[:50]]
    rows += [("note", "note", text) for text in found.notes[:50]]
    words = ", ".join(f"{plural(count, 'tensor')} {VERDICTS[kind]}" for kind, count in many.items())
    return joined((
        paragraph(f"{summary(found)}  {words[:1].upper()}{words[1:]}.  {size(found.nbytes_read)} were read, and every "
                  "verdict was proved by comparing all bytes.", "lead"),
        figure(shares(bar, f"Bytes of B by verdict: {words}"), "Bytes of B by verdict") if len(bar) > 1 else EMPTY,
        key([(TINTS[kind], "", f"{VERDICTS[kind]}: {plural(count, 'tensor')}") for kind, count in many.items()]),
        treemap(root, "Bytes of B by verdict") if root.nbytes else EMPTY,
        module_table(root) if root.nbytes else EMPTY,
        finding_list(rows) if rows else EMPTY,
    ))  # fmt: skip


def _ties(found: Sequence[TieChange]) -> Markup:
    """Each change as A and B store it, beside each other."""
    lead = "Names that share memory in one checkpoint and not in the other, as each stores them."
    return figures(lead, map(_tie, found[:MAX_TIES]), len(found) - MAX_TIES, "change")


def _tie(one: TieChange) -> Markup:
    sides = joined(
        tag("div", tag("p", letter, class_="side"), *(wired(made.owner, made.words, made.wires, is_narrow=True)
                                                     for made in side))
        for letter, side in (("A", one.a), ("B", one.b))
    )  # fmt: skip
    kinds = [f"{plural(len(side), 'stored tensor')} in {letter}" for letter, side in (("A", one.a), ("B", one.b))]
    alike = f"; {one.alike} more that look alike" if one.alike else ""
    left_out = f"; {plural(one.left_out, 'stored tensor')} not drawn" if one.left_out else ""
    return figure(tag("div", sides, class_="beside"), f"{', '.join(kinds)}{alike}{left_out}")


def _rows(every: Sequence[TensorDiff], drawn: Sequence[ChangedRows]) -> Markup:
    largest = max((one.change.largest for one in every if one.change and one.change.largest is not None
                   and isfinite(one.change.largest)), default=0.0)  # fmt: skip
    left_out = len(every) - len(drawn)
    note = f"  The {MAX_STRIPS} with the largest differences are drawn." if left_out > 0 else ""
    down = "  High strips also show columns, the first at the top." if any(one.cells for one in drawn) else ""
    text = (
        "Each strip is a tensor: its first row is on the left, its last on the right, and each place has the colour of "
        "the largest difference there."
    )
    columns = {"Tensor": NAME, **dict.fromkeys(("Rows", "Elements", "Largest", "Relative norm"), NUMBER)}
    made = ((_name(one), *_numbers(one)) for one in every)
    return joined((
        paragraph(text + down + note, "lead"), key(list(scale(largest))) if largest else EMPTY,
        tag("ul", joined(map(_strip, drawn)), class_="strips"),
        as_table(columns, made, plural(every, "changed tensor"), ENOUGH),
    ))  # fmt: skip


def _strip(one: ChangedRows) -> Markup:
    """A tensor with its numbers and its strip."""
    found = one.diff.change
    words = change_words(one.diff) or "other numbers"
    if found is not None and found.relative is not None and isfinite(found.relative):
        words = f"{words}, relative norm {found.relative:.2e}"
    name = tag("span", breakable(_name(one.diff)), class_="name")
    return tag("li", name, _picture(one), tag("small", words))


def _picture(one: ChangedRows) -> Markup:
    if not one.bins:
        a, b = one.diff.shapes
        text = f"other shapes: {list(a)} and {list(b)}" if a and b and a != b else "not drawn"
        return tag("span", text, class_="none")
    some = sum(1 for bin_ in one.bins if bin_.level)
    worst = max(one.bins, key=lambda bin_: bin_.level)
    rows = one.diff.change.row_count if one.diff.change else 0
    parts = f"in {some} of {len(one.bins)} parts; most in {worst.words}"
    label = f"{_name(one.diff)}: {plural(rows, 'row differs', 'rows differ')}, {parts}"
    if one.cells:
        return heat(one.cells, f"{label}; along the columns, most in {one.columns}")
    return heat([[bin_.level for bin_ in one.bins]], label)


def _name(one: TensorDiff) -> str:
    name = (one.b or one.a)[0]
    return name if not one.a or one.a[0] == name else f"{one.a[0]} → {name}"


def _numbers(one: TensorDiff) -> tuple[str, str, str, str]:
    found = one.change
    if found is None:
        return ("", "", "", "")
    largest = "" if found.largest is None else f"{found.largest:.3g}"
    largest = "NaN" if found.nan_only_a or found.nan_only_b else largest
    relative = "" if found.relative is None or not isfinite(found.relative) else f"{found.relative:.2e}"
    return (f"{found.row_count:,}", f"{found.elements:,} of {found.numel:,}", largest, relative)


def _map(one: MoveFigure) -> Markup:
    more = f", and {one.alike} more that look alike" if one.alike else ""
    text = f"{leading(one.names)}: {one.how}{more}"
    return figure(
        joined((
            tag("p", f"A: {one.a_words}", class_="end"), ribbons(one.above, one.below, one.ribbons, text),
            tag("p", f"B: {one.b_words}", class_="end"),
        )), text, key([(tint, "", name) for tint, name in one.tints]) if one.tints else EMPTY,
    )  # fmt: skip


# --- Maps between layouts as figures: which rows of A's tensors became which of B's ----------------------------------


OWN_TINTS = len(SERIES) - 1
"""Things of one figure that have a tint each."""


class MoveFigure(NamedTuple):
    """Tensors of B, and those of A that they are made of."""

    names: tuple[str, ...]
    """Of B's tensors."""
    how: str
    above: tuple[int, ...]
    """How many rows or columns each tensor of A has."""
    below: tuple[int, ...]
    """The same of B's."""
    ribbons: tuple[Ribbon, ...]
    tints: tuple[tuple[str, str], ...]
    """(tint, what has it), where colours are tensors."""
    a_words: str
    b_words: str
    alike: int
    """How many others look like it, but for numbers in names."""


def move_figures(found: Iterable[TensorDiff]) -> list[MoveFigure]:
    """A figure for each kind of map; those of layers that look alike are one.

    Tensors that are made of the same ones are in one figure.  A map of one whole tensor to one whole tensor, such as a
    transpose, has none: there is nothing to see.
    """
    made = grouped((tuple(sorted({move.old for move in one.moves})), one) for one in found if one.moves)
    alike = grouped(
        (
            # What maps that look alike have in common.
            tuple(
                (numberless(one.b[0]), tuple((numberless(move.old), *move[1:]) for move in one.moves)) for one in diffs
            ),
            diffs,
        )
        for diffs in made.values()
        if len(diffs) > 1
        or len(diffs[0].moves) > 1
        or not (first := diffs[0].moves[0]).length == first.here.of == first.there.of
    )
    return [_figure(same[0], len(same) - 1) for same in alike.values()]


def _figure(diffs: Sequence[TensorDiff], alike: int) -> MoveFigure:
    olds = {move.old: move.here for one in diffs for move in one.moves}
    news = {one.b[0]: one.moves[0].there for one in diffs}
    tints = _tints(diffs, list(olds), list(news))
    a_names, b_names = _ends(olds), _ends(news)
    ribbons = tuple(
        Ribbon(
            (list(olds).index(move.old), move.here.start), (k, move.there.start), move.length, tint,
            a_names.get(move.old) or lines(move.here, move.length), b_names.get(one.b[0]) or a_names.get(move.old)
            or lines(move.there, move.length),
            f"{lines(move.here, move.length)} of {move.old}: {lines(move.there, move.length)} of {one.b[0]}",
        )
        for k, one in enumerate(diffs)
        for move, tint in zip(one.moves, tints[k], strict=True)
    )  # fmt: skip
    key = {move.old if len(olds) > 1 else one.b[0]: tint for k, one in enumerate(diffs)
           for move, tint in zip(one.moves, tints[k], strict=True)}  # fmt: skip
    return MoveFigure(
        tuple(news), diffs[0].how, tuple(place.of for place in olds.values()),
        tuple(place.of for place in news.values()), ribbons,
        tuple((tint, name) for name, tint in key.items()) if len(olds) > 1 or len(news) > 1 else (),
        _words(olds), _words(news), alike,
    )  # fmt: skip


def _tints(diffs: Sequence[TensorDiff], olds: list[str], news: list[str]) -> list[list[str]]:
    """For each move: of several tensors of A or of B each has one.

    Of a single tensor each move has its own, or those that go up together have one.
    """
    if len(olds) > 1:
        return [[series(olds.index(move.old)) for move in one.moves] for one in diffs]
    if len(news) > 1:
        return [[series(k)] * len(one.moves) for k, one in enumerate(diffs)]
    moves = diffs[0].moves
    if len(moves) <= OWN_TINTS:
        return [[series(k) for k in range(len(moves))]]
    found, group = [0], 0
    for last, one in pairwise(moves):
        group += one.here.start < last.here.start
        found.append(group)
    return [[series(group) for group in found]]


def _ends(places: dict[str, LinePlace]) -> dict[str, str]:
    """The last words of names, where there are several."""
    return {name: last_words(name) for name in places} if len(places) > 1 else {}


def _words(places: dict[str, LinePlace]) -> str:
    """What the strips of one side are."""
    kinds = dict.fromkeys("columns" if place.is_column else "rows" for place in places.values())
    names = plural(places, "tensor") if len(places) > 1 else next(iter(places))
    return f"{' and '.join(kinds)} of {names}"


def lines(place: LinePlace, length: int) -> str:
    """Rows or columns in words.

    >>> lines(LinePlace(3, 8), 2), lines(LinePlace(3, 8, True), 1)
    ('rows 3 to 4', 'column 3')
    """
    return span("column" if place.is_column else "row", place.start, place.start + length)


# --- What changed in sharing between two checkpoints: names that share memory in one of them only --------------------


MAX_OWNERS = 6
"""Stored tensors of one side that are drawn."""


class TieChange(NamedTuple):
    """Names that share memory otherwise in the two checkpoints, as each stores them."""

    a: tuple[SharedGroup, ...]
    b: tuple[SharedGroup, ...]
    left_out: int
    """Stored tensors that are not drawn."""
    alike: int
    """How many others look like it, but for numbers in names."""


def changes(a: AliasGraph, b: AliasGraph, tensors: Sequence[TensorDiff]) -> list[TieChange]:
    """The changes, of names that at least one group has in common with the other checkpoint.

    A name of the first is that of the second which holds the same bytes, as `diff` found.
    """
    renamed = {one.a[0]: one.b[0] for one in tensors if len(one.a) == len(one.b) == 1}
    mine, theirs = _sets(a, renamed), _sets(b, {})
    made = [
        _change((a, b), (mine, theirs), names)
        for names in _components(mine, theirs)
        if (_partition(mine, names) != _partition(theirs, names))
        and any(name in mine and name in theirs for name in names)
    ]
    alike = grouped(
        (
            # What two changes that look alike have in common.
            tuple(
                tuple(
                    (
                        numberless(made.owner),
                        made.words,
                        tuple((numberless(wire.name), wire.mark) for wire in made.wires),
                    )
                    for made in side
                )
                for side in (one.a, one.b)
            ),
            one,
        )
        for one in made
    )
    return [same[0]._replace(alike=len(same) - 1) for same in alike.values()]


class _SideName(NamedTuple):
    own: str
    """The name in its own checkpoint."""
    alias_set: str


def _sets(graph: AliasGraph, renamed: Mapping[str, str]) -> dict[str, _SideName]:
    return {renamed.get(name, name): _SideName(name, one.alias_set) for name, one in graph.names.items()}


def _components(*sides: Mapping[str, _SideName]) -> Iterator[tuple[str, ...]]:
    """Names that share memory with each other in either checkpoint, directly or through others."""
    heads: dict[str, str] = {}

    def head(name: str) -> str:
        while heads.setdefault(name, name) != name:
            heads[name] = name = heads[heads[name]]
        return name

    for side in sides:
        first: dict[str, str] = {}
        for name, one in side.items():
            heads[head(name)] = head(first.setdefault(one.alias_set, name))
    found = grouped((head(name), name) for name in heads)
    yield from (tuple(names) for names in found.values() if len(names) > 1)


def _partition(side: Mapping[str, _SideName], names: Iterable[str]) -> set[frozenset[str]]:
    groups: dict[str, set[str]] = {}
    for name in names:
        if name in side:
            groups.setdefault(side[name].alias_set, set()).add(name)
    return set(map(frozenset, groups.values()))


def _change(
    graphs: tuple[AliasGraph, AliasGraph], sides: tuple[Mapping[str, _SideName], Mapping[str, _SideName]],
    names: Sequence[str],
) -> TieChange:  # fmt: skip
    a, b = (
        list(_drawn(graph, side, other, names, letter=letter))
        for graph, side, other, letter in zip(graphs, sides, sides[::-1], "AB", strict=True)
    )
    left_out = max(0, len(a) - MAX_OWNERS) + max(0, len(b) - MAX_OWNERS)
    return TieChange(tuple(a[:MAX_OWNERS]), tuple(b[:MAX_OWNERS]), left_out, 0)


def _drawn(
    graph: AliasGraph, side: Mapping[str, _SideName], other: Mapping[str, _SideName], names: Sequence[str], *,
    letter: str,
) -> Iterator[SharedGroup]:  # fmt: skip
    """The stored tensors of some names; marked are names that the other checkpoint lacks or does not tie to these."""
    keys = {side[name].own: name for name in names if name in side}
    owners = grouped((graph.names[own].owner, own) for own in keys)
    for owner, members in owners.items():
        made = group(owner, [graph.names[own] for own in members], graph)
        first = keys[members[0]]
        marks = {own: _mark(keys[own], first, other, letter) for own in members}
        wires = tuple(wire._replace(mark=marks[wire.name]) for wire in made.wires)
        is_alone = [wire.name for wire in wires if not wire.mark] == [made.owner] and len(wires) == 1
        words = f"{made.words}, shares no memory" if is_alone else made.words
        yield made._replace(words=words, wires=() if is_alone else wires)


def _mark(name: str, first: str, other: Mapping[str, _SideName], letter: str) -> str:
    if name not in other:
        return f"in {letter} only"
    is_tied = first in other and other[first].alias_set == other[name].alias_set
    return "" if name == first or is_tied else f"tied in {letter} only"
