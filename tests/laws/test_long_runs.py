"""Long runs of vectors and of narrow matrices: what NumPy joined is found, and nothing is found by chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paramtool.engine.compare import line_table
from paramtool.model.diff import ADDED, CAST, CHANGED, LAYOUT, REMOVED, ROUNDED
from tests.examples import examples
from tests.laws.comparing import compared, numbers, verdicts

Array = np.ndarray
Arrays = dict[str, Array]
KINDS = ["f4", "f2", "f8", "i4", "i1", "bfloat16"]
law = settings(max_examples=examples(300), deadline=None)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@law
@given(st.sampled_from(KINDS), st.lists(st.integers(64, 300), min_size=1, max_size=5), st.booleans(), st.data())
def test_vectors_are_joined_and_split(
    place: Path, kind: str, sizes: list[int], is_zero: bool, data: st.DataObject
) -> None:
    """Vectors under names of no layout; one of them may be zeros: it is whole."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    some = {f"x{k}": numbers(random, size, kind) for k, size in enumerate([*sizes, 64])}
    if is_zero:
        some["x0"][:] = 0
    order = data.draw(st.permutations(sorted(some)))
    joined = {"y": np.concatenate([some[name] for name in order])}
    found = compared(place, some, joined)
    assert verdicts(found) == {"y": LAYOUT} and found.is_same, found.tensors
    assert found.tensors[0].how == f"[{'; '.join(order)}]" or is_zero or len(order) > 6
    if not is_zero:
        found = compared(place, joined, some)
        assert set(verdicts(found).values()) == {LAYOUT} and found.is_same, found.tensors


@law
@given(st.sampled_from(KINDS), st.integers(200, 400), st.data())
def test_a_slice_is_found_and_the_rest_is_missing(place: Path, kind: str, size: int, data: st.DataObject) -> None:
    vector = numbers(np.random.default_rng(data.draw(st.integers(0, 2**32))), size, kind)
    start = data.draw(st.integers(0, 60))
    stop = data.draw(st.integers(start + 128, size))
    assume(stop - start < size)
    found = compared(place, {"x": vector}, {"y": vector[start:stop]})
    assert [one.kind for one in found.tensors] == [LAYOUT, REMOVED] and not found.is_same
    assert found.tensors[1].how == f"{size - (stop - start)} of {size} elements not found in B"


@law
@given(
    st.sampled_from(["f2", "f4"]),
    st.integers(1, 3),
    st.integers(0, 1),
    st.booleans(),
    st.lists(st.integers(100, 200), min_size=2, max_size=3),
    st.integers(0, 2**32),
)
def test_narrow_matrices(
    place: Path, kind: str, width: int, axis: int, is_turned: bool, sizes: list[int], seed: int
) -> None:
    """[100, 2] and [150, 2] joined along the first axis, two of [100, 2] along the second; and all of it turned."""
    random = np.random.default_rng(seed)
    sizes = sizes if axis == 0 else [sizes[0]] * len(sizes)
    some = [numbers(random, (size, width), kind) for size in sizes]
    whole = np.concatenate(some[::-1], axis=axis)
    some, whole = ([one.T for one in some], whole.T) if is_turned else (some, whole)
    parts = {f"x{k}": one for k, one in enumerate(some)}
    for a, b in ((parts, {"y": whole}), ({"y": whole}, parts)):
        found = compared(place, a, b)
        assert set(verdicts(found).values()) == {LAYOUT} and found.is_same, found.tensors


@law
@given(st.sampled_from(KINDS), st.lists(st.integers(64, 300), min_size=2, max_size=4), st.integers(0, 2**32))
def test_one_other_bit_is_no_map(place: Path, kind: str, sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    some = {f"x{k}": numbers(random, size, kind) for k, size in enumerate(sizes)}
    raw = np.concatenate(list(some.values())).view("u1")
    raw[random.integers(raw.size)] ^= np.uint8(1 << int(random.integers(8)))
    found = compared(place, some, {"y": raw.view(some["x0"].dtype)})
    assert verdicts(found) == {"y": ADDED} and not found.is_same


@law
@given(st.integers(1, 3), st.sampled_from([1, 4, 9, 40]), st.integers(1, 4), st.sampled_from(["u1", "f4"]), st.data())
def test_masks_and_codes_are_not_found_by_chance(
    place: Path, values: int, width: int, ones: int, kind: str, data: st.DataObject
) -> None:
    """Two independent tensors of few values, mostly zeros, share all of their rows, columns and runs, and no origin."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def mask(rows: int) -> Array:
        array = np.zeros((rows, width), kind)
        array.reshape(-1)[random.integers(0, array.size, ones)] = random.integers(1, values + 1, ones)
        return array.squeeze()

    a, b = mask(400), mask(300)
    found = compared(place, {"x": a, "w": numbers(random, 64, "f4")}, {"y": b})
    assert verdicts(found)["y"] in (ADDED, CHANGED), found.tensors


@pytest.mark.parametrize("kind", ["f2", "f8"])
def test_vectors_that_were_cast(place: Path, kind: str) -> None:
    random = np.random.default_rng(0)
    some = {name: numbers(random, 90, "f4") for name in "xyz"}
    found = compared(place, some, {"w": np.concatenate([*some.values()]).astype(kind)})
    assert verdicts(found) == {"w": CAST if kind == "f8" else ROUNDED} and found.is_same == (kind == "f8")


def test_a_flat_vector_of_all_tensors(place: Path) -> None:
    """As FSDP keeps them; also back.  Matrices with long rows are parts of it as a whole."""
    random = np.random.default_rng(0)
    some = {"w": numbers(random, (50, 40), "f4"), "b": numbers(random, 40, "f4"), "e": numbers(random, (30, 3), "f4")}
    flat = {"flat": np.concatenate([one.reshape(-1) for one in some.values()])}
    (one,) = compared(place, some, flat).tensors
    assert (one.kind, one.how) == (LAYOUT, "[w; b; e]")
    found = compared(place, flat, some)
    assert found.is_same
    assert {one.b[0]: one.how for one in found.tensors} == {
        "w": "elements of [flat 0-1999]", "b": "elements of [flat 2000-2039]", "e": "elements of [flat 2040-2129]",
    }  # fmt: skip


def test_a_run_that_goes_on_by_chance_ends_where_the_next_begins(place: Path) -> None:
    """The element behind a part is that with which the next part begins."""
    random = np.random.default_rng(0)
    x, y = numbers(random, 100, "f4"), numbers(random, 16, "f4")
    x[50:53] = y[:3]
    found = compared(place, {"x": x, "y": y}, {"z": np.concatenate([x[:50], y, x[50:]])})
    assert [(one.kind, one.how) for one in found.tensors] == [(LAYOUT, "elements of [x 0-49; y 0-15; x 50-99]")]


@pytest.mark.parametrize("memory", [1 << 9, 1 << 11, 1 << 26])
def test_windows_of_any_size(place: Path, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less memory has longer windows; where none fits, the tensor is undecided."""
    monkeypatch.setattr(line_table, "MAX_WINDOW_NBYTES", 1 << 13)
    monkeypatch.setattr(line_table, "BLOCK_NBYTES", 100)
    monkeypatch.setattr(line_table, "FIRST_NBYTES", 10)
    random = np.random.default_rng(0)
    x, y = numbers(random, 6000, "f4"), numbers(random, 5000, "f4")
    found = compared(place, {"x": x, "y": y}, {"z": np.concatenate([y, x])}, memory)
    assert verdicts(found) == {"z": LAYOUT if memory > 1 << 9 else "undecided"}
