"""Laws of relayout: A to B and back is the same network, in bytes where it is said to be exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.layouts.spec import Spec
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View, contiguous
from paramtool.passes.rnn import convert as relayout_pass
from tests.examples import IS_HARD, examples
from tests.laws import conversions
from tests.laws.conversions import NAMES, NO_INNER_BIAS, PEEPHOLES, Array, Held, can_hold, move, neutral, plan_of

KINDS = ("lstm", "gru after", "gru before", "rnn")


def grid(kind: str) -> Iterator[Spec]:
    """Networks of one kind: one and two layers and directions, with and without biases, square and not."""
    word, _, side = kind.partition(" ")
    said = {"gru": {"reset": side}, "rnn": {"activation": "relu"}}.get(word, {})
    more = ({}, {"projection": 2}, {"peephole": True}) if word == "lstm" else ({},)
    sizes = ((3, 4, 1, True), (4, 3, 2, False), (4, 4, 1, False))
    for bias, (width, hidden, layers, both), extra in product((True, False), sizes, more):
        yield Spec(word, width, hidden, layers, both, bias=bias, **said, **extra)  # type: ignore[arg-type]
    yield Spec(word, 3, 4, 2, True, **said)  # type: ignore[arg-type]


GRID = {kind: list(grid(kind)) for kind in KINDS}


def function(home: Held) -> dict[str, Array]:
    """What a network computes with, from its neutral layout: matrices, and biases, summed where they enter as a sum."""
    arrays, spec = home.arrays(), home.spec
    found = {name: array for name, array in arrays.items() if "bias" not in name and name.split(".")[-1] != "B"}
    for name, array in arrays.items():
        wide = array.astype(np.float64)
        if name.startswith("bias_ih"):
            other = arrays[name.replace("_ih", "_hh")].astype(np.float64)
            rows = 2 * spec.hidden if spec.kind == "gru" else len(wide)
            found[f"{name} summed"] = np.concatenate([wide[:rows] + other[:rows], wide[rows:], other[rows:]])
        elif name.split(".")[-1] == "B":
            half = wide.shape[1] // 2
            found[f"{name} summed"] = wide[:, :half] + wide[:, half:]
        elif name.split(".")[-1] == "bias":
            found[f"{name} summed"] = wide
    return found


def assert_same_function(found: Held, expected: Held, roundings: int) -> None:
    """Matrices have the same bytes; each bias is off by no more than so many roundings of the numbers on its way."""
    a, b = function(found), function(expected)
    assert a.keys() == b.keys()
    for name, array in a.items():
        if array.dtype != np.float64:
            assert array.tobytes() == b[name].tobytes(), name
            continue
        # a forget bias of 1 comes and goes on the way: numbers are up to 2 larger there
        half_step = np.finfo(np.float32).eps / 2 * (np.abs(b[name]) + 2)
        assert (np.abs(array - b[name]) <= roundings * half_step).all(), name


def both_hold(a: str, b: str, kind: str) -> list[Spec]:
    """The networks of a kind that two layouts can hold, whatever their numbers are."""
    found = [spec for spec in GRID[kind] if can_hold(a, spec) and can_hold(b, spec)]
    return [spec for spec in found if not spec.peephole or {a, b} <= PEEPHOLES]


def pairs(a: str) -> Iterator[tuple[str, Spec, bool]]:
    """For each layout that shares a kind with `a`: the layout, a network, and whether a GRU's inner bias fits both.

    Of each pair an LSTM and one other kind is taken; which, and which network of the grid, goes round.  `make hard` has
    all pairs, `make test` a third of those of each layout: the next layout has the next third.
    """
    turn = NAMES.index(a)
    for k, b in enumerate(NAMES):
        if (turn + k) % 3 and not IS_HARD:
            continue
        shared = {kind: specs for kind in KINDS if (specs := both_hold(a, b, kind))}
        others = [kind for kind in shared if kind != "lstm"]
        taken = [kind for kind in shared if kind == "lstm"] + ([others[(2 * turn + k) % len(others)]] if others else [])
        for specs in map(shared.__getitem__, taken):
            yield b, specs[(7 * turn + k) % len(specs)], not {a, b} & NO_INNER_BIAS


@cache
def source_of(spec: Spec, inner: bool) -> Held:
    """A network in its neutral layout."""
    return neutral(spec, 3, inner)


@cache
def start_of(spec: Spec, inner: bool, layout: str) -> Held:
    """That network in another layout."""
    return move(source_of(spec, inner), layout)


@pytest.mark.sample(4)
@pytest.mark.parametrize("a", NAMES)
def test_there_and_back(a: str) -> None:
    """From A to each B and back, with what would be lost kept beside it, gives A's bytes; without, A's function."""
    for b, spec, inner in pairs(a):
        source, start = source_of(spec, inner), start_of(spec, inner, a)
        plan = plan_of(start, b, keep_split=True)
        there = conversions.carried_out(start, plan)
        assert plan.kept == () or not plan.is_exact
        assert move(there, a).bytes() == start.bytes(), f"{spec}: {a} to {b} and back"
        if there.bytes() != start_of(spec, inner, b).bytes():  # the biases are split in another way, or rounded
            assert_same_function(move(there.without_kept(), conversions.neutral_layout(spec)), source, roundings=4)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_back_to_where_all_parts_are_apart(name: str) -> None:
    """Whatever a layout makes of a network's biases, the function is the same when they are apart again."""
    for kind in KINDS:
        for spec in both_hold(name, name, kind):
            inner = name not in NO_INNER_BIAS
            home = move(start_of(spec, inner, name), conversions.neutral_layout(spec))
            assert_same_function(home, source_of(spec, inner), roundings=3)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_exact_both_ways_is_the_same_bits(data: st.DataObject) -> None:
    """Where both conversions say that they are exact, any bits come back: NaNs, -0.0, and types of every size."""
    kind = data.draw(st.sampled_from(KINDS))
    a, b = data.draw(st.sampled_from(NAMES)), data.draw(st.sampled_from(NAMES))
    specs = both_hold(a, b, kind)
    if not specs:
        return
    spec = data.draw(st.sampled_from(specs))
    dtype = data.draw(st.sampled_from(("float16", "bfloat16", "float64")))
    inner = not {a, b} & NO_INNER_BIAS
    with np.errstate(all="ignore"):
        start = move(neutral(spec, data.draw(st.integers(0, 999)), inner, dtype, bits=True), a)
        there = plan_of(start, b)
        if not there.is_exact:
            return
        middle = conversions.carried_out(start, there)
        back = plan_of(middle, a)
        if back.is_exact:
            assert conversions.carried_out(middle, back).bytes() == start.bytes()


def any_numbers(layout: str, spec: Spec, options: dict[str, str], seed: int) -> Held:
    """A network whose numbers are a layout's own, large and small, and not made of another layout's."""
    random = np.random.default_rng(seed)
    start = conversions.held({}, layout, spec, options)
    arrays = {}
    for tensor in start.tensors:
        size = random.choice((1e-4, 1e-2, 1.0), tensor.shape)
        numbers = (size * random.normal(size=tensor.shape)).astype(np.float32)
        arrays[conversions.full(start.layout, "net", tensor.name)] = numbers
    return conversions.held(arrays, layout, spec, options)


FORGETFUL = (
    ("tf1.basic", "1.0"),
    ("tf1.basic", "0.3"),
    ("tf1.block", "0"),
    ("haiku", ""),
    ("keras", ""),
    ("torch", ""),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(FORGETFUL), st.sampled_from(FORGETFUL), st.sampled_from(NAMES), st.integers(0, 999))
def test_what_is_kept_survives_two_conversions(a: tuple[str, str], b: tuple[str, str], c: str, seed: int) -> None:
    """Numbers that a layout has of itself come back bit by bit from A to B to C, whatever B and C add to a bias."""
    spec = Spec("lstm", 3, 2, 1 + seed % 2, bias=True)
    options = [{"forget_bias": amount} if amount else {} for _, amount in (a, b)]
    if not can_hold(c, spec):
        return
    start = any_numbers(a[0], spec, options[0], seed)
    there = move(move(start, b[0], options[1], keep_split=True), c, keep_split=True)
    assert move(there, a[0], options[0]).bytes() == start.bytes()


EXACT = (
    "torch", "cudnn", "mxnet", "mxnet.unfused", "mxnet.gates", "mxnet.flat", "mxnet.v2", "tf1.opaque", "onnx",
    "miopen", "paddle", "chainer", "tensorrt", "cntk", "keras.cudnn",
)  # fmt: skip
"""Layouts that keep both biases as they are: none of them loses a bit to another."""


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", ["lstm", "gru after", "rnn"])
@pytest.mark.parametrize("bias", [True, False])
def test_layouts_with_two_biases_say_that_they_are_exact(kind: str, bias: bool) -> None:
    """Between them nothing is summed or shifted, and torch's tensors come back bit by bit."""
    spec = next(spec for spec in GRID[kind] if spec.bias == bias and not spec.projection and not spec.peephole)
    source = neutral(spec, 5, bits=True)
    for name in EXACT:
        if can_hold(name, spec):
            there = plan_of(source, name)
            back = plan_of(conversions.carried_out(source, there), "torch")
            assert there.is_exact and back.is_exact, name
            assert conversions.carried_out(conversions.carried_out(source, there), back).bytes() == source.bytes(), name


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from(KINDS), st.integers(0, 999))
def test_where_tensors_stand_does_not_matter(name: str, kind: str, seed: int) -> None:
    """Windows of one storage, transposed, with gaps and in any order, give what contiguous tensors give."""
    specs = both_hold(name, name, kind)
    if not specs:
        return
    spec = specs[seed % len(specs)]
    source = neutral(spec, seed, inner_bias=name not in NO_INNER_BIAS)
    assert move(scattered(source, seed), name).bytes() == move(source, name).bytes()


def scattered(source: Held, seed: int) -> Held:
    """The same tensors in one storage, each with axes in some order and steps of some length, at some offset."""
    random = np.random.default_rng(seed)
    views: dict[str, View] = {}
    stop = 0
    for name in random.permutation(sorted(source.views)):
        view = source.views[name]
        strides, step = [0] * len(view.shape), int(random.integers(1, 4))
        for axis in random.permutation(len(view.shape)):
            strides[axis] = step
            step *= view.shape[axis] + int(random.integers(0, 2))
        views[name] = View("all", view.dtype, stop + int(random.integers(0, 5)), view.shape, tuple(strides))
        stop = views[name].offset + views[name].extent
    buffer = np.full(stop, np.nan, np.float32)
    for name, view in views.items():
        conversions.window(view, {"all": buffer})[...] = conversions.window(source.views[name], source.buffers)
    return replace(source, buffers={"all": buffer}, views={name: views[name] for name in source.views})


# --- fewer and larger copies ------------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_coalesced_copies_write_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every layout, the copies as they are joined and cell by cell fill the same tensors; joining adds none."""
    for a in NAMES:
        specs = both_hold(a, a, kind)
        if not specs:
            continue
        source = neutral(specs[0], 3, inner_bias=a not in NO_INNER_BIAS)
        start, target = (source, a) if a != source.layout.name else (move(source, "onnx"), a)
        joined = plan_of(start, target)
        with monkeypatch.context() as patch:
            patch.setattr(relayout_pass, "coalesced", list)
            single = plan_of(start, target)
        assert conversions.forced(start, joined).bytes() == conversions.forced(start, single).bytes(), a
        for one, other in zip(joined.targets, single.targets, strict=True):
            assert len(one.copies) <= len(other.copies)


@st.composite
def tilings(draw: st.DrawFn) -> list[Copy]:
    """Copies that fill a vector in order: rectangles, turned or not, of neighbouring, distant or repeated windows."""
    copies: list[Copy] = []
    start = at = 0
    for _ in range(draw(st.integers(1, 8))):
        rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        row_major, column_major = (columns, 1), (1, rows)
        shape = (rows, columns)
        destination = View("t", DTYPES["float32"], start, shape, draw(st.sampled_from((row_major, column_major))))
        at = draw(st.sampled_from((at, at, at + 1, 0)))
        terms = tuple(
            (draw(st.sampled_from((1, 1, -1))), View(0, DTYPES["float32"], at + k, shape, strides))
            for k, strides in enumerate(draw(st.lists(st.sampled_from((row_major, column_major, (0, 0))), max_size=2)))
        )
        copies.append(Copy(destination, terms, draw(st.sampled_from((0.0, 0.0, 2.0)))))
        at, start = at + rows * columns, start + rows * columns
    return copies


@settings(max_examples=examples(300), deadline=None)
@given(tilings())
def test_coalescing_any_copies(copies: list[Copy]) -> None:
    """Joining never changes what is written, and never makes more copies."""
    size = sum(copy.destination.numel for copy in copies)
    buffers = {0: np.random.default_rng(0).normal(size=200).astype(np.float32)}
    joined = relayout_pass.coalesced(copies)
    target = Target("t", DTYPES["float32"], (size,), tuple(copies))
    assert (
        conversions.filled(replace(target, copies=tuple(joined)), buffers).tobytes()
        == conversions.filled(target, buffers).tobytes()
    )
    assert len(joined) <= len(copies)


@pytest.mark.parametrize("kind", ["lstm", "gru after", "rnn"])
@pytest.mark.parametrize("reverse", [False, True])
def test_windows_in_cudnns_order_are_one_copy(kind: str, reverse: bool) -> None:
    """torch's tensors as a GPU has them, all in one buffer, become one contiguous copy; in any other order more."""
    spec = next(spec for spec in GRID[kind] if spec.layers == 2 and spec.bidirectional)
    source = neutral(spec, 1)
    order = sorted(source.views, key=lambda name: ("bias" in name, name.split("_l")[1], "hh" in name))
    views, at = {}, 5
    for name in reversed(order) if reverse else order:
        views[name] = contiguous(0, DTYPES["float32"], source.views[name].shape, at)
        at += views[name].numel
    (target,) = plan_of(replace(source, views=views), "cudnn").targets
    whole = Copy(target.view, ((1, contiguous(0, target.dtype, target.shape, 5)),))
    assert (target.copies == (whole,)) == (not reverse)
