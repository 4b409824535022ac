"""Writing several checkpoints with what they have in common once, each as a folder that is complete."""

from __future__ import annotations

import os
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from shlex import quote

from paramtool.commands import config_ties, copied_state
from paramtool.commands._dedup_many_work import Input, ManyWork, brought, check_brought, planned
from paramtool.commands.dedup import USUAL, DedupOptions
from paramtool.commands.opening import opened
from paramtool.commands.output.losses import allow, keeping, left_out, lost_warnings, other_sections
from paramtool.commands.output.options import keywords
from paramtool.commands.output.report import Report
from paramtool.commands.output.sidecar_checks import unseen_warnings
from paramtool.commands.output.write import Written, carry_out
from paramtool.commands.output.writer import Fitted
from paramtool.commands.output.writers import SAFETENSORS, check_name
from paramtool.commands.progress import Path, Progress, silent
from paramtool.commands.sections import section_of
from paramtool.engine.read.open_files import MAX_OPEN_FILES
from paramtool.engine.read.source import Source
from paramtool.engine.write.places import check_apart, check_place
from paramtool.errors import PlanError, UsageError, plural, refuse_string
from paramtool.formats.files import is_folder
from paramtool.formats.folder import weight_names
from paramtool.formats.folder.weight_names import WeightsName
from paramtool.formats.judging import judging
from paramtool.formats.safetensors import write as safetensors
from paramtool.lazy_dataclass import frozen
from paramtool.model import alias
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.config import reading
from paramtool.model.storage import Cast, Constant
from paramtool.model.view import View
from paramtool.passes import select
from paramtool.passes.dedup import many as family_pass

OPEN_FILES = 192
"""About this many files are open at once, of all inputs together: some systems allow 256 for a process."""


@frozen
class FamilyMember:
    """One input of a family, and its folder."""

    input: str
    """The checkpoint, as it was given."""
    folder: str
    """The path of its folder in the output."""
    names: int
    """How many names it has."""
    nbytes_before: int
    """Its files, or what the storages of its one section hold."""
    nbytes_after: int
    """All files of its folder, as if it were alone."""
    shared_by_all: int
    """Tensor bytes that are stored once for every input."""
    shared_by_some: int
    """Tensor bytes that other inputs have, too, but not all."""
    own: int
    """Tensor bytes that no other input has."""
    files: tuple[str, ...]
    """The files of its folder, as paths."""
    section: str | None
    """The section of the input that was taken."""
    left_out: tuple[str, ...]
    """What its folder does not hold, each with the reason."""
    wrapper: str = ""
    """What all its names begin with because a module stood around the model when it was saved."""
    _members = "input folder names nbytes_before nbytes_after shared_by_all shared_by_some own files section left_out"


@frozen
class Shard:
    """A file of tensors, and the folders that it is in."""

    files: tuple[str, ...]
    """Its paths: one file with several names."""
    inputs: tuple[str, ...]
    """The inputs that use it."""
    nbytes: int
    """Its size in bytes."""


@frozen(kw_only=True, repr=False)
class Family(Report):
    """What `dedup` of several checkpoints did, or would do."""

    members: tuple[FamilyMember, ...]
    """The inputs, each with its folder."""
    shards: tuple[Shard, ...]
    """The files of tensors."""
    nbytes_before: int
    """The size of all inputs, in bytes."""
    nbytes_after: int
    """What the output takes on the disk: a file with several names counts once."""
    renamed_nbytes: int
    """Equal bytes under different names that are stored more than once; with `share_renamed`, that would be."""
    share_renamed: bool
    """Whether equal bytes under different names were shared, as asked."""
    linked: bool = True
    """Whether shared shards are hard links; False where the file system has none and they were copied."""

    _schema = "dedup-family/1"
    _members = (
        "output written verified nbytes_before nbytes_after members shards(files inputs nbytes) renamed_nbytes "
        "share_renamed linked warnings seconds cloned_nbytes"
    )


@reading
@judging("paths")
@keywords(DedupOptions, fixed=("ties", "format"))
def dedup_family(
    paths: Sequence[Path], output: Path, options: DedupOptions = USUAL, *, progress: Progress = silent
) -> Family:
    """Write several checkpoints into `output`, a folder for each, with tensors that they have in common once.

    A folder is a sharded checkpoint of its own.  What several inputs hold under one name with one dtype, shape and the
    same bytes is in a shard that is hard-linked into the folder of each.  `share_renamed` shares equal bytes under
    different names as well, which only readers of the alias record find.  The other keywords are those of `dedup`;
    `equal` cannot be switched off here, and `derive_casts` and `fold_constants` are refused.
    FormatError, UnsafeError, UsageError, PlanError or OutputError where it is not possible; nothing is left then.
    """
    began = time.monotonic()
    if options.ties:
        raise UsageError("--ties are those of one checkpoint, and a family has several")
    if options.format is not None:
        raise UsageError("--format is for one checkpoint, and a family has several")
    return _family(paths, output, options, began, progress=progress)


def _family(paths: Sequence[Path], output: Path, options: DedupOptions, began: float, *, progress: Progress) -> Family:
    """What `dedup_family` writes."""
    refuse_string("paths", paths)
    target = os.path.normpath(output) if (output := os.fspath(output)) else ""
    if len(paths) < 2:
        raise UsageError("a family has two or more checkpoints", hint="paramtool dedup A B -o DIR")
    if not target:
        raise UsageError("the name of the output is empty", hint="-o DIR")
    check_name(target, True)
    if not options.equal:
        raise UsageError("without comparing bytes (--no-equal) checkpoints have nothing in common")
    if options.derive_casts or options.fold_constants:
        raise UsageError("what is derived has no name in the folders of a family", hint="dedup each checkpoint alone")
    names = _folders([os.fspath(path) for path in paths])
    pairs = zip(paths, names, strict=True)
    inputs = _agreed([_described(*pair, options, progress) for pair in pairs], options.keep)
    _check_distinct(inputs)
    files = [file.path for one in inputs for file in one.whole.files]
    check_apart(target, [*(one.path for one in inputs), *files])
    check_place(target, True, options.force, files)
    for one in inputs:
        check_brought(one, target)
    written = Written()
    with ExitStack() as stack:
        many = max(1, min(MAX_OPEN_FILES, OPEN_FILES // (2 * len(inputs))))  # each may be open and mapped
        sources = [stack.enter_context(Source(one.checkpoint, many)) for one in inputs]
        work = planned(target, inputs, sources, options, share_renamed=options.share_renamed, progress=progress)
        fits = [
            SAFETENSORS.fit(plan, one.taken, keeping(options)) for one, plan in zip(inputs, work.plans, strict=True)
        ]
        work.check_names()
        if not options.dry_run:
            (written,) = carry_out(work.gathered(), [work], options, progress)
    return replace(
        _report(work, target, options, [fit.left_out for fit in fits]),
        linked=written.is_linked,
        cloned_nbytes=written.cloned_nbytes,
        warnings=(*written.notes, *_warnings(work, target, options, fits)),
        seconds=round(time.monotonic() - began, 3),
    )


def _report(work: ManyWork, target: str, options: DedupOptions, lost: Sequence[tuple[str, ...]]) -> Family:
    """The report of what will be written; `lost` has what is left out of each input."""
    return Family(
        output=target,
        members=tuple(_member(work, number, target, options, lost=lost[number]) for number in range(len(work.inputs))),
        shards=tuple(
            Shard(
                tuple(os.path.join(target, name) for name in work.places(shard)),
                tuple(work.inputs[number].path for number in shard.part.using),
                shard.file.nbytes,
            )
            for shard in work.shards
        ),
        nbytes_before=sum(_nbytes_before(one) for one in work.inputs),
        nbytes_after=work.nbytes,
        renamed_nbytes=work.renamed_nbytes,
        share_renamed=options.share_renamed,
        verified=options.verify and not options.dry_run,
        written=not options.dry_run,
    )


def _warnings(work: ManyWork, target: str, options: DedupOptions, fits: Sequence[Fitted]) -> Iterator[str]:
    """What a person has to know of each input."""
    for one, fit in zip(work.inputs, fits, strict=True):
        yield from lost_warnings(fit, f"{target}/{one.folder}")
    for one in work.inputs:
        yield from one.warnings
    for one in work.inputs:
        files = brought(one, target).files
        told = copied_state.warnings(one.path, one.opened, files, options)
        yield from (f"{one.path}: {text}" for text in told)
    for one, plan in zip(work.inputs, work.plans, strict=True):
        yield from unseen_warnings(plan, os.path.join(target, one.folder))


def _derived_warnings(where: str, taken: Checkpoint) -> Iterator[str]:
    """Names that an input calculates are stored in a family, which takes room."""
    derived = [e for e in taken.entries.values() if isinstance(e.value, View) and _is_calculated(taken, e.value)]
    if derived:
        count = plural(derived, "of its tensors is", "of its tensors are")
        yield f"{where}: {count} calculated on load; a family stores what is calculated"


def _is_calculated(taken: Checkpoint, view: View) -> bool:
    return isinstance(taken.storages[int(view.storage)].backing, (Cast, Constant))


def _folders(paths: Sequence[str]) -> list[str]:
    """The name of each input's folder: the input's own, without what a file's name ends in."""
    names = [_stem(path) for path in paths]
    first: dict[str, str] = {}
    for path, name in zip(paths, names, strict=True):
        key = unicodedata.normalize("NFC", name).casefold()  # as disks that tell no more apart
        other = first.get(key)
        if other is not None and os.path.realpath(other) == os.path.realpath(path):
            raise UsageError(f"{path} is named twice", hint="name it once")
        if other is not None:
            usual = all(weight_names.of_file(one).is_usual for one in (other, path))
            parents = " ".join(quote(os.path.dirname(one) or ".") for one in (other, path))
            raise UsageError(
                f"{other} and {path}: both would go into a folder {name!r}",
                hint=f"name the folders that they are in: {parents}" if usual else "give one of them another name",
            )
        first[key] = path
    return names


def _stem(path: str) -> str:
    """`runs/a` gives a, `runs/b.safetensors` b, `model.safetensors.index.json` model."""
    base = os.path.basename(os.path.normpath(path))
    if base in ("", os.curdir, os.pardir):
        base = os.path.basename(os.path.realpath(path))
    if is_folder(path):
        return base
    index = weight_names.index_parts(base)
    return index[0].split(".")[0] if index else os.path.splitext(base)[0]


def _described(path: Path, folder: str, options: DedupOptions, progress: Progress) -> Input:
    """One input with its graph, by storage and by its own record."""
    found = opened(path, options.weights if is_folder(path) else None, progress, options)
    whole = found.checkpoint
    where = os.fspath(path)
    warnings = []
    taken = whole
    if options.only is not None and whole.sections:
        taken = section_of(whole, options.only)
    elif options.only is not None:
        warnings.append(f"{where}: has no sections; all of it is taken")
    warnings += allow(taken)
    warnings += _derived_warnings(where, taken)
    if not taken.entries:
        raise PlanError(f"{where}: holds no tensor; there is nothing to write")
    checkpoint = select.storable(taken, safetensors.refusals) if options.skip_unsupported else taken
    graph = _graph(checkpoint, options.keep)
    if loose := config_ties.untied(path, checkpoint, graph):  # the file is taken as one that holds these names apart
        warnings.append(config_ties.separated_warning(where, loose))
        checkpoint = config_ties.separated(checkpoint, loose, {})
        graph = _graph(checkpoint, options.keep)
    called = found.name if is_folder(path) or found.name.is_usual else WeightsName()
    return Input(where, folder, called, found, whole, taken, checkpoint, graph, (*taken.notes, *warnings))


def _graph(checkpoint: Checkpoint, keep: str) -> AliasGraph:
    """Who shares what by storage and by the file's own record, without what the record joins by content alone.

    So an input that was written by a family is what its own input was, and programs that read no record find no less.
    """
    return alias.build(checkpoint, keep, parts=False, split_content=True)


def _agreed(inputs: Sequence[Input], keep: str) -> list[Input]:
    """Inputs whose tied tensors are stored under the same names, unless `keep` chooses them."""
    if keep != "first":
        return list(inputs)
    graphs = family_pass.agreed([one.graph for one in inputs])
    return [replace(one, graph=graph) for one, graph in zip(inputs, graphs, strict=True)]


def _check_distinct(inputs: Sequence[Input]) -> None:
    """UsageError where two inputs are the same files."""
    seen: dict[tuple[str, ...], str] = {}
    for one in inputs:
        files = tuple(os.path.realpath(file.path) for file in one.whole.files)
        if files in seen:
            raise UsageError(f"{seen[files]} and {one.path} are the same checkpoint", hint="name it once")
        seen[files] = one.path


# --- the report ------------------------------------------------------------------------------------------------


def _nbytes_before(one: Input) -> int:
    """The files of an input, or what the storages of its one section hold."""
    sizes = one.whole.files if one.taken is one.whole else one.taken.storages.values()
    return sum(file.nbytes for file in sizes)


def _member(work: ManyWork, number: int, target: str, options: DedupOptions, *, lost: tuple[str, ...]) -> FamilyMember:
    one, plan = work.inputs[number], work.plans[number]
    count = len(work.inputs)
    users = {part: len(part.using) for part in work.parts if number in part.using}
    own = sum(part.nbytes for part, using in users.items() if using == 1)
    everywhere = sum(part.nbytes for part, using in users.items() if using == count)
    outputs = work.folder(number)
    only = options.only if one.taken is not one.whole else None
    others = brought(one, target)
    came = (f"{one.folder}/{name}" for name in others.files)
    return FamilyMember(
        input=one.path,
        folder=os.path.join(target, one.folder),
        names=len(plan.order),
        nbytes_before=_nbytes_before(one),
        nbytes_after=sum(outputs.values()),
        shared_by_all=everywhere,
        shared_by_some=sum(part.nbytes for part in users) - everywhere - own,
        own=own,
        files=tuple(os.path.join(target, name) for name in (*outputs, *came)),
        section=only,
        left_out=(
            *other_sections(one.whole, only),
            *left_out(one.taken, plan),
            *lost,
            *others.left,
        ),
        wrapper=select.wrapper(plan.order),
    )
