"""Files in which each rank of a training saved its part of every tensor, with torch.save: joined as one checkpoint.

    model_world_size_2_rank_0.pt    rows 0 to 5 of `emb.weight`, and the buffers, which every rank has
    model_world_size_2_rank_1.pt    rows 6 to 10, and the same buffers

verl, SkyRL and many trainings with FSDP save so.  A file is known by its tensors, which say what part of the whole they
are (`torch/_shards.py`); its name says only which others belong to it: they have another number for the rank.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from paramtool.errors import Defects, plural, some
from paramtool.formats.folder.copies import starts_differ
from paramtool.formats.folder.weight_names import STEMS, Weights
from paramtool.formats.joined import FolderTensors
from paramtool.model.checkpoint import SHARDED, Checkpoint, Compound, Entry, ShardPiece, Value
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.view import Shape, View

_NUMBER = r"(?i)(.*rank\D?)(\d+)(.*)|(.*?)(\d+)(\D*)"
_RANK_IN_STEM = r"(?i)[_.-]*(world_?size_?\d+)?[_.-]*rank\D?\d+"
FLAT = "_flat_param"
"""`FLAT_PARAM` of torch/distributed/fsdp/_flat_param.py: several parameters in one vector, without their shapes."""


def _said(value: Value) -> tuple[ShardPiece, ...] | str | None:
    """The pieces that a tensor is, or why they are not known; None for a tensor that is no part."""
    return value.facts.get(SHARDED) if isinstance(value, Compound) else None  # type: ignore[return-value]  # as below


def whole(mine: Weights, read: Callable[[str], Checkpoint] | None) -> Weights:
    """A file with those of the other ranks beside it as one checkpoint; anything else unchanged.

    Without `read`, the file alone, where it has all of each tensor.  Defects if the files are not all there, or do not
    say how their tensors are joined.
    """
    if not mine.checkpoint.is_of_a_rank:
        return mine
    folder, name = os.path.split(mine.path)
    if read is None:
        with suppress(Defects):
            return replace(mine, checkpoint=_joined(folder, {name: mine.checkpoint}))
        return mine
    names = [other for other in os.listdir(folder or os.curdir) if _of_any_rank(other) == _of_any_rank(name)]
    files = {}
    for other in sorted(names, key=_rank):
        path = os.path.join(folder, other)
        found = mine.checkpoint if other == name else read(path)
        if found.is_of_a_rank:
            files[other] = found
    stem = re.sub(_RANK_IN_STEM, "", mine.name.stem)
    return replace(mine, checkpoint=_joined(folder, files), name=replace(mine.name, stem=stem or STEMS[0]))


def _of_any_rank(name: str) -> str:
    """What the files of all ranks are called.

    >>> _of_any_rank("model_world_size_2_rank_1.pt"), _of_any_rank("step_10_rank0.pt"), _of_any_rank("7.pt")
    ('model_world_size_2_rank_#.pt', 'step_10_rank#.pt', '#.pt')
    """
    found = re.fullmatch(_NUMBER, name)
    return name if found is None else f"{found[1] or found[4] or ''}#{found[3] or found[6] or ''}"


def _rank(name: str) -> int:
    found = re.fullmatch(_NUMBER, name)
    return int(found[2] or found[5]) if found else 0


def _joined(folder: str, files: dict[str, Checkpoint]) -> Checkpoint:
    """The checkpoint of all ranks; `files` are theirs, in order."""
    (name, first), *others = files.items()
    joined = FolderTensors()
    wrong: list[str] = []
    apart: list[str] = []
    copied = 0
    for other, checkpoint in others:
        if differing := sorted(first.entries.keys() ^ checkpoint.entries.keys()):
            wrong.append(f"{other} and {name} do not have the same tensors: {some(differing, 3)}")
    if any(tensor.rpartition(".")[2] == FLAT for tensor in first.entries):
        wrong.append(f"{FLAT!r}: flat parameters of FSDP (LOCAL_STATE_DICT), of whose parts no file has the shapes")
    for tensor, entry in first.entries.items() if not wrong else ():
        held = [(checkpoint, checkpoint.entries[tensor].value) for checkpoint in files.values()]
        said = [_said(value) for _, value in held]
        if reason := next((one for one in said if isinstance(one, str)), ""):
            wrong.append(f"{tensor!r:.200}: {reason}")
        elif said[0] is None:
            if reason := _differing(held, files):
                wrong.append(f"{tensor!r:.200}: {reason}")
            copied += 1
            joined.take(first, tensor)
            if any(starts_differ(first, entry, one, one.entries[tensor]) for one, _ in held[1:]):
                apart.append(tensor)
        elif isinstance(value := _together(joined, held), str):
            wrong.append(f"{tensor!r:.200}: {value}")
        else:
            joined.entries[tensor] = entry._replace(value=value)
    if wrong:
        hint = "save the model in one piece with the program that trained it, or with torch.distributed.checkpoint"
        world = re.search(r"(?i)world_?size_?(\d+)", name)
        ranks = f"{world[1]} ranks" if world else "ranks"
        of_them = f"{plural(len(files), 'file')} of the {ranks} of one training"
        wrong.insert(0, f"{of_them}, parts of one model: {some(list(files), 3)}")
        raise Defects(folder or os.curdir, wrong, hint)
    notes = [f"{plural(copied, 'tensor')} that each rank has whole: as {name} has them"] if copied and others else []
    left = [f"{some(apart, 3)} of the other ranks, which have other values than {name}"] if apart else []
    odd = [other for other, checkpoint in others if checkpoint.objects != first.objects]
    left += [f"the objects of {some(odd, 3)}, which are others than those of {name}"] if odd else []
    return replace(
        first,
        files=tuple(file for one in files.values() for file in one.files),
        storages=joined.storages,
        entries=joined.entries,
        producer=f"torch.distributed, {plural(len(files), 'rank')}",
        unknown=tuple(one for checkpoint in files.values() for one in checkpoint.unknown),
        notes=(*first.notes, *notes),
        left_out=(*first.left_out, *left),
    )


def _differing(held: list[tuple[Checkpoint, Value]], files: dict[str, Checkpoint]) -> str:
    """How a tensor that each rank has whole differs in type or shape among them; empty if it does not."""
    forms = [(one.dtype.name, one.shape) if isinstance(one, View) else type(one).__name__ for _, one in held]
    other = next((k for k, form in enumerate(forms) if form != forms[0]), 0)
    names = list(files)
    said = (" ".join(map(str, forms[k])) if isinstance(forms[k], tuple) else forms[k] for k in (0, other))
    return f"is {next(said)} in {names[0]}, and {next(said)} in {names[other]}" if other else ""


def _together(joined: FolderTensors, held: list[tuple[Checkpoint, Value]]) -> View | str:
    """A tensor of its parts, or why they do not make it: each element once, or as a copy that another rank has."""
    boxes: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Checkpoint, View]] = {}
    shapes: set[Shape] = set()
    dtypes: set[DType] = set()
    for checkpoint, value in held:
        if not isinstance(value, Compound):
            return "is no part of a tensor in some of the files"
        shapes.add(value.facts["shape"])  # type: ignore[arg-type]  # as `_shards.value_of` sets it
        dtypes.update([DTYPES[name]] if (name := str(value.facts["dtype"])) else ())
        for piece in _said(value) or ():
            assert isinstance(piece, ShardPiece)
            part = value.parts[piece.part]
            offset = part.offset + sum(at * step for at, step in zip(piece.there, part.strides, strict=True))
            view = part.with_axes(piece.sizes, part.strides, offset)
            other = boxes.setdefault((piece.here, piece.sizes), (checkpoint, view))
            if other[0] is not checkpoint and starts_differ(other[0], Entry(other[1]), checkpoint, Entry(view)):
                return f"two ranks have {list(piece.sizes)} at {list(piece.here)}, with different bytes"
    if len(shapes) > 1 or len(dtypes) > 1:
        return "has other types or shapes in other files"
    (shape,), (dtype,) = shapes, dtypes
    try:
        return joined.assembled(dtype, shape, [(*box, *place) for box, place in boxes.items()])
    except ValueError as error:
        return str(error)
