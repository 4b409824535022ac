"""The tree of an optimizer for its new parameters, in the form in which it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from paramtool.model import objects
from paramtool.model.nested import SEPARATOR
from paramtool.model.objects import EMPTY, Key, Node, TensorRef, word
from paramtool.model.optimizer import (
    OptimizerState,
    Slot,
    StateEntry,
)
from paramtool.model.plan import Target, whole
from paramtool.model.view import View, contiguous
from paramtool.passes.optimizer import copies, numbered, optax, tree
from paramtool.passes.optimizer.joining import Joining
from paramtool.passes.optimizer.moving import EntryKey, NewEntry


class StateTree(Joining):
    """The new tree, and the tensors that it needs."""

    def has_names(self) -> bool:
        """Whether the names of parameters are written in it."""
        by_name = any(isinstance(key, str) for key in self.entries)
        return by_name or any(group.names for group in self.state.groups)

    def is_reordered(self) -> bool:
        """Whether the entries of a group have another order in the model that the output is for."""
        return any([key for key, _ in self.in_group(one.keys, {})] != [*one.keys] for one in self.state.groups)

    def write(self, made: Mapping[EntryKey, tuple[NewEntry, ...]]) -> None:
        """The new node, and what it needs."""
        groups = [self.in_group(group.keys, made) for group in self.state.groups]
        entries: dict[Key, Node] = {}
        listed: list[list[tuple[Key, str]]] = []
        names: dict[EntryKey, str] = {}
        settings: dict[Key, Key] = {}
        places: dict[EntryKey, list[Key]] = {}
        old = tree.node_at(self.objects, self.state.at)
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
        self, there: Mapping[Key, Node], groups: Sequence[Sequence[tuple[EntryKey, NewEntry | None]]], new: Key
    ) -> Node:
        """The one entry of L-BFGS, whose vectors go over all parameters."""
        (old, node), *others = there.items()
        pairs = [pair for group in groups for pair in group]
        if others or {*self.names} != {*self.entries} or len(groups) > 1:
            raise self.refusal("L-BFGS keeps vectors over all parameters, and not all of them are known")
        shapes = {self.names[key]: self.weights[self.names[key]].shape for key in self.entries}

        def make(held: Mapping[str, View]) -> Iterator[Target]:
            places = windows(held[""], shapes)
            for key, one in pairs:
                if one is None:
                    yield kept_vector(places[self.names[key]])
                else:
                    by = self.made_by[one.name]
                    views = {name: places[self.names[its]] for name, its in by.held.items()}
                    made = self.through(by.move, views, Slot("", "first")).targets
                    yield next(target for target in made if target.name == one.name)

        found, targets = moved_vectors(node, (self.path(old), self.path(new)), self.views, lambda held: [*make(held)])
        self.done.targets += targets
        self.done.gone += vectors(node)
        return found

    def write_trees(self, made: Mapping[EntryKey, tuple[NewEntry, ...]]) -> None:
        """The new node of optax, whose trees have the names of the parameters, and what it needs."""
        paths = optax.paths(self.objects, self.names.values())
        by_name = {name: path for path, name in paths.items()}
        tensors: dict[tuple[str, tuple[str, ...]], str] = {}
        new: dict[tuple[str, ...], list[tuple[str, ...]]] = {path: [] for path in paths}
        names: dict[EntryKey, str] = {}
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
        node = tree.node_at(self.objects, self.state.at)
        assert isinstance(node, objects.Mapping)
        self.done.node = optax.rebuilt(node, optax.NewParameters(paths, new, tensors))
        own = {key: name.removeprefix(self.prefix) for key, name in names.items()}
        self.done.binding = replace(self.binding, optimizer=self.renewed(names), names=own)

    def write_numbers(self, made: Mapping[EntryKey, tuple[NewEntry, ...]]) -> None:
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
                self.done.targets.append(value.called(new.made[k, slot]))
        pairs = ((name.removeprefix(f"{self.state.at}/"), TensorRef(name)) for name in new.order)
        self.done.node = objects.Mapping("dict", tuple(pairs))
        names: dict[EntryKey, str] = {k: self.called(key, one) for k, (key, one) in enumerate(entries)}
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

    def kept_in_tree(self, key: EntryKey, path: tuple[str, ...], one: NewEntry | None) -> Iterator[tuple[str, str]]:
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
            self.done.targets.append(value.called(name))
            yield called, name

    def new_key(self, key: EntryKey, name: str, number: int, renumbers: bool) -> EntryKey:
        """The key of an entry in the output."""
        if isinstance(key, str):
            return self.relative(key, key, name) if name else key
        return number if renumbers else key

    def in_group(
        self, group: Sequence[EntryKey], made: Mapping[EntryKey, tuple[NewEntry, ...]]
    ) -> list[tuple[EntryKey, NewEntry | None]]:
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

    def renewed(self, names: Mapping[EntryKey, str]) -> OptimizerState:
        """The optimizer with its new keys; what it keeps is not described again."""
        return replace(self.state, entries=tuple(StateEntry(key, 0, ()) for key in names))

    def said(self) -> dict[EntryKey, str]:
        """{key: its `param_names`}"""
        return {key: name for group in self.state.groups for key, name in zip(group.keys, group.names, strict=False)}

    def relative(self, said: str, key: EntryKey | None, name: str) -> str:
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

    def entry(self, key: Key, one: NewEntry) -> Node:
        """The node of a new entry; its tensors are named by their places."""
        items: list[tuple[Key, Node]] = []
        wrapped: list[tuple[Key, Node]] = []
        for slot, value in one.slots:
            if isinstance(value, Target):
                name = f"{self.path(key)}.{slot}" if slot else self.path(key)
                self.done.targets.append(value.called(name))
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


# --- The state of L-BFGS: vectors over all parameters in order, kept once, under the first one -----------------------
#
#     {"state": {0: {"d": T, "prev_flat_grad": T, "old_dirs": [T], "old_stps": [T], "H_diag": T, "n_iter": 4, ...}}}
#
# Its numbers are dot products of such vectors, which do not change when elements only move: so it follows exactly
# where every parameter does.  Source: torch 2.13 (optim/lbfgs.py, `_gather_flat_grad`).


VECTORS = frozenset({"d", "prev_flat_grad", "old_dirs", "old_stps"})

Made = Callable[[Mapping[str, View]], Sequence[Target]]
"""The new parameters, made of windows of the old ones by name."""


def window(vector: View, start: int, shape: tuple[int, ...]) -> View:
    """The place of a parameter in a vector."""
    return contiguous(vector.storage, vector.dtype, shape, vector.offset + start)


def windows(vector: View, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, View]:
    """{parameter: its place in a vector} of parameters in order."""
    found, start = {}, 0
    for name, shape in shapes.items():
        found[name] = window(vector, start, shape)
        start += prod(shape)
    return found


def moved_vectors(
    node: Node, paths: tuple[str, str], views: Mapping[str, View], make: Made
) -> tuple[Node, list[Target]]:
    """The entry with vectors over the new parameters, and these vectors; `paths` are its old and its new one."""
    assert isinstance(node, objects.Mapping)
    targets: list[Target] = []

    def remade(child: Node, path: str) -> Node:
        if isinstance(child, objects.Sequence):
            return replace(child, items=tuple(remade(one, f"{path}.{k}") for k, one in enumerate(child.items)), mark=0)
        if not isinstance(child, TensorRef):
            return child
        targets.append(_joined(path, views[child.name], make))
        return TensorRef(path)

    items = (
        (key, remade(child, f"{paths[1]}.{word(key)}") if key in VECTORS else tree.moved_below(child, *paths))
        for key, child in node.items
    )
    return replace(node, items=tuple(items)), targets


def vectors(node: Node) -> Iterator[str]:
    """The tensors of an entry that are vectors over all parameters."""
    assert isinstance(node, objects.Mapping)
    yield from (name for key, child in node.items if key in VECTORS for name in objects.tensor_names(child))


def _joined(name: str, vector: View, make: Made) -> Target:
    """A vector over all new parameters."""
    copies, start = [], 0
    for target in make({"": vector}):
        for copy in target.copies:
            destination = replace(copy.destination, storage=name, offset=copy.destination.offset + start)
            copies.append(replace(copy, destination=destination))
        start += prod(target.shape)
    return Target(name, vector.dtype, (start,), tuple(copies))


def kept_vector(vector: View) -> Target:
    """A parameter that stays what it is."""
    return whole("", vector)
