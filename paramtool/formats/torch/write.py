"""Writing torch's zip format, without torch: one storage for each alias set, and a pickle of windows on them.

    archive/data.pkl                    the tree of objects; tensors as `_rebuild_tensor_v2(storage, offset, ...)`
    archive/.format_version             1      torch may compute the places of storages
    archive/.storage_alignment          64
    archive/byteorder                   little
    archive/data/0, data/1, ...         the storages, in the order in which the pickle names them
    archive/version                     3
    archive/paramtool.json              what a pickle cannot say (`_torch_record`), where there is any
    archive/.data/serialization_id      40 digits, from the pickle: equal plans give equal bytes

Where torch finds two windows on one storage, they share memory and train as one.  So a storage holds one alias set:
names that are only equal by content get a storage of their own, though the plan stores their bytes once.

The first folder is always `archive`, which torch.save takes for a buffer; with a path it takes the file's stem, so that
there the bytes depend on the name.

Sources: torch/serialization.py (`_save`), torch/_utils.py (`_rebuild_tensor_v2`, `_v3`) of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from paramtool.errors import PlanError, listed
from paramtool.formats.output import OutputFile, Segment, refuse_tensors
from paramtool.formats.pickle.numpy_values import DTYPE, TEXT_OF, state_of
from paramtool.formats.pickle.values import RENAMED_TYPES
from paramtool.formats.pickle.write import Call, Dict, Name, Persistent, dumps
from paramtool.formats.sniff import TORCH_RECORD
from paramtool.formats.torch import _check, _record
from paramtool.formats.torch._classes import ARRAYS, FORMS, SCALARS, args_of, is_name, unfit
from paramtool.formats.torch.globals import STORAGE_DTYPES
from paramtool.formats.torch.write_objects import ATTRIBUTED, DEFAULTDICT, DEQUE, FROZENSET, SET, FittedTree, How, fit
from paramtool.formats.zip.write import ALIGNMENT, archive
from paramtool.grouping import grouped
from paramtool.model import objects
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.objects import Key, Leaf, Node, Opaque, Path, Sequence, TensorRef
from paramtool.model.plan import Copy, Plan, Target
from paramtool.model.view import Shape, View, contiguous, contiguous_strides

ROOT = "archive"
TYPED = {dtype: storage for storage, dtype in STORAGE_DTYPES.items() if not dtype.startswith(("qint", "quint"))}
"""dtypes that have a storage class; all others are in untyped storages."""
PAIRS = "float4_e2m1fn"
"""Counted one by one here, two by two in torch, as `float4_e2m1fn_x2`."""
DTYPE_WORDS = {
    name: f"{PAIRS}_x2" if name == PAIRS else name
    for name in DTYPES
    if not name.startswith(("qint", "quint", "float6_"))
}
"""{our name: torch's}; quantised tensors are not plain tensors, and torch has no six-bit numbers."""
REBUILD_V2, REBUILD_V3 = (Name("torch._utils", f"_rebuild_tensor_v{k}") for k in (2, 3))
REBUILD_PARAMETER, PARAMETER_WITH_STATE = (
    Name("torch._utils", f"_rebuild_parameter{end}") for end in ("", "_with_state")
)
REBUILD_WITH_STATE, TENSOR = Name("torch._tensor", "_rebuild_from_type_v2"), Name("torch", "Tensor")
ORDERED_DICT = Name("collections", "OrderedDict")


def refusals(dtypes: Mapping[str, str]) -> dict[str, str]:
    """{name: reason} for the names in {name: dtype} that a torch file cannot store."""
    return {n: f"torch has no plain tensor of {dtype}" for n, dtype in dtypes.items() if dtype not in DTYPE_WORDS}


def fitted(plan: Plan, how: How) -> FittedTree:
    """What of the plan's tree a torch file holds, and what it does not."""
    found = fit(plan, DTYPE_WORDS.values(), how)
    sharing = _Sharing(_storages(plan, found.tree))
    tree = sharing.node(found.tree, ())
    return replace(found, tree=tree, left_out=(*found.left_out, *sharing.split)) if sharing.split else found


def arrays(tree: Node) -> dict[str, Literal["C", "F"]]:
    """{name: `C` or `F`} of the arrays of NumPy's in a tree that are tensors of the checkpoint."""
    found: dict[str, Literal["C", "F"]] = {}
    for node in objects.walk(tree):
        if isinstance(node, Opaque) and node.path in ARRAYS:
            parts = dict(node.parts)
            if isinstance(data := parts["data"], TensorRef):
                found[data.name] = "F" if parts.get("order") == Leaf("F") else "C"
    return found


def lay_out(plan: Plan) -> tuple[OutputFile, ...]:
    """One torch file for a plan; PlanError if it cannot store something."""
    check_tensors(plan)
    found = fit(plan, DTYPE_WORDS.values())
    refuse(plan, found)
    return (OutputFile("", segments(plan, found.tree)),)


def check_tensors(plan: Plan) -> None:
    """PlanError if torch has no form for tensors of a plan."""
    refuse_tensors(plan, "a torch file", refusals(plan.dtypes()), "dedup --skip-unsupported omits them")


def segments(plan: Plan, tree: Node) -> tuple[Segment, ...]:
    """The archive with the tensors of a plan in a tree of objects that torch has forms for."""
    pickling = _Pickling(_storages(plan, tree), plan)
    pickle = dumps(pickling.value(tree, ()))
    if len(pickle) > MAX_PICKLE_NBYTES:
        raise PlanError(
            f"{plan.source}: its arrays and other objects would make a pickle of {len(pickle)} bytes; expected at most "
            f"{MAX_PICKLE_NBYTES}, since torch reads a pickle whole",
            hint="--plain writes arrays as tensors",
        )
    try:
        _check.check(pickle)
    except _check.Wrong as error:
        hint = "no program pickles objects in this form; --plain writes them as dicts and lists"
        raise PlanError(f"{plan.source}: torch.load would not open what would be written: {error}", hint) from None
    from hashlib import sha256

    members: list[tuple[str, bytes | Target]] = [
        ("data.pkl", pickle),
        (".format_version", b"1"),
        (".storage_alignment", str(ALIGNMENT).encode()),
        ("byteorder", b"little"),
        *((f"data/{key}", storage.content) for key, storage in enumerate(pickling.numbers)),
        ("version", b"3\n"),
        (".data/serialization_id", f"{int.from_bytes(sha256(pickle).digest(), 'big') % 10**40:040}".encode()),
    ]
    if beside := _record.encode(plan):
        members.append((TORCH_RECORD, beside))
    return archive((f"{ROOT}/{name}", content) for name, content in members)


MAX_PICKLE_NBYTES = 512 << 20
"""The largest pickle that `formats.torch` reads."""


def refuse(plan: Plan, found: FittedTree) -> None:
    """PlanError if a torch file cannot store objects of a plan."""
    if found.refused:
        head = f"{plan.source}: a torch file cannot store {len(found.refused)} of its objects:"
        hint = (
            "--skip-unsupported omits them, --plain writes the data of each as dicts, lists, numbers and strings "
            "(of modules the tensors alone), and -o NAME.safetensors keeps that data in the file's metadata"
        )
        raise PlanError(listed(head, found.refused), hint=hint)


# --- alias sets ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class _WrittenStorage:
    """A storage of the output: names of one alias set look at it, and no others."""

    content: Target
    dtype: DType | None
    """None for an untyped storage."""


@dataclass(frozen=True, slots=True)
class _StoragePlace:
    """A name's window on its alias set."""

    storage: _WrittenStorage
    view: View


def _storages(plan: Plan, tree: Node) -> dict[str, _StoragePlace]:
    """Where each name is; `tree` says which are arrays inside the pickle, whose windows are never moved."""
    targets = {target.name: target for target in plan.targets}
    windows = {name: one.window for name, one in plan.names.items() if name not in plan.derived}
    together = grouped(((str(view.storage), plan.names[n].alias_set), n) for n, view in windows.items())
    inside = arrays(tree)
    places = {}
    for (owner, _), names in together.items():
        views = [windows[name] for name in names]
        if inside.keys().isdisjoint(names) and (kept := _as_it_lies(targets[owner], views)):
            content, views = kept
            start = 0
        else:
            content, start = _part(targets[owner], views)
        # The dtype of the storage, where all windows have one that torch has storages of
        dtype = views[0].dtype
        same = all(view.dtype == dtype for view in views) and content.nbytes % dtype.block_bytes == 0
        storage = _WrittenStorage(content, dtype if same and dtype.name in TYPED else None)
        for name, view in zip(names, views, strict=True):
            places[name] = _StoragePlace(storage, view.on(owner, view.byte_start - start) if view.numel else view)
    return places


def _as_it_lies(target: Target, views: list[View]) -> tuple[Target, list[View]] | None:
    """A dense tensor whose axes lie in another order in memory (channels_last), in that order; None for any other.

    Every window must be the whole tensor.
    """
    copy = target.copies[0] if len(target.copies) == 1 else None
    if copy is None or not copy.is_plain or copy.destination != target.view or any(v != target.view for v in views):
        return None
    source = copy.source
    axes = source.dense_axes
    if source.is_contiguous or not source.numel or axes is None:
        return None
    shape = tuple(source.shape[k] for k in axes)
    dense = contiguous_strides(shape)
    run = contiguous(source.storage, source.dtype, shape, source.offset)
    copies = (Copy(contiguous(target.name, target.dtype, shape), ((1, run),)),)
    content = Target(target.name, target.dtype, shape, copies)
    strides = dict(zip(axes, dense, strict=True))
    lies = View(target.name, target.dtype, 0, target.shape, tuple(strides[k] for k in range(len(shape))))
    return content, [lies] * len(views)


def _part(target: Target, views: list[View]) -> tuple[Target, int]:
    """What of a target these windows look at, and at which byte of the target that begins.

    A target that is not one run of the source's bytes is taken whole.
    """
    views = [view for view in views if view.numel]
    stop = max((view.byte_stop for view in views), default=0)
    start = min((view.byte_start for view in views), default=0)
    start -= start % max((view.dtype.block_bytes for view in views), default=1)
    copy = target.copies[0] if len(target.copies) == 1 else None
    if (start, stop) == (0, target.nbytes) or copy is None or not copy.is_plain:
        return target, 0
    source = copy.source
    if not (source.is_contiguous and copy.destination.is_contiguous):
        return target, 0
    run = contiguous(target.name, DTYPES["uint8"], (stop - start,))
    part = Copy(run, ((1, run.on(source.storage, source.byte_start + start)),))
    return Target(target.name, run.dtype, run.shape, (part,)), start


# --- the pickle --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sharing:
    """One walk that finds objects which were one in the source, and whose tensors are not the same ones any more."""

    places: Mapping[str, _StoragePlace]
    split: list[str] = field(default_factory=list)
    """Where these are, for people."""
    first: dict[int, Node] = field(default_factory=dict)
    """{mark: the object where it is met first, with places instead of names}"""

    def node(self, node: Node, path: Path) -> Node:
        """The same tree without the marks of objects that have to be written for themselves."""
        match node:
            case Sequence(_, items):
                node = replace(node, items=tuple(self.node(item, (*path, str(k))) for k, item in enumerate(items)))
            case objects.Mapping(_, pairs, attributes):
                kept = tuple((key, self.node(child, (*path, objects.word(key)))) for key, child in pairs)
                node = replace(node, items=kept, attributes=attributes and self.node(attributes, path))
            case Opaque(_, parts):
                node = replace(node, parts=tuple((label, self.node(child, path)) for label, child in parts))
            case _:
                return node
        if node.mark and self.first.setdefault(node.mark, placed := objects.map_tensors(node, self._place)) != placed:
            self.split.append(f"{'.'.join(path)!r}: that it is one object with another, whose tensors differ now")
            return replace(node, mark=0)
        return node

    def _place(self, name: str) -> str:
        """Where a tensor is; all tensors of one shape that have no elements are in one place."""
        place = self.places[name]
        if not place.view.numel:
            return f"{place.view.dtype.name} {place.view.shape}"
        return f"{id(place.storage)} {place.view}"


def _strides(view: View) -> Shape:
    """The strides of a window as torch has them: an axis of length 1 is outside of all others.

    torch decides by the strides of such axes, too, whether a result is channels_last (c10/core/MemoryFormat.h).
    """
    if view.is_contiguous:
        return view.strides
    outside = max(size * stride for size, stride in view.axes if size > 1)
    return tuple(outside if size == 1 else stride for size, stride in view.axes)


class _Pickling:
    """From the tree to values for the pickle; storages are numbered as they are met."""

    def __init__(self, places: Mapping[str, _StoragePlace], plan: Any) -> None:
        self.places = places
        self.plan: Plan = plan
        self.numbers: dict[_WrittenStorage, int] = {}
        self.open: dict[str, object] = {}
        """The containers around, by their places."""
        self.marked: dict[int, object] = {}
        """Objects that several places refer to, by their marks."""
        self.once: dict[object, Call] = {}
        """Tensors that train, parameters and arrays, by where they are: names of one are one object."""

    def value(self, node: Node, path: Path) -> object:
        """The pickle value of a node."""
        mark = node.mark if isinstance(node, (Sequence, objects.Mapping, Opaque)) else 0
        if mark in self.marked:
            return self.marked[mark]
        made = self._value(node, path)
        if mark:
            self.marked[mark] = made
            if isinstance(made, Call):
                made.shared = True
        return made

    def _value(self, node: Node, path: Path) -> object:
        match node:
            case Leaf(value):
                return value
            case TensorRef(name):
                return self.tensor(name)
            case objects.Again(place):
                return self.open[place]
            case Sequence():
                return self.sequence(node, path)
            case objects.Mapping():
                return self.mapping(node, path)
            case Opaque():
                return self.opaque(node, path)
        raise TypeError(f"{type(node).__name__} has no form in a torch file")

    def tensor(self, name: str) -> object:
        """A window on a storage, as torch rebuilds it; a parameter, or a whole storage, where the name is one.

        torch has gradients for numbers with a fraction alone, and `_rebuild_tensor_v3` fails where it is asked for any:
        a tensor in an untyped storage that asks for them is a parameter, as which torch saves it too.
        """
        place = self.places[name]
        storage, view = place.storage, place.view
        key = str(self.numbers.setdefault(storage, len(self.numbers)))
        kind = self.plan.names[name].kind
        if storage.dtype is None or kind == "untyped storage":
            typed, count = Name("torch.storage", "UntypedStorage"), storage.content.nbytes
        else:
            typed, count = Name("torch", TYPED[storage.dtype.name]), storage.content.nbytes // storage.dtype.block_bytes
        stored = Persistent(("storage", typed, key, "cpu", count))
        if kind.endswith("storage") and view.nbytes == storage.content.nbytes:
            return stored
        word, is_inexact = DTYPE_WORDS[view.dtype.name], view.dtype.is_inexact
        if view.dtype.name == PAIRS:
            view = contiguous(view.storage, DTYPES["uint8"], (*view.shape[:-1], view.shape[-1] // 2), view.byte_start)
        window = (stored, view.offset, view.shape, _strides(view))
        trains = self.plan.names[name].requires_grad and is_inexact
        is_parameter = kind == "parameter" or (trains and storage.dtype is None)
        if storage.dtype is not None:
            data = Call(REBUILD_V2, (*window, trains and not is_parameter, Call(ORDERED_DICT)), shared=trains)
        else:
            data = Call(REBUILD_V3, (*window, False, Call(ORDERED_DICT), Name("torch", word)))
        if trains and not is_parameter:
            return self.once.setdefault((storage, place.view), data)
        if not is_parameter:
            return data
        made = Call(REBUILD_PARAMETER, (data, trains, Call(ORDERED_DICT)), shared=True)
        return self.once.setdefault((storage, place.view, trains), made)

    def sequence(self, node: Sequence, path: Path) -> object:
        kind = node.kind
        row: list[object] = []
        made: object = row
        if kind == DEQUE:
            most = tuple(self.value(arg, path) for arg in node.args)
            made = Call(Name("collections", "deque"), ((), *most) if most and most[0] is not None else (), items=row)
        if kind in ("list", DEQUE):
            self.open[".".join(path)] = made
        row += [self.value(item, (*path, str(k))) for k, item in enumerate(node.items)]
        match kind:
            case "tuple":
                return tuple(row)
            case "torch.Size":
                return Call(Name("torch", "Size"), (tuple(row),))
            case _ if kind in (SET, FROZENSET):
                return Call(Name("__builtin__", kind.removeprefix("builtins.")), (row,))
        return made

    def mapping(self, node: objects.Mapping, path: Path) -> object:
        module, _, name = node.kind.rpartition(".")
        args = tuple(self.value(arg, path) for arg in node.args) if node.kind == DEFAULTDICT else ()
        made: Dict | Call = Call(Name(module, name), args) if module else Dict([])
        self.open[".".join(path)] = made
        for k, (key, child) in enumerate(node.items):
            part = f"@{k}" if isinstance(key, TensorRef) else objects.word(key)
            made.pairs.append((self.key(key), self.value(child, (*path, part))))
        if node.attributes is not None and isinstance(made, Call):
            made.state = self.value(node.attributes, path)
        return made

    def key(self, key: Key) -> object:
        if isinstance(key, TensorRef):
            return self.tensor(key.name)
        return self.value(key, ()) if isinstance(key, (Sequence, Opaque)) else key

    def opaque(self, node: Opaque, path: Path) -> object:
        parts = dict(node.parts)
        if node.path == ATTRIBUTED and isinstance(data := self.value(parts["data"], path), Call):
            state = self.value(parts["state"], (*path, "state"))
            if data.function == REBUILD_PARAMETER:
                return Call(PARAMETER_WITH_STATE, (*data.args, state))
            return Call(REBUILD_WITH_STATE, (data.function, TENSOR, data.args, state))
        if node.path in ARRAYS or node.path in SCALARS:
            return self.array(node)
        if node.path == DTYPE:
            return self.dtype(node)
        name = _name(node.path)
        form = FORMS.get(node.path)
        if not parts:  # a class, and no object of it
            return name
        new = form.new if form else "args" not in parts
        made = Call(name, tuple(self.value(arg, path) for arg in args_of(node)), new=new)
        if (state := parts.get("state")) is not None:
            self.open[".".join(path)] = made
            made.state = self.attributes(state, path)
        return made

    def attributes(self, state: Node, path: Path) -> object:
        """The attributes of an object, whose place they share: what refers to that place refers to the object."""
        if not isinstance(state, objects.Mapping):
            return self.value(state, path)
        return Dict([(self.key(key), self.value(child, (*path, objects.word(key)))) for key, child in state.items])

    def array(self, node: Opaque) -> Call:
        """An array or a scalar of NumPy's, with its bytes in the pickle."""
        parts = dict(node.parts)
        data = parts["data"]
        if isinstance(data, TensorRef):
            place = self.places[data.name]
            order = "F" if parts.get("order") == Leaf("F") else "C"
            dtype, shape = self.dtype_of(TEXT_OF[place.view.dtype.name]), place.view.shape
            content = self.plan.inline[data.name]
        else:
            assert isinstance(data, objects.Array)
            dtype = self.dtype(parts["dtype"]) if "dtype" in parts else self.dtype_of(data.dtype)
            place, shape, order, content = None, data.shape, data.order, data.data
        function = _name(node.path)
        if node.path in SCALARS:
            return Call(function, (dtype, content))
        made = Call(function, (Name("numpy", "ndarray"), (0,), b"b"), shared=True)
        made.state = (1, shape, dtype, order == "F", content)
        return made if place is None else self.once.setdefault((place.storage, place.view), made)

    def dtype(self, node: Node) -> Call:
        assert isinstance(node, Opaque)
        parts = dict(node.parts)
        if isinstance(text := parts.get("text"), Leaf):
            return self.dtype_of(str(text.value))
        made = Call(Name("numpy", "dtype"), tuple(self.value(arg, ()) for arg in args_of(node)))
        made.state = self.value(parts["state"], ())
        return made

    def dtype_of(self, text: str) -> Call:
        """The dtype that a string says all of; in records of versions 1 and 2 it may lack the order of bytes."""
        text = text if text[0] in "<>|=" else f"|{text}"
        return Call(Name("numpy", "dtype"), (text[1:], False, True), state=state_of(text))


class _Objects(_Pickling):
    """Objects alone: tensors are persistent ids, their names; those that are arrays of NumPy, in a tuple."""

    def tensor(self, name: str) -> object:
        return Persistent(name)

    def array(self, node: Opaque) -> Call | Persistent:  # type: ignore[override]
        data = dict(node.parts)["data"]
        return Persistent((data.name,)) if isinstance(data, TensorRef) else super().array(node)


def pickled(tree: Node, safe: Collection[str] = ()) -> bytes:
    """The pickle of a tree; ValueError with the class where only code of others could make it, and it is not `safe`."""
    for node in objects.walk(tree):
        if isinstance(node, Opaque) and node.path not in safe and unfit(node):
            raise ValueError(f"an object of {node.path}")
    return dumps(_Objects({}, None).value(tree, ()))


def may_name(path: str) -> bool:
    """Whether a class is one of those that `pickled` writes where none is `safe`: their objects are data."""
    return is_name(path) or path in {*ARRAYS, *SCALARS, "_codecs.encode"}


def _name(path: str) -> Name:
    """A class or function by the name that protocol 2 has for it."""
    module, _, name = path.rpartition(".")
    if module != "builtins":
        return Name(module, name)
    return Name("__builtin__", next((old for old, new in RENAMED_TYPES.items() if new == name), name))
