"""The nested dicts and lists that were saved, from the place of each value in them.

torch.distributed.checkpoint keeps a tuple for each value: keys of dicts as strings, and numbers in lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from paramtool.errors import UnsafeError, plural
from paramtool.formats.dcp.metadata import Place
from paramtool.model.objects import (
    EMPTY,
    MAX_DEPTH,
    Again,
    Leaf,
    Mapping,
    Node,
    Opaque,
    Sequence,
    TensorRef,
    children,
    grafted,
    map_tensors,
    with_item,
)

MIN_NODES = 100_000
NODES_PER_BYTE = 4
"""The most nodes of all objects: one that many names share unfolds at each of them."""
MAX_HOLES = 1000
"""The most positions of a list that may have no value."""


def name_in(tree: Node, name: str, inner: str) -> str:
    """What a tensor of an object is called where the object has a name: as the object, if it is all of it.

    >>> name_in(TensorRef("tensor"), "n", "tensor"), name_in(EMPTY, "n", "tensor")
    ('n', 'n.tensor')
    """
    whole = dict(tree.parts).get("data") if isinstance(tree, Opaque) else tree  # an array of NumPy's
    return name if whole == TensorRef(inner) else f"{name}.{inner}"


class Grafts:
    """Trees of objects that become parts of one tree."""

    def __init__(self, where: str, nbytes: int) -> None:
        self._where = where
        self._most = max(MIN_NODES, NODES_PER_BYTE * nbytes)
        self._count = 0
        self._mark = 0

    def node(self, tree: Node, name: str, depth: int, nbytes: int) -> Node:
        """The tree of an object at a place `depth` levels deep, with the names of its tensors below its own name.

        The object has `nbytes` bytes in its file.  UnsafeError if all of them unfold to more than files of this size.
        """
        self._most += NODES_PER_BYTE * nbytes
        first, last, has_names = self._mark, 0, False
        todo: list[tuple[Node, int]] = [(tree, depth)]
        while todo:
            node, level = todo.pop()
            self._count += 1
            if self._count > self._most:
                raise UnsafeError(
                    f"{self._where}: its objects unfold to more than {plural(self._most, 'place')}; it is a bomb"
                )
            if level > MAX_DEPTH:
                raise UnsafeError(f"{self._where}: {name[:60]!r}...: nested deeper than {MAX_DEPTH} levels")
            last = max(last, getattr(node, "mark", 0))
            has_names = has_names or isinstance(node, (TensorRef, Again)) or _has_tensor_keys(node)
            todo += ((child, level + 1) for child in children(node))
        self._mark = first + last
        if not has_names and not (last and first):
            return tree
        return grafted(map_tensors(tree, lambda inner: name_in(tree, name, inner)), name, first)


def _has_tensor_keys(node: Node) -> bool:
    return isinstance(node, Mapping) and any(isinstance(key, TensorRef) for key, _ in node.items)


def tree_of(leaves: Iterable[tuple[Place, Node]]) -> tuple[Node, list[str]]:
    """The tree with each node at its place, and what is contradictory about the places."""
    root: dict[Any, Any] = {}
    defects: list[str] = []
    for place, node in leaves:
        inside = root
        for part in place[:-1]:
            inside = inside.setdefault(part, {})
            if not isinstance(inside, dict):
                break
        if not isinstance(inside, dict) or place[-1] in inside or len(place) > MAX_DEPTH:
            defects.append(f"the place {place!r:.200} is taken, or inside of a value; expected one value at each place")
        else:
            inside[place[-1]] = node
    return _branch(root, defects) if root else EMPTY, defects


def _branch(held: Any, defects: list[str]) -> Node:
    """The dict or list of some values, whose keys are all strings or all numbers."""
    if not isinstance(held, dict):
        node: Node = held
        return node
    numbers = [key for key in held if isinstance(key, int)]
    made = {key: _branch(child, defects) for key, child in held.items()}
    if not numbers:
        return with_numbers(Mapping("dict", tuple(made.items())))
    if len(numbers) < len(held) or max(numbers) >= len(numbers) + MAX_HOLES:
        what = "text and numbers" if len(numbers) < len(held) else f"the number {max(numbers)}"
        defects.append(f"the keys of one container have {what}; expected those of a dict or of a list")
        return EMPTY
    return Sequence("list", tuple(made.get(k, Leaf(None)) for k in range(max(numbers) + 1)))


def with_numbers(tree: Mapping) -> Mapping:
    """A dict with numbers as the keys of an optimizer's state, if it is one, which torch writes as strings.

    They are in the groups as numbers: `{"state": {"0": {...}}, "param_groups": [{"params": [0], ...}]}`.
    """
    held = dict(tree.items)
    state, groups = held.get("state"), held.get("param_groups")
    if not isinstance(state, Mapping) or not isinstance(groups, Sequence):
        return tree
    numbers = {str(number): number for number in _params(groups)}
    if not all(key in numbers for key, _ in state.items):
        return tree
    state = replace(state, items=tuple((numbers[str(key)], child) for key, child in state.items))
    return with_item(tree, "state", state)


def _params(groups: Sequence) -> Iterator[int]:
    """The numbers of the parameters in an optimizer's groups."""
    listed = (
        child for group in groups.items if isinstance(group, Mapping) for key, child in group.items if key == "params"
    )
    for params in listed:
        for item in params.items if isinstance(params, Sequence) else ():
            if isinstance(item, Leaf) and type(item.value) is int:
                yield item.value
