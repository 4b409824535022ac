"""Writing a checkpoint with every byte once and every name recorded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from shlex import quote

from paramtool.commands import config_ties, copied_state
from paramtool.commands._differences import alias_sets
from paramtool.commands.compare import Looking, compare
from paramtool.commands.name_lists import with_firsts
from paramtool.commands.opening import Each, each, opened
from paramtool.commands.output.destination import Destination, place
from paramtool.commands.output.losses import (
    allow,
    flat_pair_warnings,
    keeping,
    left_out,
    lost_warnings,
    name_warnings,
    other_sections,
)
from paramtool.commands.output.options import ObjectOptions, keywords
from paramtool.commands.output.sidecar_checks import unseen_warnings
from paramtool.commands.output.write import WholeReport, Work, done, laid_out
from paramtool.commands.output.writer import Fitted
from paramtool.commands.progress import MEMORY_NBYTES, MIN_EQUAL_NBYTES, Path, Progress, silent
from paramtool.commands.sections import section_of
from paramtool.errors import PlanError, UsageError
from paramtool.formats.folder.weight_names import Weights
from paramtool.formats.judging import judging
from paramtool.lazy_dataclass import frozen
from paramtool.model import alias
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.config import NONE, given, reading
from paramtool.model.match import Content, Equal
from paramtool.model.plan import check
from paramtool.passes import select
from paramtool.passes.dedup import plan as dedup_pass
from paramtool.passes.dedup.placement import join, owned, settle


@frozen(kw_only=True, repr=False)
class Deduped(WholeReport):
    """What `dedup` did, or would do."""

    graph: AliasGraph
    """Which names share which bytes, after comparing."""
    format: str
    """What was written: `safetensors` or `torch`."""
    content: Content | None
    """What comparing found; None where content was not looked at."""
    unused_nbytes: int
    """Bytes that the input carried and no tensor uses."""
    repeated_nbytes: int
    """Equal bytes that are stored more than once because the output's format would tie their names."""
    min_equal_bytes: int
    """The size of the smallest tensors that were compared."""
    tied: tuple[tuple[str, ...], ...] = ()
    """Names with equal bytes that are stored once because the model of the folder's config ties them."""

    _schema = "dedup/2"
    _members = (
        "input output written verified nbytes_before nbytes_after names=plan.names.__len__ stored=plan.targets.__len__ "
        "groups=graph.shared_groups unused_nbytes repeated_nbytes equal constants=content.constants "
        "matches=content.matches derived=plan.derived_names left_out warnings files seconds needs+ cloned_nbytes+"
    )

    @property
    def equal(self) -> tuple[Equal, ...] | None:
        """Classes of equal windows; None where content was not looked at."""
        return None if self.content is None else self.content.equal


@frozen(kw_only=True)
class DedupOptions(ObjectOptions):
    """How `dedup` goes about it."""

    keep: str = "first"
    """Which name owns what several share: `first`, `last`, or a pattern of fnmatch's."""
    ties: Mapping[str, str] | None = None
    """{name: the first of the names that are one tensor} of a model: those that the file lacks are recorded, too."""
    equal: bool = True
    """Compare the bytes of tensors with different names."""
    min_equal_bytes: int = MIN_EQUAL_NBYTES
    """Smaller tensors are not compared."""
    across_roles: bool = False
    """Whether content may join model weights with the optimizer's state or an EMA copy."""
    derive_casts: bool = False
    """Leave out what a cast of another tensor gives; loading calculates it."""
    fold_constants: bool = False
    """Store a tensor that repeats one value as that value."""
    share_renamed: bool = False
    """Let names of an output folder be views of equal bytes of others; programs without paramtool miss them then."""
    memory: int = MEMORY_NBYTES
    """What comparing may hold in memory."""
    format: str | None = None
    """The format of an output folder: `safetensors` or `dcp`.  None: `dcp` where the input is such a folder."""

    def __post_init__(self) -> None:
        ObjectOptions.__post_init__(self)
        if not self.keep:
            raise UsageError("--keep is empty; expected first, last or a pattern of names")
        if self.memory < 1:
            raise UsageError(f"--memory is {self.memory} bytes; expected 1 or more")
        if self.min_equal_bytes < 0:
            raise UsageError(f"--min-equal-bytes is {self.min_equal_bytes}; expected 0 or more")
        if not self.equal and (self.across_roles or self.derive_casts or self.fold_constants):
            raise UsageError(
                "without comparing bytes (--no-equal) nothing is joined across roles, derived or folded",
                hint="leave out --no-equal, or --across-roles, --derive-casts and --fold-constants",
            )


USUAL = DedupOptions()


@reading
@judging("path")
@keywords(DedupOptions)
def dedup(
    path: Path, output: Path | None = None, options: DedupOptions = USUAL, *, progress: Progress = silent
) -> Deduped:
    """Write a checkpoint with every byte once and every name recorded.

    `output` is a file (`.safetensors`, or `.pt` and others for torch.save's format) or a folder; without it,
    `STEM.dedup.safetensors` beside the input.  The keywords, or `options` in their place:

    - `keep`: which name owns what several share: `first`, `last`, or a pattern such as `*embed*`
    - `ties`: {name: the first of the names that are one tensor}; names that the file lacks are recorded too, as those
      are that the config.json beside it ties
    - `config`: another config.json, or a folder with one; `none` for none
    - `equal`: compare the bytes of tensors with different names
    - `min_equal_bytes`: the size in bytes of the smallest tensors that are compared
    - `across_roles`: let model weights, optimizer state, EMA copies and buffers share equal bytes
    - `derive_casts`: leave out tensors that a cast of another gives; loading calculates them
    - `fold_constants`: store a tensor that repeats one value as that value
    - `share_renamed`: of a folder: share equal bytes under different names; other programs then miss these names
    - `memory`: how many bytes comparing may hold in memory
    - `format`: the format of an output folder: `safetensors`, or `dcp` (torch.distributed.checkpoint); without it `dcp`
      if the input is such a folder, else `safetensors`
    - `skip_unsupported`: leave out tensors and objects that the output has no form for
    - `plain`: in a torch file, write objects as dicts, lists, numbers and strings
    - `strict`: raise where objects would be left out
    - `weights`, `only`: of a folder, the file of weights; of a training checkpoint, the section
    - `max_shard_size`: write a folder of shards of at most this many bytes
    - `align`: begin tensor data at a multiple of this many bytes
    - `allow_class`, `allow_unknown`, `max_inflated`: as of `read` and docs/security.md: what is allowed of unsafe files
    - `verify`: read the output back before it is moved to its place
    - `dry_run`: report what would be written
    - `force`: overwrite an earlier output
    - `progress`: called with a label and a number of bytes; gives a context that yields a function of bytes

    FormatError, UnsafeError, PlanError, UsageError or OutputError where it is not possible; nothing is left then.
    """
    found = opened(path, options.weights, progress, options)
    return dedup_opened(path, found, output, options, progress=progress)


def dedup_opened(
    path: Path,
    found: Weights,
    output: Path | None,
    options: DedupOptions,
    *,
    progress: Progress = silent,
) -> Deduped:
    """`dedup` of weights that are read already."""
    reads = (given(),) if given() not in ("", NONE) else ()

    def where() -> Destination:
        size, form = options.max_shard_size, options.format
        return place(path, output, found, size, options=options, word="dedup", others=reads, format=form)

    began = time.monotonic()
    report, work = _prepared(path, found, where, output, options=options, progress=progress)
    return replace(done(report, work, options, progress), seconds=round(time.monotonic() - began, 3))


@reading
@judging("path")
@keywords(DedupOptions, fixed=("ties", "weights", "format"))
def dedup_each(
    path: Path, output: Path | None = None, options: DedupOptions = USUAL, *, progress: Progress = silent
) -> Each[Deduped]:
    """`dedup` of every set of weights of a folder and of those inside, into one folder that is built alike.

    So are both sets of a folder with `model.safetensors` and `model.fp16.safetensors`, and all parts of a pipeline of
    diffusers.  All other files are copied.  The keywords are those of `dedup`, without `weights` and `ties`.
    Errors as of `dedup`; nothing is written where one set is refused.
    """
    return each(
        path,
        output,
        lambda at, found, where: _prepared(at, found, lambda: where, None, options=options, progress=progress),
        word="dedup",
        options=options,
        progress=progress,
    )


@frozen(kw_only=True)
class _JoinedGraph:
    """A checkpoint and its alias graph, once it is settled which names are stored on the bytes of others."""

    checkpoint: Checkpoint
    stored: Checkpoint
    """What of it the output has a form for."""
    graph: AliasGraph
    """By storage, and by the file's own record."""
    joined: AliasGraph
    content: Content | None
    repeated_nbytes: int
    tied: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...]


def _prepared(
    path: Path,
    found: Weights,
    choose: Callable[[], Destination],
    output: Path | None,
    *,
    options: DedupOptions,
    progress: Progress,
) -> tuple[Deduped, Work]:
    """The report of what will be written, and the work."""
    began, whole = time.monotonic(), found.checkpoint
    asked = section_of(whole, options.only) if options.only is not None else whole
    if options.ties:
        asked = config_ties.with_ties(asked, with_firsts(options.ties))
    warnings = [*allow(asked, output), *_apart(asked, options.ties or {})]
    if not asked.entries:
        raise PlanError(f"{os.fspath(path)}: holds no tensor; there is nothing to write")
    where = choose()
    warnings += copied_state.warnings(path, found, where.sidecars.files, options)
    joined = _settled(path, asked, where, options, progress=progress)
    plan = dedup_pass.plan(joined.stored, joined.joined, options.skip_unsupported)
    check(plan, plan.order, joined.checkpoint.storages)
    fitted = where.writer.fit(plan, joined.checkpoint, keeping(options))
    outputs = laid_out(fitted.plan, where, options.align)
    report = Deduped(
        input=os.fspath(path) if where.is_alone else found.path,
        output=where.shown(outputs),
        checkpoint=joined.checkpoint,
        graph=joined.joined,
        plan=fitted.plan,
        format=where.writer.name,
        files=where.files(outputs),
        content=joined.content,
        nbytes_before=whole.nbytes,
        nbytes_after=sum(out.nbytes for out in outputs),
        unused_nbytes=_unused_nbytes(joined),
        repeated_nbytes=joined.repeated_nbytes,
        min_equal_bytes=options.min_equal_bytes,
        left_out=(
            *other_sections(whole, options.only),
            *left_out(joined.checkpoint, fitted.plan),
            *(*fitted.left_out, *fitted.unsaid),
            *where.sidecars.left,
        ),
        section=options.only,
        changed=fitted.changed,
        keeps_objects=fitted.keeps_objects,
        keeps_ties=fitted.keeps_ties,
        needs=fitted.needs,
        warnings=tuple(_warnings(joined, fitted, where, warnings, options=options, output=where.shown(outputs))),
        verified=options.verify and not options.dry_run,
        written=not options.dry_run,
        seconds=round(time.monotonic() - began, 3),
        sidecars=tuple(where.sidecars.files),
        tied=joined.tied,
    )
    planned = set(fitted.plan.order)
    kept = {name: entry for name, entry in joined.checkpoint.entries.items() if name in planned}
    return report, Work(joined.checkpoint, fitted.plan, outputs, where, kept)


def _apart(checkpoint: Checkpoint, ties: Mapping[str, str]) -> Iterator[str]:
    """Warnings for names that shall be tied and that the file stores separately, with equal values or without."""
    sets = alias_sets(checkpoint) if ties else {}
    for name, other in ties.items():
        if (
            name in checkpoint.entries
            and other in checkpoint.entries
            and sets.get(name, name) != sets.get(other, other)
        ):
            yield (
                f"{name!r} and {other!r} shall be tied, and the file stores both: they stay two tensors, since equal "
                "values would not show that they are one"
            )


def _settled(
    path: Path, checkpoint: Checkpoint, where: Destination, options: DedupOptions, *, progress: Progress
) -> _JoinedGraph:
    """Which names are stored on the bytes of others: by storage, by the folder's config, and by content."""
    writer = where.writer
    if not writer.holds.links:
        raise UsageError(
            f"{where.path}: {writer.name} files store every name for itself, so nothing can be stored once in them",
            hint=f"-o {quote(os.path.splitext(where.path)[0])}.safetensors, or `convert`, which writes it",
        )
    if (options.derive_casts or options.fold_constants) and not writer.holds.record:
        raise UsageError(f"{where.path}: only safetensors files record tensors that are calculated on load")
    if options.share_renamed and not where.is_of_folder:
        raise UsageError("--share-renamed is for folders and several inputs: one file stores equal bytes once anyway")
    stored = select.storable(checkpoint, writer.refusals) if options.skip_unsupported else checkpoint
    graph = alias.build(stored, options.keep, parts=False, split_content=not writer.holds.equal)
    tied, tie_warnings = config_ties.folder_ties(path, stored, graph)
    tied = tied if where.is_of_folder and options.equal else ()
    is_opened = where.is_of_folder and not options.share_renamed
    if untied := config_ties.untied(path, stored, graph) if is_opened else set():  # taken as if held apart
        tie_warnings += (config_ties.separated_warning(os.fspath(path), untied),)
        said = {name: first for name, first in with_firsts(options.ties or {}).items() if name in untied}
        checkpoint, stored = (config_ties.separated(one, untied, said) for one in (checkpoint, stored))
        graph = alias.build(stored, options.keep, parts=False, split_content=True)
    looking = Looking(options.min_equal_bytes, options.across_roles, options.memory)
    content = compare(stored, graph, looking, progress) if options.equal else None
    joined, repeated_nbytes = _joined_for(graph, content or Content(), options, where, tied=tied)
    return _JoinedGraph(
        checkpoint=checkpoint,
        stored=stored,
        graph=graph,
        joined=joined,
        content=content,
        repeated_nbytes=repeated_nbytes,
        tied=tied,
        warnings=tie_warnings,
    )


def _unused_nbytes(found: _JoinedGraph) -> int:
    """Bytes that the input carries and no tensor uses."""
    return sum((found.graph.unused if found.stored is found.checkpoint else alias.unused(found.checkpoint)).values())


def _warnings(
    found: _JoinedGraph,
    fitted: Fitted,
    where: Destination,
    allowed: Iterable[str],
    *,
    options: DedupOptions,
    output: str,
) -> Iterator[str]:
    """What a person has to know; `allowed` tells what was allowed."""
    yield from lost_warnings(fitted, where.path)
    yield from found.checkpoint.said()
    yield from allowed
    # A pattern that chose nothing is most often misspelt.
    keep = options.keep
    names = (member.name for _, members in found.joined.groups() for member in members)
    if keep not in ("first", "last") and not any(fnmatchcase(name, keep) for name in names):
        yield f"--keep {keep!r} matches no name that shares its bytes with another; the first names own them"
    yield from name_warnings(where, found.checkpoint)
    yield from flat_pair_warnings(fitted.plan, where.writer)
    if where.is_folder and where.writer.folder is None:
        yield from unseen_warnings(fitted.plan, output, [*chain(*found.tied)])
    yield from found.warnings


def _joined_for(
    graph: AliasGraph, content: Content, options: DedupOptions, where: Destination, *, tied: Sequence[Sequence[str]]
) -> tuple[AliasGraph, int]:
    """The graph for an output, and how many equal bytes are stored again there.

    They are where the format would tie what is stored once, and in a folder that programs open which read no record,
    unless its format has each name beside the bytes.
    Names that are `tied` by the model of such a folder are stored once: these programs find them by the tie.
    """
    has_names = not where.is_of_folder or where.writer.folder is not None
    if where.writer.holds.equal and (has_names or options.share_renamed):
        return _joined(graph, content, options), 0
    once = _joined(graph, content, options, tied)
    casts = tuple(match for match in content.matches if match.relation == "cast")
    each = _joined(graph, replace(content, equal=(), matches=casts), options, tied)
    return each, each.stored_nbytes - once.stored_nbytes


def _joined(
    graph: AliasGraph, content: Content, options: DedupOptions, more: Iterable[Sequence[str]] = ()
) -> AliasGraph:
    """Names on the bytes of others, as far as the options ask for it.

    `more` are names that a model ties: equal ones, of which the first owns.  transformers 4 ties heads to embeddings,
    and would miss embeddings that follow a head.
    """
    more = list(more)
    firsts = {names[0] for names in more} if options.keep == "first" else set()
    graph = join(graph, [*(found.names for found in content.equal), *more], options.keep)
    graph = settle(graph, content, options.derive_casts, options.fold_constants)
    return owned(graph, lambda names: alias.choose([n for n in names if n in firsts] or names, options.keep))
