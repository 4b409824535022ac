"""Codes and their scales: each element is written once, from its own code and the scale of its block."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.errors import PlanError
from paramtool.model.checkpoint import Entry
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous
from paramtool.parts.schemes import Packing
from paramtool.passes.types.dequantise import scaled


def places(view: View) -> list[int]:
    """Where each element of a view is, in row-major order."""
    indexes = product(*map(range, view.shape))
    return [view.offset + sum(i * step for i, step in zip(index, view.strides, strict=True)) for index in indexes]


def entries(codes: tuple[int, ...], scales: tuple[int, ...], dtype: str = "float32") -> dict[str, Entry]:
    return {
        "m.weight": Entry(contiguous(0, DTYPES["float8_e4m3fn"], codes)),
        "m.weight_scale": Entry(contiguous(1, DTYPES[dtype], scales)),
    }


@given(
    st.lists(st.integers(1, 3), max_size=1), st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4)
)
def test_each_element_has_the_scale_of_its_block(
    lead: list[int], out: int, inside: int, rows: int, columns: int
) -> None:
    counts = (-(-out // rows), -(-inside // columns))
    try:
        found = scaled(entries((*lead, out, inside), (*lead, *counts)), Packing(tile=(rows, columns)))["m.weight"]
    except PlanError:  # two readings: the next test has an example
        return
    written: dict[int, tuple[int, int]] = {}
    for copy in found.target("m.weight", DTYPES["bfloat16"]).copies:
        assert isinstance(copy.scale, View)
        ((_, codes),) = copy.terms
        for here, code, scale in zip(places(copy.destination), places(codes), places(copy.scale), strict=True):
            assert here not in written
            written[here] = code, scale
    expected = {}
    for place, (*expert, i, j) in enumerate(product(*map(range, (*lead, out, inside)))):
        first = expert[0] * counts[0] * counts[1] if expert else 0
        expected[place] = place, first + i // rows * counts[1] + j // columns
    assert written == expected


@pytest.mark.parametrize(
    ("codes", "scales", "dtype"),
    [((1, 300), (1, 3), "float32"), ((256, 256), (4, 4), "float32"), ((256, 256), (2, 2), "uint8"),
     ((256,), (2,), "float32"), ((3, 256, 256), (2, 2), "float32"), ((256, 256), (256, 3), "float32")],
)  # fmt: skip
def test_other_shapes_are_refused(codes: tuple[int, ...], scales: tuple[int, ...], dtype: str) -> None:
    """Scales that fit two readings or none, that are no numbers, and codes of one axis."""
    with pytest.raises(PlanError, match="1 quantised weight cannot be dequantised"):
        scaled(entries(codes, scales, dtype), Packing())


def test_what_goes_with_the_codes() -> None:
    """The scales of inputs have no meaning beside other weights; those of caches have."""
    more = {f"m.{name}": Entry(contiguous(2, DTYPES["float32"], ())) for name in ("input_scale", "k_scale")}
    assert scaled(entries((4, 4), ()) | more, Packing())["m.weight"].beside == ("m.weight_scale", "m.input_scale")
    other = {"m.pre_quant_scale": Entry(contiguous(2, DTYPES["float32"], (4,)))}
    with pytest.raises(PlanError, match="pre_quant_scale"):
        scaled(entries((4, 4), ()) | other, Packing())
