"""Laws of moments: the map of a layout and the map back give the same bytes, whatever an optimizer keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from paramtool import layouts
from paramtool.layouts.spec import Spec
from paramtool.model.optimizer import SlotKind
from paramtool.passes.rnn.convert import Converted, convert
from tests.laws.conversions import NAMES, Held, can_hold, carried_out, held, meets, neutral

SPECS = (
    Spec("lstm", 3, 4, 1, False),
    Spec("lstm", 4, 3, 2, True),
    Spec("gru", 3, 4, 1, False, reset="after"),
    Spec("gru", 4, 4, 2, True, reset="after"),
    Spec("rnn", 3, 4, 2, False, activation="tanh"),
)
BIASES = ("bias_ih", "bias_hh")


def moments(spec: Spec, seed: int, kind: SlotKind) -> Held:
    """What an optimizer keeps for a network of torch; both biases of a sum have the same."""
    found = neutral(spec, seed)
    arrays = found.arrays()
    for name in arrays:
        arrays[name] = np.abs(arrays[name]) if kind == "second" else arrays[name]
    for name in list(arrays):
        if name.startswith(BIASES[0]):
            arrays[name.replace(*BIASES)] = arrays[name]
    names = found.network.tensors
    return held({names[name]: array for name, array in arrays.items()}, "torch", spec, at=found.at)


def carried(source: Held, layout: str, kind: SlotKind) -> Converted:
    """The map of a layout, for one slot."""
    found = layouts.find(layout)
    return convert(source.network, source.views, found, {}, at=source.at, carry=kind)


@given(st.sampled_from(SPECS), st.sampled_from(NAMES), st.sampled_from(("first", "second")), st.integers(0, 99))
def test_moments_there_and_back_are_the_same_bytes(spec: Spec, layout: str, kind: SlotKind, seed: int) -> None:
    assume(can_hold(layout, spec))
    source = moments(spec, seed, kind)
    there = carried(source, layout, kind)
    assume(meets(source, there))  # a layout without an inner bias wants its moments to be zero
    made = carried_out(source, there)
    back = carried(made, "torch", kind)
    assert carried_out(made, back).bytes() == source.bytes()


@given(st.sampled_from(SPECS), st.sampled_from(NAMES), st.integers(0, 99))
def test_moments_of_squares_have_no_sign(spec: Spec, layout: str, seed: int) -> None:
    assume(can_hold(layout, spec))
    source = moments(spec, seed, "second")
    there = carried(source, layout, "second")
    assume(meets(source, there))
    assert all((array >= 0).all() for array in carried_out(source, there).arrays().values())


def test_biases_that_are_summed_must_have_one_moment() -> None:
    """Else nothing says what the moment of the sum would have been."""
    spec = SPECS[0]
    same = moments(spec, 1, "first")
    arrays = {same.network.tensors[name]: array for name, array in same.arrays().items()}
    name = next(name for name in arrays if "bias_hh" in name)
    other = held(arrays | {name: arrays[name] + 1}, "torch", spec, at=same.at)
    assert meets(same, carried(same, "keras", "first"))
    plan = carried(other, "keras", "first")
    assert not meets(other, plan) and all(one.rounding for one in plan.requires if one.terms)
    weights = replace(plan, requires=convert(other.network, other.views, layouts.find("keras"), {}, at="net").requires)
    assert meets(other, weights)
