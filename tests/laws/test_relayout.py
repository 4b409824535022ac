"""Laws of relayout: A to B and back is the same network, in bytes where it is said to be exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import cycle, islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool import layouts
from paramtool.layouts.networks import network
from paramtool.layouts.spec import Spec
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View, contiguous
from paramtool.passes import relayout
from tests.laws.conversions import (
    NUMPY,
    Array,
    Held,
    can_hold,
    carried_out,
    filled,
    forced,
    full,
    held,
    meets,
    move,
    plan_of,
    window,
)

NAMES = [layout.name for layout in layouts.all_layouts()]
NO_INNER_BIAS = {"flax.nnx", "flux", "flux.old", "lasagne", "coreml"}
"""Layouts whose GRU has no bias inside r * ( )."""
PEEPHOLES = {"tf1.basic", "tf1.block", "onnx", "onednn", "coreml", "coreml.proto", "lasagne"}
"""Layouts whose LSTM has them."""
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


def neutral_layout(spec: Spec) -> str:
    """A layout that holds a network with all its parts apart: torch, and ONNX or oneDNN for what torch lacks."""
    if spec.peephole or spec.reset == "before":
        return "onednn" if spec.projection else "onnx"
    return "torch"


def neutral(spec: Spec, seed: int, inner_bias: bool = True, dtype: str = "float32", bits: bool = False) -> Held:
    """A network of random numbers, or of random bits; the bias inside a GRU's r * ( ) may be zero."""
    random = np.random.default_rng(seed)
    layout = layouts.find(neutral_layout(spec))
    arrays: dict[str, Array] = {}
    for tensor in held({}, layout.name, spec).tensors:
        kind, size = NUMPY[dtype], int(np.prod(tensor.shape))
        found = random.normal(size=size).astype(kind)
        if bits:
            found = random.integers(0, 256, size * kind.itemsize, np.uint8).view(kind)
        found = found.reshape(tensor.shape)
        if tensor.name.startswith("bias_hh") and not inner_bias and spec.kind == "gru":
            found[2 * spec.hidden :] = 0
        arrays[full(layout, "net", tensor.name)] = found
    return held(arrays, layout.name, spec)


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
    """For each layout and each kind that it shares with `a`: the layout, one network of the grid, and whether a GRU's
    inner bias has a place in both; which network goes round from pair to pair."""
    turn = NAMES.index(a)
    for k, b in enumerate(NAMES):
        for kind in KINDS:
            if specs := both_hold(a, b, kind):
                yield b, next(islice(cycle(specs), (7 * turn + k) % len(specs), None)), not {a, b} & NO_INNER_BIAS


@cache
def source_of(spec: Spec, inner: bool) -> Held:
    """A network in its neutral layout."""
    return neutral(spec, 3, inner)


@cache
def start_of(spec: Spec, inner: bool, layout: str) -> Held:
    """That network in another layout."""
    return move(source_of(spec, inner), layout)


@pytest.mark.parametrize("a", NAMES)
def test_there_and_back(a: str) -> None:
    """From A to each B and back, with what would be lost kept beside it, gives A's bytes; without, A's function."""
    for b, spec, inner in pairs(a):
        source, start = source_of(spec, inner), start_of(spec, inner, a)
        plan = plan_of(start, b, keep_split=True)
        there = carried_out(start, plan)
        assert plan.kept == () or not plan.is_exact
        assert move(there, a).bytes() == start.bytes(), f"{spec}: {a} to {b} and back"
        if there.bytes() != start_of(spec, inner, b).bytes():  # the biases are split in another way, or rounded
            assert_same_function(move(there.without_kept(), neutral_layout(spec)), source, roundings=4)


@pytest.mark.parametrize("name", NAMES)
def test_back_to_where_all_parts_are_apart(name: str) -> None:
    """Whatever a layout makes of a network's biases, the function is the same when they are apart again."""
    for kind in KINDS:
        for spec in both_hold(name, name, kind):
            inner = name not in NO_INNER_BIAS
            home = move(start_of(spec, inner, name), neutral_layout(spec))
            assert_same_function(home, source_of(spec, inner), roundings=3)


@settings(max_examples=150, deadline=None)
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
        middle = carried_out(start, there)
        back = plan_of(middle, a)
        if back.is_exact:
            assert carried_out(middle, back).bytes() == start.bytes()


EXACT = (
    "torch", "cudnn", "mxnet", "mxnet.unfused", "mxnet.gates", "mxnet.flat", "mxnet.v2", "tf1.opaque", "onnx",
    "miopen", "paddle", "chainer", "tensorrt", "cntk", "keras.cudnn",
)  # fmt: skip
"""Layouts that keep both biases as they are: none of them loses a bit to another."""


@pytest.mark.parametrize("kind", ["lstm", "gru after", "rnn"])
@pytest.mark.parametrize("bias", [True, False])
def test_layouts_with_two_biases_say_that_they_are_exact(kind: str, bias: bool) -> None:
    """Between them nothing is summed or shifted, and torch's tensors come back bit by bit."""
    spec = next(spec for spec in GRID[kind] if spec.bias == bias and not spec.projection and not spec.peephole)
    source = neutral(spec, 5, bits=True)
    for name in EXACT:
        if can_hold(name, spec):
            there = plan_of(source, name)
            back = plan_of(carried_out(source, there), "torch")
            assert there.is_exact and back.is_exact, name
            assert carried_out(carried_out(source, there), back).bytes() == source.bytes(), name


@settings(max_examples=60, deadline=None)
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
        window(view, {"all": buffer})[...] = window(source.views[name], source.buffers)
    return replace(source, buffers={"all": buffer}, views={name: views[name] for name in source.views})


# --- what each rule of the layouts does -----------------------------------------------------------------------------


def lstm(**said: object) -> Spec:
    """A small LSTM."""
    return Spec("lstm", 3, 2, **said)  # type: ignore[arg-type]


def bias_sum(source: Held) -> Array:
    """Both biases of layer 0, added in their own type."""
    arrays = source.arrays()
    found: Array = arrays["bias_ih_l0"] + arrays["bias_hh_l0"]
    return found


def test_one_bias_is_the_sum_of_two_rounded_once() -> None:
    """Keras gets b_ih + b_hh in the type of the file, and nothing else is touched."""
    source = neutral(lstm(), 1)
    assert move(source, "keras").arrays()["bias"].tobytes() == bias_sum(source).tobytes()


def test_one_bias_goes_into_the_first_of_two() -> None:
    """Back in torch b_ih is the one bias, and b_hh is zero."""
    there = move(neutral(lstm(), 1), "keras")
    back = move(there, "torch").arrays()
    assert back["bias_ih_l0"].tobytes() == there.arrays()["bias"].tobytes()
    assert not back["bias_hh_l0"].any()


@pytest.mark.parametrize("amount", ["1.0", "0.5", "0"])
def test_the_forget_bias_is_subtracted_from_the_forget_gate_alone(amount: str) -> None:
    """TensorFlow 1's bias is i, j, f, o with f less what the cell adds at run time."""
    source = neutral(lstm(), 1)
    i, f, g, o = np.split(bias_sum(source), 4)
    expected = np.concatenate([i, g, f - np.float32(amount), o])
    found = move(source, "tf1.basic", {"forget_bias": amount}).arrays()["bias"]
    assert found.tobytes() == expected.tobytes()


def test_the_forget_bias_is_added_on_the_way_back() -> None:
    """torch gets f + 1, in its own place, from a cell that adds 1."""
    there = move(neutral(lstm(), 1), "haiku")
    i, g, f, o = np.split(there.arrays()["linear/b"], 4)
    expected = np.concatenate([i, f + np.float32(1), g, o])
    assert move(there, "torch").arrays()["bias_ih_l0"].tobytes() == expected.tobytes()


@pytest.mark.parametrize(("amount", "exact"), [("1.0", True), ("0.5", False)])
def test_equal_forget_biases_move_bits(amount: str, exact: bool) -> None:
    """Haiku always adds 1: a TensorFlow 1 cell that does, too, is copied; another is shifted by the difference."""
    there = move(neutral(lstm(), 1), "haiku")
    plan = plan_of(there, "tf1.basic", {"forget_bias": amount})
    assert plan.is_exact == exact
    difference = np.split(carried_out(there, plan).arrays()["bias"] - there.arrays()["linear/b"], 4)
    assert [round(float(part.max()), 6) for part in difference] == [0, 0, 1 - float(amount), 0]


def test_a_complemented_gate_is_negated_in_its_sign_bit() -> None:
    """Lasagne's update gate is torch's z with every sign turned over, NaNs and zeros included; nothing else is."""
    spec = Spec("gru", 3, 2, reset="after", bias=False)
    source = neutral(spec, 1, bits=True)
    r, z, n = np.split(source.arrays()["weight_ih_l0"].view(np.uint32), 3)
    found = {name: array.view(np.uint32) for name, array in move(source, "lasagne").arrays().items()}
    expected = {"resetgate": r, "updategate": z ^ np.uint32(1 << 31), "hidden_update": n}
    assert all(np.array_equal(array, found[f"W_in_to_{gate}"].T) for gate, array in expected.items())


def test_a_negated_bias_is_the_negative_sum() -> None:
    """Haiku's bias of z is -(b + b'), those of r and a are b + b'."""
    source = neutral(Spec("gru", 3, 2, reset="before"), 1)
    z, r, n = np.split(source.arrays()["B"][0, :6] + source.arrays()["B"][0, 6:], 3)
    assert move(source, "haiku").arrays()["b"].tobytes() == np.concatenate([-z, r, n]).tobytes()


@pytest.mark.parametrize("name", ["mxnet", "mxnet.flat", "cudnn", "paddle", "chainer", "flax.linen", "tensorrt"])
def test_biases_of_zeros_are_made_and_dropped_again(name: str) -> None:
    """A network without biases gets zeros where a library always has them, and loses them where the user says so."""
    spec = lstm(layers=2, bias=False)
    source = neutral(spec, 1)
    there = move(source, name)
    if name != "cudnn":
        assert any("bias" in own or "/b" in own or array.size > 100 for own, array in there.arrays().items())
    assert move(there, "torch").bytes() == source.bytes()


@pytest.mark.parametrize("name", ["mxnet", "flax.linen", "keras.cudnn", "tf1.canonical"])
def test_biases_that_are_not_zero_are_not_dropped(name: str) -> None:
    """Saying bias=no of a network with biases requires what does not hold."""
    layout = layouts.find(name)
    there = move(neutral(lstm(), 1), name)
    said = {"kind": "lstm", "bias": False}
    found = network(layout, {}, "net", {n: view.shape for n, view in there.views.items()}, said)
    plan = relayout.convert(found, there.views, layouts.find("torch"), {}, "net")
    assert not plan.spec.bias and not meets(there, plan)


@pytest.mark.parametrize("name", [name for name in NAMES if can_hold(name, Spec("gru", 3, 2, reset="after"))])
def test_an_inner_bias_has_to_be_zero_where_it_has_no_place(name: str) -> None:
    """A GRU with a bias inside r * ( ) goes to just those layouts that have one; the requirement names the cell."""
    spec = Spec("gru", 3, 2, reset="after")
    source = neutral(spec, 1)
    plan = plan_of(source, name)
    failed = [one.message for one in plan.requires if not one.terms]
    assert meets(source, plan) == (name not in NO_INNER_BIAS)
    assert all(f"recurrent bias of gate n (layer 0) is not zero, and layout {name}" in line for line in failed)
    assert meets(neutral(spec, 1, inner_bias=False), plan)


@pytest.mark.parametrize("name", [name for name in NAMES if can_hold(name, Spec("lstm", 3, 2))])
def test_peepholes_have_to_be_zero_where_they_have_no_place(name: str) -> None:
    """An LSTM with peepholes goes to just those layouts that have them; the requirement names the cell."""
    spec = lstm(peephole=True)
    source = neutral(spec, 1)
    plan = plan_of(source, name)
    failed = [one for one in plan.requires if not meets(source, replace(plan, requires=(one,)))]
    assert meets(source, plan) == (name in PEEPHOLES) == (not failed)
    assert all("the peephole of gate" in one.message and "lasagne" in one.hint for one in failed)


@pytest.mark.parametrize("mode", ["input", "recurrent"])
def test_cudnn_with_one_bias_lacks_one_bias_of_the_candidate(mode: str) -> None:
    """One bias in the input's product leaves none inside r * ( ), one in the recurrent product none outside."""
    source = neutral(Spec("gru", 3, 2, reset="after"), 1)
    plan = plan_of(source, "cudnn", {"bias_mode": mode})
    where = "recurrent" if mode == "input" else "input"
    assert [f"{where} bias of gate n" in one.message for one in plan.requires] == [True]
    assert not meets(source, plan)


def test_twins_must_agree() -> None:
    """Paddle stores each tensor twice: a pair that differs in one bit is a requirement that fails, by name."""
    there = move(neutral(lstm(), 1), "paddle")
    plan = plan_of(there, "torch")
    assert meets(there, plan)
    name = "net.0.cell.bias_hh"
    window(there.views[name], there.buffers)[0] *= -1
    failed = [one for one in plan.requires if not meets(there, replace(plan, requires=(one,)))]
    assert failed and all(f"'{name}'" in one.message and "twin" in one.message for one in failed)


@pytest.mark.parametrize(("name", "spec"), [("lasagne", "lstm"), ("flux.old", "lstm"), ("flux.old", "rnn")])
def test_a_trained_initial_state_is_not_dropped(name: str, spec: str) -> None:
    """torch has no place for h0 and c0: they have to be zero, and the message says which is not."""
    said = Spec(spec, 3, 2, initial_state=True, activation="relu" if spec == "rnn" else "")
    layout = layouts.find(name)
    shapes = {full(layout, "net", t.name): t.shape for t in held({}, name, said).tensors}
    start = held({n: np.ones(shape, np.float32) for n, shape in shapes.items()}, name, said)
    plan = plan_of(start, "torch")
    words = sorted(one.message.split("the ")[1].split(" (")[0] for one in plan.requires)
    assert words == ["initial c", "initial h"][0 if spec == "lstm" else 1 :]
    assert not meets(start, plan)


def test_flux_gruv3s_unused_block_is_zeros_and_is_never_read() -> None:
    """The third block of Wh is filler: made of zeros, and whatever stands there does not reach another layout."""
    spec = Spec("gru", 3, 2, reset="before")
    there = move(neutral(spec, 1), "flux")
    block = there.arrays()["cell.Wh"][4:]
    assert block.shape == (2, 2) and not block.any()
    expected = move(there, "onnx").bytes()
    window(there.views["net.cell.Wh"], there.buffers)[4:] = 7
    assert move(there, "onnx").bytes() == expected


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_kept_tensors_that_were_trained_on_are_found_out() -> None:
    """A way back with kept biases requires that they still give what is stored."""
    there = move(neutral(lstm(), 1), "keras", keep_split=True)
    plan = plan_of(there, "torch")
    assert meets(there, plan)
    window(there.views["net/bias"] if "net/bias" in there.views else there.views["net.bias"], there.buffers)[0] += 1
    assert not meets(there, plan)


def test_only_what_is_lost_is_kept() -> None:
    """Between layouts with two biases nothing is kept, to Keras both biases of each cell are."""
    source = neutral(lstm(layers=2), 1)
    assert plan_of(source, "mxnet", keep_split=True).kept == ()
    kept = [target.name for target in plan_of(source, "keras", keep_split=True).kept]
    assert sorted(kept) == [f"paramtool.kept/net/bias_{side}_l{k}" for side in ("hh", "ih") for k in (0, 1)]


@pytest.mark.xfail(strict=True, reason="what is kept of a shifted bias is the shifted number, which was rounded")
@pytest.mark.parametrize(("a", "b"), [("haiku", "torch"), ("tf1.basic", "torch"), ("haiku", "keras")])
def test_a_forget_bias_that_rounds_is_kept_as_it_was(a: str, b: str) -> None:
    """A forget bias of 1e-9 becomes 1 in torch; with what was kept, the way back gives 1e-9 again."""
    layout = layouts.find(a)
    shapes = {full(layout, "net", t.name): t.shape for t in held({}, a, lstm()).tensors}
    start = held({n: np.full(shape, 1e-9, np.float32) for n, shape in shapes.items()}, a, lstm())
    assert move(move(start, b, keep_split=True), a).bytes() == start.bytes()


@pytest.mark.xfail(strict=True, reason="peepholes of a Lasagne network that is said to have none are dropped unseen")
def test_peepholes_that_are_not_zero_are_not_dropped() -> None:
    """Saying peephole=no of a Lasagne LSTM whose peepholes are not zero requires what does not hold."""
    spec = lstm(peephole=True)
    there = move(neutral(spec, 1), "lasagne")
    shapes = {name: view.shape for name, view in there.views.items()}
    found = network(there.layout, {}, "net", shapes, {"peephole": False, "initial_state": False})
    assert not meets(there, relayout.convert(found, there.views, layouts.find("torch"), {}, "net"))


@pytest.mark.xfail(strict=True, reason="a cuDNN buffer's biases are dropped unseen where bias=no is said")
def test_a_buffers_biases_that_are_not_zero_are_not_dropped() -> None:
    """A buffer has one length with biases and without: saying bias=no of one that has some requires zeros there."""
    there = move(neutral(lstm(), 1), "cudnn")
    said = replace(there, spec=lstm(bias=False))
    assert not meets(said, plan_of(said, "torch"))


# --- fewer and larger copies ------------------------------------------------------------------------------------------


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
            patch.setattr(relayout, "coalesced", list)
            single = plan_of(start, target)
        assert forced(start, joined).bytes() == forced(start, single).bytes(), a
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


@settings(max_examples=300, deadline=None)
@given(tilings())
def test_coalescing_any_copies(copies: list[Copy]) -> None:
    """Joining never changes what is written, and never makes more copies."""
    size = sum(copy.destination.numel for copy in copies)
    buffers = {0: np.random.default_rng(0).normal(size=200).astype(np.float32)}
    joined = relayout.coalesced(copies)
    target = Target("t", DTYPES["float32"], (size,), tuple(copies))
    assert filled(replace(target, copies=tuple(joined)), buffers).tobytes() == filled(target, buffers).tobytes()
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
