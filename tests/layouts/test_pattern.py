"""`layouts/pattern.py`: texts that say where cells stand in a tensor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.errors import UsageError
from paramtool.layouts.pattern import Block, Repeated, blocks, bound, extent, parse, window
from paramtool.model.view import contiguous_strides

LENGTHS = {"gate": 4, "hidden": 3, "in": 2, "rec": 3, "dir": 2, "layer": 1}


def only(content: str) -> Block:
    """The one block of a pattern."""
    (block,) = parse(content)
    assert isinstance(block, Block)
    return block


@pytest.mark.parametrize(
    ("content", "terms", "shift", "gates", "raw", "always"),
    [
        ("W[in hidden]", ((1, "W"),), (), "", False, ""),
        ("-W[in hidden]", ((-1, "W"),), (), "", False, ""),
        ("bW+bR[hidden]", ((1, "bW"), (1, "bR")), (), "", False, ""),
        ("-bW-bR!.z[hidden]", ((-1, "bW"), (-1, "bR")), (), "z", False, "!"),
        ("bW+bR-forget_bias!.f[hidden]", ((1, "bW"), (1, "bR")), ((-1, "forget_bias"),), "f", False, "!"),
        ("bW+bR-1[hidden]", ((1, "bW"), (1, "bR")), ((-1, "1"),), "", False, ""),
        ("bW!tail[hidden]", ((1, "bW"),), (), "", False, "!tail"),
        ("W~[in hidden]", ((1, "W"),), (), "", True, ""),
        ("0[hidden rec]", (), (), "", False, ""),
    ],
)
def test_what_a_block_says(content: str, terms: object, shift: object, gates: str, raw: bool, always: str) -> None:
    """Signs, sums, shifts by numbers and by options, gates, raw bytes, and blocks that are always there."""
    block = only(content)
    assert (block.terms, block.shift, block.gates, block.raw, block.always) == (terms, shift, gates, raw, always)


def test_groups_are_axes() -> None:
    """Each word or group in brackets is an axis of the tensor."""
    assert only("W[dir (gate hidden) in]").axes == (("dir",), ("gate", "hidden"), ("in",))
    assert only("bW[1 (gate hidden)]").axes == (("1",), ("gate", "hidden"))


def test_repeated_items_nest() -> None:
    """Braces repeat what is in them for each value of their axes, the last the fastest."""
    (loop,) = parse("{layer dir: W[hidden in] {gate: bW[hidden]}}")
    assert isinstance(loop, Repeated) and loop.axes == ("layer", "dir")
    assert [block.kinds for block in blocks((loop,))] == [{"W"}, {"bW"}]
    values = {"layer": (0, 1), "dir": (0, 1), "gate": ("r", "z")}
    found = [(next(iter(block.kinds)), *at.values()) for block, at in bound((loop,), {}, values)]
    assert found[:4] == [("W", 0, 0), ("bW", 0, 0, "r"), ("bW", 0, 0, "z"), ("W", 0, 1)]
    assert len(found) == 12


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("W", "cannot be parsed at 'W'"),
        ("W[hidden", r"cannot be parsed at 'W\[hidden'"),
        ("W[hidden]]", r"cannot be parsed at '\]'"),
        ("W[hidden] ,", "cannot be parsed at ','"),
        ("[hidden]", "cannot be parsed"),
        ("W[hidden in] R", "cannot be parsed at 'R'"),
        ("W[gates hidden]", "'gates' is not an axis; expected hidden, in"),
        ("{layer: W[hidden in]", "has an unclosed brace"),
        ("W[hidden in]}", "has a closing brace without an opening one"),
        ("{row: W[hidden in]}", "repeats 'row'; expected layer, dir or gate"),
        ("{hidden: W[hidden in]}", "repeats 'hidden'"),
        ("{: W[hidden in]}", "cannot be parsed"),
        ("W.[hidden in]", "cannot be parsed"),
        ("+W[hidden in]", "cannot be parsed"),
    ],
)
def test_malformed_patterns_are_refused(content: str, message: str) -> None:
    """The place where reading stops, or the word that is not an axis, is named together with the pattern."""
    with pytest.raises(UsageError, match=message) as caught:
        parse(content)
    assert repr(content) in str(caught.value)


@given(st.text("WRb[]{}().+-~!0 inhdegatlyr:", max_size=30))
def test_any_text_is_read_or_refused(content: str) -> None:
    """Nothing but UsageError comes of a text that is no pattern."""
    try:
        assert list(blocks(parse(content))) is not None
    except UsageError as error:
        assert str(error).startswith("pattern ")


def picked(content: str, index: dict[str, int], order: tuple[str, ...]) -> np.ndarray:
    """The numbers of the elements that a window picks out of a tensor of just that block."""
    block = only(content)
    shape = extent(block, LENGTHS)
    numbers = np.arange(np.prod(shape, dtype=int))
    strides = contiguous_strides(shape)
    offset, shape, steps = window(block, LENGTHS, strides, index, order=order)
    return np.lib.stride_tricks.as_strided(numbers[offset:], shape, [step * numbers.itemsize for step in steps])


@pytest.mark.parametrize("gate", range(4))
def test_windows_are_what_numpy_slices(gate: int) -> None:
    """One gate of torch's rows, of Keras' columns, of both directions stacked, and of interleaved rows."""
    rows, columns = np.arange(24).reshape(12, 2), np.arange(24).reshape(2, 12)
    part = slice(3 * gate, 3 * gate + 3)
    order = ("hidden", "in")
    assert np.array_equal(picked("W[(gate hidden) in]", {"gate": gate}, order), rows[part])
    assert np.array_equal(picked("W[in (gate hidden)]", {"gate": gate}, order), columns[:, part].T)
    assert np.array_equal(picked("W[(hidden gate) in]", {"gate": gate}, order), rows[gate::4])
    both = np.arange(48).reshape(2, 12, 2)
    assert np.array_equal(picked("W[dir (gate hidden) in]", {"gate": gate, "dir": 1}, order), both[1, part])
    flat = np.arange(24).reshape(4, 3, 2)
    assert np.array_equal(picked("W[(gate hidden in)]", {"gate": gate}, order), flat[gate])


def test_without_an_order_axes_stay_as_they_stand() -> None:
    """Raw blocks and filler are cut as the pattern has them."""
    assert picked("W[in (gate hidden)]", {"gate": 1}, ()).shape == (2, 3)


def test_axes_that_a_cell_has_not_are_refused() -> None:
    """A block of W without its axis `in`, or with another, says which it has and which are expected."""
    with pytest.raises(UsageError, match=r"a block of W has the axes \['hidden'\]; expected \['hidden', 'in'\]"):
        picked("W[(gate hidden)]", {"gate": 0}, ("hidden", "in"))


def test_numbers_are_axes_of_that_length() -> None:
    """`1` and other numbers stand for themselves."""
    assert extent(only("bW[1 (gate hidden) 2]"), LENGTHS) == (1, 12, 2)
