"""Folders that programs train with: what belongs to one checkpoint there, and where its weights are.

    .metadata, __0_0.distcp                               dcp        torch.distributed.checkpoint
    pytorch_model_fsdp_0/.metadata, optimizer_0/.metadata fsdp       accelerate's save_state with FSDP, sharded
    trainer_state.json, optimizer.pt                      trainer    transformers' Trainer
    random_states_0.pkl, optimizer.bin                    accelerate save_state
    zero_pp_rank_0_mp_rank_00_optim_states.pt             deepspeed  a step of DeepSpeed, with ZeRO
    zero/                                                 universal  DeepSpeed's universal checkpoint

A kind with a module is read by it, the sharded weights of FSDP from the folder inside; of the others the weights are
files like any others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module

from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint

Read = Callable[[str], Checkpoint]


@dataclass(frozen=True, slots=True)
class Root:
    """A kind of folder."""

    kind: str
    marks: tuple[str, ...]
    """Patterns of names; a folder of this kind has a file or a folder for each."""
    weights: str = ""
    """The file or the folder that the weights are read from, if it always has this name."""
    optimizers: tuple[str, ...] = ()
    """Patterns of the files or folders with the states of optimizers that are not in the weights' own."""
    extra: tuple[str, ...] = ()
    """Patterns of what else a training resumes from."""
    module: str = ""
    """The module with `read(path) -> Checkpoint`, imported when such a folder is read."""

    def read(self, path: str) -> Checkpoint:
        """Describe the checkpoint of a folder; FormatError if that is impossible."""
        found: Checkpoint = import_module(self.module).read(path)
        return found


_RESUMED = (r"scheduler(_\d+)?\.(pt|bin)", r"scaler\.pt", r"rng_state(_\d+)?\.pth", r"random_states_\d+\.pkl")

ROOTS = (
    Root("dcp", (r"\.metadata", r".*\.distcp"), ".metadata", module="paramtool.formats.dcp.read"),
    # accelerate/utils/fsdp_utils.py of 1.15: FSDP_MODEL_NAME and OPTIMIZER_NAME
    Root(
        "fsdp", (r"pytorch_model_fsdp_\d+",), "pytorch_model_fsdp_0/.metadata", (r"optimizer_\d+",), _RESUMED,
        module="paramtool.formats.dcp.read",
    ),
    # transformers/trainer.py of 5.23
    Root(
        "trainer", (r"trainer_state\.json", r"optimizer\.(pt|bin)"), "", (r"optimizer\.(pt|bin)",),
        (*_RESUMED, r"trainer_state\.json", r"training_args\.bin"),
    ),
    # DeepSpeed 0.19: runtime/engine.py, `_get_zero_ckpt_name`, and checkpoint/ds_to_universal.py
    Root("universal", (r"zero", r"mp_rank_\d+_model_states\.pt"), "", (r"zero",)),
    Root("deepspeed", (r".*zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt",), "", (r".*_optim_states\.pt",)),
    # accelerate/checkpointing.py of 1.15, `save_accelerator_state`
    Root(
        "accelerate", (r"random_states_\d+\.pkl",), "", (r"optimizer(_\d+)?\.bin",),
        (*_RESUMED, r"sampler(_\d+)?\.bin"),
    ),
)  # fmt: skip
"""The kinds; the first that a folder has the marks of is its kind."""


def root_of(folder: str) -> Root | None:
    """The kind of a folder; None if it is of none, or cannot be listed."""
    try:
        names = os.listdir(folder or os.curdir)
    except OSError:
        return None
    return next((root for root in ROOTS if all(_is_any(mark, names) for mark in root.marks)), None)


def _is_any(pattern: str, names: list[str]) -> bool:
    return any(re.fullmatch(pattern, name) for name in names)


def weights_of(folder: str) -> str | None:
    """The path from which the weights of a folder are read by the module of its kind; None where there is none."""
    root = root_of(folder)
    return os.path.join(folder, root.weights) if root and root.module else None


def models_inside(folder: str) -> list[str]:
    """The folders of models in a folder of accelerate's with FSDP, which has one for each; empty for other kinds."""
    root = root_of(folder)
    if root is None or root.kind != "fsdp":
        return []
    return sorted(name for name in os.listdir(folder or os.curdir) if _is_any(root.marks[0], [name]))


def left_behind(checkpoint: Checkpoint, path: str) -> tuple[str, ...]:
    """Files of a folder that was read by a module that look like those of its checkpoint and are of another one."""
    folder = os.path.dirname(path)
    root = root_of(folder) if weights_of(folder) == path else None
    known = {os.path.basename(file.path) for file in checkpoint.files}
    names = sorted(set(os.listdir(folder or os.curdir)) - known) if root else []
    return (
        tuple(os.path.join(folder, name) for name in names for mark in root.marks if re.fullmatch(mark, name))
        if root
        else ()
    )


def through(read: Read) -> Read:
    """A reader of files that reads folders of a kind with a module by it, given the path that `weights_of` has."""

    def reading(path: str) -> Checkpoint:
        folder = os.path.dirname(path)
        root = root_of(folder) if weights_of(folder) == path else None
        return root.read(path) if root else read(path)

    return reading
