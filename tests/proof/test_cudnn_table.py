"""The layout's table beside a library's answers and torch's windows: agreement, and every kind of difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool import layouts
from paramtool.layouts.layout import Layout
from paramtool.layouts.spec import Cell, Spec
from proof.cudnn import compare, grid, table
from proof.cudnn.answers import Answer, Key, Region
from proof.cudnn.compare import Disagreement, Windows
from proof.cudnn.grid import ALGORITHMS, BIAS_MODES, DTYPES, Case
from tests.examples import IS_HARD, examples
from tests.proof.fake_cudnn import At, Fake, Space

CUDNN, TORCH = layouts.find("cudnn"), layouts.find("torch")
LSTM = Case(Spec("lstm", 3, 5), "double", "float32")
SQUARE = Case(Spec("lstm", 4, 4, layers=2), "double", "float64")
PROJECTED = Case(Spec("lstm", 3, 5, projection=2), "double", "float16")
GRU = Case(Spec("gru", 3, 5, reset="after", bidirectional=True), "double", "bfloat16")
Twist = Callable[[Space], object]


def differences(case: Case, layout: Layout = CUDNN, twist: Twist = lambda space: None) -> list[Disagreement]:
    """What is found where a library that is twisted meets a table."""
    found = Fake(twist=twist).library().answer(case)
    assert isinstance(found, Answer)
    return list(compare.differences(case, table.answer(layout, case), found))


def said(findings: list[Disagreement]) -> set[tuple[str, str, str, str]]:
    """Findings without their case."""
    return {(one.cell, one.what, one.expected, one.found) for one in findings}


# --- agreement -------------------------------------------------------------------------------------------------------


def test_the_quick_grid_agrees() -> None:
    """Every point of it, and each was asked for; of `make test` each seventh."""
    fake = Fake()
    library, cases = fake.library(), list(grid.asked(quick=True))
    tried = cases[:: 1 if IS_HARD else 7]
    for case in tried:
        found = library.answer(case)
        assert isinstance(found, Answer)
        assert not list(compare.differences(case, table.answer(CUDNN, case), found)), case
    assert len(cases) == len(set(cases)) == 2560 and len(fake.described) == len(tried)


def test_the_full_grid_agrees() -> None:
    """Every network of it, and every way to keep one; each 67th point."""
    cases = list(grid.asked(quick=False))[::67]
    for case in cases:
        assert not differences(case), case
    assert {case.spec.hidden for case in cases} == {hidden for _, hidden in grid.SIZES}
    columns = {(case.bias_mode, case.dtype, case.algorithm) for case in cases}
    assert len(columns) == len(BIAS_MODES) * len(DTYPES) * len(ALGORITHMS)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any network that cuDNN could be asked for."""
    kind, mode = draw(st.sampled_from(["rnn", "gru", "lstm"])), draw(st.sampled_from(BIAS_MODES))
    size, hidden = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    spec = Spec(
        kind, size, hidden, layers=draw(st.integers(1, 4)), bidirectional=draw(st.booleans()), bias=mode != "none",
        projection=draw(st.integers(0, hidden - 1)) if kind == "lstm" else 0,
        activation=draw(st.sampled_from(["tanh", "relu"])) if kind == "rnn" else "",
        reset="after" if kind == "gru" else "",
    )  # fmt: skip
    return Case(spec, mode, draw(st.sampled_from(DTYPES)), draw(st.sampled_from(ALGORITHMS)))


@settings(max_examples=examples(150), deadline=None)
@given(cases())
def test_any_network_agrees(case: Case) -> None:
    """The table tiles the weight space that a plain loop counts out."""
    assert not differences(case)


@settings(max_examples=examples(50), deadline=None)
@given(cases(), st.data())
def test_anything_moved_is_found(case: Case, data: st.DataObject) -> None:
    """One region of a library somewhere else is a finding that names it."""
    moved = data.draw(st.sampled_from(list(table.answer(CUDNN, case).regions)))
    by = data.draw(st.integers(1, 5))
    found = differences(case, twist=lambda space: shift(space, moved, by))
    cell = f"{moved.cell(case.spec)}, pseudoLayer {moved.pseudo_layer}, linLayerID {moved.linear}, {moved.what}"
    assert [one.cell for one in found if one.what == "byte_start"] == [cell]


def shift(space: Space, key: tuple[int, int, str], by: int) -> None:
    space.at[key] = space.at[key]._replace(start=space.at[key].start + by)


@pytest.mark.parametrize("key, cell", [
    (Key(0, 0, "matrix"), Cell("W", 0, 0, "r")), (Key(1, 5, "matrix"), Cell("R", 0, 1, "n")),
    (Key(2, 1, "bias"), Cell("bW", 1, 0, "z")), (Key(3, 3, "bias"), Cell("bR", 1, 1, "r")),
])  # fmt: skip
def test_the_cell_of_an_id(key: Key, cell: Cell) -> None:
    """Pseudo-layers are layers with both directions, IDs are gates of what comes in, then of what comes back."""
    assert key.cell(Spec("gru", 3, 5, layers=2, bidirectional=True)) == cell


# --- a wrong table ---------------------------------------------------------------------------------------------------


def rewritten(change: Callable[[str], str]) -> Layout:
    """The layout with other patterns."""
    forms = []
    for form in CUDNN.forms:
        (row,) = form.tensors
        forms.append(replace(form, tensors=(replace(row, content=change(row.content)),)))
    return replace(CUDNN, forms=tuple(forms))


def test_exchanged_gates_in_the_table() -> None:
    """Both gates of every kind of cell are found elsewhere, with the bytes of both."""
    wrong = replace(CUDNN, forms=tuple(replace(form, gates=form.gates.replace("if", "fi")) for form in CUDNN.forms))
    found = differences(LSTM, wrong)
    assert {one.what for one in found} == {"byte_start"} and {one.case for one in found} == {str(LSTM)}
    assert len(found) == 2 * 4
    cell = "input weights of gate {} (layer 0), pseudoLayer 0, linLayerID {}, matrix"
    assert said(found) >= {
        (cell.format("i", 0), "byte_start", "60", "0"), (cell.format("f", 1), "byte_start", "0", "60")
    }  # fmt: skip
    assert str(found[0]) == (
        "lstm input=3 hidden=5, double bias mode, float32, standard: input bias of gate i (layer 0), pseudoLayer 0, "
        "linLayerID 0, bias: byte_start: the table says 660, found 640"
    )


def test_biases_before_matrices_in_the_table() -> None:
    """Everything is elsewhere, and nothing else is wrong."""
    found = differences(LSTM, rewritten(lambda content: " ".join(reversed(content.replace("} {", "}|{").split("|")))))
    assert [one.what for one in found] == ["byte_start"] * 16
    assert ("input weights of gate i (layer 0), pseudoLayer 0, linLayerID 0, matrix", "byte_start", "160", "0") in said(
        found
    )


def test_a_projection_before_the_recurrent_weights_in_the_table() -> None:
    """The projection and the four matrices that it goes before."""
    wrong = rewritten(
        lambda content: content.replace(
            "R[(gate hidden rec)] P[(proj hidden)]", "P[(proj hidden)] R[(gate hidden rec)]"
        )
    )
    found = differences(PROJECTED, wrong)
    assert not differences(LSTM, wrong)
    assert [one.cell.split(" (")[0] for one in found] == [
        *(f"recurrent weights of gate {gate}" for gate in "ifgo"), "projection"
    ]  # fmt: skip
    assert ("projection (layer 0), pseudoLayer 0, linLayerID 8, matrix", "byte_start", "120", "200") in said(found)


def test_transposed_matrices_in_the_table() -> None:
    """Shape and strides of each, even where it is square and stands at the same byte."""
    wrong = rewritten(lambda content: content.replace("W[(gate hidden in)]", "W[(gate in hidden)]"))
    found = differences(SQUARE, wrong)
    assert {one.what for one in found} == {"strides"} and len(found) == 2 * 4
    assert {(one.expected, one.found) for one in found} == {("(16, 1, 4)", "(16, 4, 1)")}


def test_a_lacking_block_in_the_table() -> None:
    """What the table does not know of is found, and the size is another."""
    found = differences(LSTM, rewritten(lambda content: content.replace(" bR!tail[(gate hidden)]", "")))
    assert ("recurrent bias of gate o (layer 0), pseudoLayer 0, linLayerID 7, bias", "presence", "none",
            "one at byte 780") in said(found)  # fmt: skip
    assert [one.what for one in found] == [*["presence"] * 4, "nbytes"] and found[-1].cell == ""
    assert (found[-1].expected, found[-1].found) == ("720", "800")


# --- a library that keeps weights otherwise --------------------------------------------------------------------------


def exchanged(space: Space) -> None:
    """The first two gates of what comes in."""
    first, second = space.at[0, 0, "matrix"], space.at[0, 1, "matrix"]
    space.at[0, 0, "matrix"], space.at[0, 1, "matrix"] = second, first


def test_exchanged_gates() -> None:
    """Two findings, one for each cell."""
    cell = "input weights of gate {} (layer 0), pseudoLayer 0, linLayerID {}, matrix"
    assert said(differences(LSTM, twist=exchanged)) == {
        (cell.format("i", 0), "byte_start", "0", "60"), (cell.format("f", 1), "byte_start", "60", "0")
    }  # fmt: skip


def test_exchanged_gates_of_one_pseudo_layer() -> None:
    """The other direction agrees."""
    found = differences(GRU, twist=exchanged)
    assert [one.cell.split(",")[0] for one in found] == [f"input weights of gate {gate} (layer 0)" for gate in "rz"]


def test_a_transposed_block() -> None:
    """Its shape and its strides."""
    key = (0, 5, "matrix")

    def transpose(space: Space) -> None:
        space.at[key] = At(space.at[key].start, (1, 4, 4), (16, 1, 4))

    cell = "recurrent weights of gate f (layer 0), pseudoLayer 0, linLayerID 5, matrix"
    assert said(differences(SQUARE, twist=transpose)) == {(cell, "strides", "(16, 4, 1)", "(16, 1, 4)")}


def test_another_shape() -> None:
    """A matrix that is said to be wider than it is."""
    found = differences(LSTM, twist=lambda space: space.at.update({(0, 7, "bias"): At(195, (1, 1, 5), (5, 5, 1))}))
    cell = "recurrent bias of gate o (layer 0), pseudoLayer 0, linLayerID 7, bias"
    assert said(found) == {(cell, "shape", "(1, 5, 1)", "(1, 1, 5)"), (cell, "strides", "(5, 1, 1)", "(5, 5, 1)")}


def test_padding_between_cells() -> None:
    """The cells behind it are elsewhere, the space is larger, and the bytes that belong to nothing are named."""

    def pad(space: Space) -> None:
        for key in list(space.at)[-2:]:
            shift(space, key, 3)
        space.numel += 3

    found = differences(LSTM, twist=pad)
    assert [one.what for one in found] == ["byte_start", "byte_start", "nbytes", "padding"]
    assert said(found) >= {
        ("", "nbytes", "800", "812"), ("recurrent bias of gate g (layer 0)", "padding", "none", "bytes 760-772")
    }  # fmt: skip


def test_bytes_at_the_end() -> None:
    """Where all cells are where they should be and the space is larger."""

    def grow(space: Space) -> None:
        space.numel += 4

    assert said(differences(LSTM, twist=grow)) == {
        ("", "nbytes", "800", "816"), ("", "padding", "none at the end", "bytes 800-816")
    }  # fmt: skip


def test_a_missing_bias() -> None:
    """The cell that is not there, and the bytes that are."""
    found = differences(LSTM, twist=lambda space: space.at.pop((0, 2, "bias")))
    assert said(found) == {
        ("input bias of gate g (layer 0), pseudoLayer 0, linLayerID 2, bias", "presence", "one at byte 680", "none"),
        ("input bias of gate o (layer 0)", "padding", "none", "bytes 680-700"),
    }


def test_something_more() -> None:
    """A projection in a network without one."""
    found = differences(LSTM, twist=lambda space: space.put(0, 8, 5, 5))
    assert said(found) == {
        ("projection (layer 0), pseudoLayer 0, linLayerID 8, matrix", "presence", "none", "one at byte 800"),
        ("", "nbytes", "800", "900"),
    }


def test_overlapping_cells() -> None:
    """Two cells that share bytes, by the library's own words."""
    found = differences(LSTM, twist=lambda space: shift(space, (0, 7, "bias"), -2))
    cell = "recurrent bias of gate o (layer 0)"
    assert said(found) == {
        (f"{cell}, pseudoLayer 0, linLayerID 7, bias", "byte_start", "780", "772"),
        (cell, "overlap", "none", "bytes 772-780"), ("", "padding", "none at the end", "bytes 792-800"),
    }  # fmt: skip


def test_a_cell_inside_another() -> None:
    """What comes behind the outer one is where it should be."""
    found = differences(LSTM, twist=lambda space: shift(space, (0, 7, "bias"), 1 - 195))
    cell = "recurrent bias of gate o (layer 0)"
    assert said(found[1:]) == {
        (cell, "overlap", "none", "bytes 4-60"),
        ("", "padding", "none at the end", "bytes 780-800"),
    }


def test_the_tiling_is_judged_without_the_table() -> None:
    """An answer that is the table's own has padding all the same, if there is some."""
    one = Answer(24, {Key(0, 0, "matrix"): Region(0, "float32", (1, 2, 2), (4, 2, 1))})
    assert said(list(compare.differences(LSTM, one, one))) == {("", "padding", "none at the end", "bytes 16-24")}


# --- torch's windows -------------------------------------------------------------------------------------------------


def windows(spec: Spec) -> tuple[Windows, int]:
    """Parameters as torch's flatten_parameters puts them on a GPU, and the elements of the buffer."""
    found: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {}
    gates, at = {"rnn": 1, "gru": 3, "lstm": 4}[spec.kind], 0
    ends = [f"_l{layer}{end}" for layer in range(spec.layers) for end in ("", "_reverse")[: spec.directions]]
    for end in ends:
        width = spec.input if end.startswith("_l0") else spec.recurrent * spec.directions
        shapes = {"ih": (gates * spec.hidden, width), "hh": (gates * spec.hidden, spec.recurrent)}
        if spec.projection:
            shapes["hr"] = (spec.projection, spec.hidden)
        for part, (rows, columns) in shapes.items():
            found[f"weight_{part}{end}"] = at, (rows, columns), (columns, 1)
            at += rows * columns
    for end in ends:
        for part in ("ih", "hh"):
            if spec.bias:
                found[f"bias_{part}{end}"] = at, (gates * spec.hidden,), (1,)
            at += gates * spec.hidden
    return found, at


def judged(case: Case, change: Windows = {}, lacks: str = "", more: int = 0) -> list[Disagreement]:  # noqa: B006 - read only
    """What is found where some of torch's windows are others."""
    right, numel = windows(case.spec)
    there = {name: at for name, at in {**right, **change}.items() if name != lacks}
    return list(compare.flattened(CUDNN, TORCH, case, there, numel=numel + more))


@settings(max_examples=examples(50), deadline=None)
@given(cases())
def test_torchs_windows_agree(case: Case) -> None:
    """Each shows the cells that the table has there; without biases there is room for them."""
    assert not judged(case)


def test_a_window_elsewhere() -> None:
    """A finding for each gate in it, with offsets and strides."""
    found = judged(LSTM, {"weight_hh_l0": (61, (20, 5), (5, 1))})
    assert said(found) == {
        (f"recurrent weights of gate {gate} (layer 0), in weight_hh_l0", "offset and strides",
         f"({60 + 25 * k}, (5, 1))", f"({61 + 25 * k}, (5, 1))")
        for k, gate in enumerate("ifgo")
    }  # fmt: skip


def test_a_transposed_window() -> None:
    """Strides count, also where the offset is right."""
    found = judged(SQUARE, {"weight_ih_l1": (128, (16, 4), (1, 16))})
    assert ("input weights of gate i (layer 1), in weight_ih_l1", "offset and strides", "(128, (4, 1))",
            "(128, (1, 16))") in said(found)  # fmt: skip
    assert len(found) == 4


def test_a_window_of_another_shape() -> None:
    """Is said once, and the others are still looked at."""
    found = judged(LSTM, {"weight_ih_l0": (0, (3, 20), (20, 1)), "bias_hh_l0": (181, (20,), (1,))})
    assert ("weight_ih_l0", "shape", "(20, 3)", "(3, 20)") in said(found) and len(found) == 1 + 4


@pytest.mark.parametrize("more", [-1, 1])
def test_a_buffer_of_another_length(more: int) -> None:
    """The room of the whole buffer is a part of the layout."""
    assert said(judged(replace(LSTM, spec=replace(LSTM.spec, bias=False)), more=more)) == {
        ("", "elements", "200", str(200 + more))
    }


def test_a_parameter_that_is_not_there() -> None:
    """Nor is one that torch's layout has no word for."""
    (found,) = judged(LSTM, lacks="bias_hh_l0")
    assert (found.what, found.expected, found.found) == (
        "parameters", "weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0", "weight_ih_l0, weight_hh_l0, bias_ih_l0"
    )  # fmt: skip
    (found,) = judged(LSTM, {"weight_hr_l0": (0, (2, 5), (5, 1))})
    assert found.what == "parameters" and "weight_hr_l0" in found.found
