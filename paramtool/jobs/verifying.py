"""Comparing two checkpoints of any formats."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paramtool import formats
from paramtool.engine.verify import by_name
from paramtool.jobs._progress import Path, Progress, silent
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint
from paramtool.passes import select


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` found."""

    output: str
    against: str
    names: int
    differences: tuple[str, ...]


def verify(
    output: Path, against: Path, *, only: str | None = None, subset: bool = False, progress: Progress = silent
) -> Verified:
    """Compare two checkpoints of any formats: every name's dtype, shape, bytes, and which names share memory.

    `only` compares one section of `against`, its prefix stripped; `subset` lets `output` lack names.
    """
    found = formats.read(output)
    expected = formats.read(against)
    if only is not None:
        expected = select.section(expected, only)
    if subset:
        expected = replace(expected, entries={n: e for n, e in expected.entries.items() if n in found.entries})
    total = sum(view.nbytes for _, view in expected.windows())
    with progress("verify", total) as advance:
        differences = list(by_name(found, expected, (), advance))
    if not subset:
        differences += memory_differences(found, expected)
    return Verified(os.fspath(output), os.fspath(against), len(expected.entries), tuple(differences))


def memory_differences(found: Checkpoint, expected: Checkpoint) -> Iterator[str]:
    """Names that share memory in one checkpoint and not in the other."""
    mine, theirs = (
        {name: member.memory for name, member in alias.build(c, parts=False).members.items() if name in found.entries}
        for c in (found, expected)
    )
    both = [name for name in theirs if name in mine]
    pairs: dict[str, str] = {}
    back: dict[str, str] = {}
    for name in both:
        if pairs.setdefault(theirs[name], mine[name]) != mine[name]:
            yield f"{name!r}: shares memory with {theirs[name]!r} in the source and not in the output"
        elif back.setdefault(mine[name], theirs[name]) != theirs[name]:
            yield f"{name!r}: shares memory with {mine[name]!r} in the output and not in the source"
