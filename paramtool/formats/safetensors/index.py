"""The index of a sharded output, and the alias record in it.

    {"metadata": {"total_size": ..., "paramtool.aliases": TEXT}, "weight_map": {name: file}}

There are two forms.  For shards that record their own aliases the text repeats the union of their records, or is
`{"in": "shards"}`.  For plain shards, which several checkpoints may share, the whole record is here
(`{"in": "index", ...}`), or in a sidecar file if it would make the index too large.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from paramtool.errors import FormatError
from paramtool.formats.files import open_source
from paramtool.formats.folder.weight_names import WeightsName
from paramtool.formats.output import OutputFile
from paramtool.formats.record import codec as record
from paramtool.formats.record import layouts
from paramtool.grouping import omit
from paramtool.model.paths import named_beside
from paramtool.model.plan import Plan
from paramtool.model.storage import SourceFile

MAX_INDEX_NBYTES = 10 << 20
"""huggingface_hub refuses larger index files."""
RECORD_FILE = "paramtool.aliases.json"
"""The sidecar file of the record, if the record is too large for the index."""
MAX_RECORD_NBYTES = 256 << 20
"""The largest file that is read as a record."""
TOTAL_SIZE = "total_size"

Linked = Mapping[str, tuple[str, str]]
"""{target of a plan: (file, name in it)}, for tensors in files that hold no name of the index."""


# --- writing ---------------------------------------------------------------------------------------------------


def over_shards(plan: Plan, weight_map: Mapping[str, str], name: str) -> OutputFile:
    """The index of shards that hold their own records: with the union of the records, if that is small."""
    text = record.encode(plan, {t.name for t in plan.targets}, objects="")
    names = sum(len(t.name) + 60 for t in plan.targets)
    pairs = not text and record.reads_as_pairs(plan.index_metadata, weight_map)
    if pairs or (text and len(text) + names > MAX_INDEX_NBYTES // 2):
        text = _text({"version": 1, "in": "shards"})
    metadata = {**plan.index_metadata, TOTAL_SIZE: plan.nbytes} | ({record.KEY: text} if text else {})
    return _index(name, metadata, {target.name: weight_map[target.name] for target in plan.targets})


def over_plain_shards(
    plan: Plan, weight_map: Mapping[str, str], linked: Linked, name: WeightsName
) -> tuple[OutputFile, ...]:
    """The index of plain shards, last, with the whole record in it or in a sidecar file before it.

    A target of the plan is in a file of `weight_map`, or under another name in a file of `linked`.
    """
    record.refuse_own_keys(plan)
    stored = [target for target in plan.targets if target.name not in linked]
    metadata = dict(plan.index_metadata)
    taken = metadata.keys() | record.RESERVED | {TOTAL_SIZE}
    pairs = record.flat_pairs(plan, (a for a in plan.aliases if a.owner not in linked))
    metadata |= {TOTAL_SIZE: sum(target.nbytes for target in stored)}
    metadata |= omit(pairs, taken)
    if modules := layouts.encode(plan.modules):
        metadata[layouts.KEY] = modules
    files = {target.name: weight_map[target.name] for target in stored}
    text = _whole_record(plan, linked)
    whole = _index(name.index, metadata | ({record.KEY: text} if text else {}), files)
    if not text or whole.nbytes <= MAX_INDEX_NBYTES:
        return (whole,)
    pointer = _text({"version": 1, "in": RECORD_FILE})
    return (
        OutputFile(RECORD_FILE, (f"{text}\n".encode(),)),
        _index(name.index, metadata | {record.KEY: pointer}, files),
    )


def _index(name: str, metadata: Mapping[str, Any], weight_map: Mapping[str, str]) -> OutputFile:
    """The text that `json.dumps(..., indent=2)` gives, name by name: it would make several objects for each."""
    encoded = json.JSONEncoder(ensure_ascii=False).encode
    text = BytesIO()
    text.write(json.dumps({"metadata": metadata}, indent=2, ensure_ascii=False)[:-2].encode())
    text.write(b',\n  "weight_map": {')
    for k, (tensor, file) in enumerate(weight_map.items()):
        text.write(f"{',' if k else ''}\n    {encoded(tensor)}: {encoded(file)}".encode())
    text.write(b"\n  }\n}\n" if weight_map else b"}\n}\n")
    return OutputFile(name, (text.getvalue(),))


def _whole_record(plan: Plan, linked: Linked) -> str:
    """The record of everything that plain shards do not hold; empty if there is nothing."""
    text = record.encode(plan, {target.name for target in plan.targets}, objects="runs")
    found: dict[str, Any] = json.loads(text or record.NOTHING)
    for item in found["aliases"].values():
        if item["owner"] in linked:
            item["file"], item["owner"] = linked[item["owner"]]
    more: dict[str, Any] = {}
    if files := sorted({file for file, _ in linked.values()}):
        more["files"] = files
    if metadata := {key: value for key, value in plan.metadata.items() if key != "format"}:
        more["metadata"] = metadata  # `format` is in the shards
    if not text and not more and not record.reads_as_pairs(plan.index_metadata, {t.name for t in plan.targets}):
        return ""
    version = found.pop("version")
    return _text({"version": version, "in": "index", **more, **found})


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


# --- reading ---------------------------------------------------------------------------------------------------


def read_record(path: str, metadata: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[SourceFile, ...]] | None:
    """The record for the shards of the index at `path`, and its sidecar file, if any.

    None if the shards hold their own records.  FormatError if it is damaged, UnsafeError if it refers to files in other
    folders.
    """
    if record.KEY not in metadata:
        return None
    text = metadata[record.KEY]
    if not isinstance(text, str):
        raise record.damaged(path, TypeError("it is not a string"))
    found = record.document(path, text)
    if "in" not in found or found["in"] == "shards":
        return None
    files: tuple[SourceFile, ...] = ()
    if found["in"] != "index":
        beside = os.path.join(os.path.dirname(path), plain_names(path, [found["in"]])[0])
        file, source = open_source(beside)
        with file:
            if source.nbytes > MAX_RECORD_NBYTES:
                raise FormatError(
                    f"{beside}: is a record of {source.nbytes} bytes; expected at most {MAX_RECORD_NBYTES}"
                )
            found, files = record.document(beside, file.read(source.nbytes)), (source,)
        if found.get("in") != "index":
            raise FormatError(f"{beside}: {path} names it as its record, but it does not have 'in': 'index'")
    return found, files


def plain_names(path: str, names: object) -> list[str]:
    """Names of files in the folder of an index; FormatError or UnsafeError if one is not."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FormatError(f"{path}: {names!r:.100} is not a list of file names")
    return [named_beside(path, name) for name in names]
