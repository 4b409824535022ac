"""The section of the page about how two checkpoints differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from paramtool.commands.diff import Diffed
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
from paramtool.commands.report.page import MAX_ROWS, finding_list, module_table
from paramtool.drawing.document import Column, PageSection, figure, folded, paragraph, table, treemap
from paramtool.drawing.markup import EMPTY, Markup, joined, tag
from paramtool.drawing.rows import key
from paramtool.drawing.strips import heat, shares, stacked
from paramtool.errors import plural
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.diff import SAME, WORDS, TensorDiff, counts
from paramtool.model.display import size

ENOUGH = "; `paramtool diff --json` lists all"


def sections(found: Diffed, a: Checkpoint, b: Checkpoint, memory: int) -> Iterator[PageSection]:
    """The verdict with a treemap, changed rows as heat, and the maps of what is the same elsewhere."""
    yield PageSection("difference", "How B differs from A", _verdict(found, b))
    if every := changed(found):
        drawn = changed_rows(every[:MAX_STRIPS], a, b, memory)
        yield PageSection("rows", "Which rows changed", _rows(every, drawn))
    if others := [one for one in found.tensors if one.kind != SAME and one not in every]:
        yield PageSection("moved", "What moved, came or went", _others(others))


def summary(found: Diffed) -> str:
    """The verdict in a sentence."""
    if found.is_same(strict=True):
        return "A and B are the same, name by name."
    if found.is_same():
        return "A and B are the same weights: only names, layouts, lossless casts or metadata differ."
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
        figure(shares(bar, f"Bytes of B by verdict: {words}"), "Bytes of B by verdict") if bar else EMPTY,
        key([(TINTS[kind], "", f"{WORDS[kind]}: {plural(count, 'tensor')}") for kind, count in many.items()]),
        treemap(root, "Bytes of B by verdict") if tensors else EMPTY,
        folded("The same as a table", module_table(root)) if tensors else EMPTY,
        finding_list(rows) if rows else EMPTY,
    ))  # fmt: skip


def _rows(every: Sequence[TensorDiff], drawn: Sequence[ChangedRows]) -> Markup:
    largest = max((one.change.largest for one in every if one.change and one.change.largest is not None
                   and isfinite(one.change.largest)), default=0.0)  # fmt: skip
    made = [(_name(one.diff), _strip(one), *_numbers(one.diff)) for one in drawn]
    made += [(_name(one), EMPTY, *_numbers(one)) for one in every[len(drawn) : MAX_ROWS]]
    numbers = (Column(title, is_number=True) for title in ("Elements", "Largest", "Relative norm"))
    columns = (Column("Tensor", is_name=True), Column("Rows, the first on the left"), *numbers)
    left_out = len(every) - len(drawn)
    note = f"  The {MAX_STRIPS} with the largest differences are drawn." if left_out > 0 else ""
    cut = f"; the first {MAX_ROWS:,}{ENOUGH}" if len(every) > MAX_ROWS else ""
    text = (
        "Each strip is a tensor: its first row is on the left, its last on the right, and each place has the colour of "
        "the largest difference there."
    )
    body = table(columns, made, f"{plural(len(every), 'changed tensor')}{cut}")
    return joined((paragraph(text + note, "lead"), key(list(scale(largest))) if largest else EMPTY, _wide(body)))


def _wide(body: Markup) -> Markup:
    return tag("div", body, class_="wide", tabindex="0", role="region", aria_label="Changed tensors and their rows")


def _name(one: TensorDiff) -> str:
    name = (one.b or one.a)[0]
    return name if not one.a or one.a[0] == name else f"{one.a[0]} → {name}"


def _strip(one: ChangedRows) -> Markup:
    if not one.bins:
        a, b = one.diff.shapes
        return tag("span", f"other shapes: {list(a or ())} and {list(b or ())}")
    some = sum(1 for bin_ in one.bins if bin_.level)
    worst = max(one.bins, key=lambda bin_: bin_.level)
    rows = one.diff.change.row_count if one.diff.change else 0
    parts = f"in {some} of {len(one.bins)} parts; most in {worst.words}"
    return heat(one.bins, f"{_name(one.diff)}: {plural(rows, 'row differs', 'rows differ')}, {parts}")


def _numbers(one: TensorDiff) -> tuple[str, str, str]:
    found = one.change
    if found is None:
        return ("", "", "")
    largest = "" if found.largest is None else f"{found.largest:.3g}"
    relative = "" if found.relative is None else f"{found.relative:.2e}"
    return (f"{found.elements:,} of {found.numel:,}", largest, relative)


def _others(others: Sequence[TensorDiff]) -> Markup:
    """What is the same elsewhere, what only one of the two has, and what could not be decided."""
    columns = (Column("In A", is_name=True), Column("In B", is_name=True), Column("Verdict"), Column("How"))
    made = [
        (_few(one.a), _few(one.b), WORDS[one.kind], change_words(one) + ("" if one.is_unique else "; not unique"))
        for one in others[:MAX_ROWS]
    ]
    cut = f"; the first {MAX_ROWS:,}{ENOUGH}" if len(others) > MAX_ROWS else ""
    return folded(
        f"{plural(len(others), 'tensor')}{cut}",
        table(columns, made, "Tensors that are in other places, of another type, or in one checkpoint only"),
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
