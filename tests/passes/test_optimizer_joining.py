"""One optimizer whose parameters change: what is known of it, which entries become one, and where they go."""

from __future__ import annotations

from typing import Any

import pytest

from paramtool.errors import PlanError
from paramtool.model.optimizer import Move, MovedState, StateChoice
from paramtool.passes.optimizer.move import Moving, NewEntry
from tests.passes.test_optimizer_move import beside_abc, optimizer_of, split


def one(*moves: Move, untied: str = "", ranks: dict[str, int] | None = None, **renamed: str) -> Moving:
    """An optimizer with momentum beside the weights a, b and c."""
    checkpoint, (binding,) = beside_abc(optimizer_of())
    choice = StateChoice(untied=untied)
    return Moving(checkpoint, binding, moves, renamed, choice, checkpoint, ranks, MovedState(checkpoint.objects))


def test_names_are_those_of_the_file() -> None:
    found = one(**{"model.b": "model.z"})
    assert found.names == {0: "model.a", 1: "model.b", 2: "model.c"}
    assert [found.called(key, None) for key in range(3)] == ["model.a", "model.z", "model.c"]
    assert found.view(found.slot_of(2, "momentum_buffer")).shape == (4,)
    with pytest.raises(PlanError, match=r"it keeps no 'exp_avg' for 'model\.a'"):
        found.slot_of(0, "exp_avg")


def test_an_entry_is_split_by_the_map_of_its_parameter() -> None:
    """Each new entry is an element of the old one, as each new parameter is one of the old parameter."""
    found = one(split("a"))
    (concerned,) = found.concerned()
    made = dict(found.joined(concerned))
    assert [entry.name for entry in made[0]] == ["model.a0", "model.a1"]
    offsets = [target.copies[0].terms[0][1].offset for entry in made[0] for target in entry.slots.values()]  # type: ignore[union-attr]
    assert offsets == [0, 1]


@pytest.mark.parametrize(("choice", "shares", "without"), [
    ("copy", {"x": 1, "y": 1}, set()), ("split", {"x": 2, "y": 2}, set()), ("zero", {"x": 1, "y": 1}, {"y"}),
    ("one", {"x": 1}, set()),
])  # fmt: skip
def test_what_untied_parameters_get(choice: str, shares: dict[str, int], without: set[str]) -> None:
    assert one(untied=choice).untied([["x", "y"]]) == (shares, without)
    assert one(untied=choice).untied([["z"]]) == ({"z": 1}, set())


def test_untied_parameters_need_a_choice() -> None:
    with pytest.raises(PlanError) as caught:
        one().untied([["x", "y"]])
    assert caught.value.hint is not None and "--optimizer-state" in caught.value.hint


@pytest.mark.parametrize(("ranks", "order"), [
    ({"model.c": 0, "model.x": 1, "model.b": 2}, ["c", "x", "b"]), ({"model.c": 0}, ["x", "b", "c"]),
    (None, ["x", "b", "c"]),
])  # fmt: skip
def test_the_order_in_a_group(ranks: Any, order: list[str]) -> None:
    """That of the new model where all of its names are known; else new entries are where the first old one was."""
    found = one(ranks=ranks)
    group = found.in_group([0, 1, 2], {0: (NewEntry("model.x", {}),)})
    assert [found.called(*pair).removeprefix("model.") for pair in group] == order
