"""What every command that writes a checkpoint shares: how an output is laid out, written and proved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from importlib import import_module
from typing import NamedTuple, Protocol, TypeVar

from paramtool import formats
from paramtool.commands._differences import alias_set_differences, object_differences
from paramtool.commands.output.destination import Destination
from paramtool.commands.output.options import WriteOptions
from paramtool.commands.output.sidecar_checks import check_names
from paramtool.commands.output.sidecars import bring
from paramtool.commands.output.writer import Writer
from paramtool.commands.output.writers import named_form
from paramtool.commands.progress import Advance, Progress
from paramtool.engine.read.source import Source
from paramtool.engine.write.arithmetic import count, prove
from paramtool.engine.write.casting import Counts
from paramtool.engine.write.places import NOTHING, check_beside
from paramtool.engine.write.staging import Staged
from paramtool.engine.write.verify import by_name, by_target
from paramtool.engine.write.writer import make_folder, write
from paramtool.errors import OutputError, ParamtoolError, UnreadableError, UsageError, listed
from paramtool.formats.folder.weight_names import WeightsName
from paramtool.formats.object_tree import complete
from paramtool.formats.output import OutputFile
from paramtool.formats.safetensors import write as safetensors
from paramtool.grouping import omit
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint, Entries
from paramtool.model.display import Displayed
from paramtool.model.plan import Plan, check_made
from paramtool.model.view import View

# --- What the reports of commands that write have in common ----------------------------------------------------------


@frozen(kw_only=True, repr=False)
class Report(Displayed):
    """What a command did, or would do."""

    output: str
    """The file or folder that was written, or would be."""
    warnings: tuple[str, ...] = ()
    """What was assumed, or is not in the output."""
    verified: bool = False
    """Whether the output was read back and compared."""
    written: bool = True
    """Whether anything was written; not with `dry_run`."""
    seconds: float = 0.0
    """How long it took, in seconds."""
    cloned_nbytes: int = 0
    """Bytes of the output that share their blocks with the input."""

    _facts = "`written` and `verified`"


@frozen(kw_only=True, repr=False)
class CheckpointReport(Report):
    """The report of one input."""

    input: str
    """The checkpoint, as it was given."""
    files: tuple[str, ...]
    """The files of the output, as paths."""
    section: str | None = None
    """The section of the input that was asked for."""
    left_out: tuple[str, ...] = ()
    """What the output does not hold, and files of an input folder that did not come along, each with the reason."""
    sidecars: tuple[str, ...] = ()
    """The other files of an input folder that came along, by their names in the output."""


@frozen(kw_only=True, repr=False)
class WholeReport(CheckpointReport):
    """The report of an output that holds all tensors of its input, or of one section."""

    checkpoint: Checkpoint
    """The input, described."""
    plan: Plan
    """What the output holds, and where it is copied from."""
    nbytes_before: int
    """The size of the input's files, in bytes, whatever is written of them."""
    nbytes_after: int
    """The size of the output, in bytes."""
    changed: tuple[str, ...] = ()
    """Objects of a torch output that are plain values now, since that was asked for."""
    keeps_objects: bool = True
    """Whether every object of the input is there as what it was."""
    keeps_ties: bool = True
    """Whether the output says which names share memory, as the input does."""
    needs: tuple[str, ...] = ()
    """Classes in a torch file that `torch.load(weights_only=True)` refuses, as it refuses them in the source."""


# --- What every command that writes a checkpoint shares: how an output is laid out, written and proved ---------------


def laid_out(plan: Plan, where: Destination, align: int = safetensors.ALIGN) -> tuple[OutputFile, ...]:
    """The files of an output; a folder of which nothing is stored has one file instead of shards."""
    if where.max_shard_size is not None and plan.targets:
        outputs = safetensors.lay_out_sharded(plan, where.max_shard_size, where.name, align)
    elif align == safetensors.ALIGN:
        outputs = where.writer.lay_out(plan, os.path.basename(where.path))
    elif where.writer.holds.record:
        outputs = safetensors.lay_out(plan, align)
    else:
        raise UsageError(f"{where.writer.name} files have an alignment of their own", hint="--align is for safetensors")
    if where.is_folder:
        inside = where.name.stem if where.name.stem.endswith("/") else ""
        outputs = tuple(replace(out, name=f"{inside}{out.name or where.name.file}") for out in outputs)
        outputs = where.placed([*(OutputFile(name, (content,)) for name, content in where.made.items()), *outputs])
        check_names((out.name for out in outputs), where.sidecars_inside(), where.path)
    else:
        check_beside(where.path, [out.name for out in outputs[:-1]])
    return outputs


NEEDED = ("numpy", "ml_dtypes")
"""What writing and proving import: a signal inside such an import can end up as any error, or pass unseen."""


@frozen
class Work:
    """A plan with everything that carrying it out needs; UnsafeError where it makes more bytes than is allowed."""

    checkpoint: Checkpoint
    plan: Plan
    outputs: tuple[OutputFile, ...]
    where: Destination
    expected: Entries = field(default_factory=dict)
    """Entries of the source that the output holds under their own names, alias sets included."""
    windows: Entries = field(default_factory=dict)
    """Entries of the source that the output holds under their own names, as windows on other tensors."""
    made: frozenset[str] = frozenset()
    """Names that the source does not have."""
    cast: Mapping[str, str] = field(default_factory=dict)
    """{name: its type in the source}, of names that have another type in the output."""
    counts: Counts = field(default_factory=Counts)
    """What the casts did, once it is written."""
    judge: Callable[[Counts], None] = lambda counts: None
    """Raises where the casts lose what they must not lose."""
    beside: tuple[Work, ...] = ()
    """Other files of the same output, such as the state of an optimizer."""

    def __post_init__(self) -> None:
        check_made((target for output in self.outputs for target in output.targets), self.checkpoint)

    @property
    def writer(self) -> Writer:
        """The format of the output."""
        return self.where.writer

    def needed(self, verify: bool) -> tuple[str, ...]:
        """What writing and proving import."""
        copies = (copy for target in self.plan.targets for copy in target.copies)
        is_calculated = not all(copy.is_plain and copy.source.is_contiguous for copy in copies)
        own = (*NEEDED, *self.writer.needs) if verify or is_calculated else ()
        return (*own, *(name for one in self.beside for name in one.needed(verify)))

    def rehearse(self) -> None:
        """Whether it could be carried out, as far as the source says: what the plan requires of it."""
        with Source(self.checkpoint) as source:
            prove(self.plan.requires, source)
            count(self.plan.targets, source, self.counts)
        self.judge(self.counts)
        for one in self.beside:
            one.rehearse()

    def write(self, staged: Staged, verify: bool, progress: Progress) -> bool:
        """Prove what the plan requires, write into an output in the making, and read back."""
        with Source(self.checkpoint) as source:
            prove(self.plan.requires, source)
            bring(staged, self.where.sidecars_inside(), progress)
            for inside in dict.fromkeys((self.where.inside, *(os.path.dirname(out.name) for out in self.outputs))):
                make_folder(staged, inside)
            with progress("write", self.plan.nbytes) as advance:
                write(staged, self.outputs, source, advance, counts=self.counts)
            self.judge(self.counts)
            if verify:
                with progress("verify", 2 * self.plan.nbytes) as advance, read_back(staged):
                    self._prove(staged.file, source, advance)
        for one in self.beside:
            one.write(staged, verify, progress)
        return True

    def _prove(self, place: Callable[[str], str], source: Source, advance: Advance) -> None:
        """Open what was written with somebody else's code, and compare every name with its source."""
        found = [
            difference
            for output in self.outputs
            if not output.name or named_form(output.name) is self.writer.form
            for difference in self.writer.differences(place(output.name), output, source, advance)
        ]
        found = found or list(self._differences_by_name(place(self.outputs[-1].name), source, advance))
        if found:
            source.check_unchanged()
            raise unproved(self.where.path, found)

    def _differences_by_name(self, path: str, source: Source, advance: Advance) -> Iterator[str]:
        written = formats.read_file(path)
        old = omit(written.entries, self.made)
        known = {target.name for target in self.plan.targets} if self.writer.holds.record else ()
        with Source(written) as found:
            sources = found, source
            yield from by_name(sources, old, {**self.expected, **self.windows}, advance, skip=known, cast=self.cast)
            made = (self.made & self.plan.names.keys()) - {*known}  # without what was left out of the plan
            new = {name for name in made if isinstance(written.entries[name].value, View)}
            yield from by_target(sources, written.views(), [one for one in self.plan.targets if one.name in new])
        if self.writer.holds.views:
            yield from alias_set_differences(written, replace(self.checkpoint, entries=dict(self.expected)))
        else:
            # Names that a plain file has to store once, or each for itself, and does not
            storages = {name: view.storage for name, view in written.views().items()}
            for one in self.plan.aliases:
                if storages.get(one.name) != storages[one.owner]:
                    yield f"{one.name!r}: is not the tensor {one.owner!r}; expected one tensor under both names"
            stored = [target.name for target in self.plan.targets]
            if len({storages[name] for name in stored}) < len(stored):
                yield "tensors that are stored apart share memory"
        if not self.writer.holds.objects:
            return
        planned = replace(written, objects=complete(self.plan.objects, self.plan.order))
        yield from object_differences(written, planned).differences


@contextmanager
def read_back(staged: Staged) -> Iterator[None]:
    """Errors of what was written as errors of the output, under the path that it would have had."""
    try:
        yield
    except (ParamtoolError, OSError) as error:
        told = error.message if isinstance(error, ParamtoolError) else f"{staged.temporary}: {error.strerror or error}"
        if staged.temporary not in told:
            raise
        told = told.replace(staged.temporary, staged.path)
        if not isinstance(error, (UnreadableError, OSError)):
            raise unproved(staged.path, [told]) from None
        raise OutputError(
            f"{told}: it was written, and not kept, since it cannot be read back",
            hint="the disk may fail; -o writes elsewhere",
        ) from None


def unproved(path: str, found: Sequence[str]) -> OutputError:
    """The error for an output that is not what was planned."""
    return OutputError(
        listed(f"{path}: does not read back as its source, so it was not kept:", found),
        hint="the disk fails, or paramtool has a defect; please report it with the input's `inspect --json`",
    )


class Writable(Protocol):
    """A plan, or several, that can be written into an output in the making."""

    def needed(self, verify: bool) -> tuple[str, ...]:
        """The modules that writing imports: they are imported before there is a temporary file."""
        ...

    def write(self, staged: Staged, verify: bool, progress: Progress) -> bool:
        """Write and read back; False where files that should be one had to be copied."""
        ...


class Gathered(NamedTuple):
    """One output, to which one work goes or several, and the files that come along beside them."""

    path: str
    is_folder: bool
    read: Sequence[str]
    """Every file that the command reads."""
    known: Mapping[str, str | bytes]
    """{name in the output: the file that it is a copy of, or its content}, of all that is not weights."""
    weights: Sequence[WeightsName] = ()
    folders: Mapping[str, str] = NOTHING
    """{folder in the output: the input folder that it is of}"""
    beside: Mapping[str, str] = NOTHING
    """Those of `known` that no work brings itself."""
    more: Sequence[str] = ()
    """The names of files that go beside an output that is a file."""


def gathered(works: Sequence[Work], beside: Mapping[str, str] = NOTHING) -> Gathered:
    """The output that works go to, with other files `beside` them."""
    where = works[0].where
    every = [one for work in works for one in (work, *work.beside)]
    return Gathered(
        where.path,
        where.is_folder,
        [name for work in every for name in work.where.read],
        {name: file for work in every for name, file in work.where.known_inside().items()} | dict(beside),
        [work.where.name_inside for work in every],
        {"": where.folder} if where.folder else {},
        beside,
        [] if where.is_folder else [out.name for work in works for out in work.outputs[:-1]],
    )


def carry_out(output: Gathered, works: Sequence[Writable], options: WriteOptions, progress: Progress) -> list[Written]:
    """Write works that go to one output, and move it to its place when all is right."""
    for name in dict.fromkeys(name for work in works for name in work.needed(options.verify)):
        import_module(name)  # before there is a temporary file that a signal must not leave behind
    done: list[Written] = []
    with Staged(
        output.path,
        output.is_folder,
        options.force,
        output.read,
        known=output.known,
        weights=output.weights,
        folders=output.folders,
        beside=output.more,
    ) as staged:
        bring(staged, output.beside, progress)
        for work in works:
            before = staged.cloned
            is_linked = work.write(staged, options.verify, progress)
            done.append(Written(staged.cloned - before, is_linked=is_linked))
        staged.commit()
    return [replace(done[0], notes=tuple(staged.notes)), *done[1:]]


@frozen
class Written:
    """What carrying out a plan came to, beside its output."""

    cloned_nbytes: int = 0
    """Bytes of the output that share their blocks with its source."""
    notes: tuple[str, ...] = ()
    """What was done about the leftovers of runs that were killed."""
    is_linked: bool = True
    """Whether files that should be one are."""

    def into(self, report: R) -> R:
        """A report of a command, which has fields for both, with them."""
        warnings = (*self.notes, *report.warnings)
        return replace(report, cloned_nbytes=self.cloned_nbytes, warnings=warnings)


R = TypeVar("R", bound=Report)


def done(report: R, work: Work, options: WriteOptions, progress: Progress) -> R:
    """The report of a command once its work is carried out; of a dry run, once it is known that it could be."""
    if options.dry_run:
        work.rehearse()
        return report
    return carry_out(gathered([work]), [work], options, progress)[0].into(report)
