"""The state of a source's optimizers as an output should have it, so that `verify` can compare what was moved."""

from __future__ import annotations

from dataclasses import replace

from paramtool.commands._rearranged_again import RearrangedAgain, virtual
from paramtool.commands.optimizer_carry import OptimizerChoice, changes, has_state, prepared
from paramtool.commands.progress import Path
from paramtool.errors import Defects, LayoutError, PlanError
from paramtool.formats.record import optimizer as record
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.optimizer import Move, MovedState, StateChoice
from paramtool.passes.optimizer import tree
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
    entries = {state.renamed.get(n, n): entry for n, entry in expected.entries.items() if n not in state.gone}
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
