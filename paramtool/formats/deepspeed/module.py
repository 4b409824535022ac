"""The tensors of the model: as the model states have them, or joined from the ranks where those are empty.

Under stages 1 and 2 `module` has every tensor.  Under stage 3 its parameters are empty: those that are trained are in
the flat groups of the optimizer, in float32, and frozen ones in `frozen_param_fragments` of each rank, in the type of
the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paramtool.errors import plural, some
from paramtool.formats.deepspeed.agree import of_slices
from paramtool.formats.deepspeed.joined import piece
from paramtool.formats.deepspeed.states import Findings, ModelStates
from paramtool.formats.joined import FolderTensors
from paramtool.formats.torch.shared_params import PARTITIONED, holder
from paramtool.model.checkpoint import Link
from paramtool.model.storage import ByteRange
from paramtool.model.view import View

FRAGMENTS = "frozen_param_fragments"
_SHOWN = 3


def stored(model: ModelStates, joined: FolderTensors) -> Iterator[str]:
    """Add the tensors of stages 1 and 2; yields notes."""
    again = {name for key, name in model.fragments.items() if key in model.module}
    for name in model.file.entries:
        if name not in again:
            joined.take(model.file, name)
    if again:
        yield f"`{FRAGMENTS}` has {plural(len(again), 'tensor')} of `module` once more; not read"
    yield from model.file.notes


def lacks(model: ModelStates, findings: Findings) -> bool:
    """Whether a trained parameter has no name in `module`, which is a finding."""
    lost = [name for group in model.shapes for name in group if name not in model.module]
    if lost:
        findings.add(f"`module` lacks {plural(len(lost), 'parameter')} of `param_shapes`: {some(lost, _SHOWN)}")
    return bool(lost)


def joined_module(models: Sequence[ModelStates], joined: FolderTensors, findings: Findings) -> Iterator[str]:
    """Add the tensors of stage 3 that are not trained, from the model states of all ranks; yields notes.

    The trained parameters were added before, under their names in `module`.
    """
    model = models[0]
    trained = {name for group in model.shapes for name in group}
    inside = {*model.module.values(), *model.fragments.values()}
    for name in model.file.entries:
        if name not in inside:
            joined.take(model.file, name)
    views = model.file.views()
    held = [(one.file.views(), one.fragments) for one in models]
    for key, name in model.module.items():
        if key in trained:
            continue
        if key in model.frozen and key in model.fragments:
            _join_frozen(models, (key, [one.get(fragments.get(key, "")) for one, fragments in held]), joined, findings)
        elif key not in model.shared:
            joined.take(model.file, name)
            if name in views and views[name].shape == (0,):
                findings.add(f"{key!r}: is empty in `module`, and no rank has its values")
    _tie(model, joined, findings)
    if half := [key for key in trained if (name := model.module[key]) in views and views[name].numel]:
        yield f"{plural(len(half), 'tensor')} that `module` has as well, rounded: {some(half, _SHOWN)}; read in float32"
    # A note if the buffers of ranks differ, by the CRCs of their bytes.
    first = models[0]
    names = {key: name for key, name in first.module.items() if key in _buffers(first, inside)}
    other = [key for key, name in names.items() if len({_crc32(one, name) for one in models}) > 1]
    if other:
        what = f"{plural(len(other), 'buffer')} with other bytes in other ranks"
        yield f"{what}: {some(other, _SHOWN)}; rank 0's are read"
    yield from (note for note in model.file.notes if PARTITIONED not in note)


def _join_frozen(
    models: Sequence[ModelStates], held: tuple[str, list[View | None]], joined: FolderTensors, findings: Findings
) -> None:
    """Add a frozen parameter, by its name, from the slices of all ranks."""
    first = models[0]
    key, views = held
    shape, name = first.frozen[key], first.module[key]
    fragments = of_slices(0, {key: shape}, len(models))[key]
    pieces = []
    for one in fragments:
        view = views[one.rank]
        if view is None or not view.is_contiguous or view.numel < one.numel or view.dtype != views[0].dtype:  # type: ignore[union-attr]
            findings.add(f"{key!r}: rank {one.rank} does not have its {plural(one.numel, 'element')}")
            return
        pieces.append((models[one.rank].file, piece(view, 0, one.numel)))
    if views[0] is not None:
        joined.join(name, views[0].dtype, shape, pieces)


def _tie(model: ModelStates, joined: FolderTensors, findings: Findings) -> None:
    """Add the names that share the tensor of another, by declaration."""
    for key in model.shared:
        name, owner = model.module.get(key), model.module.get(holder(model.shared, key), "")
        if name is None or name in joined.entries:
            continue
        if owner not in joined.entries:
            findings.add(f"`shared_params` says that {key!r} is {model.shared[key]!r}, which no rank has")
            continue
        held = joined.entries[owner]
        joined.entries[owner] = held._replace(link=Link(owner, "storage"))
        joined.entries[name] = held._replace(link=Link(owner, "declared"))


def _buffers(model: ModelStates, inside: set[str]) -> Mapping[str, str]:
    shapes = {name for group in model.shapes for name in group}
    return {k: v for k, v in model.module.items() if k not in shapes and k not in model.frozen and v in inside}


def _crc32(model: ModelStates, name: str) -> int | None:
    entry = model.file.entries.get(name)
    view = entry.value if entry is not None else None
    backing = model.file.storages[int(view.storage)].backing if isinstance(view, View) else None
    return backing.crc32 if isinstance(backing, ByteRange) else None
