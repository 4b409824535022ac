"""The search of rows: what hashes propose is proved, and what is there is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from paramtool import diff
from paramtool.engine.compare.line_table import LineTable
from paramtool.engine.compare.lines import LineHashes, LineRun, Runs

KINDS = ["f4", "f2", "f8", "i1", "i2"]


@given(st.data())
def test_rows_have_one_hash_where_their_bytes_are_equal(data: st.DataObject) -> None:
    kind, width = data.draw(st.sampled_from(KINDS)), data.draw(st.integers(1, 40))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    rows = rng.integers(-2, 3, (6, width)).astype(kind)[rng.integers(0, 6, 12)]
    first, second = LineHashes().of_rows(np.ascontiguousarray(rows))
    for k in range(12):
        for other in range(12):
            same = rows[k].tobytes() == rows[other].tobytes()
            assert (first[k], second[k]) == (first[other], second[other]) if same else first[k] != first[other]


@given(st.integers(1, 31), st.sampled_from(["f4", "f2"]), st.data())
def test_signs_alone_give_another_hash(width: int, kind: str, data: st.DataObject) -> None:
    row = np.arange(1, width + 1, dtype=kind)
    signs = data.draw(st.lists(st.booleans(), min_size=width, max_size=width).filter(any))
    other = np.where(signs, -row, row)
    hashes = LineHashes().of_rows(np.stack([row, other]))
    assert hashes[0, 0] != hashes[0, 1] and hashes[1, 0] != hashes[1, 1]


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=9), min_size=1, max_size=4), st.data())
def test_a_map_leads_to_equal_hashes(tensors: list[list[int]], data: st.DataObject) -> None:
    """Also where first halves are equal and second ones not."""
    halves = [(k % 2, k) for k in range(6)]
    parts = [(n, np.array([halves[k] for k in one], "u8").T) for n, one in enumerate(tensors)]
    wanted = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=12))
    found = LineTable(parts).find(np.array([halves[k] for k in wanted], "u8").T)
    there = [k for one in tensors for k in one]
    assert (found is not None) == all(k in there for k in wanted)
    if found is not None:
        rows = [tensors[run.tensor][run.start + k] for run in found.runs for k in range(run.length)]
        assert rows == wanted
        assert found.is_unique == all(there.count(k) == 1 for k in wanted)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 4)), max_size=8))
def test_covered_rows_are_those_of_the_runs(runs: list[tuple[int, int, int]]) -> None:
    every = [LineRun(tensor, start, length, 0) for tensor, start, length in runs]
    found = [(tensor, start + k) for tensor, start, count in Runs.of(every).covered() for k in range(count)]
    assert len(found) == len(set(found))
    assert set(found) == {(one.tensor, one.start + k) for one in every for k in range(one.length)}


def test_rows_of_one_hash_are_no_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the hashes say, all bytes are compared: here every row has one hash."""
    rng = np.random.default_rng(0)
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file({"x": rng.standard_normal((8, 64))}, a)
    save_file({"y": rng.standard_normal((8, 64))}, b)

    def constant(self: LineHashes, rows: Any) -> Any:
        return np.zeros((2, len(rows)), "u8")

    monkeypatch.setattr(LineHashes, "of_rows", constant)
    assert [one.kind for one in diff(a, b).tensors] == ["added", "removed"]


@given(st.integers(0, 50), st.sampled_from(["plain", "negated", "columns"]))
def test_permuted_rows_of_several_tensors_are_found(tmp_path_factory: Any, seed: int, how: str) -> None:
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(seed)
    made = {f"t{k}.w": rng.standard_normal((int(rng.integers(3, 9)), 24)).astype("f4") for k in range(3)}
    rows = np.concatenate(list(made.values()))[rng.permutation(sum(map(len, made.values())))]
    other = {"plain": rows, "negated": -rows, "columns": np.ascontiguousarray(rows.T)}[how]
    a, b = folder / "a.safetensors", folder / "b.safetensors"
    save_file(made, a)
    save_file({"fused": other}, b)
    assert [one.kind for one in diff(a, b).tensors] == ["layout"]
    other[0, 0] += 1
    save_file({"fused": other}, b)
    assert "layout" not in [one.kind for one in diff(a, b).tensors]


def test_what_does_not_fit_into_memory_is_undecided(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20_000, 8)).astype("f4")
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file({"x": rows}, a)
    save_file({"y": rows[rng.permutation(len(rows))]}, b)
    assert [one.kind for one in diff(a, b, memory=1 << 20).tensors][:1] == ["undecided"]
    assert [one.kind for one in diff(a, b).tensors] == ["layout"]
