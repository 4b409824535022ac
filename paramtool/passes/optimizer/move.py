"""The state of an optimizer for parameters that are made of others: the same maps, asked once more for each slot.

A map is never stored or inverted.  `Move.through` makes new tensors of any windows of the old ones, so that it is asked
with the windows of `exp_avg` as the conversion was with the weights.  Entries that belong to no changed parameter keep
what they have; their ids and groups are renumbered as torch numbers them: group by group, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from paramtool.errors import LayoutError, PlanError, some
from paramtool.lazy_dataclass import dataclass
from paramtool.model import objects
from paramtool.model.alias import Alias
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.nested import SEPARATOR
from paramtool.model.objects import EMPTY, Key, Leaf, Node, TensorRef
from paramtool.model.optimizer import (
    Binding,
    Move,
    MovedState,
    OptimizerState,
    Slot,
    SlotTargets,
    StateChoice,
    StateEntry,
)
from paramtool.model.plan import Requirement, Target, whole
from paramtool.model.view import View
from paramtool.passes.optimizer import blocks, copies, flat, numbered, optax, schedules, tree
from paramtool.passes.optimizer.slots import OF_ONE_SHAPE, last_part, power_of, trajectory

NOTHING_SAID = StateChoice()
MOVABLE = ("torch", "dcp", "dcp-flat", "deepspeed", copies.FORM, optax.FORM, numbered.FORM)
"""Forms of optimizers whose trees are written."""
_UNTIE = "--untied-state copy, split, zero or one says what they get"
_TIE = "--tied-state first or second says whose is kept"
_DROP = "--drop-optimizer writes the model without it"
_SHOWN = 4
_CODES, _BLOCKS = ("qmap1", "qmap2"), ("state1", "state2", "absmax1", "absmax2")
"""What bitsandbytes keeps: the values of all codes, the same for every tensor; codes, and scales of blocks of them."""
_Key = int | str


def refusal(where: str, at: str, reason: str, hint: str = "") -> PlanError:
    """The error for state that cannot follow."""
    state = f"the state of {at!r}" if at else "the optimizer's state"
    return PlanError(f"{where}: {state} cannot follow: {reason}", hint=f"{hint}{'; ' if hint else ''}{_DROP}")


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
    parameters = model if model is not None else checkpoint
    done = [
        _Moving(checkpoint, binding, moves, renamed, choice=choice, parameters=parameters, ranks=ranks).run()
        for binding in bindings
    ]
    tree_of_all = checkpoint.objects
    for one, binding in zip(done, bindings, strict=True):
        if one.node is not None:
            node = one.node
            tree_of_all = tree.changed(tree_of_all, binding.optimizer.at, lambda _, node=node: node)  # type: ignore[misc]
    emptied = _emptied(checkpoint, bindings, done)
    for count, gone in emptied:
        tree_of_all = schedules.without_groups(tree_of_all, count, gone)
    targets = tuple(target for one in done for target in one.targets)
    names = {target.name: _alias(target) for target in targets}
    return MovedState(
        targets=targets,
        gone=frozenset(name for one in done for name in one.gone),
        objects=tree_of_all,
        names=names,
        requires=tuple(requirement for one in done for requirement in one.requires),
        warnings=tuple(dict.fromkeys(text for one in done for text in one.warnings)),
        bindings=tuple(one.binding for one in done if one.binding is not None),
        renamed={old: new for one in done for old, new in one.renamed.items()},
        counts={one.at: one.counts for one in done if one.counts is not None},
        emptied=emptied,
    )


def _emptied(
    checkpoint: Checkpoint, bindings: Sequence[Binding], done: Sequence[_Done]
) -> tuple[tuple[int, frozenset[int]], ...]:
    """Groups that have no parameter any more; PlanError where it is not known whose schedule has items for them."""
    found = []
    counts = [len(binding.optimizer.groups) for binding in bindings if binding.optimizer.form != copies.FORM]
    for binding, one in zip(bindings, done, strict=True):
        if one.emptied:
            count = len(binding.optimizer.groups)
            if counts.count(count) > 1 and schedules.of_groups(checkpoint.objects, count):
                reason = f"group {min(one.emptied)} would have no parameter, and which schedule is its own is not known"
                raise refusal(checkpoint.files[0].path, binding.optimizer.at, reason)
            found.append((count, one.emptied))
    return tuple(found)


def _alias(target: Target) -> Alias:
    """A new tensor of an optimizer, which shares memory with no other."""
    return Alias(target.name, target.view, target.name, "storage", "storage", target.view)


@dataclass(slots=True)
class _Done:
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


class _NewEntry(NamedTuple):
    """What is kept for a new parameter."""

    name: str
    slots: tuple[tuple[str, Target | Node], ...]


def _own(entry: StateEntry) -> StateEntry:
    """An entry without what is kept for all parameters together."""
    return replace(entry, slots=tuple(slot for slot in entry.slots if slot.kind != "global"))


class _Concerned(NamedTuple):
    """A move of parameters that have entries."""

    keys: tuple[_Key, ...]
    """The entries that the new ones are made of."""
    move: Move
    held: Mapping[str, _Key]
    """{old parameter: its entry, or that of the one whose state is kept}"""
    gone: tuple[_Key, ...]
    """Entries of parameters whose state is not kept."""


class _Moving:
    """One optimizer, and the parameters that change."""

    def __init__(
        self, checkpoint: Checkpoint, binding: Binding, moves: Sequence[Move], renamed: Mapping[str, str], *,
        choice: StateChoice, parameters: Checkpoint, ranks: Mapping[str, int] | None,
    ) -> None:  # fmt: skip
        self.where = checkpoint.files[0].path
        self.binding, self.state = binding, binding.optimizer
        self.views = checkpoint.views()
        self.weights = self.views if parameters is checkpoint else parameters.views()
        self.rank = {name: k for k, name in enumerate(dict.fromkeys([*tree_names(parameters), *self.weights]))}
        self.ranks = ranks
        self.objects = checkpoint.objects
        prefix = next((one.prefix for one in parameters.sections if one.name == self.state.section), "")
        self.prefix = prefix if self.state.section else ""
        self.names = {key: self.prefix + name for key, name in binding.names.items()}
        self.entries = {entry.key: _own(entry) for entry in self.state.entries}
        self.is_flat = any(slot.kind == "global" for entry in self.state.entries for slot in entry.slots)
        self.made_by: dict[str, _Concerned] = {}
        self.moves, self.renamed, self.choice = moves, renamed, choice
        self.hint = ""
        self.by_view = {self.weights[name]: key for key, name in self.names.items() if name in self.weights}
        self.done = _Done(self.state.at)

    def run(self) -> _Done:
        """What becomes of it."""
        if self.moves and not self.binding.is_unique:
            hint = "--optimizer-names FILE says whose its entries are"
            raise self.refusal(self.binding.words, hint)
        moving = [*self.concerned()]
        renames = any(self.new_name(key) != name for key, name in self.names.items())
        if not moving and not self.is_reordered() and not (renames and self.has_names()):
            return self.done
        self.check_form(bool(moving))
        made = {old: new for one in moving for old, new in self.joined(one)}
        if self.state.form == optax.FORM:
            self.write_trees(made)
        elif self.state.form == numbered.FORM:
            self.write_numbers(made)
        else:
            self.write(made)
        if moving and self.state.form != copies.FORM:
            self.done.warnings += self.trajectory()
        before = sum(len(one.keys) + len(one.gone) for one in moving)
        self.done.counts = (before, sum(len(new) for new in made.values()))
        return self.done

    def trajectory(self) -> Iterator[str]:
        """What will not be the same in a training that continues."""
        at = self.state.at or "the optimizer"
        if told := trajectory(self.state.algorithm):
            yield f"{at}: the training that continues is not the same: {told}"
        elif self.state.form == optax.FORM:
            yield f"{at}: {optax.UNSAID}"
        elif not self.state.algorithm and any(entry.slots for entry in self.state.entries):
            yield (
                f"{at}: which optimizer it is, is not known; if its update looks at a whole tensor, as norms do, the "
                "training that continues is not the same"
            )
        derived = {slot.key for entry in self.state.entries for slot in entry.slots if slot.kind == "derived"}
        if derived:
            left = ", ".join(sorted(derived))
            yield f"{at}: {left} of joined or split parameters are left out: each step calculates them anew"

    def refusal(self, reason: str, hint: str = "") -> PlanError:
        """The error for state that cannot follow."""
        return refusal(self.where, self.state.at, reason, hint or self.hint)

    def has_names(self) -> bool:
        """Whether the names of parameters are written in it."""
        by_name = any(isinstance(key, str) for key in self.entries)
        return by_name or any(group.names for group in self.state.groups)

    def is_reordered(self) -> bool:
        """Whether the entries of a group have another order in the model that the output is for."""
        return any([key for key, _ in self.in_group(one.keys, {})] != [*one.keys] for one in self.state.groups)

    def new_name(self, key: _Key) -> str:
        """The new name of the parameter of an entry that stays what it is."""
        return self.renamed.get(self.names[key], self.names[key])

    def check_form(self, is_moved: bool) -> None:
        """PlanError where the optimizer is of a form, or of a kind, that is not moved."""
        if self.state.form not in MOVABLE:
            raise self.refusal(f"it is in the form {self.state.form}, which this version does not write")
        if (is_moved or self.state.form == optax.FORM) and self.state.refused:
            raise self.refusal(self.state.refused)
        if is_moved and not copies.are_listed(self.state):
            raise self.refusal("it has float32 copies of the parameters, which this version does not convert")

    def concerned(self) -> Iterator[_Concerned]:
        """The moves of parameters that have entries, each with the entries of its old ones; tied ones once."""
        seen: dict[_Key, frozenset[_Key]] = {}
        self.check_other_names()
        for move in self.moves:
            keys = {name: self.by_view.get(self.weights[name]) for name in move.old if name in self.weights}
            every = tuple(dict.fromkeys(key for key in keys.values() if key is not None))
            if not every:
                continue
            self.choose(keys, move)
            there = tuple(dict.fromkeys(key for key in keys.values() if key is not None))
            if lacking := [name for name, key in keys.items() if key is None]:
                has = self.names[there[0]]
                raise self.refusal(f"{has!r} has an entry, and {some(lacking, _SHOWN)} beside it has none")
            before = {seen[key] for key in every if key in seen}
            if before == {frozenset(every)}:
                continue
            if before:
                raise self.refusal(f"{self.names[there[0]]!r} becomes a part of several parameters")
            seen |= dict.fromkeys(every, frozenset(every))
            held = {name: key for name, key in keys.items() if key is not None}
            yield _Concerned(there, move, held, tuple(key for key in every if key not in there))

    def choose(self, keys: dict[str, _Key | None], move: Move) -> None:
        """Give parameters that become one the entry of one of them: of the only one, or of that of the choice."""
        for names in move.twins:
            found = [*dict.fromkeys(key for name in names if (key := keys.get(name)) is not None)]
            if not found:
                continue
            chosen = found[-1] if self.choice.tied == "second" else found[0]
            for name in names:
                if keys.get(name) is None or self.choice.tied:
                    keys[name] = chosen

    def check_other_names(self) -> None:
        """PlanError where a parameter is joined or split under one of its names, and stays what it is under another."""
        read = {name for move in self.moves for name in move.old}
        made = {name for move in self.moves for name in move.new}
        views = {
            self.weights[name]: name for name in read if name in self.weights and self.weights[name] in self.by_view
        }
        for name, view in self.weights.items():
            if view in views and name not in read and name not in made and name.startswith(self.prefix):
                raise self.refusal(f"{views[view]!r} changes, and its other name {name!r} keeps what it was")

    def joined(self, one: _Concerned) -> Iterator[tuple[_Key, tuple[_NewEntry, ...]]]:
        """{old entry: the new entries at its place}; all are at the place of the first one in its group."""
        keys, move = one.keys, one.move
        self.hint = _TIE if move.twins and not self.choice.tied else ""
        self.check_groups(keys)
        weights = self.through(move, {name: self.weights[name] for name in move.old}, Slot("", "weight"))
        shares, without = self.untied(_alike(weights.targets))
        self.made_by |= dict.fromkeys(shares, one)
        if self.is_flat and (one.gone or len(shares) > len(_alike(weights.targets)) or weights.changes):
            raise self.refusal("L-BFGS keeps products of vectors over all parameters, which tied or summed ones change")
        slots = self.slots(one, shares)
        entries = tuple(
            _NewEntry(name, () if name in without else tuple((key, made[name]) for key, made in slots))
            for name in shares
        )
        self.hint = ""
        first = min(keys, key=[*self.entries].index)
        yield first, entries
        yield from ((key, ()) for key in (*keys, *one.gone) if key != first)

    def untied(self, alike: Sequence[Sequence[str]]) -> tuple[dict[str, int], frozenset[str]]:
        """{new parameter: how many share its state}, and those that start without any; `alike` are made of the same."""
        choice = self.choice.untied
        if self.state.form == copies.FORM:
            choice = "one" if choice == "one" else "copy"
        shares, without = {}, []
        for names in alike:
            if len(names) > 1 and not choice:
                told = " and ".join(map(repr, names[:_SHOWN]))
                raise self.refusal(f"{told} become separate parameters, and it keeps one state for them", _UNTIE)
            for k, name in enumerate(names if choice != "one" else names[:1]):
                shares[name] = len(names) if choice == "split" else 1
                without += [name] if k and choice == "zero" else []
        return shares, frozenset(without)

    def check_groups(self, keys: tuple[_Key, ...]) -> None:
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

    def pair(self, one: _Key, other: _Key) -> str:
        """Two parameters, for people."""
        return f"{self.names[one]!r} and {self.names[other]!r}"

    def difference(self, one: int, other: int) -> str:
        """The first setting in which two groups differ."""
        mine, theirs = (self.state.groups[k].settings for k in (one, other))
        if isinstance(mine, objects.Mapping) and isinstance(theirs, objects.Mapping):
            others = dict(theirs.items)
            for key, value in mine.items:
                found = others.get(key)
                if found != value and isinstance(value, Leaf) and isinstance(found, Leaf):
                    return f" ({objects.word(key)} {value.value!r} and {found.value!r})"
        return ""

    def slots(self, one: _Concerned, shares: Mapping[str, int]) -> list[tuple[str, Mapping[str, Target | Node]]]:
        """[(slot, {new parameter: what is kept for it})]"""
        kept = [slot for slot in self.entries[one.keys[0]].slots if slot.kind != "derived"]
        return [(slot.key, self.slot(slot.key, one, shares)) for slot in kept]

    def slot(self, called: str, one: _Concerned, shares: Mapping[str, int]) -> Mapping[str, Target | Node]:
        """One slot of the new parameters; `shares` are by how many the state of each is shared."""
        keys, move, new = one.keys, one.move, [*shares]
        held = {key: next(slot for slot in self.entries[key].slots if slot.key == called) for key in keys}
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
        self.done.requires += (self.required(one, called) for one in done.requires)
        self.done.warnings += (f"{self.state.at or 'the optimizer'}: {text}" for text in done.changes)
        power = power_of(called, first.kind)
        return {
            target.name: _scaled(target, shares[target.name] ** -power) for target in done.targets if target.name in new
        }

    def quantised(self, called: str, one: _Concerned, shares: Mapping[str, int]) -> Mapping[str, Target | Node]:
        """Moments that are quantised in blocks, or the scales of these blocks."""
        if any(share > 1 for share in shares.values()):
            raise self.refusal(
                f"{called!r} is quantised, and a part of it is no share (--untied-state copy and zero are)"
            )
        moments = blocks.moments_of(called) or called
        states = {name: self.view(self.slot_of(key, moments)) for name, key in one.held.items()}
        made = self.through(one.move, states, Slot(moments, "weight")).targets
        targets = [target for target in made if target.name in shares]
        try:
            if moments == called:
                blocks.check(targets, states)
                return {target.name: target for target in targets}
            scales = {name: self.view(self.slot_of(key, called)) for name, key in one.held.items()}
            return {target.name: target for target in blocks.scales(targets, states, scales)}
        except LayoutError as error:
            raise self.refusal(f"{called!r}: {error.message}") from None

    def slot_of(self, key: _Key, called: str) -> Slot:
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

    def view(self, slot: Slot) -> View:
        """The window of a slot; PlanError if it is not a plain tensor."""
        if slot.tensor not in self.views:
            raise self.refusal(f"{slot.tensor or slot.key!r} is not a plain tensor")
        return self.views[slot.tensor]

    def scalar(self, held: Mapping[_Key, Slot], new: Sequence[str]) -> Mapping[str, Target | Node]:
        """One number or value for all parts, which must agree."""
        (key, first), *others = held.items()
        for other, slot in others:
            if bool(slot.tensor) != bool(first.tensor) or slot.value != first.value:
                found = f"{first.key} {_shown(first)} for {self.names[key]!r} and {_shown(slot)} for"
                raise self.refusal(f"{found} {self.names[other]!r}; expected one for the parts of {new[0]!r}")
            if slot.tensor:
                self.equal(slot, first, f"{first.key} differs for {self.pair(key, other)}, parts of {new[0]!r}")
        if not first.tensor:
            return dict.fromkeys(new, first.value or Leaf(None))
        return {name: whole(name, self.view(first)) for name in new}

    def equal(self, slot: Slot, first: Slot, message: str) -> None:
        """Require that two values are equal."""
        mine, other = self.view(slot), self.view(first)
        if (mine.shape, mine.dtype) != (other.shape, other.dtype):
            raise self.refusal(message)
        self.done.requires.append(self.required(Requirement(mine, ((1, other),), 0.0, message), first.key))

    def write(self, made: Mapping[_Key, tuple[_NewEntry, ...]]) -> None:
        """The new node, and what it needs."""
        groups = [self.in_group(group.keys, made) for group in self.state.groups]
        entries: dict[Key, Node] = {}
        listed: list[list[tuple[Key, str]]] = []
        names: dict[_Key, str] = {}
        settings: dict[Key, Key] = {}
        places: dict[_Key, list[Key]] = {}
        old = objects_at(self.objects, self.state.at)
        form, said = tree.form_of(self.state.form), self.said()
        there = dict(form.entries(old))
        renumbers = bool(made) or self.is_reordered()
        for group in groups:
            listed.append([])
            for key, one in group:
                name = self.called(key, one)
                new = self.new_key(key, name, len(names), renumbers)
                names[new] = name
                settings[new] = key
                places.setdefault(key, []).append(new)
                listed[-1].append((new, self.relative(said[key], key, name) if key in said else ""))
                if one is None and key in there and not (self.is_flat and made):
                    entries[new] = self.kept(key, new, there[key])
                elif one is not None and one.slots:
                    entries[new] = self.entry(new, one)
        if self.is_flat and made:
            entries[listed[0][0][0]] = self.vectors(there, groups, listed[0][0][0])
        order = [*names] if renumbers else [new for key in self.entries for new in places[key]]
        self.done.gone += [slot.tensor for key in made for slot in self.entries[key].slots if slot.tensor]
        gone = (k for k, group in enumerate(self.state.groups) if group.keys and not listed[k])
        self.done.emptied = frozenset(gone)
        if self.done.emptied and self.state.masters:
            raise self.refusal(
                f"group {min(self.done.emptied)} would have no parameter any more, and has float32 copies"
            )
        new_tree = tree.Renumbered(listed, entries, order, settings, self.done.emptied)
        self.done.node = form.renumbered(old, new_tree)
        own = {key: name.removeprefix(self.prefix) for key, name in names.items() if name}
        self.done.binding = replace(self.binding, optimizer=self.renewed(names), names=own)

    def vectors(
        self, there: Mapping[Key, Node], groups: Sequence[Sequence[tuple[_Key, _NewEntry | None]]], new: Key
    ) -> Node:
        """The one entry of L-BFGS, whose vectors go over all parameters."""
        (old, node), *others = there.items()
        pairs = [pair for group in groups for pair in group]
        if others or {*self.names} != {*self.entries} or len(groups) > 1:
            raise self.refusal("L-BFGS keeps vectors over all parameters, and not all of them are known")
        shapes = {self.names[key]: self.weights[self.names[key]].shape for key in self.entries}

        def make(held: Mapping[str, View]) -> Iterator[Target]:
            places = flat.windows(held[""], shapes)
            for key, one in pairs:
                if one is None:
                    yield flat.kept(places[self.names[key]])
                else:
                    by = self.made_by[one.name]
                    views = {name: places[self.names[its]] for name, its in by.held.items()}
                    made = self.through(by.move, views, Slot("", "first")).targets
                    yield next(target for target in made if target.name == one.name)

        found, targets = flat.moved(node, (self.path(old), self.path(new)), self.views, lambda held: [*make(held)])
        self.done.targets += targets
        self.done.gone += flat.vectors(node)
        return found

    def write_trees(self, made: Mapping[_Key, tuple[_NewEntry, ...]]) -> None:
        """The new node of optax, whose trees have the names of the parameters, and what it needs."""
        paths = optax.paths(self.objects, self.names.values())
        by_name = {name: path for path, name in paths.items()}
        tensors: dict[tuple[str, tuple[str, ...]], str] = {}
        new: dict[tuple[str, ...], list[tuple[str, ...]]] = {path: [] for path in paths}
        names: dict[_Key, str] = {}
        for key, name in self.names.items():
            old = by_name[name]
            for one in made.get(key, (None,)):
                called = self.called(key, one)
                path = old if called == name else self.path_in_tree(name, old, called)
                new[old].append(path)
                names[called.removeprefix(self.prefix)] = called
                for slot, kept in self.kept_in_tree(key, path, one):
                    tensors[slot, path] = kept
        self.done.gone = [slot.tensor for key in made for slot in self.entries[key].slots if slot.tensor]
        node = objects_at(self.objects, self.state.at)
        assert isinstance(node, objects.Mapping)
        self.done.node = optax.rebuilt(node, optax.NewParameters(paths, new, tensors))
        own = {key: name.removeprefix(self.prefix) for key, name in names.items()}
        self.done.binding = replace(self.binding, optimizer=self.renewed(names), names=own)

    def write_numbers(self, made: Mapping[_Key, tuple[_NewEntry, ...]]) -> None:
        """The new node of Keras, whose variables are numbered, and what it needs."""
        entries = [(key, one) for key in self.entries for one in made.get(key, (None,))]
        places = [*self.entries]
        kept = [places.index(key) if one is None else None for key, one in entries]
        new = numbered.numbered(self.state.numbered, kept)
        self.done.renamed |= {old: name for old, name in new.names.items() if old != name}
        self.done.gone = [slot.tensor for key in made for slot in self.entries[key].slots if slot.tensor]
        for k, (_, one) in enumerate(entries):
            for slot, value in one.slots if one is not None else ():
                assert isinstance(value, Target)
                self.done.targets.append(_renamed(value, new.made[k, slot]))
        pairs = ((name.removeprefix(f"{self.state.at}/"), TensorRef(name)) for name in new.order)
        self.done.node = objects.Mapping("dict", tuple(pairs))
        names: dict[_Key, str] = {k: self.called(key, one) for k, (key, one) in enumerate(entries)}
        own = {k: name.removeprefix(self.prefix) for k, name in names.items()}
        self.done.binding = replace(self.binding, optimizer=self.renewed(names), names=own)

    def path_in_tree(self, name: str, path: tuple[str, ...], called: str) -> tuple[str, ...]:
        """The path of a new parameter in the trees of optax: it is where its name says, beside the old one."""
        holder = name.removesuffix(SEPARATOR.join(path))
        if any(SEPARATOR in part for part in path):
            raise self.refusal(f"{name!r} has a key with a slash, so the keys of {called!r} are not known")
        if not called.startswith(holder):
            raise self.refusal(f"{called!r} is not in the mapping of {name!r}, whose names its trees have")
        return tuple(called.removeprefix(holder).split(SEPARATOR))

    def kept_in_tree(self, key: _Key, path: tuple[str, ...], one: _NewEntry | None) -> Iterator[tuple[str, str]]:
        """[(slot, the name of the tensor)] of an entry at its new path."""
        base = self.state.at.replace(".", SEPARATOR)
        if one is None:
            for slot in self.entries[key].slots:
                name = SEPARATOR.join((base, slot.key, *path))
                if name != slot.tensor:
                    self.done.renamed[slot.tensor] = name
                yield slot.key, name
            return
        for called, value in one.slots:
            assert isinstance(value, Target)
            name = SEPARATOR.join((base, called, *path))
            self.done.targets.append(_renamed(value, name))
            yield called, name

    def new_key(self, key: _Key, name: str, number: int, renumbers: bool) -> _Key:
        """The key of an entry in the output."""
        if isinstance(key, str):
            return self.relative(key, key, name) if name else key
        return number if renumbers else key

    def in_group(
        self, group: Sequence[_Key], made: Mapping[_Key, tuple[_NewEntry, ...]]
    ) -> list[tuple[_Key, _NewEntry | None]]:
        """[(old entry, the new one at its place)] of a group.

        They are in the order of the model that the output is for; where that is not known, in the order of a module if
        the old ones were.
        """
        order = [(key, one) for key in group for one in made.get(key, (None,))]
        old = [self.names.get(key, "") for key in group]
        by_name = {self.called(*pair): pair for pair in order}
        if self.ranks is not None and len(by_name) == len(order) and by_name.keys() <= self.ranks.keys():
            return [by_name[name] for name in sorted(by_name, key=self.ranks.__getitem__)]
        if not made or len(by_name) < len(order):
            return order
        if {*by_name, *old} <= self.rank.keys() and old == sorted(old, key=self.rank.__getitem__):
            return [by_name[name] for name in sorted(by_name, key=self.rank.__getitem__)]
        return [by_name[name] for name in tree.module_order(by_name)] if tree.is_module_order(old) else order

    def called(self, key: _Key, one: _NewEntry | None) -> str:
        """The name of the parameter of a new entry; empty where it is not known."""
        return one.name if one is not None else self.new_name(key) if key in self.names else ""

    def renewed(self, names: Mapping[_Key, str]) -> OptimizerState:
        """The optimizer with its new keys; what it keeps is not described again."""
        return replace(self.state, entries=tuple(StateEntry(key, 0, ()) for key in names))

    def said(self) -> dict[_Key, str]:
        """{key: its `param_names`}"""
        return {key: name for group in self.state.groups for key, name in zip(group.keys, group.names, strict=False)}

    def relative(self, said: str, key: _Key | None, name: str) -> str:
        """A new name as the optimizer writes names: with the same words before it, if it has some."""
        own = self.binding.names.get(key, "") if key is not None else ""
        new = name.removeprefix(self.prefix)
        if own and said.endswith(own):
            return said.removesuffix(own) + new
        cut = own.removesuffix(said)
        if own and cut != own and new.startswith(cut):
            return new.removeprefix(cut)
        raise self.refusal(f"it calls {own or name!r} {said!r}, and what it would call {name!r} is not known")

    def kept(self, key: Key, new: Key, node: Node) -> Node:
        """An entry that stays, at its new place."""
        before, after = self.path(key), self.path(new)
        if before == after:
            return node
        for name in objects.tensor_names(node):
            if tree.is_below(name, before):
                self.done.renamed[name] = after + name.removeprefix(before)
        return tree.moved_below(node, before, after)

    def path(self, key: Key) -> str:
        """The path of an entry."""
        if self.state.form == copies.FORM:
            return f"{self.state.at}.{key!s}"
        return ".".join(part for part in (self.state.at, "state", objects.word(key)) if part)

    def entry(self, key: Key, one: _NewEntry) -> Node:
        """The node of a new entry; its tensors are named by their places."""
        items: list[tuple[Key, Node]] = []
        wrapped: list[tuple[Key, Node]] = []
        for slot, value in one.slots:
            if isinstance(value, Target):
                name = f"{self.path(key)}.{slot}" if slot else self.path(key)
                self.done.targets.append(_renamed(value, name))
                if not slot:
                    return TensorRef(name)
                value = TensorRef(name)
            outer, dot, inner = slot.rpartition(".")
            if dot:
                items += [] if wrapped else [(outer, EMPTY)]
                wrapped.append((inner, value))
            else:
                items.append((slot, value))
        items = [(key, objects.Mapping("dict", tuple(wrapped)) if value is EMPTY else value) for key, value in items]
        return objects.Mapping("dict", tuple(items))


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
    found: dict[object, list[str]] = {}
    for target in targets:
        made_of = tuple((replace(copy.destination, storage=""), copy.terms, copy.shift) for copy in target.copies)
        is_made = any(copy.terms for copy in target.copies)
        found.setdefault((target.shape, made_of) if is_made else target.name, []).append(target.name)
    return list(found.values())


def _scaled(target: Target, factor: float) -> Target:
    """A target times a factor."""
    if factor == 1:
        return target
    return replace(target, copies=tuple(replace(copy, scale=copy.scale * factor) for copy in target.copies))


def tree_names(checkpoint: Checkpoint) -> list[str]:
    """The names of tensors in the order of the tree, which a state dict has."""
    return list(objects.tensor_names(checkpoint.objects))


def _renamed(target: Target, name: str) -> Target:
    copies = (replace(copy, destination=replace(copy.destination, storage=name)) for copy in target.copies)
    return replace(target, name=name, copies=tuple(copies))


def objects_at(node: Node, at: str) -> Node:
    """The node at a path."""
    found: list[Node] = []

    def keep(child: Node) -> Node:
        found.append(child)
        return child

    tree.changed(node, at, keep)
    return found[0] if found else EMPTY
