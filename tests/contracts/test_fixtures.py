"""Every fixture is what its expected.json says, which its make.py wrote from what it built."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import paramtool
from paramtool.model.view import View
from tests.laws.sharing import partition, same_values

ROOT = Path(__file__).parents[2] / "fixtures"
CASES = sorted(folder for folder in ROOT.glob("*/*") if folder.is_dir() and folder.name != "__pycache__")

ELSEWHERE = {
    "mxnet", "deepspeed", "lightning", "tensorflow", "tf_keras", "paddle", "flax",
    "bitsandbytes", "galore_torch", "pytorch_optimizer",
}  # fmt: skip
"""Frameworks that need an interpreter of their own; what their makers made is tested here all the same."""


def checkpoint_of(folder: Path) -> Path:
    """The file, or folder, of a fixture that is called as the fixture is."""
    paths = [path for path in folder.iterdir() if path.name.split(".")[0] == folder.name]
    (found,) = [path for path in paths if ".data-" not in path.name]  # TensorFlow's files beside the index
    return found


def expected_of(folder: Path) -> dict[str, Any]:
    """What the fixture's maker says of it."""
    return json.loads((folder / "expected.json").read_text())


@pytest.fixture(params=CASES, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def case(request: pytest.FixtureRequest) -> Path:
    """Each fixture in turn."""
    return request.param


def test_there_are_fixtures() -> None:
    """The folder was found: an empty list would let every test below pass."""
    assert {"tied_flattened", "content_equal"} <= {folder.name for folder in CASES}


def test_a_fixture_is_complete(case: Path) -> None:
    """Each has its maker, its expectation, and a word on where it comes from: a tool with its version."""
    assert {"make.py", "expected.json", "PROVENANCE.md"} <= {path.name for path in case.iterdir()}
    assert checkpoint_of(case).exists()
    text = (case / "PROVENANCE.md").read_text()
    assert "make.py" in text
    assert any(word[0].isdigit() and "." in word for word in text.split()), "no version"


def test_the_fixtures_of_a_format_are_small() -> None:
    """A checkout stays small."""
    for folder in {case.parent for case in CASES}:
        files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert sum(path.stat().st_size for path in files) < 200_000, folder.name


@pytest.mark.sample(20)
def test_the_maker_makes_the_fixture(case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run today, make.py gives the same names, values, sharing and expectation."""
    monkeypatch.setattr(sys, "argv", ["make.py", str(tmp_path)])
    try:
        runpy.run_path(str(case / "make.py"), run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name not in ELSEWHERE:
            raise
        pytest.skip(f"{error.name} is not installed here")
    assert (tmp_path / "expected.json").read_text() == (case / "expected.json").read_text()
    made = paramtool.load_file(tmp_path / checkpoint_of(case).name)
    kept = paramtool.load_file(checkpoint_of(case))
    assert same_values(kept, made)
    assert partition(kept) == partition(made)


def test_names_and_geometry(case: Path) -> None:
    """Names in order, dtypes and shapes."""
    entries = paramtool.read(checkpoint_of(case)).entries
    found = {n: [e.value.dtype.name, list(e.value.shape)] for n, e in entries.items() if isinstance(e.value, View)}
    assert list(found.items()) == list(expected_of(case)["names"].items())


def test_groups(case: Path) -> None:
    """Who owns, who follows, and how they lie on each other."""
    graph = paramtool.inspect(checkpoint_of(case)).graph
    found = [
        {"owner": owner, "members": {member.name: graph.relation(member) for member in members}}
        for owner, members in graph.groups()
    ]
    assert found == expected_of(case)["groups"]


def test_fused_blocks(case: Path) -> None:
    """The windows of one buffer in the order of their bytes."""
    found = [
        {"names": [name for name, _, _ in block.parts], "gaps": list(block.gaps), "tail": block.tail}
        for block in paramtool.inspect(checkpoint_of(case)).graph.fused
    ]
    assert found == expected_of(case)["fused"]


def test_equal_classes(case: Path) -> None:
    """Equal bytes in different memories."""
    found = paramtool.inspect(checkpoint_of(case), equal=True).equal
    assert [list(equal.names) for equal in found or ()] == expected_of(case)["equal"]


@pytest.mark.sample(14)
def test_a_deduplicated_fixture_keeps_values_and_memories(case: Path, tmp_path: Path) -> None:
    """Every name comes back, and the names of one memory, and only those, share it when loaded."""
    path, output = checkpoint_of(case), tmp_path / "out.safetensors"
    report = paramtool.dedup(path, output)
    loaded = paramtool.load_file(output)
    memories: dict[str, list[str]] = {}
    for name, member in report.graph.names.items():
        memories.setdefault(member.alias_set, []).append(name)
    assert [names for names in memories.values() if len(names) > 1] == expected_of(case)["memories"]
    assert same_values(paramtool.load_file(path), loaded)
    assert partition(paramtool.load_file(path)) == partition(loaded)


def test_equal_memories_stand_once(tmp_path: Path) -> None:
    """The golden case: four names, two memories, one stored tensor of their content."""
    report = paramtool.dedup(ROOT / "torch/content_equal/content_equal.pt", tmp_path / "out.safetensors")
    assert [target.name for target in report.plan.targets] == ["a", "nearly"]
    other = report.graph.names["other_shape"]
    assert (other.owner, report.graph.relation(other), other.alias_set) == ("a", "view", "other_shape")
