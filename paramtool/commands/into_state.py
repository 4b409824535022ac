"""The state of an optimizer for `convert --into`: Keras' variables of the source's optimizer in those of the model's.

The weights that are put into a model are windows of those of the source.  The same windows of what an optimizer keeps
go into what the model's optimizer keeps, where both are bound, and keep the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from paramtool.commands.optimizer_carry import MovedOptimizer, StateReport, has_state
from paramtool.commands.optimizers import bindings, refuse_defects
from paramtool.errors import PlanError, plural, some
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.optimizer import Binding, OptimizerState
from paramtool.model.plan import Copy, Target, whole
from paramtool.model.view import StorageId, View
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
    if drop:
        names = [name for name, entry in checkpoint.entries.items() if entry.role == "optimizer"]
        text = f"the optimizer's state of the source, as --drop-optimizer says: {plural(len(names), 'tensor')}"
        return IntoState(replace(into, unused=_others(into, checkpoint)), StateReport((), (text,)))
    return _Carrying(checkpoint, model, into).run()


def _others(into: Into, checkpoint: Checkpoint) -> tuple[str, ...]:
    """What is not used, without the optimizer's."""
    return tuple(name for name in into.unused if checkpoint.entries[name].role != "optimizer")


class _Carrying:
    """A source and a model, whose optimizers are to hold the same."""

    def __init__(self, checkpoint: Checkpoint, model: Checkpoint, into: Into) -> None:
        self.checkpoint, self.model, self.into = checkpoint, model, into
        self.views, self.theirs = checkpoint.views(), model.views()
        self.where = checkpoint.files[0].path
        self.at = ""
        self.source: Binding | None = None

    def run(self) -> IntoState:
        """The targets of the model's optimizer."""
        source, model = self.bound(self.checkpoint, "the source"), self.bound(self.model, "the model")
        self.at, self.source = source.optimizer.at, source
        if source.optimizer.entries and not model.optimizer.entries:
            hint = "train the model a step, or call optimizer.build(model.trainable_variables), and save it again"
            raise refusal(self.where, self.at, "the model's optimizer has no variables yet", hint)
        targets = {target.name: target for target in self.numbers(source.optimizer, model.optimizer)}
        targets |= {target.name: target for target in self.slots(source, model)}
        into = replace(
            self.into,
            targets={**self.into.targets, **targets},
            unused=_others(self.into, self.checkpoint),
        )
        count = len(source.optimizer.entries)
        moved = MovedOptimizer(source.optimizer.at, source.optimizer.algorithm, count, count, source.words)
        return IntoState(into, StateReport((moved,)), True)

    def refusal(self, reason: str) -> PlanError:
        """The error for state that cannot follow."""
        return refusal(self.where, self.at, reason)

    def bound(self, one: Checkpoint, what: str) -> Binding:
        """The binding of the only optimizer of a file of Keras; PlanError where there is none, or it is not proved."""
        found = bindings(one.files[0].path, one)
        if len(found) != 1 or found[0].optimizer.form != numbered.FORM:
            raise self.refusal(f"{what} has no optimizer of Keras 3, and no other is put into a model")
        refuse_defects(one.files[0].path, found)
        if not found[0].is_unique or found[0].optimizer.refused:
            raise self.refusal(f"{what}: {found[0].optimizer.refused or found[0].words}")
        return found[0]

    def numbers(self, source: OptimizerState, model: OptimizerState) -> Iterator[Target]:
        """Single numbers: the step, and the learning rate."""
        if _form(source) != _form(model):
            raise self.refusal(f"the source's is {_words(source)}, and the model's is {_words(model)}")
        old, new = ([name for one in state.numbered for name in one.singles] for state in (source, model))
        for name, place in zip(old, new, strict=True):
            yield self.same(whole(place, self.views[name]))

    def slots(self, source: Binding, model: Binding) -> Iterator[Target]:
        """What is kept for each variable of the model."""
        entries = {source.names[entry.key]: entry for entry in source.optimizer.entries}
        if len(entries) != len(model.optimizer.entries):
            many = f"{len(model.optimizer.entries)} in the model, {len(entries)} in the source"
            raise self.refusal(f"the optimizers do not have as many entries: {many}")
        owners = {self.views[self.full(source, name)].storage: name for name in entries}
        if len(owners) < len(entries):
            raise self.refusal("variables of the source share memory")
        for entry in model.optimizer.entries:
            parameter = self.full(model, model.names[entry.key])
            target = self.into.targets.get(parameter)
            if target is None:
                raise self.refusal(f"{parameter!r} of the model keeps its values, and its optimizer has state for it")
            for slot in entry.slots:
                held = {name: next((s for s in one.slots if s.key == slot.key), None) for name, one in entries.items()}
                kept = {name: s.tensor for name, s in held.items() if s is not None}
                copies = tuple(self.through(copy, slot.tensor, owners, kept, source=source) for copy in target.copies)
                yield self.same(replace(target, name=slot.tensor, copies=copies))

    def full(self, binding: Binding, name: str) -> str:
        """The name of a variable in its file."""
        one = self.checkpoint if binding is self.source else self.model
        prefix = next((s.prefix for s in one.sections if s.name == binding.optimizer.section), "")
        return (prefix if binding.optimizer.section else "") + name

    def through(
        self, copy: Copy, tensor: str, owners: Mapping[StorageId, str], kept: Mapping[str, str], *, source: Binding
    ) -> Copy:
        """A copy of the same window of a slot; PlanError for what is calculated."""
        if not copy.is_plain:
            raise self.refusal("a weight is calculated from several, and only windows of slots are put into a model")
        view = copy.terms[0][1]
        name = owners.get(view.storage)
        if name is None or name not in kept:
            raise self.refusal("a weight of the model comes from one without an entry of that kind")
        parameter, slot = self.views[self.full(source, name)], self.views[kept[name]]
        if not (parameter.is_contiguous and slot.is_contiguous and parameter.shape == slot.shape):
            raise self.refusal(f"{kept[name]!r} is not laid out as {name!r} is")
        moved = View(slot.storage, slot.dtype, view.offset - parameter.offset + slot.offset, view.shape, view.strides)
        destination = replace(copy.destination, storage=tensor, dtype=slot.dtype)
        return Copy(destination, ((1, moved),))

    def same(self, target: Target) -> Target:
        """A target that the model's tensor has room for."""
        place = self.theirs[target.name]
        if (place.shape, place.dtype) != (target.shape, target.copies[0].terms[0][1].dtype):
            raise self.refusal(f"{target.name!r} of the model is {place.dtype.name} {list(place.shape)}")
        return target


def _form(state: OptimizerState) -> list[tuple[object, ...]]:
    """What the variables of an optimizer are."""
    return [(state.algorithm, one.prefix, one.head, one.blocks, one.tail) for one in state.numbered]


def _words(state: OptimizerState) -> str:
    slots = [slot for one in state.numbered for block in one.blocks for slot in block]
    return f"{state.algorithm or 'unknown'}, with {some(slots, MAX_NAMED) or 'no slots'}"
