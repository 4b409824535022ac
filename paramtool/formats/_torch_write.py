"""Writing torch's zip format, without torch: one storage for each memory, and a pickle of windows on them.

    archive/data.pkl                    the tree of objects; tensors as `_rebuild_tensor_v2(storage, offset, ...)`
    archive/.format_version             1      torch may compute the places of storages
    archive/.storage_alignment          64
    archive/byteorder                   little
    archive/data/0, data/1, ...         the storages, in the order in which the pickle names them
    archive/version                     3
    archive/.data/serialization_id      40 digits, from the pickle: equal plans give equal bytes

Where torch finds two windows on one storage, they share memory and train as one.  So a storage holds one memory: names
that are only equal by content get a storage of their own, though the plan stores their bytes once.

The first folder is always `archive`, which torch.save takes for a buffer; with a path it takes the file's stem, so that
there the bytes depend on the name.

Sources: torch/serialization.py (`_save`), torch/_utils.py (`_rebuild_tensor_v2`, `_v3`) of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paramtool.errors import PlanError, listed
from paramtool.formats._output import OutputFile
from paramtool.formats._pickle_write import Call, Dict, Name, Persistent, dumps
from paramtool.formats._torch_values import STORAGE_DTYPES
from paramtool.formats._torch_write_tree import ATTRIBUTED, held
from paramtool.formats._zip_write import ALIGNMENT, archive
from paramtool.model import objects
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.objects import Key, Leaf, Node, Opaque, Sequence, TensorRef
from paramtool.model.plan import Copy, Plan, Target
from paramtool.model.view import View, contiguous

ROOT = "archive"
TYPED = {dtype: storage for storage, dtype in STORAGE_DTYPES.items() if not dtype.startswith(("qint", "quint"))}
"""dtypes that have a class of storages; all others stand in untyped ones."""
PAIRS = "float4_e2m1fn"
"""Counted one by one here, two by two in torch, as `float4_e2m1fn_x2`."""
DTYPE_WORDS = {
    name: f"{PAIRS}_x2" if name == PAIRS else name
    for name in DTYPES
    if not name.startswith(("qint", "quint", "float6_"))
}
"""{our name: torch's}; quantised tensors are no plain ones, and torch has no six-bit numbers."""
REBUILD_V2, REBUILD_V3 = (Name("torch._utils", f"_rebuild_tensor_v{k}") for k in (2, 3))
REBUILD_PARAMETER, PARAMETER_WITH_STATE = (
    Name("torch._utils", f"_rebuild_parameter{end}") for end in ("", "_with_state")
)
REBUILD_WITH_STATE, TENSOR = Name("torch._tensor", "_rebuild_from_type_v2"), Name("torch", "Tensor")
ORDERED_DICT = Name("collections", "OrderedDict")


def refusals(plan: Plan) -> dict[str, str]:
    """Names that this format has no form for, each with the reason."""
    dtypes = {name: view.dtype.name for name, (view, _) in _windows(plan).items()}
    reasons = {n: f"torch has no plain tensor of {dtype}" for n, dtype in dtypes.items() if dtype not in DTYPE_WORDS}
    return reasons | {one.name: "a torch file has no tensors that are calculated on load" for one in plan.computed}


def left_out(plan: Plan) -> Iterator[str]:
    """What of a plan has no place in a torch file, for people."""
    yield from held(plan, DTYPE_WORDS.values()).left_out
    if texts := [key for key in plan.metadata if key != "format"]:
        yield f"metadata, for which a torch file has no place: {', '.join(texts[:8])}{' ...' if len(texts) > 8 else ''}"
    if plan.modules:
        yield "the record of layouts, for which a torch file has no place"


def lay_out(plan: Plan) -> tuple[OutputFile, ...]:
    """One torch file for a plan; PlanError where a tensor has no form in it."""
    if refused := refusals(plan):
        lines = [f"{name!r:.200}: {reason}" for name, reason in refused.items()]
        head = f"{plan.source}: no form in a torch file for {len(refused)} of its tensors:"
        raise PlanError(listed(head, lines), hint="dedup --skip-unsupported leaves them out")
    pickling = _Pickling(_memories(plan), plan.trainable)
    pickle = dumps(pickling.value(held(plan, DTYPE_WORDS.values()).tree, ()))
    members: list[tuple[str, bytes | Target]] = [
        ("data.pkl", pickle),
        (".format_version", b"1"),
        (".storage_alignment", str(ALIGNMENT).encode()),
        ("byteorder", b"little"),
        *((f"data/{key}", memory.content) for key, memory in enumerate(pickling.numbers)),
        ("version", b"3\n"),
        (".data/serialization_id", _identity(pickle)),
    ]
    return (OutputFile("", archive((f"{ROOT}/{name}", content) for name, content in members)),)


def _identity(pickle: bytes) -> bytes:
    """40 digits that say which file this is, from everything that is known before it is written."""
    from hashlib import sha256

    return f"{int.from_bytes(sha256(pickle).digest(), 'big') % 10**40:040}".encode()


# --- memories ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class _Memory:
    """A storage of the output: names of one memory look at it, and no others."""

    content: Target
    dtype: DType | None
    """None for an untyped storage."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A name's window on its memory."""

    memory: _Memory
    view: View


def _windows(plan: Plan) -> dict[str, tuple[View, str]]:
    """{name: (its window on a target, the first name of its memory)}."""
    stored = {
        target.name: (target.view, plan.memories.get(target.name, target.name))
        for target in plan.targets
        if target.name not in plan.anonymous
    }
    return stored | {alias.name: (alias.view, alias.memory) for alias in plan.aliases}


def _memories(plan: Plan) -> dict[str, _Place]:
    """Where each name stands."""
    targets = {target.name: target for target in plan.targets}
    together: dict[tuple[str, str], list[str]] = {}
    windows = _windows(plan)
    for name, (view, memory) in windows.items():
        together.setdefault((str(view.storage), memory), []).append(name)
    places = {}
    for (owner, _), names in together.items():
        views = [windows[name][0] for name in names]
        content, start = _part(targets[owner], views)
        storage = _Memory(content, _storage_dtype(content, views))
        for name, view in zip(names, views, strict=True):
            places[name] = _Place(storage, view.on(owner, view.byte_start - start) if view.numel else view)
    return places


def _storage_dtype(content: Target, views: list[View]) -> DType | None:
    """The dtype of the storage, where all windows have one that torch has storages of.

    torch refuses a storage that is named under two dtypes, so windows of two look at untyped bytes.
    """
    dtype = views[0].dtype
    same = all(view.dtype == dtype for view in views) and content.nbytes % dtype.block_bytes == 0
    return dtype if same and dtype.name in TYPED else None


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
    source = copy.terms[0][1]
    if not (source.is_contiguous and copy.destination.is_contiguous):
        return target, 0
    run = contiguous(target.name, DTYPES["uint8"], (stop - start,))
    part = Copy(run, ((1, run.on(source.storage, source.byte_start + start)),))
    return Target(target.name, run.dtype, run.shape, (part,)), start


# --- the pickle --------------------------------------------------------------------------------------------------


class _Pickling:
    """From the tree to values for the pickle; storages are numbered as they are met."""

    def __init__(self, places: Mapping[str, _Place], trainable: frozenset[str]) -> None:
        self.places = places
        self.trainable = trainable
        self.numbers: dict[_Memory, int] = {}
        self.open: dict[str, object] = {}
        """The lists and dicts around, by their places."""

    def value(self, node: Node, path: tuple[str, ...]) -> object:
        """The value that stands for a node."""
        match node:
            case Leaf(value):
                return value
            case TensorRef(name):
                return self.tensor(name)
            case objects.Again(place):
                return self.open[place]
            case Sequence(kind, items):
                return self.sequence(kind, items, path)
            case objects.Mapping(kind, _, _):
                return self.mapping(node, path)
            case Opaque(kind, parts):
                return self.opaque(kind, dict(parts), path)
        raise TypeError(f"{type(node).__name__} has no form in a torch file")

    def tensor(self, name: str) -> Call:
        """A window on a storage, as torch rebuilds it.

        torch has gradients for numbers with a fraction alone, and `_rebuild_tensor_v3` fails where it is asked for any:
        a tensor in an untyped storage that asks for them is a parameter, as which torch saves it too.
        """
        place = self.places[name]
        memory, view = place.memory, place.view
        key = str(self.numbers.setdefault(memory, len(self.numbers)))
        if memory.dtype is None:
            kind, count = Name("torch.storage", "UntypedStorage"), memory.content.nbytes
        else:
            kind, count = Name("torch", TYPED[memory.dtype.name]), memory.content.nbytes // memory.dtype.block_bytes
        word = DTYPE_WORDS[view.dtype.name]
        if view.dtype.name == PAIRS:
            view = contiguous(view.storage, DTYPES["uint8"], (*view.shape[:-1], view.shape[-1] // 2), view.byte_start)
        window = (Persistent(("storage", kind, key, "cpu", count)), view.offset, view.shape, view.strides)
        trains = name in self.trainable and word.startswith(("float", "bfloat", "complex"))
        if memory.dtype is not None:
            return Call(REBUILD_V2, (*window, trains, Call(ORDERED_DICT)))
        data = Call(REBUILD_V3, (*window, False, Call(ORDERED_DICT), Name("torch", word)))
        return Call(REBUILD_PARAMETER, (data, True, Call(ORDERED_DICT))) if trains else data

    def sequence(self, kind: str, items: tuple[Node, ...], path: tuple[str, ...]) -> object:
        row: list[object] = []
        if kind == "list":
            self.open[".".join(path)] = row
        row += [self.value(item, (*path, str(k))) for k, item in enumerate(items)]
        match kind:
            case "tuple":
                return tuple(row)
            case "torch.Size":
                return Call(Name("torch", "Size"), (tuple(row),))
            case "builtins.set":
                return Call(Name("__builtin__", "set"), (row,))
        return row

    def mapping(self, node: objects.Mapping, path: tuple[str, ...]) -> object:
        module, _, name = node.kind.rpartition(".")
        made: Dict | Call = Call(Name(module, name)) if module else Dict([])
        self.open[".".join(path)] = made
        for k, (key, child) in enumerate(node.items):
            word = f"@{k}" if isinstance(key, TensorRef) else str(key)
            made.pairs.append((self.key(key), self.value(child, (*path, word))))
        if node.attributes is not None and isinstance(made, Call):
            made.state = self.value(node.attributes, path)
        return made

    def key(self, key: Key) -> object:
        return self.tensor(key.name) if isinstance(key, TensorRef) else key

    def opaque(self, kind: str, parts: dict[str, Node], path: tuple[str, ...]) -> object:
        if kind == ATTRIBUTED and isinstance(data := self.value(parts["data"], path), Call):
            state = self.value(parts["state"], path)
            if data.function == REBUILD_PARAMETER:
                return Call(PARAMETER_WITH_STATE, (*data.args, state))
            return Call(REBUILD_WITH_STATE, (data.function, TENSOR, data.args, state))
        module, _, name = kind.replace("builtins", "__builtin__").rpartition(".")
        if "args" not in parts:
            return Name(module, name)
        args = self.value(parts["args"], path)
        return Call(Name(module, name), args if isinstance(args, tuple) else (args,))
