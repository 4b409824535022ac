"""The tree of objects for a torch file: what is written unchanged, what is written as plain values, what is refused.

Objects of the closed table in `_classes` are written back as what they were.  Of any other class there is no way
back, so `fit` refuses it by name, leaves it out, or writes its data as dicts and lists, as `How` says.  A tensor is
never left out: those inside a foreign object go into an OrderedDict in its place.  Names are places in the tree, so
the tree that is written must give every name back; where it cannot, the tensors are written flat, each under its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import field, replace

from paramtool.formats.object_tree import left_out_before
from paramtool.formats.pickle.write import MAX_INT_BITS
from paramtool.formats.torch._classes import (
    ARRAYS,
    FACTORIES,
    FORMS,
    SCALARS,
    as_plain,
    spoken_class,
    takes_weights_only,
    unfit,
)
from paramtool.formats.torch.names import names_of
from paramtool.lazy_dataclass import dataclass, frozen
from paramtool.model.checkpoint import unescaped_name
from paramtool.model.nested import flat
from paramtool.model.objects import (
    LEFT_OUT,
    Again,
    Array,
    Key,
    Leaf,
    Mapping,
    Node,
    Opaque,
    Pairs,
    Path,
    Sequence,
    TensorRef,
    pairs_of,
    tensor_names,
    walk,
    word,
)
from paramtool.model.plan import Plan

MAX_KEY_BITS = 63
"""Our own reader takes no larger numbers as keys."""
ORDERED = "collections.OrderedDict"
COUNTER = "collections.Counter"
DEFAULTDICT = "collections.defaultdict"
DEQUE = "collections.deque"
FROZENSET = "builtins.frozenset"
SET = "builtins.set"
ATTRIBUTED = "torch.Tensor"
"""A tensor with Python attributes."""
_DICTS = {"dict", ORDERED, COUNTER, DEFAULTDICT}
_SEQUENCES = {"list", "tuple", "torch.Size", SET, FROZENSET, DEQUE}
_REFUSED = {DEFAULTDICT, DEQUE, FROZENSET}
"""Containers that `torch.load(weights_only=True)` refuses."""
_PLAINLY = {DEFAULTDICT: "dict", DEQUE: "list", FROZENSET: "list"}
"""Containers, and what holds the same items plainly."""


@frozen
class How:
    """How objects are handled that cannot be written unchanged."""

    skip: bool = False
    """Leave them out, by name; otherwise they are refused."""
    plain: bool = False
    """Write objects as dicts, lists, numbers and strings, so that `torch.load(weights_only=True)` opens the file."""
    called: frozenset[str] = frozenset()
    """What only a call could make: always left out."""


@frozen
class FittedTree:
    """What a torch file holds of a plan's tree."""

    tree: Node
    left_out: tuple[str, ...]
    """What it does not hold, for messages."""
    changed: tuple[str, ...]
    """What it holds as plain values, for messages."""
    refused: tuple[str, ...]
    """What prevents it from being written, for messages."""
    needs: tuple[str, ...]
    """Classes in it that `torch.load(weights_only=True)` refuses."""


AS_SAVED = How()


def fit(plan: Plan, dtypes: Collection[str], how: How = AS_SAVED) -> FittedTree:
    """The tree for a plan, with just the plan's names in it; `dtypes` are torch's words for dtypes."""
    pruning = _Pruning(frozenset(plan.order), frozenset(dtypes), how)
    kept = pruning.node(plan.objects, ())
    tree = _with_all(kept, plan.order)
    if not _gives(tree, plan.order):
        tree = flat(tree)
    if not _gives(tree, plan.order):
        pruning.lose(
            (), "the nesting of its tensors, which torch would call otherwise: they are written by their names"
        )
        tree = _flat(plan.order)
    return FittedTree(
        tree,
        tuple(pruning.left_out),
        tuple(pruning.changed),
        tuple(pruning.refused),
        tuple(dict.fromkeys(_needs(tree))),
    )


def _needs(tree: Node) -> Iterator[str]:
    """Classes that `torch.load(weights_only=True)` refuses."""
    for node in walk(tree):
        if isinstance(node, (Sequence, Mapping)) and node.kind in _REFUSED:
            yield spoken_class(node.kind)
        if isinstance(node, Mapping):
            for key, _ in node.items:
                if isinstance(key, (Sequence, Opaque)):
                    yield from _needs(key)
        if isinstance(node, Opaque) and node.path != ATTRIBUTED and not takes_weights_only(node):
            yield spoken_class(node.path)


def _with_all(kept: Node | None, order: Iterable[str]) -> Node:
    """A tree that has every name: those that it lacks come to the top, under their names."""
    there = set(tensor_names(kept)) if kept is not None else set()
    missing = tuple((name, TensorRef(name)) for name in order if name not in there)
    if kept is None or (missing and not isinstance(kept, Mapping)) or not there:
        rest = pairs_of(kept)
        return _flat(order, rest)
    return replace(kept, items=(*kept.items, *missing)) if isinstance(kept, Mapping) and missing else kept


def _flat(order: Iterable[str], rest: Pairs = ()) -> Node:
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
                part = f"@{k}" if isinstance(key, TensorRef) else word(key)
                if isinstance(key, TensorRef):
                    yield (*path, part), key.name
                yield from _places(child, (*path, part))
        case Opaque(kind, parts):
            for label, child in parts:
                inside = label == "args" or (label == "state" and kind == ATTRIBUTED)
                yield from _places(child, (*path, label) if inside else path)


@dataclass(slots=True)
class _Pruning:
    """One walk that finds what is written as it is, and what is not."""

    names: frozenset[str]
    dtypes: frozenset[str]
    how: How
    left_out: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    """The places of the containers around; a container may hold one of these again."""

    def node(self, node: Node, path: Path) -> Node | None:
        """What is kept of a node; None where nothing is."""
        match node:
            case Leaf(int() as value) if value.bit_length() > MAX_INT_BITS:
                self.lose(path, f"a number of {value.bit_length()} bits")
            case Leaf():
                return node
            case TensorRef(name):
                return node if name in self.names else None
            case Array():  # as records of versions 1 and 2 have it, which tell no scalar from an array without axes
                spelled = "numpy.core.multiarray." + ("_reconstruct" if node.shape else "scalar")
                return self._opaque(Opaque(spelled, (("data", node),)), path)
            case Again(place):
                if place in self.open:
                    return node
                self.lose(path, f"the object of {place!r} once more")
            case Sequence():
                return self._sequence(node, path)
            case Mapping():
                return self._mapping(node, path)
            case Opaque():
                return self._opaque(node, path)
        return None

    def lose(self, path: Path, what: str) -> None:
        """Say what is not written as it was; it is refused unless it may be left out."""
        self._say(self.left_out if self.how.skip or self.how.plain else self.refused, path, what)

    def _say(self, lines: list[str], path: Path, what: str) -> None:
        lines.append(f"{unescaped_name(path) or 'the top'!r}: {what}")

    def _kind(self, kind: str, known: Collection[str], otherwise: str, path: Path) -> str:
        """A kind of container that is written; another is named."""
        if kind in known and not (self.how.plain and kind in _PLAINLY):
            return kind
        made = _PLAINLY.get(kind, otherwise)
        what = f"{spoken_class(kind)}, written as a {made}"
        if self.how.plain:
            self._say(self.changed, path, what)
        else:
            self.lose(path, what)
        return made

    def _sequence(self, node: Sequence, path: Path) -> Node:
        """What is left out of a row leaves None in its place, so that the others keep theirs."""
        kind = self._kind(node.kind, _SEQUENCES, "list", path)
        if not _may_hold(kind, node.items):
            self.lose(path, f"a {kind} of what it cannot hold, written as a list")
            kind = "list"
        if kind == DEQUE and not _is_deque(node):
            self.lose(path, "a deque without its greatest length")
            node = replace(node, args=())
        self.open.append(unescaped_name(path))
        items = [self.node(item, (*path, str(k))) for k, item in enumerate(node.items)]
        self.open.pop()
        if kind in (SET, FROZENSET):
            found = tuple(item for item in items if item is not None)
        else:
            found = tuple(item if item is not None else Leaf(None) for item in items)
        return Sequence(kind, found, node.args if kind == DEQUE else (), node.mark)

    def _mapping(self, node: Mapping, path: Path) -> Node:
        kind = self._kind(node.kind, _DICTS, "dict", path)
        args = node.args if kind == DEFAULTDICT else ()
        if kind == DEFAULTDICT and not _is_factory(args):
            self.lose(path, "a defaultdict without its factory")
            args = ()
        self.open.append(unescaped_name(path))
        pairs: list[tuple[Key, Node]] = []
        seen: set[Key] = set()
        for k, (key, child) in enumerate(node.items):
            inner = (*path, f"@{k}" if isinstance(key, TensorRef) else word(key))
            kept, fits = self.node(child, inner), self._key(key, inner)
            if fits is not None and _is_plain(fits[0]):
                if fits[0] in seen:
                    self.lose(inner, "its key, which Python takes for another one there")
                    continue
                seen.add(fits[0])
            if kept is not None and fits is not None:
                pairs.append((*fits, kept))
        attributes = None if node.attributes is None else self.node(node.attributes, path)
        self.open.pop()
        if attributes is not None and (kind != ORDERED or not isinstance(attributes, Mapping)):
            self.lose(path, f"attributes of a {kind}" + (" that are no dict" if kind == ORDERED else ""))
            attributes = None
        return Mapping(kind, tuple(pairs), attributes, args, node.mark)

    def _key(self, key: Key, path: Path) -> tuple[Key] | None:
        """A key as it is written; None where it is not."""
        if isinstance(key, TensorRef):
            return (key,) if key.name in self.names else None
        if isinstance(key, (Sequence, Opaque)):
            kept = self.node(_without_sets(key) if self.how.plain else key, path)
            if isinstance(kept, Sequence) and kept.kind == "tuple" and all(isinstance(i, Leaf) for i in kept.items):
                return (tuple(item.value for item in kept.items if isinstance(item, Leaf)),)
            if isinstance(kept, (Sequence, Opaque)) and _is_fixed(kept):
                return (kept,)
            if isinstance(kept, Leaf):
                return (kept.value,)
            if kept is not None:
                self.lose(path, "its key, which cannot be one")
            return None
        parts = key if isinstance(key, tuple) else (key,)
        if any(type(part) is int and part.bit_length() > MAX_KEY_BITS for part in parts):
            self.lose(path, "its key, a number of more than 63 bits")
            return None
        if any(
            isinstance(part, complex) for part in parts
        ):  # no file has such a plain key: a pickle makes it by a call
            self.lose(path, "its key, a complex number")
            return None
        return (key,)

    def _opaque(self, node: Opaque, path: Path) -> Node | None:
        parts = dict(node.parts)
        module, _, last = node.path.rpartition(".")
        if module == "torch" and last in self.dtypes and not parts:
            return node
        if node.path == ATTRIBUTED and "data" in parts:
            # A tensor with attributes; without them where they are not a dict
            parts = dict(node.parts)
            data = self.node(parts["data"], path)
            state = self.node(parts["state"], (*path, "state")) if "state" in parts else None
            if not isinstance(data, TensorRef) or state is None:
                return data
            if not isinstance(state, Mapping) or not all(isinstance(key, str) for key, _ in state.items):
                self.lose(path, "attributes of a tensor that are not a dict with names as keys")
                return data
            return replace(node, parts=(("data", data), ("state", state)))
        if node.path == LEFT_OUT:
            self._say(self.left_out, path, left_out_before(node))
            return None
        if node.path in self.how.called:
            self._say(self.left_out, path, f"what a call of {node.path} would make")
            return self._tensors(node, path)
        if why := unfit(node):
            return self._foreign(node, why, path)
        if not self.how.plain or takes_weights_only(node):
            return self._made(node, path)
        plain = as_plain(node)
        if plain is None:
            self.lose(path, f"{spoken_class(node.path)}, which has no plain form")
            return None
        self._say(self.changed, path, f"{spoken_class(node.path)}, written as {_spoken(plain)}")
        return plain if isinstance(plain, Opaque) else self.node(plain, path)

    def _made(self, node: Opaque, path: Path) -> Node | None:
        """An object of the table, with what is kept of its attributes."""
        if node.path in ARRAYS:
            data = dict(node.parts)["data"]
            return None if isinstance(data, TensorRef) and data.name not in self.names else node
        state = dict(node.parts).get("state")
        if node.path not in FORMS or not isinstance(state, Mapping):
            return node
        self.open.append(unescaped_name(path))
        kept = self.node(state, path)
        self.open.pop()
        return replace(node, parts=tuple((n, kept if n == "state" and kept else part) for n, part in node.parts))

    def _foreign(self, node: Opaque, why: str, path: Path) -> Node | None:
        """An object of a class outside the table: its tensors as a state dict, and its data plainly where asked.

        The tensors keep their names, so that the data of a module, whose tensors have the names of its state dict, has
        no plain form beside them.
        """
        if self.how.plain:
            # an array of Python objects is told by words alone
            is_known = node.path not in ARRAYS | SCALARS and (bool(node.parts) or " " not in node.path)
            for plain in (_data_of(node), _parts_of(node)) if is_known else ():
                places = {name: unescaped_name(place) for place, name in _places(plain, path)}
                if all(places.get(name) == name for name in self._inside(node)):
                    self._say(self.changed, path, f"{why}, written as {_spoken(plain)}")
                    return self.node(plain, path)
        inside = self._tensors(node, path)
        self.lose(path, why + (", except its tensors, which are written as a state dict" if inside else ""))
        return inside

    def _inside(self, node: Node) -> list[str]:
        return [name for name in tensor_names(node) if name in self.names]

    def _tensors(self, node: Opaque, path: Path) -> Node | None:
        """The tensors of an object that is not written, under the rest of their names; None where it has none."""
        inside = self._inside(node)
        prefix = "".join(f"{part}." for part in path)
        if not inside or not all(name.startswith(prefix) for name in inside):
            return None
        return Mapping(ORDERED, tuple((name.removeprefix(prefix), TensorRef(name)) for name in inside))


def _is_plain(key: Key) -> bool:
    """Whether a key is a plain value, or a tuple of them."""
    return not isinstance(key, (TensorRef, Sequence, Opaque))


def _without_sets(key: Node) -> Node:
    """A key with tuples instead of frozensets, which have no plain form that can be in a key."""
    if isinstance(key, Sequence):
        kind = "tuple" if key.kind == FROZENSET else key.kind
        return replace(key, kind=kind, items=tuple(map(_without_sets, key.items)))
    return key


def _may_hold(kind: str, items: tuple[Node, ...]) -> bool:
    """Whether a container of a kind can have such items."""
    if kind == "torch.Size":
        return all(isinstance(item, Leaf) and type(item.value) is int for item in items)
    return kind not in (SET, FROZENSET) or all(map(_is_fixed, items))


def _is_fixed(node: Node) -> bool:
    """Whether a value can be an item of a set, or a key."""
    match node:
        case Leaf() | TensorRef():
            return True
        case Sequence(kind, items):
            return kind in ("tuple", "torch.Size", FROZENSET) and all(map(_is_fixed, items))
        case Opaque(path):
            return path not in ARRAYS and path not in ("argparse.Namespace", "types.SimpleNamespace", ATTRIBUTED)
    return False


def _is_deque(node: Sequence) -> bool:
    """Whether a deque has no greatest length, or a number for it."""
    most = node.args[0] if node.args else Leaf(None)
    return len(node.args) < 2 and isinstance(most, Leaf) and (most.value is None or type(most.value) is int)


def _is_factory(args: tuple[Node, ...]) -> bool:
    factory = args[0] if args else Leaf(None)
    named = isinstance(factory, Opaque) and factory.path in FACTORIES and not factory.parts
    return len(args) < 2 and (factory == Leaf(None) or named)


def _data_of(node: Opaque) -> Node:
    """The data of an object whose class is not written: its attributes, its one argument, or all of its parts."""
    parts = dict(node.parts)
    if set(parts) == {"state"}:
        match parts["state"]:
            case Mapping(_, items):
                return Mapping("dict", items)
            case Sequence(_, items):
                return Sequence("list", items)
    if set(parts) == {"args"} and isinstance(args := parts["args"], Sequence):
        return args.items[0] if len(args.items) == 1 else Sequence("list", args.items)
    if set(parts) == {"items"}:
        return parts["items"]
    return Mapping("dict", node.parts) if parts else Leaf(node.path)


def _parts_of(node: Opaque) -> Node:
    """The same with all parts by their names, with which the names of tensors in it begin; attributes have none."""
    parts = dict(node.parts)
    state = parts.pop("state", None)
    items = pairs_of(state)
    listed = ((k, replace(v, kind="list") if isinstance(v, Sequence) else v) for k, v in parts.items())
    return Mapping("dict", (*listed, *items))


def _spoken(node: Node) -> str:
    """The kind of a plain value, for messages."""
    match node:
        case Mapping():
            return "a dict"
        case Sequence():
            return "a list"
        case TensorRef():
            return "a tensor"
        case Leaf(value):
            words = {str: "a string", int: "a number", float: "a number", bool: "a truth value"}
            return words.get(type(value), type(value).__name__)
    return "plain data"
