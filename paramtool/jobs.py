"""One function for each thing that people ask for; each joins formats, passes and the engine.

They return plain data and print nothing.  The command line is one call of these, and so is the public library.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paramtool import errors, formats
from paramtool.errors import FormatError, OutputError, PlanError, UnsafeError, UsageError
from paramtool.formats import OutputFile, safetensors
from paramtool.model import alias
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, NoData, Unreadable
from paramtool.model.plan import Plan, check
from paramtool.model.storage import SourceFile
from paramtool.model.view import View
from paramtool.passes import dedup as dedup_pass
from paramtool.passes import select

if TYPE_CHECKING:
    import numpy as np

    from paramtool.engine.digest import Equal

Path = str | os.PathLike[str]
Advance = Callable[[int], None]
Progress = Callable[[str, int], AbstractContextManager[Advance]]
"""`with progress("writing", nbytes) as advance: advance(n)`."""

MIN_EQUAL_NBYTES = 4096
SHARD_NBYTES = 5_000_000_000


@contextmanager
def silent(label: str, total: int) -> Iterator[Advance]:
    """Progress that nobody looks at."""
    yield lambda nbytes: None


def alias_graph(checkpoint: Checkpoint, keep: str = "first") -> AliasGraph:
    """Which names share which bytes, by storage and by the file's own record."""
    return alias.build(checkpoint, keep)


# --- inspect ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inspection:
    """What `inspect` knows of a checkpoint."""

    path: str
    checkpoint: Checkpoint
    graph: AliasGraph
    equal: tuple[Equal, ...] | None = None
    """Classes of equal windows; None where content was not looked at."""
    digests: Mapping[str, str] | None = None
    """{name: blake3}, where asked for."""

    @property
    def unused_nbytes(self) -> int:
        """Bytes of storages that no tensor looks at."""
        return sum(self.graph.unused.values())

    @property
    def duplicate_nbytes(self) -> int:
        """Bytes that are stored more than once, as far as content was looked at."""
        return sum(
            (len({self.graph.members[n].window for n in found.names}) - 1)
            * self.graph.members[found.names[0]].window.nbytes
            for found in self.equal or ()
        )


def inspect(
    path: Path,
    *,
    digests: bool = False,
    equal: bool = False,
    min_equal_nbytes: int = MIN_EQUAL_NBYTES,
    progress: Progress = silent,
) -> Inspection:
    """Describe a checkpoint.  Tensor bytes are read only for `digests` and `equal`."""
    checkpoint = formats.read(path)
    graph = alias.build(checkpoint)
    if not (digests or equal):
        return Inspection(os.fspath(path), checkpoint, graph)
    from paramtool.engine.digest import digest
    from paramtool.engine.source import Source

    found = _equal_classes(checkpoint, graph, min_equal_nbytes, progress)
    made: dict[str, str] = {}
    if digests:
        windows = dict(checkpoint.windows())
        with (
            Source(checkpoint) as source,
            progress("digest", sum(v.nbytes for v in windows.values())) as advance,
        ):
            known: dict[View, str] = {}
            for name, view in windows.items():
                if view not in known:
                    known[view] = digest(source, view, advance)
                made[name] = known[view]
    return Inspection(os.fspath(path), checkpoint, graph, tuple(found), made if digests else None)


def _equal_classes(checkpoint: Checkpoint, graph: AliasGraph, min_nbytes: int, progress: Progress) -> list[Equal]:
    groups = dedup_pass.candidates(checkpoint, graph, min_nbytes)
    if not groups:
        return []
    from paramtool.engine.digest import equal_classes
    from paramtool.engine.source import Source

    with Source(checkpoint) as source, progress("compare", 0) as advance:
        return list(equal_classes(source, groups, advance))


# --- dedup -----------------------------------------------------------------------------------------------------------


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
    equal = _equal_classes(checkpoint, graph, options.min_equal_nbytes, progress) if options.equal else None
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
    from paramtool.engine.source import Source
    from paramtool.engine.writer import Staged, write

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
    from paramtool.engine.verify import by_name, by_safetensors

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
    found += _memory_differences(written, replace(report.checkpoint, entries=expected))
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
            yield f"tensor {name!r}: {_kind(entry)}"
    yield from safetensors.left_out_objects(plan)


def _kind(entry: Entry) -> str:
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


# --- verify ----------------------------------------------------------------------------------------------------------


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
    from paramtool.engine.verify import by_name

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
        differences += _memory_differences(found, expected)
    return Verified(os.fspath(output), os.fspath(against), len(expected.entries), tuple(differences))


def _memory_differences(found: Checkpoint, expected: Checkpoint) -> Iterator[str]:
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


# --- export ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exported:
    """What `export` wrote."""

    output: str
    names: tuple[str, ...]
    nbytes: int


MAX_EXPANDED_NBYTES = 1 << 30


def export(
    path: Path,
    output: Path,
    *,
    names: Collection[str] | None = None,
    like: Path | None = None,
    only: str | None = None,
    max_bytes: int = MAX_EXPANDED_NBYTES,
    force: bool = False,
    progress: Progress = silent,
) -> Exported:
    """Write a plain safetensors file with exactly the names that one variant wants, each stored for itself.

    The names are given, or those of `like`, whose shapes must agree.  `max_bytes` bounds what one expanded (stride 0)
    tensor may grow to.  UsageError where a name is missing, PlanError where one has no plain form.
    """
    if (names is None) == (like is None):
        raise UsageError("say which names: names or like, one of them")
    shapes = _names_like(formats.read(like)) if like is not None else dict.fromkeys(names or ())
    checkpoint = select.for_names(formats.read(path), shapes, only)
    where = os.fspath(path)
    missing = [name for name in shapes if name not in checkpoint.entries]
    if missing:
        raise UsageError(
            f"{where}: lacks {len(missing)} of {len(shapes)} names: {', '.join(map(repr, missing[:10]))}",
            hint=f"paramtool inspect --tensors {where} lists what it has",
        )
    _check_shapes(where, checkpoint, shapes, max_bytes)
    plan = dedup_pass.plain(checkpoint, shapes)
    check(plan, shapes, checkpoint.storages)
    outputs = safetensors.lay_out(replace(plan, metadata=checkpoint.metadata))
    from paramtool.engine.source import Source
    from paramtool.engine.writer import Staged, write

    inputs = [file.path for file in checkpoint.files]
    with Staged(os.fspath(output), False, force, inputs) as staged, Source(checkpoint) as source:
        with progress("write", plan.nbytes) as advance:
            write(staged, outputs, source, advance)
        staged.commit()
    return Exported(os.fspath(output), plan.order, outputs[0].nbytes)


def _names_like(other: Checkpoint) -> dict[str, tuple[int, ...] | None]:
    """The names of another checkpoint with their shapes: its one model section, or all of it."""
    models = [section for section in other.sections if section.role == "model"]
    if len(models) == 1:
        other = select.section(other, models[0].name)
    return {name: e.value.shape if isinstance(e.value, View) else None for name, e in other.entries.items()}


def _check_shapes(
    where: str, checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...] | None], max_bytes: int
) -> None:
    wrong = []
    for name, shape in shapes.items():
        value = checkpoint.entries[name].value
        if not isinstance(value, View):
            continue
        if shape is not None and value.shape != shape:
            wrong.append(f"{name!r}: has shape {list(value.shape)}; wanted {list(shape)}")
        if value.nbytes > max(max_bytes, value.byte_stop - value.byte_start):
            wrong.append(
                f"{name!r}: is expanded and would grow to {value.nbytes} bytes; --max-bytes allows {max_bytes}"
            )
    if wrong:
        raise PlanError(f"{where}: {len(wrong)} tensors do not fit:\n  " + "\n  ".join(wrong[:20]))


# --- loading ---------------------------------------------------------------------------------------------------------


def load_file(path: Path, *, section: str | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """Every name of a checkpoint as a writable NumPy array; names that share memory in the source share it here.

    bfloat16 and float8 come as ml_dtypes; packed types (float4, float6) as uint8 with the last axis in bytes.  Parts of
    sparse and quantised tensors come as `name/part`.  FormatError names a tensor that the file has no data for.
    """
    import ml_dtypes  # noqa: F401 - registers bfloat16 and the float8 types with NumPy
    import numpy as np

    from paramtool.engine.load import fill, memories, numpy_form
    from paramtool.engine.source import Source

    checkpoint = formats.read(path)
    if section is not None:
        checkpoint = select.section(checkpoint, section)
    refuse_dataless(checkpoint)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    with Source(checkpoint) as source:
        for memory in memories(alias.build(checkpoint)):
            buffer = np.empty(memory.nbytes, "u1")
            fill(source, memory, buffer.data)
            for name, window in memory.windows:
                dtype, view = numpy_form(window)
                strides = [stride * view.dtype.block_bytes for stride in view.strides]
                arrays[name] = np.ndarray(view.shape, dtype, buffer.data, view.byte_start, strides)
    for name, entry in checkpoint.entries.items():
        if isinstance(entry.value, Compound):
            _resolve_loaded(arrays, name, entry.value)
    return {name: arrays[name] for name in _loaded_order(checkpoint, arrays)}


def _loaded_order(checkpoint: Checkpoint, arrays: Mapping[str, Any]) -> list[str]:
    windows = [name for name, _ in checkpoint.windows()]
    return [name for name in dict.fromkeys([*checkpoint.entries, *windows]) if name in arrays]


def _resolve_loaded(arrays: dict[str, Any], name: str, value: Compound) -> None:
    """A conjugated or negated tensor under its own name, carried out."""
    from paramtool.model.plan import PENDING

    if value.kind in PENDING:
        array = arrays.pop(f"{name}/data")
        array = array.conj() if "conj" in value.kind else array
        arrays[name] = -array if "neg" in value.kind else array.copy()


def refuse_dataless(checkpoint: Checkpoint) -> None:
    where = checkpoint.files[0].path
    empty = {n: _kind(e) for n, e in checkpoint.entries.items() if isinstance(e.value, (NoData, Unreadable))}
    if empty:
        shown = ", ".join(f"{name!r} ({why})" for name, why in list(empty.items())[:5])
        raise FormatError(f"{where}: {len(empty)} tensors have no data: {shown}", hint="section=... loads another part")


__all__ = ["SourceFile", "alias_graph", "dedup", "errors", "export", "inspect", "load_file", "verify"]
