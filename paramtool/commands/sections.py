"""A section of a checkpoint with what the file's records say of it."""

from __future__ import annotations

import os
from dataclasses import replace

from paramtool.commands.output.sidecars import of_file
from paramtool.commands.progress import Path
from paramtool.errors import some
from paramtool.formats.config_names import with_config
from paramtool.formats.files import is_folder
from paramtool.formats.record.moved import carried_metadata
from paramtool.model.checkpoint import Checkpoint
from paramtool.passes import select

MODEL = "model"
"""The section that every checkpoint with weights has: the one of this name, else the only one of that role."""


def named(whole: Checkpoint, name: str) -> str | None:
    """The section that a user means by a name; None where that is the whole checkpoint.

    `model` means the model, whatever its section is called: `state_dict` in a checkpoint of Lightning.
    """
    if name != MODEL or any(one.name == name for one in whole.sections):
        return name
    if not whole.sections and any(entry.role == MODEL for entry in whole.entries.values()):
        return None
    models = [one.name for one in whole.sections if one.role == MODEL]
    return models[0] if len(models) == 1 else name


def section_of(whole: Checkpoint, name: str) -> Checkpoint:
    """Only one section, with its prefix stripped from every name; errors as of `select.section`."""
    meant = named(whole, name)
    if meant is None:
        return whole
    found = select.section(whole, meant)
    prefix = next(section.prefix for section in whole.sections if section.name == meant)
    renamed = {f"{prefix}{name}": name for name in found.entries}
    return with_config(replace(found, metadata=carried_metadata(whole.path, whole.metadata, renamed)))[0]


# --- The state of a training beside the weights of a folder: commands that look at the weights alone say so -----------


def training_state(path: Path, checkpoint: Checkpoint) -> str:
    """The files of a folder that hold optimizers, schedulers and generators, in words; "" where there are none.

    `checkpoint` was read from the folder.  OSError where it cannot be listed.
    """
    folder = os.fspath(path)
    if not is_folder(folder):
        return ""
    states = of_file(folder, (file.path for file in checkpoint.files)).states
    return f"{some(states, 3)}, which {'is' if len(states) == 1 else 'are'} the state of a training" if states else ""
