"""What a page says first: what is unsafe, what rules find, what is stored twice or not used, what is not known."""

from __future__ import annotations

from collections.abc import Iterator

from paramtool.commands.inspect import Inspection
from paramtool.errors import plural
from paramtool.findings.report import shown
from paramtool.model.display import size

ERROR, WARNING, NOTE, GOOD = "error", "warning", "note", "good"
Row = tuple[str, str, str]
"""(severity, what it is, a sentence)"""
MAX_FINDINGS = 200


def findings(found: Inspection) -> list[Row]:
    """Everything that somebody should know of a checkpoint; one row that says so if that is nothing."""
    rows = list(_rows(found))
    if not any(severity in (ERROR, WARNING) for severity, _, _ in rows):
        rows.insert(0, (GOOD, "fine", "nothing unsafe, and no bytes that no tensor uses"))
    if len(rows) > MAX_FINDINGS:
        more = len(rows) - MAX_FINDINGS
        rows = [
            *rows[:MAX_FINDINGS],
            (NOTE, "more", f"{plural(more, 'more finding')}: paramtool inspect --json has all"),
        ]
    return rows


def _rows(found: Inspection) -> Iterator[Row]:
    for one in found.unsafe:
        yield ERROR, "unsafe", f"{one.path} is {'called' if one.called else 'named'} by the file; it was not run"
    for name, unknown in found.unsafe_sidecars.items():
        yield from ((ERROR, "unsafe", f"{one.path} is asked for by {name}; it was not run") for one in unknown)
    allowed = [one.path for one in found.checkpoint.unknown if one not in found.unsafe]
    if allowed:
        yield (
            NOTE,
            "classes",
            f"{', '.join(allowed[:6])}{' and more' * (len(allowed) > 6)}: data of classes that are "
            "not known, none of them imported",
        )
    for broken in found.findings or ():
        finding = shown(broken)
        yield finding.severity if finding.severity in (ERROR, WARNING) else NOTE, finding.kind, finding.sentence
    if found.unused_nbytes:
        storages = plural(len(found.graph.unused), "storage")
        yield WARNING, "unused", f"{size(found.unused_nbytes)} of {storages} belong to no tensor: dedup leaves them out"
    if found.content is None:
        yield NOTE, "not compared", "equal bytes in separate storages were not searched for: --equal reads all tensors"
    elif found.duplicate_nbytes:
        yield WARNING, "equal", f"{size(found.duplicate_nbytes)} are stored more than once: dedup stores them once"
    if found.config is not None and not any(one.rule == "config-ties" for one in found.findings or ()):
        from paramtool.commands.config_ties import text

        yield from ((WARNING, "config-ties", text(row)) for row in found.config.broken)
    for group in found.parts.groups if found.parts else ():
        if group.decides:
            yield NOTE, "decide", f"{group.at}: the layout of {', '.join(group.names)} is decided by {group.decides}"
    if found.graph.derived:
        yield NOTE, "calculated", f"{plural(len(found.graph.derived), 'name')} are calculated when the file is loaded"
    yield from ((NOTE, "note", text) for text in found.checkpoint.said())
