"""Changing one optimizer in a checkpoint's tree of objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Mapping as Map
from collections.abc import Sequence as Sequence_
from dataclasses import replace

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
FLAT, LIST = "dcp-flat", "list"
"""Forms: torch.distributed.checkpoint's with `flatten_optimizer_state_dict`, and a list of copies of the parameters."""
STATE, GROUPS, PARAMS, PARAM_NAMES = "state", "param_groups", "params", "param_names"


def put(node: Node, at: str, value: Node | None) -> Node:
    """The same tree with another node at a path, or without the one that is there.

    >>> put(Mapping("dict", (("a", Sequence("list", (Leaf(1), Leaf(2)))),)), "a.1", None)
    Mapping(kind='dict', items=(('a', Sequence(kind='list', items=(Leaf(value=1),), args=(), mark=0)),), \
attributes=None, args=(), mark=0)
    """
    if not at:
        return value or EMPTY

    def child(part: str, one: Node) -> Node | None:
        if part == at:
            return value
        return put(one, at[len(part) + 1 :], value) if at.startswith(f"{part}.") else one

    if isinstance(node, Mapping):
        pairs = ((key, child(word(key), one)) for key, one in node.items)
        return replace(node, items=tuple((key, one) for key, one in pairs if one is not None))
    if isinstance(node, Sequence):
        items = (child(str(k), one) for k, one in enumerate(node.items))
        return replace(node, items=tuple(one for one in items if one is not None))
    return map_children(node, lambda one: put(one, at, value))


def module_order(names: Collection[str], depth: int = 0) -> list[str]:
    """Names as a module of torch has them: its own parameters, then those of one module in it after the other.

    What has no place yet follows the first name of its module.

    >>> module_order(["a.q.weight", "a.k.weight", "a.q.bias", "a.k.bias", "head"])
    ['head', 'a.q.weight', 'a.q.bias', 'a.k.weight', 'a.k.bias']
    """
    inner = grouped((name.split(".")[depth], name) for name in names if name.count(".") > depth)
    own = (name for name in names if name.count(".") == depth)
    return [*own, *(name for below in inner.values() for name in module_order(below, depth + 1))]


def is_module_order(names: Collection[str]) -> bool:
    """Whether names are in the order of a module."""
    return module_order(names) == [*names]


def sorted_as(node: Node, before: Node) -> Node:
    """A state dict whose names are in the order of a module again, where those of the one before it were."""
    if not isinstance(node, Mapping) or not isinstance(before, Mapping) or node.kind not in ("dict", ORDERED):
        return node
    items, old = ({word(key): (key, child) for key, child in one.items} for one in (node, before))
    if not is_module_order(old):
        return node
    return replace(node, items=tuple(items[name] for name in module_order(items)))


# Entries: torch's {"state": {0: {...}}, "param_groups": [{"params": [0]}]}, the same flattened, and lists of copies


def entries_of(node: Node, form: str) -> dict[Key, Node]:
    """{key: what an optimizer keeps for a parameter}; a list of copies has an entry for each."""
    found = under(unflattened(node, []) if form == FLAT else node, STATE) if form != LIST else node
    assert isinstance(found, (Mapping, Sequence))
    return dict(found.items if isinstance(found, Mapping) else enumerate(found.items))


def rewritten(
    node: Node, form: str, groups: Sequence_[Sequence_[tuple[Key, str]]], entries: Map[Key, Node],
    emptied: Collection[int] = (),
) -> Node:  # fmt: skip
    """The same optimizer with other entries, {new key: what is kept for it}.

    Each group has its new keys, each with its new one of `param_names`, in order; those in `emptied` are left out.
    """
    kept = tuple((key, entries[key]) for group in groups for key, _ in group if key in entries)
    if isinstance(node, Sequence):
        return replace(node, items=tuple(one for _, one in kept), mark=0)
    assert isinstance(node, Mapping)
    if form == LIST:
        return replace(node, items=kept, mark=0)
    body = unflattened(node, []) if form == FLAT else node
    state, listed = under(body, STATE), under(body, GROUPS)
    assert isinstance(body, Mapping) and isinstance(state, Mapping) and isinstance(listed, Sequence)
    pairs = zip(listed.items, groups, strict=False)
    made = [(_group(one, new), new) for k, (one, new) in enumerate(pairs) if k not in emptied]
    if form != FLAT:
        body = with_item(body, STATE, replace(state, items=kept))
        return with_item(body, GROUPS, replace(listed, items=tuple(one for one, _ in made)))
    # The state of all parameters and then their settings, as torch writes them
    items = [(f"{STATE}.{word(key)}.{word(slot)}", child) for key, one in kept for slot, child in _items(one)]
    items += (
        (f"{GROUPS}.{word(key)}.{word(last)}", child)
        for one, new in made for key, _ in new for last, child in _items(one) if last != PARAMS
    )  # fmt: skip
    return replace(node, items=tuple(items))


def _items(node: Node) -> Iterable[tuple[Key, Node]]:
    assert isinstance(node, Mapping)
    return node.items


def _group(node: Node, new: Sequence_[tuple[Key, str]]) -> Node:
    """A group of torch's optimizer with other `params`, and other `param_names` where it has them."""
    assert isinstance(node, Mapping)
    for label, values in ((PARAMS, [key for key, _ in new]), (PARAM_NAMES, [name for _, name in new])):
        listed = under(node, label)
        if isinstance(listed, Sequence) and listed.items:
            node = with_item(node, label, replace(listed, items=tuple(map(Leaf, values)), mark=0))  # type: ignore[arg-type]
    return node


def texts(nodes: Iterable[Node | None]) -> tuple[str, ...]:
    """Plain texts; none where one of them is anything else."""
    values = [node.value if isinstance(node, Leaf) else None for node in nodes]
    found = tuple(value for value in values if isinstance(value, str))
    return found if len(found) == len(values) else ()


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

    def left(child: Node) -> Node:
        assert isinstance(child, Sequence)
        return replace(child, items=tuple(item for k, item in enumerate(child.items) if k not in gone))

    made = map_children(node, lambda child: without_groups(child, count, gone))
    if not isinstance(made, Mapping) or not _is_schedule(made, count):
        return made
    items = ((key, left(one) if key in LISTS and _is_list(one, count) else one) for key, one in made.items)
    return replace(made, items=tuple(items))


def _is_schedule(node: Node, count: int) -> bool:
    return isinstance(node, Mapping) and any(key in SIGNS and _is_list(child, count) for key, child in node.items)


def _is_list(node: Node, count: int) -> bool:
    return isinstance(node, Sequence) and len(node.items) == count
