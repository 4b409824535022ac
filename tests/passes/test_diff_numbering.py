"""The numbers of layers in names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.passes.diff.names import layer_type, numberless, numbers, renumbered

NAMES = st.lists(
    st.sampled_from(["h", "3", "12", "Dense_1", "fc2", "conv2d", "layer10", "vars"]), min_size=1, max_size=5
)


@given(NAMES, st.sampled_from("./"))
def test_a_name_with_its_own_numbers_is_itself(words: list[str], between: str) -> None:
    name = between.join(words)
    assert renumbered(name, numbers(name)) == name and numberless(numberless(name)) == numberless(name)


@given(NAMES, st.lists(st.integers(0, 99), min_size=5, max_size=5))
def test_other_numbers_change_nothing_else(words: list[str], others: list[int]) -> None:
    name = ".".join(words)
    other = renumbered(name, [str(one) for one in others[: len(numbers(name))]])
    assert numberless(other) == numberless(name) and layer_type(other) == layer_type(name)


@pytest.mark.parametrize(
    "names",
    [["layers/dense/vars/0", "layers/dense_1/vars/0"], ["h.3.w", "h.4.w"], ["layer1.w", "layer12.w"]],
)
def test_layers_of_one_type(names: list[str]) -> None:
    assert len({layer_type(name) for name in names}) == 1


def test_what_is_no_number_of_a_layer() -> None:
    assert numbers("layers/conv2d/vars/1") == [] and layer_type("x/vars/0") != layer_type("x/vars/1")
