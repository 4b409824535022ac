"""Changing one optimizer in a checkpoint's tree of objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Mapping as Map
from collections.abc import Sequence as Sequence_
from dataclasses import replace
from typing import NamedTuple

from paramtool.errors import plural
from paramtool.grouping import grouped
from paramtool.model.objects import (
    EMPTY,
    Key,
    Leaf,
    Mapping,
    Node,
    Sequence,
    map_children,
    map_tensors,
    under,
    walk,
    with_item,
    word,
)

ORDERED = "collections.OrderedDict"
PARAMS, PARAM_NAMES = "params", "param_names"


def changed(node: Node, at: str, change: Callable[[Node], Node | None]) -> Node:
    """The same tree with the node at a path changed, or taken out where `change` returns None.

    >>> changed(Mapping("dict", (("a", Sequence("list", (Leaf(1), Leaf(2)))),)), "a.1", lambda node: None)
    Mapping(kind='dict', items=(('a', Sequence(kind='list', items=(Leaf(value=1),), args=(), mark=0)),), \
attributes=None, args=(), mark=0)
    """
    if not at:
        return change(node) or Mapping("dict", ())
    if isinstance(node, Mapping):
        pairs = [(key, _child(word(key), child, at, change)) for key, child in node.items]
        return replace(node, items=tuple((key, child) for key, child in pairs if child is not None))
    if isinstance(node, Sequence):
        items = [_child(str(k), child, at, change) for k, child in enumerate(node.items)]
        return replace(node, items=tuple(child for child in items if child is not None))
    return map_children(node, lambda child: changed(child, at, change))  # an object's parts have its path


def _child(part: str, child: Node, at: str, change: Callable[[Node], Node | None]) -> Node | None:
    if part == at:
        return change(child)
    return changed(child, at[len(part) + 1 :], change) if at.startswith(f"{part}.") else child


def module_order(names: Iterable[str]) -> list[str]:
    """Names as a module of torch has them: its own parameters, then those of one module in it after the other.

    What has no place yet follows the first name of its module.

    >>> module_order(["a.q.weight", "a.k.weight", "a.q.bias", "a.k.bias", "head"])
    ['head', 'a.q.weight', 'a.q.bias', 'a.k.weight', 'a.k.bias']
    """
    return [*_below([(name, name.split(".")) for name in names], 0)]


def _below(names: list[tuple[str, list[str]]], depth: int) -> Iterator[str]:
    inner: dict[str, list[tuple[str, list[str]]]] = {}
    for name, words in names:
        if len(words) == depth + 1:
            yield name
        else:
            inner.setdefault(words[depth], []).append((name, words))
    for some in inner.values():
        yield from _below(some, depth + 1)


def is_module_order(names: Iterable[str]) -> bool:
    """Whether names are in the order of a module."""
    names = list(names)
    return module_order(names) == names


def sorted_as(node: Node, before: Node) -> Node:
    """A state dict whose names are in the order of a module again, where those of the one before it were."""
    if not isinstance(node, Mapping) or not isinstance(before, Mapping) or node.kind not in ("dict", ORDERED):
        return node
    items, old = ({word(key): (key, child) for key, child in one.items} for one in (node, before))
    if not is_module_order(old):
        return node
    return replace(node, items=tuple(items[name] for name in module_order(items)))


class Renumbered(NamedTuple):
    """The entries of an optimizer after a change."""

    groups: Sequence_[Sequence_[tuple[Key, str]]]
    """For each group its new keys, each with its new one of `param_names`, in order."""
    entries: Map[Key, Node]
    """{new key: what is kept for it}"""
    emptied: frozenset[int] = frozenset()
    """Groups that have no parameter any more."""

    @property
    def keys(self) -> list[Key]:
        """All new keys, in order."""
        return [key for group in self.groups for key, _ in group]


class StateForm(NamedTuple):
    """How one form of an optimizer keeps its entries in the tree."""

    entries: Callable[[Node], Iterable[tuple[Key, Node]]]
    """The entries, each with its key."""
    renumbered: Callable[[Node, Renumbered], Node]
    """The same node with other entries."""


def node_at(node: Node, at: str) -> Node:
    """The node at a path."""
    found: list[Node] = []

    def keep(child: Node) -> Node:
        found.append(child)
        return child

    changed(node, at, keep)
    return found[0] if found else EMPTY


# torch: {"state": {0: {...}}, "param_groups": [{"params": [0]}]}


def renumbered(node: Node, new: Renumbered) -> Node:
    """A mapping of torch's optimizer with other entries."""
    assert isinstance(node, Mapping)
    state, groups = under(node, "state"), under(node, "param_groups")
    assert isinstance(state, Mapping) and isinstance(groups, Sequence)
    kept = tuple((key, new.entries[key]) for key in new.keys if key in new.entries)
    made = map(_group, groups.items, new.groups)
    left = tuple(one for k, one in enumerate(made) if k not in new.emptied)
    node = with_item(node, "state", replace(state, items=kept))
    return with_item(node, "param_groups", replace(groups, items=left))


def _group(node: Node, new: Sequence_[tuple[Key, str]]) -> Node:
    """A group of torch's optimizer with other `params`, and other `param_names` where it has them."""
    assert isinstance(node, Mapping)
    params, named = under(node, PARAMS), under(node, PARAM_NAMES)
    assert isinstance(params, Sequence)
    node = with_item(node, PARAMS, replace(params, items=tuple(Leaf(key) for key, _ in new), mark=0))  # type: ignore[arg-type]
    if isinstance(named, Sequence) and named.items:
        node = with_item(node, PARAM_NAMES, replace(named, items=tuple(Leaf(name) for _, name in new), mark=0))
    return node


def entries_of(node: Node) -> Iterator[tuple[Key, Node]]:
    """The entries of an optimizer's `state`."""
    state = under(node, "state")
    assert isinstance(state, Mapping)
    yield from state.items


# DCP, flattened: {"state.a.weight.exp_avg": ..., "param_groups.a.weight.lr": ...}


def unflattened(node: Node, defects: list[str]) -> Mapping:
    """The same as a mapping of torch's optimizer: names with the same settings are a group.

    State without settings is left out, and added to `defects`.
    """
    assert isinstance(node, Mapping)
    state: dict[str, list[tuple[Key, Node]]] = {}
    settings: dict[str, list[tuple[str, Node]]] = {}
    for key, child in node.items:
        kind, _, path = str(key).partition(".")
        name, _, last = path.rpartition(".")
        (state if kind == "state" else settings).setdefault(name, []).append((last, child))
    if lost := [name for name in state if name not in settings]:
        defects.append(f"`state` has {plural(len(lost), 'name')} without settings: {', '.join(lost[:10])}")
    alike = grouped((tuple(sorted(pairs, key=lambda pair: pair[0])), name) for name, pairs in settings.items())
    groups = (
        with_item(Mapping("dict", tuple(settings[names[0]])), PARAMS, Sequence("list", tuple(map(Leaf, names))))
        for names in alike.values()
    )
    entries = tuple((name, Mapping("dict", tuple(pairs))) for name, pairs in state.items() if name in settings)
    return Mapping("dict", (("state", Mapping("dict", entries)), ("param_groups", Sequence("list", tuple(groups)))))


def _flat_renumbered(node: Node, new: Renumbered) -> Node:
    """The same mapping, with the state of all parameters and then their settings, as torch writes them."""
    made = renumbered(unflattened(node, []), new)
    items: list[tuple[Key, Node]] = []
    for key, entry in entries_of(made):
        assert isinstance(entry, Mapping)
        items += ((f"state.{word(key)}.{word(slot)}", child) for slot, child in entry.items)
    groups = under(made, "param_groups")
    assert isinstance(groups, Sequence)
    for group, keys in zip(groups.items, filter(None, new.groups), strict=True):
        assert isinstance(group, Mapping)
        settings = [(last, child) for last, child in group.items if last != PARAMS]
        items += ((f"param_groups.{word(key)}.{word(last)}", child) for key, _ in keys for last, child in settings)
    assert isinstance(node, Mapping)
    return replace(node, items=tuple(items))


# A list of tensors, one for each parameter, or a mapping of them by the names of the parameters


def _list_entries(node: Node) -> Iterator[tuple[Key, Node]]:
    assert isinstance(node, (Sequence, Mapping))
    yield from node.items if isinstance(node, Mapping) else enumerate(node.items)


def _list_renumbered(node: Node, new: Renumbered) -> Node:
    if isinstance(node, Mapping):
        return replace(node, items=tuple((key, new.entries[key]) for key in new.keys), mark=0)
    assert isinstance(node, Sequence)
    return replace(node, items=tuple(new.entries[key] for key in new.keys), mark=0)


FORMS = {
    "torch": StateForm(entries_of, renumbered),
    "dcp": StateForm(entries_of, renumbered),
    "deepspeed": StateForm(entries_of, renumbered),
    "dcp-flat": StateForm(lambda node: entries_of(unflattened(node, [])), _flat_renumbered),
    "list": StateForm(_list_entries, _list_renumbered),
}


def moved_below(node: Node, old: str, new: str) -> Node:
    """An entry whose tensors have the path of another."""
    return map_tensors(node, lambda name: new + name.removeprefix(old) if is_below(name, old) else name)


def is_below(name: str, path: str) -> bool:
    """Whether a tensor is at a path, or below it."""
    return name == path or name.startswith(f"{path}.")


# --- Schedules of learning rates, which keep lists with an item for each group of their optimizer --------------------
#
#     {"base_lrs": [0.1, 0.01], "_last_lr": [0.05, 0.005], "last_epoch": 3}       torch 2.13 (optim/lr_scheduler.py)
#
# Where a group of an optimizer ends, its items go.


SIGNS = ("base_lrs", "_last_lr")
"""A mapping with a list of one of these names is a schedule's."""
LISTS = (*SIGNS, "lr_lambdas", "max_lrs", "min_lrs", "base_momentums", "max_momentums")
"""What torch's schedules keep for each group."""


def of_groups(node: Node, count: int) -> bool:
    """Whether a tree has a schedule for an optimizer of this many groups."""
    return any(_is_schedule(child, count) for child in walk(node))


def without_groups(node: Node, count: int, gone: Collection[int]) -> Node:
    """A tree whose schedules for `count` groups have no items of those that are gone."""
    made = map_children(node, lambda child: without_groups(child, count, gone))
    if not isinstance(made, Mapping) or not _is_schedule(made, count):
        return made
    items: list[tuple[Key, Node]] = []
    for key, child in made.items:
        if key in LISTS and isinstance(child, Sequence) and len(child.items) == count:
            child = replace(child, items=tuple(item for k, item in enumerate(child.items) if k not in gone))
        items.append((key, child))
    return replace(made, items=tuple(items))


def _is_schedule(node: Node, count: int) -> bool:
    if not isinstance(node, Mapping):
        return False
    return any(key in SIGNS and isinstance(child, Sequence) and len(child.items) == count for key, child in node.items)
