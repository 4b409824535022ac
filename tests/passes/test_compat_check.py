"""`passes/compat/check.py`: what a variant makes of a checkpoint, verdict by verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.model.checkpoint import Checkpoint, Compound, Entry, Link, NoData, Unreadable
from paramtool.model.dtype import DTYPES
from paramtool.model.storage import Cast, Constant, Storage
from paramtool.model.view import View, overlaps
from paramtool.passes.compat import check
from paramtool.passes.compat.check import Apart, Filled, ShapeClash, Through, TypeClash, Verdict
from paramtool.passes.compat.wanted import Wanted, wanted_by
from tests.examples import examples
from tests.passes.made import checkpoint, view

F32 = DTYPES["float32"]
TURNED = View(0, F32, 0, (4, 6), (1, 4))
"""The transpose of a (6, 4) on storage 0."""


def judged(variant: Any, file: dict[str, Any]) -> Verdict:
    """The verdict on a file of those tensors, for a list of names or the tensors of another file."""
    wanted = {n: Wanted(n) for n in variant} if isinstance(variant, list) else wanted_by(checkpoint(variant))
    return check.judge(wanted, checkpoint(file))[0]


def asked(variant: dict[str, Any], file: dict[str, Any]) -> list[tuple[str, str]]:
    """The pairs of names that bytes have to be asked of."""
    return [(q.name, q.other) for q in check.judge(wanted_by(checkpoint(variant)), checkpoint(file))[1]]


def typed(name: str, *shape: int) -> View:
    """A window of a type on storage 0."""
    return view(0, *(shape or (8,)), dtype=name)


WINDOWS = st.builds(
    lambda at, start, rows: view(at, rows, 4, offset=4 * start),
    st.integers(0, 1), st.integers(0, 3), st.integers(0, 3),
)  # fmt: skip
FILES = st.dictionaries(st.sampled_from("abcdef"), WINDOWS, min_size=1, max_size=6)


@given(FILES)
@settings(max_examples=examples(50))
def test_a_checkpoint_is_a_variant_that_it_loads(tensors: dict[str, View]) -> None:
    """Nothing is amiss, and what is asked of bytes are windows that lie to each other as they do in memory."""
    file = checkpoint(tensors)
    verdict, questions = check.judge(wanted_by(file), file)
    assert verdict.loads and verdict == Verdict(len(tensors))
    for question in questions:
        (a, b), (at_a, at_b) = question.found, question.places
        assert overlaps(at_a, at_b) and a.offset - b.offset == at_a.offset - at_b.offset


@given(FILES, st.sets(st.sampled_from("abcdef")))
@settings(max_examples=examples(50))
def test_every_name_comes_from_somewhere_or_lacks(tensors: dict[str, View], kept: set[str]) -> None:
    """Each name is there, empty, filled by a tied one that covers it, or lacking; just then nothing covers it."""
    there = {name: one for name, one in tensors.items() if name in kept}
    verdict = judged(tensors, there)
    filled = {one.name: one.by for one in verdict.filled}
    absent = [name for name, one in tensors.items() if name not in kept and one.numel]
    assert sorted([*filled, *verdict.lacks]) == sorted(absent) and verdict.names == len(tensors)
    for name in absent:
        rows = tensors[name]
        covers = [
            n for n, one in there.items()
            if one.storage == rows.storage and one.numel
            and one.byte_start <= rows.byte_start and rows.byte_stop <= one.byte_stop
        ]  # fmt: skip
        assert filled.get(name) == (covers[0] if covers else None)


def test_only_a_window_that_covers_fills() -> None:
    """A slice does not fill the whole; the transpose does; a name alone is filled by nothing."""
    tied = {"w": (6, 4), "turned": TURNED, "rows": view(0, 2, 4, offset=8)}
    assert judged(tied, {"turned": (4, 6)}).filled == (Filled("w", "turned"), Filled("rows", "turned"))
    assert judged(tied, {"rows": (2, 4)}).lacks == ("w", "turned")
    assert judged(["w", "head"], {"w": (6, 4)}).lacks == ("head",)


@pytest.mark.parametrize(
    "wants, has, fits",
    [
        ("bfloat16", "float32", True), ("float32", "int64", True), ("int64", "bool", True), ("complex64", "int8", True),
        ("int64", "float32", False), ("int8", "int64", False), ("float32", "complex64", False), ("bool", "int8", False),
    ],
)  # fmt: skip
def test_types(wants: str, has: str, fits: bool) -> None:
    """A cast that keeps the kind of number is fine; what clashes is named with both types."""
    verdict = judged({"x": typed(wants)}, {"x": typed(has)})
    assert verdict.types == (() if fits else (TypeClash("x", has, wants),)) and verdict.loads is fits
    assert judged(["x"], {"x": typed(has)}).loads


def test_shapes() -> None:
    """Another shape is one finding, whatever the type, and is asked of no bytes."""
    tied = {"a": (6, 4), "b": view(0, 6, 4), "c": view(0, 6, 4)}
    verdict = judged(tied, {"a": (6, 4), "b": View(1, DTYPES["complex64"], 0, (4, 6), (6, 1)), "c": view(2, 6, 4)})
    assert verdict.shapes == (ShapeClash("b", (4, 6), (6, 4)),) and not verdict.types and not verdict.loads
    assert asked(tied, {"a": (6, 4), "b": (4, 6), "c": (6, 4)}) == [("a", "c")]
    assert asked(tied, {"a": (6, 4), "b": (6, 4), "c": view(2, 6, 4, dtype="complex64")}) == [("a", "b")]


SPARSE = Compound("sparse_coo", {"values": typed("float32", 2)})
MASKED = Compound("masked", {"data": typed("float32", 2)})
CONJ = Compound("conj", {"data": typed("complex64", 2)})


@pytest.mark.parametrize(
    "wants, has, clash",
    [
        (SPARSE, SPARSE, None), (SPARSE, MASKED, ("masked", "sparse_coo")),
        (SPARSE, typed("float32", 2), ("float32", "sparse_coo")),
        (typed("float32", 2), SPARSE, ("sparse_coo", "float32")),
        (CONJ, typed("complex64", 2), None), (typed("complex64", 2), CONJ, None),
        (NoData(F32, (2,)), typed("float32", 2), None), (Unreadable("f"), typed("float32", 2), None),
        (typed("float32", 2), NoData(F32, (2,)), ("without data (meta)", "float32")),
        (NoData(F32, (2,)), NoData(F32, (2,), "left out"), ("without data (left out)", "float32")),
        (Unreadable("f"), Unreadable("f"), ("unreadable (needs f)", "a plain tensor")),
        (typed("float4_e2m1fn_x2", 3, 4), typed("float4_e2m1fn", 3, 8), None),
    ],
)  # fmt: skip
def test_kinds(wants: Any, has: Any, clash: tuple[str, str] | None) -> None:
    """A compound fits one of its kind; a pending sign is no kind; what has no data fits nothing."""
    verdict = judged({"x": Entry(wants)}, {"x": Entry(has)})
    assert verdict.types == ((TypeClash("x", *clash),) if clash else ()) and verdict.loads is (clash is None)


def test_packed_weights_need_their_scales() -> None:
    """int8 beside its scale is no weight of floats, and the same for a variant that is packed, too."""
    scale = {"m.weight_scale": view(1, 4)}
    packed, plain = {"m.weight": typed("int8", 4, 4)}, {"m.weight": typed("float32", 4, 4)}
    clash = TypeClash("m.weight", "int8, quantised, with scales beside it", "float32")
    assert judged(plain, packed | scale).types == (clash,)
    assert judged(packed, packed | scale).loads and judged(plain, packed).loads


def test_a_sign_that_is_pending_is_not_tied_to_none() -> None:
    """Bytes would be equal where values are not; two of one sign are fine, and so are untied names."""
    z = typed("complex64", 2)
    tied, file = {"z": z, "c": z}, {"z": z, "c": Entry(CONJ)}
    assert judged(tied, file).types == (TypeClash("c", "conj", "the same as 'z', to which it is tied"),)
    assert not asked(tied, file)
    assert judged(tied, {"z": Entry(CONJ), "c": Entry(CONJ)}).loads
    assert judged({"z": z, "c": view(1, 2, dtype="complex64")}, file).loads
    assert judged(tied, {"z": z, "c": Entry(SPARSE)}).types == (TypeClash("c", "sparse_coo", "complex64"),)


def test_unused() -> None:
    """What is not wanted and shares no memory with what is; arrays beside the weights are no weights."""
    file = {"w": (6, 4), "rows": view(0, 2, 4), "x": (3,), "y": view(1, 3), "log": Entry(view(2, 3), "other"),
            "sparse": Entry(Compound("sparse_coo", {"values": view(3, 2)}))}  # fmt: skip
    assert judged(["rows"], file).unused == ("x", "y", "sparse")
    assert judged(["w", "y", "sparse"], file).unused == ()
    assert judged([], file).unused == ("w", "rows", "x", "y", "sparse")


def linked(value: View, owner: str) -> Entry:
    """An alias of a file's record."""
    return Entry(value, link=Link("w", "storage", 3, owner))


def test_through_the_record() -> None:
    """Aliases only, each with how it lies on its owner; a window on bytes without a name overlaps."""
    file: dict[str, Any] = {
        "w": Entry(view(0, 6, 4), link=Link("w", "storage")), "same": linked(view(0, 6, 4), "w"),
        "turned": linked(TURNED, "w"), "rows": linked(view(0, 2, 4, offset=4), "w"),
        "flat": linked(view(0, 24), "w"), "span": linked(view(1, 5, offset=3), "paramtool.span/0"),
        "all": linked(view(1, 8), "gone"), "unlinked": view(0, 6, 4),
    }  # fmt: skip
    assert judged(list(file), file).through == (
        Through("same", "w", "same"), Through("turned", "w", "transpose"), Through("rows", "w", "slice"),
        Through("flat", "w", "view"), Through("span", "paramtool.span/0", "overlap"), Through("all", "gone", "same"),
    )  # fmt: skip
    assert [one.name for one in judged(["rows"], file).through] == ["rows"]


def test_what_is_calculated_comes_through_the_record_of_the_whole() -> None:
    """Casts and constants; in a part, owners are found by the names that the whole file has."""
    whole = checkpoint({
        "m.w": (6, 4), "m.rows": linked(view(0, 2, 4), "m.w"), "m.half": linked(view(1, 6, 4, dtype="bfloat16"), "m.w"),
        "m.ones": linked(view(2, 9), ""),
    })  # fmt: skip
    backings = {1: Cast(view(0, 6, 4), DTYPES["bfloat16"]), 2: Constant(b"\0\0\x80\x3f")}
    storages = {k: Storage(k, one.nbytes, backings.get(k, one.backing)) for k, one in whole.storages.items()}
    whole = replace(whole, storages=storages)
    part: Checkpoint = replace(whole, entries={name[2:]: entry for name, entry in whole.entries.items()})
    verdict, _ = check.judge({name: Wanted(name) for name in part.entries}, part, whole)
    assert verdict.through == (
        Through("rows", "m.w", "slice"), Through("half", "m.w", "cast"), Through("ones", "", "constant"),
    )  # fmt: skip


@pytest.mark.parametrize(
    "wants, has, words",
    [
        (["w", "b"], ["bert.w", "bert.b"], ["all missing names have the prefix 'bert.' in the file", "prefix='bert.'"]),
        (["w", "b", "c"], ["bert.w", "bert.b"], ["2 of 3 missing names have the prefix 'bert.'"]),
        (["w", "b"], ["bert.w"], []),
        (["m.w", "m.b", "c.x"], ["w", "b"], ["2 of 3 missing names have the prefix 'm.' only in the model"]),
        (["m.w", "c.x"], ["w"], []),
        (["wte.weight", "lm_head.weight"], ["wte.weight"], ["'lm_head.weight'", "--config"]),
        (["w"], ["w"], []),
    ],
)  # fmt: skip
def test_advice(wants: Sequence[str], has: Sequence[str], words: list[str]) -> None:
    """A prefix that more than half of what is lacking would have, on either side; else a tie; else nothing."""
    advice = judged(list(wants), dict.fromkeys(has, (2,))).advice
    assert bool(advice) is bool(words) and all(word in advice for word in words)


def test_what_keeps_from_loading() -> None:
    """Lacks, clashes and values that differ; not what is left over or filled."""
    assert Verdict(1, unused=("x",), filled=(Filled("a", "b"),), through=(Through("a", "b", "same"),)).loads
    bad: list[dict[str, Any]] = [
        {"lacks": ("a",)}, {"shapes": (ShapeClash("a", (1,), (2,)),)}, {"types": (TypeClash("a", "b", "c"),)},
        {"apart": (Apart("a", "b", None),)},
    ]  # fmt: skip
    assert not any(Verdict(1, **one).loads for one in bad)
