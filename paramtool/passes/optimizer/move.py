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
from paramtool.model.optimizer import Binding, Move, MovedState, OptimizerState, Slot, SlotTargets, StateEntry
from paramtool.model.plan import Requirement, Target, whole
from paramtool.model.view import View
from paramtool.passes.optimizer import numbered, optax, tree
from paramtool.passes.optimizer.slots import OF_ONE_SHAPE, trajectory

MOVABLE = ("torch", "dcp", optax.FORM, numbered.FORM)
"""Forms of optimizers whose trees are written."""
_DROP = "--drop-optimizer writes the model without it"
_SHOWN = 4
_Key = int | str


def refusal(where: str, at: str, reason: str, hint: str = "") -> PlanError:
    """The error for state that cannot follow."""
    state = f"the state of {at!r}" if at else "the optimizer's state"
    return PlanError(f"{where}: {state} cannot follow: {reason}", hint=f"{hint}{'; ' if hint else ''}{_DROP}")


def moved(
    checkpoint: Checkpoint, bindings: Sequence[Binding], moves: Sequence[Move], renamed: Mapping[str, str]
) -> MovedState:
    """What a plan has to have, so that the optimizers of a checkpoint fit its new parameters.

    `renamed` is {old name: new name} of tensors that only get another name.  PlanError says why the state of one cannot
    follow.
    """
    done = [_Moving(checkpoint, binding, moves, renamed).run() for binding in bindings]
    tree_of_all = checkpoint.objects
    for one, binding in zip(done, bindings, strict=True):
        if one.node is not None:
            node = one.node
            tree_of_all = tree.changed(tree_of_all, binding.optimizer.at, lambda _, node=node: node)  # type: ignore[misc]
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
    )


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


class _NewEntry(NamedTuple):
    """What is kept for a new parameter."""

    name: str
    slots: tuple[tuple[str, Target | Node], ...]


class _Moving:
    """One optimizer, and the parameters that change."""

    def __init__(
        self, checkpoint: Checkpoint, binding: Binding, moves: Sequence[Move], renamed: Mapping[str, str]
    ) -> None:
        self.where = checkpoint.files[0].path
        self.binding, self.state = binding, binding.optimizer
        self.views = checkpoint.views()
        self.objects = checkpoint.objects
        prefix = next((one.prefix for one in checkpoint.sections if one.name == self.state.section), "")
        self.prefix = prefix if self.state.section else ""
        self.names = {key: self.prefix + name for key, name in binding.names.items()}
        self.entries = {entry.key: entry for entry in self.state.entries}
        self.moves, self.renamed = moves, renamed
        self.by_view = {self.views[name]: key for key, name in self.names.items() if name in self.views}
        self.done = _Done(self.state.at)

    def run(self) -> _Done:
        """What becomes of it."""
        if self.moves and not self.binding.is_unique:
            hint = "--optimizer-names FILE says whose its entries are"
            raise self.refusal(self.binding.words, hint)
        moving = [*self.concerned()]
        if not moving and not any(self.new_name(key) != name for key, name in self.names.items()):
            return self.done
        if not moving and not self.has_names():
            return self.done
        self.check_form(bool(moving))
        made = {old: new for keys, move in moving for old, new in self.joined(keys, move)}
        if self.state.form == optax.FORM:
            self.write_trees(made)
        elif self.state.form == numbered.FORM:
            self.write_numbers(made)
        else:
            self.write(made)
        if moving and (told := trajectory(self.state.algorithm)):
            at = self.state.at or "the optimizer"
            self.done.warnings.append(f"{at}: the training that continues is not the same: {told}")
        if moving and self.state.form == optax.FORM:
            self.done.warnings.append(f"{self.state.at}: {optax.UNSAID}")
        self.done.counts = (sum(len(keys) for keys, _ in moving), sum(len(new) for new in made.values()))
        return self.done

    def refusal(self, reason: str, hint: str = "") -> PlanError:
        """The error for state that cannot follow."""
        return refusal(self.where, self.state.at, reason, hint)

    def has_names(self) -> bool:
        """Whether the names of parameters are written in it."""
        by_name = any(isinstance(key, str) for key in self.entries)
        return by_name or any(group.names for group in self.state.groups)

    def new_name(self, key: _Key) -> str:
        """The new name of the parameter of an entry that stays what it is."""
        return self.renamed.get(self.names[key], self.names[key])

    def check_form(self, is_moved: bool) -> None:
        """PlanError where the optimizer is of a form, or of a kind, that is not moved."""
        if self.state.form not in MOVABLE:
            raise self.refusal(f"it is in the form {self.state.form}, which this version does not write")
        if (is_moved or self.state.form == optax.FORM) and self.state.refused:
            raise self.refusal(self.state.refused)
        if is_moved and self.state.masters:
            raise self.refusal("it has float32 copies of the parameters, which this version does not convert")

    def concerned(self) -> Iterator[tuple[tuple[_Key, ...], Move]]:
        """The moves of parameters that have entries, each with the entries of its old ones; tied ones once."""
        seen: dict[_Key, frozenset[_Key]] = {}
        for move in self.moves:
            keys = {name: self.by_view.get(self.views[name]) for name in move.old if name in self.views}
            there = tuple(dict.fromkeys(key for key in keys.values() if key is not None))
            if not there:
                continue
            if lacking := [name for name, key in keys.items() if key is None]:
                has = self.names[there[0]]
                raise self.refusal(f"{has!r} has an entry, and {some(lacking, _SHOWN)} beside it has none")
            before = {seen[key] for key in there if key in seen}
            if before == {frozenset(there)}:
                continue
            if before:
                raise self.refusal(f"{self.names[there[0]]!r} becomes a part of several parameters")
            seen |= dict.fromkeys(there, frozenset(there))
            yield there, move

    def joined(self, keys: tuple[_Key, ...], move: Move) -> Iterator[tuple[_Key, tuple[_NewEntry, ...]]]:
        """{old entry: the new entries at its place}; all are at the place of the first one in its group."""
        self.check_groups(keys)
        weights = self.through(move, {name: self.views[name] for name in move.old}, Slot("", "weight"))
        new = _distinct(weights.targets)
        slots = self.slots(keys, move, new)
        entries = tuple(_NewEntry(name, tuple((key, made[name]) for key, made in slots)) for name in new)
        first = min(keys, key=[*self.entries].index)
        yield first, entries
        yield from ((key, ()) for key in keys if key != first)

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

    def slots(
        self, keys: tuple[_Key, ...], move: Move, new: Sequence[str]
    ) -> list[tuple[str, Mapping[str, Target | Node]]]:
        """[(slot, {new parameter: what is kept for it})]"""
        return [(slot.key, self.slot(slot.key, keys, move, new)) for slot in self.entries[keys[0]].slots]

    def slot(self, called: str, keys: tuple[_Key, ...], move: Move, new: Sequence[str]) -> Mapping[str, Target | Node]:
        """One slot of the new parameters."""
        held = {key: next(slot for slot in self.entries[key].slots if slot.key == called) for key in keys}
        first = held[keys[0]]
        if {slot.kind for slot in held.values()} != {first.kind}:
            raise self.refusal(f"{called!r} is not kept in one way for {some([self.names[key] for key in keys], 4)}")
        if first.kind == "scalar" or not any(slot.tensor for slot in held.values()):
            return self.scalar(held, new)
        if first.kind not in OF_ONE_SHAPE:
            raise self.refusal(f"{_why(first)}, and {self.names[keys[0]]!r} is joined, split or rearranged")
        views = {name: self.view(held[self.by_view[self.views[name]]]) for name in move.old}
        done = self.through(move, views, first)
        self.done.requires += (self.required(one, called) for one in done.requires)
        self.done.warnings += (f"{self.state.at or 'the optimizer'}: {text}" for text in done.changes)
        return {target.name: target for target in done.targets if target.name in new}

    def through(self, move: Move, views: Mapping[str, View], slot: Slot) -> SlotTargets:
        """The same map once more; PlanError where what is kept does not fit it."""
        try:
            return move.through(views, slot.kind)
        except LayoutError as error:
            raise self.refusal(f"{slot.key!r}: {error.message}") from None

    def required(self, one: Requirement, called: str) -> Requirement:
        """A condition on a slot, as one of the state."""
        told = refusal(self.where, self.state.at, f"{called!r}: {one.message}")
        return replace(one, message=told.message, hint=told.hint, is_of_state=True)

    def view(self, slot: Slot) -> View:
        """The window of a slot; PlanError for what is no plain tensor."""
        if slot.tensor not in self.views:
            raise self.refusal(f"{slot.tensor or slot.key!r} is no plain tensor")
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
        places: dict[_Key, list[Key]] = {}
        old = objects_at(self.objects, self.state.at)
        there, said = dict(tree.entries_of(old)), self.said()
        for group in groups:
            listed.append([])
            for key, one in group:
                name = self.called(key, one)
                new = self.new_key(key, name, len(names), bool(made))
                names[new] = name
                places.setdefault(key, []).append(new)
                listed[-1].append((new, self.relative(said[key], key, name) if key in said else ""))
                if one is None and key in there:
                    entries[new] = self.kept(key, new, there[key])
                elif one is not None and one.slots:
                    entries[new] = self.entry(new, one)
        order = [*names] if made else [new for key in self.entries for new in places[key]]
        self.done.gone = [slot.tensor for key in made for slot in self.entries[key].slots if slot.tensor]
        self.done.node = tree.renumbered(old, tree.Renumbered(listed, entries, order))
        own = {key: name.removeprefix(self.prefix) for key, name in names.items() if name}
        self.done.binding = replace(self.binding, optimizer=self.renewed(names), names=own)

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

    def new_key(self, key: _Key, name: str, number: int, is_made: bool) -> _Key:
        """The key of an entry in the output."""
        if isinstance(key, str):
            return self.relative(key, key, name) if name else key
        return number if is_made else key

    def in_group(
        self, group: Sequence[_Key], made: Mapping[_Key, tuple[_NewEntry, ...]]
    ) -> list[tuple[_Key, _NewEntry | None]]:
        """[(old entry, the new one at its place)] of a group, in the order of a module where the old ones were."""
        order = [(key, one) for key in group for one in made.get(key, (None,))]
        old = [self.names.get(key, "") for key in group]
        by_name = {self.called(*pair): pair for pair in order}
        if not made or len(by_name) < len(order) or not tree.is_module_order(old):
            return order
        return [by_name[name] for name in tree.module_order(by_name)]

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
            if name.startswith(f"{before}."):
                self.done.renamed[name] = after + name.removeprefix(before)
        return tree.moved_below(node, before, after)

    def path(self, key: Key) -> str:
        """The path of an entry."""
        return ".".join(part for part in (self.state.at, "state", objects.word(key)) if part)

    def entry(self, key: Key, one: _NewEntry) -> Node:
        """The node of a new entry; its tensors are named by their places."""
        items: list[tuple[Key, Node]] = []
        for slot, value in one.slots:
            if isinstance(value, Target):
                name = f"{self.path(key)}.{slot}"
                self.done.targets.append(_renamed(value, name))
                items.append((slot, TensorRef(name)))
            else:
                items.append((slot, value))
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


def _distinct(targets: Iterable[Target]) -> list[str]:
    """The new parameters; a tensor that is made of the same as another is another name of it."""
    found: dict[object, str] = {}
    for target in targets:
        copies = tuple((replace(copy.destination, storage=""), copy.terms, copy.shift) for copy in target.copies)
        is_made = any(copy.terms for copy in target.copies)
        found.setdefault((target.shape, copies) if is_made else target.name, target.name)
    return list(found.values())


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
