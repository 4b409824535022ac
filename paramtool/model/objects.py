"""Everything in a checkpoint that is not a tensor: nesting, typed keys, numbers, texts, foreign objects.

A checkpoint such as `{"model": {...}, "optimizer": {"state": {0: ...}}, "epoch": 3}` is kept as a tree, so that a
writer can give back key `0` as 0 and not as "0".  Tensors stand in the tree by name.  A foreign object is kept as the
name of its class and the plain data it was made from; it is never built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Scalar = None | bool | int | float | complex | str | bytes


@dataclass(frozen=True, slots=True)
class Leaf:
    """A plain value."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class TensorRef:
    """The place of a tensor, by the name it has in the checkpoint."""

    name: str


@dataclass(frozen=True, slots=True)
class Array:
    """A small array that is pickled inside the tree (random states, metrics): its bytes are kept, not its meaning."""

    dtype: str
    shape: tuple[int, ...]
    order: str
    """`C` or `F`."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Again:
    """A container that holds itself: the path of the place where it stands first."""

    path: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list, tuple, set or torch.Size; `kind` says which."""

    kind: str
    items: tuple[Node, ...]


Key = Scalar | tuple[Scalar, ...] | TensorRef


@dataclass(frozen=True, slots=True)
class Mapping:
    """A dict or a class of the same manner; `kind` says which."""

    kind: str
    items: tuple[tuple[Key, Node], ...]
    attributes: Node | None = None
    """What a pickle sets on the container itself, such as `_metadata` of a state dict."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object of a class that is not known: its name and the data it would have been made from."""

    path: str
    """Module and name, such as `argparse.Namespace`."""
    parts: tuple[tuple[str, Node], ...]
    """`args`, `state`, `items`, ... as far as the object has them."""


Node = Leaf | TensorRef | Array | Again | Sequence | Mapping | Opaque

EMPTY = Mapping("dict", ())
MAX_DEPTH = 200
"""Levels of nesting that are read; a whole module nests three levels for each of its own."""


def walk(node: Node) -> Iterator[Node]:
    """Every node of a tree, parents first."""
    yield node
    children: tuple[Node, ...] = ()
    if isinstance(node, Sequence):
        children = node.items
    elif isinstance(node, Mapping):
        children = tuple(child for _, child in node.items)
        children += (node.attributes,) if node.attributes is not None else ()
    elif isinstance(node, Opaque):
        children = tuple(child for _, child in node.parts)
    for child in children:
        yield from walk(child)


def tensor_names(node: Node) -> Iterator[str]:
    """The names of the tensors in a tree, those that are keys included."""
    for found in walk(node):
        if isinstance(found, TensorRef):
            yield found.name
        elif isinstance(found, Mapping):
            yield from (key.name for key, _ in found.items if isinstance(key, TensorRef))


def subtree(node: Node, path: str) -> Node:
    """What stands under a section's name: a key, or keys joined by dots; an empty dict where nothing does."""
    if isinstance(node, Mapping):
        for key, child in node.items:
            word = str(key)
            if word == path:
                return child
            if path.startswith(f"{word}."):
                return subtree(child, path[len(word) + 1 :])
    return EMPTY


def map_tensors(node: Node, change: Callable[[str], str]) -> Node:
    """The same tree with every tensor's name changed."""
    match node:
        case TensorRef(name):
            return TensorRef(change(name))
        case Sequence(kind, items):
            return Sequence(kind, tuple(map_tensors(item, change) for item in items))
        case Mapping(kind, pairs, attributes):
            changed = tuple(
                (
                    TensorRef(change(key.name)) if isinstance(key, TensorRef) else key,
                    map_tensors(child, change),
                )
                for key, child in pairs
            )
            return Mapping(kind, changed, attributes and map_tensors(attributes, change))
        case Opaque(path, parts):
            return Opaque(path, tuple((label, map_tensors(child, change)) for label, child in parts))
    return node


def swap(node: Node, swaps: dict[str, tuple[str, ...]]) -> Node:
    """The same tree with tensors taken out and others put where they stood: {old name: new names}.

    In a mapping the new keys are the new names without what the old name has before its own key.
    """
    match node:
        case Sequence(kind, items):
            found: list[Node] = []
            for item in items:
                if isinstance(item, TensorRef) and item.name in swaps:
                    found += [TensorRef(name) for name in swaps[item.name]]
                else:
                    found.append(swap(item, swaps))
            return Sequence(kind, tuple(found))
        case Mapping(kind, pairs, attributes):
            changed: list[tuple[Key, Node]] = []
            for key, child in pairs:
                if isinstance(child, TensorRef) and child.name in swaps:
                    before = child.name.removesuffix(str(key))
                    changed += [(name.removeprefix(before), TensorRef(name)) for name in swaps[child.name]]
                else:
                    changed.append((key, swap(child, swaps)))
            return Mapping(kind, tuple(changed), attributes and swap(attributes, swaps))
        case Opaque(path, parts):
            return Opaque(path, tuple((label, swap(child, swaps)) for label, child in parts))
    return node
