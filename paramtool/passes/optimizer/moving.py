"""One optimizer whose parameters change: what is known of it, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from paramtool.errors import LayoutError, PlanError
from paramtool.lazy_dataclass import dataclass
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Node
from paramtool.model.optimizer import (
    Binding,
    Move,
    Slot,
    SlotTargets,
    StateChoice,
)
from paramtool.model.plan import Requirement, Target
from paramtool.model.view import View

SHOWN = 4
"""How many names an error lists."""
_DROP = "--drop-optimizer writes the model without it"
EntryKey = int | str


def refusal(where: str, at: str, reason: str, hint: str = "") -> PlanError:
    """The error for state that cannot follow."""
    state = f"the state of {at!r}" if at else "the optimizer's state"
    return PlanError(f"{where}: {state} cannot follow: {reason}", hint=f"{hint}{'; ' if hint else ''}{_DROP}")


@dataclass(slots=True)
class Done:
    """What becomes of one optimizer."""

    at: str
    node: Node | None = None
    """Its new node; None where it stays as it is."""
    targets: list[Target] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    requires: list[Requirement] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    binding: Binding | None = None
    counts: tuple[int, int] | None = None
    emptied: frozenset[int] = frozenset()
    """Groups that have no parameter any more."""


class NewEntry(NamedTuple):
    """What is kept for a new parameter."""

    name: str
    slots: tuple[tuple[str, Target | Node], ...]


class Concerned(NamedTuple):
    """A move of parameters that have entries."""

    keys: tuple[EntryKey, ...]
    """The entries that the new ones are made of."""
    move: Move
    held: Mapping[str, EntryKey]
    """{old parameter: its entry, or that of the one whose state is kept}"""
    gone: tuple[EntryKey, ...]
    """Entries of parameters whose state is not kept."""


class Moving:
    """One optimizer, and the parameters that change."""

    def __init__(
        self, checkpoint: Checkpoint, binding: Binding, moves: Sequence[Move], renamed: Mapping[str, str], *,
        choice: StateChoice, parameters: Checkpoint, ranks: Mapping[str, int] | None,
    ) -> None:  # fmt: skip
        self.where = checkpoint.files[0].path
        self.binding, self.state = binding, binding.optimizer
        self.views = checkpoint.views()
        self.weights = self.views if parameters is checkpoint else parameters.views()
        self.rank = {
            name: k
            for k, name in enumerate(dict.fromkeys([*list(objects.tensor_names(parameters.objects)), *self.weights]))
        }
        self.ranks = ranks
        self.objects = checkpoint.objects
        prefix = next((one.prefix for one in parameters.sections if one.name == self.state.section), "")
        self.prefix = prefix if self.state.section else ""
        self.names = {key: self.prefix + name for key, name in binding.names.items()}
        self.entries = {
            entry.key: replace(entry, slots=tuple(slot for slot in entry.slots if slot.kind != "global"))
            for entry in self.state.entries
        }
        self.is_flat = any(slot.kind == "global" for entry in self.state.entries for slot in entry.slots)
        self.made_by: dict[str, Concerned] = {}
        self.moves, self.renamed, self.choice = moves, renamed, choice
        self.hint = ""
        self.by_view = {self.weights[name]: key for key, name in self.names.items() if name in self.weights}
        self.done = Done(self.state.at)

    def refusal(self, reason: str, hint: str = "") -> PlanError:
        """The error for state that cannot follow."""
        return refusal(self.where, self.state.at, reason, hint or self.hint)

    def new_name(self, key: EntryKey) -> str:
        """The new name of the parameter of an entry that stays what it is."""
        return self.renamed.get(self.names[key], self.names[key])

    def called(self, key: EntryKey, one: NewEntry | None) -> str:
        """The name of the parameter of a new entry; empty where it is not known."""
        return one.name if one is not None else self.new_name(key) if key in self.names else ""

    def pair(self, one: EntryKey, other: EntryKey) -> str:
        """Two parameters, for people."""
        return f"{self.names[one]!r} and {self.names[other]!r}"

    def view(self, slot: Slot) -> View:
        """The window of a slot; PlanError if it is not a plain tensor."""
        if slot.tensor not in self.views:
            raise self.refusal(f"{slot.tensor or slot.key!r} is not a plain tensor")
        return self.views[slot.tensor]

    def slot_of(self, key: EntryKey, called: str) -> Slot:
        """A slot of an entry; PlanError where it has none of this name."""
        found = next((slot for slot in self.entries[key].slots if slot.key == called), None)
        if found is None:
            raise self.refusal(f"it keeps no {called!r} for {self.names[key]!r}")
        return found

    def through(self, move: Move, views: Mapping[str, View], slot: Slot) -> SlotTargets:
        """The same map once more; PlanError where what is kept does not fit it."""
        try:
            return move.through(views, slot.kind)
        except LayoutError as error:
            raise self.refusal(f"{slot.key!r}: {error.message}") from None

    def required(self, one: Requirement, called: str) -> Requirement:
        """A condition on a slot, as one of the state."""
        told = self.refusal(f"{called!r}: {one.message}")
        return replace(one, message=told.message, hint=told.hint, is_of_state=True)
