"""Writing a checkpoint with every byte once and every name recorded."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from paramtool import formats
from paramtool.engine.digest import Equal
from paramtool.errors import PlanError, UsageError
from paramtool.formats import safetensors
from paramtool.jobs._progress import MIN_EQUAL_NBYTES, Path, Progress, silent
from paramtool.jobs._writing import (
    Work,
    allow,
    flat_pair_warnings,
    laid_out,
    left_out,
    name_warnings,
    other_sections,
    place,
)
from paramtool.jobs.inspecting import equal_classes
from paramtool.model import alias
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Plan, check
from paramtool.passes import dedup as dedup_pass
from paramtool.passes import select


@dataclass(frozen=True, slots=True)
class Deduped:
    """What `dedup` did, or would do."""

    input: str
    output: str
    checkpoint: Checkpoint
    graph: AliasGraph
    plan: Plan
    files: tuple[str, ...]
    """The files of the output, as paths."""
    equal: tuple[Equal, ...] | None
    """Classes of equal windows that now stand once; None where content was not looked at."""
    nbytes_before: int
    """The files of the input, or what the storages of the one section hold."""
    nbytes_after: int
    unused_nbytes: int
    """Bytes that the input carried and no tensor uses."""
    left_out: tuple[str, ...]
    """What the output does not hold, each with the reason."""
    warnings: tuple[str, ...]
    verified: bool
    written: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Options:
    """How `dedup` goes about it."""

    keep: str = "first"
    """Which name owns what several share: `first`, `last`, or a pattern of fnmatch's."""
    only: str | None = None
    """One section alone, its prefix stripped from the names."""
    max_shard_nbytes: int | None = None
    """Write a folder of shards of at most so many bytes; None follows the input."""
    equal: bool = True
    min_equal_nbytes: int = MIN_EQUAL_NBYTES
    skip_unsupported: bool = False
    allow_unknown: bool = False
    verify: bool = True
    dry_run: bool = False
    force: bool = False


def dedup(
    path: Path,
    output: Path | None = None,
    options: Options | None = None,
    *,
    progress: Progress = silent,
    **more: Any,
) -> Deduped:
    """Write a checkpoint with every byte once and every name recorded.

    `more` are fields of `Options` by name: `dedup("model.pt", keep="last")`.  FormatError, UnsafeError, PlanError or
    OutputError where it is not possible; nothing is left behind then.
    """
    options = replace(options or Options(), **more)
    began = time.monotonic()
    if not options.keep:
        raise UsageError("keep is empty; expected first, last or a pattern of names")
    whole = formats.read(path)
    checkpoint = select.section(whole, options.only) if options.only is not None else whole
    warnings = allow(checkpoint, options.allow_unknown)
    if not checkpoint.entries:
        raise PlanError(f"{os.fspath(path)}: holds no tensor; there is nothing to write")
    target, sharded = place(path, output, whole, options.max_shard_nbytes, options.force, "dedup")
    graph = alias.build(checkpoint, options.keep, parts=False)
    equal = equal_classes(checkpoint, graph, options.min_equal_nbytes, progress) if options.equal else None
    plan, joined = _planned(checkpoint, graph, equal, options)
    outputs = laid_out(plan, sharded, options.max_shard_nbytes)
    sizes = whole.files if checkpoint is whole else checkpoint.storages.values()
    report = Deduped(
        input=os.fspath(path),
        output=target,
        checkpoint=checkpoint,
        graph=joined,
        plan=plan,
        files=tuple(os.path.join(target, out.name) if out.name else target for out in outputs),
        equal=tuple(equal) if equal is not None else None,
        nbytes_before=sum(one.nbytes for one in sizes),
        nbytes_after=sum(out.nbytes for out in outputs),
        unused_nbytes=sum(graph.unused.values()),
        left_out=(*other_sections(whole, options.only), *left_out(checkpoint, plan)),
        warnings=(
            *checkpoint.notes,
            *warnings,
            *_keep_warnings(joined, options.keep),
            *name_warnings(target, sharded),
            *flat_pair_warnings(plan),
        ),
        verified=options.verify and not options.dry_run,
        written=not options.dry_run,
        seconds=0.0,
    )
    if not options.dry_run:
        planned = set(plan.order)
        kept = {name: entry for name, entry in checkpoint.entries.items() if name in planned}
        Work(checkpoint, plan, outputs, target, sharded, kept).carry_out(options.force, options.verify, progress)
    return replace(report, seconds=time.monotonic() - began)


def _planned(
    checkpoint: Checkpoint, graph: AliasGraph, equal: list[Equal] | None, options: Options
) -> tuple[Plan, AliasGraph]:
    joined = dedup_pass.join(graph, [found.names for found in equal or ()], options.keep)
    plan = dedup_pass.plan(checkpoint, joined, options.skip_unsupported)
    if options.skip_unsupported and (refused := safetensors.refusals(plan)):
        kept = {name: entry for name, entry in checkpoint.entries.items() if name not in refused}
        smaller = replace(checkpoint, entries=kept)
        graph = alias.build(smaller, options.keep, parts=False)
        classes = [[n for n in found.names if n in kept] for found in equal or ()]
        joined = dedup_pass.join(graph, [names for names in classes if len(names) > 1], options.keep)
        plan = dedup_pass.plan(smaller, joined, True)
        checkpoint = smaller
    constant = {name for found in equal or () if found.constant for name in found.names}
    plan = replace(plan, aliases=tuple(replace(a, constant=a.name in constant) for a in plan.aliases))
    check(plan, plan.order, checkpoint.storages)
    return plan, joined


def _keep_warnings(graph: AliasGraph, keep: str) -> Iterator[str]:
    """A pattern that chose nothing is most often misspelt."""
    names = (member.name for _, members in graph.groups() for member in members)
    if keep not in ("first", "last") and not any(fnmatchcase(name, keep) for name in names):
        yield f"--keep {keep!r} matches no name that shares its bytes with another; the first names own them"
