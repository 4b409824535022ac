"""Trees in which names say where tensors are: `a/b` is at the key `a/b`, or at `b` in the dict at `a`.

flax and HDF5 nest their tensors at `/`, and make names of the keys; torch makes them of keys and dots.  So a tree of
one is not that of the other, though names, tensors and all other objects are the same.  `flat` is the form of both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from paramtool.model.objects import Key, Mapping, Node, Path, TensorRef, word

SEPARATOR = "/"


def leaves(node: Node, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """[(path, name)] of the tensors in dicts."""
    if isinstance(node, TensorRef):
        yield path, node.name
    elif isinstance(node, Mapping):
        for key, child in node.items:
            yield from leaves(child, (*path, word(key)))


def flat(tree: Node, but: Collection[str] = ()) -> Node:
    """A tree whose tensors are at the top, under their names, where the keys above them are text and say these names.

    Dicts that held nothing else are gone.  The tensors `but` stay, and so do all where a name is taken at the top.

    >>> tree = Mapping("dict", (("a", Mapping("dict", (("b", TensorRef("a/b")), ("n", TensorRef("a.n"))))),))
    >>> [*leaves(tree)], [*leaves(flat(tree))]
    ([(('a', 'b'), 'a/b'), (('a', 'n'), 'a.n')], [(('a/b',), 'a/b'), (('a', 'n'), 'a.n')])
    """
    if not isinstance(tree, Mapping):
        return tree
    items: list[tuple[Key, Node]] = []

    def kept(node: Node, path: Path) -> Node | None:
        if isinstance(node, TensorRef) and len(path) > 1 and SEPARATOR.join(path) == node.name not in but:
            items.append((node.name, node))
            return None
        if not isinstance(node, Mapping) or node.kind != "dict" or not node.items:
            return node
        found = tuple(
            (key, left)
            for key, child in node.items
            if (left := kept(child, (*path, key)) if isinstance(key, str) else child) is not None
        )
        return replace(node, items=found) if found or node.attributes is not None else None

    for key, child in tree.items:
        left = kept(child, (key,)) if isinstance(key, str) else child
        if left is not None:
            items.append((key, left))
    return replace(tree, items=tuple(items)) if len({key for key, _ in items}) == len(items) else tree


def nested(tree: Node, but: Collection[str] = ()) -> Node | None:
    """The same tree with the dicts that names say, as flax has them; None where something else is at a key.

    >>> [*leaves(nested(Mapping("dict", (("a/b", TensorRef("a/b")),))))]
    [(('a', 'b'), 'a/b')]
    """
    but = {*but, *(name for path, name in leaves(tree) if path == tuple(name.split(SEPARATOR)))}
    tree = flat(tree, but)
    if not isinstance(tree, Mapping):
        return tree
    moved = {key for key, child in tree.items if child == TensorRef(str(key)) and SEPARATOR in str(key)}.difference(but)
    made: _Dicts = {key: child for key, child in tree.items if key not in moved}
    order = dict.fromkeys(str(key).partition(SEPARATOR)[0] if key in moved else key for key, _ in tree.items)
    for name in (key for key, _ in tree.items if key in moved):
        *above, last = str(name).split(SEPARATOR)
        place = made
        for key in above:
            inner = place.setdefault(key, {})
            if isinstance(inner, Mapping) and inner.kind == "dict":
                inner = place[key] = dict(inner.items)
            if not isinstance(inner, dict):
                return None
            place = inner
        if last in place:
            return None
        place[last] = TensorRef(str(name))
    found = _frozen({key: made[key] for key in order})
    return replace(found, kind=tree.kind, attributes=tree.attributes, args=tree.args, mark=tree.mark)


_Dicts = dict[Key, "Node | _Dicts"]


def _frozen(made: _Dicts) -> Mapping:
    items = ((key, _frozen(child) if isinstance(child, dict) else child) for key, child in made.items())
    return Mapping("dict", tuple(items))
