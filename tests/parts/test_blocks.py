"""Blocks go where all of their elements go together, and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paramtool.errors import LayoutError
from paramtool.parts.blocks import Along, Axis, Cut, flattened, quotient, roles
from paramtool.parts.pieces import Digit, Piece, Stored, whole


def places(digits: tuple[Digit, ...], at: int) -> list[int]:
    found = [at]
    for digit in digits:
        found = [place + k * digit.step for place in found for k in range(digit.length)]
    return found


@st.composite
def runs(draw: st.DrawFn) -> tuple[Along, tuple[int, int], int]:
    """A run of a part's axis in a tensor, the lengths of both axes, and a block."""
    block = draw(st.sampled_from([1, 2, 3, 4]))
    inner = draw(st.integers(1, 9))
    outer = draw(st.integers(1, 3))
    step = inner + draw(st.integers(0, 6))
    digits = (Digit(outer, 0, step), Digit(inner, 0, 1)) if draw(st.booleans()) else (Digit(outer * inner, 0, 1),)
    start, at = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    part = start + outer * inner + draw(st.sampled_from([0, 0, 1, 4]))
    tensor = max(places(digits, at)) + 1 + draw(st.sampled_from([0, 0, 1, 4]))
    return Along(start, digits, at), (part, tensor), block


@given(runs())
@example((Along(0, (Digit(2, 0, 6), Digit(4, 0, 1)), 0), (8, 10), 4))  # heads of whole blocks, at steps of none
@example((Along(0, (Digit(4, 0, 1),), 2), (4, 6), 4))  # whole blocks in the middle of others
@example((Along(0, (Digit(6, 0, 1),), 0), (6, 8), 4))  # half a block, before something else
@example((Along(0, (Digit(6, 0, 1),), 2), (6, 8), 4))
def test_a_block_moves_exactly_if_its_elements_do(run: tuple[Along, tuple[int, int], int]) -> None:
    """By brute force: each block of the run has one place, of which it fills all that there is."""
    along, (part, tensor), block = run
    there = places(along.digits, along.at)
    blocks: dict[int, set[int]] = {}
    fits = True
    for k, place in enumerate(there, along.start):
        blocks.setdefault(k // block, set()).add(place // block)
        fits &= k % block == place % block
    for number, own in blocks.items():
        inside = range(number * block, min(number * block + block, part))
        fits &= len(own) == 1 and all(along.start <= k < along.start + len(there) for k in inside)
        fits &= len(inside) == min(block, tensor - min(own) * block)
    if not fits:
        with pytest.raises(Cut):
            quotient(along, Axis("out", block), (part, tensor), 0)
        return
    made = quotient(along, Axis("out", block), (part, tensor), 0)
    assert made.start == along.start // block
    assert places(made.digits, made.at) == [min(own) for _, own in sorted(blocks.items())]


@given(runs(), st.integers(2, 3))
def test_several_elements_of_a_block_stay_together(run: tuple[Along, tuple[int, int], int], per: int) -> None:
    """32 codes of 3 bits in three integers."""
    along, lengths, block = run
    try:
        one = quotient(along, Axis("in", block), lengths, 0)
    except Cut:
        with pytest.raises(Cut):
            quotient(along, Axis("in", block, per), lengths, 0)
        return
    many = quotient(along, Axis("in", block, per), lengths, 0)
    assert places(many.digits, many.at) == [per * place + k for place in places(one.digits, one.at) for k in range(per)]


def test_axes_that_outputs_and_inputs_share_are_refused() -> None:
    shared = Piece("w", (0, 0), ((Digit(2, 0, 3),), (Digit(3, 0, 1),)), (0,))
    with pytest.raises(LayoutError, match="share an axis"):
        roles(Stored("f", (6,), (shared,)))


def test_columns_of_a_part_are_not_flat() -> None:
    turned = Stored("f", (3, 2), (Piece("w", (0, 0), ((Digit(2, 1, 1),), (Digit(3, 0, 1),)), (0, 0)),))
    with pytest.raises(LayoutError, match="is not whole rows of it"):
        flattened(turned)
    assert flattened(whole("w", (2, 3))).shape == (6,)
