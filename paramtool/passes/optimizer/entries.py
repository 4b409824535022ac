"""The entries of an optimizer with what they say of their parameters' shapes, and which of them fit no parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from paramtool.errors import plural
from paramtool.model.optimizer import OptimizerState, Order, Parameter, StateEntry
from paramtool.passes.optimizer.slots import ExpectedShape, expected_shape

Key = int | str


class Entries(NamedTuple):
    """An optimizer, and what its entries say of the shapes of their parameters."""

    state: OptimizerState
    expected: list[ExpectedShape]
    shapes: Mapping[str, tuple[int, ...]]
    keys: list[Key]


def entries_of(state: OptimizerState, shapes: Mapping[str, tuple[int, ...]]) -> Entries:
    expected = [expected_shape(entry, shapes, state.masters.get(entry.key)) for entry in state.entries]
    return Entries(state, expected, shapes, [entry.key for entry in state.entries])


def contradictions(asked: Entries, order: Order) -> Iterator[str]:
    """Why nothing fits, for people: counts, and entries of which no parameter has the shape."""
    entries, parameters = asked.keys, order.parameters
    at = asked.state.at or "the optimizer"
    if len(entries) > len(parameters):
        many_entries = plural(len(entries), "entry", "entries")
        yield f"{at}: {many_entries}, more than the model's {plural(len(parameters), 'parameter')} ({order.source})"
    many = {parameter.shape for parameter in parameters}
    same = order.is_known and len(entries) == len(parameters)
    found = False
    for k, (entry, expected) in enumerate(zip(asked.state.entries, asked.expected, strict=True)):
        if not any(map(expected.allows, many)):
            found = True
            yield _misfit(asked, entry, parameters[k] if same else None)
    if not found and len(entries) <= len(parameters):
        yield f"{at}: more entries of some shapes than the model has parameters of them"


def entry_text(asked: Entries, key: Key) -> str:
    return f"{asked.state.at or 'the optimizer'}: entry {key!r}"


def _misfit(asked: Entries, entry: StateEntry, parameter: Parameter | None) -> str:
    """What an entry has that no parameter has, and what was expected."""
    wanted = f"; expected that of {parameter.name!r}, {list(parameter.shape)}" if parameter else ""
    return f"{entry_text(asked, entry.key)}: no parameter has the shape of {shown_slots(asked, entry)}{wanted}"


def shown_slots(asked: Entries, entry: StateEntry) -> str:
    """The slots of an entry that say what shape its parameter has."""
    found = [slot for slot in entry.slots if slot.tensor in asked.shapes and slot.kind != "scalar"]
    return ", ".join(f"{slot.key} {list(asked.shapes[slot.tensor])}" for slot in found)
