"""Comparing two checkpoints of any formats."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from paramtool import formats
from paramtool.engine.verify import by_name
from paramtool.jobs._progress import Path, Progress, silent
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.passes import select


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` found."""

    output: str
    against: str
    names: int
    differences: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    """Ties that one of them has and that were not compared, because a conjugation or negation was carried out."""


def verify(
    output: Path, against: Path, *, only: str | None = None, subset: bool = False, progress: Progress = silent
) -> Verified:
    """Compare two checkpoints of any formats: every name's dtype, shape, bytes, and which names share memory.

    `only` compares one section of `against`, its prefix stripped; `subset` lets `output` lack names.  A name that the
    output's record declares to be another, as `dedup --ties-from-config` does, may be lacking in `against`.
    """
    found = formats.read(output)
    expected = formats.read(against)
    if only is not None:
        expected = select.section(expected, only)
    found = _without_declared(found, expected)
    if subset:
        expected = replace(expected, entries={n: e for n, e in expected.entries.items() if n in found.entries})
    total = sum(view.nbytes for _, view in expected.windows())
    with progress("verify", total) as advance:
        differences = list(by_name(found, expected, (), advance))
    warnings: list[str] = []
    if not subset:
        differences += memory_differences(found, expected)
        warnings += _not_compared(found, os.fspath(output), expected, os.fspath(against))
        warnings += _not_compared(expected, os.fspath(against), found, os.fspath(output))
    return Verified(
        os.fspath(output), os.fspath(against), len(expected.entries), tuple(differences), tuple(dict.fromkeys(warnings))
    )


def _not_compared(one: Checkpoint, path: str, other: Checkpoint, elsewhere: str) -> Iterator[str]:
    """Ties across a pending sign that a checkpoint has and the other does not."""
    there = alias.parted(other)
    ties = alias.parted(one).items()
    for text in following({n: base for n, base in ties if there.get(n) != base and n in other.entries}):
        yield f"{text} in {path}, conjugated or negated, and apart from it in {elsewhere}; only values were compared"


def following(ties: Mapping[str, str]) -> Iterator[str]:
    """Who follows whom, for people; a text for each that is followed."""
    followers: dict[str, list[str]] = {}
    for name, base in ties.items():
        followers.setdefault(base, []).append(name)
    for base, names in followers.items():
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        verb = "follow" if len(names) > 1 else "follows"
        yield f"{', '.join(map(repr, names[:_SHOWN]))}{more} {verb} {base!r}"


_SHOWN = 4
"""So many of the names that follow another are listed."""


def _without_declared(found: Checkpoint, expected: Checkpoint) -> Checkpoint:
    """What was found, but for names that are declared to be others and that the source never had."""
    kept = {n: e for n, e in found.entries.items() if n in expected.entries or not _is_declared(e)}
    return replace(found, entries=kept)


def _is_declared(entry: Entry) -> bool:
    return entry.link is not None and bool(entry.link.owner) and entry.link.evidence == "declared"


def memory_differences(found: Checkpoint, expected: Checkpoint) -> Iterator[str]:
    """Names that share memory in one checkpoint and not in the other."""
    mine, theirs = (
        {name: memory for name, memory in _memories(checkpoint).items() if name in found.entries}
        for checkpoint in (found, expected)
    )
    both = [name for name in theirs if name in mine]
    pairs: dict[str, str] = {}
    back: dict[str, str] = {}
    for name in both:
        if pairs.setdefault(theirs[name], mine[name]) != mine[name]:
            yield f"{name!r}: shares memory with {theirs[name]!r} in the source and not in the output"
        elif back.setdefault(mine[name], theirs[name]) != theirs[name]:
            yield f"{name!r}: shares memory with {mine[name]!r} in the output and not in the source"


def _memories(checkpoint: Checkpoint) -> dict[str, str]:
    """{name: the first name of its memory}, of what a pending sign makes of a window too."""
    graph = alias.build(checkpoint, parts=False)
    return {**{name: member.memory for name, member in graph.members.items()}, **graph.pending}
