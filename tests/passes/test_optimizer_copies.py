"""Lists of averages and of float32 copies, copies that stay behind, and schedules whose groups end."""

from __future__ import annotations

from paramtool.model.checkpoint import Checkpoint, Entry, Section
from paramtool.model.optimizer import Binding, Move, SlotTargets
from paramtool.passes.optimizer import copies, read, tree
from tests.passes.made import checkpoint, view
from tests.passes.test_optimizer_bind import node

SECTIONS = (Section("model", "model.", "model"), Section("ema", "ema.", "ema"))


def averaged(*names: str, **tree: object) -> Checkpoint:
    """A model of two parameters, and averages."""
    model = {f"model.{name}": Entry(view(k, 2)) for k, name in enumerate(("a", "b"))}
    ema = {name: Entry(view(k + 2, 2), role="ema") for k, name in enumerate(names)}
    objects = node({"model": {"a": "@model.a", "b": "@model.b"}, "ema": tree})
    return checkpoint({**model, **ema}, format="torch zip", objects=objects, sections=SECTIONS)


def test_a_list_of_averages_is_one_value_for_each_parameter() -> None:
    names = ("ema.shadow_params.0", "ema.shadow_params.1")
    (found,) = copies.averages(averaged(*names, shadow_params=[f"@{name}" for name in names], decay=0.9))
    assert (found.at, found.form, found.groups[0].keys) == ("ema.shadow_params", "list", (0, 1))
    assert [entry.slots[0].tensor for entry in found.entries] == list(names)
    assert {slot.kind for entry in found.entries for slot in entry.slots} == {"weight"}


def test_one_tensor_and_numbers_are_no_list_of_averages() -> None:
    assert not copies.averages(averaged("ema.x.0", x=["@ema.x.0"], y=[1, 2]))
    assert not copies.averages(averaged("ema.x.0", "ema.x.1", x=["@ema.x.0", "@ema.x.1", 3]))


def test_float32_copies_are_bound_as_their_optimizer() -> None:
    tensors = {f"optimizer.fp32_from_fp16.{k}.0": Entry(view(k, 2), role="optimizer") for k in range(2)}
    optimizer = {"state": {}, "param_groups": [{"params": [0]}, {"params": [1]}]}
    lists = [[f"@optimizer.fp32_from_fp16.{k}.0"] for k in range(2)]
    made = checkpoint(tensors, objects=node({"optimizer": {"optimizer": optimizer, "fp32_from_fp16": lists}}))
    (state,) = read.optimizers(made)
    assert copies.are_listed(state)
    found = list(copies.masters(Binding(state, {0: "a", 1: "b"}, "order", "an order", True)))
    assert [(one.optimizer.at, dict(one.names)) for one in found] == [
        ("optimizer.fp32_from_fp16.0", {0: "a"}), ("optimizer.fp32_from_fp16.1", {0: "b"}),
    ]  # fmt: skip


def test_a_copy_by_name_that_does_not_change_is_found() -> None:
    move = Move(("model.a",), ("model.z",), lambda views, kind: SlotTargets(()))
    made = averaged("ema.module.a", "ema.module.b")
    assert copies.stale(made, [move]) == ("model.a", "ema.module.a")
    assert copies.stale(averaged("ema.module.b"), [move]) is None
    both = Move(("model.a", "ema.module.a"), ("model.z",), lambda views, kind: SlotTargets(()))
    assert copies.stale(made, [both]) is None


def test_a_schedule_loses_the_items_of_a_group() -> None:
    schedule = {"base_lrs": [1, 2, 3], "_last_lr": [1, 2, 3], "milestones": [1, 2, 3], "last_epoch": 4}
    made = node({"schedule": schedule, "other": {"base_lrs": [1, 2]}, "losses": [1, 2, 3]})
    assert tree.of_groups(made, 3) and not tree.of_groups(made, 4)
    assert tree.without_groups(made, 3, {1}) == node({
        "schedule": {"base_lrs": [1, 3], "_last_lr": [1, 3], "milestones": [1, 2, 3], "last_epoch": 4},
        "other": {"base_lrs": [1, 2]}, "losses": [1, 2, 3],
    })  # fmt: skip
