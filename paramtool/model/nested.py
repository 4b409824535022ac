"""Trees of dicts in which every tensor is at the keys that its name says, as flax's files have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paramtool.model.objects import EMPTY, Mapping, Node, TensorRef, word

SEPARATOR = "/"
Path = tuple[str, ...]


def leaves(node: Node, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """[(path, name)] of the tensors in dicts."""
    if isinstance(node, TensorRef):
        yield path, node.name
    elif isinstance(node, Mapping):
        for key, child in node.items:
            yield from leaves(child, (*path, word(key)))


def nested(before: Node, after: Node) -> Node:
    """A tree whose new tensors are at the keys that their names say, where all tensors of the tree before it are.

    `objects.swap` makes one key of what follows the names that two tensors have in common.

    >>> old = Mapping("dict", (("a", Mapping("dict", (("b", TensorRef("a/b")),))),))
    >>> new = Mapping("dict", (("a", Mapping("dict", (("c/d", TensorRef("a/c/d")),))),))
    >>> [*leaves(new)], [*leaves(nested(old, new))]
    ([(('a', 'c/d'), 'a/c/d')], [(('a', 'c', 'd'), 'a/c/d')])
    """
    old = {name: path for path, name in leaves(before)}
    if not old or any(path != tuple(name.split(SEPARATOR)) for name, path in old.items()):
        return after
    for path, name in [*leaves(after)]:
        place = tuple(name.split(SEPARATOR))
        if name not in old and path != place and SEPARATOR.join(path) == name:
            after = _inserted(_removed(after, path), place, TensorRef(name))
    return after


def _removed(node: Node, path: Path) -> Node:
    assert isinstance(node, Mapping)
    if len(path) == 1:
        return replace(node, items=tuple(pair for pair in node.items if word(pair[0]) != path[0]))
    items = ((key, _removed(child, path[1:]) if word(key) == path[0] else child) for key, child in node.items)
    return replace(node, items=tuple(items))


def _inserted(node: Node, path: Path, new: Node) -> Mapping:
    """The same dict with one more value, in the dict at its path where there is one."""
    assert isinstance(node, Mapping)
    if len(path) == 1:
        return replace(node, items=(*node.items, (path[0], new)))
    items = dict(node.items)
    inner = items.get(path[0])
    items[path[0]] = _inserted(inner if isinstance(inner, Mapping) else EMPTY, path[1:], new)
    return replace(node, items=tuple(items.items()))
