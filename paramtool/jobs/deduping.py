"""Writing a checkpoint with every byte once and every name recorded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from shlex import quote
from typing import Any

from paramtool import formats
from paramtool.engine.digest import Equal
from paramtool.engine.source import Source
from paramtool.engine.verify import by_name, by_safetensors
from paramtool.engine.writer import Staged, check_place, write
from paramtool.errors import OutputError, PlanError, UnsafeError, UsageError, listed
from paramtool.formats import safetensors
from paramtool.formats._codes import CODE_OF
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


def default_output(path: Path, folder: bool, word: str = "dedup") -> str:
    """`model.pt` gives `model.dedup.safetensors`, a folder or an index gives a folder `NAME.dedup` beside it."""
    given = os.fspath(path)
    path = os.path.normpath(given)
    if os.path.basename(path) in ("", os.curdir, os.pardir):
        path = os.path.realpath(given)  # `.` has no name of its own, and beside it is not inside it
    base = os.path.basename(path)
    if os.path.isdir(path):
        return f"{path}.{word}"
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
    if not options.keep:
        raise UsageError("keep is empty; expected first, last or a pattern of names")
    whole = formats.read(path)
    checkpoint = select.section(whole, options.only) if options.only is not None else whole
    warnings = _allow(checkpoint, options.allow_unknown)
    if not checkpoint.entries:
        raise PlanError(f"{os.fspath(path)}: holds no tensor; there is nothing to write")
    target, sharded = _target(path, output, whole, options)
    graph = alias.build(checkpoint, options.keep, parts=False)
    equal = equal_classes(checkpoint, graph, options.min_equal_nbytes, progress) if options.equal else None
    plan, joined = _planned(checkpoint, graph, equal, options)
    outputs = _laid_out(plan, sharded, options.max_shard_nbytes)
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
        left_out=(*_other_sections(whole, options.only), *_left_out(checkpoint, plan)),
        warnings=(
            *checkpoint.notes,
            *warnings,
            *_keep_warnings(joined, options.keep),
            *_name_warnings(target, sharded),
            *_flat_pair_warnings(plan),
        ),
        verified=options.verify and not options.dry_run,
        written=not options.dry_run,
        seconds=0.0,
    )
    if not options.dry_run:
        _write(report, outputs, sharded, options, progress)
    return replace(report, seconds=time.monotonic() - began)


def _target(path: Path, output: Path | None, whole: Checkpoint, options: Options) -> tuple[str, bool]:
    """Where the output goes, and whether it is a folder of shards; an error where it may not go there."""
    asked = options.max_shard_nbytes is not None
    sharded = asked or whole.format.startswith("sharded")
    target = os.fspath(output) if output is not None else default_output(path, sharded)
    if output is not None and target.endswith(".safetensors"):
        if asked:
            raise UsageError(f"{target}: shards need a folder", hint=f"-o {quote(os.path.splitext(target)[0])}")
        sharded = False
    check_place(target, sharded, options.force, [file.path for file in whole.files])
    return target, sharded


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


NEEDED = ("numpy", "ml_dtypes", "safetensors", "blake3")
"""What writing and proving import: a signal inside such an import can end up as any error, or pass unseen."""


def ready(plan: Plan, verify: bool) -> None:
    """Import what writing needs, before there is a temporary file that a signal must not leave behind."""
    copies = (copy for target in plan.targets for copy in target.copies)
    if verify or not all(copy.is_plain and copy.terms[0][1].is_contiguous for copy in copies):
        for name in NEEDED:
            import_module(name)


def _write(
    report: Deduped, outputs: tuple[OutputFile, ...], sharded: bool, options: Options, progress: Progress
) -> None:
    inputs = [file.path for file in report.checkpoint.files]
    ready(report.plan, options.verify)
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
            found += by_safetensors(place(output.name), targets, CODE_OF, source, advance)
    written = formats.read_file(place(outputs[-1].name))
    stored = {target.name for target in report.plan.targets}
    planned = set(report.plan.order)
    expected = {name: entry for name, entry in report.checkpoint.entries.items() if name in planned}
    found += by_name(written, replace(report.checkpoint, entries=expected), stored, advance)
    found += memory_differences(written, replace(report.checkpoint, entries=expected))
    if found:
        raise OutputError(
            listed(f"{report.output}: does not read back as its source, so it was not kept:", found),
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


def _other_sections(whole: Checkpoint, only: str | None) -> Iterator[str]:
    others = [section.name for section in whole.sections if section.name != only]
    if only is not None and others:
        yield f"section{'s' if len(others) > 1 else ''} {', '.join(others)}"


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


def _keep_warnings(graph: AliasGraph, keep: str) -> Iterator[str]:
    """A pattern that chose nothing is most often misspelt."""
    names = (member.name for _, members in graph.groups() for member in members)
    if keep not in ("first", "last") and not any(fnmatchcase(name, keep) for name in names):
        yield f"--keep {keep!r} matches no name that shares its bytes with another; the first names own them"


def _name_warnings(target: str, sharded: bool) -> Iterator[str]:
    if not sharded and not target.endswith(".safetensors"):
        yield f"{target}: safetensors is written under this name; loaders expect it to end in .safetensors"


def _flat_pair_warnings(plan: Plan) -> list[str]:
    taken = safetensors.taken_flat_pairs(plan)
    return [f"metadata has the key {name!r} already, so no flat pair was written for this alias" for name in taken]
