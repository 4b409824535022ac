"""Folders that programs train with: what belongs to one checkpoint there, and where its weights are.

    .metadata, __0_0.distcp                               dcp        torch.distributed.checkpoint
    pytorch_model_fsdp_0/.metadata, optimizer_0/.metadata fsdp       accelerate's save_state with FSDP, sharded
    trainer_state.json, optimizer.pt                      trainer    transformers' Trainer
    zero_pp_rank_0_mp_rank_00_optim_states.pt             deepspeed  a step of DeepSpeed, with ZeRO
    zero/                                                 universal  DeepSpeed's universal checkpoint
    latest, global_step10/                                steps      what DeepSpeed saved, of which `latest` names one

A kind with a module is read by it, the sharded weights of FSDP from the folder inside; of the others the weights are
files like any others.  A folder with `latest` that has weights of its own, as transformers' Trainer writes them beside
DeepSpeed's, is read for these.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module

from paramtool.formats.deepspeed.names import LATEST, latest
from paramtool.formats.files import noted
from paramtool.formats.folder.training_files import is_training_state
from paramtool.formats.table import suffixes
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint

Read = Callable[[str], Checkpoint]


@frozen
class Root:
    """A kind of folder."""

    kind: str
    marks: tuple[str, ...]
    """Patterns of names; a folder of this kind has a file or a folder for each."""
    weights: str = ""
    """The file or the folder that the weights are read from, if it always has this name."""
    module: str = ""
    """The module with `read(path) -> Checkpoint`, imported when such a folder is read."""
    parts: str = ""
    """A pattern of the names of files that the module reads, and that are no sets of weights of their own."""
    named_by: tuple[str, ...] = ()
    """Files with the name of the folder inside that is read; the first that there is counts."""

    def read(self, path: str) -> Checkpoint:
        """Describe the checkpoint of a folder; FormatError if that is impossible."""
        found: Checkpoint = import_module(self.module).read(path)
        return found


_STEPS = ("deepspeed", "universal")
"""The kinds of a folder of one step."""
ROOTS = (
    Root("steps", (), named_by=LATEST, module="paramtool.formats.deepspeed.read"),
    Root("dcp", (r"\.metadata", r".*\.distcp"), ".metadata", module="paramtool.formats.dcp.read"),
    # accelerate/utils/fsdp_utils.py of 1.15: FSDP_MODEL_NAME
    Root("fsdp", (r"pytorch_model_fsdp_\d+",), "pytorch_model_fsdp_0/.metadata", "paramtool.formats.dcp.read"),
    # transformers/trainer.py of 5.23
    Root("trainer", (r"trainer_state\.json", r"optimizer\.(pt|bin)")),
    # DeepSpeed 0.19: runtime/engine.py, `_get_zero_ckpt_name`, and checkpoint/ds_to_universal.py
    Root(
        "universal", (r"zero", r"(zero_pp_rank_\d+_)?mp_rank_\d+_model_states\.pt"),
        module="paramtool.formats.deepspeed.universal", parts=r".*_states\.pt",
    ),
    Root(
        "deepspeed", (r".*zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt",),
        module="paramtool.formats.deepspeed.read", parts=r".*_states\.pt",
    ),
)  # fmt: skip
"""The kinds; the first that a folder has the marks of is its kind."""


def root_of(folder: str) -> Root | None:
    """The kind of a folder; None if it is of none, or cannot be listed."""
    names = _names(folder)
    return next((root for root in ROOTS if _is(root, folder, names)), None)


def _names(folder: str) -> list[str]:
    """The names in a folder; none if it cannot be listed."""
    try:
        return os.listdir(folder or os.curdir)
    except OSError:
        return []


def _is(root: Root, folder: str, names: list[str]) -> bool:
    """Whether a folder with these names is of a kind."""
    if not root.named_by:
        return all(_is_any(mark, names) for mark in root.marks)
    if not any(name in names for name in root.named_by) or any(
        n.endswith(suffixes()) and not is_training_state(n) for n in names
    ):
        return False
    return step_of(inside(folder, root)) is not None


def step_of(folder: str) -> Root | None:
    """The kind of a folder of one step of DeepSpeed; None if it is none."""
    names = _names(folder)
    return next((one for one in ROOTS if one.kind in _STEPS and _is(one, folder, names)), None)


def lost(folder: str) -> str:
    """What is wrong with a folder whose `latest` names a step that it does not have; empty for any other."""
    named = next(((name, tag) for name in LATEST if (tag := latest(folder, name))), None)
    if named is None or os.path.isdir(os.path.join(folder, named[1])):
        return ""
    return f"{named[0]!r} says that the step is in the folder {named[1]!r:.200}, which is not there"


def inside(folder: str, root: Root) -> str:
    """The folder that a checkpoint is read from: the folder itself, or the one inside that a file in it names."""
    named = next((tag for name in root.named_by if (tag := latest(folder, name))), "")
    return os.path.join(folder, named) if named else folder


def _is_any(pattern: str, names: list[str]) -> bool:
    return any(re.fullmatch(pattern, name) for name in names)


def weights_of(folder: str) -> str | None:
    """The path from which the weights of a folder are read by the module of its kind; None where there is none."""
    root = root_of(folder)
    return os.path.join(folder, root.weights) if root and root.module else None


def is_part(root: Root | None, name: str) -> bool:
    """Whether a file of a folder is read by the module of its kind, by its name."""
    return root is not None and bool(root.parts) and re.fullmatch(root.parts, name) is not None


def models_inside(folder: str) -> list[str]:
    """The folders of models in a folder of accelerate's with FSDP, which has one for each; empty for other kinds."""
    root = root_of(folder)
    if root is None or root.kind != "fsdp":
        return []
    return sorted(name for name in os.listdir(folder or os.curdir) if _is_any(root.marks[0], [name]))


def left_behind(checkpoint: Checkpoint, path: str) -> tuple[str, ...]:
    """Files of a folder that was read by a module that look like those of its checkpoint and are of another one."""
    folder = os.path.dirname(path)
    root = root_of(folder)
    if root is None or not root.module or os.path.join(folder, root.weights) != path:
        return ()
    names = sorted(
        {*os.listdir(folder or os.curdir)}.difference(os.path.basename(file.path) for file in checkpoint.files)
    )
    return tuple(os.path.join(folder, name) for name in names for mark in root.marks if re.fullmatch(mark, name))


def through(read: Read) -> Read:
    """A reader of files that reads folders of a kind with a module by it, given the path that `weights_of` has."""

    roots = cache(root_of)  # a folder is listed once, however many files of it are read

    def reading(path: str) -> Checkpoint:
        folder = os.path.dirname(path)
        root = roots(folder)
        root = root if root and root.module and os.path.join(folder, root.weights) == path else None
        if root and root.named_by:
            # The checkpoint of the folder inside that a file names; the file counts as read
            place = inside(folder, root)
            step = step_of(place)
            assert step is not None
            found = step.read(os.path.join(place, ""))
            named = [name for name in root.named_by if latest(folder, name)]
            paths = [os.path.join(folder, name) for name in named]
            return replace(found, files=(*found.files, *(noted(path, os.stat(path)) for path in paths)))
        return root.read(path) if root else read(path)

    return reading
