"""What each rule of the layouts does to numbers: sums, shifts, signs, zeros, twins, and what is kept beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paramtool import layouts
from paramtool.layouts.layout import Form, Layout, TensorRule
from paramtool.layouts.networks import network
from paramtool.layouts.spec import Spec
from paramtool.passes.rnn import convert as relayout_pass
from paramtool.passes.rnn.convert import Converted
from tests.laws.conversions import (
    NAMES,
    NO_INNER_BIAS,
    PEEPHOLES,
    Array,
    Held,
    can_hold,
    carried_out,
    filled,
    full,
    held,
    meets,
    move,
    neutral,
    plan_of,
    window,
)


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
    found = network(layout, {}, "net", {n: view.shape for n, view in there.views.items()}, facts=said)
    plan = relayout_pass.convert(found, there.views, layouts.find("torch"), {}, at="net")
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
    words = sorted({m.split("the ")[1].split(" (")[0] for one in plan.requires if "initial" in (m := one.message)})
    assert words == ["initial c", "initial h"][0 if spec == "lstm" else 1 :]
    assert not meets(start, plan)


@pytest.mark.parametrize(("name", "fact"), [("lasagne", "initial_state"), ("flux.old", "initial_state"),
                                            ("lasagne", "peephole")])  # fmt: skip
def test_what_was_dropped_is_no_part_of_the_new_network(name: str, fact: str) -> None:
    """Zeros for which the new layout has no place: its spec does not ask its tensors for them."""
    said = Spec("lstm", 3, 2, **{fact: True})  # type: ignore[arg-type]
    layout = layouts.find(name)
    shapes = {full(layout, "net", t.name): t.shape for t in held({}, name, said).tensors}
    plan = plan_of(held({n: np.zeros(shape, np.float32) for n, shape in shapes.items()}, name, said), "torch")
    assert getattr(plan.source.spec, fact) and plan.spec == Spec("lstm", 3, 2)


def test_flux_gruv3s_unused_block_is_zeros_and_is_never_read() -> None:
    """The third block of Wh is filler: made of zeros, and whatever stands there does not reach another layout."""
    spec = Spec("gru", 3, 2, reset="before")
    there = move(neutral(spec, 1), "flux")
    block = there.arrays()["cell.Wh"][4:]
    assert block.shape == (2, 2) and not block.any()
    expected = move(there, "onnx").bytes()
    window(there.views["net.cell.Wh"], there.buffers)[4:] = 7
    assert move(there, "onnx").bytes() == expected


def of_biases(first: str, second: str = "0[hidden]") -> Layout:
    """A layout of RNNs whose one tensor of biases is written in this way."""
    rows = (
        TensorRule("W", "W[hidden in]"),
        TensorRule("R", "R[hidden rec]"),
        TensorRule("b", first),
        TensorRule("c", second),
    )
    return Layout("odd", "an odd one", (Form("rnn", "h", rows),))


def between(a: Layout, b: Layout, arrays: dict[str, Array]) -> tuple[Held, Converted]:
    """An RNN of 3 x 2 in one layout, and the plan that takes it to another."""
    spec = Spec("rnn", 3, 2)
    at_once = held({f"net.{name}": array for name, array in arrays.items()}, "torch", spec)
    start = replace(at_once, layout=a)
    return start, relayout_pass.convert(start.network, start.views, b, {}, at="net")


@pytest.mark.parametrize("a", ["bW+0", "-bW", "bW-1", "-bW+2"])
@pytest.mark.parametrize("b", ["bW+0", "-bW", "bW-1", "-bW+2"])
def test_signs_and_shifts_of_both_sides_are_calculated_together(a: str, b: str) -> None:
    """What stands in A gives the cell, and the cell gives what stands in B, by the two formulas."""
    source, target = of_biases(f"{a}[hidden]", "bR[hidden]"), of_biases(f"{b}[hidden]", "bR[hidden]")
    kept = np.float32([0.25, 3])
    arrays = {"W": np.ones((2, 3), "f4"), "R": np.ones((2, 2), "f4"), "b": np.float32([0.5, -8]), "c": kept}
    start, plan = between(source, target, arrays)
    sign, shift = {"bW+0": (1, 0), "-bW": (-1, 0), "bW-1": (1, -1), "-bW+2": (-1, 2)}[a]
    cell = sign * (arrays["b"] - shift)
    sign, shift = {"bW+0": (1, 0), "-bW": (-1, 0), "bW-1": (1, -1), "-bW+2": (-1, 2)}[b]
    made = {t.name: filled(t, start.buffers) for t in plan.targets}
    assert made["net.b"].tolist() == (sign * cell + shift).tolist() and made["net.c"].tolist() == kept.tolist()


@pytest.mark.parametrize("twin", ["-bW", "bW-1"])
def test_twins_are_compared_as_cells(twin: str) -> None:
    """A cell that stands twice, once negated or shifted, is one cell."""
    number = np.float32([0.5, -8])
    other = -number if twin == "-bW" else number - 1
    arrays = {"W": np.ones((2, 3), "f4"), "R": np.ones((2, 2), "f4"), "b": number, "c": other}
    start, plan = between(of_biases("bW[hidden]", f"{twin}[hidden]"), of_biases("bW[hidden]"), arrays)
    assert meets(start, plan)


@pytest.mark.parametrize(
    ("bias", "way", "changes"),
    [
        (True, ("torch", "cudnn"), []),
        (True, ("torch", "keras"), ["summed"]),
        (True, ("keras", "torch"), ["split"]),
        (True, ("torch", "haiku"), ["summed", "shifted"]),
        (True, ("haiku", "torch"), ["shifted", "split"]),
        (True, ("keras", "haiku"), ["shifted"]),
        (False, ("torch", "mxnet"), ["made"]),
        (False, ("mxnet", "torch"), ["dropped"]),
        (False, ("mxnet", "paddle"), ["dropped", "made"]),
    ],
)
def test_what_is_changed_is_told(bias: bool, way: tuple[str, str], changes: list[str]) -> None:
    """Each thing that a conversion does beside moving bytes is in its list, once."""
    source = neutral(lstm(bias=bias), 1)
    start = source if way[0] == "torch" else move(source, way[0])
    assert [change.kind for change in plan_of(start, way[1]).changes] == changes


def test_a_complement_is_told() -> None:
    """A negated gate is a change that is exact."""
    plan = plan_of(neutral(Spec("gru", 3, 2, reset="after", bias=False), 1), "lasagne")
    assert [change.kind for change in plan.changes] == ["negated", "made", "made"] and plan.is_exact


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


@pytest.mark.parametrize(("a", "b"), [("haiku", "torch"), ("tf1.basic", "torch"), ("haiku", "keras")])
def test_a_forget_bias_that_rounds_is_kept_as_it_was(a: str, b: str) -> None:
    """A forget bias of 1e-9 becomes 1 in torch; with what was kept, the way back gives 1e-9 again."""
    layout = layouts.find(a)
    shapes = {full(layout, "net", t.name): t.shape for t in held({}, a, lstm()).tensors}
    start = held({n: np.full(shape, 1e-9, np.float32) for n, shape in shapes.items()}, a, lstm())
    assert move(move(start, b, keep_split=True), a).bytes() == start.bytes()


def test_peepholes_that_are_not_zero_are_not_dropped() -> None:
    """Saying peephole=no of a Lasagne LSTM whose peepholes are not zero requires what does not hold."""
    spec = lstm(peephole=True)
    there = move(neutral(spec, 1), "lasagne")
    shapes = {name: view.shape for name, view in there.views.items()}
    found = network(there.layout, {}, "net", shapes, facts={"peephole": False, "initial_state": False})
    assert not meets(there, relayout_pass.convert(found, there.views, layouts.find("torch"), {}, at="net"))


def test_a_buffers_biases_that_are_not_zero_are_not_dropped() -> None:
    """A buffer has one length with biases and without: saying bias=no of one that has some requires zeros there."""
    there = move(neutral(lstm(), 1), "cudnn")
    said = replace(there, spec=lstm(bias=False))
    assert not meets(said, plan_of(said, "torch"))


def test_room_that_is_unseen_may_hold_anything() -> None:
    """With tail=unseen the room behind a buffer without biases is not looked at; it is written as zeros."""
    there = move(neutral(lstm(), 1), "cudnn")
    said = replace(there, spec=lstm(bias=False), options=there.layout.chosen({"tail": "unseen"}))
    plan = plan_of(said, "torch")
    assert plan.requires == () and set(carried_out(said, plan).arrays()) == {"weight_ih_l0", "weight_hh_l0"}
    made = move(neutral(lstm(bias=False), 1), "cudnn", {"tail": "unseen"}).arrays()["flat_weights"]
    assert made.size == 4 * 2 * (3 + 2 + 2) and not made[-16:].any()
