"""Writing a checkpoint with every byte once and every name recorded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from paramtool import formats
from paramtool.engine.digest import Equal
from paramtool.engine.source import Source
from paramtool.engine.verify import by_name, by_safetensors
from paramtool.engine.writer import Staged, write
from paramtool.errors import OutputError, UnsafeError, UsageError
from paramtool.formats import safetensors
from paramtool.formats._output import OutputFile
from paramtool.jobs._progress import MIN_EQUAL_NBYTES, Advance, Path, Progress, silent
from paramtool.jobs.inspecting import equal_classes
from paramtool.jobs.verifying import memory_differences
from paramtool.model import alias
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, NoData, Unreadable
from paramtool.model.plan import Plan, check
from paramtool.model.view import View
from paramtool.passes import dedup as dedup_pass
from paramtool.passes import select

SHARD_NBYTES = 5_000_000_000
"""What a sharded input is sharded to again: transformers' own choice."""


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
    nbytes_after: int
    left_out: tuple[str, ...]
    """What the output does not hold, each with the reason."""
    warnings: tuple[str, ...]
    verified: bool
    written: bool
    seconds: float

    @property
    def unused_nbytes(self) -> int:
        """Bytes that the input carried and no tensor uses."""
        return sum(self.graph.unused.values())


def default_output(path: Path, folder: bool, word: str = "dedup") -> str:
    """`model.pt` gives `model.dedup.safetensors`, a folder or an index gives a folder `NAME.dedup` beside it."""
    path = os.path.normpath(os.fspath(path))
    base = os.path.basename(path)
    if os.path.isdir(path):
        return os.path.join(os.path.dirname(path), f"{os.path.basename(os.path.abspath(path))}.{word}")
    if base.endswith(".index.json"):
        stem = base.split(".")[0]
    else:
        stem = os.path.splitext(base)[0]
    name = f"{stem}.{word}" if folder else f"{stem}.{word}.safetensors"
    return os.path.join(os.path.dirname(path), name)


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
    whole = formats.read(path)
    checkpoint = select.section(whole, options.only) if options.only is not None else whole
    warnings = _allow(checkpoint, options.allow_unknown)
    sharded = options.max_shard_nbytes is not None or whole.format.startswith("sharded")
    target = os.fspath(output) if output is not None else default_output(path, sharded)
    if output is not None and sharded and target.endswith(".safetensors"):
        raise UsageError(f"{target}: shards need a folder", hint=f"-o {os.path.splitext(target)[0]}")
    graph = alias.build(checkpoint, options.keep, parts=False)
    equal = equal_classes(checkpoint, graph, options.min_equal_nbytes, progress) if options.equal else None
    plan, joined = _planned(checkpoint, graph, equal, options)
    outputs = _laid_out(plan, sharded, options.max_shard_nbytes)
    left_out = _left_out(checkpoint, plan)
    report = Deduped(
        input=os.fspath(path),
        output=target,
        checkpoint=checkpoint,
        graph=joined,
        plan=plan,
        files=tuple(os.path.join(target, out.name) if out.name else target for out in outputs),
        equal=tuple(equal) if equal is not None else None,
        nbytes_before=sum(file.nbytes for file in whole.files),
        nbytes_after=sum(out.nbytes for out in outputs),
        left_out=tuple(left_out),
        warnings=(*checkpoint.notes, *warnings, *_flat_pair_warnings(plan)),
        verified=options.verify and not options.dry_run,
        written=not options.dry_run,
        seconds=0.0,
    )
    if not options.dry_run:
        _write(report, outputs, sharded, options, progress)
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


def _laid_out(plan: Plan, sharded: bool, max_shard_nbytes: int | None) -> tuple[OutputFile, ...]:
    if sharded:
        return safetensors.lay_out_sharded(plan, max_shard_nbytes or SHARD_NBYTES)
    return safetensors.lay_out(plan)


def _write(
    report: Deduped, outputs: tuple[OutputFile, ...], sharded: bool, options: Options, progress: Progress
) -> None:
    inputs = [file.path for file in report.checkpoint.files]
    with Staged(report.output, sharded, options.force, inputs) as staged, Source(report.checkpoint) as source:
        with progress("write", report.plan.nbytes) as advance:
            write(staged, outputs, source, advance)
        if options.verify:
            with progress("verify", 2 * report.plan.nbytes) as advance:
                _prove(staged.file, outputs, report, source, advance)
        staged.commit()


def _prove(
    place: Callable[[str], str],
    outputs: tuple[OutputFile, ...],
    report: Deduped,
    source: Any,
    advance: Advance,
) -> None:
    """Open what was written with the safetensors library, and compare every name with its source."""
    found: list[str] = []
    for output in outputs:
        targets = [segment for segment in output.segments if not isinstance(segment, bytes)]
        if output.name.endswith(".safetensors") or not output.name:
            found += by_safetensors(place(output.name), targets, safetensors.CODE_OF, source, advance)
    written = formats.read_file(place(outputs[-1].name))
    stored = {target.name for target in report.plan.targets}
    planned = set(report.plan.order)
    expected = {name: entry for name, entry in report.checkpoint.entries.items() if name in planned}
    found += by_name(written, replace(report.checkpoint, entries=expected), stored, advance)
    found += memory_differences(written, replace(report.checkpoint, entries=expected))
    if found:
        raise OutputError(
            f"{report.output}: does not read back as its source, so it was not kept:\n  " + "\n  ".join(found[:20]),
            hint="this is a defect of paramtool or of the disk; please report it with the input's `inspect --json`",
        )


def _allow(checkpoint: Checkpoint, allow_unknown: bool) -> list[str]:
    """Warnings for unknown names that hold data; UnsafeError for calls."""
    where = checkpoint.files[0].path
    needed = [u for u in checkpoint.unknown if u.needed_by]
    if needed:
        lines = [f"{u.path}, for {', '.join(map(repr, u.needed_by[:3]))}" for u in needed]
        raise UnsafeError(
            f"{where}: tensors can only be had by calling what is never called: " + "; ".join(lines),
            hint="paramtool inspect shows the rest of the file",
        )
    called = [u for u in checkpoint.unknown if u.called]
    if called and not allow_unknown:
        raise UnsafeError(
            f"{where}: its pickle calls unknown names: " + "; ".join(f"{u.path}{u.arguments}" for u in called),
            hint="nothing was called, and no tensor needs it: --allow-unknown goes on without",
        )
    held = [u.path for u in checkpoint.unknown if not u.called]
    warnings = [f"called by the pickle, not run, and left out: {u.path}{u.arguments}" for u in called]
    if held:
        warnings.append(f"objects of unknown classes are kept as plain data, without their class: {', '.join(held)}")
    return warnings


def _left_out(checkpoint: Checkpoint, plan: Plan) -> Iterator[str]:
    kept = set(plan.order)
    for name, entry in checkpoint.entries.items():
        if name not in kept:
            yield f"tensor {name!r}: {why_not_plain(entry)}"
    yield from safetensors.left_out_objects(plan)


def why_not_plain(entry: Entry) -> str:
    """What an entry is that keeps it out of an output."""
    match entry.value:
        case View(dtype=dtype):
            return dtype.name
        case Compound(kind=kind):
            return kind
        case NoData(why=why):
            return why
        case Unreadable(needs=needs):
            return f"needs {needs}"


def _flat_pair_warnings(plan: Plan) -> list[str]:
    taken = safetensors.taken_flat_pairs(plan)
    return [f"metadata has the key {name!r} already, so no flat pair was written for this alias" for name in taken]
