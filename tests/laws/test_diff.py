"""What `diff` says of a checkpoint and one that was made of it in a known way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.commands.diff.diff import diff
from paramtool.model.diff import ADDED, CAST, CHANGED, LAYOUT, REMOVED, RENAMED, ROUNDED, SAME
from tests.examples import examples
from tests.laws.comparing import compared, has_same_numbers

Arrays = Mapping[str, np.ndarray]
WIDTH = 24


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both checkpoints are written, again and again."""
    return tmp_path_factory.mktemp("diff")


def made(number: int, kind: str, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Tensors of one module before and after: real content, and what the kind makes of it."""
    random = np.random.default_rng((seed, number))
    old = random.normal(size=(8, WIDTH)).astype("f4")
    other = random.normal(size=(8, WIDTH)).astype("f4")
    name, new = f"m.{number}.w", f"n.{number}.weight"
    match kind:
        case "same":
            return {name: old}, {name: old}
        case "renamed":
            return {name: old}, {new: old}
        case "transposed":
            return {name: old}, {name: old.T}
        case "negated":
            return {name: old}, {new: -old}
        case "joined":
            return {name: old, f"m.{number}.v": other}, {new: np.concatenate([other, old])}
        case "in turn":
            turn = np.stack([old, other], 1).reshape(16, WIDTH)
            return {name: old, f"m.{number}.v": other}, {new: turn}
        case "rounded":
            return {name: old}, {name: old.astype("f2")}
        case "cast":
            return {name: old}, {name: old.astype("f8")}
        case "changed":
            return {name: old}, {name: np.where(np.arange(WIDTH) == 3, old + 1, old).astype("f4")}
        case "removed":
            return {name: old}, {}
        case _:
            return {}, {new: old}


KINDS = {
    "same": SAME, "renamed": RENAMED, "transposed": LAYOUT, "negated": LAYOUT, "joined": LAYOUT, "in turn": LAYOUT,
    "rounded": ROUNDED, "cast": CAST, "changed": CHANGED, "removed": REMOVED, "added": ADDED,
}  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_what_was_done_is_found(place: Path, kinds: list[str], seed: int) -> None:
    """Each module has the verdict of what was done to it, whatever was done to the others."""
    pairs = [made(number, kind, seed) for number, kind in enumerate(kinds)]
    a = {name: array for old, _ in pairs for name, array in old.items()}
    b = {name: array for _, new in pairs for name, array in new.items()}
    found = compared(place, a, b)
    verdicts = {name: one.kind for one in found.tensors for name in (one.b or one.a)}
    wanted = {name: KINDS[kind] for kind, (old, new) in zip(kinds, pairs, strict=True) for name in (new or old)}
    assert verdicts == wanted
    loses = {"changed", "removed", "added", "rounded"} & set(kinds)
    assert has_same_numbers(found) == (not loses)
    assert found.judge(strict=True) == (set(kinds) == {"same"})


def rearranged(random: np.random.Generator, tensors: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """One tensor of all rows of others, in a random order of runs."""
    rows = np.concatenate([*tensors.values()])
    cuts = np.sort(random.choice(np.arange(1, len(rows)), size=min(6, len(rows) - 1), replace=False))
    parts = np.split(rows, cuts)
    yield "joined", np.concatenate([parts[k] for k in random.permutation(len(parts))])


@settings(max_examples=examples(300), deadline=None)
@given(seed=st.integers(0, 2**32), spoil=st.booleans())
def test_any_order_of_rows_is_a_map_and_one_other_element_is_none(place: Path, seed: int, spoil: bool) -> None:
    """Rows of several tensors in any order are the same weights; with one other bit anywhere they are not."""
    random = np.random.default_rng(seed)
    a = {f"p{k}.weight": random.normal(size=(int(random.integers(2, 9)), WIDTH)).astype("f4") for k in range(3)}
    b = dict(rearranged(random, a))
    if spoil:
        b["joined"].view("u4")[tuple(random.integers(n) for n in b["joined"].shape)] ^= np.uint32(
            1 << int(random.integers(31))
        )
    found = compared(place, a, b)
    assert found.is_same != spoil
    assert [one.kind for one in found.tensors if one.b] == [ADDED if spoil else LAYOUT]


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**32), lost=st.integers(1, 4))
def test_rows_that_are_nowhere_are_told(place: Path, seed: int, lost: int) -> None:
    """A tensor that holds only some rows of another is that part of it, and the rest is missing."""
    old = np.random.default_rng(seed).normal(size=(8, WIDTH)).astype("f4")
    found = compared(place, {"a.weight": old}, {"b.weight": old[lost:]})
    assert [one.kind for one in found.tensors] == [LAYOUT, REMOVED]
    assert found.tensors[1].how == f"{lost * WIDTH} of {8 * WIDTH} elements not found in B"
    assert not found.is_same


def test_ones_match_only_where_other_names_ask_for_it(place: Path) -> None:
    """Norms of ones and biases of zeros are equal to each other; what real content shows decides, or nothing."""
    real = np.random.default_rng(0).normal(size=(4, WIDTH)).astype("f4")
    ones, zeros = np.ones(WIDTH, "f4"), np.zeros(WIDTH, "f4")
    a = {"h.0.w": real, "h.0.ln.weight": ones, "h.0.b": zeros, "alone": ones + 1}
    b = {"l.0.w": real, "l.0.ln.weight": ones, "l.0.b": zeros, "other": ones + 1}
    found = {(one.kind, one.a, one.b) for one in compared(place, a, b).tensors}
    assert found == {
        (RENAMED, ("h.0.w",), ("l.0.w",)),
        (RENAMED, ("h.0.ln.weight",), ("l.0.ln.weight",)),
        (RENAMED, ("h.0.b",), ("l.0.b",)),
        (ADDED, (), ("other",)),
        (REMOVED, ("alone",), ()),
    }


@pytest.mark.parametrize("back", [False, True])
def test_differences_are_measured(place: Path, back: bool) -> None:
    """Elements, the largest and the mean difference, the norm, and the rows, as NumPy has them."""
    old = np.arange(1.0, 13.0).reshape(3, 4)
    new = old.copy()
    new[1, 2] += 2
    new[2] = np.nan
    a, b = ({"w": one} for one in ((new, old) if back else (old, new)))
    (one,) = compared(place, a, b).tensors
    assert one.kind == CHANGED and one.change is not None
    assert (one.change.elements, one.change.numel, one.change.row_count) == (5, 12, 2)
    assert one.change.largest == np.inf and (one.change.nan_only_a, one.change.nan_only_b) == (
        (4, 0) if back else (0, 4)
    )
    assert [tuple(span) for span in one.change.rows] == [(1, 3)]
    new[2] = old[2]
    (one,) = compared(place, {"w": old}, {"w": new}).tensors
    assert one.change is not None
    assert one.change.largest == 2 and one.change.mean == pytest.approx(2 / 12)
    assert one.change.relative == pytest.approx(2 / np.linalg.norm(old))


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_row_that_is_there_twice_does_not_hide_a_lost_one(place: Path, seed: int) -> None:
    """As many rows as before, and one of them is gone."""
    old = np.random.default_rng(seed).normal(size=(8, WIDTH)).astype("f4")
    rows = [0, *range(7)]
    found = compared(place, {"a.weight": old}, {"b.weight": old[rows]})
    assert [one.kind for one in found.tensors] == [LAYOUT, REMOVED] and not found.is_same


def test_a_copy_that_one_side_lacks_is_told(place: Path) -> None:
    """A name that only one has, with the bytes of another: which that is."""
    real = np.random.default_rng(0).normal(size=(4, WIDTH)).astype("f4")
    (same, added) = compared(place, {"wte": real}, {"wte": real, "head": real}).tensors[::-1]
    assert {(one.kind, one.how) for one in (same, added)} == {(SAME, ""), (ADDED, "")}
    found = compared(place, {"x": real}, {"wte": real, "head": real}).tensors
    assert {(one.kind, one.how) for one in found} == {(RENAMED, ""), (ADDED, "the same bytes as 'x' of A")}


def test_packed_types_are_compared_as_bytes(tmp_path: Path) -> None:
    """Two numbers in a byte have no difference that is measured; how many bytes differ is counted."""
    for name, last in (("a", 0), ("b", 7)):
        header = json.dumps({"w": {"dtype": "F4", "shape": [4, 8], "data_offsets": [0, 16]}}).encode()
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes([*range(15), last]))
    (one,) = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors").tensors
    assert one.kind == CHANGED and one.change is not None
    assert (one.change.elements, one.change.numel, one.change.largest) == (1, 16, None)


@pytest.mark.parametrize("other", ["f4", "f2"])
def test_rows_that_round_to_the_same_are_not_the_same(place: Path, other: str) -> None:
    """Rows of a wide type that differ in their last bit, beside a tensor of a type in which they are equal."""
    random = np.random.default_rng(0)
    old, narrow = random.normal(size=(8, WIDTH)), random.normal(size=(8, WIDTH)).astype(other)
    new = old[::-1].copy()
    new.view("u8")[3, 5] ^= np.uint64(1)
    found = compared(place, {"a": old, "n": narrow}, {"b": new, "n2": narrow[::-1]})
    assert {one.kind for one in found.tensors for name in one.b if name == "b"} == {ADDED}
    assert not found.is_same
