"""The tree of objects as a torch file holds it: what `torch.load(weights_only=True)` takes, the rest named.

Most of a training checkpoint is plain and stays as it is.  NumPy's arrays and objects of classes that torch does not
take by default are left out; a tensor never is: those inside a foreign object come into an OrderedDict in its place.
Names are places in the tree, so the tree that is written must give every name back; where it cannot, the tensors are
written flat, each under its name.

What torch takes: torch/_weights_only_unpickler.py, `_get_allowed_globals` (2.13).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from paramtool.formats._pickle_write import MAX_INT_BITS
from paramtool.formats._tree import LEFT_OUT
from paramtool.formats._walk import Path, names_of
from paramtool.model.checkpoint import unescaped_name
from paramtool.model.objects import (
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
    tensor_names,
)
from paramtool.model.plan import Plan

MAX_KEY_BITS = 63
"""Our own reader takes no larger numbers as keys."""
ORDERED = "collections.OrderedDict"
CALLS = {"builtins.complex", "builtins.bytearray", "torch.device"}
"""Objects that their arguments make, and that torch takes."""
ATTRIBUTED = "torch.Tensor"
"""A tensor with Python attributes."""
_DICTS = {"dict", ORDERED, "collections.Counter"}
_SEQUENCES = {"list", "tuple", "torch.Size", "builtins.set"}
_MEMBERS = {"torch.Size": (Leaf,), "builtins.set": (Leaf, TensorRef)}
"""What rows of some kinds are made of."""
_WRITTEN_AS = {"collections.defaultdict": "dict", "collections.deque": "list", "builtins.frozenset": "builtins.set"}
"""Kinds that torch does not take, and what holds the same items."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a torch file holds of a plan's tree."""

    tree: Node
    left_out: tuple[str, ...]
    """What it does not hold, for people."""


def held(plan: Plan, dtypes: Collection[str]) -> Held:
    """The tree for a plan, with just the plan's names in it; `dtypes` are torch's words for dtypes."""
    pruning = _Pruning(frozenset(plan.order), frozenset(dtypes))
    kept = pruning.node(plan.objects, ())
    tree = _with_all(kept, plan.order)
    if _gives(tree, plan.order):
        return Held(tree, tuple(pruning.left_out))
    flat = _flat(plan.order)
    nesting = isinstance(kept, Mapping) and bool(kept.items)
    why = "the nesting of the checkpoint, because names in it collide: tensors are written flat, under their names"
    return Held(flat, (*pruning.left_out, *([why] if nesting else [])))


def _with_all(kept: Node | None, order: Iterable[str]) -> Node:
    """A tree that has every name: those that stand nowhere in it come to the top, under their names."""
    there = set(tensor_names(kept)) if kept is not None else set()
    missing = tuple((name, TensorRef(name)) for name in order if name not in there)
    if kept is None or (missing and not isinstance(kept, Mapping)) or not there:
        rest = kept.items if isinstance(kept, Mapping) else ()
        return _flat(order, rest)
    return replace(kept, items=(*kept.items, *missing)) if isinstance(kept, Mapping) and missing else kept


def _flat(order: Iterable[str], rest: tuple[tuple[Key, Node], ...] = ()) -> Node:
    return Mapping(ORDERED, (*((name, TensorRef(name)) for name in order), *rest))


def _gives(tree: Node, order: Iterable[str]) -> bool:
    """Whether a reader of the tree finds just these names."""
    placed = list(_places(tree, ()))
    names = [name for _, name in placed]
    return names_of([path for path, _ in placed])[0] == names and sorted(names) == sorted(order)


def _places(node: Node, path: Path) -> Iterator[tuple[Path, str]]:
    """Every tensor with the place where a reader finds it, in the order in which `_walk` meets them."""
    match node:
        case TensorRef(name):
            yield path, name
        case Sequence(_, items):
            for k, item in enumerate(items):
                yield from _places(item, (*path, str(k)))
        case Mapping(_, pairs, attributes):
            if attributes is not None:
                yield from _places(attributes, path)
            for k, (key, child) in enumerate(pairs):
                word = f"@{k}" if isinstance(key, TensorRef) else str(key)
                if isinstance(key, TensorRef):
                    yield (*path, word), key.name
                yield from _places(child, (*path, word))
        case Opaque(kind, parts) if kind == ATTRIBUTED:
            for label, child in parts:
                yield from _places(child, path if label == "data" else (*path, label))


@dataclass(slots=True)
class _Pruning:
    """One walk that leaves out what torch does not take."""

    names: frozenset[str]
    dtypes: frozenset[str]
    left_out: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    """The places of the lists and dicts around; a container may hold one of these again."""

    def node(self, node: Node, path: Path) -> Node | None:
        """What is kept of a node; None where nothing is."""
        match node:
            case Leaf(value):
                return node if self._fits(value, path) else None
            case TensorRef(name):
                return node if name in self.names else None
            case Array(dtype, shape):
                self._say(path, f"NumPy array {dtype} {list(shape)}, which torch.load(weights_only=True) refuses")
            case Again(place):
                if place in self.open:
                    return node
                self._say(path, f"the object of {place!r} once more")
            case Sequence():
                return self._sequence(node, path)
            case Mapping():
                return self._mapping(node, path)
            case Opaque():
                return self._opaque(node, path)
        return None

    def _say(self, path: Path, what: str) -> None:
        self.left_out.append(f"{unescaped_name(path) or 'the top'!r}: {what}")

    def _fits(self, value: Scalar, path: Path) -> bool:
        if type(value) is int and value.bit_length() > MAX_INT_BITS:
            self._say(path, f"a number of {value.bit_length()} bits")
            return False
        return True

    def _kind(self, kind: str, known: Collection[str], otherwise: str, path: Path) -> str:
        """A kind of container that torch takes; another is named."""
        if kind in known:
            return kind
        made = _WRITTEN_AS.get(kind, otherwise)
        self._say(path, f"that it is a {kind}; written as a {made.removeprefix('builtins.')}")
        return made

    def _sequence(self, node: Sequence, path: Path) -> Node:
        """What is left out of a row leaves None in its place, so that the others keep theirs."""
        kind = self._kind(node.kind, _SEQUENCES, "list", path)
        if kind in _MEMBERS and not all(isinstance(item, _MEMBERS[kind]) for item in node.items):
            self._say(path, f"that it is a {kind} of what none holds; written as a list")
            kind = "list"
        if kind == "list":
            self.open.append(unescaped_name(path))
        items = [self.node(item, (*path, str(k))) for k, item in enumerate(node.items)]
        if kind == "list":
            self.open.pop()
        if kind == "builtins.set":
            return Sequence(kind, tuple(item for item in items if item is not None))
        return Sequence(kind, tuple(item if item is not None else Leaf(None) for item in items))

    def _mapping(self, node: Mapping, path: Path) -> Node:
        kind = self._kind(node.kind, _DICTS, "dict", path)
        self.open.append(unescaped_name(path))
        pairs: list[tuple[Key, Node]] = []
        for k, (key, child) in enumerate(node.items):
            inner = (*path, f"@{k}" if isinstance(key, TensorRef) else str(key))
            kept = self.node(child, inner)
            whole = key.name in self.names if isinstance(key, TensorRef) else self._fits_key(key, inner)
            if kept is not None and whole:
                pairs.append((key, kept))
        attributes = None if node.attributes is None else self.node(node.attributes, path)
        self.open.pop()
        if attributes is not None and kind != ORDERED:
            self._say(path, f"attributes of a {kind}")
            attributes = None
        return Mapping(kind, tuple(pairs), attributes)

    def _fits_key(self, key: Scalar | tuple[Scalar, ...], path: Path) -> bool:
        parts = key if isinstance(key, tuple) else (key,)
        if any(type(part) is int and part.bit_length() > MAX_KEY_BITS for part in parts):
            self._say(path, "its key is a number of more than 63 bits")
            return False
        return True

    def _opaque(self, node: Opaque, path: Path) -> Node | None:
        parts = dict(node.parts)
        if node.path in CALLS and self._is_call(parts, path):
            return node
        module, _, word = node.path.rpartition(".")
        if module == "torch" and word in self.dtypes and not parts:
            return node
        if node.path == ATTRIBUTED and "data" in parts:
            return self._attributed(parts, path)
        inside = [name for name in tensor_names(node) if name in self.names]
        prefix = "".join(f"{word}." for word in path)
        what = f"what the input had left out: {_text(parts)}" if node.path == LEFT_OUT else f"object of {node.path}"
        if not inside or not all(name.startswith(prefix) for name in inside):
            self._say(path, what)
            return None
        self._say(path, f"{what}, except its tensors, which are written as a state dict")
        return Mapping(ORDERED, tuple((name.removeprefix(prefix), TensorRef(name)) for name in inside))

    def _is_call(self, parts: dict[str, Node], path: Path) -> bool:
        """Whether an object is made of a tuple of plain values and nothing else."""
        args = parts.get("args", Sequence("tuple", ()))
        if len(parts) > ("args" in parts) or not isinstance(args, Sequence) or args.kind != "tuple":
            return False
        return all(isinstance(one, Leaf) and self._fits(one.value, path) for one in args.items)

    def _attributed(self, parts: dict[str, Node], path: Path) -> Node | None:
        """A tensor with attributes: without them where they are no dict."""
        data = self.node(parts["data"], path)
        state = self.node(parts["state"], (*path, "state")) if "state" in parts else None
        if data is None or state is None:
            return data
        return Opaque(ATTRIBUTED, (("data", data), ("state", state)))


def _text(parts: dict[str, Node]) -> str:
    what = parts.get("what")
    return str(what.value) if isinstance(what, Leaf) else "something"
