"""What becomes of the optimizers of a checkpoint whose parameters are joined, split, rearranged or renamed.

Before the plan is made, `prepared` takes the state that moves out of the checkpoint and renumbers the rest of it; when
the plan is there, `finished` adds the new state.  What cannot follow is refused, unless it is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from paramtool.commands.optimizers import bound_copies, bound_files, optimizers, refuse_defects
from paramtool.commands.progress import Path
from paramtool.errors import PlanError, UsageError, plural, some
from paramtool.formats.hdf5 import keras_optimizer, keras_trained
from paramtool.formats.record import edits
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint, prefix_of
from paramtool.model.nested import SEPARATOR, leaves, nested
from paramtool.model.objects import Node, node_at, tensor_names
from paramtool.model.optimizer import Binding, Move, MovedState, StateChoice
from paramtool.model.plan import Plan, Requirement
from paramtool.passes.objects_differ import lacking
from paramtool.passes.optimizer import copies, optax, tree
from paramtool.passes.optimizer.move import moved, refusal
from paramtool.passes.rewriting import Outcome

MAX_NAMED = 4


@frozen
class MovedOptimizer:
    """One optimizer whose state was moved."""

    at: str
    """Its path in the checkpoint, after the name of the file where that is one of its own; empty for the whole file."""
    algorithm: str
    before: int
    """Entries that were joined or split; 0 where entries only have other names."""
    after: int
    """The entries that they became."""
    words: str
    """How its entries were bound to the parameters of the source."""


@frozen
class StateReport:
    """What became of the optimizers of a checkpoint."""

    moved: tuple[MovedOptimizer, ...] = ()
    dropped: tuple[str, ...] = ()
    """What was left out, for people."""
    training: tuple[str, ...] = ()
    """What will not be the same in a training that continues."""
    read: frozenset[str] = frozenset()
    """The tensors of the source that have another form or name in the output."""

    def with_files(self, other: StateReport) -> StateReport:
        """With what became of files beside the weights."""
        return replace(self, moved=(*self.moved, *other.moved), training=(*self.training, *other.training))


class OptimizerChoice(NamedTuple):
    """What a user says of the optimizers."""

    names: Path | None = None
    """A file with the names of the parameters."""
    drop: bool = False
    state: StateChoice = StateChoice()
    """What becomes of the state of parameters that are tied and untied."""
    is_beside: bool = False
    """Whether a file beside the checkpoint has an optimizer, too."""
    recorded: edits.Recorded = MappingProxyType({})
    """{path of an optimizer: the names that an output records}, where its source is asked whose its entries are."""


class Carried(NamedTuple):
    """A checkpoint as its plan is made from, and the state that is added to the plan."""

    checkpoint: Checkpoint
    state: MovedState | None = None
    report: StateReport = StateReport()
    bindings: tuple[Binding, ...] = ()
    """Those of the source."""
    requires: tuple[Requirement, ...] = ()
    """What must be true of the source's bytes for new ties."""


def prepared(
    path: Path, checkpoint: Checkpoint, moves: Sequence[Move], renamed: Mapping[str, str], *, choice: OptimizerChoice
) -> Carried:
    """The checkpoint without the state that moves; PlanError says why state cannot follow.

    `moves` are the new parameters, and `renamed` is {old name: new name} of those that stay what they are.
    """
    if stale := copies.stale(checkpoint, moves):
        raise PlanError(
            f"{checkpoint.path}: {stale[0]!r} would change, and {stale[1]!r} of an average of it would not",
            hint="change both (--at, --tie and --untie take several names), or --only SECTION takes the model alone",
        )
    if not has_state(checkpoint):
        if choice.names is not None and not choice.is_beside:
            raise UsageError(f"{checkpoint.path}: has no optimizer that --optimizer-names could be of")
        return Carried(checkpoint)
    if choice.drop:
        return dropped(checkpoint)
    if not changes(moves, renamed):
        return Carried(checkpoint)
    # The bindings of the optimizers in the checkpoint itself.
    files = bound_files(path, checkpoint, names=choice.names, recorded=choice.recorded)
    bindings = next((file.bindings for file in files if not file.file), ())
    bindings += tuple(one for binding in bindings for one in copies.masters(binding))
    refuse_unknown(checkpoint, bindings)
    for binding in bindings:
        if moves and binding.optimizer.refused:
            raise refusal(checkpoint.path, binding.optimizer.at, binding.optimizer.refused)
    refuse_defects(checkpoint.path, bindings)
    averages = bound_copies(path, checkpoint, choice.recorded)
    following = (*bindings, *(one for one in averages if not one.defects))
    state = moved(checkpoint, following, moves, renamed, choice=choice.state)
    state.warnings += (f"{one.optimizer.at}: left as it is; {one.words}" for one in averages if one.defects and moves)
    bindings = (*bindings, *averages)
    return Carried(without_moved(checkpoint, state), state, reported(bindings, state), bindings)


def without_moved(checkpoint: Checkpoint, state: MovedState) -> Checkpoint:
    """A checkpoint without the state that moves, and with the rest of it renumbered."""
    entries = {state.renamed.get(n, n): entry for n, entry in checkpoint.entries.items() if n not in state.gone}
    return replace(checkpoint, entries=entries, objects=state.objects)


def reported(bindings: Sequence[Binding], state: MovedState, file: str = "", more: str = "") -> StateReport:
    """What became of the optimizers of a checkpoint, or of a `file` beside it; `more` is said of each."""
    words = {binding.optimizer.at: binding for binding in bindings}
    found = (
        MovedOptimizer(
            ":".join(part for part in (file, at) if part), words[at].optimizer.algorithm, before, after,
            f"{words[at].words}{more}",
        )
        for at, (before, after) in state.counts.items()
    )  # fmt: skip
    return StateReport(tuple(found), (), tuple(state.warnings), frozenset((*state.gone, *state.renamed)))


def keeps_state(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has anything that has to follow its parameters: state, or averages of them."""
    return any(entry.role == "ema" for entry in checkpoint.entries.values()) or has_state(checkpoint)


def has_state(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has the state of an optimizer, or copies of its parameters in a list."""
    is_told = any(entry.role == "optimizer" for entry in checkpoint.entries.values())
    return is_told or bool(optimizers(checkpoint) or copies.averages(checkpoint))


def refuse_unknown(checkpoint: Checkpoint, bindings: Sequence[Binding]) -> None:
    """PlanError where tensors are of an optimizer whose form is not known."""
    places = [binding.optimizer.at for binding in bindings]
    known = {name for at in places for name in tensor_names(node_at(checkpoint.objects, at))}
    of_optimizers = [name for name, entry in checkpoint.entries.items() if entry.role == "optimizer"]
    others = [] if "" in places else [name for name in of_optimizers if name not in known]
    if others:
        raise refusal(checkpoint.path, "", f"which parameters {some(others, MAX_NAMED)} belong to is not known")


def dropped(checkpoint: Checkpoint) -> Carried:
    """The checkpoint without its optimizers."""
    states = optimizers(checkpoint)
    objects: Node = checkpoint.objects
    for state in reversed(states):  # those of a list have their numbers until the ones behind them are gone
        objects = tree.put(objects, state.at, None)
    lost = {*tensor_names(checkpoint.objects)}.difference(tensor_names(objects))
    names = {name for name, entry in checkpoint.entries.items() if entry.role == "optimizer" or name in lost}
    rest = lacking(replace(checkpoint, objects=objects), names)
    sections = (one for one in checkpoint.sections if any(name.startswith(one.prefix) for name in rest.entries))
    rest = replace(rest, sections=tuple(sections))
    places = some([state.at for state in states if state.at], MAX_NAMED) or "the optimizer"
    text = f"the optimizer's state, as --optimizer-state drop says: {places}, {plural(len(names), 'tensor')}"
    return Carried(rest, None, StateReport((), (text,)))


def refuse_unsaid(plan: Plan, carried: Carried, is_plain: bool) -> None:
    """PlanError where an output has no record, and the order of its names does not say whose the entries are.

    The variables of Keras' optimizers are numbered in the order of the model's.
    """
    for one in carried.state.bindings if carried.state is not None and is_plain else ():
        if one.optimizer.form == keras_optimizer.FORM:
            prefix = prefix_of(carried.checkpoint, one.optimizer.section)
            shapes = {
                target.name: target.shape
                for target in plan.targets
                if not target.name.startswith(f"{keras_optimizer.AT}/")
            }
            expected = keras_trained.names_in_order(shapes, carried.checkpoint.metadata, len(one.names))
            if [prefix + name for name in one.names.values()] != expected:
                reason = "its entries are numbered, and such a file cannot say whose they are; -o NAME.safetensors can"
                raise refusal(carried.checkpoint.path, one.optimizer.at, reason)


def finished(plan: Plan, outcome: Outcome, carried: Carried) -> tuple[Plan, Outcome]:
    """A plan, and what happens to names, with the state that was moved.

    Entries are numbered in the order of a module, where they were; so are the names of the model.
    """
    source, state = carried.checkpoint, carried.state
    plan = replace(plan, requires=(*plan.requires, *carried.requires))
    if state is None:
        return plan, outcome
    objects, old = plan.objects, {name: path for path, name in leaves(source.objects)}
    if all(path == tuple(name.split(SEPARATOR)) for name, path in old.items()):  # as in files of flax
        objects = nested(objects, old) or objects
    for section in dict.fromkeys(binding.optimizer.section for binding in state.bindings):
        before = node_at(source.objects, section)
        objects = tree.put(objects, section, tree.sorted_as(node_at(objects, section), before))
    plan = with_state(replace(plan, objects=objects), carried)
    return plan, replace(
        outcome,
        made=outcome.made | state.names.keys(),
        warnings=(*outcome.warnings, *state.warnings),
        rest=replace(outcome.rest, metadata=plan.metadata),
    )


def with_state(plan: Plan, carried: Carried) -> Plan:
    """A plan with the state that was moved, and the record of whose it is.

    Its names are in the order of the tree; those that are not in it stay behind their neighbours.
    """
    state = carried.state
    assert state is not None
    rank = {name: k for k, name in enumerate(tensor_names(plan.objects))}
    names = {**plan.names, **state.names}
    place, last = {}, -1
    for name in names:
        last = place[name] = rank.get(name, last)
    names = {name: names[name] for name in sorted(names, key=place.__getitem__)}
    position: dict[str, int] = {}
    for k, one in enumerate(names.values()):
        position.setdefault(one.owner, k)
    known = {one.at: one for one in edits.optimizers_of(carried.checkpoint.path, plan.metadata)}
    before = {one.optimizer.at: {str(key): name for key, name in one.names.items()} for one in carried.bindings}
    # Prefixes of sections that an output does not have: only those with a dot are seen in a tree
    sections = carried.checkpoint.sections
    outside = {one.name: one.prefix for one in sections if one.prefix.endswith(SEPARATOR)}
    for binding in state.bindings:
        at, section = binding.optimizer.at, binding.optimizer.section
        if binding.optimizer.form != optax.FORM:  # its trees have the names
            new = {str(key): outside.get(section, "") + name for key, name in binding.names.items()}
            known[at] = edits.RecordedNames(at, new, before[at])
    return replace(
        plan,
        metadata={**plan.metadata, edits.OPTIMIZERS: edits.optimizers_text(known.values())} if known else plan.metadata,
        targets=tuple(sorted((*plan.targets, *state.targets), key=lambda target: position.get(target.name, 0))),
        names=names,
        requires=(*plan.requires, *state.requires),
    )


def changes(moves: Sequence[Move], renamed: Mapping[str, str]) -> bool:
    """Whether any parameter is another one, or has another name."""
    return bool(moves) or any(old != new for old, new in renamed.items())


def lines(found: StateReport) -> Iterator[str]:
    """What became of each optimizer, for people."""
    for one in found.moved:
        name = f"{one.at or 'the optimizer'}{f' ({one.algorithm})' if one.algorithm else ''}"
        if one.before:
            yield f"{name}: {plural(one.before, 'entry', 'entries')} became {one.after}; {one.words}"
        else:
            yield f"{name}: the names of its entries follow; {one.words}"
