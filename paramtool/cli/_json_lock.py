"""`paramtool lock --json`."""

from __future__ import annotations

from typing import Any

from paramtool.commands.lock import Locked
from paramtool.lockfile.lock import NO_DATA, UNREAD, LockedModel, LockedTensor


def locked(found: Locked) -> dict[str, Any]:
    """The document."""
    return {
        "schema": "paramtool.lock/1",
        "output": found.output,
        "models": [_model(one) for one in found.models],
        "warnings": list(found.warnings),
    }


def _model(one: LockedModel) -> dict[str, Any]:
    return {
        "path": one.path,
        "files": [{"name": f.name, "nbytes": f.nbytes, "sha256": f.sha256 or None} for f in one.files],
        "content": one.content,
        "unnamed": one.unnamed,
        "dialect": one.dialect or None,
        "ties": [{"names": list(tie.names), "kind": tie.kind} for tie in one.ties],
        "views": [{"name": v.name, "offset": v.offset, "strides": list(v.strides)} for v in one.views.values()],
        "objects": [{"key": o.key, "digest": o.digest, "words": o.words} for o in one.objects.values()],
        "tensors": [_tensor(tensor) for tensor in one.tensors.values()],
    }


def _tensor(one: LockedTensor) -> dict[str, Any]:
    data = {UNREAD: "unread", NO_DATA: "none"}.get(one.digest, "read")
    digest = one.digest if data == "read" else None
    return {"name": one.name, "dtype": one.dtype, "shape": list(one.shape), "digest": digest, "data": data}
