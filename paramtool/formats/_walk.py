"""From the value of a pickle to names and a tree: which tensors are there, and where.

A name is the path joined by dots.  The attributes of an `nn.Module` that was pickled whole (`_parameters`, `_buffers`,
`_modules`) are left out of the path, so that its tensors have the names that its `state_dict` would give them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from paramtool.errors import UnsafeError
from paramtool.formats._pickle_values import MAPPINGS, SEQUENCES, Global, Instance
from paramtool.formats._torch_values import NumpyArray, NumpyDtype, StorageRef, Tensor
from paramtool.model.checkpoint import escaped_name, unescaped_name
from paramtool.model.objects import (
    MAX_DEPTH,
    Again,
    Key,
    Leaf,
    Mapping,
    Node,
    Opaque,
    Scalar,
    Sequence,
    TensorRef,
)

MIN_PLACES = 100_000
PLACES_PER_BYTE = 4
"""Containers that stand in several places are walked in each.  A pickle says a place in a few bytes; one that unfolds
to more places than this allows repeats itself as no checkpoint does."""
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")
_SEQUENCES = SEQUENCES | {"torch.Size"}
Path = tuple[str, ...]


@dataclass
class Walk:
    """One walk over a value.  `tensors` has every tensor with its path, in order."""

    where: str
    max_places: int
    names: Iterator[str] | None = None
    """Names to use instead of plain ones, in order; None on the first walk."""
    tensors: list[tuple[Path, Tensor]] = field(default_factory=list)
    places: int = 0
    _open: dict[int, Path] = field(default_factory=dict)

    def node(self, value: object, path: Path) -> Node:
        """The node of a value, and of everything in it."""
        self._count(path)
        if isinstance(value, StorageRef):
            value = value.whole()
        if isinstance(value, Tensor):
            ref = TensorRef(self._name(path, value))
            if value.state is None:
                return ref
            state = self.node(_attributes(value.state), (*path, "state"))
            return Opaque("torch.Tensor", (("data", ref), ("state", state)))
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return Leaf(value)
        if id(value) in self._open:
            return Again(unescaped_name(self._open[id(value)]))
        self._open[id(value)] = path
        made = self._container(value, path)
        del self._open[id(value)]
        return made

    def _count(self, path: Path) -> None:
        self.places += 1
        if self.places > self.max_places:
            raise UnsafeError(f"{self.where}: its objects unfold to more than {self.max_places:,} places; it is a bomb")
        if len(self._open) > MAX_DEPTH:
            raise UnsafeError(f"{self.where}: {unescaped_name(path)[:60]!r}...: nested deeper than {MAX_DEPTH} levels")

    def _name(self, path: Path, tensor: Tensor) -> str:
        self.tensors.append((path, tensor))
        return next(self.names) if self.names is not None else unescaped_name(path)

    def _container(self, value: object, path: Path) -> Node:
        match value:
            case dict():
                return Mapping("dict", self._pairs(value.items(), path))
            case list() | tuple():
                return Sequence(type(value).__name__, self._items(value, path))
            case NumpyArray():
                return value.array() if value.data is not None else Opaque(f"array of {value.dtype}", ())
            case NumpyDtype():
                return Opaque("numpy.dtype", (("text", Leaf(value.text)),))
            case Global():
                return Opaque(value.path, ())
            case Instance():
                return self._instance(value, path)
        return Opaque(type(value).__name__, ())

    def _pairs(self, items: Iterable[tuple[object, object]], path: Path) -> tuple[tuple[Key, Node], ...]:
        pairs = []
        for number, (key, child) in enumerate(items):
            word, kept = self._key(key, number, path)
            pairs.append((kept, self.node(child, (*path, word))))
        return tuple(pairs)

    def _key(self, key: object, number: int, path: Path) -> tuple[str, Key]:
        """A key as a part of names, and as it is kept.

        A tensor as a key (optimizer state of torch 0.x) is a tensor of its own, called by its place: `@0`.
        """
        if isinstance(key, Tensor):
            return f"@{number}", TensorRef(self._name((*path, f"@{number}"), key))
        if key is None or isinstance(key, (bool, int, float, complex, str, bytes)):
            return (key if isinstance(key, str) else str(key)), key
        if isinstance(key, tuple):
            return str(tuple(map(_plain, key))), tuple(map(_plain, key))
        return str(_plain(key)), _plain(key)

    def _items(self, items: Iterable[object], path: Path) -> tuple[Node, ...]:
        return tuple(self.node(item, (*path, str(k))) for k, item in enumerate(items))

    def _instance(self, value: Instance, path: Path) -> Node:
        if value.path in MAPPINGS:
            attributes = None if value.state is None else self.node(_attributes(value.state), path)
            return Mapping(value.path, self._pairs((value.mapping or {}).items(), path), attributes)
        if value.path in _SEQUENCES and value.state is None:
            return Sequence(value.path, self._items(value.sequence or value.args, path))
        return Opaque(value.path, tuple(self._instance_parts(value, path)))

    def _instance_parts(self, value: Instance, path: Path) -> Iterator[tuple[str, Node]]:
        if value.args:
            yield "args", Sequence("tuple", self._items(value.args, (*path, "args")))
        if value.kwargs:
            yield "kwargs", Mapping("dict", self._pairs(value.kwargs.items(), (*path, "kwargs")))
        if value.mapping:
            yield "items", Mapping("dict", self._pairs(value.mapping.items(), path))
        if value.sequence:
            yield "items", Sequence("list", self._items(value.sequence, path))
        if isinstance(value.state, dict):
            yield "state", Mapping("dict", self._state_pairs(value.state, path))
        elif value.state is not None:
            yield "state", self.node(value.state, path)

    def _state_pairs(self, state: dict[object, object], path: Path) -> tuple[tuple[Key, Node], ...]:
        """Attributes of an object; those of a module that hold its tensors add nothing to the path."""
        is_module = "_parameters" in state and "_modules" in state
        pairs: list[tuple[Key, Node]] = []
        for key, child in state.items():
            if is_module and key in _MODULE_PARTS:
                pairs.append((str(key), self.node(child, path)))
            else:
                pairs.extend(self._pairs([(key, child)], path))
        return tuple(pairs)


def _plain(key: object) -> Scalar:
    """A key that is no plain value, by what can be said of it."""
    if key is None or isinstance(key, (bool, int, float, complex, str, bytes)):
        return key
    return f"<{key.path}>" if isinstance(key, (Global, Instance)) else f"<{type(key).__name__}>"


def _attributes(state: object) -> object:
    """What BUILD sets on a dict: torch's `{'_metadata': ...}`, or (None, {...}) for slots."""
    if isinstance(state, tuple) and len(state) == 2 and state[0] is None:
        return state[1]
    return state


def walk(value: object, where: str, pickle_nbytes: int) -> tuple[Node, list[tuple[str, Tensor]], bool]:
    """(tree, [(name, tensor)], whether names had to be escaped) of a value.

    Plain names are used where they are all different, and escaped ones for those that are not.  `pickle_nbytes` bounds
    how far the value may unfold.
    """
    most = max(MIN_PLACES, PLACES_PER_BYTE * pickle_nbytes)
    first = Walk(where, most)
    tree = first.node(value, ())
    names, escaped = names_of([path for path, _ in first.tensors])
    if names != [unescaped_name(path) for path, _ in first.tensors]:
        tree = Walk(where, most, iter(names)).node(value, ())
    return tree, [(name, tensor) for name, (_, tensor) in zip(names, first.tensors, strict=True)], escaped


def names_of(paths: list[Path]) -> tuple[list[str], bool]:
    """The names of tensors that stand at these places, and whether some had to be escaped.

    >>> names_of([("a", "b"), ("c",)]), names_of([("a.b",), ("a", "b")])
    ((['a.b', 'c'], False), (['a\\\\.b', 'a.b'], True))
    """
    plain = [unescaped_name(path) or "tensor" for path in paths]
    collide = len(set(plain)) < len(plain)
    return (list(_distinct(plain, paths)) if collide else plain), collide


def _distinct(plain: list[str], paths: list[Path]) -> Iterator[str]:
    """Different names: escaped where plain ones collide, numbered where even these do (keys 0 and '0')."""
    counts = Counter(plain)
    taken = {name for name, count in counts.items() if count == 1}
    for name, path in zip(plain, paths, strict=True):
        if counts[name] > 1:
            name = base = escaped_name(path) or name
            number = 1
            while name in taken:
                number += 1
                name = f"{base}\\{number}"
            taken.add(name)
        yield name
