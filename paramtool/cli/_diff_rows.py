"""The rows of `paramtool diff`: the verdict, then tensors with one verdict and one map together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paramtool.commands.diff.diff import Diffed
from paramtool.commands.diff.find_base import BaseFound
from paramtool.errors import leading, plural
from paramtool.grouping import grouped
from paramtool.model.checkpoint import GRAPH
from paramtool.model.diff import (
    KINDS,
    LABELS,
    RENAMED,
    SAME,
    Distance,
    TensorDiff,
    counts,
    far,
)
from paramtool.model.display import size
from paramtool.passes.diff.names import NUMBER

Row = tuple[str, ...]
TWIN = "the same bytes as "
"""What a reason says in front of the name of a tensor of the other side."""
MAX_SPANS = 8
"""The most spans of rows that are written out."""


def rows(found: Diffed, *, stat: bool, rows: bool, strict: bool = False) -> Iterator[Row]:
    """The verdict and counts; without `stat` also what differs, and with `rows` which rows.

    What gives exit code 1 is among them in any case: ties and objects, with `strict` also metadata.
    """
    yield "verdict", found.verdict
    for kind, count in counts(found.tensors).items():
        if stat or kind == SAME:
            yield LABELS[kind], plural(count, "tensor")
    if not stat:
        yield from _tensors(found.tensors, rows)
    yield from (("ties", text) for text in found.ties)
    yield from (("objects", text.removeprefix("object ")) for text in found.objects)
    if strict or not stat:
        yield from (("metadata", text.removeprefix("metadata ")) for text in found.metadata)
    yield "note", f"read {size(found.nbytes_read)} in {found.seconds:.1f} s"


def _tensors(found: Iterable[TensorDiff], rows: bool) -> Iterator[Row]:
    """One row for all tensors whose names, verdicts and maps differ only in numbers."""
    groups = grouped(  # exporters number what is in a graph, and these names say nothing
        ((one.kind, "" if one.kind == GRAPH else _names(one), _numberless(one.how)), one)
        for one in found
        if one.kind != SAME
    )
    order = list(KINDS)
    for (kind, names, _), members in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
        first = members[0]
        if kind == GRAPH:
            names = leading([(one.b or one.a)[0] for one in members])
        elif len(members) == 1:
            names = _names(first, numbers=True)
        yield LABELS[kind], plural(len(members), "tensor"), names, _detail(members, with_mean=rows)
        if rows:
            for one in members:
                if one.change and one.change.rows:
                    yield "", ", ".join(one.b), _spans(one.change)


def _numberless(text: str) -> str:
    return NUMBER.sub("*", text)


def _names(one: TensorDiff, *, numbers: bool = False) -> str:
    """`old = new`, or the name alone; without numbers names that are alike are one."""
    a, b = ([name if numbers else _numberless(name) for name in names] for names in (one.a, one.b))
    a, b = list(dict.fromkeys(a)), list(dict.fromkeys(b))
    if a == b or not b:
        return leading(a)
    return f"{leading(a)} = {leading(b)}" if a else leading(b)


def _detail(members: list[TensorDiff], *, with_mean: bool) -> str:
    """The map, or how far the numbers are apart: the largest of all, and the mean of all."""
    first = members[0]
    parts = [_how(members)] if first.how else []
    if not first.is_unique:
        parts.append("other names have the same bytes" if first.kind == RENAMED else "the map is not unique")
    if first.dtypes[0] != first.dtypes[1] and all(first.dtypes):
        parts.append(f"{first.dtypes[0]} -> {first.dtypes[1]}")
    if None not in first.shapes and first.shapes[0] != first.shapes[1]:
        parts.append(f"{list(first.shapes[0] or ())} -> {list(first.shapes[1] or ())}")
    changes = [one.change for one in members if one.change]
    if changes:
        # How many elements differ, and by how much.
        elements, numel = sum(one.elements for one in changes), sum(one.numel for one in changes)
        words = [f"{elements} of {plural(numel, 'element')}", *far(changes)]
        relative = [one.relative for one in changes if one.relative is not None]
        if relative and not any(one.nan_only_a or one.nan_only_b for one in changes):
            words.append(f"relative {max(relative):.2g}")
        parts += [", ".join(words), *(_mean(changes) if with_mean else ())]
    return ", ".join(parts)


def _how(members: list[TensorDiff]) -> str:
    """The map or the reason of all members; one that names tensors of the other side is told of the first member."""
    first, *others = members
    if TWIN not in first.how or all(one.how == first.how for one in others):
        return _numberless(first.how) if others else first.how
    return f"{(first.b or first.a)[0]!r} has {first.how}"


def _mean(changes: list[Distance]) -> Iterator[str]:
    """The mean absolute difference of all elements, where all have one."""
    numel = sum(one.numel for one in changes)
    total = sum(one.mean * one.numel for one in changes if one.mean is not None)
    if numel and not any(one.mean is None for one in changes):
        yield f"mean difference {total / numel:.3g}"


def _spans(change: Distance) -> str:
    shown = ", ".join(f"{a}" if b == a + 1 else f"{a}-{b - 1}" for a, b in change.rows[:MAX_SPANS])
    more = " ..." if len(change.rows) > MAX_SPANS else ""
    return f"{plural(change.row_count, 'row')}: {shown}{more}"


def base_rows(found: BaseFound) -> Iterator[Row]:
    """The base of a fine-tune, and how far each candidate is."""
    yield "verdict", found.answer
    for one in found.candidates:
        if one.why:
            yield "candidate", one.path, one.why
            continue
        same = f"{one.same} of {plural(one.sampled, 'sampled tensor')} the same"
        yield "candidate", one.path, ", ".join([f"distance {one.distance:.3g}", same, *filter(None, [one.how])])
