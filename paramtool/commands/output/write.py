"""What every command that writes a checkpoint shares: where it goes, how it is laid out, written and proved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from importlib import import_module
from shlex import quote
from typing import NamedTuple, Protocol, TypeVar

from paramtool import formats
from paramtool.commands._differences import alias_set_differences, following, object_differences
from paramtool.commands.output.dialect_folder import DialectFolder, refuse_shards
from paramtool.commands.output.options import ObjectOptions, WriteOptions
from paramtool.commands.output.report import Report
from paramtool.commands.output.sidecars import (
    Sidecars,
    bring,
    check_names,
    check_one_file,
    check_resumes,
    link_warnings,
    of_file,
    sidecars_of,
    without_training,
)
from paramtool.commands.output.writer import Fitted, Keeping, Writer
from paramtool.commands.output.writers import DCP, check_name, is_named_for, writer_for
from paramtool.commands.progress import Advance, Path, Progress
from paramtool.engine.read.source import Source
from paramtool.engine.write.arithmetic import count, prove
from paramtool.engine.write.casting import Counts
from paramtool.engine.write.places import NOTHING, check_apart, check_beside, check_place
from paramtool.engine.write.staging import Staged
from paramtool.engine.write.verify import by_name
from paramtool.engine.write.writer import make_folder, write
from paramtool.errors import OutputError, ParamtoolError, UnreadableError, UnsafeError, UsageError, listed, some
from paramtool.formats.files import is_folder
from paramtool.formats.folder.training_files import optimizer_of
from paramtool.formats.folder.weight_names import Weights, WeightsName, index_parts
from paramtool.formats.object_tree import complete
from paramtool.formats.output import OutputFile
from paramtool.formats.policy import format_unknown
from paramtool.formats.safetensors import write as safetensors
from paramtool.lazy_dataclass import dataclass
from paramtool.model import alias, objects
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, NoData, Unreadable
from paramtool.model.plan import Plan
from paramtool.model.view import View

SHARD_NBYTES = 5_000_000_000
"""What a sharded input is sharded to again: transformers' own choice."""


def default_output(path: Path, folder: bool, word: str = "dedup") -> str:
    """`model.pt` gives `model.dedup.safetensors`, a folder or an index gives a folder `NAME.dedup` beside it."""
    given = os.fspath(path)
    path = os.path.normpath(given)
    if os.path.basename(path) in ("", os.curdir, os.pardir):
        path = os.path.realpath(given)  # `.` has no name of its own, and beside it is not inside it
    base = os.path.basename(path)
    if is_folder(path):
        return f"{path}.{word}"
    index = index_parts(base)
    stem = index[0].split(".")[0] if index else os.path.splitext(base)[0]
    name = f"{stem}.{word}" if folder else f"{stem}.{word}.safetensors"
    return os.path.join(os.path.dirname(path), name)


NOTHING_MADE: Mapping[str, bytes] = {}


class Destination(NamedTuple):
    """Where an output goes, and in which form."""

    path: str
    is_folder: bool
    max_shard_size: int | None
    """Shards of at most this many bytes and their index; None for one file."""
    sidecars: Sidecars = Sidecars()
    """The other files of an input folder, which come along into a folder."""
    folder: str = ""
    """The input folder, where a folder becomes a folder, which other programs open as they opened the input."""
    read: tuple[str, ...] = ()
    """Every file that the command reads; none is ever overwritten."""
    name: WeightsName = WeightsName()
    """What the weights of a folder are called."""
    inside: str = ""
    """The folder inside the output that they go to, with `/`, where several sets go to one output."""
    is_alone: bool = True
    """Whether no other set goes to the same folder."""
    made: Mapping[str, bytes] = NOTHING_MADE
    """{name in the folder: content} of files that are calculated."""
    notes: tuple[str, ...] = ()
    """Warnings about these files."""

    @property
    def is_of_folder(self) -> bool:
        """Whether a folder becomes a folder."""
        return bool(self.folder)

    @property
    def writer(self) -> Writer:
        """The format that it is written in."""
        return writer_for(self.name.file if self.is_folder else self.path)

    def files(self, outputs: Iterable[OutputFile]) -> tuple[str, ...]:
        """The files of the output, as paths, sidecar files included."""
        names = [*(out.name for out in outputs), *self.sidecars_inside()]
        folder = self.path if self.is_folder else os.path.dirname(self.path)
        return tuple(os.path.join(folder, name) if name else self.path for name in names)

    def sidecars_inside(self) -> dict[str, str]:
        """{name in the output: the file that it is a copy of}"""
        return {self._placed(name): file for name, file in self.sidecars.files.items()}

    def known_inside(self) -> dict[str, str | bytes]:
        """{name in the output: the file that it is a copy of, or its content}"""
        return {**self.sidecars_inside(), **{self._placed(name): content for name, content in self.made.items()}}

    @property
    def name_inside(self) -> WeightsName:
        """What the weights of a folder are called, with the folder inside the output."""
        return replace(self.name, stem=self._placed(self.name.stem))

    def shown(self, outputs: Sequence[OutputFile]) -> str:
        """The path that reads this set alone."""
        if not self.is_folder or self.is_alone:
            return os.path.join(self.path, self.inside) if self.inside else self.path
        return os.path.join(self.path, outputs[-1].name)

    def placed(self, outputs: Iterable[OutputFile]) -> tuple[OutputFile, ...]:
        """Files of the one folder inside as files of the output."""
        return tuple(replace(out, name=self._placed(out.name)) for out in outputs)

    def _placed(self, name: str) -> str:
        return f"{self.inside}/{name}" if self.inside else name


def place(
    path: Path, output: Path | None, opened: Weights, max_shard_size: int | None, *, force: bool, word: str,
    brings: Mapping[str, str] = NOTHING, others: Iterable[Path] = (), form: DialectFolder | None = None,
    format: str | None = None, keeps_format: bool = True, keeps_training: bool = True,
) -> Destination:  # fmt: skip
    """Where the output goes; an error where it may not go there, as in the place of the input or of `others`.

    `form` says what a folder is like if it is in a dialect of its own, and `format` is its format: one of
    `FOLDER_FORMATS`, or None for that of a folder that is read if it `keeps_format`, else safetensors.

    Those are files that are read beside the input, such as a list of names.  Files of a training come along if it
    `keeps_training`.  A folder gives a folder, with a file or shards as its own, unless the output is named as a file.
    """
    whole, given = opened.checkpoint, is_folder(path)
    asked = max_shard_size is not None
    folder = asked or given or whole.format.startswith("sharded") or format is not None
    target = os.fspath(output) if output is not None else default_output(path, folder, word)
    if output is not None and is_named_for(target, writer_for(target)):
        if asked or format is not None:
            what = "shards need" if asked else f"--format {format} needs"
            raise UsageError(f"{target}: {what} a folder", hint=f"-o {quote(os.path.splitext(target)[0])}")
        folder = False
    check_name(target, folder)
    refuse_shards(form, asked)
    kept = DCP.name if keeps_format and given and whole.format == DCP.name and not asked and form is None else None
    own = _folder_names(target, format or kept, asked, form) if folder else None
    if own is not None and given and (inside := os.path.relpath(os.path.dirname(opened.path), path)) != os.curdir:
        own = replace(own, stem=f"{inside}/")  # the folder of a model in that of a training
    if folder and not asked and whole.format.startswith("sharded") and (form is None or form.name.has_shards):
        max_shard_size = SHARD_NBYTES
    weights = [file.path for file in whole.files]
    read = (*weights, *(os.fspath(other) for other in others), *brings.values())
    if folder and given:
        check_apart(target, [os.fspath(path)])
    is_cut = max_shard_size is not None and not whole.format.startswith("sharded")
    beside = Sidecars()
    if folder and given:
        beside = _sidecars(os.fspath(path), opened, target, is_cut, keeps_training=keeps_training)
    elif given and keeps_training:
        beside = of_file(os.fspath(path), weights)
    gone = form.gone if form is not None else ()
    if folder:
        beside = replace(beside, files={n: p for n, p in {**beside.files, **brings}.items() if n not in gone})
    name = opened.name if (given and keeps_training) or opened.name.is_usual else WeightsName()
    name, made, notes = (form.name, form.made, form.notes) if form is not None else (name, NOTHING_MADE, ())
    if own is not None:
        name, max_shard_size = own, None
    if folder:
        check_one_file(target, name.stem, is_cut and own is None)
    states = [state_name(state) for state in dict.fromkeys(map(optimizer_of, beside.files)) if state]
    check_place(target, folder, force, read, known={**beside.files, **made}, weights=(name, *states))
    of = os.fspath(path) if folder and given else ""
    return Destination(target, folder, max_shard_size, beside, of, read, name, made=made, notes=notes)


def _sidecars(folder: str, opened: Weights, target: str, is_cut: bool, *, keeps_training: bool) -> Sidecars:
    """What comes along from a folder; PlanError where a training could not go on from the output."""
    weights = [file.path for file in opened.checkpoint.files]
    found = sidecars_of(folder, weights, target, opened.twins, others=opened.others, more=opened.more)
    if not keeps_training:
        return without_training(found)
    check_resumes(folder, weights, found, is_cut)
    return found


def state_name(state: str) -> WeightsName:
    """The names of the file, or of the folder, with the state of an optimizer beside weights.

    >>> state_name("optimizer_1.bin").file, state_name("optimizer_0").file
    ('optimizer_1.bin', 'optimizer_0/.metadata')
    """
    stem, suffix = os.path.splitext(state)
    if not suffix and DCP.folder is not None:
        return replace(DCP.folder, stem=f"{state}/")
    return WeightsName(stem, suffix=suffix)


FOLDER_FORMATS = ("safetensors", DCP.name)
"""The formats that a folder can be written in."""


def _folder_names(target: str, format: str | None, asked: bool, form: DialectFolder | None) -> WeightsName | None:
    """The names of a folder's files where it is not in safetensors; UsageError where that contradicts the rest."""
    if format not in (None, *FOLDER_FORMATS):
        raise UsageError(f"{target}: format (--format) is {format!r:.60}; expected {' or '.join(FOLDER_FORMATS)}")
    if format == DCP.name and (asked or form is not None):
        what = "--max-shard-size cuts" if asked else "this dialect has its weights in"
        raise UsageError(f"{target}: {what} safetensors files, and --format {format} has none", hint="choose one")
    return DCP.folder if format == DCP.name else None


def laid_out(plan: Plan, where: Destination, align: int = safetensors.ALIGN) -> tuple[OutputFile, ...]:
    """The files of an output; a folder of which nothing is stored has one file instead of shards."""
    if where.max_shard_size is not None and plan.targets:
        outputs = safetensors.lay_out_sharded(plan, where.max_shard_size, where.name, align)
    elif where.writer.lay_out_as is not None and align == safetensors.ALIGN:
        outputs = where.writer.lay_out_as(plan, os.path.basename(where.path))
    else:
        outputs = where.writer.lay_out(plan, align)
        if where.is_folder:
            outputs = tuple(replace(out, name=where.name.file) for out in outputs)
    if where.is_folder and where.name.stem.endswith("/"):
        outputs = tuple(replace(out, name=f"{where.name.stem}{out.name}") for out in outputs)
    if where.is_folder:
        outputs = where.placed([*(OutputFile(name, (content,)) for name, content in where.made.items()), *outputs])
        check_names((out.name for out in outputs), where.sidecars_inside(), where.path)
    else:
        check_beside(where.path, [out.name for out in outputs[:-1]])
    return outputs


NEEDED = ("numpy", "ml_dtypes")
"""What writing and proving import: a signal inside such an import can end up as any error, or pass unseen."""


@dataclass(frozen=True, slots=True)
class Work:
    """A plan with everything that carrying it out needs."""

    checkpoint: Checkpoint
    plan: Plan
    outputs: tuple[OutputFile, ...]
    where: Destination
    expected: Mapping[str, Entry] = field(default_factory=dict)
    """Entries of the source that the output holds under their own names, alias sets included."""
    windows: Mapping[str, Entry] = field(default_factory=dict)
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

    @property
    def writer(self) -> Writer:
        """The format of the output."""
        return self.where.writer

    def needed(self, verify: bool) -> tuple[str, ...]:
        """What writing and proving import."""
        copies = (copy for target in self.plan.targets for copy in target.copies)
        is_calculated = not all(copy.is_plain and copy.terms[0][1].is_contiguous for copy in copies)
        own = (*NEEDED, *self.writer.needs) if verify or is_calculated else ()
        return (*own, *(name for one in self.beside for name in one.needed(verify)))

    def rehearse(self) -> None:
        """Whether it could be carried out, as far as the source says: its limits, and what the plan requires of it."""
        with Source(self.checkpoint) as source:
            source.check_inflated(self.plan.sources())
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
            if not output.name or is_named_for(output.name, self.writer)
            for difference in self.writer.differences(place(output.name), output, source, advance)
        ]
        found = found or list(self._differences_by_name(place(self.outputs[-1].name), advance))
        if found:
            source.check_unchanged()
            raise unproved(self.where.path, found)

    def _differences_by_name(self, path: str, advance: Advance) -> Iterator[str]:
        written = formats.read_file(path)
        old = replace(written, entries={n: e for n, e in written.entries.items() if n not in self.made})
        known = {target.name for target in self.plan.targets} if self.writer.compares_values else ()
        expected = replace(self.checkpoint, entries={**self.expected, **self.windows})
        yield from by_name(old, expected, known, advance, cast=self.cast)
        if self.writer.sharing == "record":
            yield from alias_set_differences(written, replace(self.checkpoint, entries=dict(self.expected)))
        else:
            yield from self._differences_of_links(written)
        if self.writer.is_plain:
            return
        planned = replace(written, objects=complete(self.plan.objects, self.plan.order))
        yield from object_differences(written, planned).differences

    def _differences_of_links(self, written: Checkpoint) -> Iterator[str]:
        """Names that a plain file has to store once, or each for itself, and does not."""
        storages = {name: view.storage for name, view in written.views().items()}
        for one in self.plan.aliases:
            if storages.get(one.name) != storages[one.owner]:
                yield f"{one.name!r}: is not the tensor {one.owner!r}; expected one tensor under both names"
        stored = [target.name for target in self.plan.targets]
        if len({storages[name] for name in stored}) < len(stored):
            yield "tensors that are stored apart share memory"


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


@dataclass(frozen=True, slots=True)
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


def allow(checkpoint: Checkpoint, output: Path | None = None) -> list[str]:
    """Warnings for what the output cannot keep as it is; UnsafeError for a tensor that only a call would make.

    These are unknown names that were allowed, or hold data, and ties that a pending sign is in the way of.
    """
    where = checkpoint.files[0].path
    needed = [u for u in checkpoint.unknown if u.needed_by]
    if needed:
        raise UnsafeError(
            listed(
                f"{where}: tensors cannot be read without running code from the pickle, which is never done:",
                [format_unknown(one) for one in needed],
            ),
            hint="no option helps; `paramtool inspect` shows the rest of the file",
        )
    called = [u for u in checkpoint.unknown if u.called]
    held = [u.path for u in checkpoint.unknown if not u.called]
    warnings = [f"called by the pickle, not run, and left out: {u.path}{u.arguments}" for u in called]
    if held and writer_for(output or "").keeps_foreign_objects:
        warnings.append(f"objects of unknown classes are kept as plain data, without their class: {', '.join(held)}")
    return [*warnings, *_separated_warnings(checkpoint)]


def _separated_warnings(checkpoint: Checkpoint) -> Iterator[str]:
    """Ties that break because a conjugation or negation is carried out."""
    where = checkpoint.files[0].path
    for text in following(alias.parted(checkpoint)):
        yield (
            f"{text} in {where}; conjugated and negated views are stored as separate tensors, "
            "with conjugation and negation applied"
        )


def other_sections(whole: Checkpoint, only: str | None) -> Iterator[str]:
    """What of a checkpoint is not in one section, for people."""
    others = [section.name for section in whole.sections if section.name != only]
    if only is not None and others:
        yield f"section{'s' if len(others) > 1 else ''} {', '.join(others)}"
    if only is not None and isinstance(whole.objects, objects.Mapping):
        loose = [objects.word(key) for key, child in whole.objects.items if not any(objects.tensor_names(child))]
        if loose:
            yield f"objects outside of the section: {some(loose, MAX_LOST)}"


def left_out(checkpoint: Checkpoint, plan: Plan) -> Iterator[str]:
    """The tensors of a checkpoint that are not in an output, for people."""
    kept = set(plan.order)
    for name, entry in checkpoint.entries.items():
        if name not in kept:
            yield f"tensor {name!r}: {why_not_plain(entry)}"


def keeping(options: ObjectOptions) -> Keeping:
    """What becomes of objects; whoever allows unknown calls has their results, and objects beside them, left out."""
    return Keeping(options.skip_unsupported or options.allow_unknown, options.plain, options.strict)


def lost_warnings(fitted: Fitted, output: str) -> Iterator[str]:
    """What the output cannot hold and nobody asked to leave out; the first line of a report."""
    if fitted.lost:
        shown = "; ".join(fitted.lost[:MAX_LOST]) + (f" and {n} more" if (n := len(fitted.lost) - MAX_LOST) > 0 else "")
        yield f"{output} does not hold {shown}; -o NAME.pt does, and --strict makes this an error"


MAX_LOST = 5


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


OF_RANKS = ("_optim_states.pt", "zero/optimizer_state.pt")
"""How the files of an optimizer end in folders of DeepSpeed (`formats/deepspeed/`)."""


def name_warnings(where: Destination) -> Iterator[str]:
    """A name inside a folder that its loader does not look for, and links that lead nowhere in the output."""
    yield from link_warnings(where.sidecars)
    yield from where.notes
    if where.is_folder and where.name.stem.endswith("_model_states"):  # deepspeed/runtime/engine.py, _get_ckpt_name
        yield f"{where.path}: DeepSpeed resumes from {where.name.stem}.pt alone; it does not read {where.name.file}"
    elif where.is_folder and any(name.endswith(OF_RANKS) for name in where.read):
        yield f"{where.path}: DeepSpeed resumes from the files of its ranks; it does not read {where.name.file}"


def flat_pair_warnings(plan: Plan, writer: Writer) -> list[str]:
    """Aliases for which the user's own metadata leaves no flat pair."""
    taken = writer.taken_flat_pairs(plan)
    return [f"metadata has the key {name!r} already, so no flat pair was written for this alias" for name in taken]
