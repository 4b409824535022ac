"""What one tensor among many costs, in bytes and in calls; benchmarks/scale.py has the seconds."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from paramtool.formats import object_tree, read
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Ordered
from paramtool.model.storage import ByteRange, Ranges, Storage

COUNT = 2000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of many tensors."""
    found = str(tmp_path_factory.mktemp("many") / "model.safetensors")
    save_file({f"layers.{k // 10}.block.{k % 10}.weight": np.ones(300, np.float32) for k in range(COUNT)}, found)
    return found


def described(path: str) -> tuple[Checkpoint, alias.AliasGraph]:
    """A file and its graph."""
    found = read(path)
    return found, alias.build(found)


def test_a_tensor_costs_less_than_a_kilobyte(path: str) -> None:
    described(path)
    tracemalloc.start()
    kept = described(path)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept[1].names) == COUNT
    assert held / COUNT < 650, held / COUNT
    assert peak / COUNT < 850, peak / COUNT


def test_a_tensor_costs_few_calls(path: str) -> None:
    found = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal found
        found += event == "call"

    described(path)
    sys.setprofile(count)
    try:
        described(path)
    finally:
        sys.setprofile(None)
    assert found / COUNT < 60, found / COUNT


def test_ranges_are_the_storages_that_they_stand_for() -> None:
    ranges = Ranges("a", [8, 16], [16, 40])
    made = {0: Storage(0, 8, ByteRange("a", 8, 16)), 1: Storage(1, 24, ByteRange("a", 16, 40))}
    assert dict(ranges) == made
    assert {**ranges} == made
    assert len(ranges) == 2
    for stray in (-1, 2):
        with pytest.raises(KeyError):
            ranges[stray]


def test_windows_that_meet_no_other_are_placed_as_all_are(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, quick = described(path)
    monkeypatch.setattr(alias, "_may_meet", lambda view, shared: True)
    assert alias.build(found) == quick


@pytest.mark.parametrize("prefix", ["a", "a.", "a.b", "", "z", "a.b.", "\U0010ffff"])
def test_names_under_a_prefix(prefix: str) -> None:
    names = ["a", "a.b", "a.b.c", "a/", "ab", "b", "\U0010ffffx", "a.\U0010ffff", "\ud800"]
    assert sorted(name for name in names if name.startswith(prefix)) == list(Ordered(names).under(prefix))
    assert Ordered(names).count(prefix) == sum(name.startswith(prefix) for name in names)


def test_a_part_tells_its_role_once() -> None:
    object_tree.role_of.cache_clear()
    names = [f"model.layers.{k}.attention.q.weight" for k in range(100)]
    assert {object_tree.leaf_role(name, "model") for name in names} == {"model"}
    assert object_tree.role_of.cache_info().misses == 104


def test_many_shards_are_numbered_one_after_the_other(tmp_path: Path) -> None:
    weight_map = {f"w{k}": f"model-{k:03}.safetensors" for k in range(200)}
    for name, file in weight_map.items():
        save_file({name: np.ones(4, np.float32)}, str(tmp_path / file))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    found = read(str(index))
    assert list(found.storages) == list(range(200))
    assert [int(view.storage) for _, view in found.windows()] == list(range(200))
