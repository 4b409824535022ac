"""The member `paramtool.json` of a torch file that paramtool wrote: what the pickle cannot express.

    {"version": 1, "aliases": {...}, "layouts": {...}, "metadata": {...}}

`aliases` is the alias record without objects, where a tie was declared and not seen in a storage; the rest is that of
`formats.record.facts`.  torch.load asks an archive for the members that it knows by name and looks at no others
(caffe2/serialize/inline_container.cc); torch 1.6, the first that writes zip files, and 2.13 open such files, mapped or
not where they can map.
"""

from __future__ import annotations

import json
from typing import Any

from paramtool.formats.record import codec as record
from paramtool.formats.record import facts
from paramtool.formats.record.damage import reading
from paramtool.formats.sniff import TORCH_RECORD as MEMBER
from paramtool.grouping import grouped
from paramtool.model.checkpoint import BY_CONFIG, DECLARED, Checkpoint, Link
from paramtool.model.plan import Plan

MAX_NBYTES = 256 << 20


def encode(plan: Plan) -> bytes:
    """The member for a plan; empty if none is needed."""
    own: dict[str, Any] = {}
    if any(one.set_evidence in DECLARED for one in plan.names.values()):
        text = record.encode(plan.unmarked(), {target.name for target in plan.targets}, objects="")
        own["aliases"] = json.loads(text)
    return facts.encode(plan, own).encode()


def with_record(checkpoint: Checkpoint, data: bytes) -> Checkpoint:
    """A checkpoint with the facts of the member; FormatError if the member is damaged."""
    where = checkpoint.path
    hint = "torch.load can still read the tensors; docs/alias-record.md describes the member"
    with reading(f"{where}: its member {MEMBER!r}", hint, names_type=False):
        found = facts.document(data.decode("utf-8"))
        # Links of names that share a storage because that was declared.
        # The storages decide who shares: names that only the record ties, or only the pickle, get no link.
        document = found.get("aliases", {})
        items = {**document.get("stored", {}), **document.get("aliases", {})}
        storages = grouped((int(view.storage), name) for name, view in checkpoint.views().items())
        links: dict[str, Link] = {}
        for names in storages.values():
            said = {name: Link(name, "storage") for name in names}
            for name in names:
                if (item := items.get(name)) is not None:
                    why = str(item.get("memory_evidence", item.get("evidence", "storage")))
                    why = BY_CONFIG if item.get(BY_CONFIG) is True else why
                    said[name] = Link(str(item["memory"]), why, owner=str(item.get("owner", "")))
            together = len({link.alias_set for link in said.values()}) == 1
            if together and any(link.evidence in DECLARED for link in said.values()):
                links |= said
    return facts.applied(checkpoint, where, found, links)
