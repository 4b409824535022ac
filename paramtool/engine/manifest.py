"""What an output of several folders was written with, so that it is known later what may be replaced.

DIR/paramtool.family.json     {"version": 1, "files": {"a/config.json": 612, ...}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

MANIFEST = "paramtool.family.json"


def manifest(folder: str) -> bytes:
    """The manifest of what is in a folder now: {file: its size}, in JSON."""
    found = {name: os.lstat(os.path.join(folder, name)).st_size for name in _files(folder) if name != MANIFEST}
    return (json.dumps({"version": 1, "files": found}, indent=2) + "\n").encode()


def strange(folder: str) -> Iterator[str]:
    """What a folder holds that is not as its manifest says: files that came later, or have another size."""
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as file:
            known = {str(name): int(nbytes) for name, nbytes in json.load(file)["files"].items()}
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        yield MANIFEST
        return
    for name in _files(folder):
        if name != MANIFEST and known.get(name) != os.lstat(os.path.join(folder, name)).st_size:
            yield name


def _files(folder: str) -> Iterator[str]:
    """Everything in a folder and in those inside that is no folder, by its name from there, with `/`; sorted."""
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = sorted(set(folders) - set(links))
        for name in sorted([*files, *links]):
            yield os.path.relpath(os.path.join(place, name), folder).replace(os.sep, "/")
