"""The first order of a file's names, through any number of fuse and unfuse."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from paramtool.model.parts import FusedTensor, PartsRecord
from paramtool.parts.pieces import Stored, whole
from paramtool.passes.parts.rewrite import first_order, in_first_order, of_made, of_parts


class File:
    """The names of a file and its record, as `fuse` and `unfuse` leave them."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.record = PartsRecord()

    def replaced(self, old: tuple[str, ...], new: tuple[str, ...], record: PartsRecord) -> None:
        """New names in place of old ones, as every pass does: at the first of them, then by the first order."""
        ranks = first_order(self.names, self.record)
        first = min(self.names.index(name) for name in old)
        order = [
            one
            for k, name in enumerate(self.names)
            for one in ((*new, name) if k == first else (name,))
            if one not in old
        ]
        self.names, self.record = in_first_order(order, ranks), record

    def positions(self, names: tuple[str, ...]) -> tuple[int, ...]:
        ranks = first_order(self.names, self.record)
        return tuple(ranks[name] for name in names)

    def fuse(self, parts: tuple[str, ...], tensor: str) -> None:
        new = made(tensor, parts, self.positions(parts))
        self.replaced(parts, (tensor,), replace(self.record, fused=(*self.record.fused, new)))

    def unfuse(self, tensor: str, parts: tuple[str, ...]) -> None:
        new = made(tensor, parts, self.positions((tensor,)))
        self.replaced((tensor,), parts, replace(self.record, unfused=(*self.record.unfused, new)))

    def undo(self, one: FusedTensor) -> None:
        fused, unfused = (tuple(o for o in of if o is not one) for of in (self.record.fused, self.record.unfused))
        there, before = ((one.tensor,), one.names) if one in self.record.fused else (one.names, (one.tensor,))
        self.replaced(there, before, replace(self.record, fused=fused, unfused=unfused))

    def can_be_undone(self) -> list[FusedTensor]:
        there = set(self.names)
        return [one for one in self.record.fused if one.tensor in there] + [
            one for one in self.record.unfused if there.issuperset(one.names)
        ]


def made(tensor: str, parts: tuple[str, ...], positions: tuple[int, ...]) -> FusedTensor:
    return FusedTensor(tensor, "qkv", "", 0, {}, {str(k): (part,) for k, part in enumerate(parts)}, positions)


@given(data=st.data(), count=st.integers(2, 12))
def test_any_order_of_commands_goes_back_to_the_first_order(data: st.DataObject, count: int) -> None:
    first = [f"w{k}" for k in range(count)]
    file = File(first)
    for step in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            size = data.draw(st.integers(1, min(3, len(file.names))))
            parts = data.draw(st.permutations(file.names))[:size]
            file.fuse(tuple(parts), f"fused{step}")
        else:
            tensor = data.draw(st.sampled_from(file.names))
            file.unfuse(tensor, tuple(f"{tensor}.{step}.{k}" for k in range(data.draw(st.integers(1, 3)))))
        assert len(set(file.names)) == len(file.names)
    while undone := file.can_be_undone():
        file.undo(data.draw(st.sampled_from(undone)))
    assert file.record == PartsRecord()
    assert file.names == first


def test_what_stays_fused_stands_where_its_first_part_stood() -> None:
    file = File(["k", "o", "q", "up", "gate"])
    file.fuse(("q", "k"), "qk")
    file.fuse(("gate", "up"), "gu")
    assert file.names == ["qk", "o", "gu"]
    file.undo(file.record.fused[1])
    assert file.names == ["qk", "o", "up", "gate"]


def test_names_that_no_record_knows_stay_behind_their_neighbours() -> None:
    assert in_first_order(["new", "a", "newer", "b"], {"b": 0, "a": 1}) == ["new", "b", "a", "newer"]


def test_a_record_of_other_names_and_one_without_positions_change_nothing() -> None:
    record = PartsRecord(fused=(made("gone", ("q", "k"), (0, 1)), made("b", ("q", "k"), ())))
    assert first_order(["a", "b"], record) == {"a": 0, "b": 1}


def test_a_tensor_that_was_taken_apart_and_fused_again_under_its_name() -> None:
    record = PartsRecord(
        fused=(made("qkv", ("q", "k"), (1, 1)),),
        unfused=(made("qkv", ("q", "k"), (1,)),),
    )
    assert first_order(["a", "qkv", "b"], record) == {"a": 0, "qkv": 1, "b": 2, "q": 1, "k": 1}


# --- through dialects ------------------------------------------------------------------------------------------------

HELD = [
    Stored("b.qk", (4, 2), (*whole("", (2, 2), "b.q").pieces, *whole("", (2, 2), "b.k").pieces)),
    whole("a", (3,)),
    whole("c", (3,)),
]


def test_parts_have_the_order_of_the_tensors_that_hold_them() -> None:
    """Sorted they are a, b.k, b.q, c; the file has b.qk before c before a."""
    hub = ["a", "b.q", "b.k", "c"]
    assert of_parts(HELD, hub, {"b.qk": 0, "c": 1, "a": 2}, ()) == (3, 1, 0, 2)
    assert of_parts(HELD, hub, {}, (3, 2, 1, 0)) == (3, 2, 1, 0)
    assert of_parts(HELD, hub, {"b.qk": 0, "c": 1, "a": 2}, (1, 0)) == (3, 1, 0, 2)


def test_new_tensors_have_the_place_of_their_first_part() -> None:
    hub = ["a", "b.q", "b.k", "c"]
    assert of_made(HELD, hub, (3, 1, 0, 2)) == {"b.qk": 0, "a": 3, "c": 2}
    assert of_made([whole("scale", (1,), "of nothing")], hub, (3, 1, 0, 2)) == of_made(HELD, hub, ()) == {}
