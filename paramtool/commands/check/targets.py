"""Which checkpoints are checked: paths, and patterns that the shell did not expand."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from paramtool.errors import NoSuchFileError, ParamtoolError, UsageError
from paramtool.lazy_dataclass import dataclass


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

    Empty where there are none, or where one of them cannot be read.
    """
    from paramtool import formats
    from paramtool.formats.folder import weight_sets

    try:
        found = weight_sets.every(folder, formats.read_file)
    except ParamtoolError:
        return []
    paths = []
    for place, sets in found.items():
        if place and len(sets) == 1 and not sets[0].copies:
            paths.append(os.path.join(folder, *place.split("/")))
        else:
            paths += [path for one in sets for path in (one.path, *(copy.path for copy in one.copies))]
    return paths
