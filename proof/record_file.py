"""Asks a library where it keeps the weights of networks, and writes the record of its answers."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from typing import Any

from paramtool import layouts
from paramtool.commands.earlier_output import SmallOutput
from paramtool.commands.progress import Path, Progress, silent
from paramtool.errors import OutputError, UsageError
from paramtool.layouts import evidence
from paramtool.layouts.layout import Layout
from proof.cudnn import asking, grid, record

ASKED = ("cudnn",)
"""Layouts of buffers that a library can be asked about."""
_BEGINS = re.compile(rb'\s*\{\s*"schema"\s*:\s*"' + re.escape(evidence.SCHEMA.rpartition("/")[0].encode()))
RECORD = SmallOutput("a record of `python -m proof`", lambda head, _: bool(_BEGINS.match(head)))


def to_verify(name: str) -> Layout:
    """The layout with that name; UsageError if no library can be asked about it."""
    layout = layouts.find(name)
    if name not in ASKED:
        raise UsageError(f"layout {name} cannot be verified by a library; expected one of {', '.join(ASKED)}")
    return layout


def ask_library(
    library: Path, layout: str = "cudnn", *, quick: bool = False, progress: Progress = silent
) -> dict[str, Any]:
    """Ask a libcudnn, without a GPU, about the whole grid; a record that compares its answers with the layout's table.

    UsageError if the file is not a libcudnn, FormatError if it cannot be asked without a GPU.
    """
    table, path = to_verify(layout), os.fspath(library)
    asked = asking.ask(path, quick)
    part = record.asked_part()
    with progress(f"cuDNN {asked.version}", sum(1 for _ in grid.asked(quick))) as advance:
        for case, found in asked.answers:
            record.compare(part, table, case, found)
            advance(1)
    system = f"{platform.system()} {platform.machine()}"
    machine = {"cudnn": asked.version, "python": platform.python_version(), "platform": system}
    return record.document(table, machine, quick, asked=part)


def check_record_place(output: Path, *, force: bool = False, inputs: Iterable[Path] = ()) -> None:
    """OutputError if a record cannot be written there; checked before the work, which takes minutes on a GPU.

    With `force`, only an earlier record or an empty file is replaced.
    """
    path = os.fspath(output)
    if not os.path.basename(path):
        raise OutputError(f"{path!r} is not a file name", hint="-o RECORD.json")
    if os.path.isdir(path):
        raise OutputError(f"{path}: is a folder; expected a file", hint="-o RECORD.json")
    RECORD.check(path, force=force, inputs=[os.fspath(source) for source in inputs])


def write_record(document: Mapping[str, Any], output: Path, *, force: bool = False) -> None:
    """Write a complete record or nothing; OutputError if the file exists already, or is no record with `force`."""
    text = json.dumps(document, separators=(",", ":"))
    RECORD.write(os.fspath(output), f"{text}\n".encode(), force=force, inputs=())
