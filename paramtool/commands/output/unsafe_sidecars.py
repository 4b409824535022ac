"""What the pickles among the other files of a folder would call: scheduler.pt, training_args.bin, random_states_0.pkl.

Such files come along byte for byte, and a program that resumes from the folder unpickles them.  They are run by the
closed machine, as the checkpoint itself is; `inspect` of a folder exits with 4 for them, other commands warn.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from paramtool.commands.output.sidecars import sidecars_of
from paramtool.commands.progress import Path
from paramtool.errors import leading
from paramtool.formats import policy, scan
from paramtool.formats.files import is_folder
from paramtool.model.checkpoint import Checkpoint, Unknown

UnsafeNames = Mapping[str, tuple[Unknown, ...]]
"""{name in the folder: what its pickles ask for}"""


def beside(path: Path, checkpoint: Checkpoint) -> UnsafeNames:
    """What the files beside a checkpoint ask for, where a folder is given; files that ask for nothing are left out."""
    if not is_folder(path):
        return {}
    folder = os.fspath(path)
    try:
        found = sidecars_of(folder, [file.path for file in checkpoint.files], folder)
    except OSError:
        return {}
    return asked({**found.files, **found.same})


def asked(files: Mapping[str, str]) -> UnsafeNames:
    """What files ask for, by their names in an output; files that ask for nothing are left out."""
    scanned = ((name, scan.scan(path)) for name, path in files.items())
    return {name: unknown for name, unknown in scanned if unknown}


def warnings(files: Mapping[str, str], allow_class: Sequence[str] = ()) -> Iterator[str]:
    """A warning for each file that comes along and would call what is not allowed."""
    allowed = policy.checked(allow_class)
    for name, unknown in asked(files).items():
        if bad := policy.unsafe(unknown, allowed):
            calls = leading(bad, MANY, policy.format_unknown, "; ")
            yield f"{name!r} is copied, and is unsafe to unpickle: it calls or names {calls}; nothing of it was run"


MANY = 3
"""The most calls that a warning lists for a file."""
