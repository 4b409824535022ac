"""What an optimizer keeps for the parameters of a model, and the proof of which entry belongs to which parameter.

    NumberedSlots           where the tensors of an optimizer are, if that is by numbers
    OptimizerState          one optimizer of a checkpoint, as the file has it: entries with keys, in groups
    Order                   the parameters that it may have been made with, and whether their order is known
    Binding                 {key: name of a parameter}, how it was found, and whether it is the only possibility
    Move, SlotTargets       how new parameters are made of old ones, for the weights and for each slot
    MovedState              what a plan needs so that its optimizers fit its new parameters

An optimizer that numbers its entries does not say which parameters they are for.  `passes.optimizer.bind` proves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Literal, NamedTuple

from paramtool.errors import plural
from paramtool.lazy_dataclass import dataclass, frozen
from paramtool.model import objects
from paramtool.model.alias import Alias
from paramtool.model.objects import Node
from paramtool.model.plan import Requirement, Target
from paramtool.model.view import Shape, Views

SlotKind = Literal[
    "weight", "first", "second", "magnitude", "scalar", "factored", "blockwise", "global", "derived", "unknown"
]
"""How a slot follows its parameter.

`weight`: as the parameter does.  `first`: linear in the gradient, so signs follow.  `second`: linear in its square, so
signs do not.  `magnitude`: neither sign nor square.  `scalar`: one number, the same for the parts of a parameter.
`factored`: statistics of rows and columns.  `blockwise`: quantised in blocks of elements.  `global`: of all parameters
together.  `derived`: it is calculated anew at each step.  `unknown`: it follows a parameter that is only renamed.
"""
How = Literal["names", "order", "shapes", "given", "record"]


EntryKey = int | str
"""As a file has it: the number of an entry, or its name."""


@frozen
class Slot:
    """One value that an optimizer keeps for a parameter."""

    key: str
    """Such as `exp_avg`."""
    kind: SlotKind
    tensor: str = ""
    """Its name in the checkpoint; empty where it is a plain value."""
    value: Node | None = None
    """The plain value, such as a step that is an int."""
    is_whole: bool = False
    """Whether it has an element for each of the parameter's, although its kind is not known."""


@frozen
class StateEntry:
    """What an optimizer keeps for one parameter."""

    key: EntryKey
    """As the file has it."""
    group: int
    slots: tuple[Slot, ...]
    """Empty for a parameter without state: it is frozen, or had no gradient yet."""


@frozen
class Group:
    """Entries that have their settings in common."""

    keys: tuple[EntryKey, ...]
    """In the order of the group."""
    settings: objects.Mapping
    """Without `params` and `param_names`."""
    names: tuple[str, ...] = ()
    """`param_names`; empty where the file has none."""


@frozen
class NumberedSlots:
    """A list of tensors, numbered, in which those of the parameters follow each other."""

    prefix: str
    """What comes before the number in their names."""
    names: tuple[str, ...]
    """All of them, in order."""
    head: int
    """Single numbers before the slots."""
    blocks: tuple[tuple[str, ...], ...]
    """The slots of each parameter, as `Slot.key`: those of the first, then of the next; then the next block."""
    tail: int = 0
    """Single numbers behind the slots."""

    def places(self, count: int) -> Iterator[tuple[int, int, str]]:
        """[(number, which parameter, slot)] for so many parameters."""
        at = self.head
        for block in self.blocks:
            for k in range(count):
                for slot in block:
                    yield at, k, slot
                    at += 1

    @property
    def count(self) -> int:
        """How many parameters it has."""
        each = sum(map(len, self.blocks))
        return (len(self.names) - self.head - self.tail) // each if each and len(self.names) > self.head else 0

    @property
    def singles(self) -> tuple[str, ...]:
        """The tensors that are of no parameter."""
        return (*self.names[: self.head], *(self.names[-self.tail :] if self.tail and self.count else ()))


@frozen
class OptimizerState:
    """One optimizer in a checkpoint."""

    at: str
    """The path of its mapping in the tree: `optimizer`, `optimizer_states.0`; empty where it is the whole file."""
    form: str
    """`torch`, `dcp`, `dcp-flat`, `deepspeed`, `keras`, `keras-h5`, `optax` or `gluon`."""
    algorithm: str
    """`Adam`, `SGD`, ... by its slots and settings; empty where that is not sure."""
    entries: tuple[StateEntry, ...]
    """In the order of the groups."""
    groups: tuple[Group, ...]
    section: str = ""
    """The section of the model that it belongs to, where the file says so."""
    masters: Mapping[EntryKey, str] = field(default_factory=dict)
    """{key: the float32 copy of the parameter}."""
    refused: str = ""
    """Why its state can never be moved."""
    numbered: tuple[NumberedSlots, ...] = ()
    """Where its tensors are, if that is by numbers: Keras."""

    @property
    def param_names(self) -> dict[EntryKey, str]:
        """{key: its one of `param_names`} of the entries that have one."""
        return dict(pair for group in self.groups for pair in zip(group.keys, group.names, strict=False))


@frozen
class Parameter:
    """A tensor of a model that an optimizer may have an entry for."""

    name: str
    """In the section of the model, without its prefix."""
    shape: Shape
    decays: bool | None = None
    """Whether the Trainer of transformers applies weight decay to it; None where that is not known."""


@frozen
class Order:
    """The parameters that an optimizer may have, without aliases."""

    parameters: tuple[Parameter, ...]
    source: str
    """For people: `the state dict's order`, `the class GPT2LMHeadModel`, `--optimizer-names names.txt`."""
    is_known: bool
    """False for a set of names, such as the alphabetical header of a safetensors file."""
    section: str = ""
    """The section of the checkpoint that they are in; empty where the whole checkpoint is the model."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """{another name of a parameter: its name in `parameters`}."""
    missing: str = ""
    """Why the parameters are not all of the model's; nothing is bound then."""


@frozen
class Binding:
    """Which parameter each entry of an optimizer belongs to, and the proof."""

    optimizer: OptimizerState
    names: Mapping[EntryKey, str]
    """{key: name}: what is proved, which is all of them if `is_unique`."""
    how: How
    source: str
    is_unique: bool
    ambiguous: tuple[tuple[str, ...], ...] = ()
    """Sets of parameters of one shape, each of which could be that of the same entries."""
    unbound: tuple[str, ...] = ()
    """Parameters without an entry."""
    defects: tuple[str, ...] = ()
    """Contradictions between the optimizer and the model: errors, not ambiguities."""

    @property
    def words(self) -> str:
        """The proof in one line."""
        if self.defects:
            return f"not bound: {self.defects[0]}" + f" (and {len(self.defects) - 1} more)" * (len(self.defects) > 1)
        if not self.is_unique:
            return self._doubt
        match self.how:
            case "names":
                return f"bound by names ({self.source})"
            case "given" | "record":
                return f"bound by {self.source}"
            case "shapes":
                return f"bound by shapes: one place fits each of {self._counted}"
        assumed = ", assuming the order of model.parameters()" if self.optimizer.form in ("torch", "dcp") else ""
        return f"bound by order of {self._counted} ({self.source}){self._compared}{assumed}"

    @property
    def _compared(self) -> str:
        """Of how many entries the shape was compared."""
        entries = self.optimizer.entries
        compared = sum(any(slot.tensor and slot.kind != "scalar" for slot in entry.slots) for entry in entries)
        if compared == len(entries):
            return " and their shapes"
        return f" and the shapes of {compared} of them" if compared else ""

    @property
    def _doubt(self) -> str:
        """Why it is not unique."""
        if not self.ambiguous:
            return f"not bound: {self.source}"
        many = sum(map(len, self.ambiguous))
        sets = f" in {len(self.ambiguous)} sets, each" if len(self.ambiguous) > 1 else ""
        why = f"order not known ({self.source})" if self.how == "shapes" else f"several places fit in {self.source}"
        return f"ambiguous: {many} neighbours{sets} of one shape, {why}"

    @property
    def _counted(self) -> str:
        """How many of the parameters have an entry."""
        entries = len(self.optimizer.entries)
        if self.unbound:
            return f"{entries} of the model's {plural(entries + len(self.unbound), 'parameter')}"
        return f"the model's {plural(entries, 'parameter')}"


@frozen
class SlotTargets:
    """What one slot of new parameters is made of."""

    targets: tuple[Target, ...]
    """Named by `Move.new`, in that order."""
    requires: tuple[Requirement, ...] = ()
    changes: tuple[str, ...] = ()
    """What will not be the same in training: `two biases were summed: ...`."""


class StateChoice(NamedTuple):
    """What becomes of the state of a parameter that becomes several, and of several that become one."""

    untied: str = ""
    """`copy`: each has all of it.  `split`: each has its share of the gradients' averages.  `zero`: the first keeps it,
    and the others start without.  `one`: one entry stays for all of them.  Empty: it is refused."""
    tied: str = ""
    """`first` or `second`: whose state is kept.  Empty: it is refused where both differ."""


UNTIED = ("copy", "split", "zero", "one")
TIED = ("first", "second")


@frozen
class Move:
    """New parameters that are made of old ones, and how the same map is asked for any slot."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    through: Callable[[Views, SlotKind], SlotTargets]
    """The windows of one slot of the old parameters, by their names, and the kind of the slot."""
    twins: tuple[tuple[str, ...], ...] = ()
    """Sets of old parameters that hold the same and become one, in the order of the file."""


@dataclass(slots=True)
class MovedState:
    """What a plan has to have for its optimizers."""

    objects: Node
    """The whole tree, renumbered."""
    targets: list[Target] = field(default_factory=list)
    """Their names are those of the output's tree."""
    gone: set[str] = field(default_factory=set)
    """Tensors of the source that they replace."""
    requires: list[Requirement] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    """Those of the output: keys are renumbered, for the record."""
    renamed: dict[str, str] = field(default_factory=dict)
    """{tensor: its new name} of entries that stay what they are, and have another number."""
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """{path of an optimizer: how many entries were joined or split, and how many they became}"""
    emptied: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    """(how many groups an optimizer has, those of them that have no parameter any more)"""

    @property
    def names(self) -> dict[str, Alias]:
        """The new tensors, each by its own name."""
        views = {target.name: target.view for target in self.targets}
        return {name: Alias(name, view, name, "storage", "storage", view) for name, view in views.items()}
