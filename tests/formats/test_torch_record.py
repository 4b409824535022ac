"""The record beside a pickle, and version 3 of the alias record: what is damaged is refused by name."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from safetensors.torch import save_file

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.errors import FormatError
from tests.hostile.command import quick

DOCS = Path(__file__).resolve().parents[2] / "docs"


def with_member(folder: Path, content: bytes) -> Path:
    """A torch file with a record of that content."""
    torch.save({"w": torch.ones(2)}, folder / "in.pt")
    with zipfile.ZipFile(folder / "in.pt", "a") as archive:
        archive.writestr("in/paramtool.json", content)
    return folder / "in.pt"


DAMAGED = {
    "no JSON": b"{", "no UTF-8": b"\xff", "a list": b"[]", "another version": b'{"version":2}',
    "metadata of numbers": b'{"version":1,"metadata":{"a":1}}', "layouts of nothing": b'{"version":1,"layouts":{}}',
    "aliases of nothing": b'{"version":1,"aliases":{"aliases":{"w":{}}}}',
    "aliases in a list": b'{"version":1,"aliases":[]}',
}  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_member_is_refused(tmp_path: Path, content: bytes) -> None:
    """Exit 3, the file and the member by name."""
    path = with_member(tmp_path, content)
    ran = quick("inspect", path.name, cwd=tmp_path)
    assert ran.code == 3, ran
    assert "paramtool" in ran.err
    assert "Traceback" not in ran.err


def test_a_member_that_lies_about_ties_ties_nothing(tmp_path: Path) -> None:
    """Storages say who shares memory; a record that says otherwise is not believed."""
    torch.save({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "in.pt")
    items = {"b": {"owner": "a", "memory": "a", "evidence": "declared"}}
    with zipfile.ZipFile(tmp_path / "in.pt", "a") as archive:
        archive.writestr("in/paramtool.json", json.dumps({"version": 1, "aliases": {"aliases": items}}))
    members = paramtool.alias_graph(paramtool.read(tmp_path / "in.pt")).names
    assert members["b"].alias_set == "b"


def test_declared_ties_and_metadata_survive_a_torch_file(tmp_path: Path) -> None:
    """A flat pair of safetensors, through .pt, is still a declared tie, and the file's own strings are still there."""
    save_file({"a": torch.ones(2)}, tmp_path / "in.safetensors", {"format": "pt", "b": "a", "by": "me"})
    dedup_command.dedup(tmp_path / "in.safetensors", tmp_path / "mid.pt")
    dedup_command.dedup(tmp_path / "mid.pt", tmp_path / "out.safetensors")
    for name in ("in.safetensors", "mid.pt", "out.safetensors"):
        checkpoint = paramtool.read(tmp_path / name)
        assert checkpoint.metadata["by"] == "me"
        assert paramtool.alias_graph(checkpoint).names["b"].set_evidence == "declared"
        assert paramtool.alias_graph(checkpoint).names["b"].alias_set == "a"


def record(folder: Path, **more: Any) -> Path:
    """A safetensors file with a record of version 3."""
    found = {"version": 3, "aliases": {}, "stored": {}, "spans": [], **more}
    save_file({"w": torch.ones(2)}, folder / "in.safetensors", {"paramtool.aliases": json.dumps(found)})
    return folder / "in.safetensors"


@pytest.mark.parametrize(
    "more",
    [
        {"requires_grad": "w"}, {"requires_grad": [1]}, {"kinds": []}, {"kinds": {"w": "evil"}}, {"kinds": {"w": 1}},
        {"objects": {"map": "dict", "mark": -1, "items": [1]}}, {"objects": {"map": "dict", "mark": "1", "items": [1]}},
        {"objects": {"map": "dict", "args": 1, "items": [1]}},
        {"objects": {"map": "dict", "items": [1, [{"key": 1}, 2]]}},
        {"objects": {"map": "dict", "items": [1, [{"key": {"map": "dict", "items": []}}, 2]]}},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_record_is_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    """What version 3 adds, of another type."""
    with pytest.raises(FormatError, match="alias record"):
        paramtool.read(record(tmp_path, **more))


def test_version_3_validates_and_lower_versions_stay(tmp_path: Path) -> None:
    """A record has version 3 only where it needs it, and keeps to its schema."""
    states: dict[int, Any] = {
        1: {"model": {"w": torch.ones(2)}, "epoch": 1},
        3: {"model": {"w": torch.nn.Parameter(torch.ones(2))}, "epoch": 1},
    }
    for version, state in states.items():
        torch.save(state, tmp_path / "in.pt")
        dedup_command.dedup(tmp_path / "in.pt", tmp_path / "out.safetensors", force=True)
        data = (tmp_path / "out.safetensors").read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        found = json.loads(header["__metadata__"]["paramtool.aliases"])
        assert found["version"] == version
        jsonschema.validate(found, json.loads((DOCS / "schema" / f"alias-record-{version}.json").read_text()))
