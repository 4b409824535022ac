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
from collections.abc import Iterator
from collections.abc import Sequence as Sequence_

from paramtool.errors import plural, some
from paramtool.formats.deepspeed import module, names, optimizer
from paramtool.formats.deepspeed.agree import check_groups, check_models, check_ranks
from paramtool.formats.deepspeed.joined import checkpoint, last_mark, with_child
from paramtool.formats.deepspeed.names import RankFiles
from paramtool.formats.deepspeed.optimizer import AT, MASTERS, FlatGroups
from paramtool.formats.deepspeed.states import (
    Findings,
    ModelStates,
    OptimizerStates,
    child,
    model_states,
    optimizer_states,
)
from paramtool.formats.files import is_folder
from paramtool.formats.joined import FolderTensors
from paramtool.model.checkpoint import Checkpoint, Unknown
from paramtool.model.objects import Leaf, Mapping

AGAIN = "copy or save the folder again, with the files of all ranks of one save"
_SHOWN = 3


def read(path: str) -> Checkpoint:
    """Describe a folder; FormatError, Defects or UnsafeError if it is damaged, or holds only a part of the model."""
    folder = path if is_folder(path) else os.path.dirname(path)
    folder, asked = folder.rstrip(os.sep) or folder, list[Unknown]()
    files = names.files_of(folder)
    findings = Findings(folder)
    # The optimizer states of all ranks, in order; what is missing or of another save is a finding.
    found: dict[int, OptimizerStates] = {}
    for rank, called in files.optimizers.items():
        if len(called) > 1:
            findings.add(f"rank {rank} has {plural(len(called), 'file')}, of several saves: {some(called, _SHOWN)}")
            continue
        if states := optimizer_states(files.path(called[0]), findings, asked):
            found[rank] = states
    check_ranks(files, found, findings)
    ranks = [found[rank] for rank in sorted(found)]
    findings.refuse(AGAIN)
    models = _models(files, ranks, findings, asked)
    findings.refuse(AGAIN)
    notes = [*check_models(models, ranks, findings)]
    findings.refuse(AGAIN)
    fragments = check_groups(models[0].shapes, ranks, findings)
    findings.refuse(AGAIN)
    notes += fragments.notes
    flat = FlatGroups(models[0].shapes, fragments.fragments, ranks)
    joined = FolderTensors()
    notes += _module(models, flat, joined, findings)
    made = _optimizer(flat, joined, findings, last_mark(models[0].file.objects))
    findings.refuse(AGAIN)
    top = models[0].file.objects
    assert isinstance(top, Mapping)
    top = with_child(with_child(top, AT, made), module.FRAGMENTS, None)
    sources: list[ModelStates | OptimizerStates] = [*models, *ranks]
    return checkpoint(
        joined, top, [source for one in sources for source in one.file.files], asked,
        notes=notes, producer=producer(models[0], f"ZeRO stage {ranks[0].stage}, {plural(len(ranks), 'rank')}"),
    )  # fmt: skip


def producer(model: ModelStates, what: str) -> str:
    """The program that wrote a folder."""
    version = child(model.file.objects, "ds_version")
    number = f" {version.value}" if isinstance(version, Leaf) and isinstance(version.value, str) else ""
    return f"DeepSpeed{number}, {what}"


def _models(
    files: RankFiles, ranks: Sequence_[OptimizerStates], findings: Findings, asked: list[Unknown]
) -> list[ModelStates]:
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
        if states := model_states(files.path(name), findings, asked):
            found.append(states)
    return found


def _module(
    models: Sequence_[ModelStates], flat: FlatGroups, joined: FolderTensors, findings: Findings
) -> Iterator[str]:
    """Add the tensors of the model, and the float32 parameters; yields notes."""
    if flat.ranks[0].stage < 3:
        yield from module.stored(models[0], joined)
        optimizer.masters(flat, joined, lambda name: f"{AT}.{MASTERS}.{name}")
    elif not module.lacks(models[0], findings):
        optimizer.masters(flat, joined, models[0].module.__getitem__)
        yield from module.joined_module(models, joined, findings)


def _optimizer(flat: FlatGroups, joined: FolderTensors, findings: Findings, first: int) -> Mapping:
    """The optimizer's mapping, with its tensors added; the numbers of shared objects follow `first`."""
    rank = flat.ranks[0]
    kept = optimizer.state(flat, joined, findings)
    groups = optimizer.named_groups(rank.groups, [list(one) for one in flat.shapes], findings)
    settings = optimizer.taken([(optimizer.GROUPS, groups)], rank.file, joined, first, at=rank.base)
    rest = optimizer.taken(rank.rest, rank.file, joined, first)
    return optimizer.tree(kept, rank.stage < 3, [*settings, *rest])
