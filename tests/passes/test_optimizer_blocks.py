"""Moments that are quantised in blocks, and vectors over all parameters: which of them move, and where to."""

from __future__ import annotations

import pytest

from paramtool.errors import LayoutError
from paramtool.model.plan import Copy, Target, whole
from paramtool.model.view import View, contiguous
from paramtool.passes.optimizer import move
from tests.passes.made import view

OLD = {"a": view(0, 4, 128, dtype="uint8"), "b": view(1, 2, 128, dtype="uint8")}
SCALES = {"a": view(2, 2), "b": view(3, 1)}


def joined(*parts: View) -> Target:
    """Parts one behind the other, in bytes."""
    rows = sum(part.shape[0] for part in parts)
    copies, start = [], 0
    for part in parts:
        copies.append(Copy(contiguous("new", part.dtype, part.shape, start), ((1, part),)))
        start += part.numel
    return Target("new", parts[0].dtype, (rows, *parts[0].shape[1:]), tuple(copies))


def test_scales_move_as_the_blocks_do() -> None:
    (found,) = move.block_scales([joined(OLD["b"], OLD["a"])], OLD, SCALES)
    places = [(copy.destination.offset, copy.terms[0][1].storage, copy.destination.shape) for copy in found.copies]
    assert found.shape == (3,) and found.dtype.name == "float32"
    assert places == [(0, 3, (1,)), (1, 2, (2,))]


def test_a_part_of_rows_has_its_scales() -> None:
    half = view(0, 2, 128, offset=256, dtype="uint8")
    (found,) = move.block_scales([joined(half)], OLD, SCALES)
    assert found.copies[0].terms[0][1].offset == 1 and found.shape == (1,)


def test_the_last_block_of_a_tensor_may_be_short() -> None:
    short = {"a": view(0, 3, 100, dtype="uint8")}
    (found,) = move.block_scales([joined(short["a"])], short, {"a": view(1, 2)})
    assert found.shape == (2,)
    with pytest.raises(LayoutError, match="256 elements of 'a' would be cut"):
        move.block_scales([joined(short["a"], short["a"])], short, short)


@pytest.mark.parametrize("wrong", [
    joined(view(0, 2, 128, offset=128, dtype="uint8")),  # from inside of a block
    Target("new", OLD["a"].dtype, (128, 4), (Copy(contiguous("new", OLD["a"].dtype, (128, 4)),
                                                  ((1, View(0, OLD["a"].dtype, 0, (128, 4), (1, 128))),)),)),
])  # fmt: skip
def test_a_cut_block_is_refused(wrong: Target) -> None:
    with pytest.raises(LayoutError, match="256 elements of 'a' would be cut"):
        move.block_scales([wrong], OLD, SCALES)


def test_a_sign_cannot_be_moved() -> None:
    with pytest.raises(LayoutError, match="quantised moments only move"):
        signed = Target("new", OLD["a"].dtype, (4, 128), (Copy(view(9, 4, 128), ((-1, OLD["a"]),)),))
        move.block_scales([signed], OLD, SCALES)


def test_vectors_go_over_the_new_parameters() -> None:
    """Parameters a (2) and b (3, 1) become b, a."""
    places = move.windows(view(0, 5, offset=1), {"a": (2,), "b": (3, 1)})
    assert [(one.offset, one.shape) for one in places.values()] == [(1, (2,)), (3, (3, 1))]
    found = move.windows(view(7, 5), {"a": (2,), "b": (3, 1)})
    target = move.joined(view(7, 5), [whole("", found["b"]), whole("", found["a"])]).called("state.1.d")
    places = [(copy.destination.offset, copy.terms[0][1].offset) for copy in target.copies]
    assert target.shape == (5,) and places == [(0, 2), (3, 0)]
    assert {copy.destination.storage for copy in target.copies} == {"state.1.d"}
