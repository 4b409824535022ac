"""One set of weights of a folder, or each of them: what is read is settled here, before anything is planned."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, Protocol

from paramtool import formats
from paramtool.commands.output.destination import SHARD_NBYTES, Destination, default_output
from paramtool.commands.output.dialect_folder import DialectFolder, refuse_shards
from paramtool.commands.output.options import WriteOptions
from paramtool.commands.output.sidecar_checks import check_names, check_one_file, check_resumes, link_warnings
from paramtool.commands.output.sidecars import Sidecars, of_place
from paramtool.commands.output.write import R, Work, carry_out, gathered
from paramtool.commands.output.writers import check_name
from paramtool.commands.progress import MEMORY_NBYTES, Path, Progress, silent
from paramtool.engine.read.pairs import same_bytes
from paramtool.engine.read.source import Source
from paramtool.engine.write.places import check_apart, check_place
from paramtool.errors import UsageError
from paramtool.formats.folder import weight_names, weight_sets
from paramtool.formats.folder.weight_names import Weights, WeightsCopy, of_file
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Ordered
from paramtool.model.display import Displayed

if TYPE_CHECKING:
    from paramtool.engine.read.digests import Signed
    from paramtool.engine.read.one_pass import Hashes

Prepare = Callable[[str, Weights, Destination], tuple[R, Work]]
"""Plan one set of weights: (folder, set, destination) -> (report, work)."""


@frozen(repr=False)
class Each(Displayed, Generic[R]):
    """What a command did, or would do, with each set of weights of a folder and of those inside."""

    input: str
    """The folder that was read."""
    output: str
    """The folder that was written."""
    members: tuple[R, ...]
    """The report of each set of weights."""
    sidecars: tuple[str, ...]
    """The other files of folders that hold no weights themselves, by their names in the output."""
    left_out: tuple[str, ...]
    """What the output does not hold, each with the reason."""
    written: bool
    """Whether anything was written; not with `dry_run`."""
    warnings: tuple[str, ...] = ()
    """Of those other files."""

    _facts = "`members` and `written`"
    _schema = "each/1"
    _members = "input output written members companions=sidecars left_out"


class Allowing(Protocol):
    """What the options of every command that reads say of unsafe pickles."""

    @property
    def allow_class(self) -> Sequence[str]: ...
    @property
    def allow_unknown(self) -> bool: ...


@frozen
class Allowed:
    """The same as plain values."""

    allow_class: Sequence[str] = ()
    allow_unknown: bool = False


def opened(path: Path, weights: str | None, progress: Progress, allowing: Allowing) -> Weights:
    """The weights of a file or a folder; of the copies beside them, every byte is compared.

    UsageError where a folder holds several sets that differ, and none is named.
    """
    found = formats.opened(path, weights, allow_class=allowing.allow_class, allow_unknown=allowing.allow_unknown)
    refuse_different(path, found, progress)
    return found


def refuse_different(path: Path, found: Weights, progress: Progress, known: Hashes | None = None) -> None:
    """UsageError where what looks like a copy of the weights of a folder has other bytes.

    What is `known` of the weights is not read again.
    """
    if different := _different(found, progress, known):
        first = os.path.basename(found.path)
        lines = [first, *(f"{os.path.basename(copy.path)}: {name!r} has other bytes" for copy, name in different)]
        raise weight_sets.differing(os.fspath(path), lines, first)


def _renamed(found: Mapping[str, Sequence[Weights]]) -> Iterator[str]:
    """Sets whose usual name in an output another set of the same folder has."""
    for one in (one for sets in found.values() for one in sets):
        usual = of_file(one.path)
        if one.name != usual:
            yield f"{one.path}: written as {one.name.file}, since another set is {usual.file}; no library looks for it"


def opened_each(folder: Path, progress: Progress, allowing: Allowing) -> dict[str, list[Weights]]:
    """Every set of weights of a folder and of those inside; what only looked like a copy is a set of its own."""
    found = formats.opened_each(folder, allow_class=allowing.allow_class, allow_unknown=allowing.allow_unknown)
    # The sets of each folder, with what only looked like a copy as a set of its own.
    settled = {}
    for place, sets in found.items():
        mine: list[Weights] = []
        for one in sets:
            others = [copy for copy, _ in _different(one, progress)]
            kept = tuple(copy for copy in one.copies if copy not in others)
            mine.append(replace(one, copies=kept))
            mine += (Weights(copy.path, copy.checkpoint, of_file(copy.path)) for copy in others)
        settled[place] = weight_sets.with_names(mine)
    return settled


def _different(found: Weights, progress: Progress, known: Hashes | None = None) -> list[tuple[WeightsCopy, str]]:
    """Copies that turn out to be none, each with a name that has other bytes."""
    different = []
    for copy in found.copies:
        with progress("compare", sum(view.nbytes for _, view in copy.checkpoint.windows())) as advance:
            if name := _first_difference(found, copy, advance, known):
                different.append((copy, name))
    return different


def _first_difference(found: Weights, copy: WeightsCopy, advance: Callable[[int], None], known: Hashes | None) -> str:
    from paramtool.engine.read.one_pass import HashPlan

    mine, theirs = dict(found.checkpoint.windows()), dict(copy.checkpoint.windows())
    parts = Ordered(theirs)
    digests: tuple[Mapping[Signed, str], ...] = ()
    if known and known.tensors:
        paths = [file.path for file in copy.checkpoint.files]
        plan = HashPlan(copy.checkpoint, [(view, "") for view in theirs.values()], paths)
        digests = (known.tensors, plan.carried_out(MEMORY_NBYTES, advance).tensors)
    with Source(found.checkpoint) as a, Source(copy.checkpoint) as b:
        for first, other in copy.pairs:
            for label in [*([other] if other in theirs else []), *parts.under(f"{other}/")]:
                window = mine.get(first + label.removeprefix(other))
                if window is None:
                    return label
                made = [of.get((view, "")) for of, view in zip(digests, (window, theirs[label]), strict=False)]
                if made and all(made) and window.is_contiguous and theirs[label].is_contiguous:
                    is_same = made[0] == made[1]
                else:
                    is_same = same_bytes(a, window, b, theirs[label])
                    advance(window.nbytes)
                if not is_same:
                    return label
    return ""


OF_ONE_SET = ("weights", "ties", "format", "like_only", "into", "new_config")
"""Options that are about one set of weights."""


def each(
    path: Path,
    output: Path | None,
    prepare: Prepare[R],
    *,
    word: str,
    options: WriteOptions,
    form: Callable[[str, Weights], DialectFolder | None] = lambda folder, found: None,
    progress: Progress = silent,
) -> Each[R]:
    """Do the same with every set of weights of a folder and of those inside, in one output folder.

    Each keeps its folder in the output, and its name unless `form` has another; all other files come along: what opens
    the input folder opens the output.  UsageError where the options choose one set.  Nothing is written where one of
    them is refused.
    """
    for name in OF_ONE_SET:
        if getattr(options, name, None):
            raise UsageError(f"--{name.replace('_', '-')} is for one set of weights, and --each takes all")
    max_shard_size, folder = options.max_shard_size, os.fspath(path)
    target = os.fspath(output) if output is not None else default_output(path, True, word)
    check_name(target, True)
    found = opened_each(folder, progress, options)
    check_apart(target, [folder])
    beside = {place: of_place(folder, place, found, target) for place in {"": None, **found}}
    wheres = [
        Destination(
            target,
            True,
            max_shard_size or (SHARD_NBYTES if one.checkpoint.format.startswith("sharded") else None),
            beside[place] if one is sets[0] else Sidecars(),
            folder,
            tuple(file.path for file in one.checkpoint.files),
            weight_names.DCP if one.checkpoint.format == "dcp" and max_shard_size is None else one.name,
            place,
            len(sets) == 1,
        )
        for place, sets in found.items()
        for one in sets
    ]
    rest = Sidecars() if "" in found else beside[""]
    pairs = [(os.path.join(folder, place) if place else folder, one) for place in found for one in found[place]]
    wheres = _formed(wheres, [form(*pair) for pair in pairs], max_shard_size)
    read = [name for where in wheres for name in where.read]
    whole = {name: file for where in wheres for name, file in where.known_inside().items()} | dict(rest.files)
    check_place(target, True, options.force, read, known=whole, weights=[where.name_inside for where in wheres])
    for (at, one), where in zip(pairs, wheres, strict=True):
        # PlanError if a run could not resume from the output, or if its library opens no shards
        is_cut = where.max_shard_size is not None and not one.checkpoint.format.startswith("sharded")
        check_resumes(at, [file.path for file in one.checkpoint.files], beside[where.inside], is_cut)
        check_one_file(where.path, where.name.stem, is_cut)
    prepared = [prepare(at, one, where) for (at, one), where in zip(pairs, wheres, strict=True)]
    copied = [*rest.files, *(name for where in wheres for name in where.sidecars_inside())]
    check_names((out.name for _, work in prepared for out in work.outputs), copied, target)
    reports = [report for report, _ in prepared]
    if options.dry_run:
        for _, work in prepared:
            work.rehearse()
    else:
        works = [work for _, work in prepared]
        written = carry_out(gathered(works, rest.files), works, options, progress)
        reports = [one.into(report) for one, report in zip(written, reports, strict=True)]
    warnings = (*_renamed(found), *link_warnings(rest))
    return Each(folder, target, tuple(reports), tuple(rest.files), rest.left, not options.dry_run, warnings)


def _formed(
    wheres: Iterable[Destination], forms: Iterable[DialectFolder | None], max_shard_size: int | None
) -> list[Destination]:
    """Destinations in the form of a dialect; UsageError if two sets of a folder would have one name."""
    found: list[Destination] = []
    for where, form in zip(wheres, forms, strict=True):
        if form is not None:
            refuse_shards(form, max_shard_size is not None)
            size = where.max_shard_size if form.name.has_shards else None
            where = where._replace(name=form.name, made=form.made, notes=form.notes, max_shard_size=size)
        file = where.name_inside.file
        if any(file == other.name_inside.file for other in found):
            raise UsageError(f"{where.path}: two sets of weights of one folder would be {file!r}; convert one of them")
        found.append(where)
    return found
