"""Rearranging a source again, as the record of an output says, so that `verify` can compare what was written.

    record of the source      record of the output         what was done
    -                         fused: qkv_proj              q, k and v were fused into qkv_proj
    fused: qkv_proj           -                            qkv_proj was taken apart
    -                         dialect, from                the names and tensors of `from` became those of `dialect`

The outcome is the source as the output should be: names and shapes, with new tensors on storages that no file has.
Their bytes are compared with targets, which say what of the source each is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from paramtool import dialects
from paramtool.commands.rearrangement import config_beside, record_of, shapes_of
from paramtool.dialects import HUB
from paramtool.errors import FormatError, LayoutError, PlanError, UsageError
from paramtool.formats.record import moved
from paramtool.formats.record import parts as record
from paramtool.formats.table import holds
from paramtool.grouping import omit
from paramtool.lazy_dataclass import frozen
from paramtool.model.alias import Alias
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.objects import tensor_names
from paramtool.model.optimizer import Move
from paramtool.model.parts import FusedTensor, PartsRecord
from paramtool.model.plan import Requirement, Target, whole
from paramtool.model.storage import ByteRange, Storage
from paramtool.model.view import Shapes, View
from paramtool.parts.config_facts import KnownModel
from paramtool.parts.packing import Packing
from paramtool.parts.pieces import Stored
from paramtool.parts.sizes import UnknownSize
from paramtool.passes.objects_differ import without
from paramtool.passes.parts import fuse
from paramtool.passes.parts.dialect_change import dialect_change, views_of, without_old_names
from paramtool.passes.parts.recorded import with_parts
from paramtool.passes.parts.rewrite import Rearranged, moves, new_targets, renames, rewritten


@frozen
class RearrangedAgain:
    """A source as an output that was made of it should be."""

    expected: Checkpoint
    targets: tuple[Target, ...] = ()
    """What the new tensors are made of, and the old ones that are views of them."""
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    """{name in the source: name in the output} of tensors that stay what they are."""
    unknown: frozenset[str] = frozenset()
    """Tensors of the output that its record is not enough to make again."""
    moves: tuple[Move, ...] = ()
    """How the new tensors are made, for what an optimizer keeps for them."""
    requires: tuple[Requirement, ...] = ()
    """What the bytes of the source must show, such as equal numbers of what became one."""


@frozen
class _Joints:
    """Fused tensors that were taken apart, and that were made, with their parts as separate tensors."""

    split: list[Stored] = field(default_factory=list)
    joined: list[Stored] = field(default_factory=list)
    given: dict[str, Stored] = field(default_factory=dict)
    """Parts that were made of `split`."""
    taken: dict[str, Stored] = field(default_factory=dict)
    """Parts that `joined` are made of."""


def rearranged_again(found: Checkpoint, source: Checkpoint) -> RearrangedAgain:
    """What a source has to give, according to the records of both; the source itself if they agree.

    Where an output's record speaks of tensors that the source does not have, or that do not fit it, that is a
    difference; where a conversion cannot be repeated for want of a config or a fact, it is a note.
    """
    if record.KEY not in found.metadata and record.KEY not in source.metadata:
        return RearrangedAgain(source)
    made, before = _record_of(found, source), record_of(source)
    where = found.path
    try:
        return _again(found, source, made, before)
    except UsageError as error:
        return _common(found, source, error.message)
    except (FormatError, LayoutError, PlanError) as error:
        text = f"{where}: its record of parts does not fit the source: {error.message}"
        return RearrangedAgain(source, differences=(text,))


def _common(found: Checkpoint, source: Checkpoint, why: str) -> RearrangedAgain:
    """What can be compared of a conversion that cannot be repeated: the names of both."""
    both = {name: entry for name, entry in source.entries.items() if name in found.entries}
    more = frozenset(found.entries.keys() - both.keys())
    kept = replace(source, entries=both, objects=without(source.objects, source.entries.keys() - both.keys()))
    return RearrangedAgain(kept, notes=(f"rearranged {why}",) if more else (), unknown=more)


def _record_of(found: Checkpoint, source: Checkpoint) -> PartsRecord:
    """The record of an output; where its format has no room for one, what its names say."""
    has_room = record.KEY in found.metadata or holds(found.format).objects
    return record_of(found if has_room or source.entries.keys() - found.entries.keys() else source)


def _again(found: Checkpoint, source: Checkpoint, made: PartsRecord, before: PartsRecord) -> RearrangedAgain:
    """The source in the output's dialect, and then with what was fused and taken apart."""
    first = RearrangedAgain(source)
    model = KnownModel(_config_beside(source, found))
    if (made.dialect, made.source) != (before.dialect, before.source):
        change = _dialect_change(found, source, made, before, model=model)
        if change is not None:
            first = _as_made(found, source, change)
            before = moved.carried(before, first.renamed)
    fusing = _fusing(made, before, found, first.expected, packing=model.packing)
    if fusing is None:
        return first
    second = _as_made(found, first.expected, fusing)
    there = second.expected.entries
    reads = {view.storage for target in second.targets for copy in target.copies for _, view in copy.terms}
    if reads - source.storages.keys() or any(target.name not in there for target in first.targets):
        raise UsageError("in several steps, each of tensors that the one before made")
    renamed = {old: second.renamed.get(new, new) for old, new in first.renamed.items()} or second.renamed
    every = (*first.moves, *second.moves)
    requires = (*first.requires, *second.requires)
    return replace(second, targets=(*first.targets, *second.targets), renamed=renamed, moves=every, requires=requires)


def _fusing(
    made: PartsRecord, before: PartsRecord, found: Checkpoint, source: Checkpoint, *, packing: Packing
) -> Rearranged | None:
    """What was fused and taken apart.

    What only the source's record has was undone if the output has the result; else it is not in the output.
    """
    shapes, joints = shapes_of(source), _Joints()
    again = (one for one in _new(before.unfused, made.unfused) if one.tensor in found.entries)
    back = (one for one in _new(before.fused, made.fused) if any(name in found.entries for name in one.names))
    for one in (*_new(made.fused, before.fused), *again, *_alone(made, found, source)):
        joint = fuse.recorded(one, shapes, packing, is_fused=False)
        joints.joined.append(joint.stored)
        joints.taken.update({part.name: part for part in fuse.parts_of([joint])})
    for one in (*_new(made.unfused, before.unfused), *back):
        joint = fuse.recorded(one, shapes, packing, is_fused=True)
        joints.split.append(joint.stored)
        joints.given.update({part.name: part for part in fuse.parts_of([joint])})
    _check_there(joints, shapes)
    read = [*joints.split, *(part for name, part in joints.taken.items() if name not in joints.given)]
    new = [*joints.joined, *(part for name, part in joints.given.items() if name not in joints.taken)]
    return Rearranged(tuple(read), tuple(new)) if read else None


def _config_beside(*sides: Checkpoint) -> Mapping[str, object]:
    """The config beside the first of some checkpoints that has one; empty if none has."""
    return next((one for one in (config_beside(side.path) for side in sides) if one), {})


def _new(these: Iterable[FusedTensor], others: Iterable[FusedTensor]) -> list[FusedTensor]:
    """Those that others do not have."""
    known = {one.tensor: one for one in others}
    return [one for one in these if one.tensor not in known or not one.is_like(known[one.tensor])]


def _alone(made: PartsRecord, found: Checkpoint, source: Checkpoint) -> Iterator[FusedTensor]:
    """Fused tensors of both whose parts the source has beside them, by `--keep-names`, and the output has not."""
    for one in made.fused:
        names = {*one.names}
        if names <= source.entries.keys() and one.tensor in source.entries and not names & found.entries.keys():
            yield one


def _check_there(joints: _Joints, shapes: Shapes) -> None:
    """LayoutError if the source does not have a part, or has another shape."""
    for name, part in joints.taken.items():
        there = joints.given[name].shape if name in joints.given else shapes.get(name)
        if there is None:
            raise LayoutError(f"{name!r} is not in the source")
        if there != part.shape:
            raise LayoutError(f"{name!r} has shape {list(there)} in the source; the record says {list(part.shape)}")


def _dialect_change(
    found: Checkpoint, source: Checkpoint, made: PartsRecord, before: PartsRecord, *, model: KnownModel
) -> Rearranged | None:
    """The names and tensors of a source in another dialect; None if it is in that dialect already.

    UsageError if no config says of which model they are.  Where several dialects can be that of the source, it is the
    one that gives names that the output has; an export may have those of the source itself.
    """
    target = made.dialect or before.source or HUB
    if not model.config:
        raise UsageError(f"as {target}, by a config.json that is beside neither file")
    shapes, views = shapes_of(source), views_of(source)
    old = [before.dialect] if before.dialect else [made.source, *dialects.recognised(shapes, model.config, model.facts)]
    best: tuple[int, Rearranged | None] = (len(source.entries.keys() - found.entries.keys()), None)
    is_read = False
    problem: LayoutError | None = None
    for name in dict.fromkeys(one for one in old if one):
        try:
            back = before.dialect == name and before.source == target
            one = without_old_names(shapes, views, (name, target), model) if back else shapes
            one, joints = with_parts(one, before, name, model, views=views)
            change = None
            if name != target:
                added, prefix = before.added, before.prefix if before.dialect == name else ""
                change = dialect_change(one, (name, target), model, added, joints=joints, prefix=prefix).change
        except LayoutError as error:
            problem = problem or error
            continue
        lacking = sum(new.name not in found.entries for new in change.made) if change is not None else best[0]
        best = (lacking, change) if lacking < best[0] or (not is_read and lacking == best[0]) else best
        is_read = True
    if not is_read and isinstance(problem, UnknownSize):
        raise UsageError(f"as {target}, by facts that no config says ({problem.message})")
    if not is_read:
        raise problem or LayoutError(f"its names are those of no dialect, and the output's are those of {target}")
    return best[1]


def _as_made(found: Checkpoint, source: Checkpoint, change: Rearranged) -> RearrangedAgain:
    """The source with new tensors in place of the old ones, which stay if the output has them as views."""
    made = {one.name for one in change.made}
    keeps = any(one.name in found.entries for one in change.read if one.name not in made)
    again = as_made(source, change, keep_names=keeps)
    return replace(again, targets=tuple(_comparable(found, again.targets)))


def as_made(source: Checkpoint, change: Rearranged, *, keep_names: bool = False) -> RearrangedAgain:
    """A checkpoint as rearranging would write it; errors as of `rewritten`."""
    plan, outcome = rewritten(source, change, keep_names=keep_names, skip_unsupported=True)
    new = {name: plan.names[name] for name in (*outcome.made, *outcome.windows) if name in plan.names}
    new = omit(new, outcome.rest.entries)
    entries, storages = virtual(source, new, plan.targets)
    targets = [one for one in new_targets(source, change) if one.name in new]
    same = renames(change)
    for name, entry in outcome.windows.items():
        if name in same:
            entries[name] = outcome.rest.entries[same[name]]
        elif name in new and isinstance(entry.value, View):
            targets.append(whole(name, entry.value))
    entries = {**outcome.rest.entries, **entries}
    order = [name for name in tensor_names(outcome.rest.objects) if name in entries]
    expected = replace(outcome.rest, entries={name: entries[name] for name in (*order, *entries)}, storages=storages)
    return RearrangedAgain(
        expected, tuple(targets), renamed=same, moves=moves(source.path, change), requires=plan.requires
    )


def virtual(
    source: Checkpoint, new: Mapping[str, Alias], targets: Iterable[Target]
) -> tuple[dict[str, Entry], dict[int, Storage]]:
    """Entries of new tensors, on storages without bytes: names of one alias set share one."""
    storages = dict(source.storages)
    nbytes = {target.name: target.nbytes for target in targets}
    numbers: dict[tuple[str, str], int] = {}
    first = max(storages, default=-1) + 1
    entries = {}
    for name, one in new.items():
        number = numbers.setdefault((one.alias_set, one.owner), first + len(numbers))
        storages[number] = Storage(number, nbytes[one.owner], ByteRange("", 0, nbytes[one.owner]))
        view = replace(one.window, storage=number)
        entries[name] = Entry(view, requires_grad=one.requires_grad or None, kind=one.kind)
    return entries, storages


def _comparable(found: Checkpoint, targets: Iterable[Target]) -> Iterator[Target]:
    """Targets that the output has in the same shape; others are told of by name."""
    views = found.views()
    for target in targets:
        if target.name in views and views[target.name].shape == target.shape:
            yield target
