"""What installed packages add to a group of entry points, such as `paramtool.layouts`.

[project.entry-points."paramtool.layouts"]     in the pyproject.toml of a package
mine = "my_package.layouts:mine"
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from paramtool.errors import ParamtoolError, message_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def entry_points(group: str) -> list[EntryPoint]:
    """The entry points of a group, by package and name; importlib.metadata is imported only where there are any.

    Importing it would take longer than everything else that `inspect` imports.
    """
    if not any(f"[{group}]".encode() in declared for folder in sys.path for declared in _declared(folder)):
        return []
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group), key=lambda point: (package(point), point.name))


def package(point: EntryPoint) -> str:
    """The name and version of the package that declares an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def refusal(point: EntryPoint, error: Exception) -> str:
    """Why an entry point is of no use, and whose it is."""
    reason = message_of(error) if isinstance(error, ParamtoolError) else f"{type(error).__name__}: {message_of(error)}"
    return f"package {package(point)}, entry point {point.name} = {point.value}: {reason}"


def _declared(folder: str) -> Iterator[bytes]:
    """The texts of the entry points of the packages that are installed in a folder."""
    try:
        with os.scandir(folder or os.curdir) as found:
            places = [item.path for item in found if item.name.endswith((".dist-info", ".egg-info"))]
    except OSError:
        return
    for each in places:
        try:
            with open(os.path.join(each, "entry_points.txt"), "rb") as file:
                yield file.read()
        except OSError:
            continue
