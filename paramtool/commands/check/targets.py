"""Which checkpoints are checked: paths, and patterns that the shell did not expand."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from paramtool.errors import NoSuchFileError, ParamtoolError, UsageError
from paramtool.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from paramtool.formats.folder.weight_names import Weights
    from paramtool.model.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class CheckTarget:
    """A path, or why there is none."""

    path: str
    error: ParamtoolError | None = None


def targets(paths: Iterable[str], folder: str = "") -> list[CheckTarget]:
    """Every path once, in the order of the arguments; a pattern becomes what it matches, sorted by name.

    Paths and patterns are relative to `folder`.  A path that is not there, and a pattern that matches nothing, is an
    error of its own.
    """
    found: dict[str, CheckTarget] = {}
    for path in paths:
        for one in _expanded(os.path.join(folder, path)):
            found.setdefault(one.path, one)
    return list(found.values())


def _expanded(path: str) -> Iterator[CheckTarget]:
    if not path or os.path.lexists(path):
        yield CheckTarget(path, None if path else UsageError("an empty path; expected a file or a folder"))
    elif not re.search(r"[*?\[]", path):
        yield CheckTarget(path, NoSuchFileError(path, "no such file or folder"))
    elif matching := _matching(path):
        yield from map(CheckTarget, matching)
    else:
        yield CheckTarget(path, NoSuchFileError(path, "no file matches this pattern"))


def _matching(pattern: str) -> list[str]:
    from glob import glob

    try:
        return sorted(glob(pattern, recursive=True))
    except ValueError:  # a NUL in it
        return []


def inside(folder: str) -> list[str]:
    """The checkpoints of a folder that is not one itself: sets of weights there and in subfolders, with their copies.

    A file that could be one and cannot be read is among them.  Empty where nothing can be read.
    """
    from paramtool import formats
    from paramtool.formats.folder import weight_sets

    failed: set[str] = set()

    def read(path: str) -> Checkpoint:
        try:
            return formats.read_file(path)
        except ParamtoolError:
            failed.add(path)
            raise

    try:
        found = weight_sets.every(folder, read)
    except ParamtoolError:
        return []
    paths = [path for place, sets in found.items() for path in _of_place(folder, place, sets)]
    return [*paths, *(path for path in sorted(failed) if path not in paths)]


def _of_place(folder: str, place: str, sets: Sequence[Weights]) -> list[str]:
    """The paths of the sets of one folder: the subfolder itself, if it has one set and no copies."""
    if place and len(sets) == 1 and not sets[0].copies:
        return [os.path.join(folder, *place.split("/"))]
    return [path for one in sets for path in (one.path, *(copy.path for copy in one.copies))]
