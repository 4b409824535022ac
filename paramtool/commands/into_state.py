"""The state of an optimizer for `convert --into`: Keras' variables of the source's optimizer in those of the model's.

The weights that are put into a model are windows of those of the source.  The same windows of what an optimizer keeps
go into what the model's optimizer keeps, where both are bound, and keep the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from paramtool.commands.optimizer_carry import MovedOptimizer, StateReport, has_state
from paramtool.commands.optimizers import bindings, refuse_defects
from paramtool.errors import PlanError, plural, some
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.optimizer import Binding, OptimizerState, Slot
from paramtool.model.plan import Copy, whole
from paramtool.model.view import View
from paramtool.passes.into.plan import Into
from paramtool.passes.optimizer import numbered
from paramtool.passes.optimizer.moving import refusal

MAX_NAMED = 4


class IntoState(NamedTuple):
    """What goes into a model, with its optimizer, and what became of that."""

    into: Into
    report: StateReport = StateReport()
    is_carried: bool = False


def with_state(checkpoint: Checkpoint, model: Checkpoint, into: Into, drop: bool) -> IntoState:
    """What goes into a model together with the state of the source's optimizer.

    PlanError where the source has a state and the model has no place for it, unless it is dropped.
    """
    if not has_state(checkpoint):
        return IntoState(into)
    unused = tuple(name for name in into.unused if checkpoint.entries[name].role != "optimizer")
    if drop:
        names = [name for name, entry in checkpoint.entries.items() if entry.role == "optimizer"]
        text = f"the optimizer's state of the source, as --drop-optimizer says: {plural(len(names), 'tensor')}"
        return IntoState(replace(into, unused=unused), StateReport((), (text,)))
    views, at = checkpoint.views(), ""

    def refused(reason: str, hint: str = "") -> PlanError:
        return refusal(checkpoint.files[0].path, at, reason, hint)

    def bound(one: Checkpoint, what: str) -> Binding:
        """The binding of the only optimizer of a file of Keras; PlanError where there is none, or it is not proved."""
        found = bindings(one.files[0].path, one)
        if len(found) != 1 or found[0].optimizer.form != numbered.FORM:
            raise refused(f"{what} has no optimizer of Keras 3, and no other is put into a model")
        refuse_defects(one.files[0].path, found)
        if not found[0].is_unique or found[0].optimizer.refused:
            raise refused(f"{what}: {found[0].optimizer.refused or found[0].words}")
        return found[0]

    def full(one: Checkpoint, binding: Binding, name: str) -> str:
        """The name of a variable in its file."""
        prefix = next((s.prefix for s in one.sections if s.name == binding.optimizer.section), "")
        return (prefix if binding.optimizer.section else "") + name

    mine, theirs = bound(checkpoint, "the source"), bound(model, "the model")
    source, state = mine.optimizer, theirs.optimizer
    at = source.at
    if source.entries and not state.entries:
        hint = "train the model a step, or call optimizer.build(model.trainable_variables), and save it again"
        raise refused("the model's optimizer has no variables yet", hint)
    if _form(source) != _form(state):
        raise refused(f"the source's is {_words(source)}, and the model's is {_words(state)}")
    if len(source.entries) != len(state.entries):
        many = f"{len(state.entries)} in the model, {len(source.entries)} in the source"
        raise refused(f"the optimizers do not have as many entries: {many}")
    entries = {full(checkpoint, mine, mine.names[entry.key]): entry for entry in source.entries}
    owners = {views[name].storage: name for name in entries}
    if len(owners) < len(entries):
        raise refused("variables of the source share memory")

    def through(copy: Copy, slot: Slot) -> Copy:
        """A copy of the same window of a slot; PlanError for what is calculated."""
        if not copy.is_plain:
            raise refused("a weight is calculated from several, and only windows of slots are put into a model")
        view = copy.terms[0][1]
        name = owners.get(view.storage, "")
        held = next((one.tensor for one in entries[name].slots if one.key == slot.key), "") if name else ""
        if not held:
            raise refused("a weight of the model comes from one without an entry of that kind")
        parameter, kept = views[name], views[held]
        if not (parameter.is_contiguous and kept.is_contiguous and parameter.shape == kept.shape):
            raise refused(f"{held!r} is not laid out as {name!r} is")
        moved = View(kept.storage, kept.dtype, view.offset - parameter.offset + kept.offset, view.shape, view.strides)
        return Copy(replace(copy.destination, storage=slot.tensor, dtype=kept.dtype), ((1, moved),))

    old, new = ([name for one in side.numbered for name in one.singles] for side in (source, state))
    targets = [whole(place, views[name]) for name, place in zip(old, new, strict=True)]  # the step, the learning rate
    for entry in state.entries:
        parameter = full(model, theirs, theirs.names[entry.key])
        target = into.targets.get(parameter)
        if target is None:
            raise refused(f"{parameter!r} of the model keeps its values, and its optimizer has state for it")
        targets += [
            replace(target, name=slot.tensor, copies=tuple(through(copy, slot) for copy in target.copies))
            for slot in entry.slots
        ]
    places = model.views()
    for target in targets:
        place = places[target.name]
        if (place.shape, place.dtype) != (target.shape, target.copies[0].terms[0][1].dtype):
            raise refused(f"{target.name!r} of the model is {place.dtype.name} {list(place.shape)}")
    count = len(source.entries)
    into = replace(into, targets={**into.targets, **{target.name: target for target in targets}}, unused=unused)
    return IntoState(into, StateReport((MovedOptimizer(at, source.algorithm, count, count, mine.words),)), True)


def _form(state: OptimizerState) -> list[tuple[object, ...]]:
    """What the variables of an optimizer are."""
    return [(state.algorithm, one.prefix, one.head, one.blocks, one.tail) for one in state.numbered]


def _words(state: OptimizerState) -> str:
    slots = [slot for one in state.numbered for block in one.blocks for slot in block]
    return f"{state.algorithm or 'unknown'}, with {some(slots, MAX_NAMED) or 'no slots'}"
