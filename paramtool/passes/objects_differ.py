"""What differs between the objects of two checkpoints: values, nesting, and which places refer to one object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container
from dataclasses import field, replace
from struct import pack

from paramtool.errors import plural
from paramtool.grouping import omit
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import (
    EMPTY,
    LEFT_OUT,
    Again,
    Array,
    Key,
    Leaf,
    Mapping,
    Node,
    Opaque,
    Scalar,
    Sequence,
    TensorRef,
    complex_number,
    content_of,
    map_children,
    remarked,
    tensor_names,
    walk,
    without_lone_marks,
    word,
)

TOP = "at the top"
"""What messages call the object that is not below a key."""
SAME = {
    "numpy.core.": "numpy._core.",  # NumPy 1 and 2
    "pathlib._local.": "pathlib.",  # Python 3.13 and others
    "builtins.xrange": "builtins.range",  # pickle protocol 2 and later
    "builtins.long": "builtins.int",  # in records of versions 1 and 2
    "builtins.unicode": "builtins.str",
}
"""Two spellings of one class, of which the second is used."""
MAX_SHOWN = 60


@dataclass(slots=True)
class Comparison:
    """Two trees side by side.  `run` fills `differences`, and `notes` with objects that a record had no room for."""

    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _pairs: dict[int, int] = field(default_factory=dict)
    _back: dict[int, int] = field(default_factory=dict)
    _places: dict[int, str] = field(default_factory=dict)

    def run(self, found: Node, expected: Node) -> Comparison:
        """Compare the trees; a mark that has only one place in its tree is ignored."""
        self._node(without_lone_marks(found), without_lone_marks(expected), "")
        return self

    def _differ(self, path: str, what: str) -> None:
        self.differences.append(f"object {path or TOP!r}: {what}")

    def _node(self, found: Node, expected: Node, path: str) -> None:
        if isinstance(found, Opaque) and found.path == LEFT_OUT:
            if found != expected:
                self.notes.append(f"object {path!r} is not in the output, whose record had no room for it")
            return
        if isinstance(expected, Opaque) and expected.path == LEFT_OUT:
            self.notes.append(f"object {path!r} is not in the source, whose record had no room for it")
            return
        for one, other, said in ((found, expected, ("output", "source")), (expected, found, ("source", "output"))):
            if isinstance(one, Leaf) and one == content_of(other):
                self.notes.append(f"object {path!r} is bytes in the {said[0]}, and an io.BytesIO in the {said[1]}")
                return
        if isinstance(found, Array) != isinstance(expected, Array):
            found, expected = _as_object(found), _as_object(expected)
        found, expected = spelled(found), spelled(expected)
        if type(found) is not type(expected):
            self._differ(path, f"is {_spoken(found)}; the source has {_spoken(expected)}")
            return
        match found, expected:
            case Leaf(mine), Leaf(theirs):
                if not _same(mine, theirs):
                    self._differ(path, f"is {_shown(mine)}; the source has {_shown(theirs)}")
            case TensorRef(mine), TensorRef(theirs):
                if mine != theirs:
                    self._differ(path, f"is the tensor {mine!r}; the source has {theirs!r}")
            case Array(), Array():
                if found != expected:
                    self._differ(path, f"is {_spoken(found)}; the source has another value there")
            case Again(mine), Again(theirs):
                if mine != theirs:
                    there = mine or "the top"
                    self._differ(
                        path, f"refers to the object at {there!r}; the source refers to {theirs or 'the top'!r}"
                    )
            case Sequence(), Sequence():
                self._sequence(found, expected, path)
            case Mapping(), Mapping():
                self._mapping(found, expected, path)
            case Opaque(), Opaque():
                self._opaque(found, expected, path)

    def _marks(self, found: int, expected: int, path: str) -> None:
        """Check that places refer to the same object in both trees, or in neither."""
        if not found and not expected:
            return
        first = self._places.setdefault(expected or -found, path)
        if not found or not expected:
            if expected:
                self._pairs.setdefault(expected, 0)  # the other places must not share it either
            if first != path or not expected:
                where = "the source" if expected else "the output"
                self._differ(path, f"is the same object as at other places in {where} only")
            return
        if self._pairs.setdefault(expected, found) != found or self._back.setdefault(found, expected) != expected:
            self._differ(path, f"is the same object as {first!r} in only one of output and source")

    def _sequence(self, found: Sequence, expected: Sequence, path: str) -> None:
        self._marks(found.mark, expected.mark, path)
        if found.kind != expected.kind:
            self._differ(path, f"is a {found.kind}; the source has a {expected.kind}")
            return
        if len(found.items) != len(expected.items):
            self._differ(path, f"has {len(found.items)} items; the source has {len(expected.items)}")
            return
        if found.kind in ("builtins.set", "builtins.frozenset"):
            if Counter(map(_text, found.items)) != Counter(map(_text, expected.items)):
                self._differ(path, "has members that differ from the source")
            return
        self._all(found.args, expected.args, f"{path}.args")
        for k, (mine, theirs) in enumerate(zip(found.items, expected.items, strict=True)):
            self._node(mine, theirs, _below(path, str(k)))

    def _all(self, found: tuple[Node, ...], expected: tuple[Node, ...], path: str) -> None:
        if len(found) != len(expected):
            self._differ(path, f"has {plural(len(found), 'argument')}; the source has {len(expected)}")
            return
        for mine, theirs in zip(found, expected, strict=True):
            self._node(mine, theirs, path)

    def _mapping(self, found: Mapping, expected: Mapping, path: str) -> None:
        self._marks(found.mark, expected.mark, path)
        if found.kind != expected.kind:
            self._differ(path, f"is a {found.kind}; the source has a {expected.kind}")
            return
        self._all(found.args, expected.args, f"{path}.args")
        mine, theirs = ({identity(key): (key, child) for key, child in node.items} for node in (found, expected))
        for known, (key, child) in theirs.items():
            if known in mine:
                self._node(mine[known][1], child, _below(path, key_word(key)))
            else:
                self._differ(_below(path, key_word(key)), f"is missing; the source has {_spoken(child)}")
        for known, (key, child) in mine.items():
            if known not in theirs:
                self._differ(_below(path, key_word(key)), f"is {_spoken(child)}; the source does not have it")
        if (found.attributes is None) != (expected.attributes is None):
            where = "in the source" if found.attributes is None else "in the output"
            self._differ(path, f"has attributes {where} only")
        elif found.attributes is not None and expected.attributes is not None:
            self._node(found.attributes, expected.attributes, f"{path} (attributes)")

    def _opaque(self, found: Opaque, expected: Opaque, path: str) -> None:
        self._marks(found.mark, expected.mark, path)
        if found.path != expected.path:
            self._differ(path, f"is {_spoken(found)}; the source has {_spoken(expected)}")
            return
        mine, theirs = dict(found.parts), dict(expected.parts)
        for label in {**theirs, **mine}:
            if label not in mine or label not in theirs:
                self._differ(path, f"has {label} in {'the output' if label in mine else 'the source'} only")
            else:
                self._node(mine[label], theirs[label], path if label != "args" else f"{path}.args")


def without(node: Node, names: Collection[str]) -> Node:
    """A tree without the tensors of some names; an empty tree if it is just one of these tensors."""

    def is_kept(child: Node) -> bool:
        return not (isinstance(child, TensorRef) and child.name in names)

    if not is_kept(node):
        return EMPTY
    node = map_children(node, lambda child: without(child, names) if is_kept(child) else child)
    if isinstance(node, Mapping):
        return replace(node, items=tuple(pair for pair in node.items if is_kept(pair[1])))
    if isinstance(node, Opaque):
        return replace(node, parts=tuple(part for part in node.parts if is_kept(part[1])))
    return replace(node, items=tuple(filter(is_kept, node.items))) if isinstance(node, Sequence) else node


def lacking(checkpoint: Checkpoint, names: Collection[str]) -> Checkpoint:
    """A checkpoint without some of its tensors."""
    if not names:
        return checkpoint
    entries = omit(checkpoint.entries, names)
    return replace(checkpoint, entries=entries, objects=without(checkpoint.objects, names))


def bare(node: Node) -> Node:
    """A tree without its tensors, and without the containers that hold nothing else."""
    changed = map_children(node, bare)
    if isinstance(node, Mapping) and isinstance(changed, Mapping):
        kept = zip(changed.items, node.items, strict=True)
        return replace(changed, items=tuple(pair for pair, old in kept if not _held_tensors_only(old[1], pair[1])))
    if isinstance(node, Sequence) and isinstance(changed, Sequence):
        both = zip(changed.items, node.items, strict=True)
        return replace(changed, items=tuple(one for one, old in both if not _held_tensors_only(old, one)))
    return changed


def _held_tensors_only(node: Node, changed: Node) -> bool:
    """Whether a node is a tensor, or a container of which nothing is left without its tensors."""
    is_empty = isinstance(changed, (Mapping, Sequence)) and not changed.items and not changed.args
    return isinstance(node, TensorRef) or (is_empty and any(tensor_names(node)))


def marks(node: Node) -> Counter[int]:
    """{mark of an object that stands at several places: how many}"""
    return Counter(one.mark for one in walk(node) if isinstance(one, (Sequence, Mapping, Opaque)) and one.mark)


def unmarked(node: Node, marks: Container[int]) -> Node:
    """A tree in which nothing says that objects with these marks are one."""
    return remarked(node, lambda mark: 0 if mark in marks else mark)


def _text(node: Node) -> str:
    """A member of a set, or a key, as a string that is the same for equal members: in one spelling, without marks."""
    return repr(_plain(node))


def _plain(node: Node) -> Node:
    node = spelled(map_children(node, _plain))
    return replace(node, mark=0) if isinstance(node, (Sequence, Mapping, Opaque)) else node


def spelled(node: Node) -> Node:
    """An object with its class in the one spelling that is used; a complex number as pickles store it."""
    if isinstance(node, Leaf) and isinstance(node.value, complex):
        return complex_number(node.value)
    if not isinstance(node, Opaque):
        return node
    for old, new in SAME.items():
        if node.path.startswith(old):
            return replace(node, path=new + node.path.removeprefix(old))
    return node


def _as_object(node: Node) -> Node:
    """An array as records of version 3 have it; versions 1 and 2 do not tell a scalar from an array without axes."""
    if not isinstance(node, Array):
        return node
    kind = "numpy._core.multiarray." + ("_reconstruct" if node.shape else "scalar")
    return Opaque(kind, (("data", node),))


def _same(a: Scalar, b: Scalar) -> bool:
    """Equality by type and bits: 1 is not True, and a NaN is itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and isinstance(b, float):
        return pack("<d", a) == pack("<d", b) or (a != a and b != b)
    if isinstance(a, complex) and isinstance(b, complex):
        return _same(a.real, b.real) and _same(a.imag, b.imag)
    return a == b


def identity(key: Key) -> object:
    """A key with its type, which Python's equality ignores; tensors are compared by name."""
    if isinstance(key, tuple):
        return tuple(map(identity, key))
    if isinstance(key, (Opaque, Sequence)):
        return _text(key)
    return (type(key).__name__, "nan" if key != key else key)


def key_word(key: Key) -> str:
    return key.name if isinstance(key, TensorRef) else word(key)


def _below(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part


def _shown(value: Scalar) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _spoken(node: Node) -> str:
    """What a node is, for people."""
    match node:
        case Leaf(value):
            return _shown(value)
        case TensorRef(name):
            return f"the tensor {name!r}"
        case Sequence(kind) | Mapping(kind):
            return f"a {kind}"
        case Opaque(path):
            return f"an object of {path}"
        case Array(dtype, shape):
            return f"array {dtype} {list(shape)}"
    return "a container that contains itself"
