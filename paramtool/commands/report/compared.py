"""The section of the page about how two checkpoints differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

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
from paramtool.commands.report.moves import MoveFigure, move_figures
from paramtool.commands.report.page import MAX_ROWS, finding_list, module_table
from paramtool.commands.report.ties import TieChange, changes
from paramtool.drawing.document import Column, PageSection, figure, folded, paragraph, table, treemap
from paramtool.drawing.markup import EMPTY, Markup, breakable, joined, tag
from paramtool.drawing.ribbons import ribbons
from paramtool.drawing.rows import key
from paramtool.drawing.strips import heat, shares, stacked
from paramtool.drawing.wires import wired
from paramtool.errors import plural
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.diff import ADDED, CHANGED, REMOVED, ROUNDED, SAME, UNDECIDED, WORDS, TensorDiff, counts
from paramtool.model.display import size

MAX_TIES, MAX_MAPS = 12, 16
"""Figures of each section."""
FEW = 10
"""A table of no more rows is open."""
ENOUGH = "; `paramtool diff --json` lists all"


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
        yield PageSection("moved", "What moved, came or went", _others(others))


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
        (WORDS[kind], nbytes[kind], TINTS[kind], "", f"{plural(many[kind], 'tensor')}, {size(nbytes[kind])}")
        for kind in many
    )
    root = tree(tensors, separator_of(b.entries))
    rows = [("warning", "ties", text) for text in found.ties[:100]]
    rows += [("note", "objects", text) for text in found.objects[:100]]
    rows += [("note", "metadata", text) for text in found.metadata[:50]]
    rows += [("note", "note", text) for text in found.notes[:50]]
    words = ", ".join(f"{plural(count, 'tensor')} {WORDS[kind]}" for kind, count in many.items())
    return joined((
        paragraph(f"{summary(found)}  {words[:1].upper()}{words[1:]}.  {size(found.nbytes_read)} were read, and every "
                  "verdict was proved by comparing all bytes.", "lead"),
        figure(shares(bar, f"Bytes of B by verdict: {words}"), "Bytes of B by verdict") if len(bar) > 1 else EMPTY,
        key([(TINTS[kind], "", f"{WORDS[kind]}: {plural(count, 'tensor')}") for kind, count in many.items()]),
        treemap(root, "Bytes of B by verdict") if root.nbytes else EMPTY,
        folded("The same as a table", module_table(root)) if root.nbytes else EMPTY,
        finding_list(rows) if rows else EMPTY,
    ))  # fmt: skip


def _ties(found: Sequence[TieChange]) -> Markup:
    """Each change as A and B store it, beside each other."""
    lead = "Names that share memory in one checkpoint and not in the other, as each stores them."
    hidden = len(found) - MAX_TIES
    return joined((
        paragraph(lead, "lead"), joined(map(_tie, found[:MAX_TIES])),
        paragraph(f"{plural(hidden, 'more change')} of this kind, not drawn.") if hidden > 0 else EMPTY,
    ))  # fmt: skip


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
    return joined((
        paragraph(text + down + note, "lead"), key(list(scale(largest))) if largest else EMPTY,
        tag("ul", joined(map(_strip, drawn)), class_="strips"),
        folded("The same as a table", _numbers_table(every)),
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


def _numbers_table(every: Sequence[TensorDiff]) -> Markup:
    columns = (Column("Tensor", is_name=True), *(Column(title, is_number=True) for title in
               ("Rows", "Elements", "Largest", "Relative norm")))  # fmt: skip
    cut = f"; the first {MAX_ROWS:,}{ENOUGH}" if len(every) > MAX_ROWS else ""
    made = [(_name(one), *_numbers(one)) for one in every[:MAX_ROWS]]
    return table(columns, made, f"{plural(len(every), 'changed tensor')}{cut}")


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


def _others(others: Sequence[TensorDiff]) -> Markup:
    """What is the same elsewhere, what only one of the two has, and what could not be decided."""
    columns = (Column("In A", is_name=True), Column("In B", is_name=True), Column("Verdict"), Column("How"))
    made = [
        (_few(one.a), _few(one.b), WORDS[one.kind], change_words(one) + ("" if one.is_unique else "; not unique"))
        for one in others[:MAX_ROWS]
    ]
    cut = f"; the first {MAX_ROWS:,}{ENOUGH}" if len(others) > MAX_ROWS else ""
    maps = move_figures(others)
    hidden = len(maps) - MAX_MAPS
    lead = "The upper strips are A's tensors, the lower ones B's, and each band leads rows or columns to their place."
    return joined((
        paragraph(lead, "lead") if maps else EMPTY, joined(map(_map, maps[:MAX_MAPS])),
        paragraph(f"{plural(hidden, 'more map')} not drawn.") if hidden > 0 else EMPTY,
        folded(f"{plural(len(others), 'tensor')}{cut}",
               table(columns, made, "Tensors that are in other places, of another type, or in one checkpoint only"),
               is_open=len(made) <= FEW),
    ))  # fmt: skip


def _map(one: MoveFigure) -> Markup:
    more = f", and {one.alike} more that look alike" if one.alike else ""
    text = f"{_few(one.names)}: {one.how}{more}"
    return figure(
        joined((
            tag("p", f"A: {one.a_words}", class_="end"), ribbons(one.above, one.below, one.ribbons, text),
            tag("p", f"B: {one.b_words}", class_="end"),
        )), text, key([(tint, "", name) for tint, name in one.tints]) if one.tints else EMPTY,
    )  # fmt: skip


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
