"""Records of facts that a format of torch has no place for: JSON text beside the tensors.

    {"version": 1, ..., "layouts": {...}, "metadata": {...}, "roles": {"optimizer": [...]}}

`layouts` is the record of layouts, `metadata` are the strings that a safetensors input carried for its user, `roles`
has names by roles that nothing else says.  A part that says nothing is absent.  The formats add parts of their own
(`formats/torch/_record.py`, `formats/dcp/record.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paramtool.formats import object_tree, strict_json
from paramtool.formats.record import layouts
from paramtool.model.checkpoint import Checkpoint, Link
from paramtool.model.plan import Plan

VERSION = 1


def encode(plan: Plan, own: Mapping[str, Any]) -> str:
    """The record of a plan with the parts that a format adds; empty if there is nothing to say."""
    found = dict(own)
    if text := layouts.encode(plan.modules):
        found["layouts"] = json.loads(text)
    if roles := object_tree.unsaid_roles(plan):
        found["roles"] = roles
    if metadata := {key: value for key, value in plan.metadata.items() if key != "format"}:
        found["metadata"] = metadata
    return json.dumps({"version": VERSION, **found}, separators=(",", ":")) if found else ""


def document(text: str) -> dict[str, Any]:
    """A record as JSON data; ValueError if it is not a JSON object of this version, or has metadata of another form."""
    found = strict_json.strict(text, surrogates=True)
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise ValueError(f"it is not a JSON object of version {VERSION}")
    metadata = found.get("metadata", {})
    if not strict_json.are_texts(metadata, dict):
        raise ValueError("its metadata must map strings to strings")
    object_tree.with_said({}, found.get("roles", {}))
    return found


def applied(checkpoint: Checkpoint, where: str, found: Mapping[str, Any], links: Mapping[str, Link]) -> Checkpoint:
    """A checkpoint with the facts of its record, whose links were checked; FormatError if its layouts are damaged."""
    linked = {n: e._replace(link=links.get(n)) for n, e in checkpoint.entries.items()} if links else checkpoint.entries
    said = {layouts.KEY: json.dumps(found["layouts"])} if "layouts" in found else {}
    return replace(
        checkpoint,
        entries=object_tree.with_said(linked, found.get("roles", {})),
        metadata=found.get("metadata", {}),
        modules=(*checkpoint.modules, *layouts.decode(where, said)),
        producer="paramtool",
    )
