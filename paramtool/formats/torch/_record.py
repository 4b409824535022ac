"""The member `paramtool.json` of a torch file that paramtool wrote: what the pickle cannot express.

    {"version": 1, "aliases": {...}, "layouts": {...}, "metadata": {...}}

`aliases` is the alias record without objects, where a tie was declared and not seen in a storage; `layouts` is the
record of layouts; `metadata` are the strings that a safetensors input carried for its user.  A part that says nothing
is absent, and so is a member without parts.  torch.load asks an archive for the members that it knows by name and looks
at no others (caffe2/serialize/inline_container.cc); torch 1.6, the first that writes zip files, and 2.13 open such
files, mapped or not where they can map.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paramtool.formats import strict_json
from paramtool.formats.record import codec as record
from paramtool.formats.record.damage import reading
from paramtool.formats.sniff import TORCH_RECORD as MEMBER
from paramtool.model.checkpoint import Checkpoint, Link
from paramtool.model.plan import Plan

VERSION = 1
MAX_NBYTES = 256 << 20


def encode(plan: Plan) -> bytes:
    """The member for a plan; empty if none is needed."""
    found: dict[str, Any] = {}
    if any(one.set_evidence == "declared" for one in plan.names.values()):
        text = record.encode(plan.unmarked(), {target.name for target in plan.targets}, objects="")
        found["aliases"] = json.loads(text)
    if text := record.encode_modules(plan.modules):
        found["layouts"] = json.loads(text)
    if metadata := {key: value for key, value in plan.metadata.items() if key != "format"}:
        found["metadata"] = metadata
    return json.dumps({"version": VERSION, **found}, separators=(",", ":")).encode() if found else b""


def with_record(checkpoint: Checkpoint, data: bytes) -> Checkpoint:
    """A checkpoint with the facts of the member; FormatError if the member is damaged."""
    where = checkpoint.files[0].path
    hint = "torch.load can still read the tensors; docs/alias-record.md describes the member"
    with reading(f"{where}: its member {MEMBER!r}", hint, names_type=False):
        found = strict_json.strict(data.decode("utf-8"), surrogates=True)
        if not isinstance(found, dict) or found.get("version") != VERSION:
            raise ValueError(f"it is not a JSON object of version {VERSION}")
        metadata = found.get("metadata", {})
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("its metadata must map strings to strings")
        links = _links(checkpoint, found.get("aliases", {}))
    layouts = {record.LAYOUTS_KEY: json.dumps(found["layouts"])} if "layouts" in found else {}
    entries = {n: e._replace(link=links.get(n)) for n, e in checkpoint.entries.items()} if links else checkpoint.entries
    return replace(
        checkpoint,
        entries=entries,
        metadata=metadata,
        modules=(*checkpoint.modules, *record.decode_modules(where, layouts)),
        producer="paramtool",
    )


def _links(checkpoint: Checkpoint, document: Mapping[str, Any]) -> dict[str, Link]:
    """Links of names that share a storage because that was declared.

    The storages decide who shares: names that only the record ties, or only the pickle, get no link.
    """
    items = {**document.get("stored", {}), **document.get("aliases", {})}
    storages: dict[int, list[str]] = {}
    for name, view in checkpoint.views().items():
        storages.setdefault(int(view.storage), []).append(name)
    links: dict[str, Link] = {}
    for names in storages.values():
        said = {name: Link(name, "storage") for name in names}
        for name in names:
            if (item := items.get(name)) is not None:
                why = str(item.get("memory_evidence", item.get("evidence", "storage")))
                said[name] = Link(str(item["memory"]), why, owner=str(item.get("owner", "")))
        together = len({link.alias_set for link in said.values()}) == 1
        if together and any(link.evidence == "declared" for link in said.values()):
            links |= said
    return links
