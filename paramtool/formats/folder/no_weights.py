"""The error for a folder in which no weights can be read: what it has in their place, or what was looked for."""

from __future__ import annotations

import os

from paramtool.errors import FormatError
from paramtool.formats import sniff
from paramtool.formats.files import unreadable
from paramtool.formats.folder import roots
from paramtool.formats.table import installed

METADATA = ".metadata"
LOOKED_FOR = "model.safetensors, pytorch_model.bin, *.index.json, *.pt, *.h5, .metadata with *.distcp, and the like"
"""Names of weights, as a message has them."""


def error(folder: str) -> FormatError:
    """A folder without weights that can be read."""
    from paramtool.formats import foreign

    names = _names(folder)
    if os.path.isfile(os.path.join(folder, METADATA)) and (found := _without_parts(folder)):
        return found
    if any(name.endswith(sniff.DISTRIBUTED) for name in names):
        return FormatError(
            f"{folder}: has files of torch.distributed.checkpoint and no `.metadata`, which says what is in them",
            hint="copy the whole folder; if the save did not end, there is no checkpoint in it",
        )
    if other := foreign.folder(names):
        return FormatError(f"{folder}: is {other.what}", hint=other.hint)
    if kept := roots.lost(folder):
        return FormatError(f"{folder}: {kept}", hint="copy the whole folder, or name the folder of a step")
    what = "is a folder without weights files and without an index" if names else "is an empty folder"
    hints = (f"looked for {LOOKED_FOR}; name the file itself if it has another name", *installed().broken)
    return FormatError(f"{folder}: {what}", hint="; ".join(hints))


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as failed:
        raise unreadable(folder, failed) from None


def _without_parts(folder: str) -> FormatError | None:
    """The error for a folder of torch.distributed.checkpoint that lacks all files with the parts of tensors."""
    from paramtool.formats.dcp import read

    try:
        read.read(folder)
    except FormatError as failed:
        failed.hint = failed.hint or "copy the whole folder: `.metadata` says which tensors there are, without values"
        return failed
    return None
