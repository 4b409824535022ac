"""Planning, writing and proving the folders of a family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from paramtool import formats
from paramtool.commands._differences import alias_set_differences
from paramtool.commands.dedup import DedupOptions
from paramtool.commands.output.destination import SHARD_NBYTES
from paramtool.commands.output.sidecar_checks import check_names, check_one_file, check_resumes
from paramtool.commands.output.sidecars import Sidecars, sidecars_of
from paramtool.commands.output.write import NEEDED, Gathered, read_back, unproved
from paramtool.commands.progress import Advance, Progress
from paramtool.engine.compare.equal import Window, partition
from paramtool.engine.read.source import Source
from paramtool.engine.write import hardlinks
from paramtool.engine.write.staging import Staged
from paramtool.engine.write.verify import by_name, by_safetensors
from paramtool.engine.write.writer import make_folder, write
from paramtool.formats.files import is_folder
from paramtool.formats.folder.weight_names import LINKED_PREFIX, Weights, WeightsName
from paramtool.formats.output import OutputFile
from paramtool.formats.safetensors import CODE_OF, index
from paramtool.formats.safetensors import write as safetensors
from paramtool.lazy_dataclass import frozen
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Plan, Target, check, check_made
from paramtool.passes.dedup import many as family_pass
from paramtool.passes.dedup import plan as dedup_pass
from paramtool.passes.dedup.many import Held, Unit, UnitGroup

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
    shards = _shards(inputs, parts, options)
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


def _shards(inputs: Sequence[Input], parts: Iterable[UnitGroup], options: DedupOptions) -> list[PlannedShard]:
    """The files of every part, with their names in each folder."""
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
    return shards


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
