"""Everything in a checkpoint that is not a tensor: nesting, typed keys, numbers, strings, foreign objects.

A checkpoint such as `{"model": {...}, "optimizer": {"state": {0: ...}}, "epoch": 3}` is kept as a tree, so that a
writer can give back key `0` as 0 and not as "0".  The tree refers to tensors by name.  A foreign object is kept as the
name of its class and the plain data it was made from; it is never built.

An object that several places refer to is expanded at each place, since its tensors have a name for each.  All copies
carry the same `mark`, so that a writer can restore one object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shape

Scalar = None | bool | int | float | complex | str | bytes


@frozen
class Leaf:
    """A plain value."""

    value: Scalar


@frozen
class TensorRef:
    """A reference to a tensor, by its name in the checkpoint."""

    name: str


@frozen
class Array:
    """A NumPy array or scalar that is not a tensor (strings, dates): its bytes are kept and not interpreted."""

    dtype: str
    shape: Shape
    order: str
    """`C` or `F`."""
    data: bytes


@frozen
class Again:
    """A container that contains itself: the path of its first place."""

    path: str


@frozen
class Sequence:
    """A list, tuple, set or torch.Size; `kind` says which."""

    kind: str
    items: tuple[Node, ...]
    args: tuple[Node, ...] = ()
    """Further constructor arguments: the (iterable, maxlen) of a deque."""
    mark: int = 0
    """Nodes with the same number are the same object.  0 where only one place refers to it."""


Found = TypeVar("Found")
Key: TypeAlias = "Scalar | tuple[Scalar, ...] | TensorRef | Sequence | Opaque"
"""A key of a mapping.  A Sequence is a tuple with items that are not scalars; an Opaque is a NumPy scalar, a path or an
enum."""
Pairs: TypeAlias = "tuple[tuple[Key, Node], ...]"
Path = tuple[str, ...]
"""Where a node of a tree is: the keys that lead to it, as words."""
Swaps = dict[str, tuple[str, ...]]
"""{name of a tensor: the names of those in its place}"""


@frozen
class Mapping:
    """A dict, or another class of mapping; `kind` says which."""

    kind: str
    items: Pairs
    attributes: Node | None = None
    """Attributes that a pickle sets on the container itself, such as `_metadata` of a state dict."""
    args: tuple[Node, ...] = ()
    """Further constructor arguments: the factory of a defaultdict."""
    mark: int = 0
    """As in `Sequence`."""


@frozen
class Opaque:
    """An object of an unknown class: the name of the class and the data that the object would be made from."""

    path: str
    """Module and name, such as `argparse.Namespace`."""
    parts: tuple[tuple[str, Node], ...]
    """`args`, `state`, `items`, ... as far as the object has them."""
    mark: int = 0
    """As in `Sequence`."""


Marked = (Sequence, Mapping, Opaque)
"""Nodes that several places can refer to."""
Node = Leaf | TensorRef | Array | Again | Sequence | Mapping | Opaque

EMPTY = Mapping("dict", ())
LEFT_OUT = "paramtool.left_out"
"""The class of an object that was left out: a record had no room for it, or it is outside the section.

Its only part, "what", describes the object.
"""


def stub(what: str) -> Opaque:
    """The node of an object that was left out."""
    return Opaque(LEFT_OUT, (("what", Leaf(what)),))


def complex_number(value: complex) -> Opaque:
    """A complex number as pickles store it: a call with its two parts."""
    return Opaque("builtins.complex", (("args", Sequence("tuple", (Leaf(value.real), Leaf(value.imag)))),))


def holds_objects(node: Node) -> bool:
    """Whether there is more in a tree than tensors in containers: a value, an object or an empty container.

    What a mapping has as attributes is not counted.
    """
    todo = [node]
    while todo:
        match todo.pop():
            case Mapping(_, ((_, *_), *_) as pairs):
                todo += (child for _, child in pairs)
            case Sequence(_, (_, *_) as items):
                todo += items
            case TensorRef():
                pass
            case _:
                return True
    return False


STREAM = "_io.BytesIO"


def content_of(node: Node) -> Leaf | None:
    """The bytes of an `io.BytesIO`, in which libraries keep what is no tensor; None for any other object.

    Its state is (bytes, position, attributes), as Modules/_io/bytesio.c gives it.
    """
    match node:
        case Opaque(path, (("state", Sequence("tuple", (Leaf(bytes()) as data, Leaf(int(at)), rest))),)):
            return data if path == STREAM and at >= 0 and rest in (Leaf(None), EMPTY) else None
    return None


MAX_DEPTH = 200
"""The deepest nesting that is read; a pickled module takes three levels for each of its own."""


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly inside a node, in order; keys of mappings are not nodes."""
    match node:
        case TensorRef() | Leaf():  # most of them
            return ()
        case Sequence(_, items, args):
            return (*args, *items)
        case Mapping(_, pairs, attributes, args):
            return (*args, *(child for _, child in pairs), *((attributes,) if attributes is not None else ()))
        case Opaque(_, parts):
            return tuple(child for _, child in parts)
    return ()


def walk(node: Node) -> Iterator[Node]:
    """Every node of a tree, parents first."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        if inner := children(node):
            todo.extend(reversed(inner))


def tensor_names(node: Node) -> Iterator[str]:
    """The names of the tensors in a tree, those that are keys included."""
    for found in walk(node):
        if isinstance(found, TensorRef):
            yield found.name
        elif isinstance(found, Mapping):
            yield from (key.name for key, _ in found.items if isinstance(key, TensorRef))


def word(key: Key) -> str:
    """A key as a part of the names of the tensors below it; NumPy integers are written as numbers.

    >>> word("a"), word(0), word((1, "b")), word(Opaque("enum.Color", ()))
    ('a', '0', "(1, 'b')", '<enum.Color>')
    """
    if isinstance(key, Opaque):
        value = key.parts[0][1] if key.parts else None
        if isinstance(value, Array) and value.dtype[1:2] in ("i", "u"):
            data = value.data[::-1] if value.dtype[0] == ">" else value.data
            return str(int.from_bytes(data, "little", signed=value.dtype[1] == "i"))
        return f"<{key.path}>"
    if isinstance(key, Sequence):
        return f"({', '.join(_word_of(item) for item in key.items)})"
    return str(key)


def _word_of(item: Node) -> str:
    match item:
        case Leaf(value):
            return repr(value)
        case Opaque() | Sequence():
            return word(item)
    return f"<{type(item).__name__}>"


EXTRA_STATE = "_extra_state"
"""The last word of the name of what a module's `get_extra_state` gave (`_EXTRA_STATE_KEY_SUFFIX` of torch)."""


def is_extra_state(name: str) -> bool:
    """Whether a name is of what a module's `get_extra_state` gave."""
    return name.rpartition(".")[2] == EXTRA_STATE


def objects_in(tree: Node, at: str = "") -> Iterator[tuple[str, Node]]:
    """What a state dict holds beside tensors, by the names that these have in it."""
    for key, child in pairs_of(tree):
        name = f"{at}{word(key)}"
        if isinstance(child, Mapping) and not is_extra_state(name) and any(tensor_names(child)):
            yield from objects_in(child, f"{name}.")
        elif not isinstance(child, TensorRef):
            yield name, child


def subtree(node: Node, path: str) -> Node:
    """The node under a section's name (a key, or keys joined by dots); an empty dict where there is none."""
    if isinstance(node, Mapping):
        for key, child in node.items:
            part = word(key)
            if part == path:
                return child
            if path.startswith(f"{part}."):
                return subtree(child, path[len(part) + 1 :])
    return EMPTY


def inside(node: Node) -> Iterable[tuple[str | None, Node]]:
    """The nodes directly in a node, each with its part of the path; the parts of an object have the path of it."""
    if isinstance(node, Mapping):
        return ((word(key), child) for key, child in node.items)
    if isinstance(node, Sequence):
        return ((str(k), child) for k, child in enumerate(node.items))
    return ((None, child) for child in children(node))


def outermost(
    node: Node, asked: Callable[[Node, Node | None], Found | None], into: tuple[type, ...] = Marked,
    path: Path = (), around: Node | None = None,
) -> Iterator[tuple[Path, Found]]:  # fmt: skip
    """[(path, what is found there)], in order: `asked` is told each node and the one around it, and none inside a find.

    Nodes of other types than `into` are not looked into.

    >>> [*outermost(Sequence("list", (Leaf(1), Leaf(2))), lambda node, around: node if node == Leaf(2) else None)]
    [(('1',), Leaf(value=2))]
    """
    found = asked(node, around)
    if found is not None:
        yield path, found
        return
    for part, child in inside(node) if isinstance(node, into) else ():
        yield from outermost(child, asked, into, path if part is None else (*path, part), node)


def node_at(node: Node, at: str) -> Node:
    """The node at a path of keys joined by dots, the top at an empty one; an empty dict where there is none."""
    if not at:
        return node
    for part, child in inside(node):
        if part is None or f"{at}.".startswith(f"{part}."):
            found = node_at(child, at if part is None else at[len(part) + 1 :])
            if found is not EMPTY:
                return found
    return EMPTY


def items_of(node: Node | None) -> tuple[Node, ...]:
    """The items of a list or tuple; of anything else none."""
    return node.items if isinstance(node, Sequence) else ()


def pairs_of(node: Node | None) -> Pairs:
    """The items of a mapping; of anything else none."""
    return node.items if isinstance(node, Mapping) else ()


def under(node: Node | None, *keys: Key) -> Node | None:
    """What is under some keys, one inside the other; None where a key is missing."""
    for key in keys:
        node = next((one for name, one in pairs_of(node) if name == key), None)
    return node


def part(node: Node | None, label: str) -> Node | None:
    """A part of an object; None where it has none, and for anything else."""
    return dict(node.parts).get(label) if isinstance(node, Opaque) else None


def with_item(node: Mapping, key: Key, value: Node | None) -> Mapping:
    """A mapping with another value under a key, at its place or at the end; without the key where it is None."""
    pairs = [(k, value if k == key else v) for k, v in node.items]
    if not any(k == key for k, _ in pairs):
        pairs.append((key, value))
    return replace(node, items=tuple((k, v) for k, v in pairs if v is not None))


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """The same node with `change` applied to each child; keys of mappings stay."""
    match node:
        case Sequence(_, items, args):
            return replace(node, items=tuple(map(change, items)), args=tuple(map(change, args)))
        case Mapping(_, pairs, attributes, args):
            changed = tuple((key, change(child)) for key, child in pairs)
            extra = None if attributes is None else change(attributes)
            return replace(node, items=changed, attributes=extra, args=tuple(map(change, args)))
        case Opaque(_, parts):
            return replace(node, parts=tuple((label, change(child)) for label, child in parts))
    return node


def map_tensors(node: Node, change: Callable[[str], str]) -> Node:
    """The same tree with `change` applied to the name of every tensor."""
    if isinstance(node, TensorRef):
        return TensorRef(change(node.name))
    node = map_children(node, lambda child: map_tensors(child, change))
    if isinstance(node, Mapping) and any(isinstance(key, TensorRef) for key, _ in node.items):
        keys = (TensorRef(change(key.name)) if isinstance(key, TensorRef) else key for key, _ in node.items)
        return replace(node, items=tuple((key, child) for key, (_, child) in zip(keys, node.items, strict=True)))
    return node


def rebased(node: Node, prefix: str) -> Node:
    """A subtree whose references (`Again`) are made relative to its own root.

    `prefix` is the old path of the subtree and a dot: `Again("model.a")` below `model.` becomes `Again("a")`.  A
    reference to an object outside the subtree is left out.
    """
    if isinstance(node, Again):
        inside = f"{node.path}.".startswith(prefix)
        if not inside:
            return stub(f"a reference to {node.path or 'the top'!r}, outside of the section")
        return Again(f"{node.path}.".removeprefix(prefix).removesuffix("."))
    return map_children(node, lambda child: rebased(child, prefix))


def remarked(node: Node, change: Callable[[int], int]) -> Node:
    """The same tree with `change` applied to the number of every object that several places refer to."""
    made = map_children(node, lambda child: remarked(child, change))
    return replace(made, mark=change(made.mark)) if isinstance(made, Marked) and made.mark else made


def without_lone_marks(node: Node) -> Node:
    """The same tree, in which objects of one place have no number: the other places were left out."""
    places = Counter(getattr(one, "mark", 0) for one in walk(node))
    return remarked(node, lambda mark: mark if places[mark] > 1 else 0)


def grafted(node: Node, name: str, first: int) -> Node:
    """A tree below a name, as a part of another: the numbers of its shared objects follow `first`."""
    if isinstance(node, Again):
        return Again(f"{name}.{node.path}".rstrip("."))
    made = map_children(node, lambda child: grafted(child, name, first))
    if isinstance(made, (Sequence, Mapping, Opaque)) and made.mark:
        return replace(made, mark=made.mark + first)
    return made


def swap(node: Node, swaps: Swaps) -> Node:
    """The same tree with some tensors replaced by others at the same place: {old name: new names}.

    In a mapping, a new key is the new name without the prefix that the old name has before its own key.  A new name
    with another prefix becomes a key at the top, where that is a mapping, so that readers find it there.  A tensor that
    is the whole tree becomes a mapping of the new tensors.
    """
    if isinstance(node, TensorRef) and swaps.get(node.name, (node.name,)) != (node.name,):
        return Mapping("dict", tuple((name, TensorRef(name)) for name in swaps[node.name]))
    if not isinstance(node, Mapping):
        return _swap(node, swaps, False)
    found = _swap(node, swaps, True)
    there = set(tensor_names(found))
    added = dict.fromkeys(name for old in tensor_names(node) for name in swaps.get(old, ()) if name not in there)
    assert isinstance(found, Mapping)
    return replace(found, items=(*found.items, *((name, TensorRef(name)) for name in added)))


def _swap(node: Node, swaps: Swaps, inside: bool) -> Node:
    """`swap`; with `inside`, names that belong elsewhere are left out of the result."""
    match node:
        case Sequence(_, items):
            found: list[Node] = []
            for item in items:
                if isinstance(item, TensorRef) and item.name in swaps:
                    found += [TensorRef(name) for name in swaps[item.name]]
                else:
                    found.append(_swap(item, swaps, inside))
            return replace(node, items=tuple(found))
        case Mapping(_, pairs, attributes):
            attributes = attributes and _swap(attributes, swaps, inside)
            return replace(node, items=tuple(_swap_pairs(pairs, swaps, inside)), attributes=attributes)
        case Opaque(_, parts):
            return replace(node, parts=tuple(_swap_pairs(parts, swaps, inside)))
    return node


def _swap_pairs(pairs: Iterable[tuple[Any, Node]], swaps: Swaps, inside: bool) -> Iterator[tuple[Any, Node]]:
    """The items of a mapping, or the parts of an object, for `_swap`."""
    for key, child in pairs:
        if isinstance(child, TensorRef) and child.name in swaps:
            before = child.name.removesuffix(word(key))
            stray = inside and before != child.name
            names = (n for n in swaps[child.name] if not stray or n.startswith(before))
            yield from ((name.removeprefix(before), TensorRef(name)) for name in names)
        else:
            yield key, _swap(child, swaps, inside)
