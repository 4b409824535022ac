"""`paramtool diff`: how two checkpoints differ, and the map between them where only names or layouts do."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import click

from paramtool.cli import _render
from paramtool.cli._options import Row, command_line
from paramtool.cli._paths import FILE
from paramtool.cli._render import Rows, current, every
from paramtool.commands.diff import diff as diff_command
from paramtool.commands.diff.diff import Diffed
from paramtool.commands.diff.find_base import BaseFound
from paramtool.errors import exit_code as first_of
from paramtool.errors import leading, plural
from paramtool.grouping import grouped
from paramtool.model.checkpoint import GRAPH
from paramtool.model.diff import KINDS, LABELS, RENAMED, SAME, TensorDiff, counts, far
from paramtool.model.display import size
from paramtool.passes.diff.names import NUMBER


@command_line(
    diff_command.diff,
    "paths=A B",
    common="find_base stat rows exit_code strict atol rtol only config",
    codes="0 compared, 1 other weights, or no base (with --exit-code), 2 usage, 3 bad file, 4 unsafe file.",
    find_base=Row(
        "Instead: name the base that X was fine-tuned from, of the candidates A, B and more, by sampled rows.",
        "X",
        type=FILE,
    ),
    stat=Row("Print the verdict and counts only, and ties and objects that differ."),
    rows=Row("Say which rows of each changed tensor differ, and the mean difference."),
    exit_code=Row("Exit with 1 where A and B are not the same weights, or close by --atol and --rtol."),
    strict=Row(
        "With --exit-code: names, layouts, lossless casts, metadata and graph constants have to be the same, too."
    ),
    atol=Row(
        "Accept numbers that are no further apart than X + RTOL * |b|, as numpy.allclose: equal within X.",
        "X",
    ),
    rtol=Row("The same, relative to the numbers of B.", "RTOL"),
    only=Row("Compare this section of both.", "SECTION"),
)
def command(
    paths: tuple[str, ...], *, find_base: str | None, stat: bool, rows: bool, exit_code: bool, strict: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Compare two checkpoints by content: what changed, and what is the same under other names or in another layout.

    Every verdict is proved by comparing all bytes.

    \b
    $ paramtool diff base/ finetuned/
    $ paramtool diff --find-base finetuned/ candidate-1/ candidate-2/
    """
    if find_base is not None and not paths:
        raise click.UsageError(f"no candidates are given; expected --find-base {find_base} CANDIDATE...")
    if find_base is None and len(paths) != 2:
        given = "1 is" if len(paths) == 1 else f"{len(paths)} are"
        raise click.UsageError(f"diff compares two checkpoints, A and B, and {given} given")
    if strict and not exit_code:
        raise click.UsageError("--strict says when --exit-code gives 1, and --exit-code is not given")
    if find_base is not None:
        of_two = [options.pop(name) for name in ("atol", "rtol", "only")]
        if stat or rows or strict or any(of_two):
            raise click.UsageError("--find-base takes --exit-code alone of what is said of two checkpoints")
        from paramtool.commands.diff import find_base as finding

        options.pop("memory")
        base = finding.find_base(find_base, paths, progress=_render.counted, **options)
        _render.report(base, _base_rows)
        return first_of([*(one.exit_code for one in base.candidates), int(exit_code and not base.base)])
    found = diff_command.diff(*paths, progress=_render.progress, **options)
    _render.report(found, partial(_rows, stat=stat, rows=rows, strict=strict), (*found.notes, *found.doubts))
    return int(exit_code and not found.judge(strict=strict))


# --- The rows of `paramtool diff`: the verdict, then tensors with one verdict and one map together --------------------


TWIN = "the same bytes as "
"""What a reason says in front of the name of a tensor of the other side."""
MAX_SPANS = 8
"""The most spans of rows that are written out."""


def _rows(found: Diffed, *, stat: bool, rows: bool, strict: bool = False) -> Rows:
    """The verdict and counts; without `stat` also what differs, and with `rows` which rows.

    What gives exit code 1 is among them in any case: ties and objects, with `strict` also metadata.
    """
    yield "difference" if current.quiet and not found.is_close else "verdict", found.verdict
    for kind, count in counts(found.tensors).items():
        if stat or kind == SAME:
            yield LABELS[kind], plural(count, "tensor")
    if not stat:
        yield from _tensors(found.tensors, rows)
    yield from every("ties", found.ties)
    yield from every("objects", (text.removeprefix("object ") for text in found.objects))
    if strict or not stat:
        yield from every("metadata", (text.removeprefix("metadata ") for text in found.metadata))
    yield "note", f"read {size(found.nbytes_read)} in {found.seconds:.1f} s"


def _tensors(found: Iterable[TensorDiff], rows: bool) -> Rows:
    """One row for all tensors whose names, verdicts and maps differ only in numbers."""

    def alike(one: TensorDiff) -> tuple[str, str, str]:
        if one.kind == GRAPH:  # exporters number what is in a graph, and these names say nothing
            return one.kind, "", _numberless(one.how)
        is_alone = current.verbose or bool(one.change and not one.change.is_finite)
        return one.kind, _names(one, numbers=is_alone), _numberless(one.how)

    groups = grouped((alike(one), one) for one in found if one.kind != SAME)
    order = list(KINDS)
    for (kind, names, _), members in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
        shown = [(one.b or one.a)[0] for one in members] if kind == GRAPH else names
        if kind != GRAPH and len(members) == 1:
            shown = _names(members[0], numbers=True)
        yield LABELS[kind], plural(members, "tensor"), shown, _detail(members, with_mean=rows)
        if rows:
            for one in members:
                if one.change and one.change.rows:
                    spans = ", ".join(f"{a}" if b == a + 1 else f"{a}-{b - 1}" for a, b in one.change.rows[:MAX_SPANS])
                    more = " ..." if len(one.change.rows) > MAX_SPANS else ""
                    yield "", ", ".join(one.b), f"{plural(one.change.row_count, 'row')}: {spans}{more}"


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
        parts.append(", ".join(words))
        total = sum(one.mean * one.numel for one in changes if one.mean is not None)
        if with_mean and numel and all(one.mean is not None for one in changes):
            parts.append(f"mean difference {total / numel:.3g}")
    return ", ".join(parts)


def _how(members: list[TensorDiff]) -> str:
    """The map or the reason of all members; one that names tensors of the other side is told of the first member."""
    first, *others = members
    if TWIN not in first.how or all(one.how == first.how for one in others):
        return _numberless(first.how) if others else first.how
    return f"{(first.b or first.a)[0]!r} has {first.how}"


def _base_rows(found: BaseFound) -> Rows:
    """The base of a fine-tune, and how far each candidate is."""
    yield "verdict", found.answer
    for one in found.candidates:
        if one.why:
            yield "candidate", one.path, one.why
            continue
        same = f"{one.same} of {plural(one.sampled, 'sampled tensor')} the same"
        yield "candidate", one.path, ", ".join([f"distance {one.distance:.3g}", same, *filter(None, [one.how])])
