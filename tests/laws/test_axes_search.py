"""Axes in another order: what NumPy moved is found, the words say how, and one other bit makes it none."""

from __future__ import annotations

import re
from ast import literal_eval
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.engine.compare import axes
from paramtool.model.diff import CAST, LAYOUT, ROUNDED
from tests.examples import examples

Array = np.ndarray
KINDS = ["f4", "f2", "f8", "i4", "u1", "c16"]
LEAST = 64
"""Smaller tensors are equal by chance."""
law = settings(max_examples=examples(300), deadline=None)
shapes = st.lists(st.integers(1, 7), min_size=2, max_size=5).map(tuple)

kernels = st.lists(st.integers(2, 6), min_size=3, max_size=5).map(tuple)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("axes")


def compared(place: Path, a: dict[str, Array], b: dict[str, Array], memory: int = 1 << 26) -> Diffed:
    for name, tensors in (("a", a), ("b", b)):
        np.savez(place / f"{name}.npz", **{key: np.ascontiguousarray(one) for key, one in tensors.items()})
    return diff(place / "a.npz", place / "b.npz", memory=memory)


def numbers(shape: tuple[int, ...], kind: str, seed: int) -> Array:
    """Elements of which no two are equal, but for the shortest types."""
    made = np.random.default_rng(seed).permutation(prod(shape)).reshape(shape) - prod(shape) // 2
    return (made + 1j * made if kind == "c16" else made).astype(kind)


def said(how: str, old: Array, shape: tuple[int, ...]) -> Array:
    """What the words of a map make of a tensor, by NumPy."""
    if found := re.search(r"as (\[[^]]*\])", how):
        old = old.reshape(literal_eval(found[1]))
    if "transposed" in how:
        old = old.squeeze().T if old.ndim != 2 else old.T
    if found := re.search(r"axes (\([^)]*\))", how):
        order = literal_eval(found[1])
        rest = tuple(k for k in range(old.ndim) if k not in order)
        assert all(old.shape[k] == 1 for k in rest)
        old = old.transpose(order + rest)
    if found := re.search(r"axes ([\d, ]+) backwards", how):
        old = np.flip(old, tuple(map(int, found[1].split(","))))
    return old.reshape(shape)


def assert_told(place: Path, a: Array, b: Array) -> None:
    """That the tensor is found, and the words are true."""
    found = compared(place, {"x": a}, {"y": b})
    (one,) = found.tensors
    assert one.kind in (LAYOUT, "renamed") and found.is_same, one
    if one.kind == LAYOUT and "of" not in one.how and "[x]" not in one.how:
        assert said(one.how, a, b.shape).tobytes() == np.ascontiguousarray(b).tobytes(), one


@law
@given(shapes, st.sampled_from(KINDS), st.integers(0, 99), st.data())
def test_any_order_of_axes(place: Path, shape: tuple[int, ...], kind: str, seed: int, data: st.DataObject) -> None:
    a = numbers(shape, kind, seed)
    assume(a.nbytes >= LEAST)
    assert_told(place, a, a.transpose(data.draw(st.permutations(range(len(shape))))))


@law
@given(shapes, st.sampled_from(KINDS), st.integers(0, 99), st.data())
def test_axes_that_are_merged_or_split(
    place: Path, shape: tuple[int, ...], kind: str, seed: int, data: st.DataObject
) -> None:
    """[kh, kw, in, out] as [out, in * kh * kw], and back."""
    a = numbers(shape, kind, seed)
    assume(a.nbytes >= LEAST)
    moved = a.transpose(data.draw(st.permutations(range(len(shape)))))
    cuts = sorted({0, len(shape), *data.draw(st.lists(st.integers(1, len(shape) - 1), max_size=3))})
    merged = moved.reshape([prod(moved.shape[low:high]) for low, high in pairwise(cuts)])
    assert_told(place, a, merged)
    assert_told(place, merged, a)


@law
@given(
    st.lists(st.integers(2, 6), min_size=3, max_size=5).map(tuple),
    st.sampled_from(KINDS),
    st.integers(0, 99),
    st.data(),
)
def test_kernels_that_were_rotated(
    place: Path, shape: tuple[int, ...], kind: str, seed: int, data: st.DataObject
) -> None:
    """All axes but two run backwards, in any order."""
    a = numbers(shape, kind, seed)
    assume(a.nbytes >= LEAST)
    kept = data.draw(st.permutations(range(len(shape))))[:2]
    turned = np.flip(a, [k for k in range(len(shape)) if k not in kept])
    assert_told(place, a, turned.transpose(data.draw(st.permutations(range(len(shape))))))


@law
@given(shapes, st.integers(0, 99), st.data())
def test_one_other_bit_is_no_order(place: Path, shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    a = numbers(shape, "f4", seed)
    assume(a.nbytes >= LEAST)
    b = a.transpose(data.draw(st.permutations(range(len(shape))))).copy(order="C")
    raw = b.reshape(-1).view("u1")
    raw[data.draw(st.integers(0, b.nbytes - 1))] ^= np.uint8(1 << data.draw(st.integers(0, 7)))
    found = compared(place, {"x": a}, {"y": b})
    assert not found.is_same and LAYOUT not in {one.kind for one in found.tensors if one.b}


@pytest.mark.parametrize("kind", ["f2", "f8"])
def test_casts(place: Path, kind: str) -> None:
    a = np.random.default_rng(0).normal(size=(6, 5, 3, 4)).astype("f4")
    (one,) = compared(place, {"x": a}, {"y": a.transpose(2, 3, 1, 0).astype(kind)}).tensors
    assert (one.kind, one.how) == (CAST if kind == "f8" else ROUNDED, "axes (2, 3, 1, 0)")
    assert (one.change is None) == (kind == "f8")


@pytest.mark.parametrize("memory", [1, 1 << 12, 1 << 26])
@pytest.mark.parametrize("order", [(2, 3, 1, 0), (3, 0, 1, 2), (0, 2, 3, 1), (1, 0, 2, 3)])
def test_boxes_of_any_size(place: Path, memory: int, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axes, "TILE", 50)
    a = numbers((11, 7, 3, 2), "f4", 0)
    flipped = np.flip(a, (2, 3)).transpose(order)
    for b in (a.transpose(order), flipped):
        assert compared(place, {"x": a}, {"y": b}, memory).is_same
        other = b.copy()
        other[-1, -1, 0, 1] += 1
        assert not compared(place, {"x": a}, {"y": other}, memory).is_same


def test_the_tensor_of_the_same_name_is_taken_first(place: Path) -> None:
    """Of copies that the first has; a name that it has for another tensor is none."""
    a = numbers((8, 6), "f4", 0)
    found = compared(place, {"copy": a, "w": a}, {"w": a.T, "copy": a})
    assert {one.b[0]: one.a for one in found.tensors} == {"w": ("w",), "copy": ("copy",)}
    found = compared(place, {"v": a, "w": a + 100}, {"w": a.T})
    assert not found.is_same and [one.kind for one in found.tensors] == ["changed", "removed"]


def test_small_and_constant_tensors_are_equal_by_chance(place: Path) -> None:
    few = numbers((3, 4), "f4", 0)
    assert not compared(place, {"x": few}, {"y": few.T}).is_same
    ones = np.ones((32, 64), "f4")
    assert not compared(place, {"x": ones}, {"y": ones.T}).is_same
