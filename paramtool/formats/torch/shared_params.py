"""DeepSpeed's model states: names of shared parameters that the file itself does not store.

    {"module": {"emb.weight": tensor, ...}, "shared_params": {"head.weight": "emb.weight"}, "param_shapes": [...], ...}

Each item of `shared_params` is a name that is not stored and the name that holds its data.  The first becomes a name of
`module` beside the others, tied to the second by declaration.  Often both stand in `module` and share a storage; then
there is nothing to add.

Sources: `_get_shared_params` and `_save_checkpoint` in deepspeed/runtime/engine.py; deepspeed/utils/zero_to_fp32.py
reads it so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from paramtool.errors import plural
from paramtool.formats import object_tree
from paramtool.model import alias, objects
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Leaf, Node, TensorRef

SHARED, MODULE, SHAPES = "shared_params", "module", "param_shapes"
MAX_NOTED = 3
PARTITIONED = "ZeRO stage 3 keeps their values in shards"
"""In the note of a file whose tensors are empty."""


def with_shared(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint with the names that its `shared_params` declare; unchanged if it has none.

    Invalid declarations become notes, and so do tensors whose values are in other files: no tensor is lost.
    """
    top = checkpoint.objects
    parts = dict(top.items) if isinstance(top, objects.Mapping) else {}
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
    pairs = dict(_texts(shared))
    wrong = ["is not made of names"] if len(pairs) < len(shared.items) else []
    views = checkpoint.views()
    found: dict[str, str] = {}
    for name, owner in pairs.items():
        if f"{MODULE}.{name}" in checkpoint.entries:
            wrong += _stored_apart(checkpoint, name, owner)
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
        for part in (shapes.items if isinstance(shapes, objects.Sequence) else ())
        for key, shape in (part.items if isinstance(part, objects.Mapping) else ())
        if isinstance(key, str) and (view := views.get(f"{MODULE}.{key}")) is not None and not view.numel
        if isinstance(shape, objects.Sequence) and Leaf(0) not in shape.items
    ]
    if names:
        count = plural(names, "of its tensors is", "of its tensors are")
        yield (
            f"{count} empty: {PARTITIONED}, in the *_optim_states.pt files beside it; "
            "name the folder to read them joined"
        )


def _texts(node: objects.Mapping) -> Iterator[tuple[str, str]]:
    """The items of a mapping whose key and value are strings."""
    for key, value in node.items:
        if isinstance(key, str) and isinstance(value, Leaf) and isinstance(value.value, str):
            yield key, value.value


def holder(pairs: Mapping[str, str], name: str) -> str:
    """The name at the end of a chain of pairs; a name of the chain if it is a cycle."""
    seen = set()
    while name in pairs and name not in seen:
        seen.add(name)
        name = pairs[name]
    return name


def _stored_apart(checkpoint: Checkpoint, name: str, owner: str) -> list[str]:
    """A note if both names are stored and share nothing."""
    mine, other = (checkpoint.entries.get(f"{MODULE}.{one}") for one in (name, owner))
    if mine is None or other is None or mine.value == other.value:
        return []
    return [f"says that {name!r} is {owner!r}, but both are stored separately: they are not tied"]


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
