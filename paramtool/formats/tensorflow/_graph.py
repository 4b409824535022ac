"""The objects of a TensorFlow 2 checkpoint, and the names of its variables.

A checkpoint of objects is a graph: edges have names, and a variable is called by the edges that lead to it, as
`a/b/kernel`.  Several paths to one variable are its several names: it is shared.  Its row in the index has one of them
(or a place in a list, such as `variables/0`); the graph also has the name that the program gave it, such as
`lstm/lstm_cell/kernel`.

A variable is called by its own name where that has scopes and no other variable has it, as Keras' have: that is what
the model shows, and what Keras' HDF5 files hold.  Else it is called by its shortest path.  If several paths lead to it,
all of them are names of it, too.  Lists in which Keras counts what other edges lead to (`BOOKKEEPING`) are no paths.

Variables of an optimizer are below its path, and those that belong to a variable are called after it:
`optimizer/m/lstm/lstm_cell/kernel`.

Source: tensorflow/core/protobuf/trackable_object_graph.proto; tensorflow/python/checkpoint/save_util.py and
graph_view.py; tf_keras/src/saving/legacy/saved_model/layer_serialization.py; keras/src/layers/layer.py (3.15).
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from paramtool.formats.object_tree import role_of
from paramtool.formats.protobuf import Message, Reader, Span
from paramtool.formats.tensorflow import _proto

KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The name of the tensor that holds the graph."""
VALUE = "VARIABLE_VALUE"
ATTRIBUTES = "/.ATTRIBUTES/"
SLOT = "/.OPTIMIZER_SLOT/"
BOOKKEEPING = re.compile(
    r"variables|trainable_variables|non_trainable_variables|keras_api|layers|metrics|layer_metrics|state_spec"
    r"|(layer_)?regularization_losses|layer-\d+|signatures"
    r"|_(trainable_variables|non_trainable_variables|layers|operations|metrics|tracked|functional|loss_tracker)"
)
"""Edges that Keras makes for itself; what is below them has another path, or is no weight."""
LISTS = ("_variables", "_momentums", "_velocities")
MAX_DEPTH = 64
"""The most edges of a path; a variable that is deeper is called as its row is."""
MAX_NAMES = 64
"""The most names of one variable."""
MAX_GROWTH = 64
"""The most characters of names for one byte of the graph."""


class NamedNode(NamedTuple):
    """A tensor of the index, with its names."""

    key: str
    names: tuple[str, ...]
    role: str


class NodeAttribute(NamedTuple):
    """What a node has in the index."""

    name: str
    full_name: str
    key: str


@dataclass
class Object:
    """A node of the graph."""

    children: list[tuple[str, int]]
    attributes: list[NodeAttribute]
    slots: list[tuple[int, str, int]]
    """(variable, name of the slot, variable of the optimizer)."""


def parse(reader: Reader) -> list[Object]:
    """The nodes of a graph; FormatError if it is damaged."""
    spans = reader.message(Span(0, len(reader.data)), _proto.OBJECT_GRAPH).get("nodes", ())
    return [_object(reader, span, len(spans)) for span in spans]


def _object(reader: Reader, span: Span, count: int) -> Object:
    def node(message: Message, name: str, at: Span) -> int:
        number = reader.number(message, name)
        if not 0 <= number < count:
            raise reader.damaged(at.start, f"{name} is {number}; the graph has {count} nodes")
        return number

    held = reader.message(span, _proto.OBJECT)
    children, attributes, slots = [], [], []
    for at in held.get("children", ()):
        child = reader.message(at, _proto.CHILD)
        children.append((reader.text(child, "local_name"), node(child, "node_id", at)))
    for at in held.get("attributes", ()):
        found = reader.message(at, _proto.ATTRIBUTE)
        attributes.append(
            NodeAttribute(*(reader.text(found, name) for name in ("name", "full_name", "checkpoint_key")))
        )
    for at in held.get("slot_variables", ()):
        slot = reader.message(at, _proto.SLOT)
        one, other = (node(slot, f"{which}_variable_node_id", at) for which in ("original", "slot"))
        slots.append((one, reader.text(slot, "slot_name"), other))
    return Object(children, attributes, slots)


def named(nodes: list[Object], keys: Container[str], nbytes: int) -> tuple[list[NamedNode], list[str]]:
    """The tensors of the index that the graph names, in its order, and notes; `nbytes` is the size of the graph."""
    return _Namer(nodes, keys, MAX_GROWTH * nbytes).run()


class _Namer:
    """Names for the variables of a graph."""

    def __init__(self, nodes: list[Object], keys: Container[str], characters: int) -> None:
        self.nodes = nodes
        self.keys = keys
        self.left = characters
        self.notes: list[str] = []
        self.taken: set[str] = set()
        self.optimizers = self._optimizers()
        self.outside = self._outside()
        self.paths = self._paths()

    def _optimizers(self) -> dict[int, str]:
        """{an optimizer: the name of the edge that leads to it}: it has slots, or its edge is called so."""
        found = {k: "optimizer" for k, node in enumerate(self.nodes) if node.slots}
        for node in self.nodes:
            found |= {
                child: name
                for name, child in node.children
                if (child in found or role_of(name, "") == "optimizer") and not BOOKKEEPING.fullmatch(name)
            }
        return {k: name for k, name in found.items() if not self.nodes[k].attributes}

    def _outside(self) -> dict[int, tuple[int, str]]:
        """{node that any edges lead to, but none of an optimizer: the node before it, and the edge}."""
        found = {0: (0, "")} if self.nodes else {}
        waiting = deque(found)
        while waiting:
            node = waiting.popleft()
            for name, child in self.nodes[node].children:
                if child not in found and child not in self.optimizers:
                    found[child] = (node, name)
                    waiting.append(child)
        return found

    def _any_path(self, node: int) -> str:
        """A path that is no optimizer's, by whatever edges; empty if it is deep."""
        edges: list[str] = []
        while node and len(edges) < MAX_DEPTH:
            node, name = self.outside[node]
            edges.append(_escaped(name))
        return "" if node else "/".join(reversed(edges))

    def _paths(self) -> dict[int, list[str]]:
        """{node with a tensor: its paths, the shortest first}, by edges of the program's own and not of optimizers.

        Breadth first: every node once, and those behind several edges again for each, as far as the bounds allow.
        """
        found: dict[int, list[str]] = {}
        if not self.nodes:
            return found
        steps = 2 * sum(len(node.children) for node in self.nodes) + 50_000
        visits: Counter[int] = Counter([0])
        waiting: deque[_Step] = deque([_Step(0, None, "", 0)])
        while waiting:
            step = waiting.popleft()
            if self.nodes[step.node].attributes and self.left > 0:
                path = step.path()
                self.left -= len(path)
                found.setdefault(step.node, []).append(path)
            for name, child in self.nodes[step.node].children:
                steps -= 1
                is_first = not visits[child]
                if BOOKKEEPING.fullmatch(name) or child in self.optimizers or step.depth >= MAX_DEPTH:
                    continue
                if not is_first and (child == step.node or step.is_below(child)):
                    continue  # a cycle
                if is_first or (steps > 0 and visits[child] < MAX_NAMES):
                    visits[child] += 1
                    waiting.append(_Step(child, step, name, step.depth + 1))
                else:
                    self._note("not all names of shared variables are listed: there are too many")
        return found

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def run(self) -> tuple[list[NamedNode], list[str]]:
        """Every tensor that the graph names."""
        slots = {other: (k, one, slot) for k, node in enumerate(self.nodes) for one, slot, other in node.slots}
        inside = self._inside_optimizers()
        held = [
            (k, attribute)
            for k, node in enumerate(self.nodes)
            for attribute in node.attributes
            if self._is_new(attribute)
        ]
        full = Counter(attribute.full_name for k, attribute in held if k not in slots)
        own: dict[int, str] = {}
        found: dict[int, list[NamedNode]] = {}
        for k, attribute in held:
            if k in slots:
                continue
            plain = _plain(attribute)
            is_value = attribute.name == VALUE
            named = attribute.full_name if "/" in attribute.full_name and full[attribute.full_name] == 1 else ""
            paths = [*self.paths.get(k, ())] if is_value else []
            if k in inside and k not in self.outside:
                rest = plain.rpartition(f"{inside[k]}/")[2]
                name = f"{inside[k]}/{named if named and rest.rpartition('/')[2].isdigit() else rest}"
                found.setdefault(k, []).append(NamedNode(attribute.key, (self._free(name, attribute),), "optimizer"))
                continue
            shortest = paths[0] if paths else (k in inside and k in self.outside and self._any_path(k)) or plain
            name = self._free(named if named and is_value else shortest, attribute)
            more = [path for path in dict.fromkeys(paths) if path != name and path not in self.taken]
            names = (name, *more) if len(paths) > 1 else (name,)
            self.taken.update(names)
            own.setdefault(k, name)
            found.setdefault(k, []).append(NamedNode(attribute.key, names, _role(plain)))
        for k, attribute in held:
            if k in slots:
                optimizer, one, slot = slots[k]
                of = own.get(one, "") or _plain(attribute).partition(SLOT)[0]
                name = self._free(f"{self._place(optimizer)}/{slot}/{of}", attribute)
                found.setdefault(k, []).append(NamedNode(attribute.key, (name,), "optimizer"))
        return [one for k in sorted(found) for one in found[k]], self.notes

    def _is_new(self, attribute: NodeAttribute) -> bool:
        """Whether an attribute is a tensor of the index that no node before had."""
        return attribute.key in self.keys

    def _free(self, name: str, attribute: NodeAttribute) -> str:
        """A name that no other tensor has: the one that is wanted, or the path in its key, or the key."""
        self.left -= len(name)
        wanted = name if self.left > 0 else _plain(attribute)
        chosen = next((one for one in (wanted, _plain(attribute)) if one and one not in self.taken), attribute.key)
        self.taken.add(chosen)
        return chosen

    def _place(self, optimizer: int) -> str:
        return self.optimizers.get(optimizer) or "optimizer"

    def _inside_optimizers(self) -> dict[int, str]:
        """{node below an optimizer: the optimizer's name}."""
        found: dict[int, str] = {}
        for optimizer, name in self.optimizers.items():
            waiting = [optimizer]
            while waiting:
                for _, child in self.nodes[waiting.pop()].children:
                    if child not in found and child not in self.optimizers:
                        found[child] = name
                        waiting.append(child)
        return found


class _Step(NamedTuple):
    """A node, and how a search came to it."""

    node: int
    before: _Step | None
    name: str
    depth: int

    def path(self) -> str:
        """The names of the edges up to here."""
        return "/".join(reversed([_escaped(step.name) for step in self._back()]))

    def is_below(self, node: int) -> bool:
        """Whether a node is on the way here."""
        return self.node == node or any(step.before.node == node for step in self._back() if step.before)

    def _back(self) -> Iterator[_Step]:
        step: _Step | None = self
        while step is not None and step.before is not None:
            yield step
            step = step.before


def _escaped(name: str) -> str:
    """The name of an edge in a path, as TensorFlow writes it (graph_view.py, _escape_local_name).

    >>> _escaped("a/b.S"), _escaped("kernel")
    ('a.Sb..S', 'kernel')
    """
    return name.replace(".", "..").replace("/", ".S")


def _plain(attribute: NodeAttribute) -> str:
    """The path in a key."""
    path, _, kind = attribute.key.partition(ATTRIBUTES)
    return path if kind == VALUE else f"{path}/{kind}" if path and kind else attribute.key


def _role(path: str) -> str:
    """The role of a variable that is not an optimizer's, by its path.

    >>> _role("keras_api/metrics/0/total"), _role("layer_with_weights-0/keras_api/states/0"), _role("a/kernel")
    ('other', 'buffer', 'model')
    """
    if path == "save_counter" or "keras_api/metrics/" in path:
        return "other"
    return "buffer" if "keras_api/states/" in path else "model"
