"""From the value of a pickle to names and a tree: which tensors are there, and where.

A name is the path joined by dots.  The attributes of an `nn.Module` that was pickled whole (`_parameters`, `_buffers`,
`_modules`) are left out of the path, so that its tensors have the names that its `state_dict` would give them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from typing import NamedTuple, TypeGuard

from paramtool.errors import UnsafeError
from paramtool.formats.pickle.numpy_values import DTYPE, NumpyArray, NumpyDtype, NumpyScalar
from paramtool.formats.pickle.values import INERT, MAPPINGS, MAX_VALUE_NBYTES, SEQUENCES, Global, Instance, PickledSpan
from paramtool.formats.torch.globals import LAYOUT, PickledTensor, StorageRef, array_tensor
from paramtool.lazy_dataclass import dataclass, frozen
from paramtool.model.checkpoint import Compound, escaped_name, unescaped_name
from paramtool.model.objects import (
    MAX_DEPTH,
    STREAM,
    Again,
    Array,
    Key,
    Leaf,
    Mapping,
    Node,
    Opaque,
    Pairs,
    Path,
    Scalar,
    Sequence,
    TensorRef,
    word,
)

MIN_PLACES = 100_000
MIN_TENSORS = 20_000
MIN_CHARACTERS = 8 << 20


@frozen
class Bounds:
    """How far the objects of a pickle may unfold.

    Containers that several places refer to stand at each of them, tensors with a name for each; a pickle refers in two
    bytes.  One that unfolds further than this repeats itself as no checkpoint does.
    """

    places: int
    """Values at all their places."""
    tensors: int
    """Tensors at all their places; one that torch wrote takes 120 bytes of a pickle, 22 of a deflated one."""
    characters: int
    """Of the names of tensors, keys, strings, bytes and names of classes, at all their places."""

    @classmethod
    def of(cls, pickle_nbytes: int) -> Bounds:
        """The bounds of pickles that have `pickle_nbytes` bytes in their file, deflated or not.

        >>> Bounds.of(200 << 20).tensors
        52428800
        """
        return cls(
            places=max(MIN_PLACES, 4 * pickle_nbytes),
            tensors=max(MIN_TENSORS, pickle_nbytes // 4),
            characters=max(MIN_CHARACTERS, 64 * pickle_nbytes),
        )

    def refuse(self, where: str, places: int, tensors: int, characters: int) -> None:
        """UnsafeError where a value unfolds further."""
        for number, most, what in (
            (places, self.places, "places"), (tensors, self.tensors, "tensors"),
            (characters, self.characters, "characters of names and strings"),
        ):  # fmt: skip
            if number > most:
                found = f"its objects unfold to more than {most:,} {what}"
                raise UnsafeError(f"{where}: {found}, with everything at each of its places; it is a bomb")


BARE = "tensor"
"""The name of a tensor that is the whole value of a file; one under the key "" is called just that."""
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")
_SEQUENCES = SEQUENCES | {"torch.Size"}
_CHANGING = MAPPINGS | {
    "builtins.set", "collections.deque", "builtins.bytearray", "builtins.object", "argparse.Namespace",
    "types.SimpleNamespace", STREAM,
}  # fmt: skip
_VALUES = (INERT - _CHANGING) | {"torch.Size", "torch.device", LAYOUT}
"""Classes of objects that never change: whether two places hold one of them or two equal ones makes no difference."""
_OF_PROCESS = frozenset(("_thread_id", "_hash", "_dim_group_names"))
"""Attributes of a DeviceMesh that are of the process that saved it (torch/distributed/device_mesh.py)."""


@dataclass(slots=True)
class Walk:
    """One walk over a value.  `tensors` has every tensor with its path, in order."""

    where: str
    bounds: Bounds
    shared: SharedIds
    names: Iterator[str] | None = None
    """Names to use instead of plain ones, in order; None on the first walk."""
    is_inner: bool = False
    """Whether the value is what a subclass of tensors was saved with."""
    tensors: list[tuple[Path, PickledTensor]] = field(default_factory=list)
    places: int = 0
    characters: int = 0
    _open: dict[int, Path] = field(default_factory=dict)
    _marks: dict[int, int] = field(default_factory=dict)
    _deepest: int = 0
    """The levels of the deepest node so far of the container that is walked."""
    _known: dict[int, tuple[Node, int, int, int]] = field(default_factory=dict)
    """Nodes that are the same at each of their places, with the places, characters and levels in them."""
    _again: int = 0
    """Nodes so far that are not: those that say at which place something is."""

    def node(self, value: object, path: Path) -> Node:
        """The node of a value, and of everything in it."""
        self._count(1, 0)
        self._check_depth(len(self._open), path)
        if isinstance(value, StorageRef):
            value = value.whole()
        if isinstance(value, PickledSpan):
            value = (
                value.value()
                if value.nbytes <= MAX_VALUE_NBYTES
                else Instance(f"{value.nbytes} bytes at byte {value.start}", (), False)
            )
        if isinstance(value, PickledTensor):
            ref = TensorRef(self._name(path, value))
            if self.is_inner and isinstance(value.value, Compound):
                facts = Leaf(repr(sorted(value.value.facts.items())))
                inside = self.node(value.wrapped, (*path, "state"))
                return Opaque(value.value.kind, (("data", ref), ("facts", facts), ("state", inside)))
            if value.state is None:
                return ref
            state = self.node(_attributes(value.state), (*path, "state"))
            return Opaque("torch.Tensor", (("data", ref), ("state", state)))
        if _is_scalar(value):
            if isinstance(value, (str, bytes)):
                self._count(0, len(value))
            return Leaf(value)
        if id(value) in self._open:
            self._again += 1
            self._count(0, sum(map(len, self._open[id(value)])))
            return Again(unescaped_name(self._open[id(value)]))
        if id(value) in self._known:
            node, places, characters, levels = self._known[id(value)]
            self._count(places, characters)
            self._check_depth(len(self._open) + levels, path)
            return node
        # The node of a container, and of everything in it
        before = self.places, self.characters, len(self.tensors), self._again
        around, self._deepest = self._deepest, len(self._open)
        self._open[id(value)] = path
        made = self._container(value, path)
        del self._open[id(value)]
        if id(value) in self.shared.changing and isinstance(made, (Sequence, Mapping, Opaque)):
            made = replace(made, mark=self._marks.setdefault(id(value), len(self._marks) + 1))
        if id(value) in self.shared.all and before[2:] == (len(self.tensors), self._again):
            levels = self._deepest - len(self._open)
            self._known[id(value)] = made, self.places - before[0], self.characters - before[1], levels
        self._deepest = max(around, self._deepest)
        return made

    def _check_depth(self, levels: int, path: Path) -> None:
        if levels > MAX_DEPTH:
            place = f"{unescaped_name(path)[:60]!r}..."
            raise UnsafeError(f"{self.where}: {place}: nested deeper than {MAX_DEPTH} levels")
        self._deepest = max(levels, self._deepest)

    def _count(self, places: int, characters: int) -> None:
        self.places += places
        self.characters += characters
        most = self.bounds
        if self.places > most.places or len(self.tensors) > most.tensors or self.characters > most.characters:
            most.refuse(self.where, self.places, len(self.tensors), self.characters)

    def _name(self, path: Path, tensor: PickledTensor) -> str:
        self.tensors.append((path, tensor))
        self._count(0, sum(map(len, path)) + len(path))
        return next(self.names) if self.names is not None else unescaped_name(path)

    def _container(self, value: object, path: Path) -> Node:
        match value:
            case dict():
                return Mapping("dict", self._pairs(value.items(), path))
            case list() | tuple():
                return Sequence(type(value).__name__, self._items(value, path))
            case NumpyArray():
                return self._array(value, path)
            case NumpyScalar():
                return self._scalar(value, path)
            case NumpyDtype():
                return self._dtype(value, path)
            case Global():
                self._count(0, len(value.path))
                return Opaque(value.path, ())
            case Instance():
                self._count(0, len(value.path))
                if value.path in MAPPINGS:
                    attributes = None if value.state is None else self.node(_attributes(value.state), path)
                    args = self._made_from(value, path)
                    return Mapping(value.path, self._pairs((value.mapping or {}).items(), path), attributes, args)
                if value.path in _SEQUENCES and value.state is None:
                    items = value.args if value.sequence is None else value.sequence
                    return Sequence(value.path, self._items(items, path), self._made_from(value, path))
                parts = tuple(self._instance_parts(value, path))
                # without parts it would be the class
                return Opaque(value.path, parts or (("args", Sequence("tuple", ())),))
        return Opaque(type(value).__name__, ())

    def _array(self, value: NumpyArray, path: Path) -> Node:
        """An array: its tensor where one can hold it, else its bytes; a subclass or an array of objects by its class.

        `_classes` writes these nodes.
        """
        if value.items is not None and value.stands_alone:
            return Sequence("list", self._items(value.items, path)) if value.shape else self.node(value.items[0], path)
        tensor = array_tensor(value)
        if tensor is not None and value.stands_alone:
            return TensorRef(self._name(path, tensor))
        if tensor is not None:
            parts: list[tuple[str, Node]] = [("data", TensorRef(self._name(path, tensor)))]
            if value.order == "F":
                parts.append(("order", Leaf("F")))
            return Opaque(f"{value.spelling}._reconstruct", tuple(parts))
        value.settle()
        if value.data is None:
            return Opaque(f"{value.cls} of {value.dtype.text}", ())
        self._count(0, len(value.data))
        data: tuple[str, Node] = ("data", value.array())
        kind = f"{value.spelling}._reconstruct" if value.is_plain else value.cls
        return Opaque(kind, (data, *self._unusual(value.dtype, path)))

    def _scalar(self, value: NumpyScalar, path: Path) -> Node:
        if value.data is None:
            return Opaque(f"numpy scalar of {value.dtype.text}", ())
        self._count(0, len(value.data))
        data = Array(value.dtype.text, (), "C", value.data)
        return Opaque(f"{value.spelling}.scalar", (("data", data), *self._unusual(value.dtype, path)))

    def _unusual(self, dtype: NumpyDtype, path: Path) -> tuple[tuple[str, Node], ...]:
        """The part of an array or scalar for a dtype that its text does not say all of."""
        return () if dtype.is_simple else (("dtype", self._dtype(dtype, (*path, "dtype"))),)

    def _dtype(self, value: NumpyDtype, path: Path) -> Node:
        if value.is_simple:
            return Opaque(DTYPE, (("text", Leaf(value.text)),))
        if value.holds_objects:
            return Opaque(f"numpy dtype of objects, {value.text}", ())
        args = self.node(value.args, (*path, "args"))
        return Opaque(DTYPE, (("args", args), ("state", self.node(value.state, (*path, "state")))))

    def _pairs(self, items: Iterable[tuple[object, object]], path: Path) -> Pairs:
        pairs = []
        for number, (key, child) in enumerate(items):
            part, kept = self._key(key, number, path)
            self._count(0, len(part))
            pairs.append((kept, self.node(child, (*path, part))))
        return tuple(pairs)

    def _key(self, key: object, number: int, path: Path) -> tuple[str, Key]:
        """A key as a part of names, and as it is kept.

        A tensor as a key (optimizer state of torch 0.x) is a tensor of its own, called by its place: `@0`.
        """
        if isinstance(key, PickledTensor):
            return f"@{number}", TensorRef(self._name((*path, f"@{number}"), key))
        if isinstance(key, str):
            return key, key
        if _is_scalar(key) or (isinstance(key, tuple) and all(map(_is_scalar, key))):
            return str(key), key
        node = self.node(key, (*path, f"@{number}"))
        kept = node if isinstance(node, (Sequence, Opaque)) else Opaque(type(key).__name__, ())
        return word(kept), kept

    def _items(self, items: Iterable[object], path: Path) -> tuple[Node, ...]:
        found = []
        for k, item in enumerate(items):  # a loop: a generator would take a frame of the stack for each level
            found.append(self.node(item, (*path, str(k))))
        return tuple(found)

    def _made_from(self, value: Instance, path: Path) -> tuple[Node, ...]:
        """Arguments of a container that are not its items: a factory, a greatest length."""
        if value.path == "collections.defaultdict":
            return self._items(value.args[:1], (*path, "args"))
        if value.path == "collections.deque":
            return self._items(value.args[1:], (*path, "args"))
        return ()

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
            state = {k: v for k, v in value.state.items() if not (self.is_inner and k in _OF_PROCESS)}
            # Attributes of an object; those of a module that hold its tensors add nothing to the path
            is_module = "_parameters" in state and "_modules" in state
            pairs: list[tuple[Key, Node]] = []
            for key, child in state.items():
                if is_module and key in _MODULE_PARTS:
                    pairs.append((str(key), self.node(child, path)))
                else:
                    pairs.extend(self._pairs([(key, child)], path))
            yield "state", Mapping("dict", tuple(pairs))
        elif value.state is not None:
            yield "state", self.node(value.state, path)


def _is_scalar(value: object) -> TypeGuard[Scalar]:
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes))


def _attributes(state: object) -> object:
    """What BUILD sets on a dict: torch's `{'_metadata': ...}`, or (None, {...}) for slots."""
    if isinstance(state, tuple) and len(state) == 2 and state[0] is None:
        return state[1]
    return state


class SharedIds(NamedTuple):
    """The ids of the objects that more than one place refers to."""

    changing: frozenset[int] = frozenset()
    """Those that could change."""
    all: frozenset[int] = frozenset()


def shared_ids(value: object) -> SharedIds:
    """What more than one place refers to; linear in the value's size."""
    seen: set[int] = set()
    again: set[int] = set()
    shared: set[int] = set()
    todo = [value]
    while todo:
        one = todo.pop()
        if not isinstance(one, (dict, list, tuple, Instance, NumpyArray, PickledTensor)):
            continue
        if isinstance(one, PickledTensor) and one.state is None:  # most of them
            continue
        if id(one) in seen:
            fixed = isinstance(one, (tuple, PickledTensor)) or (isinstance(one, Instance) and one.path in _VALUES)
            if not fixed and not (isinstance(one, NumpyArray) and one.element):
                shared.add(id(one))
            elif fixed and id(one) not in again:  # what is inside it has several places, too
                again.add(id(one))
                todo.extend(_inside(one))
            continue
        seen.add(id(one))
        todo.extend(_inside(one))
    return SharedIds(frozenset(shared), frozenset(shared | again))


def _inside(value: object) -> Iterator[object]:
    """What a container refers to, keys included."""
    match value:
        case dict():
            yield from value.keys()
            yield from value.values()
        case list() | tuple():
            yield from value
        case PickledTensor():
            yield value.state
        case Instance():
            yield from value.args
            yield from value.kwargs.values()
            yield from (value.mapping, value.sequence, value.state)


def walk(value: object, where: str, pickle_nbytes: int) -> tuple[Node, list[tuple[str, PickledTensor]], bool]:
    """(tree, [(name, tensor)], whether names had to be escaped) of a value.

    Plain names are used where they are all different, and escaped ones for those that are not.  `pickle_nbytes`, what
    the pickles have in their file, bounds how far the value may unfold: UnsafeError.
    """
    bounds = Bounds.of(pickle_nbytes)
    shared = shared_ids(value)
    first = Walk(where, bounds, shared)
    tree = first.node(value, ())
    names, escaped = names_of([path for path, _ in first.tensors])
    if escaped or BARE in names:
        tree = Walk(where, bounds, shared, iter(names)).node(value, ())
    return tree, [(name, tensor) for name, (_, tensor) in zip(names, first.tensors, strict=True)], escaped


def states_of(
    named: Iterable[tuple[str, PickledTensor]], where: str, pickle_nbytes: int
) -> dict[str, tuple[Node, dict[str, PickledTensor]]]:
    """{name: (what a subclass of tensors was saved with, the tensors in it by their labels)}; UnsafeError as `walk`."""
    wrapped = {name: tensor.wrapped for name, tensor in named if isinstance(tensor.value, Compound) and tensor.wrapped}
    inner = Walk(where, Bounds.of(pickle_nbytes), shared_ids([*wrapped.values()]), is_inner=True)
    found: dict[str, tuple[Node, dict[str, PickledTensor]]] = {}
    for name, value in wrapped.items():
        start = len(inner.tensors)
        node = inner.node(value, ())
        found[name] = node, {unescaped_name(path): tensor for path, tensor in inner.tensors[start:]}
    return found


def names_of(paths: list[Path]) -> tuple[list[str], bool]:
    """The names of tensors that stand at these places, and whether some had to be escaped.

    >>> names_of([("a", "b"), ("c",)]), names_of([("a.b",), ("a", "b")])
    ((['a.b', 'c'], False), (['a\\\\.b', 'a.b'], True))
    """
    plain = [unescaped_name(path) if path else BARE for path in paths]
    collide = len(set(plain)) < len(plain)
    return (list(_distinct(plain, paths)) if collide else plain), collide


def _distinct(plain: list[str], paths: list[Path]) -> Iterator[str]:
    """Different names: escaped where plain ones collide, numbered where even these do (keys 0 and '0')."""
    counts = Counter(plain)
    taken = {name for name, count in counts.items() if count == 1}
    numbers: dict[str, int] = {}
    for name, path in zip(plain, paths, strict=True):
        if counts[name] > 1:
            name = base = escaped_name(path) or name
            number = numbers.get(base, 1)
            while name in taken:
                number += 1
                name = f"{base}\\{number}"
            numbers[base] = number
            taken.add(name)
        yield name
