"""Names that are in each other's places, by the rename that the others show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.passes.diff.exchanges import exchanged

NAMES = [f"model.layers.{k}.{name}.weight" for k in range(5) for name in ("q", "k", "o")] + ["model.norm.weight"]


def found(news: dict[str, str], *, alike: bool = True) -> set[str]:
    """What is exchanged, of all names in front of which `model` became `x`, but for some."""
    pairs = [(old, news.get(old, old.replace("model", "x"))) for old in NAMES]
    return set(exchanged(pairs, lambda one, other: alike))


def layers(order: list[int]) -> dict[str, str]:
    return {
        f"model.layers.{k}.{name}.weight": f"x.layers.{new}.{name}.weight"
        for k, new in enumerate(order)
        for name in ("q", "k", "o")
    }


@given(st.permutations(range(5)))
def test_the_layers_that_moved_are_named(order: list[int]) -> None:
    """Those of any order, and no layer that stays."""
    wanted = {f"x.layers.{new}.{name}.weight" for k, new in enumerate(order) if k != new for name in ("q", "k", "o")}
    assert found(layers(order)) == wanted


def test_other_shapes_are_no_exchange() -> None:
    assert found(layers([1, 0, 2, 3, 4]), alike=False) == set()


@given(st.lists(st.integers(0, 99), min_size=5, max_size=5, unique=True).map(sorted))
def test_a_new_numbering_exchanges_nothing(numbers: list[int]) -> None:
    assert found(layers(numbers)) == set()


@pytest.mark.parametrize("every", [1, 5])
def test_two_names_of_some_layers_or_of_all(every: int) -> None:
    news = {}
    for k in range(every):
        for old, new in (("q", "k"), ("k", "q")):
            news[f"model.layers.{k}.{old}.weight"] = f"x.layers.{k}.{new}.weight"
    assert found(news) == set(news.values())


def test_a_tensor_that_becomes_several_exchanges_nothing() -> None:
    """One name of the first stands for three of the second."""
    pairs = [(f"m.{k}.qkv", f"x.{k}.{name}") for k in range(3) for name in "qkv"]
    assert exchanged(pairs, lambda one, other: True) == []
    assert exchanged([(new, old) for old, new in pairs[::3]], lambda one, other: True) == []


def test_directions_of_recurrent_layers() -> None:
    """torch has a word for the backward direction only, Keras for both."""
    names = [
        ("bi/forward_layer/cell/vars/0", "lstm.weight_ih_l0"),
        ("bi/backward_layer/cell/vars/0", "lstm.weight_ih_l0_reverse"),
    ]
    assert exchanged(names, lambda one, other: True) == []
    turned = [(names[0][0], names[1][1]), (names[1][0], names[0][1])]
    assert exchanged(turned, lambda one, other: True) == [new for _, new in turned]
    assert exchanged([(new, old) for old, new in turned], lambda one, other: True) == [old for old, _ in turned]
