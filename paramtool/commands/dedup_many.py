"""Writing several checkpoints with what they have in common once, each as a folder that is complete."""

from __future__ import annotations

import os
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from shlex import quote
from typing import TypeVar

from paramtool import formats
from paramtool.commands import config_ties, copied_state
from paramtool.commands._differences import alias_set_differences
from paramtool.commands.dedup import USUAL, DedupOptions
from paramtool.commands.opening import opened
from paramtool.commands.output.destination import SHARD_NBYTES
from paramtool.commands.output.losses import allow, keeping, left_out, lost_warnings, other_sections
from paramtool.commands.output.options import keywords
from paramtool.commands.output.sidecar_checks import check_names, check_one_file, check_resumes, unseen_warnings
from paramtool.commands.output.sidecars import Sidecars, sidecars_of
from paramtool.commands.output.write import NEEDED, Gathered, Report, Written, carry_out, read_back, unproved
from paramtool.commands.output.writer import Fitted
from paramtool.commands.output.writers import SAFETENSORS, check_name
from paramtool.commands.progress import Advance, Path, Progress, silent
from paramtool.commands.sections import section_of
from paramtool.engine.compare.equal import Window, partition
from paramtool.engine.read.open_files import MAX_OPEN_FILES
from paramtool.engine.read.source import Source
from paramtool.engine.write import hardlinks
from paramtool.engine.write.places import check_apart, check_place
from paramtool.engine.write.staging import Staged
from paramtool.engine.write.verify import by_name, by_safetensors
from paramtool.engine.write.writer import make_folder, write
from paramtool.errors import PlanError, UsageError, plural
from paramtool.formats.files import is_folder
from paramtool.formats.folder import weight_names
from paramtool.formats.folder.weight_names import LINKED_PREFIX, Weights, WeightsName
from paramtool.formats.judging import judging
from paramtool.formats.output import OutputFile
from paramtool.formats.safetensors import CODE_OF, index
from paramtool.formats.safetensors import write as safetensors
from paramtool.lazy_dataclass import frozen
from paramtool.model import alias
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.config import reading
from paramtool.model.plan import Plan, Target, check, check_made
from paramtool.model.storage import Cast, Constant
from paramtool.model.view import View
from paramtool.passes import select
from paramtool.passes.dedup import many as family_pass
from paramtool.passes.dedup import plan as dedup_pass
from paramtool.passes.dedup.many import Held, Unit, UnitGroup

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
    """The size of its files, in bytes, whatever is written of them."""
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
    for name in ("ties", "format"):
        if getattr(options, name):
            raise UsageError(f"--{name} is for one checkpoint, and a family has several")
    # What `dedup_family` writes
    target = os.path.normpath(output) if (output := os.fspath(output)) else ""
    if len(paths) < 2:
        raise UsageError("a family has two or more checkpoints", hint="paramtool dedup A B -o DIR")
    if not target:
        last = os.fspath(paths[-1])  # which may be the output, without its flag
        folder = "DIR" if os.path.exists(last) else last
        raise UsageError("several checkpoints need a folder as their output", hint=f"-o {folder}")
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
        nbytes_before=sum(one.whole.nbytes for one in work.inputs),
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
    return isinstance(taken.storage_of(view).backing, (Cast, Constant))


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
        nbytes_before=one.whole.nbytes,
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


# --- Planning, writing and proving the folders of a family -----------------------------------------------------------


T = TypeVar("T", Held, Unit)
LINKED_NAME = LINKED_PREFIX + "{:05d}.safetensors"
"""A file of other checkpoints that this one's record looks into: no name that a loader would take for a shard's."""


@frozen
class Input:
    """An input on its way: what it holds, and what of that will be written."""

    path: str
    folder: str
    """The name of its folder in the output."""
    name: WeightsName
    """What its weights are called there."""
    opened: Weights
    whole: Checkpoint
    taken: Checkpoint
    """All of it, or its one section."""
    checkpoint: Checkpoint
    """What of that has a form in the output."""
    graph: AliasGraph
    warnings: tuple[str, ...]

    def held(self, number: int, plan: Plan, across_roles: bool) -> Iterator[Held]:
        """What it would store, were it alone.

        The `format` that its file says is in every shard, so those with another one share none.
        """
        form = self.checkpoint.metadata.get("format", "pt")
        for target in plan.targets:
            entry = self.checkpoint.entries.get(target.name)
            role = entry.role if entry and target.name not in plan.anonymous else "span"
            yield Held(number, target, ("" if across_roles and role != "span" else role, form))


@frozen
class PlannedShard:
    """A file of tensors: written into the folder of its first user, linked into the others."""

    part: UnitGroup
    file: OutputFile
    targets: tuple[Target, ...]
    names: Mapping[int, str]
    """{input: the name of the file in its folder}"""


@frozen
class ManyWork:
    """Everything that writing a family needs."""

    target: str
    inputs: Sequence[Input]
    sources: Sequence[Source]
    plans: Sequence[Plan]
    parts: Sequence[UnitGroup]
    shards: Sequence[PlannedShard]
    indexes: Sequence[tuple[OutputFile, ...]]
    """Of each input: its index, last, and its record where that is in a file of its own."""
    renamed_nbytes: int
    """Equal bytes under different names, beyond the first of each."""

    @property
    def nbytes(self) -> int:
        """What the output takes on the disk, a file with several names once."""
        indexes = sum(out.nbytes for outputs in self.indexes for out in outputs)
        return sum(shard.file.nbytes for shard in self.shards) + indexes

    def place(self, number: int, name: str) -> str:
        """The name in the output of a file of an input's folder."""
        return f"{self.inputs[number].folder}/{name}"

    def places(self, shard: PlannedShard) -> list[str]:
        """Every name of a shard in the output; it is written under the first."""
        return [self.place(number, name) for number, name in shard.names.items()]

    def _pairs(self, shard: PlannedShard) -> list[tuple[str, str]]:
        """The first name of a shard with each of the others."""
        first, *others = self.places(shard)
        return [(first, other) for other in others]

    def folder(self, number: int) -> dict[str, int]:
        """{name in the output: bytes} of the files of one folder."""
        found = {self.place(number, s.names[number]): s.file.nbytes for s in self.shards if number in s.names}
        return found | {self.place(number, out.name): out.nbytes for out in self.indexes[number]}

    def check_names(self) -> None:
        """PlanError where another file of an input folder has the name of a file that is written beside it."""
        for number, one in enumerate(self.inputs):
            written = (name.removeprefix(self.place(number, "")) for name in self.folder(number))
            check_names(written, brought(one, self.target).files, one.path)

    def gathered(self) -> Gathered:
        """The output, and the other files of the input folders, which come along."""
        others = {
            f"{one.folder}/{name}": file
            for one in self.inputs
            for name, file in brought(one, self.target).files.items()
        }
        return Gathered(
            self.target,
            True,
            [file.path for one in self.inputs for file in one.whole.files],
            others,
            folders={one.folder: one.path for one in self.inputs if is_folder(one.path)},
            beside=others,
        )

    def needed(self, verify: bool) -> tuple[str, ...]:
        """What writing and proving import."""
        return NEEDED

    def write(self, staged: Staged, verify: bool, progress: Progress) -> bool:
        """Write, link and read back; whether every link could be made."""
        folders = [one.folder for one in self.inputs]
        for folder in folders:
            make_folder(staged, folder)
        with progress("write", sum(part.nbytes for part in self.parts)) as advance:
            for number, source in enumerate(self.sources):
                write(staged, self._written(number), source, advance)
        links = [hardlinks.link(staged, *pair) for shard in self.shards for pair in self._pairs(shard)]
        if verify:
            total = sum(plan.nbytes for plan in self.plans) + sum(part.nbytes for part in self.parts)
            with progress("verify", total) as advance, read_back(staged):
                self._prove(staged, advance)
        hardlinks.finish(staged, folders)
        return all(links)

    def _written(self, number: int) -> Iterator[OutputFile]:
        """The files that are written from one input."""
        for shard in self.shards:
            if shard.part.users[0] == number:
                yield replace(shard.file, name=self.places(shard)[0])
        yield from (replace(out, name=self.place(number, out.name)) for out in self.indexes[number])

    def _prove(self, staged: Staged, advance: Advance) -> None:
        """Open every shard with the safetensors library, and compare every name of every input with its source."""
        found: list[str] = []
        for shard in self.shards:
            path, source = staged.file(self.places(shard)[0]), self.sources[shard.part.users[0]]
            found += (
                f"{path}: {text}" for text in by_safetensors(path, shard.targets, CODE_OF, source, advance=advance)
            )
        for number, one in enumerate(self.inputs):
            written = formats.read_file(staged.file(self.place(number, self.indexes[number][-1].name)))
            known = {t.name for shard in self.shards if shard.part.users[0] == number for t in shard.targets}
            with Source(written) as opened:
                sources = opened, self.sources[number]
                differences = [
                    *by_name(sources, written.entries, one.checkpoint.entries, advance, skip=known),
                    *alias_set_differences(written, one.checkpoint),
                ]
            found += (f"{one.folder}: {text}" for text in differences)
        if found:
            for source in self.sources:
                source.check_unchanged()
            raise unproved(self.target, found)


def brought(one: Input, target: str) -> Sidecars:
    """The other files of an input folder, which come along into its folder of the output."""
    if not is_folder(one.path):
        return Sidecars()
    read = [file.path for file in one.whole.files]
    return sidecars_of(one.path, read, target, one.opened.twins, others=one.opened.others, more=one.opened.more)


def check_brought(one: Input, target: str) -> None:
    """PlanError where nothing could open an input's folder of the output, which holds shards, or resume from it."""
    check_one_file(one.path, one.opened.name.stem, not one.whole.format.startswith("sharded"))
    if is_folder(one.path):
        read = [file.path for file in one.whole.files]
        check_resumes(one.path, read, brought(one, target), not one.whole.format.startswith("sharded"))


# --- planning --------------------------------------------------------------------------------------------------


def planned(
    target: str,
    inputs: Sequence[Input],
    sources: Sequence[Source],
    options: DedupOptions,
    *,
    share_renamed: bool,
    progress: Progress,
) -> ManyWork:
    """Compare the inputs and plan their folders; reads samples, and the whole of what these leave open."""
    plans = [_plan(one.checkpoint, one.graph) for one in inputs]
    held = [one for k, plan in enumerate(plans) for one in inputs[k].held(k, plan, options.across_roles)]
    classes = _classes(family_pass.namesakes(held), lambda one: one, sources, progress)
    units = family_pass.units(held, classes, options.min_equal_bytes)
    groups = family_pass.with_other_names(units, options.min_equal_bytes)
    equal = _classes(groups, lambda unit: unit.held[0], sources, progress)
    linked: list[dict[str, Unit]] = [{} for _ in inputs]
    if share_renamed:
        units, linked, plans = _renamed(inputs, units, equal)
    parts = family_pass.parts(units)
    # The files of every part, with their names in each folder
    cut = [
        (part, targets)
        for part in parts
        for targets in safetensors.split(
            (unit.held[0].target for unit in part.units), options.max_shard_size or SHARD_NBYTES
        )
    ]
    names: list[dict[int, str]] = [{} for _ in cut]
    for k in range(len(inputs)):
        mine = [number for number, (part, _) in enumerate(cut) if k in part.users]
        others = [number for number, (part, _) in enumerate(cut) if k in part.lookers]
        for position, number in enumerate(mine):
            names[number][k] = inputs[k].name.shard(position, len(mine))
        for position, number in enumerate(others):
            names[number][k] = LINKED_NAME.format(position + 1)
    shards = []
    for (part, targets), places in zip(cut, names, strict=True):
        metadata = {"format": inputs[part.users[0]].checkpoint.metadata.get("format", "pt")}
        file = safetensors.shard("", targets, metadata, options.align)
        ordered = {k: places[k] for k in (*part.users, *part.lookers)}
        shards.append(PlannedShard(part, file, tuple(targets), ordered))
    return ManyWork(
        target=target,
        inputs=inputs,
        sources=sources,
        plans=plans,
        parts=parts,
        shards=shards,
        indexes=[_indexed(k, plan, shards, linked[k], name=inputs[k].name) for k, plan in enumerate(plans)],
        renamed_nbytes=sum(unit.nbytes for members in equal for unit in members[1:]),
    )


def _plan(checkpoint: Checkpoint, graph: AliasGraph) -> Plan:
    plan = dedup_pass.plan(checkpoint, graph)
    safetensors.refuse(plan)
    check(plan, checkpoint.entries, checkpoint.storages)
    check_made(plan.targets, checkpoint)
    return plan


def _classes(
    groups: Iterable[Sequence[T]], held: Callable[[T], Held], sources: Sequence[Source], progress: Progress
) -> list[list[T]]:
    """Members of each group whose windows hold the same bytes, in classes of two or more."""
    groups = list(groups)
    found = []
    with progress("compare", sum(held(one).target.nbytes for group in groups for one in group)) as advance:
        for group in groups:
            windows = [Window(sources[held(one).input], view) for one in group if (view := held(one).window)]
            found += [[group[k] for k in positions] for positions in partition(windows, advance)]
    return found


def _renamed(
    inputs: Sequence[Input], units: Sequence[Unit], equal: Iterable[Sequence[Unit]]
) -> tuple[list[Unit], list[dict[str, Unit]], list[Plan]]:
    """Units that stand for others of equal bytes; what each input looks at in files of others; and the plans."""
    found = family_pass.renamed(units, equal)
    numbers = {id(unit): k for k, unit in enumerate(found.units)}
    linked: list[dict[str, Unit]] = []
    plans = []
    for k, one in enumerate(inputs):
        moved: dict[str, str] = {}
        elsewhere: dict[str, Unit] = {}
        for (number, owner), unit in found.moved.items():
            if number == k and k in unit.users:
                moved[owner] = unit.name
            elif number == k:
                key = f"paramtool.linked/{numbers[id(unit)]}"
                while key in one.checkpoint.entries:
                    key += "/"
                moved[owner], elsewhere[key] = key, unit
        plans.append(_plan(one.checkpoint, family_pass.with_owners(one.graph, moved)))
        linked.append(elsewhere)
    return found.units, linked, plans


def _indexed(
    k: int, plan: Plan, shards: Iterable[PlannedShard], linked: Mapping[str, Unit], *, name: WeightsName
) -> tuple[OutputFile, ...]:
    """The index of one folder."""
    weight_map: dict[str, str] = {}
    elsewhere: dict[tuple[int, ...], dict[str, str]] = {}
    for shard in shards:
        if k in shard.part.users:
            weight_map |= {target.name: shard.names[k] for target in shard.targets}
        elif k in shard.part.lookers:
            names = {target.name: shard.names[k] for target in shard.targets}
            elsewhere.setdefault(shard.part.users, {}).update(names)
    files = {key: (elsewhere[unit.users][unit.name], unit.name) for key, unit in linked.items()}
    return index.over_plain_shards(plan, weight_map, files, name)
