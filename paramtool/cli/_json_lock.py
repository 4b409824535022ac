"""`paramtool lock --json`."""

from __future__ import annotations

from typing import Any

from paramtool.cli._json_text import members
from paramtool.commands.lock import Locked
from paramtool.lockfile.lock import NO_DATA, UNREAD, LockedTensor


def locked(found: Locked) -> dict[str, Any]:
    """The document."""
    return {
        "schema": "paramtool.lock/1",
        "output": found.output,
        "models": [
            {
                "path": one.path,
                "files": [{"name": f.name, "nbytes": f.nbytes, "sha256": f.sha256 or None} for f in one.files],
                **members(one, "content", "unnamed"),
                "dialect": one.dialect or None,
                "ties": [members(tie, "names", "kind") for tie in one.ties],
                "views": [members(view, "name", "offset", "strides") for view in one.views.values()],
                "objects": [members(object_, "key", "digest", "words") for object_ in one.objects.values()],
                "tensors": [_tensor(tensor) for tensor in one.tensors.values()],
            }
            for one in found.models
        ],
        "warnings": found.warnings,
    }


def _tensor(one: LockedTensor) -> dict[str, Any]:
    data = {UNREAD: "unread", NO_DATA: "none"}.get(one.digest, "read")
    digest = one.digest if data == "read" else None
    return {**members(one, "name", "dtype", "shape"), "digest": digest, "data": data}
