"""Copies that make tensors of parts: every element comes from where its part is, once, in runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.errors import LayoutError
from paramtool.model.plan import Target
from paramtool.model.view import View
from paramtool.parts import patterns, rows
from paramtool.parts.pieces import Stored, whole
from paramtool.parts.rows import PartTensor
from paramtool.parts.sizes import Sizes
from paramtool.passes.parts import copies
from tests.passes.made import view

PATTERNS = {
    "qkv": ("q[(heads head_dim) in] k[(kv_heads head_dim) in] v[(kv_heads value_dim) in]", 0),
    "per-group": ("{kv_heads: q[(group head_dim) in] k[head_dim in] v[value_dim in]}", 0),
    "conv1d": ("q[in (heads head_dim)] k[in (kv_heads head_dim)] v[in (kv_heads value_dim)]", 1),
}
TERMS = ("q", "k", "v")


def made(pattern: str, sizes: dict[str, int]) -> tuple[Stored, list[Stored]]:
    """A fused tensor and its parts."""
    known = Sizes(sizes)
    parts = {
        term: [PartTensor(term, patterns.PARTS[term], rows.part_shape(patterns.PARTS[term], known))] for term in TERMS
    }
    content, along = PATTERNS[pattern]
    return rows.stored("fused", content, along, parts, sizes=known), [whole(t, parts[t][0].shape) for t in TERMS]


def elements(one: View) -> Iterator[int]:
    """The elements of a storage that a view shows, in its order."""
    for index in product(*(range(size) for size in one.shape)):
        yield one.offset + sum(k * step for k, step in zip(index, one.strides, strict=True))


def moved(target: Target) -> dict[int, tuple[object, int]]:
    """{element of a target: (storage, element) that it is copied from}; each is written once."""
    found: dict[int, tuple[object, int]] = {}
    for copy in target.copies:
        ((sign, source),) = copy.terms
        assert sign == 1 and copy.shift == 0
        for here, there in zip(elements(copy.destination), elements(source), strict=True):
            assert here not in found
            found[here] = (source.storage, there)
    return found


SIZES = st.fixed_dictionaries(
    {"kv_heads": st.integers(1, 3), "head_dim": st.integers(1, 4), "value_dim": st.integers(1, 4),
     "in": st.integers(1, 4)}
).flatmap(lambda one: st.integers(1, 3).map(lambda group: {**one, "heads": group * one["kv_heads"]}))  # fmt: skip


def sources(tensors: list[Stored], dtype: str = "float32") -> copies.Sources:
    return copies.sources("f", tensors, {one.name: view(k, *one.shape, dtype=dtype) for k, one in enumerate(tensors)})


@pytest.mark.parametrize("pattern", PATTERNS)
@given(sizes=SIZES)
def test_there_and_back_is_where_it_was(pattern: str, sizes: dict[str, int]) -> None:
    """Each element of a fused tensor is copied once, and each part gets its own elements back."""
    fused, parts = made(pattern, sizes)
    there = moved(copies.target(fused, sources(parts)))
    assert sorted(there) == [*range(view(0, *fused.shape).numel)]
    assert len(set(there.values())) == len(there)
    for k, part in enumerate(parts):
        back = moved(copies.target(part, sources([fused])))
        assert sorted(back) == [*range(view(0, *part.shape).numel)]
        assert all(there[element] == (k, own) for own, (_, element) in back.items())


@pytest.mark.parametrize("pattern", ["qkv", "conv1d"])
@given(sizes=SIZES)
def test_parts_are_windows_where_they_are_one_run(pattern: str, sizes: dict[str, int]) -> None:
    """Then an old name can stay as a view: it has the elements that the copies put there."""
    fused, parts = made(pattern, sizes)
    there = moved(copies.target(fused, sources(parts)))
    for k, part in enumerate(parts):
        window = copies.window(part, fused, view(k, *part.shape))
        assert window is not None and window.shape == part.shape
        assert [there[element] for element in elements(window)] == [(k, own) for own in elements(view(k, *part.shape))]


def test_parts_in_pieces_are_no_windows() -> None:
    """Rows of a part at equal distances are; blocks of several rows have no stride."""
    sizes = {"kv_heads": 2, "heads": 4, "head_dim": 1, "value_dim": 2, "in": 3}
    fused, parts = made("per-group", sizes)
    windows = [copies.window(part, fused, view(0, *part.shape)) for part in parts]
    assert [window is None for window in windows] == [True, False, True]
    assert windows[1] is not None and windows[1].strides == (15, 1)


def test_long_runs_are_copies_of_their_own() -> None:
    """So that they are read into their place; short ones are one strided copy."""
    for width, count in ((copies.RUN_NBYTES // 4, 6), (2, 3)):
        fused, parts = made("per-group", {"kv_heads": 2, "heads": 2, "head_dim": 1, "value_dim": 1, "in": width})
        target = copies.target(fused, sources(parts))
        assert len(target.copies) == count
        assert [copy.destination.offset for copy in target.copies] == sorted(
            c.destination.offset for c in target.copies
        )


def test_what_is_lacking_is_named() -> None:
    fused, parts = made("qkv", {"kv_heads": 1, "heads": 1, "head_dim": 2, "value_dim": 2, "in": 3})
    with pytest.raises(LayoutError, match="'fused' cannot be made: the file has no 'v'"):
        copies.target(fused, sources(parts[:2]))
    views = {one.name: view(k, *one.shape, dtype="float16" if k else "float32") for k, one in enumerate(parts)}
    with pytest.raises(LayoutError, match="several types: 'q' is float32, 'k' is float16"):
        copies.target(fused, copies.sources("f", parts, views))


def test_what_is_stored_twice_must_be_equal() -> None:
    """Only one copy is read, and the bytes of the others are asked for."""
    twice = [whole("a", (2, 3), "w"), whole("b", (2, 3), "w")]
    found = sources(twice)
    assert moved(copies.target(whole("w", (2, 3)), found)) == {k: (0, k) for k in range(6)}
    (question,) = copies.requirements(found)
    assert question.view.storage == 0 and question.terms[0][1].storage == 1 and "'b' repeats" in question.message
