"""The search of columns: planted maps are found, and one other bit makes them none; NumPy makes the pairs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from paramtool.engine.compare import lines as line_search
from paramtool.engine.compare.lines import LineHashes, Lines, LineWay, turned
from paramtool.engine.read.source import Source
from paramtool.formats import read
from paramtool.model.diff import ADDED, CAST, CHANGED, LAYOUT, REMOVED, ROUNDED
from tests.examples import examples
from tests.laws.comparing import compared, has_same_numbers, numbers, verdicts

Array = np.ndarray
Arrays = dict[str, Array]
KINDS = ["f4", "f2", "f8", "i2", "u1", "bfloat16"]
LEAST = 32


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("columns")


class Planted(NamedTuple):
    """Tensors, and what was made of their columns."""

    a: Arrays
    b: Arrays


def planted(how: str, random: np.random.Generator, kind: str) -> Planted:
    """Tensors of 32 rows, so that a column has 32 bytes or more; rows are in no order of their own."""
    some = [numbers(random, (32, int(random.integers(3, 9)) * 2), kind) for _ in range(3)]
    one, two, three = some
    named = {f"m.{name}.weight": tensor for name, tensor in zip("abc", some, strict=True)}
    every = np.concatenate(some, axis=1)
    width = one.shape[1]
    match how:
        case "joined":
            return Planted(named, {"m.joined.weight": np.concatenate([three, one, two], axis=1)})
        case "split":
            return Planted({"m.w": every}, {"x.a": every[:, :width], "x.b": every[:, width:]})
        case "halves":
            return Planted({"w": one}, {"w": np.concatenate([one[:, width // 2 :], one[:, : width // 2]], axis=1)})
        case "permuted":
            return Planted(named, {"n": every[:, random.permutation(every.shape[1])]})
        case "in turn":
            return Planted({"a": one, "b": -one * 2}, {"n": np.stack([one, -one * 2], axis=2).reshape(32, -1)})
        case "rows of columns":
            order = random.permutation(every.shape[1])
            return Planted(named, {"n.a": every.T[order[:5]], "n.b": every.T[order[5:]]})
        case "columns of rows":
            return Planted({"w": every.T}, {"n.a": every[:, : width + 1], "n.b": every[:, width + 1 :]})
        case "stacked":
            experts = numbers(random, (4, 9, 32), kind)
            return Planted({f"e.{k}.w": experts[k].T for k in range(4)}, {"e.w": experts})
        case "unstacked":
            experts = numbers(random, (4, 9, 32), kind)
            return Planted({"e.w": experts}, {f"e.{k}.w": experts[k].T for k in range(4)})
        case "inputs of a kernel":
            kernel = numbers(random, (32, 6, 3, 2), kind)
            return Planted({"k.weight": kernel}, {"k.0": kernel[:, :2], "k.1": kernel[:, 2:]})
        case _:  # outputs of a kernel whose last axis they are
            kernel = numbers(random, (3, 3, 4, 10), kind)
            return Planted({"k.0": kernel[..., 4:], "k.1": kernel[..., :4]}, {"k.weight": kernel})


HOW = ["joined", "split", "halves", "permuted", "in turn", "rows of columns", "columns of rows", "stacked", "unstacked",
       "inputs of a kernel", "outputs of a kernel"]  # fmt: skip
cases = given(st.sampled_from(HOW), st.sampled_from(KINDS), st.integers(0, 2**32))


@settings(max_examples=examples(300), deadline=None)
@cases
def test_planted_columns_are_found(place: Path, how: str, kind: str, seed: int) -> None:
    found = compared(place, *planted(how, np.random.default_rng(seed), kind))
    assert set(verdicts(found).values()) == {LAYOUT} and has_same_numbers(found), found.tensors


@settings(max_examples=examples(300), deadline=None)
@cases
def test_one_other_bit_is_no_map(place: Path, how: str, kind: str, seed: int) -> None:
    """Wherever it is; what else was made of the same tensors is still found."""
    random = np.random.default_rng(seed)
    a, b = planted(how, random, kind)
    name = str(random.choice(list(b)))
    b[name] = spoilt(random, b[name])
    found = compared(place, a, b)
    assert verdicts(found)[name] in (ADDED, CHANGED) and not found.is_same, found.tensors
    assert {kind for other, kind in verdicts(found).items() if other != name} <= {LAYOUT}


def spoilt(random: np.random.Generator, array: Array) -> Array:
    """The same with another bit."""
    other = np.ascontiguousarray(array)
    raw = other.copy().view("u1").reshape(-1)
    raw[random.integers(raw.size)] ^= np.uint8(1 << int(random.integers(8)))
    return raw.view(other.dtype).reshape(other.shape)


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(HOW), st.booleans(), st.integers(0, 2**32))
def test_columns_that_were_cast_or_negated(place: Path, how: str, is_negated: bool, seed: int) -> None:
    a, b = planted(how, np.random.default_rng(seed), "f4")
    found = compared(place, a, {name: -one if is_negated else one.astype("f8") for name, one in b.items()})
    assert set(verdicts(found).values()) == {LAYOUT if is_negated else CAST} and has_same_numbers(found), found.tensors
    lost = compared(place, a, {name: one.astype("f2") for name, one in b.items()})
    assert set(verdicts(lost).values()) == {ROUNDED} and not lost.is_same


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from([*HOW, "rows"]), st.sampled_from(["f4", "f2", "bfloat16"]), st.integers(0, 2**32))
def test_a_cast_is_lossless_only_where_casting_back_gives_all_bytes(
    place: Path, how: str, kind: str, seed: int
) -> None:
    """Numbers that the narrow type has, and numbers that were rounded to it; either file is the first."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    wide, b = planted(how, random, "f8") if how != "rows" else rows_in_another_order(random)
    narrow = {name: one.astype(dtype) for name, one in b.items()}
    back = {name: one.astype(dtype).astype("f8") for name, one in wide.items()}
    for one, other, verdict in ((wide, narrow, ROUNDED), (back, narrow, CAST), (narrow, wide, ROUNDED)):
        found = compared(place, one, other)
        assert set(verdicts(found).values()) == {verdict} and has_same_numbers(found) == (verdict == CAST), (
            found.tensors
        )


def rows_in_another_order(random: np.random.Generator) -> Planted:
    tensor = numbers(random, (9, 32), "f8")
    return Planted({"w": tensor}, {"n": tensor[random.permutation(9)]})


@given(st.sampled_from(KINDS), st.integers(1, 9), st.integers(2, 70), st.booleans())
def test_columns_have_the_hashes_of_rows(place: Path, kind: str, count: int, length: int, is_rows: bool) -> None:
    """Hashes and samples of lines that are stored across, and of the same lines as rows."""
    array = numbers(np.random.default_rng(0), (length, count), kind)
    save_file({"across": array, "rows": np.ascontiguousarray(array.T)}, place / "one.safetensors")
    checkpoint = read(place / "one.safetensors")
    views = checkpoint.views()
    hashes = LineHashes()
    with Source(checkpoint) as source:
        across, rows = LineWay(Lines(turned(views["across"]), True)), LineWay(Lines(views["rows"]))
        work = hashes.samples if is_rows else hashes.whole
        assert np.array_equal(work(source, across), work(source, rows))


def test_columns_of_one_hash_are_no_map(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the hashes say, all bytes are compared: here every line has one hash."""
    random = np.random.default_rng(0)
    a, b = (numbers(random, (64, 8), "f4") for _ in range(2))
    monkeypatch.setattr(LineHashes, "of_rows", lambda self, rows: np.zeros((2, len(rows)), "u8"))
    monkeypatch.setattr(LineHashes, "_across", lambda self, source, way: np.zeros((2, way.lines.total), "u8"))
    assert [one.kind for one in compared(place, {"x": a}, {"y": b}).tensors] == [ADDED, REMOVED]


@pytest.mark.parametrize("kind", ["f4", "u1"])
def test_samples_that_are_equal_do_not_hide_a_map(place: Path, kind: str) -> None:
    """Columns that differ in one row that no sample has."""
    random = np.random.default_rng(1)
    array = np.repeat(numbers(random, (300, 1), kind), 40, axis=1)
    array[7] = np.arange(40).astype(kind)
    found = compared(place, {"x": array}, {"y": array[:, random.permutation(40)]})
    assert [(one.kind, one.is_unique) for one in found.tensors] == [(LAYOUT, True)]
    array[7, 3] = array[7, 4]
    found = compared(place, {"x": array}, {"y": array[:, random.permutation(40)]})
    assert [(one.kind, one.is_unique) for one in found.tensors] == [(LAYOUT, False)]


def test_columns_that_do_not_fit_into_memory_are_undecided(place: Path) -> None:
    random = np.random.default_rng(0)
    wide = numbers(random, (16, 9000), "f4")
    b = {"y": wide[:, random.permutation(9000)]}
    assert verdicts(compared(place, {"x": wide}, b, memory=1 << 20)) == {"y": "undecided"}
    assert verdicts(compared(place, {"x": wide}, b)) == {"y": LAYOUT}


@pytest.mark.parametrize("memory", [1 << 17, 1 << 26])
@pytest.mark.parametrize("how", HOW)
def test_blocks_of_any_size(place: Path, how: str, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips of a few elements, of which some do not divide the tensor."""
    monkeypatch.setattr(line_search, "BLOCK_NBYTES", 700)
    monkeypatch.setattr(line_search, "SHARES", 1 << 17)
    monkeypatch.setattr(line_search, "LONG", 4)
    assert has_same_numbers(compared(place, *planted(how, np.random.default_rng(3), "f4"), memory=memory))
