"""The state of a source's optimizers as an output should have it, so that `verify` can compare what was moved."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from paramtool import formats
from paramtool.commands import _ties
from paramtool.commands._differences import object_differences
from paramtool.commands._rearranged_again import RearrangedAgain, rearranged_again, virtual
from paramtool.commands.opening import Allowing
from paramtool.commands.optimizer_carry import OptimizerChoice, changes, has_state, prepared, without_moved
from paramtool.commands.optimizers import bound_files, refuse_defects
from paramtool.commands.progress import Path
from paramtool.engine.read.source import Source
from paramtool.engine.write.verify import by_name, by_target
from paramtool.errors import Defects, LayoutError, PlanError
from paramtool.formats.folder.training_files import optimizer_of
from paramtool.formats.record import optimizer as record
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint, prefix_of
from paramtool.model.optimizer import Move, MovedState, StateChoice
from paramtool.passes.optimizer import tree
from paramtool.passes.optimizer.move import moved
from paramtool.passes.rnn.again import converted_again
from paramtool.passes.rnn.rewrite import moves as moves_of_networks


def with_state(
    found: Checkpoint, source: Checkpoint, path: Path, again: RearrangedAgain, *, state: StateChoice
) -> RearrangedAgain:
    """What the source has to give, with its optimizers as the output should have them.

    `state` is what became of the state of parameters that were tied and untied.

    They stay as they are where the output has none, or where its parameters are those of the source.
    """
    moves = (*again.moves, *of_networks(found, source))
    if not changes(moves, again.renamed):
        return again
    known = record.decode(found.path, found.metadata)
    choice = OptimizerChoice(state=state, recorded={one.at: one.before for one in known})
    try:
        if not has_state(source) or not has_state(found):
            return again
        made = prepared(path, source, moves, again.renamed, choice=choice).state
    except (PlanError, LayoutError, Defects) as error:
        return replace(again, notes=(*again.notes, f"the optimizer's state was not moved again: {error.message}"))
    return with_moved(again, made) if made is not None else again


def of_networks(found: Checkpoint, source: Checkpoint) -> tuple[Move, ...]:
    """The moves of recurrent networks that the output's record describes."""
    modules = [module for module in found.modules if module not in source.modules]
    done = [converted_again(module, found, source) for module in modules]
    return moves_of_networks(source, [one for one in done if one is not None])


def with_moved(again: RearrangedAgain, state: MovedState) -> RearrangedAgain:
    """The expected checkpoint with the state in place of the old one."""
    expected = again.expected
    entries = without_moved(expected, state).entries
    new, storages = virtual(expected, state.names, state.targets)
    objects = expected.objects
    for one in state.bindings:
        node = tree.node_at(state.objects, one.optimizer.at)
        objects = tree.changed(objects, one.optimizer.at, lambda _, node=node: node)  # type: ignore[misc]
    for count, gone in state.emptied:
        objects = tree.without_groups(objects, count, gone)
    expected = replace(expected, entries={**entries, **new}, storages=storages, objects=objects)
    requires = (*again.requires, *state.requires)
    return replace(again, expected=expected, targets=(*again.targets, *state.targets), requires=requires)


# --- Files with the state of optimizers beside converted weights, compared with what their sources should have become
# ---


@frozen
class StateFiles:
    """What differs between the state files of two folders."""

    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    """The files that were compared, which no comparison of bytes has to look at."""


def state_files_again(
    output: Path, found: Checkpoint, against: Path, source: Checkpoint, *, allowing: Allowing
) -> StateFiles:
    """Compare the files that both folders have, where the parameters of the output are not those of the source."""
    names = [name for name in sorted(os.listdir(output)) if _is_state(output, name) and _is_state(against, name)]
    if not names:
        return StateFiles()
    changed = _changed(found, source)
    if not changes(changed.moves, changed.renamed):
        return StateFiles()
    differences: list[str] = []
    notes: list[str] = []
    for name in names:
        place = os.path.join(output, name)
        mine = formats.read(place, allow_class=allowing.allow_class, allow_unknown=allowing.allow_unknown)
        try:
            lines = _differences(mine, against, changed, name=name, allowing=allowing)
            differences += (f"file {name!r}: {line}" for line in lines)
        except (PlanError, LayoutError, Defects) as error:
            notes.append(f"file {name!r}: the state was not moved again: {error.message}")
    compared = [name for folder in (output, against) for name in _inside(folder, names)]
    return StateFiles(tuple(differences), tuple(notes), tuple(compared))


class _Changed(NamedTuple):
    """What became of the parameters of a source."""

    source: Checkpoint
    """The source with those names that its config ties and that were untied."""
    moves: tuple[Move, ...]
    renamed: Mapping[str, str]
    choice: StateChoice
    """What became of the state of parameters that were tied and untied."""


def _changed(found: Checkpoint, source: Checkpoint) -> _Changed:
    """What became of the parameters of a source, as the output's record says."""
    retied, ties, choice = _ties.again(found, source)
    again = rearranged_again(found, retied)
    moves = (*again.moves, *of_networks(found, retied), *ties)
    return _Changed(source, moves, again.renamed, choice)


def _is_state(folder: Path, name: str) -> bool:
    place = os.path.join(folder, name)
    return bool(optimizer_of(f"{name}/" if os.path.isdir(place) else name)) and os.path.exists(place)


def _inside(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """The files of optimizers, by their names in a folder."""
    for name in names:
        place = os.path.join(folder, name)
        yield from (f"{name}/{inner}" for inner in os.listdir(place)) if os.path.isdir(place) else (name,)


def _differences(mine: Checkpoint, against: Path, changed: _Changed, *, name: str, allowing: Allowing) -> Iterator[str]:
    """How a file differs from that of the source with the state of new parameters."""
    said, source = record.decode(mine.path, mine.metadata), changed.source
    bound = bound_files(against, source, allowing=allowing, recorded={one.at: one.before for one in said})
    theirs, bindings = next((one.checkpoint, one.bindings) for one in bound if one.file == name)
    refuse_defects(theirs.path, bindings)
    ranks = dict[str, int]()
    sections = {one.optimizer.at: one.optimizer.section for one in bindings}
    for one in said:
        prefix = prefix_of(source, sections.get(one.at))
        ranks |= {prefix + new: len(ranks) + k for k, new in enumerate(one.names.values())}
    state = moved(
        theirs, bindings, changed.moves, changed.renamed, choice=changed.choice, model=source, ranks=ranks or None
    )
    expected = with_moved(RearrangedAgain(theirs), state)
    made = {target.name for target in expected.targets} & mine.entries.keys()
    with Source(mine) as written, Source(expected.expected) as there, Source(theirs) as before:
        targets = [target for target in expected.targets if target.name in made]
        yield from by_name((written, there), mine.entries, expected.expected.entries, skip=made)
        yield from by_target((written, before), mine.views(), targets)
    yield from object_differences(mine, expected.expected).differences
