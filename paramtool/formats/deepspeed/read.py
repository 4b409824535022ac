"""Checkpoints of DeepSpeed's ZeRO, as its ranks saved them; read without torch and without DeepSpeed.

    global_step10/mp_rank_00_model_states.pt                          the model (stages 1 and 2)
    global_step10/zero_pp_rank_0_mp_rank_00_model_states.pt           its buffers and shapes (stage 3), for each rank
    global_step10/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt      the flat groups, for each rank

The state of the optimizer is joined from the flat groups of all ranks, under the parameters' names; under stage 3 the
parameters are, too.  `param_shapes` says what is where, as for DeepSpeed's own zero_to_fp32; `param_slice_mappings` are
compared with it.  They are wrong where ranks take turns (`round_robin_gradients`, DeepSpeed 0.19).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from paramtool.errors import plural, some
from paramtool.formats.deepspeed import names, optimizer
from paramtool.formats.deepspeed.names import RankFiles
from paramtool.formats.deepspeed.optimizer import AT, FRAGMENTS, MASTERS, checkpoint, last_mark, piece
from paramtool.formats.deepspeed.states import (
    Findings,
    ModelStates,
    OptimizerStates,
    check_groups,
    check_models,
    check_ranks,
    model_states,
    of_slices,
    optimizer_states,
)
from paramtool.formats.files import is_folder
from paramtool.formats.joined import FolderTensors
from paramtool.formats.torch.storages import PARTITIONED, holder
from paramtool.model.checkpoint import Checkpoint, Link
from paramtool.model.storage import ByteRange
from paramtool.model.view import View

AGAIN = "copy or save the folder again, with the files of all ranks of one save"
_SHOWN = 3


def read(path: str) -> Checkpoint:
    """Describe a folder; FormatError, Defects or UnsafeError if it is damaged, or holds only a part of the model."""
    folder = path if is_folder(path) else os.path.dirname(path)
    folder = folder.rstrip(os.sep) or folder
    files = names.files_of(folder)
    findings = Findings(folder, AGAIN)
    # The optimizer states of all ranks, in order; what is missing or of another save is a finding.
    found: dict[int, OptimizerStates] = {}
    for rank, called in files.optimizers.items():
        if len(called) > 1:
            findings.add(f"rank {rank} has {plural(len(called), 'file')}, of several saves: {some(called, _SHOWN)}")
            continue
        if states := optimizer_states(files.path(called[0]), findings):
            found[rank] = states
    check_ranks(files, found, findings)
    ranks = [found[rank] for rank in sorted(found)]
    findings.refuse()
    models = _models(files, ranks, findings)
    findings.refuse()
    notes = [*check_models(models, ranks, findings)]
    findings.refuse()
    flat = check_groups(models[0].shapes, ranks, findings)
    findings.refuse()
    notes += flat.notes
    joined = FolderTensors()
    first, saved = models[0], ranks[0]
    if saved.stage < 3:
        notes += stored(first, joined)
        optimizer.masters(flat, joined, lambda name: f"{AT}.{MASTERS}.{name}")
    elif not lacks(first, findings):
        optimizer.masters(flat, joined, first.module.__getitem__)
        notes += joined_module(models, joined, findings)
    kept = optimizer.state(flat, joined, findings)
    groups = optimizer.named_groups(saved.groups, [list(one) for one in flat.shapes], findings)
    mark = last_mark(first.file.objects)  # which the numbers of shared objects follow
    settings = optimizer.taken([(optimizer.GROUPS, groups)], saved.file, joined, mark, at=saved.base)
    made = optimizer.tree(kept, saved.stage < 3, [*settings, *optimizer.taken(saved.rest, saved.file, joined, mark)])
    findings.refuse()
    held: list[ModelStates | OptimizerStates] = [*models, *ranks]
    sources = [source for one in held for source in one.file.files]
    what = f"ZeRO stage {saved.stage}, {plural(len(ranks), 'rank')}"
    return checkpoint(joined, first.file.objects, made, sources, findings.asked, notes=notes, what=what)


def _models(files: RankFiles, ranks: Sequence[OptimizerStates], findings: Findings) -> list[ModelStates]:
    """The model states: one file, or one for each rank in stage 3."""
    sliced = ranks[0].stage == 3
    wanted = {rank: files.sliced.get(rank, "") for rank in range(len(ranks))} if sliced else {0: files.model}
    others = [files.model] * bool(files.model) if sliced else list(files.sliced.values())
    others += [name for rank, name in files.sliced.items() if sliced and rank not in wanted]
    if others:
        findings.add(f"{some(others, _SHOWN)}: of another save: the optimizer's files are of stage {ranks[0].stage}")
    found = []
    for rank, name in wanted.items():
        if not name:
            file_name = f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" if sliced else "mp_rank_00_model_states.pt"
            findings.add(f"the file {file_name!r} is missing")
            continue
        if states := model_states(files.path(name), findings):
            found.append(states)
    return found


# --- The tensors of the model: as the model states have them, or joined from the ranks where those are empty ----------
#
# Under stages 1 and 2 `module` has every tensor.  Under stage 3 its parameters are empty: those that are trained are in
# the flat groups of the optimizer, in float32, and frozen ones in `frozen_param_fragments` of each rank, in the type of
# the model.


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
            # A frozen parameter, from the slices of all ranks
            shape = model.frozen[key]
            slices = [one.get(fragments.get(key, "")) for one, fragments in held]
            dtype = slices[0].dtype if slices[0] is not None else None
            pieces = []
            for at in of_slices(0, {key: shape}, len(models))[key]:
                view = slices[at.rank]
                if view is None or not view.is_contiguous or view.numel < at.numel or view.dtype != dtype:
                    findings.add(f"{key!r}: rank {at.rank} does not have its {plural(at.numel, 'element')}")
                    break
                pieces.append((models[at.rank].file, piece(view, 0, at.numel)))
            else:
                if dtype is not None:
                    joined.join(name, dtype, shape, pieces)
        elif key not in model.shared:
            joined.take(model.file, name)
            if name in views and views[name].shape == (0,):
                findings.add(f"{key!r}: is empty in `module`, and no rank has its values")
    # The names that share the tensor of another, by declaration
    for key in model.shared:
        called, owner = model.module.get(key), model.module.get(holder(model.shared, key), "")
        if called is None or called in joined.entries:
            continue
        if owner not in joined.entries:
            findings.add(f"`shared_params` says that {key!r} is {model.shared[key]!r}, which no rank has")
            continue
        entry = joined.entries[owner]
        joined.entries[owner] = entry._replace(link=Link(owner, "storage"))
        joined.entries[called] = entry._replace(link=Link(owner, "declared"))
    if half := [key for key in trained if (name := model.module[key]) in views and views[name].numel]:
        yield f"{plural(len(half), 'tensor')} that `module` has as well, rounded: {some(half, _SHOWN)}; read in float32"
    # A note if the buffers of ranks differ, by the CRCs of their bytes.
    other = [
        key
        for key, name in model.module.items()
        if key not in trained and key not in model.frozen and name in inside
        if len({_crc32(one, views.get(name)) for one, (views, _) in zip(models, held, strict=True)}) > 1
    ]
    if other:
        what = f"{plural(len(other), 'buffer')} with other bytes in other ranks"
        yield f"{what}: {some(other, _SHOWN)}; rank 0's are read"
    yield from (note for note in model.file.notes if PARTITIONED not in note)


def _crc32(model: ModelStates, view: View | None) -> int | None:
    backing = model.file.storages[int(view.storage)].backing if view is not None else None
    return backing.crc32 if isinstance(backing, ByteRange) else None
