"""The state of an optimizer for parameters that are made of others."""

from __future__ import annotations

from typing import Any

import pytest

from paramtool.errors import PlanError
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.optimizer import Binding, Move, MovedState, SlotTargets, StateChoice
from paramtool.model.plan import whole
from paramtool.passes.optimizer import order, read
from paramtool.passes.optimizer.bind import bind
from paramtool.passes.optimizer.move import NOTHING_SAID, moved
from tests.passes.made import checkpoint as made_checkpoint
from tests.passes.made import view
from tests.passes.test_optimizer_bind import saved


def beside_abc(optimizer: dict[str, Any]) -> tuple[Checkpoint, list[Binding]]:
    """A checkpoint with an optimizer beside the weights a, b and c, and whose its entries are."""
    tensors = {f"model.{name}": Entry(view(k, k + 2)) for k, name in enumerate("abc")}
    for k, slots in optimizer["state"].items():
        for slot, name in slots.items():
            tensors[name[1:]] = Entry(view(len(tensors) + 1, k + 2), "optimizer")
            assert name == f"@optimizer.state.{k}.{slot}"
    names = {name: f"@model.{name}" for name in "abc"}
    checkpoint = saved({"model": names, "optimizer": optimizer}, tensors)
    known = [order.of_checkpoint(checkpoint, "model", "the state dict's order")]
    shapes = read.shapes_of(checkpoint)
    return checkpoint, [bind(one, known, shapes) for one in read.optimizers(checkpoint)]


def state_of(
    optimizer: dict[str, Any],
    moves: tuple[Move, ...],
    *,
    choice: StateChoice = NOTHING_SAID,
    ranks: dict[str, int] | None = None,
    **renamed: str,
) -> MovedState:
    """What becomes of an optimizer beside the weights a, b and c."""
    checkpoint, bound = beside_abc(optimizer)
    return moved(checkpoint, bound, moves, renamed, choice=choice, ranks=ranks)


def optimizer_of(**more: Any) -> dict[str, Any]:
    """One group of three, with momentum."""
    state = {k: {"momentum_buffer": f"@optimizer.state.{k}.momentum_buffer"} for k in range(3)}
    return {"state": state, "param_groups": [{"lr": 0.1, "momentum": 0.9, "dampening": 0, "params": [0, 1, 2], **more}]}


def split(name: str) -> Move:
    """One parameter that becomes two, each of them the whole."""

    def through(views: Any, kind: Any) -> SlotTargets:
        view = views[f"model.{name}"]
        parts = [view.__class__(view.storage, view.dtype, view.offset + k, (1,), (1,)) for k in range(2)]
        return SlotTargets(tuple(whole(f"model.{name}{k}", part) for k, part in enumerate(parts)))

    return Move((f"model.{name}",), (f"model.{name}0", f"model.{name}1"), through)


def test_a_split_entry_makes_room_for_the_others() -> None:
    found = state_of(optimizer_of(), (split("a"),))
    assert [target.name for target in found.targets] == [
        "optimizer.state.0.momentum_buffer", "optimizer.state.1.momentum_buffer",
    ]  # fmt: skip
    assert found.renamed == {
        "optimizer.state.1.momentum_buffer": "optimizer.state.2.momentum_buffer",
        "optimizer.state.2.momentum_buffer": "optimizer.state.3.momentum_buffer",
    }
    assert found.bindings[0].names == {0: "a0", 1: "a1", 2: "b", 3: "c"}
    assert found.gone == {"optimizer.state.0.momentum_buffer"}


def test_a_known_order_of_the_new_model_counts() -> None:
    """For entries that are made, and for those that only change places."""
    ranks = {"model.c": 0, "model.a1": 1, "model.a0": 2, "model.b": 3}
    found = state_of(optimizer_of(), (split("a"),), ranks=ranks)
    assert found.bindings[0].names == {0: "c", 1: "a1", 2: "a0", 3: "b"}
    assert found.renamed == {
        "optimizer.state.2.momentum_buffer": "optimizer.state.0.momentum_buffer",
        "optimizer.state.1.momentum_buffer": "optimizer.state.3.momentum_buffer",
    }
    moved_only = state_of(optimizer_of(), (), ranks={"model.c": 0, "model.a": 1, "model.b": 2})
    assert not moved_only.targets and moved_only.bindings[0].names == {0: "c", 1: "a", 2: "b"}
    same = state_of(optimizer_of(), (), ranks={"model.a": 0, "model.b": 1, "model.c": 2})
    assert not same.bindings


def test_the_model_of_an_optimizer_in_a_file_of_its_own() -> None:
    """The windows of its slots are asked for under the names of the model's parameters."""
    model = made_checkpoint({"model.a": (2,), "model.b": (3,), "model.c": (4,)})
    tensors = {f"state.{k}.momentum_buffer": Entry(view(k, k + 2), "optimizer") for k in range(3)}
    tree = {
        "state": {k: {"momentum_buffer": f"@state.{k}.momentum_buffer"} for k in range(3)},
        "param_groups": [{"lr": 0.1, "momentum": 0.9, "dampening": 0, "params": [0, 1, 2]}],
    }
    file = saved(tree, tensors)
    known = [order.of_checkpoint(model, None, "the state dict's order")]
    bound = [bind(one, known, read.shapes_of(file)) for one in read.optimizers(file)]
    found = moved(file, bound, (split("a"),), {}, model=model)
    assert [target.name for target in found.targets] == ["state.0.momentum_buffer", "state.1.momentum_buffer"]
    assert found.bindings[0].names == {0: "model.a0", 1: "model.a1", 2: "model.b", 3: "model.c"}


def test_names_follow_parameters_that_are_only_renamed() -> None:
    named = optimizer_of(param_names=["a", "b", "c"])
    found = state_of(named, (), **{"model.a": "model.z"})
    assert not found.targets and found.bindings[0].names == {0: "z", 1: "b", 2: "c"}
    again = state_of(optimizer_of(), (), **{"model.a": "model.z"})
    assert not again.bindings  # positions say no names: nothing is written anew


def test_what_an_optimizer_keeps_in_another_way_is_refused() -> None:
    wrong = optimizer_of()
    wrong["state"][0]["kron"] = "@optimizer.state.0.kron"
    with pytest.raises(PlanError, match="'kron' is not known"):
        state_of(wrong, (split("a"),))


def repeated(name: str) -> Move:
    """One parameter that is stored twice."""

    def through(views: Any, kind: Any) -> SlotTargets:
        return SlotTargets(tuple(whole(f"model.{name}{k}", views[f"model.{name}"]) for k in range(2)))

    return Move((f"model.{name}",), (f"model.{name}0", f"model.{name}1"), through)


@pytest.mark.parametrize(("choice", "keys", "scale"), [
    ("copy", [0, 1], 1.0), ("split", [0, 1], 0.5), ("zero", [0], 1.0), ("one", [0], 1.0),
])  # fmt: skip
def test_what_several_parameters_get_of_one_state(choice: str, keys: list[int], scale: float) -> None:
    found = state_of(optimizer_of(), (repeated("a"),), choice=StateChoice(untied=choice))
    assert [target.name for target in found.targets] == [f"optimizer.state.{k}.momentum_buffer" for k in keys]
    assert {copy.scale for target in found.targets for copy in target.copies} == {scale}
    names = {"one": {0: "a0", 1: "b", 2: "c"}}.get(choice, {0: "a0", 1: "a1", 2: "b", 3: "c"})
    assert found.bindings[0].names == names


def test_without_a_choice_it_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'model\.a0' and 'model\.a1' become separate parameters") as caught:
        state_of(optimizer_of(), (repeated("a"),))
    assert "--optimizer-state" in caught.value.hint and "--optimizer-state drop" in caught.value.hint
