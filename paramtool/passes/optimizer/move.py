"""The state of an optimizer for parameters that are made of others: the same maps, asked once more for each slot.

A map is never stored or inverted.  `Move.through` makes new tensors of any windows of the old ones, so that it is asked
with the windows of `exp_avg` as the conversion was with the weights.  Entries that belong to no changed parameter keep
what they have; their ids and groups are renumbered as torch numbers them: group by group, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple, cast

from paramtool.errors import LayoutError, PlanError, some
from paramtool.grouping import grouped
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint, prefix_of
from paramtool.model.nested import SEPARATOR
from paramtool.model.objects import EMPTY, Key, Leaf, Node, Path, TensorRef
from paramtool.model.optimizer import (
    Binding,
    EntryKey,
    Move,
    MovedState,
    Slot,
    SlotTargets,
    StateChoice,
    StateEntry,
)
from paramtool.model.plan import Copy, Requirement, Target, whole
from paramtool.model.view import Shapes, View, Views, contiguous
from paramtool.passes.optimizer import copies, optax, tree
from paramtool.passes.optimizer.slots import BLOCK, OF_ONE_SHAPE, TRAJECTORIES, last_part, power_of

_DROP = "--optimizer-state drop writes the model without it"


def refusal(where: str, at: str, reason: str, hint: str = "") -> PlanError:
    """The error for state that cannot follow."""
    state = f"the state of {at!r}" if at else "the optimizer's state"
    return PlanError(f"{where}: {state} cannot follow: {reason}", hint=f"{hint}{'; ' if hint else ''}{_DROP}")


class NewEntry(NamedTuple):
    """What is kept for a new parameter."""

    name: str
    slots: Mapping[str, Target | Node]


Made = Mapping[EntryKey, tuple[NewEntry, ...]]
"""{old entry: the new entries at its place}"""
Written = tuple[Node, Mapping[EntryKey, str]]
"""The new node of an optimizer, and {new key: the parameter}."""


class Concerned(NamedTuple):
    """A move of parameters that have entries."""

    keys: tuple[EntryKey, ...]
    """The entries that the new ones are made of."""
    move: Move
    held: Mapping[str, EntryKey]
    """{old parameter: its entry, or that of the one whose state is kept}"""
    gone: tuple[EntryKey, ...]
    """Entries of parameters whose state is not kept."""


_UNTIE = "--optimizer-state copy, split, zero or one says what they get"
_TIE = "--optimizer-state first or second says whose is kept"
_CODES, _BLOCKS = ("qmap1", "qmap2"), ("state1", "state2", "absmax1", "absmax2")
"""What bitsandbytes keeps: the values of all codes, the same for every tensor; codes, and scales of blocks of them."""
NOTHING_SAID = StateChoice()
KERAS = "keras"
MOVABLE = ("torch", "dcp", tree.FLAT, "deepspeed", tree.LIST, optax.FORM, KERAS)
"""Forms of optimizers whose trees are written."""


def moved(
    checkpoint: Checkpoint, bindings: Sequence[Binding], moves: Sequence[Move], renamed: Mapping[str, str], *,
    choice: StateChoice = NOTHING_SAID, model: Checkpoint | None = None, ranks: Mapping[str, int] | None = None,
) -> MovedState:  # fmt: skip
    """What a plan has to have, so that the optimizers of a checkpoint fit its new parameters.

    `renamed` is {old name: new name} of tensors that only get another name, and `choice` says what becomes of the state
    of parameters that are tied and untied.  `model` has the parameters, where the optimizers are in a file of their
    own.  `ranks` is {new name: its rank in the model that the output is for}: each group has that order.  PlanError
    says why the state of one cannot follow.
    """
    found = MovedState(checkpoint.objects)
    parameters = model or checkpoint
    counts = [len(one.optimizer.groups) for one in bindings if one.optimizer.form != tree.LIST]
    for binding in bindings:
        one = Moving(checkpoint, binding, moves, renamed, choice, parameters, ranks, found)
        one.run()
        if one.emptied:  # their items go from the schedules
            count = len(one.state.groups)
            if counts.count(count) > 1 and tree.of_groups(checkpoint.objects, count):
                raise one.refusal(
                    f"group {min(one.emptied)} would have no parameter, and which schedule is its own is not known"
                )
            found.emptied.append((count, one.emptied))
            found.objects = tree.without_groups(found.objects, count, one.emptied)
    found.warnings = [*dict.fromkeys(found.warnings)]
    return found


class Moving:
    """One optimizer whose parameters change: what is known of it, and, after `run`, what becomes of it."""

    def __init__(
        self, checkpoint: Checkpoint, binding: Binding, moves: Sequence[Move], renamed: Mapping[str, str],
        choice: StateChoice, parameters: Checkpoint, ranks: Mapping[str, int] | None, found: MovedState,
    ) -> None:  # fmt: skip
        self.checkpoint, self.views = checkpoint, checkpoint.views()
        self.weights = self.views if parameters is checkpoint else parameters.views()
        self.binding, self.state = binding, binding.optimizer
        self.moves, self.renamed, self.choice, self.ranks = moves, renamed, choice, ranks
        self.found = found
        names = dict.fromkeys([*objects.tensor_names(parameters.objects), *self.weights])
        self.rank = {name: k for k, name in enumerate(names)}
        self.prefix = prefix_of(parameters, self.state.section)
        self.names = {key: self.prefix + name for key, name in binding.names.items()}
        self.entries = {
            entry.key: replace(entry, slots=tuple(slot for slot in entry.slots if slot.kind != "global"))
            for entry in self.state.entries
        }
        self.is_flat = [*self.entries.values()] != [*self.state.entries]
        self.by_view = {self.weights[name]: key for key, name in self.names.items() if name in self.weights}
        self.made_by: dict[str, Concerned] = {}
        self.hint = ""
        self.emptied: frozenset[int] = frozenset()
        """Groups that have no parameter any more."""

    def refusal(self, reason: str, hint: str = "") -> PlanError:
        """The error for state that cannot follow."""
        return refusal(self.checkpoint.path, self.state.at, reason, hint or self.hint)

    def called(self, key: EntryKey, one: NewEntry | None) -> str:
        """The name of the parameter of a new entry, or of one that stays; empty where it is not known."""
        name = self.names.get(key, "")
        return one.name if one is not None else self.renamed.get(name, name)

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
        for slot in self.entries[key].slots:
            if slot.key == called:
                return slot
        raise self.refusal(f"it keeps no {called!r} for {self.names[key]!r}")

    def through(self, move: Move, views: Views, slot: Slot) -> SlotTargets:
        """The same map once more; PlanError where what is kept does not fit it."""
        try:
            return move.through(views, slot.kind)
        except LayoutError as error:
            raise self.refusal(f"{slot.key!r}: {error.message}") from None

    def required(self, one: Requirement, called: str) -> Requirement:
        """A condition on a slot, as one of the state."""
        told = self.refusal(f"{called!r}: {one.message}")
        return replace(one, message=told.message, hint=told.hint, is_of_state=True)

    def run(self) -> None:
        """Find what becomes of it; PlanError where it is of a form, or of a kind, that is not moved."""
        if self.moves and not self.binding.is_unique:
            raise self.refusal(
                self.binding.words,
                "--optimizer-names FILE says whose its entries are (docs/optimizers.md has an example)",
            )
        moving = [*self.concerned()]
        renames = any(self.called(key, None) != name for key, name in self.names.items())
        has_names = any(isinstance(key, str) for key in self.entries) or any(one.names for one in self.state.groups)
        if not moving and not self.is_reordered() and not (renames and has_names):
            return
        if self.state.form not in MOVABLE:
            raise self.refusal(f"it is in the form {self.state.form}, which this version does not write")
        if (moving or self.state.form == optax.FORM) and self.state.refused:
            raise self.refusal(self.state.refused)
        if moving and not copies.are_listed(self.state):
            raise self.refusal("it has float32 copies of the parameters, which this version does not convert")
        made = {old: new for one in moving for old, new in self.joined(one)}
        self.found.gone |= {slot.tensor for key in made for slot in self.entries[key].slots if slot.tensor}
        write = {optax.FORM: self.write_trees, KERAS: self.write_numbers}.get(self.state.form, self.write)
        node, names = write(made)
        self.found.objects = tree.put(self.found.objects, self.state.at, node)
        # The optimizer with its new keys; what it keeps is not described again.
        state = replace(self.state, entries=tuple(StateEntry(key, 0, ()) for key in names))
        own = {key: name.removeprefix(self.prefix) for key, name in names.items() if name}
        self.found.bindings.append(replace(self.binding, optimizer=state, names=own))
        if moving and self.state.form != tree.LIST:
            self.found.warnings += self.trajectory()
        self.found.counts[self.state.at] = len(made), sum(map(len, made.values()))

    def trajectory(self) -> Iterator[str]:
        """What will not be the same in a training that continues."""
        at = self.state.at or "the optimizer"
        if told := TRAJECTORIES.get(self.state.algorithm):
            yield f"{at}: the training that continues is not the same: {told}"
        elif self.state.form == optax.FORM:
            yield f"{at}: {optax.UNSAID}"
        elif not self.state.algorithm and any(entry.slots for entry in self.state.entries):
            yield (
                f"{at}: which optimizer it is, is not known; if its update looks at a whole tensor, as norms do, the "
                "training that continues is not the same"
            )
        derived = {slot.key for entry in self.state.entries for slot in entry.slots if slot.kind == "derived"}
        if left := ", ".join(sorted(derived)):
            yield f"{at}: {left} of joined or split parameters are left out: each step calculates them anew"

    # What the new parameters get

    def concerned(self) -> Iterator[Concerned]:
        """The moves of parameters that have entries, each with the entries of its old ones; tied ones once."""
        seen: dict[EntryKey, frozenset[EntryKey]] = {}
        # PlanError where a parameter is joined or split under one of its names, and stays what it is under another
        read = {name for move in self.moves for name in move.old}
        made = {name for move in self.moves for name in move.new}
        views = {self.weights[name]: name for name in read if self.weights.get(name) in self.by_view}
        for name, view in self.weights.items():
            if view in views and name not in read and name not in made and name.startswith(self.prefix):
                raise self.refusal(f"{views[view]!r} changes, and its other name {name!r} keeps what it was")
        for move in self.moves:
            keys = {name: self.by_view.get(self.weights[name]) for name in move.old if name in self.weights}
            every = tuple(dict.fromkeys(key for key in keys.values() if key is not None))
            if not every:
                continue
            self.choose(keys, move)
            held = {name: key for name, key in keys.items() if key is not None}
            there = tuple(dict.fromkeys(held.values()))
            if lacking := [name for name in keys if name not in held]:
                has = self.names[there[0]]
                raise self.refusal(f"{has!r} has an entry, and {some(lacking, 4)} beside it has none")
            before = {seen[key] for key in every if key in seen}
            if before == {frozenset(every)}:
                continue
            if before:
                raise self.refusal(f"{self.names[there[0]]!r} becomes a part of several parameters")
            seen |= dict.fromkeys(every, frozenset(every))
            yield Concerned(there, move, held, tuple(key for key in every if key not in there))

    def choose(self, keys: dict[str, EntryKey | None], move: Move) -> None:
        """Give parameters that become one the entry of one of them: of the only one, or of that of the choice."""
        for names in move.twins:
            found = [*dict.fromkeys(key for name in names if (key := keys.get(name)) is not None)]
            if not found:
                continue
            chosen = found[-1] if self.choice.tied == "second" else found[0]
            for name in names:
                if keys.get(name) is None or self.choice.tied:
                    keys[name] = chosen

    def joined(self, one: Concerned) -> Iterator[tuple[EntryKey, tuple[NewEntry, ...]]]:
        """{old entry: the new entries at its place}; all are at the place of the first one in its group."""
        keys, move = one.keys, one.move
        self.hint = _TIE if move.twins and not self.choice.tied else ""
        self.check_groups(keys)
        weights = self.through(move, {name: self.weights[name] for name in move.old}, Slot("", "weight"))
        alike = _alike(weights.targets)
        shares, without = self.untied(alike)
        self.made_by |= dict.fromkeys(shares, one)
        if self.is_flat and (one.gone or len(shares) > len(alike) or weights.changes):
            raise self.refusal("L-BFGS keeps products of vectors over all parameters, which tied or summed ones change")
        kept = [slot.key for slot in self.entries[keys[0]].slots if slot.kind != "derived"]
        slots = [(key, self.slot(key, one, shares)) for key in kept]
        entries = tuple(
            NewEntry(name, {key: made[name] for key, made in slots if name not in without}) for name in shares
        )
        self.hint = ""
        first = min(keys, key=[*self.entries].index)
        yield first, entries
        yield from ((key, ()) for key in (*keys, *one.gone) if key != first)

    def untied(self, alike: Sequence[Sequence[str]]) -> tuple[dict[str, int], frozenset[str]]:
        """{new parameter: how many share its state}, and those that start without any; `alike` are made of the same."""
        choice = self.choice.untied
        if self.state.form == tree.LIST:
            choice = "one" if choice == "one" else "copy"
        shares, without = {}, []
        for names in alike:
            if len(names) > 1 and not choice:
                told = " and ".join(map(repr, names[:4]))
                raise self.refusal(f"{told} become separate parameters, and it keeps one state for them", _UNTIE)
            for k, name in enumerate(names if choice != "one" else names[:1]):
                shares[name] = len(names) if choice == "split" else 1
                without += [name] if k and choice == "zero" else []
        return shares, frozenset(without)

    def check_groups(self, keys: tuple[EntryKey, ...]) -> None:
        """PlanError where the old parameters have different settings, or only some of them have state."""
        first = self.entries[keys[0]]
        for key in keys[1:]:
            other = self.entries[key]
            if other.group != first.group:
                groups = f"groups {first.group} and {other.group}{self.difference(first.group, other.group)}"
                raise self.refusal(f"{self.pair(keys[0], key)} become one, and are in {groups}")
            mine, theirs = ({slot.key for slot in one.slots} for one in (first, other))
            if mine != theirs:
                kept = f"{', '.join(sorted(mine)) or 'nothing'} and {', '.join(sorted(theirs)) or 'nothing'}"
                raise self.refusal(f"{self.pair(keys[0], key)} become one, and it keeps {kept} for them")

    def difference(self, one: int, other: int) -> str:
        """The first setting in which two groups differ."""
        mine, theirs = (dict(self.state.groups[k].settings.items) for k in (one, other))
        for key, value in mine.items():
            found = theirs.get(key)
            if found != value and isinstance(value, Leaf) and isinstance(found, Leaf):
                return f" ({objects.word(key)} {value.value!r} and {found.value!r})"
        return ""

    def slot(self, called: str, one: Concerned, shares: Mapping[str, int]) -> Mapping[str, Target | Node]:
        """One slot of the new parameters; `shares` are by how many the state of each is shared."""
        keys, move, new = one.keys, one.move, [*shares]
        held = {key: self.slot_of(key, called) for key in keys}
        first = held[keys[0]]
        if {slot.kind for slot in held.values()} != {first.kind}:
            raise self.refusal(f"{called!r} is not kept in one way for {some([self.names[key] for key in keys], 4)}")
        if first.kind == "scalar" or called.endswith(_CODES) or not any(slot.tensor for slot in held.values()):
            return self.scalar(held, new)
        if first.kind == "blockwise" and last_part(called) in _BLOCKS:
            return self.quantised(called, one, shares)
        if first.kind not in OF_ONE_SHAPE:
            raise self.refusal(f"{_why(first)}, and {self.names[keys[0]]!r} is joined, split or rearranged")
        views = {name: self.view(held[one.held[name]]) for name in move.old}
        done = self.through(move, views, first)
        self.found.requires += (self.required(one, called) for one in done.requires)
        self.found.warnings += (f"{self.state.at or 'the optimizer'}: {text}" for text in done.changes)
        power = power_of(called, first.kind)
        found = {}
        for target in done.targets:
            if target.name in new:
                factor = shares[target.name] ** -power
                if factor != 1:
                    scaled = (replace(copy, scale=cast(float, copy.scale) * factor) for copy in target.copies)
                    target = replace(target, copies=tuple(scaled))
                found[target.name] = target
        return found

    def quantised(self, called: str, one: Concerned, shares: Mapping[str, int]) -> Mapping[str, Target | Node]:
        """Moments that are quantised in blocks, or the scales of these blocks."""
        if any(share > 1 for share in shares.values()):
            raise self.refusal(
                f"{called!r} is quantised, and a part of it is no share (--optimizer-state copy and zero are)"
            )
        moments = called.replace("absmax", "state")
        states, scales = (
            {name: self.view(self.slot_of(key, slot)) for name, key in one.held.items()} for slot in (moments, called)
        )
        made = self.through(one.move, states, Slot(moments, "weight")).targets
        targets = [target for target in made if target.name in shares]
        try:  # with the moments, too: no block is cut
            found = block_scales(targets, states, scales)
        except LayoutError as error:
            raise self.refusal(f"{called!r}: {error.message}") from None
        return {target.name: target for target in (targets if moments == called else found)}

    def scalar(self, held: Mapping[EntryKey, Slot], new: Sequence[str]) -> Mapping[str, Target | Node]:
        """One number or value for all parts, which must agree."""
        (key, first), *others = held.items()
        for other, slot in others:
            if bool(slot.tensor) != bool(first.tensor) or slot.value != first.value:
                found = f"{first.key} {_shown(first)} for {self.names[key]!r} and {_shown(slot)} for"
                raise self.refusal(f"{found} {self.names[other]!r}; expected one for the parts of {new[0]!r}")
            if slot.tensor:
                message = f"{first.key} differs for {self.pair(key, other)}, parts of {new[0]!r}"
                mine, its = self.view(slot), self.view(first)
                if (mine.shape, mine.dtype) != (its.shape, its.dtype):
                    raise self.refusal(message)
                self.found.requires.append(self.required(Requirement(mine, ((1, its),), 0.0, message), first.key))
        if not first.tensor:
            return dict.fromkeys(new, first.value or Leaf(None))
        return {name: whole(name, self.view(first)) for name in new}

    # The tree for the new parameters, in the form in which it was

    def is_reordered(self) -> bool:
        """Whether the entries of a group have another order in the model that the output is for."""
        return any([key for key, _ in self.in_group(one.keys, {})] != [*one.keys] for one in self.state.groups)

    def held(self, key: EntryKey, one: NewEntry | None) -> Mapping[str, Target | Node]:
        """{slot: what is kept} of a new entry, or of one that stays."""
        if one is not None:
            return one.slots
        return {slot.key: TensorRef(slot.tensor) for slot in self.entries[key].slots}

    def placed(self, value: Target | Node | None, name: str) -> Node:
        """What is kept at its place in the output: a tensor under its name there."""
        if isinstance(value, Target):
            self.found.targets.append(value.called(name))
        elif isinstance(value, TensorRef):
            self.found.renamed |= {value.name: name} if value.name != name else {}
        elif value is not None:
            return value
        return TensorRef(name)

    def write(self, made: Made) -> Written:
        """The new node of torch's optimizers, and of lists."""
        entries: dict[Key, Node] = {}
        listed: list[list[tuple[Key, str]]] = []
        names: dict[EntryKey, str] = {}
        old = objects.node_at(self.checkpoint.objects, self.state.at)
        there = tree.entries_of(old, self.state.form)
        said = self.state.param_names
        renumbers = bool(made) or self.is_reordered()
        flat = self.is_flat and bool(made)
        for group in self.state.groups:
            listed.append([])
            for key, one in self.in_group(group.keys, made):
                name = self.called(key, one)
                if isinstance(key, str):
                    new: EntryKey = self.relative(key, key, name) if name else key
                else:
                    new = len(names) if renumbers else key
                names[new] = name
                listed[-1].append((new, self.relative(said[key], key, name) if key in said else ""))
                if one is not None and one.slots:
                    entries[new] = self.entry(new, one)
                elif one is None and key in there and not flat:
                    entries[new] = self.below(there[key], key, new)
        if flat:
            entries[listed[0][0][0]] = self.vectors(there, made, listed[0][0][0])
        self.emptied = frozenset(k for k, one in enumerate(self.state.groups) if one.keys and not listed[k])
        if self.emptied and self.state.masters:
            raise self.refusal(f"group {min(self.emptied)} would have no parameter any more, and has float32 copies")
        return tree.rewritten(old, self.state.form, listed, entries, self.emptied), names

    def vectors(self, there: Mapping[Key, Node], made: Made, new: Key) -> Node:
        """The one entry of L-BFGS, whose vectors go over all parameters."""
        (old, node), *others = there.items()
        if others or {*self.names} != {*self.entries} or len(self.state.groups) > 1:
            raise self.refusal("L-BFGS keeps vectors over all parameters, and not all of them are known")
        shapes = {self.names[key]: self.weights[self.names[key]].shape for key in self.entries}

        def parts(vector: View) -> Iterator[Target]:
            places = windows(vector, shapes)
            for key, one in self.in_group(self.state.groups[0].keys, made):
                if one is None:
                    yield whole("", places[self.names[key]])
                else:
                    by = self.made_by[one.name]
                    views = {name: places[self.names[its]] for name, its in by.held.items()}
                    targets = self.through(by.move, views, Slot("", "first")).targets
                    yield next(target for target in targets if target.name == one.name)

        def moved(child: Node) -> Node:
            if isinstance(child, objects.Sequence):
                return replace(child, items=tuple(map(moved, child.items)), mark=0)
            if not isinstance(child, TensorRef):
                return child
            self.found.gone.add(child.name)
            vector = self.views[child.name]
            return self.placed(joined(vector, parts(vector)), self.path(new) + child.name.removeprefix(self.path(old)))

        assert isinstance(node, objects.Mapping)
        pairs = node.items
        return replace(node, items=tuple((k, moved(v) if k in VECTORS else self.below(v, old, new)) for k, v in pairs))

    def write_trees(self, made: Made) -> Written:
        """The new node of optax, whose trees have the names of the parameters."""
        by_name = optax.paths(self.checkpoint.objects, self.names.values())
        tensors: dict[tuple[str, Path], Node] = {}
        new: dict[Path, list[Path]] = {path: [] for path in by_name.values()}
        names: dict[EntryKey, str] = {}
        base = self.state.at.replace(".", SEPARATOR)
        for key, name in self.names.items():
            old = by_name[name]
            for one in made.get(key, (None,)):
                called = self.called(key, one)
                path = old if called == name else self.path_in_tree(name, old, called)
                new[old].append(path)
                names[called.removeprefix(self.prefix)] = called
                for slot, value in self.held(key, one).items():
                    tensors[slot, path] = self.placed(value, SEPARATOR.join((base, slot, *path)))
        return optax.rebuilt(objects.node_at(self.checkpoint.objects, self.state.at), new, tensors), names

    def write_numbers(self, made: Made) -> Written:
        """The new node of Keras, whose variables are numbered, those of the parameters behind each other."""
        entries = [(key, one) for key in self.entries for one in made.get(key, (None,))]
        held = [self.held(*pair) for pair in entries]
        items: list[tuple[Key, Node]] = []
        for one in self.state.numbered:
            singles = [TensorRef(name) for name in one.singles]
            kept = (held[k].get(slot) for _, k, slot in one.places(len(held)))
            for k, value in enumerate((*singles[: one.head], *kept, *singles[one.head :])):
                name = f"{one.prefix}{k}"
                items.append((name.removeprefix(f"{self.state.at}/"), self.placed(value, name)))
        return objects.Mapping("dict", tuple(items)), {k: self.called(*pair) for k, pair in enumerate(entries)}

    def path_in_tree(self, name: str, path: Path, called: str) -> Path:
        """The path of a new parameter in the trees of optax: it is where its name says, beside the old one."""
        holder = name.removesuffix(SEPARATOR.join(path))
        if any(SEPARATOR in part for part in path):
            raise self.refusal(f"{name!r} has a key with a slash, so the keys of {called!r} are not known")
        if not called.startswith(holder):
            raise self.refusal(f"{called!r} is not in the mapping of {name!r}, whose names its trees have")
        return tuple(called.removeprefix(holder).split(SEPARATOR))

    def in_group(self, group: Sequence[EntryKey], made: Made) -> list[tuple[EntryKey, NewEntry | None]]:
        """[(old entry, the new one at its place)] of a group.

        They are in the order of the model that the output is for; where that is not known, in the order of a module if
        the old ones were.
        """
        order = [(key, one) for key in group for one in made.get(key, (None,))]
        by_name = {self.called(*pair): pair for pair in order}
        if len(by_name) < len(order):
            return order
        old, names = [self.names.get(key, "") for key in group], [*by_name]
        if self.ranks is not None and by_name.keys() <= self.ranks.keys():
            names.sort(key=self.ranks.__getitem__)
        elif made and {*names, *old} <= self.rank.keys() and old == sorted(old, key=self.rank.__getitem__):
            names.sort(key=self.rank.__getitem__)
        elif made and tree.is_module_order(old):
            names = tree.module_order(names)
        return [by_name[name] for name in names]

    def relative(self, said: str, key: EntryKey, name: str) -> str:
        """A new name as the optimizer writes names: with the same words before it, if it has some."""
        own = self.binding.names.get(key, "")
        new = name.removeprefix(self.prefix)
        if own and said.endswith(own):
            return said.removesuffix(own) + new
        cut = own.removesuffix(said)
        if own and cut != own and new.startswith(cut):
            return new.removeprefix(cut)
        raise self.refusal(f"it calls {own or name!r} {said!r}, and what it would call {name!r} is not known")

    def below(self, node: Node, key: Key, new: Key) -> Node:
        """What stays of an entry, at its new place."""
        before, after = self.path(key), self.path(new)
        if before == after:
            return node

        def moved(name: str) -> str:
            if not f"{name}.".startswith(f"{before}."):
                return name
            self.found.renamed[name] = after + name.removeprefix(before)
            return self.found.renamed[name]

        return objects.map_tensors(node, moved)

    def path(self, key: Key) -> str:
        """The path of an entry."""
        if self.state.form == tree.LIST:
            return f"{self.state.at}.{key!s}"
        return ".".join(part for part in (self.state.at, "state", objects.word(key)) if part)

    def entry(self, key: Key, one: NewEntry) -> Node:
        """The node of a new entry; its tensors are named by their places."""
        items: dict[Key, Node] = {}
        for slot, value in one.slots.items():
            node = self.placed(value, f"{self.path(key)}.{slot}" if slot else self.path(key))
            if not slot:
                return node
            outer, _, inner = slot.rpartition(".")
            around = items.setdefault(outer, EMPTY) if outer else EMPTY
            assert isinstance(around, objects.Mapping)
            items[outer or inner] = objects.with_item(around, inner, node) if outer else node
        return objects.Mapping("dict", tuple(items.items()))


def _why(slot: Slot) -> str:
    """Why a slot does not follow parameters that are joined or split."""
    what = {
        "factored": "keeps statistics of rows and columns", "blockwise": "is quantised in blocks of elements",
        "global": "is of all parameters together",
    }.get(slot.kind, "is not known")  # fmt: skip
    return f"{slot.key!r} {what}"


def _shown(slot: Slot) -> str:
    if slot.tensor:
        return "a tensor"
    return str(slot.value.value) if isinstance(slot.value, Leaf) else "an object"


def _alike(targets: Iterable[Target]) -> list[list[str]]:
    """The new parameters, those together that are made of the same."""

    def made_of(target: Target) -> object:
        copies = tuple((replace(copy.destination, storage=""), copy.terms, copy.shift) for copy in target.copies)
        return (target.shape, copies) if any(copy.terms for copy in target.copies) else target.name

    return list(grouped((made_of(target), target.name) for target in targets).values())


# --- Moments that bitsandbytes quantises in blocks of 256 elements, each with a scale: moved where no block is cut ---
#
# A block is 256 elements of the flattened tensor.  A run of elements moves exactly if it begins with a block in the
# old tensor and in the new one, and holds whole blocks; the last block of a tensor may be shorter.  The scales of the
# blocks (`absmax1`, `absmax2`) move with them.  Source: bitsandbytes 0.50 (optim/optimizer.py,
# `Optimizer2State.init_state`).


def block_scales(targets: Sequence[Target], states: Views, absmax: Views) -> list[Target]:
    """The scales of moved blocks; `targets` are of the moments, and `states` and `absmax` are the old ones.

    LayoutError where the map of the moments cuts a block, or changes values.
    """
    dtype = next(iter(absmax.values())).dtype
    return [
        Target(
            one.name, dtype, (-(-prod(one.shape) // BLOCK),),
            tuple(_in_blocks(copy, one, states, absmax) for copy in one.copies),
        )
        for one in targets
    ]  # fmt: skip


def _in_blocks(copy: Copy, target: Target, states: Views, absmax: Views) -> Copy:
    """The copy of the scales of what a copy of moments moves."""
    if not copy.is_plain:
        raise LayoutError(f"{target.name!r} would be calculated, and quantised moments only move")
    here, term = copy.destination, copy.source
    found = [(name, view) for name, view in states.items() if view.storage == term.storage]
    if len(found) != 1 or not found[0][1].is_contiguous:
        raise LayoutError(f"{target.name!r} is made of tensors that are not stored row by row")
    name, old = found[0]
    both = replace(term, offset=term.offset - old.offset), here
    # How many of the first axes are not one run of elements in both, and how long the run of the others is
    count, length = len(here.shape), 1
    while count and (here.shape[count - 1] == 1 or all(view.strides[count - 1] == length for view in both)):
        count -= 1
        length *= here.shape[count]
    outer = here.shape[:count]
    ends = [view.offset + length for view in both] == [old.numel, prod(target.shape)]
    starts = (
        start
        for view in both
        for start in (view.offset, *(n for size, n in zip(outer, view.strides, strict=False) if size > 1))
    )
    if any(start % BLOCK for start in starts) or (length % BLOCK and not (prod(outer) == 1 and ends)):
        raise LayoutError(f"blocks of {BLOCK} elements of {name!r} would be cut")
    held, shape = absmax[name], (*outer, -(-length // BLOCK))
    there, here = (
        View(storage, held.dtype, start + one.offset // BLOCK, shape, (*(n // BLOCK for n in one.strides[:count]), 1))
        for one, storage, start in zip(both, (held.storage, target.name), (held.offset, 0), strict=True)
    )
    return Copy(here, ((1, there),))


# --- The state of L-BFGS: vectors over all parameters in order, kept once, under the first one -----------------------
#
#     {"state": {0: {"d": T, "prev_flat_grad": T, "old_dirs": [T], "old_stps": [T], "H_diag": T, "n_iter": 4, ...}}}
#
# Its numbers are dot products of such vectors, which do not change when elements only move: so it follows exactly
# where every parameter does.  Source: torch 2.13 (optim/lbfgs.py, `_gather_flat_grad`).


VECTORS = frozenset({"d", "prev_flat_grad", "old_dirs", "old_stps"})


def windows(vector: View, shapes: Shapes) -> dict[str, View]:
    """{parameter: its place in a vector} of parameters in order."""
    found, start = {}, 0
    for name, shape in shapes.items():
        found[name] = contiguous(vector.storage, vector.dtype, shape, vector.offset + start)
        start += prod(shape)
    return found


def joined(vector: View, parts: Iterable[Target]) -> Target:
    """A vector of the new parameters; `parts` are these, made of windows of the one over the old ones."""
    copies: list[Copy] = []
    start = 0
    for target in parts:
        places = (replace(copy.destination, offset=copy.destination.offset + start) for copy in target.copies)
        copies += (replace(copy, destination=at) for copy, at in zip(target.copies, places, strict=True))
        start += prod(target.shape)
    return Target("", vector.dtype, (start,), tuple(copies))
