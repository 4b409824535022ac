"""Hostile and damaged records in an index, through the command line: exit 3 or 4, nothing written, no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import paramtool
from paramtool.commands import dedup_many
from tests.hostile.command import contents, quick

INDEX = "model.safetensors.index.json"
KEY = "paramtool.aliases"
LINKED = "paramtool.linked-00001.safetensors"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose index says that `y` is a window on `x` of a linked file; `z` is its own, `s` a tie of it."""
    save_file({"x": torch.ones(2048)}, tmp_path / "a.safetensors")
    z = torch.arange(4.0)
    torch.save({"y": torch.ones(2048), "z": z, "s": z[1:3]}, tmp_path / "b.pt")
    dedup_many.dedup_family([tmp_path / "a.safetensors", tmp_path / "b.pt"], tmp_path / "out", share_renamed=True)
    return tmp_path / "out" / "b"


def changed(folder: Path, change: Change) -> None:
    """Rewrite the record in the index."""
    index = json.loads((folder / INDEX).read_text())
    document = json.loads(index["metadata"][KEY])
    change(document)
    index["metadata"][KEY] = json.dumps(document)
    (folder / INDEX).write_text(json.dumps(index))


def refused(folder: Path, code: int, *words: str) -> None:
    """inspect and dedup both refuse, say why, and write nothing."""
    before = contents(folder.parent)
    for command in (("inspect", folder), ("dedup", folder, "-o", folder.parent / "new")):
        ran = quick(*command, cwd=folder.parent)
        assert ran.code == code, ran
        assert all(word in ran.err for word in words) and "Traceback" not in ran.err, ran
    assert contents(folder.parent) == before


def test_it_is_fine_before(folder: Path) -> None:
    """What the cases below break."""
    found = paramtool.load_file(folder)
    assert {name: array.tolist()[:4] for name, array in found.items()} == {
        "y": [1.0] * 4,
        "z": [0.0, 1.0, 2.0, 3.0],
        "s": [1.0, 2.0],
    }
    assert json.loads((folder / INDEX).read_text())["weight_map"] == {"z": "model-00001-of-00001.safetensors"}


def alias(**more: object) -> Change:
    """Other words for `y`."""
    return lambda document: document["aliases"]["y"].update(more)


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "a/../b", "..", "C:x", "\\\\host\\x"])
def test_linked_files_stand_beside_the_index(file: str, folder: Path) -> None:
    """Exit 4, as for shards."""
    changed(folder, lambda document: document.update(files=[file]))
    refused(folder, 4, "outside its own folder")


@pytest.mark.parametrize("file", ["../record.json", "/etc/passwd", ".."])
def test_the_record_stands_beside_the_index(file: str, folder: Path) -> None:
    """Exit 4, too."""
    changed(folder, lambda document: (document.clear(), document.update({"version": 1, "in": file})))
    refused(folder, 4, "outside its own folder")


CASES: dict[str, tuple[Change, tuple[str, ...]]] = {
    "file_not_listed": (lambda d: d.update(files=[]), (LINKED, "not listed")),
    "file_missing": (lambda d: d["files"].append("ghost.safetensors"), ("ghost.safetensors",)),
    "file_a_shard": (lambda d: d["files"].append("model-00001-of-00001.safetensors"), ("linked file", "weight_map")),
    "files_no_list": (lambda d: d.update(files="x"), ("not a list of file names",)),
    "files_of_numbers": (lambda d: d.update(files=[1]), ("not a list of file names",)),
    "owner_missing": (alias(owner="ghost"), ("'y'", "'ghost'")),
    "owner_without_its_file": (lambda d: d["aliases"]["y"].pop("file"), ("'x'", "stored tensor")),
    "window_outside": (alias(shape=[4096]), ("'y'", "16384 bytes")),
    "window_negative": (alias(offset=-1), ("damaged",)),
    "alias_is_stored": (lambda d: d["aliases"].update(z=d["aliases"]["y"]), ("'z'", "expected one of them")),
    "aliases_a_list": (lambda d: d.update(aliases=[]), ("has the 'aliases' []",)),
    "aliases_missing": (lambda d: d.pop("aliases"), ("has no 'aliases'",)),
    "spans_missing": (lambda d: d.pop("spans"), ("has no 'spans'",)),
    "span_missing": (lambda d: d["spans"].append("ghost"), ("'ghost'", "not stored")),
    "alias_of_an_alias": (lambda d: d["aliases"]["s"].update(owner="y"), ("'y'", "itself an alias")),
    "newer": (lambda d: d.update(version=99), ("version 99", "update paramtool")),
    "version_missing": (lambda d: d.pop("version"), ("damaged",)),
    "in_another_file": (lambda d: d.update({"in": "ghost.json"}), ("ghost.json",)),
    "in_itself": (lambda d: d.update({"in": INDEX}), (INDEX, "damaged")),
    "in_a_list": (lambda d: d.update({"in": ["index"]}), ("not a list of file names",)),
    "metadata_no_texts": (lambda d: d.update(metadata={"a": 1}), ("strings to strings",)),
}


@pytest.mark.sample(11)
@pytest.mark.parametrize("key", CASES)
def test_a_wrong_record_is_refused(key: str, folder: Path) -> None:
    """Exit 3, with what is wrong named."""
    change, words = CASES[key]
    changed(folder, change)
    refused(folder, 3, *words)


@pytest.mark.parametrize("text", [None, 1, "", "{", "[]", '{"version": 1, "version": 1}', "[" * 10_000])
def test_a_record_that_is_none(text: object, folder: Path) -> None:
    """Exit 3."""
    index = json.loads((folder / INDEX).read_text())
    index["metadata"][KEY] = text
    (folder / INDEX).write_text(json.dumps(index))
    refused(folder, 3, "damaged")


def test_a_shard_with_names_of_its_own(folder: Path) -> None:
    """A shard that was replaced by one with more names, or with a record of its own."""
    shard = folder / "model-00001-of-00001.safetensors"
    shard.unlink()
    save_file({"z": torch.arange(4.0), "more": torch.ones(1)}, shard)
    refused(folder, 3, "'more'", "which the index lacks")
    save_file({"z": torch.arange(4.0)}, shard, metadata={KEY: '{"version":1,"aliases":{},"stored":{},"spans":[]}'})
    refused(folder, 3, "has an alias record")


def test_a_linked_file_that_is_gone_or_another(folder: Path) -> None:
    """A folder that was copied without it, or in part."""
    data = (folder / LINKED).read_bytes()
    (folder / LINKED).unlink()
    refused(folder, 3, LINKED, "No such file")
    (folder / LINKED).write_bytes(data[:-1])
    refused(folder, 3, LINKED, "truncated")
    (folder / LINKED).unlink()
    torch.save({"x": torch.ones(2048)}, folder / LINKED)
    refused(folder, 3, LINKED, "torch")


def test_a_record_beside_the_index(folder: Path) -> None:
    """It is followed once, and has to be one."""
    index = json.loads((folder / INDEX).read_text())
    text = index["metadata"][KEY]
    index["metadata"][KEY] = '{"version": 1, "in": "r.json"}'
    (folder / INDEX).write_text(json.dumps(index))
    refused(folder, 3, "r.json", "No such file")
    (folder / "r.json").write_text('{"version": 1, "in": "r.json"}')
    refused(folder, 3, "r.json", "does not have 'in': 'index'")
    (folder / "r.json").write_text(text)
    assert paramtool.load_file(folder).keys() == {"y", "z", "s"}


def test_a_name_that_looks_like_a_linked_tensor(tmp_path: Path) -> None:
    """Names of tensors may be anything; none is taken for another's."""
    names = [f"{LINKED}/x", "paramtool.linked/0", "x"]
    save_file({"x": torch.ones(2048)}, tmp_path / "a.safetensors")
    save_file(
        {"y": torch.ones(2048), **{n: torch.full((9,), float(k)) for k, n in enumerate(names)}},
        tmp_path / "b.safetensors",
    )
    dedup_many.dedup_family([tmp_path / f"{n}.safetensors" for n in "ab"], tmp_path / "out", share_renamed=True)
    found = paramtool.load_file(tmp_path / "out" / "b")
    assert found.keys() == {"y", *names}
    assert [found[name].tolist()[0] for name in ("y", *names)] == [1.0, 0.0, 1.0, 2.0]
