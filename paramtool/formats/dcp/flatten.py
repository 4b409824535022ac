"""The tree of objects as torch.distributed.checkpoint keeps it: a row of values, each with its place.

Its planner takes dicts apart, and lists with a tensor or a dict in them; anything else is one value, which torch.save
writes (`_traverse.py` of torch 2.13).  It turns every key into a string, and forgets the classes of dicts and the empty
ones.  A value cannot take the place of an empty dict: the loader takes it for a mark of torch 2.3, which took dicts
apart differently (`create_local_plan` in default_planner.py), and then misses other values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from typing import Any

from paramtool.errors import UnsafeError, leading, plural, some
from paramtool.formats.dcp.metadata import Place
from paramtool.formats.torch.write_objects import ATTRIBUTED
from paramtool.lazy_dataclass import dataclass, frozen
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
    items_of,
    map_tensors,
    rebased,
    remarked,
    walk,
    with_item,
)

MANY = 3
"""The most places that a line for people names."""


@frozen
class FlatTree:
    """A tree, taken apart."""

    values: dict[str, Node]
    """{name: a tensor or an object}, objects with references relative to themselves."""
    places: dict[str, Place]
    empty: tuple[tuple[int, Place], ...]
    """Empty dicts: how many values come before, and the place."""
    tree: Node
    """The same as one tree, as it is read back."""
    changed: tuple[str, ...]
    """What it does not say any more, for people."""
    refused: tuple[str, ...]
    """Why it cannot be taken apart, for people; nothing else counts then."""


def flattened(tree: Node) -> FlatTree:
    """Take a tree of objects apart."""
    if not isinstance(tree, Mapping):
        return FlatTree({}, {}, (), tree, (), ("its top level is not a dict",))
    taking = _Taking()
    made = taking.dict_of(tree, ())
    several = taking.shared()

    def apart(node: Node) -> Node:  # what several values had is not one object any more
        return remarked(node, lambda mark: 0 if mark in several else mark) if several else node

    return FlatTree(
        values={name: apart(node) for name, node in taking.values.items()},
        places=taking.places,
        empty=tuple(taking.empty),
        tree=apart(made),
        changed=tuple(taking.changed()),
        refused=tuple(taking.refused),
    )


@dataclass(slots=True)
class _Taking:
    """One walk through a tree."""

    values: dict[str, Node] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    empty: list[tuple[int, Place]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    """Places of dicts with keys that are not strings."""
    strings: list[str] = field(default_factory=list)
    """Places of dicts whose keys are strings, and are read back as the numbers that an optimizer's groups have."""
    classes: list[str] = field(default_factory=list)
    """Places of dicts of another class, or with attributes."""
    marks: dict[int, list[str]] = field(default_factory=dict)
    """{mark: where it is}; a value counts once."""

    def node(self, node: Node, place: Place) -> Node:
        """The same node as it is read back; its values are added."""
        if (tensor := _tensor(node)) is not node:
            self.classes.append(_name(place))
            node = tensor
        if isinstance(node, Mapping):
            return self.dict_of(node, place)
        if isinstance(node, Sequence) and _is_taken_apart(node):
            self._marked(node, place)
            items = tuple(self.node(item, (*place, k)) for k, item in enumerate(node.items))
            return replace(node, items=items, mark=0)
        name = _name(place)
        if name in self.values:
            self.refused.append(f"two values have the name {name!r:.200}")
        if isinstance(node, TensorRef) and node.name != name:
            self.refused.append(f"the tensor {node.name!r:.200} would have the name {name!r:.200}")
        inside = rebased(node, f"{name}.")
        if sum(isinstance(one, Again) for one in walk(node)) > sum(isinstance(one, Again) for one in walk(inside)):
            self.refused.append(f"{name!r:.200} refers to a container that it is inside of")
        for one in walk(node):
            self._marked(one, place)
        self.values[name], self.places[name] = inside, place
        return node

    def dict_of(self, node: Mapping, place: Place) -> Mapping:
        """A dict whose items are values of their own."""
        if not all(isinstance(key, str) for key, _ in node.items):
            self.numbers.append(_name(place))
        if node.kind != "dict" or node.attributes is not None:
            self.classes.append(_name(place))
        if any(isinstance(key, (TensorRef, Sequence, Opaque)) for key, _ in node.items):
            self.refused.append(f"{_name(place)!r:.200} has keys that cannot be turned into strings")
            return EMPTY
        if len({str(key) for key, _ in node.items}) < len(node.items):
            self.refused.append(f"{_name(place)!r:.200} has two keys that become one string")
        if not node.items and place:
            self.empty.append((len(self.values), place))
        self._marked(node, place)
        items = tuple((str(key), self.node(child, (*place, str(key)))) for key, child in node.items)
        made, found = Mapping("dict", items), with_numbers(Mapping("dict", items))
        if found != made:
            state = _name((*place, "state"))
            (self.numbers.remove if state in self.numbers else self.strings.append)(state)
        return found

    def _marked(self, node: Node, place: Place) -> None:
        if isinstance(node, (Mapping, Sequence, Opaque)) and node.mark:
            found = self.marks.setdefault(node.mark, [])
            if not found or found[-1] != _name(place):
                found.append(_name(place))

    def shared(self) -> frozenset[int]:
        """The marks of objects that several values have."""
        return frozenset(mark for mark, found in self.marks.items() if len(found) > 1)

    def changed(self) -> Iterator[str]:
        """What the values and their places do not say, for people."""
        if self.numbers:
            yield f"that keys of {_some(self.numbers)} are not strings"
        if self.strings:
            yield f"that keys of {_some(self.strings)} are strings, not numbers"
        if self.classes:
            yield f"the class and the attributes of {_some(self.classes)}"
        if several := [" and ".join(map(repr, found[:MANY])) for found in self.marks.values() if len(found) > 1]:
            yield f"that {_some(several, quoted=False)} are one object"


def _is_taken_apart(node: Sequence) -> bool:
    """Whether the items of a list become values of their own."""
    return node.kind == "list" and any(
        isinstance(_tensor(item), (TensorRef, Mapping)) or (isinstance(item, Sequence) and _is_taken_apart(item))
        for item in node.items
    )


def _tensor(node: Node) -> Node:
    """A tensor without its attributes; any other node as it is."""
    if isinstance(node, Opaque) and node.path == ATTRIBUTED:
        return dict(node.parts)["data"]
    return node


def _name(place: Place) -> str:
    return ".".join(map(str, place))


def _some(places: list[str], quoted: bool = True) -> str:
    return some([place or "(top)" for place in places], MANY) if quoted else leading(places, MANY, between="; ")


# --- The nested dicts and lists that were saved, from the place of each value in them --------------------------------
#
# torch.distributed.checkpoint keeps a tuple for each value: keys of dicts as strings, and numbers in lists.


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
            has_names = (
                has_names
                or isinstance(node, (TensorRef, Again))
                or (isinstance(node, Mapping) and any(isinstance(key, TensorRef) for key, _ in node.items))
            )
            todo += ((child, level + 1) for child in children(node))
        self._mark = first + last
        if not has_names and not (last and first):
            return tree
        return grafted(map_tensors(tree, lambda inner: name_in(tree, name, inner)), name, first)


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
        for item in items_of(params):
            if isinstance(item, Leaf) and type(item.value) is int:
                yield item.value
