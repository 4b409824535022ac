"""An output and its source, each as the other should be, by what the output's record says it was made of.

`verify` compares the two; `diff` asks the same of whichever side has such a record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from paramtool import dialects, formats, layouts
from paramtool.commands import _casts, _ties
from paramtool.commands._differences import alias_sets, object_differences
from paramtool.commands.opening import Allowing
from paramtool.commands.optimizer_carry import OptimizerChoice, changes, has_state, prepared, without_moved
from paramtool.commands.optimizers import bound_files, refuse_defects
from paramtool.commands.progress import Path
from paramtool.commands.rearrangement import config_beside, record_of, shapes_of
from paramtool.dialects import HUB
from paramtool.engine.read.source import Source
from paramtool.engine.write.arithmetic import prove
from paramtool.engine.write.verify import by_name, by_target
from paramtool.errors import Defects, FormatError, LayoutError, PlanError, UsageError
from paramtool.formats.folder.training_files import optimizer_of
from paramtool.formats.record import edits
from paramtool.formats.record import parts as parts_record
from paramtool.formats.record.moved import carried
from paramtool.formats.table import holds
from paramtool.grouping import omit
from paramtool.layouts.networks import named
from paramtool.lazy_dataclass import frozen
from paramtool.model.alias import Alias
from paramtool.model.checkpoint import DECLARED, GRAPH, Checkpoint, Entry, Module, prefix_of
from paramtool.model.objects import node_at, tensor_names
from paramtool.model.optimizer import Move, MovedState, StateChoice
from paramtool.model.parts import FusedTensor, PartsRecord
from paramtool.model.plan import Requirement, Target, whole
from paramtool.model.storage import ByteRange, Storage
from paramtool.model.view import View
from paramtool.parts.config_facts import KnownModel
from paramtool.parts.pieces import Stored
from paramtool.parts.sizes import UnknownSize
from paramtool.passes.objects_differ import Comparison, lacking
from paramtool.passes.optimizer import tree
from paramtool.passes.optimizer.move import moved
from paramtool.passes.parts import fuse
from paramtool.passes.parts.dialect_change import dialect_change, views_of, without_old_names
from paramtool.passes.parts.recorded import with_parts
from paramtool.passes.parts.rewrite import Rearranged, moves, new_targets, renames, rewritten
from paramtool.passes.rnn import beside
from paramtool.passes.rnn.convert import kept_off
from paramtool.passes.rnn.rewrite import came_from, converted_again
from paramtool.passes.rnn.rewrite import moves as moves_of_networks


@frozen
class MadeAgain:
    """An output and its source as the record of the output says that the one was made of the other."""

    source: Checkpoint
    found: Checkpoint
    """The output without the tensors that are made again by `networks`, and those of which nothing is known."""
    expected: Checkpoint
    """The source as `found` should be."""
    moved: RearrangedAgain
    weights: tuple[Target, ...]
    """Weights that were codes."""
    networks: ConvertedNames
    whole: Checkpoint
    """`expected` with the tensors that networks were made from."""
    more: tuple[str, ...] = ()
    """Names that only the output has, for tensors that both have."""

    def broken(self, source: Source) -> Iterator[str]:
        """What the source must show for what was left out or joined, and does not."""
        there = self.source.storages
        for one in (*self.moved.requires, *self.networks.requires):
            if {one.view.storage, *(view.storage for _, view in one.terms)} <= there.keys():
                try:
                    prove([one], source)
                except (LayoutError, PlanError) as error:
                    yield error.message


def made_again(found: Checkpoint, source: Checkpoint, path: Path) -> MadeAgain:
    """What was made of a source, the checkpoint at `path`, by the record of an output."""
    moved = _with_state(found, source, path, *_moved(found, source))
    found = lacking(found, moved.unknown)
    weights, gone = _casts.dequantised_again(found, source)
    whole = lacking(moved.expected, gone)
    known = _without_declared(found, whole)
    parts = _converted(known, whole)
    more = tuple(name for name in found.entries if name not in known.entries)
    return MadeAgain(source, parts.found, parts.expected, moved, weights, parts, whole, more)


@frozen
class ConvertedNames:
    """What a conversion that the output's record names did to names."""

    found: Checkpoint
    """The output without the tensors that the source never had."""
    expected: Checkpoint
    """The source without the tensors that these were made from, but for those that are windows on them now."""
    windows: frozenset[str] = frozenset()
    """Names of the source that are windows on new tensors."""
    unsure: frozenset[str] = frozenset()
    """The tensors that the source never had, and that the record is not enough to make again from it."""
    read: frozenset[str] = frozenset()
    """The tensors of the source that these can be made from."""
    remade: tuple[Target, ...] = ()
    """Those that can."""
    requires: tuple[Requirement, ...] = ()
    """What the bytes of the source must show for them."""


def _converted(found: Checkpoint, expected: Checkpoint) -> ConvertedNames:
    """What of two checkpoints can be compared where networks were converted; what cannot is a note.

    Only tensors that a conversion reads may be absent from the output.
    """
    modules = [module for module in found.modules if module not in expected.modules]
    again = {module.at: converted_again(module, found, expected) for module in modules}
    done = [one for one in again.values() if one is not None]
    targets = {target.name: target for one in done for target in (*one.targets, *one.kept)}
    more = [name for name in found.entries if name not in expected.entries]
    others = [module for module in modules if again[module.at] is None]
    unsure = {name for name in more if name not in targets and any(is_of(name, module) for module in others)}
    made = unsure | targets.keys()
    if not made:
        return ConvertedNames(found, expected)
    held = alias_sets(found)
    there = {held[name] for name in made if name in held}
    rest = found.entries.keys() - made
    windows = frozenset(name for name in rest & expected.entries.keys() if held.get(name) in there)
    absent = [name for name in expected.entries if name not in rest]
    seen = {name: read for read, name in beside.unwrapped(expected).names.items()}
    read = {name for one in done for name in (*one.source.tensors.values(), *one.source.raw.values())}
    could = {n for n in absent if any(_could_read(one, seen.get(n, n), expected) for one in others)} - read
    gone = {name for name in absent if name in read | could or expected.entries[name].role == GRAPH}
    return ConvertedNames(
        lacking(found, made),
        lacking(expected, gone),
        windows,
        frozenset(unsure),
        frozenset(could),
        tuple(targets.values()),
        tuple(requirement for one in done for requirement in one.requires),
    )


def _could_read(module: Module, name: str, source: Checkpoint) -> bool:
    """Whether a conversion that cannot be made again could have read a tensor of the source for a network."""
    said = came_from(module)
    ats = {said[2] if said else module.at, *module.stacked}
    if any(name in one.tensors.values() for one in source.modules if one.at in ats):
        return True
    try:
        layout = layouts.find(said[0]) if said else None
    except (LayoutError, UsageError):
        layout = None
    if layout is None or layout.is_of_one_tensor:  # under any name
        return is_of(name, replace(module, at=said[2] if said else module.at))
    return bool(named(layout, name) & ats) or any(kept_off(at, name) is not None for at in ats)


def is_of(name: str, module: Module) -> bool:
    """Whether a tensor is one of a recorded network's."""

    def is_below(at: str) -> bool:
        if name == at or kept_off(at, name) is not None:
            return True
        return name.startswith(at) and name[len(at)] in _SEPARATORS if at else "." not in name

    return name in module.tensors.values() or any(map(is_below, (module.at, *module.stacked)))


_SEPARATORS = "./_:"
"""The separators between a network's name and those of its tensors, in all layouts."""


def _without_declared(found: Checkpoint, expected: Checkpoint) -> Checkpoint:
    """What was found, but for names that are declared to be others and that the source never had.

    A torch file declares nothing: there such a name is the same window of the same storage as one of the source's.
    """
    theirs = {view for name, view in found.views().items() if name in expected.entries}
    more = omit(found.entries, expected.entries)
    gone = {
        name
        for name, entry in more.items()
        if (entry.link is not None and entry.link.evidence in DECLARED) or entry.value in theirs
    }
    return lacking(found, gone)


# --- The state of a source's optimizers as an output should have it, so that `verify` can compare what was moved -----


def _moved(found: Checkpoint, source: Checkpoint) -> tuple[RearrangedAgain, StateChoice]:
    """What became of the parameters of a source, as the output's record says, and what of the state of tied ones."""
    source, ties, choice = _ties.again(found, source)
    again = rearranged_again(found, source)
    modules = [module for module in found.modules if module not in source.modules]
    done = [converted_again(module, found, source) for module in modules]
    networks = moves_of_networks(source, [one for one in done if one is not None])
    return replace(again, moves=(*again.moves, *ties, *networks)), choice


def _with_state(
    found: Checkpoint, source: Checkpoint, path: Path, again: RearrangedAgain, state: StateChoice
) -> RearrangedAgain:
    """What the source has to give, with its optimizers as the output should have them.

    They stay as they are where the output has none, or where its parameters are those of the source.
    """
    if not changes(again.moves, again.renamed):
        return again
    known = edits.optimizers_of(found.path, found.metadata)
    choice = OptimizerChoice(state=state, recorded={one.at: one.before for one in known})
    try:
        if not has_state(source) or not has_state(found):
            return again
        made = prepared(path, source, again.moves, again.renamed, choice=choice).state
    except (PlanError, LayoutError, Defects) as error:
        return replace(again, notes=(*again.notes, f"the optimizer's state was not moved again: {error.message}"))
    return _with_moved(again, made) if made is not None else again


def _with_moved(again: RearrangedAgain, state: MovedState) -> RearrangedAgain:
    """The expected checkpoint with the state in place of the old one."""
    expected = again.expected
    entries = without_moved(expected, state).entries
    new, storages = virtual(expected, state.names, state.targets)
    objects = expected.objects
    for one in state.bindings:
        objects = tree.put(objects, one.optimizer.at, node_at(state.objects, one.optimizer.at))
    for count, gone in state.emptied:
        objects = tree.without_groups(objects, count, gone)
    expected = replace(expected, entries={**entries, **new}, storages=storages, objects=objects)
    requires = (*again.requires, *state.requires)
    return replace(again, expected=expected, targets=(*again.targets, *state.targets), requires=requires)


# --- Files with the state of optimizers beside converted weights, and what those of the source should have become ----


def state_files_again(
    output: Path, found: Checkpoint, against: Path, source: Checkpoint, *, allowing: Allowing
) -> tuple[Comparison, list[str]]:
    """Compare the files that both folders have, where the parameters of the output are not those of the source.

    Also returns the files that were compared, which no comparison of bytes has to look at.
    """
    said = Comparison()
    names = [name for name in sorted(os.listdir(output)) if _is_state(output, name) and _is_state(against, name)]
    if not names:
        return said, []
    again, choice = _moved(found, source)
    if not changes(again.moves, again.renamed):
        return said, []
    for name in names:
        place = os.path.join(output, name)
        mine = formats.read(place, allow_class=allowing.allow_class, allow_unknown=allowing.allow_unknown)
        try:
            lines = _differences(mine, (against, source), name, again, choice, allowing=allowing)
            said.differences += (f"file {name!r}: {line}" for line in lines)
        except (PlanError, LayoutError, Defects) as error:
            said.notes.append(f"file {name!r}: the state was not moved again: {error.message}")
    return said, [name for folder in (output, against) for name in _inside(folder, names)]


def _is_state(folder: Path, name: str) -> bool:
    place = os.path.join(folder, name)
    return bool(optimizer_of(f"{name}/" if os.path.isdir(place) else name)) and os.path.exists(place)


def _inside(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """The files of optimizers, by their names in a folder."""
    for name in names:
        place = os.path.join(folder, name)
        yield from (f"{name}/{inner}" for inner in os.listdir(place)) if os.path.isdir(place) else (name,)


def _differences(
    mine: Checkpoint, of: tuple[Path, Checkpoint], name: str, again: RearrangedAgain, choice: StateChoice,
    *, allowing: Allowing,
) -> Iterator[str]:  # fmt: skip
    """How a file differs from that of the source with the state of new parameters."""
    said, (against, source) = edits.optimizers_of(mine.path, mine.metadata), of
    bound = bound_files(against, source, allowing=allowing, recorded={one.at: one.before for one in said})
    theirs, bindings = next((one.checkpoint, one.bindings) for one in bound if one.file == name)
    refuse_defects(theirs.path, bindings)
    ranks = dict[str, int]()
    sections = {one.optimizer.at: one.optimizer.section for one in bindings}
    for one in said:
        prefix = prefix_of(source, sections.get(one.at))
        ranks |= {prefix + new: len(ranks) + k for k, new in enumerate(one.names.values())}
    state = moved(theirs, bindings, again.moves, again.renamed, choice=choice, model=source, ranks=ranks or None)
    expected = _with_moved(RearrangedAgain(theirs), state)
    made = {target.name for target in expected.targets} & mine.entries.keys()
    with Source(mine) as written, Source(expected.expected) as there, Source(theirs) as before:
        targets = [target for target in expected.targets if target.name in made]
        yield from by_name((written, there), mine.entries, expected.expected.entries, skip=made)
        yield from by_target((written, before), mine.views(), targets)
    yield from object_differences(mine, expected.expected).differences


# --- Rearranging a source again, as the record of an output says, so that `verify` can compare what was written ------
#
#     record of the source      record of the output         what was done
#     -                         fused: qkv_proj              q, k and v were fused into qkv_proj
#     fused: qkv_proj           -                            qkv_proj was taken apart
#     -                         dialect, from                the names and tensors of `from` became those of `dialect`
#
# The outcome is the source as the output should be: names and shapes, with new tensors on storages that no file has.
# Their bytes are compared with targets, which say what of the source each is made of.


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


def rearranged_again(found: Checkpoint, source: Checkpoint) -> RearrangedAgain:
    """What a source has to give, according to the records of both; the source itself if they agree.

    Where an output's record speaks of tensors that the source does not have, or that do not fit it, that is a
    difference; where a conversion cannot be repeated for want of a config or a fact, it is a note.
    """
    if parts_record.KEY not in found.metadata and parts_record.KEY not in source.metadata:
        return RearrangedAgain(source)
    has_room = parts_record.KEY in found.metadata or holds(found.format).objects
    made, before = (
        record_of(found if has_room or source.entries.keys() - found.entries.keys() else source),
        record_of(source),
    )
    where = found.path
    try:
        # The source in the output's dialect, and then with what was fused and taken apart
        first = RearrangedAgain(source)
        model = KnownModel(config_beside(source.path) or config_beside(found.path))
        if (made.dialect, made.source) != (before.dialect, before.source):
            change = _dialect_change(found, source, made, before, model=model)
            if change is not None:
                first = _as_made(found, source, change)
                before = carried(before, first.renamed)
        # What was fused and taken apart
        shapes = shapes_of(first.expected)
        split, joined = list[Stored](), list[Stored]()
        given, taken = dict[str, Stored](), dict[str, Stored]()  # parts: of `split`, and that `joined` are made of
        again = (one for one in _new_fused(before.unfused, made.unfused) if one.tensor in found.entries)
        back = (one for one in _new_fused(before.fused, made.fused) if any(name in found.entries for name in one.names))
        for one in (*_new_fused(made.fused, before.fused), *again, *_alone(made, found, first.expected)):
            joint = fuse.recorded(one, shapes, model.packing, is_fused=False)
            joined.append(joint.stored)
            taken |= {part.name: part for part in joint.apart}
        for one in (*_new_fused(made.unfused, before.unfused), *back):
            joint = fuse.recorded(one, shapes, model.packing, is_fused=True)
            split.append(joint.stored)
            given |= {part.name: part for part in joint.apart}
        for name, part in taken.items():
            there = given[name].shape if name in given else shapes.get(name)
            if there is None:
                raise LayoutError(f"{name!r} is not in the source")
            if there != part.shape:
                raise LayoutError(f"{name!r} has shape {list(there)} in the source; the record says {list(part.shape)}")
        read = [*split, *(part for name, part in taken.items() if name not in given)]
        new = [*joined, *(part for name, part in given.items() if name not in taken)]
        if not read:
            return first
        second = _as_made(found, first.expected, Rearranged(tuple(read), tuple(new)))
        entries = second.expected.entries
        reads = {view.storage for target in second.targets for copy in target.copies for _, view in copy.terms}
        if reads - source.storages.keys() or any(target.name not in entries for target in first.targets):
            raise UsageError("in several steps, each of tensors that the one before made")
        renamed = {old: second.renamed.get(new, new) for old, new in first.renamed.items()} or second.renamed
        every = (*first.moves, *second.moves)
        requires = (*first.requires, *second.requires)
        return replace(
            second, targets=(*first.targets, *second.targets), renamed=renamed, moves=every, requires=requires
        )
    except UsageError as error:
        # What can be compared of a conversion that cannot be repeated: the names of both
        more = frozenset(found.entries.keys() - source.entries.keys())
        kept = lacking(source, source.entries.keys() - found.entries.keys())
        return RearrangedAgain(kept, notes=(f"rearranged {error.message}",) if more else (), unknown=more)
    except (FormatError, LayoutError, PlanError) as error:
        text = f"{where}: its record of parts does not fit the source: {error.message}"
        return RearrangedAgain(source, differences=(text,))


def _new_fused(these: Iterable[FusedTensor], others: Iterable[FusedTensor]) -> list[FusedTensor]:
    """Those that others do not have."""
    known = {one.tensor: one for one in others}
    return [one for one in these if one.tensor not in known or not one.is_like(known[one.tensor])]


def _alone(made: PartsRecord, found: Checkpoint, source: Checkpoint) -> Iterator[FusedTensor]:
    """Fused tensors of both whose parts the source has beside them, by `--keep-names`, and the output has not."""
    for one in made.fused:
        names = {*one.names}
        if names <= source.entries.keys() and one.tensor in source.entries and not names & found.entries.keys():
            yield one


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
