"""Comparing two checkpoints of any formats."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType

from paramtool.commands import _value_facts, config_ties
from paramtool.commands._differences import (
    alias_set_differences,
    alias_sets,
    following,
    gradients_apart,
    laid_otherwise,
    mark_differences,
    object_differences,
    some,
)
from paramtool.commands.expected import is_of, made_again, state_files_again
from paramtool.commands.opening import Allowed, opened, opened_each
from paramtool.commands.output.sidecars import Sets
from paramtool.commands.progress import MEMORY_NBYTES, Path, Progress, silent
from paramtool.commands.relayout_options import RelayoutOptions
from paramtool.commands.sections import section_of
from paramtool.engine.compare.sides import Sides
from paramtool.engine.read.source import Source
from paramtool.engine.write.verify import by_name, by_target
from paramtool.errors import UsageError, plural
from paramtool.formats import hf_config
from paramtool.formats.files import is_folder
from paramtool.formats.folder.weight_names import Weights, of_file
from paramtool.formats.folder.weight_sets import with_names
from paramtool.formats.judging import judging
from paramtool.formats.record import edits
from paramtool.formats.record import parts as parts_record
from paramtool.formats.table import holds
from paramtool.lazy_dataclass import frozen
from paramtool.model import alias
from paramtool.model.checkpoint import BY_CONFIG, Checkpoint, Compound
from paramtool.model.config import reading
from paramtool.model.diff import LED_BACK, REMOVED, RENAMED, SAME
from paramtool.model.display import Displayed
from paramtool.passes.module_versions import ATTRIBUTE, other_versions


@frozen(repr=False)
class Verified(Displayed):
    """What `verify` found."""

    output: str
    """The checkpoint that was verified."""
    against: str
    """The checkpoint that it was compared with."""
    names: int
    """How many names of the output have to be equal to the source as they are: those that nothing below counts."""
    differences: tuple[str, ...]
    """What differs, a line each; empty if nothing does."""
    warnings: tuple[str, ...] = ()
    """What was not compared, and why: ties across a sign, and what the output's format or its writer does not keep."""
    compared: tuple[str, ...] = ()
    """What was compared: `tensors`, `ties`, `objects`, `gradients`, `files`."""
    converted: int = 0
    """Tensors of the output that its record does not make of the source, where `diff` does not prove all of them."""
    remade: int = 0
    """Tensors of the output that are equal to what converting the source again gives, or `diff` makes of it."""
    rounded: int = 0
    """Other tensors that the output has in another type, as its record says, with the numbers that rounding gives."""
    dequantised: int = 0
    """Tensors that were codes in the source, and are what these and their scales stand for."""

    _facts = "`differences`, which is empty where nothing differs"
    _schema = "verify/2"
    _members = "output against differences names compared remade+ rounded+ dequantised+ converted+ warnings+"


COUNTS = ("names", "converted", "remade", "rounded", "dequantised")
"""What is added up of several sets of weights."""


@frozen
class _Compared:
    """What of two checkpoints is compared."""

    only: str | None = None
    subset: bool = False
    tensors_only: bool = False

    @property
    def all(self) -> bool:
        """Whether everything is, or only tensors."""
        return not (self.subset or self.tensors_only)


@reading
@judging("output", "against", "into")
def verify(
    output: Path,
    against: Path,
    *,
    only: str | None = None,
    subset: bool = False,
    tensors_only: bool = False,
    weights: str | None = None,
    into: Path | None = None,
    map: Sequence[str] = (),
    flatten: str = "",
    partial: bool = False,
    source: str | None = None,
    spec: str = "",
    new_config: Path | None = None,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> Verified:
    """Compare two checkpoints of any formats: each tensor's dtype, shape and bytes, which share memory, all objects.

    Of two folders the other files are compared, too.  `only` compares one section of `against`, its prefix stripped;
    `subset` lets `output` lack names, objects and files; `tensors_only` compares tensors and ties; `weights` names the
    file of `against`, a folder with several sets of weights, that is compared.  A name that the output's record
    declares to be another, as of `dedup --ties`, may be missing in `against`; that is a warning.  Tensors that were
    converted are made of the source again, as the output's record says; where it says too little, the steps of `diff`
    look for its networks in the source, and what these do not find is a difference, and so is what cannot be compared.
    Tensors that the record says were cast have to be what rounding the source gives.  `into` is the model that
    `convert` put the weights of `against` into: the weights are compared with what the same `map`, `flatten`,
    `partial`, `source` and `spec` give, and every other byte with the model's.  `new_config` is the config.json that a
    conversion of a folder put in place of the source's.
    UsageError where a folder has several sets of weights and none is named.  UnsafeError, `allow_class` and
    `allow_unknown` as of `read`, for both.
    """
    allowed = Allowed(allow_class, allow_unknown)
    if into is not None:
        said = RelayoutOptions(
            into=into, map=tuple(map), flatten=flatten, partial=partial, source=source, spec=spec, only=only,
            force=True, allow_class=tuple(allow_class), allow_unknown=allow_unknown,
        )  # fmt: skip
        return _filled(output, opened(against, weights, progress, allowed), said)
    if map or source or spec or flatten or partial:
        raise UsageError(
            "--map, --flatten, --partial, --from and --spec say what went into a model; there is none",
            hint="--into MODEL",
        )
    names = (weights, of_file(weights).file) if weights is not None else ()
    found = opened(
        output, next((name for name in names if os.path.isfile(os.path.join(output, name))), None), progress, allowed
    )
    expected = opened(against, weights, progress, allowed)
    asked = _Compared(only, subset, tensors_only)
    result = _compared(found.checkpoint, expected.checkpoint, output, against, asked=asked, progress=progress)
    result = replace(result, warnings=(*result.warnings, *dict.fromkeys((*found.told, *expected.told))))
    instead = {hf_config.NAME: os.fspath(new_config)} if new_config is not None else {}
    sets = {"": [found]}, {"": [expected]}
    return _beside(result, *sets, asked, allowing=allowed, progress=progress, instead=instead)


def _filled(output: Path, against: Weights, options: RelayoutOptions) -> Verified:
    """A model that weights were put into."""
    from paramtool.commands.into import wrong

    found, filled, warnings = wrong(output, against, options)
    where = f"{against.checkpoint.path} in {os.fspath(options.into or '')}"
    return Verified(os.fspath(output), where, filled, tuple(found), warnings, ("tensors", "all other bytes"))


@reading
@judging("output", "against")
def verify_each(
    output: Path,
    against: Path,
    *,
    subset: bool = False,
    tensors_only: bool = False,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> Verified:
    """`verify` of two folders, with every set of weights of the folder and of those inside, each by its own name."""
    allowed = Allowed(allow_class, allow_unknown)
    found, expected = (opened_each(path, progress, allowed) for path in (output, against))
    asked = _Compared(None, subset, tensors_only)
    # {(folder inside, what an output calls a set of weights there): the set}, under the names of the source where a
    # folder has one of each: dialects have names of their own
    mine, theirs = (
        {(place, one.name.file): one for place, sets in side.items() for one in with_names(sets)}
        for side in (found, expected)
    )
    here, there = (Counter(place for place, _ in side) for side in (mine, theirs))
    others = {place: (place, name) for place, name in theirs if here[place] == there[place] == 1}
    mine = {others.get(key[0], key): one for key, one in mine.items()}
    told = (text for side in (found, expected) for sets in side.values() for one in sets for text in one.told)
    result = Verified(os.fspath(output), os.fspath(against), 0, (), tuple(dict.fromkeys(told)))
    for (place, name), other in theirs.items():
        label = f"{place}/{name}" if place else name
        if (place, name) not in mine:
            lacking = f"weights {label!r}: are missing; the source has {other.path}"
            result = replace(result, differences=(*result.differences, lacking))
            continue
        folders = [os.path.join(folder, place) for folder in (output, against)]
        one = _compared(mine[place, name].checkpoint, other.checkpoint, *folders, asked=asked, progress=progress)
        result = replace(
            result,
            differences=(*result.differences, *(f"{label}: {text}" for text in one.differences)),
            warnings=(*result.warnings, *(f"{label}: {text}" for text in one.warnings)),
            compared=one.compared,
            **{count: getattr(result, count) + getattr(one, count) for count in COUNTS},
        )
    more = [os.path.join(place, name) for place, name in mine if (place, name) not in theirs]
    differences = (*result.differences, *(f"weights {label!r}: the source does not have them" for label in more))
    result = replace(result, differences=differences)
    return _beside(result, found, expected, asked, allowing=allowed, progress=progress)


def _beside(
    result: Verified, found: Sets, expected: Sets, asked: _Compared, *, allowing: Allowed, progress: Progress,
    instead: Mapping[str, str] = MappingProxyType({}),
) -> Verified:  # fmt: skip
    """A result with what the files beside the weights say, where two folders are compared as a whole.

    Those of optimizers are compared beside one set of weights.
    """
    if not (asked.all and is_folder(result.output) and is_folder(result.against)):
        return result
    from paramtool.commands import _file_differences

    differences, warnings, compared = [*result.differences], [*result.warnings], list[str]()
    for place, sets in found.items():
        if len(sets) == 1 == len(expected.get(place, ())):
            there, here = os.path.join(result.output, place), os.path.join(result.against, place)
            source = expected[place][0].checkpoint
            state, names = state_files_again(there, sets[0].checkpoint, here, source, allowing=allowing)
            label = f"{place}: " if place else ""
            differences += (f"{label}{text}" for text in state.differences)
            warnings += (f"{label}{text}" for text in state.notes)
            compared += (os.path.join(place, name) for name in names)
    files = _file_differences.beside(
        result.output, found, result.against, expected, progress=progress, without=compared, instead=instead
    )
    return replace(
        result,
        differences=(*differences, *files.differences),
        warnings=tuple(dict.fromkeys((*warnings, *files.notes))),
        compared=(*result.compared, "files"),
    )


def _compared(
    found: Checkpoint, expected: Checkpoint, output: Path, against: Path, *, asked: _Compared, progress: Progress
) -> Verified:
    """Two checkpoints, without what is beside them."""
    if asked.only is not None:
        expected = section_of(expected, asked.only)
    by_config = found.entries.keys() - expected.entries.keys()
    in_both = found.entries.keys() & expected.entries.keys()
    found = config_ties.as_stored(found)
    by_config -= found.entries.keys()
    expected = config_ties.as_stored(expected, () if parts_record.KEY in found.metadata else found.entries)
    in_both -= found.entries.keys() | expected.entries.keys()  # names that a config ties, in both
    source, output_whole, output_name = expected, found, found.path
    again = made_again(found, source, against)
    moved, parts, weights = again.moved, again.networks, again.weights
    found, expected, warnings = again.found, again.expected, [*moved.notes[bool(moved.unknown) :]]
    unsure = parts.unsure | moved.unknown
    if more := {*by_config, *again.more}:
        warnings.append(f"{some(more)}: only in the output, as other names of its tensors")
    if asked.subset:
        expected = replace(expected, entries={n: e for n, e in expected.entries.items() if n in found.entries})
    total = sum(view.nbytes for _, view in expected.windows())
    with progress("verify", total) as advance:
        cast = _cast(found, expected)
        views = output_whole.views()
        same = tuple(one for one in moved.targets if one.dtype == views[one.name].dtype or one.name in cast)
        rearranged = {target.name for target in (*same, *weights)}
        unproved = [*_unproved(source, output_whole, parts.read, parts.unsure)] if parts.unsure else []
        unproved += [f"{some(sorted(moved.unknown))}: {moved.notes[0]}; not compared"] if moved.unknown else []
        differences = [*moved.differences, *unproved]
        with Source(found) as a, Source(expected) as b:
            mine, theirs = found.entries, expected.entries
            differences += by_name((a, b), mine, theirs, advance, skip=rearranged, cast=cast)
        with Source(output_whole) as a, Source(source) as b:
            remade = [one for one in parts.remade if one.name in views or not asked.subset]
            targets = (*same, *weights, *remade)
            recorded = edits.types_of(output_name, found.metadata).cast
            differences += by_target((a, b), views, targets, cast=recorded)
            differences += again.broken(b)
    differences += _fact_differences(found, expected, not asked.subset)
    how, codes = _value_facts.of_codes(found, expected, SIDES)
    if how and (names := codes[0] & codes[1]):  # a config.json is beside a file, and not in it
        differences.append(f"{some(names)}: {how}")
    if how := _value_facts.of_models(output_whole, source, SIDES):
        differences.append(how)
    is_renamed = output_whole.entries.keys() != source.entries.keys()
    paths = (output, "" if asked.subset else against)  # a file that holds a part does not hold the config
    if how := _value_facts.of_adapters(output_whole, source, paths, is_renamed, SIDES):
        differences.append(how)
    if not asked.all:  # else they are compared with all objects
        others = other_versions(expected.objects, found.objects, ((name, name) for name in expected.entries))
        differences += (f"module {name!r}: has another version in {ATTRIBUTE!r} than in the source" for name in others)
    compared = ["tensors"]
    if not asked.subset:
        apart = {moved.renamed.get(name, name) for name in _stored_apart(output, against, source)}
        config = {name for name, one in expected.entries.items() if one.link and one.link.evidence == BY_CONFIG}
        held = alias_sets(found) if apart or config else {}
        apart = {name for name in apart if held.get(name, name) == name}
        warnings += [f"{name!r}: stored for itself: the model of config.json does not tie it" for name in sorted(apart)]
        held_there = alias_sets(again.whole)
        converted = {held_there[name] for name in parts.windows if name in held_there}
        # Names that share memory with converted ones in the source, and keep their own bytes in the output
        loose = {name for name, one in held_there.items() if one in converted and name not in parts.windows}
        if loose:
            warnings.append(f"{plural(len(loose), 'name')} no longer tied to converted tensors: {some(loose)}")
        loose |= {name for name in config if held.get(name, name) == name}  # no storage of the source ties it
        differences += list(alias_set_differences(found, expected, apart | loose))
        warnings += _not_compared(found, os.fspath(output), expected, os.fspath(against))
        warnings += _not_compared(expected, os.fspath(against), found, os.fspath(output))
        warnings += laid_otherwise(found, expected)
        compared.append("ties")
    if asked.all:
        objects = object_differences(found, expected)
        marks = mark_differences(found, expected)
        differences += [*objects.differences, *marks.differences]
        warnings += [*objects.notes, *marks.notes, *gradients_apart(found, expected)]
        compared += ["objects", "gradients"]
    made = {one.name for one in moved.targets}
    return Verified(
        os.fspath(output),
        os.fspath(against),
        len(expected.entries.keys() - made - cast.keys()) + len(in_both),
        tuple(differences),
        tuple(dict.fromkeys(warnings)),
        tuple(compared),
        len(unsure) if unproved else 0,
        len(remade) + len(made) + (0 if unproved else len(unsure)),
        len(cast.keys() - made) - len(weights),
        len(weights),
    )


def _unproved(source: Checkpoint, output: Checkpoint, lost: Set[str], made: Set[str]) -> Iterator[str]:
    """What of networks that an output has in place of those of its source `diff` does not prove, a line each.

    The output says where a network is and in which layout.  It is proved where that layout makes all its tensors of
    one network of the source, which has its name if any has, and no other network is made of that one.
    """
    from paramtool.commands.diff.diff import Comparing
    from paramtool.commands.diff.tables import networks_of

    known = output.entries.keys() - made
    a = replace(source, entries={name: one for name, one in source.entries.items() if name not in known})
    b = replace(output, entries={name: one for name, one in output.entries.items() if name in made})
    of = {name: one.network.at for one in networks_of(a) for name in one.network.tensors.values()}
    with Sides(a, b, MEMORY_NBYTES) as sides:
        found = Comparing(a, b, sides, MEMORY_NBYTES).all(silent)
    sources: dict[str, set[str]] = {}
    for module in output.modules:
        mine = [one for one in found if any(is_of(name, module) for name in one.b)]
        ats = {of.get(name, name) for one in mine for name in one.a}
        sources[module.at] = ats
        others = [at for at, theirs in sources.items() if at != module.at and theirs & ats]
        is_led = all(one.kind in (SAME, RENAMED) or one.layout == module.layout for one in mine)
        is_one = len(ats) == 1 and not others and (module.at in ats or module.at not in of.values())
        if not (is_led and is_one and all(one.kind in LED_BACK for one in mine)):
            names = some(tuple(name for one in mine for name in one.b))
            yield f"{names}: {module.layout} makes them of no network of the source, and the record does not say how"
    for one in found:
        if one.kind == REMOVED and not lost.isdisjoint(one.a):
            yield f"{some(one.a)}: is not in the output, in no layout"


SIDES = "the output", "the source"


def _fact_differences(found: Checkpoint, expected: Checkpoint, is_whole: bool) -> Iterator[str]:
    """What differs of what the values of tensors depend on beside their bytes.

    Of a header's entries those that both have, or all with `is_whole`.
    """
    for name, entry in expected.entries.items():
        values = entry.value, found.entries[name].value if name in found.entries else None
        facts = [_value_facts.of_state(value) for value in values if isinstance(value, Compound)]
        if len(facts) == len(SIDES) and (how := _value_facts.differences(facts[1], facts[0], SIDES)):
            yield f"{name!r}: {how}"
    if holds(found.format).objects and holds(expected.format).objects:
        theirs = _value_facts.of_objects(found)
        for at, said in _value_facts.of_objects(expected).items():
            if how := _value_facts.differences(theirs.get(at, {}), said, SIDES):
                yield f"objects beside the codes of {at!r}: {how}"
    theirs = _value_facts.of_header(found)
    for key, said in _value_facts.of_header(expected).items():
        if (key in theirs or is_whole) and (how := _value_facts.differences(theirs.get(key, {}), said, SIDES)):
            yield f"entry {key!r} of the header: {how}"


def _cast(found: Checkpoint, expected: Checkpoint) -> dict[str, str]:
    """{name: its type in the source}, of tensors that the output's record says were cast from that type."""
    recorded = edits.types_of(found.path, found.metadata).cast
    mine, theirs = found.views(), expected.views()
    return {
        name: dtype
        for name, dtype in recorded.items()
        if name in mine and name in theirs and theirs[name].dtype.name == dtype != mine[name].dtype.name
    }


def _stored_apart(output: Path, against: Path, expected: Checkpoint) -> set[str]:
    """Names of a folder that `dedup` stores for themselves, since the model of its config does not tie them."""
    if not (is_folder(output) and is_folder(against)):
        return set()
    return config_ties.untied(against, expected, alias.build(expected, parts=False))


def _not_compared(one: Checkpoint, path: str, other: Checkpoint, elsewhere: str) -> Iterator[str]:
    """Ties across a pending sign that a checkpoint has and the other does not."""
    there = alias.parted(other)
    ties = alias.parted(one).items()
    for text in following({n: base for n, base in ties if there.get(n) != base and n in other.entries}):
        yield f"{text} in {path}, conjugated or negated, and apart from it in {elsewhere}; only values were compared"
