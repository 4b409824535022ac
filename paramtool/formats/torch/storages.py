"""Shared by all forms of torch files: storages as pickles name them, and the checkpoint that they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from paramtool.errors import Defects, plural
from paramtool.formats import object_tree
from paramtool.formats.pickle.read import DEFAULT_LIMITS, load
from paramtool.formats.pickle.values import PickleLimits, Result, Use
from paramtool.formats.policy import merged
from paramtool.formats.torch.globals import CONSTRUCTORS, KNOWN, InlineView, StorageRef, storage_dtype
from paramtool.formats.torch.names import states_of, walk
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import dataclass
from paramtool.model import alias, objects
from paramtool.model.checkpoint import Checkpoint, Compound, Entries, Entry, Unknown, Unreadable
from paramtool.model.dtype import DType
from paramtool.model.objects import Leaf, Node, TensorRef
from paramtool.model.storage import Backing, ByteRange, Inline, Ranges, SourceFile, Storage
from paramtool.model.view import View

if TYPE_CHECKING:
    from paramtool.formats.files import Buffer


@dataclass(slots=True)
class Storages:
    """The storages of one file, numbered in order of appearance."""

    source: SourceFile
    folder: str = ""
    """What keys are looked up under in an archive; set before each pickle is run."""
    whole: dict[str, StorageRef] = field(default_factory=dict)
    """{key: what the pickles say of it where they name it first}, in the order of their numbers."""
    locations: dict[str, None] = field(default_factory=dict)
    inline: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """{id of an array in a pickle: its storage's number and bytes}."""
    pickle_nbytes: int = 0
    """Bytes that all pickles that were run have in the file; fewer than the pickles have, where they are deflated."""
    uses: list[Use] = field(default_factory=list)
    """What they ask for, headers and lists included."""

    def persistent(self, pid: object) -> object:
        """`('storage', type, key, location, numel)`, stacked with a view; or `('module', class, file, source)`."""
        if isinstance(pid, tuple) and len(pid) == 4 and pid[0] == "module":
            return pid[1]
        if not isinstance(pid, tuple) or len(pid) != (5 if self.folder else 6) or pid[0] != "storage":
            raise ValueError("a persistent id that does not name a storage")
        _, type_, key, location, numel, *view = pid
        if not isinstance(location, str):
            raise ValueError(f"storage {key!r:.40} on a device of type {type(location).__name__}")
        dtype = storage_dtype(type_)
        if not isinstance(key, (str, int)) or type(numel) is not int or not 0 <= numel < 1 << 60:
            raise ValueError(f"storage {key!r:.40} of length {numel!r:.40}")
        return self.ref(f"{self.folder}{key}", dtype, numel, location, view=view[0] if view else None)

    def ref(self, key: str, dtype: DType | None, numel: int, location: str, *, view: object = None) -> StorageRef:
        """A storage, or a view on one: `(view key, offset, size)` in elements."""
        nbytes = numel * (dtype.block_bytes if dtype else 1)
        known = self.whole.get(key)
        if known is None:
            known = self.whole[key] = StorageRef(len(self.whole), dtype, 0, nbytes)
        elif known.nbytes != nbytes:
            raise ValueError(f"storage {key!r} has {known.nbytes} bytes in one place and {nbytes} in another")
        self.locations[location] = None
        if not isinstance(view, tuple):
            return known if known.dtype is dtype else known._replace(dtype=dtype)
        if len(view) != 3 or dtype is None or not all(type(n) is int and n >= 0 for n in view[1:]):
            raise ValueError(f"a view of storage {key!r} without a position")
        return StorageRef(known.id, dtype, view[1] * dtype.block_bytes, view[2] * dtype.block_bytes)

    def inlined(self, value: InlineView) -> View:
        """A view of a storage for bytes that are in the pickle; one storage for each array."""
        number, data = len(self.whole) + len(self.inline), value.array.data or b""
        number, _ = self.inline.setdefault(id(value.array), (number, data))
        return value.array.placed(number, value.dtype)

    def run(self, data: Buffer, start: int, where: str = "", stored_nbytes: int | None = None) -> Result:
        """Run one pickle of this file, which has `stored_nbytes` there; None if it is stored uncompressed."""
        where = where or self.source.path
        limits = DEFAULT_LIMITS if stored_nbytes is None else PickleLimits.of_stored(stored_nbytes)
        result = load(data, start, where, CONSTRUCTORS, persistent=self.persistent, limits=limits, known=KNOWN)
        self.pickle_nbytes += result.stop - start if stored_nbytes is None else stored_nbytes
        self.uses += result.uses
        return result


def checkpoint_of(
    form: str,
    storages: Storages,
    backings: list[Backing],
    value: object,
    *,
    notes: Iterable[str] = (),
) -> Checkpoint:
    """Names, views and storages together; windows that reach outside their storage are gathered and refused.

    `backings` has where each of `storages.whole` is, in that order.  A storage that no tensor uses still has its bytes
    in the file.
    """
    where = storages.source.path
    tree, named, escaped = walk(value, where, storages.pickle_nbytes)
    states = states_of(named, where, storages.pickle_nbytes)
    roles = object_tree.roles(tree)
    entries: dict[str, Entry] = {}
    for name, tensor in named:
        found = storages.inlined(tensor.value) if isinstance(tensor.value, InlineView) else tensor.value
        if isinstance(found, Compound) and name in states:
            state, inside = states[name]
            held = {label: one.value for label, one in inside.items()}
            views = {k: storages.inlined(v) if isinstance(v, InlineView) else v for k, v in held.items()}
            more = {k: v for k, v in views.items() if isinstance(v, View) and v not in found.parts.values()}
            found = replace(found, parts={**found.parts, **more}, state=state)
        entries[name] = Entry(found, roles.get(name, "model"), tensor.requires_grad, kind=tensor.kind)
    escapes = ["some names collide and have their dots escaped"] if escaped else []
    places = [place for place in storages.locations if place != "cpu"]
    checkpoint = Checkpoint(
        format=f"torch {form}",
        files=(storages.source,),
        storages=_storages(storages, backings),
        entries=entries,
        objects=tree,
        sections=object_tree.sections(tree),
        producer="torch" + (f", saved from {', '.join(places[:3])}" if places else ""),
        unknown=merged(_unknown(storages.uses, entries)),
        notes=(*notes, *escapes),
    )
    nbytes = [ref.nbytes for ref in storages.whole.values()]
    nbytes += [len(data) for _, data in storages.inline.values()]
    defects = []
    for name, view in checkpoint.windows():
        if view.byte_stop > nbytes[int(view.storage)]:
            defects.append(
                f"{name!r}: view needs bytes {view.byte_start}-{view.byte_stop} of storage {view.storage}, "
                f"which has {nbytes[int(view.storage)]}; the file is truncated or its pickle is wrong"
            )
    if defects:
        raise Defects(checkpoint.path, defects)
    return with_shared(checkpoint)


def _storages(storages: Storages, backings: list[Backing]) -> Mapping[int, Storage]:
    """The storages of a file: where those that pickles name are, in that order, and those in the pickles."""
    plain = [one for one in backings if isinstance(one, ByteRange)]
    if len(plain) == len(backings) and not storages.inline and (found := Ranges.of(plain)):
        return found
    named = [Storage(ref.id, ref.nbytes, at) for ref, at in zip(storages.whole.values(), backings, strict=True)]
    inline = [Storage(number, len(data), Inline(data)) for number, data in storages.inline.values()]
    return {storage.id: storage for storage in (*named, *inline)}


def _unknown(uses: Iterable[Use], entries: Entries) -> Iterator[Unknown]:
    """Unknown names, with the tensors that cannot be read without them.

    A tensor may also be unreadable without any unknown name; then the tensor itself says why.
    """
    needed = grouped(
        (entry.value.needs, name) for name, entry in entries.items() if isinstance(entry.value, Unreadable)
    )
    for use in uses:
        by = tuple(needed.pop(use.path, ()))
        yield Unknown(use.path, use.called or bool(by), use.arguments, by)


# --- DeepSpeed's model states: names of shared parameters that the file itself does not store ------------------------
#
#     {"module": {"emb.weight": tensor, ...}, "shared_params": {"head.weight": "emb.weight"}, "param_shapes": [], ...}
#
# Each item of `shared_params` is a name that is not stored and the name that holds its data.  The first becomes a name
# of `module` beside the others, tied to the second by declaration.  Often both stand in `module` and share a storage;
# then there is nothing to add.
#
# Sources: `_get_shared_params` and `_save_checkpoint` in deepspeed/runtime/engine.py; deepspeed/utils/zero_to_fp32.py
# reads it so.


SHARED, MODULE, SHAPES = "shared_params", "module", "param_shapes"
MAX_NOTED = 3
PARTITIONED = "ZeRO stage 3 keeps their values in shards"
"""In the note of a file whose tensors are empty."""


def with_shared(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint with the names that its `shared_params` declare; unchanged if it has none.

    Invalid declarations become notes, and so do tensors whose values are in other files: no tensor is lost.
    """
    top = checkpoint.objects
    parts = dict(objects.pairs_of(top))
    module = parts.get(MODULE)
    if not isinstance(module, objects.Mapping):
        return checkpoint
    found, wrong = _found(checkpoint, parts.get(SHARED))
    notes = [f"{SHARED} {text}" for text in wrong[:MAX_NOTED]]
    notes += [f"{SHARED}: {len(wrong) - MAX_NOTED} more like this"] if len(wrong) > MAX_NOTED else []
    notes += _partitioned(checkpoint, parts.get(SHAPES))
    checkpoint = replace(checkpoint, notes=(*checkpoint.notes, *notes)) if notes else checkpoint
    return _added(checkpoint, parts, found) if found else checkpoint


def _found(checkpoint: Checkpoint, shared: Node | None) -> tuple[dict[str, str], list[str]]:
    """{name that is not stored: the name that holds its data}, and the errors of the others."""
    if not isinstance(shared, objects.Mapping) or not shared.items:
        return {}, []
    pairs = {
        key: value.value
        for key, value in shared.items
        if isinstance(key, str) and isinstance(value, Leaf) and isinstance(value.value, str)
    }
    wrong = ["is not made of names"] if len(pairs) < len(shared.items) else []
    views = checkpoint.views()
    found: dict[str, str] = {}
    for name, owner in pairs.items():
        if f"{MODULE}.{name}" in checkpoint.entries:
            mine, other = (checkpoint.entries.get(f"{MODULE}.{one}") for one in (name, owner))
            if mine is not None and other is not None and mine.value != other.value:
                wrong.append(f"says that {name!r} is {owner!r}, but both are stored separately: they are not tied")
        elif f"{MODULE}.{(last := holder(pairs, name))}" in views:
            found[name] = last
        elif last in pairs:
            wrong.append(f"has a cycle from {name!r} to {last!r}")
        else:
            wrong.append(f"says that {name!r} is {last!r}, which is not stored")
    return found, wrong


def _partitioned(checkpoint: Checkpoint, shapes: Node | None) -> Iterator[str]:
    """A note if tensors are empty here and `param_shapes`, a list of mappings, has their real shapes."""
    views = checkpoint.views()
    names = [
        key
        for part in objects.items_of(shapes)
        for key, shape in objects.pairs_of(part)
        if isinstance(key, str) and (view := views.get(f"{MODULE}.{key}")) is not None and not view.numel
        if isinstance(shape, objects.Sequence) and Leaf(0) not in shape.items
    ]
    if names:
        count = plural(names, "of its tensors is", "of its tensors are")
        yield (
            f"{count} empty: {PARTITIONED}, in the *_optim_states.pt files beside it; "
            "name the folder to read them joined"
        )


def holder(pairs: Mapping[str, str], name: str) -> str:
    """The name at the end of a chain of pairs; a name of the chain if it is a cycle."""
    seen = set()
    while name in pairs and name not in seen:
        seen.add(name)
        name = pairs[name]
    return name


def _added(checkpoint: Checkpoint, parts: Mapping[objects.Key, Node], found: Mapping[str, str]) -> Checkpoint:
    """The names put behind those of `module`, in the tree and in the order of names."""
    module = parts[MODULE]
    assert isinstance(module, objects.Mapping)
    names = {f"{MODULE}.{name}": f"{MODULE}.{holder}" for name, holder in found.items()}
    entries = alias.with_declared(checkpoint, names, list(objects.tensor_names(module))[-1])
    more = tuple((name, TensorRef(f"{MODULE}.{name}")) for name in found)
    tree = replace(module, items=(*module.items, *more))
    top = checkpoint.objects
    assert isinstance(top, objects.Mapping)
    whole = objects.with_item(top, MODULE, tree)
    return replace(checkpoint, entries=entries, objects=whole, sections=object_tree.sections(whole))
