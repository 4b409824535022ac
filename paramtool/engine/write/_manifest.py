"""The manifest of an output of several folders: the files that were written, so that a later run knows what it may
replace.

DIR/paramtool.family.json     {"version": 2, "files": {"a/config.json": {"size": 612, "blake3": "06be..."}, ...}}

The size alone does not show that a file is unchanged: a shard that was changed in place keeps its size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from paramtool.engine.read.open_files import read_blocks
from paramtool.errors import FormatError
from paramtool.formats.files import walk

MANIFEST = "paramtool.family.json"
VERSION = 2


def manifest(folder: str) -> bytes:
    """The manifest of a folder as it is now, in JSON; a file with several names is read once."""
    known: dict[int, dict[str, int | str]] = {}
    found = {}
    for name in _files(folder):
        if name != MANIFEST:
            path = os.path.join(folder, name)
            inode = os.lstat(path).st_ino
            if inode not in known:
                known[inode] = _size_and_digest(path)
            found[name] = known[inode]
    return (json.dumps({"version": VERSION, "files": found}, indent=2) + "\n").encode()


def unexpected_files(folder: str) -> Iterator[str]:
    """The files of a folder that do not agree with its manifest: they were added or changed later."""
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as file:
            document = json.load(file)
        known = {
            str(name): {"size": facts["size"], "blake3": facts["blake3"]} for name, facts in document["files"].items()
        }
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        yield MANIFEST
        return
    same: dict[int, dict[str, int | str]] = {}
    for name in _files(folder):
        if name == MANIFEST:
            continue
        path = os.path.join(folder, name)
        status = os.lstat(path)
        if os.path.islink(path) or name not in known:
            yield name
        elif status.st_size != known[name]["size"]:
            yield f"{name} (changed)"
        else:
            try:
                if status.st_ino not in same:
                    same[status.st_ino] = _size_and_digest(path)
            except (OSError, FormatError):
                yield f"{name} (cannot be read)"
                continue
            if same[status.st_ino] != known[name]:
                yield f"{name} (changed)"


def _size_and_digest(path: str) -> dict[str, int | str]:
    """The size and the digest of a file."""
    from blake3 import blake3

    made = blake3()
    with open(path, "rb", buffering=0) as file:
        nbytes = os.fstat(file.fileno()).st_size
        for block in read_blocks(file, 0, nbytes):
            made.update(block)
    return {"size": nbytes, "blake3": made.hexdigest()}


def _files(folder: str) -> Iterator[str]:
    """The relative paths, with `/`, of everything under a folder that is not a folder; sorted."""
    for place, folders, files in walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = sorted(set(folders) - set(links))
        for name in sorted([*files, *links]):
            yield os.path.relpath(os.path.join(place, name), folder).replace(os.sep, "/")
