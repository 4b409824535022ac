"""The state of a training beside the weights of a folder: commands that look at the weights alone say so."""

from __future__ import annotations

import os

from paramtool.commands.output.sidecars import of_file
from paramtool.commands.progress import Path
from paramtool.errors import some
from paramtool.formats.files import is_folder
from paramtool.model.checkpoint import Checkpoint


def training_state(path: Path, checkpoint: Checkpoint) -> str:
    """The files of a folder that hold optimizers, schedulers and generators, in words; "" where there are none.

    `checkpoint` was read from the folder.  OSError where it cannot be listed.
    """
    folder = os.fspath(path)
    if not is_folder(folder):
        return ""
    states = of_file(folder, (file.path for file in checkpoint.files)).states
    return f"{some(states, 3)}, which {'is' if len(states) == 1 else 'are'} the state of a training" if states else ""
