"""Networks in other layouts: which element of the source each element of a target is, and what has to hold of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool import layouts
from paramtool.errors import LayoutError
from paramtool.layouts import spec as specs
from paramtool.layouts.layout import stored
from paramtool.layouts.networks import Network
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Copy, Requirement, Target
from paramtool.model.view import View, contiguous
from paramtool.passes import coalesce
from paramtool.passes.rnn import convert
from tests.examples import examples
from tests.passes.made import view

Value = dict[object, float]
"""A sum of elements of the source, {element: how often}; under 1 stands a number."""
Memory = Mapping[int | str, list[Value]]


def places(window: View) -> list[int]:
    """The elements of its storage that a window meets, row by row."""
    found = [window.offset]
    for size, stride in zip(window.shape, window.strides, strict=True):
        found = [base + k * stride for base in found for k in range(size)]
    return found


def values(terms: Iterable[tuple[int, View]], shift: float, count: int, memory: Memory) -> list[Value]:
    """What the signed sum of windows gives, element by element."""
    found: list[Value] = [{1: shift} if shift else {} for _ in range(count)]
    for sign, window in terms:
        assert len(places(window)) == count
        for one, k in zip(found, places(window), strict=True):
            for element, times in memory[window.storage][k].items():
                one[element] = one.get(element, 0) + sign * times
    return [{element: times for element, times in one.items() if times} for one in found]


def carried_out(targets: Iterable[Target], memory: Memory) -> dict[str, list[Value]]:
    """The targets' elements, row by row; each is written exactly once."""
    made: dict[str, list] = {}
    for target in targets:
        own = made[target.name] = [None] * prod(target.shape)
        for copy in target.copies:
            where = places(copy.destination)
            for k, value in zip(where, values(copy.terms, copy.shift, len(where), memory), strict=True):
                assert own[k] is None
                own[k] = value
        assert None not in own
    return made


def holds(one: Requirement, memory: Memory) -> bool:
    """Whether a requirement is met whatever the numbers are."""
    return values([(1, one.view)], 0, one.view.numel, memory) == values(one.terms, one.shift, one.view.numel, memory)


def network(layout: str, text: str, at: str = "m", **options: str) -> tuple[Network, dict[str, View]]:
    """A network whose tensors have a storage each, called by their names, and their windows."""
    found, spec = layouts.find(layout), specs.Spec(**specs.parse(text))
    chosen = found.chosen(options)
    form = found.form(spec, chosen)
    shapes = {tensor.name: tensor.shape for tensor in stored(found, form, spec, chosen)}
    names = {own: f"{at}{found.separator}{own}" for own in shapes}
    views = {names[own]: contiguous(names[own], DTYPES["float32"], shape) for own, shape in shapes.items()}
    return Network(at, found, form, spec, chosen, names), views


def memory_of(views: Mapping[str, View]) -> dict[str, list[Value]]:
    """Every element of every tensor, as itself."""
    return {name: [{(name, k): 1} for k in range(one.numel)] for name, one in views.items()}


def converted(source: Network, views: Mapping[str, View], layout: str, **options: str) -> convert.Converted:
    """In another layout, under the same module."""
    return convert.convert(source, views, layouts.find(layout), options, at=source.at)


def there_and_back(
    source: Network, views: dict[str, View], layout: str, keep: bool = False, **options: str
) -> tuple[convert.Converted, convert.Converted, dict, dict]:
    """A conversion, its way back, and what both of them give."""
    there = convert.convert(source, views, layouts.find(layout), options, at="n", keep_split=keep)
    memory = carried_out((*there.targets, *there.kept), memory_of(views))
    between = Network("n", there.layout, there.form, there.spec, there.options, there.tensors)
    windows = {target.name: target.view for target in (*there.targets, *there.kept)}
    back = convert.convert(between, windows, source.layout, source.options, at=source.at)
    assert all(holds(one, memory) for one in back.requires)
    return there, back, memory, carried_out(back.targets, memory)


KINDS = ("lstm", "gru reset=after", "rnn")


@st.composite
def texts(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> str:
    """The text of a spec."""
    kind, hidden = draw(st.sampled_from(kinds)), draw(st.integers(2, 4))
    words = [kind, f"hidden={hidden}", f"input={draw(st.integers(1, 4))}", f"layers={draw(st.integers(1, 2))}"]
    words += ["projection=1"] * (kind == "lstm" and draw(st.booleans())) + ["bias=no"] * draw(st.booleans())
    return " ".join(words + ["bidirectional"] * draw(st.booleans()))


@settings(max_examples=examples(40))
@given(texts(), st.sampled_from(["yes", "no", "unseen"]))
def test_torch_to_cudnn_and_back(text: str, tail: str) -> None:
    """Every element of the vector is one of the source's or a zero of the tail, and the way back undoes it."""
    source, views = network("torch", text)
    there, back, memory, returned = there_and_back(source, views, "cudnn", tail=tail)
    (vector,) = memory.values()
    elements = [element for value in vector for element in value]
    assert sorted(elements) == sorted((name, k) for name, one in views.items() for k in range(one.numel))
    assert all(value == {} or list(value.values()) == [1] for value in vector)
    assert (vector.count({}) > 0) == (not source.spec.bias and tail != "no")
    assert returned == memory_of(views) and back.tensors == source.tensors
    assert {target.name: target.shape for target in back.targets} == {name: one.shape for name, one in views.items()}
    assert there.is_exact and back.is_exact and not there.kept
    assert not any(one.terms for one in back.requires)
    assert bool(back.requires) == (not source.spec.bias and tail == "yes")


@settings(max_examples=examples(40))
@given(texts(("lstm", "gru reset=after", "gru reset=before", "rnn")), st.data())
def test_there_and_back(text: str, data: st.DataObject) -> None:
    """What two layouts hold comes back from the other; sums of two biases do where the biases are kept."""
    text = text.replace(" projection=1", "").replace(" bias=no", "")
    names = ["keras", "keras.vars", "onnx"] + ["torch", "mxnet", "cudnn"] * ("before" not in text)
    names += ["keras.cudnn"] * ("lstm" in text or "after" in text)
    first = data.draw(st.sampled_from(names))
    second = data.draw(st.sampled_from([other for other in names if other != first]))
    text = text.replace("layers=2", "layers=1") if "onnx" in (first, second) else text
    source, views = network(first, text)
    there, back, _, returned = there_and_back(source, views, second, keep=True)
    assert returned == memory_of(views)
    assert bool(there.kept) == (not there.is_exact) and not back.kept


def test_gates_of_a_gru_stand_in_another_order() -> None:
    """PyTorch: rows r, z, n; Keras: columns z, r, n (keras/src/layers/rnn/gru.py), and the two biases in two rows."""
    source, views = network("torch", "gru input=3 hidden=2 reset=after")
    made = carried_out(converted(source, views, "keras").targets, memory_of(views))
    rows = [2, 3, 0, 1, 4, 5]  # of PyTorch's, column by column of Keras'
    assert made["m/kernel"] == [{("m.weight_ih_l0", 3 * row + k): 1} for k in range(3) for row in rows]
    assert made["m/recurrent_kernel"] == [{("m.weight_hh_l0", 2 * row + k): 1} for k in range(2) for row in rows]
    assert made["m/bias"] == [{(f"m.bias_{side}_l0", row): 1} for side in ("ih", "hh") for row in rows]


KERAS = memory_of(network("keras", "lstm input=3 hidden=2")[1])


def test_gates_of_an_lstm_in_keras_and_in_its_cudnn_layer() -> None:
    """Both have i, f, c, o as PyTorch has; one turned over, the other with a gate's bytes in an (in, hidden) array."""
    source, views = network("torch", "lstm input=3 hidden=2")
    plain, raw = (
        carried_out(converted(source, views, name).targets, memory_of(views)) for name in ("keras", "keras.cudnn")
    )
    for gate, unit, k in ((g, u, k) for g in range(4) for u in range(2) for k in range(3)):
        element = {("m.weight_ih_l0", (2 * gate + unit) * 3 + k): 1}
        assert plain["m/kernel"][k * 8 + 2 * gate + unit] == element
        row, at = divmod(3 * unit + k, 2)
        assert raw["m/kernel"][row * 8 + 2 * gate + at] == element
    again = carried_out(converted(*network("keras", "lstm input=3 hidden=2"), "keras.cudnn").targets, KERAS)
    names = {next(iter(one)): {("m/kernel", k): 1} for k, one in enumerate(plain["m/kernel"])}
    assert again["m/kernel"] == [names[next(iter(one))] for one in raw["m/kernel"]]
    assert plain["m/bias"] == [{("m.bias_ih_l0", k): 1, ("m.bias_hh_l0", k): 1} for k in range(8)]
    assert raw["m/bias"] == [{(f"m.bias_{side}_l0", k): 1} for side in ("ih", "hh") for k in range(8)]


def kinds(one: convert.Converted) -> set[str]:
    """What a conversion does beside moving bytes."""
    return {change.kind for change in one.changes}


def test_a_bias_that_has_no_place_must_be_zero() -> None:
    """One requirement for the gate's part of the vector, and for nothing else; a projection is never dropped."""
    source, views = network("torch", "gru input=3 hidden=2 reset=after")
    for mode, side in (("input", "hh"), ("recurrent", "ih")):
        made = converted(source, views, "cudnn", bias_mode=mode)
        (one,) = made.requires
        assert (one.view, one.terms, one.shift) == (replace(view(0, 2, offset=4), storage=f"m.bias_{side}_l0"), (), 0.0)
        assert "bias of gate n" in one.message and "keras" in one.hint
        assert kinds(made) == {"dropped", "summed"} and not made.is_exact
    with pytest.raises(LayoutError, match=r"'m': .*layout keras cannot hold it.*projection") as no:
        converted(*network("torch", "lstm input=3 hidden=2 projection=1"), "keras")
    assert "layouts that hold it: torch, cudnn" in no.value.hint


def test_twins_must_be_equal() -> None:
    """Paddle stores each tensor under two names: the second is required to equal the first, whole."""
    source, views = network("paddle", "lstm input=3 hidden=2")
    made = converted(source, views, "torch")
    seen = {(w.storage, k): one.terms for one in made.requires for w in (one.view,) for k in places(w)}
    assert len(seen) == 56 and all(name.startswith("m.0.cell.") for name, _ in seen)
    for one in made.requires:
        ((sign, twin),) = one.terms
        assert sign == 1 and twin.storage == one.view.storage.replace("0.cell.", "") + "_l0"
        assert places(twin) == places(one.view) and not one.shift


def test_a_forget_bias_is_taken_off_once() -> None:
    """TensorFlow 1's cells add it to the gate f (columns i, g, f, o); the way back adds it again."""
    source, views = network("keras", "lstm input=3 hidden=2")
    there, back, memory, returned = there_and_back(source, views, "tf1.basic")
    assert memory["n/bias"] == [
        {("m/bias", k): 1, **({1: -1.0} if k in (2, 3) else {})} for k in (0, 1, 4, 5, 2, 3, 6, 7)
    ]
    assert returned == memory_of(views) and not there.is_exact and "shifted" in kinds(back)
    kept = there_and_back(*network("torch", "lstm input=3 hidden=2"), "tf1.basic", keep=True)
    assert kept[0].kept and kept[3] == memory_of(network("torch", "lstm input=3 hidden=2")[1])


def test_names_of_what_is_kept() -> None:
    """They say their module and the bias that was taken off, and no other module takes them for its own."""
    for at in ("", "enc", "a.b"):
        for off in (0.0, 1.5):
            name = convert.kept_name(at, "bias_ih_l0_reverse", off)
            assert convert.kept_off(at, name) == off
            assert convert.kept_off(f"{at}x", name) is None
    for name in ("paramtool.kept/enc/weight_ih_l0", "paramtool.kept/enc/minus_x/bias_ih_l0", "enc/bias_ih_l0"):
        assert convert.kept_off("enc", name) is None


def test_types_and_shapes() -> None:
    """One type for what is put together, floating point throughout; axes of length 1 come and go."""
    source, views = network("torch", "lstm input=3 hidden=2")
    half = {name: replace(one, dtype=DTYPES["float16"]) if "weight" in name else one for name, one in views.items()}
    assert [target.dtype.name for target in converted(source, half, "keras").targets] == ["float16"] * 2 + ["float32"]
    with pytest.raises(LayoutError, match="assembled from tensors of float16, float32"):
        converted(source, half, "cudnn")
    with pytest.raises(LayoutError, match=r"'m\.bias_ih_l0' is int8: only floating-point"):
        converted(source, views | {"m.bias_ih_l0": replace(views["m.bias_ih_l0"], dtype=DTYPES["int8"])}, "cudnn")
    wide = views | {"m.bias_ih_l0": contiguous("m.bias_ih_l0", DTYPES["float32"], (1, 8))}
    shapes = {"bias_hh_l0": (8, 1)}
    made = convert.convert(source, wide, source.layout, {}, at="m", shapes=shapes)
    assert [target.shape for target in made.targets] == [(8, 3), (8, 2), (8,), (8, 1)]
    assert [change.kind for change in made.changes] == ["shaped", "shaped"]
    with pytest.raises(LayoutError, match=r"shape \[2, 4\] does not fit \[8\]"):
        convert.convert(source, views, source.layout, {}, at="m", shapes={"bias_hh_l0": (2, 4)})


# --- copies put together ----------------------------------------------------------------------------------------------


def test_parts_in_one_run_need_one_copy() -> None:
    """Tensors that lie in cuDNN's order are the vector already; with a gap, or apart, there is a copy for each."""
    source, views = network("torch", "lstm input=3 hidden=2")
    starts = {0: (0, 24, 40, 48), 7: (7, 31, 47, 55)}
    for first, offsets in starts.items():
        run = {name: replace(one, storage=0, offset=at) for (name, one), at in zip(views.items(), offsets, strict=True)}
        made = converted(source, run, "cudnn")
        assert made.parent == view(0, 56, offset=first) and made.is_run
        ((copy,),) = [target.copies for target in made.targets]
        assert set(copy.names) == set(views)
    gap = {
        name: replace(one, storage=0, offset=at) for (name, one), at in zip(views.items(), (0, 24, 40, 49), strict=True)
    }
    apart = {
        f"m.weight_{side}_l0": View(0, DTYPES["float32"], at, (2, 2), (4, 1)) for side, at in (("ih", 0), ("hh", 8))
    }
    made = converted(network("torch", "rnn input=2 hidden=2 bias=no")[0], apart, "cudnn", tail="no")
    assert len(made.targets[0].copies) == 1 and made.parent is None  # one copy, of rows that do not touch
    for parts, count in ((gap, 2), (views, 4)):
        made = converted(source, parts, "cudnn")
        assert made.parent is None and len(made.targets[0].copies) == count


def copy_of(to: int, *terms: tuple[int, int], count: int = 2, shift: float = 0.0, storage: int = 0) -> Copy:
    """A contiguous copy from (sign, offset)."""
    target = contiguous("t", DTYPES["float32"], (count,), to)
    return Copy(target, tuple((sign, view(storage, count, offset=at)) for sign, at in terms), shift, (f"n{to}",))


@pytest.mark.parametrize(
    "second, is_joined",
    [
        (copy_of(2, (1, 12)), True),
        (copy_of(2, (1, 12), count=3), True),
        (copy_of(2, (1, 14)), True),  # a step on both sides: one more axis
        (copy_of(2, (1, 14), count=3), False),
        (copy_of(3, (1, 12), count=3), False),
        (copy_of(2, (1, 8)), False),
        (copy_of(2, (-1, 12)), False),
        (copy_of(2, (1, 12), shift=1.0), False),
        (copy_of(2, (1, 12), storage=1), False),
        (copy_of(2, (1, 12), (1, 14)), False),
        (copy_of(2), False),
    ],
)
def test_what_continues_what(second: Copy, is_joined: bool) -> None:
    """Same signs, shift and storages, and a step that all windows make; anything else stays a copy of its own."""
    first = copy_of(0, (1, 10))
    found = coalesce.coalesced([first, second])
    assert len(found) == (1 if is_joined else 2)
    assert [name for copy in found for name in copy.names] == [*first.names, *second.names]


@settings(max_examples=examples(50))
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(1, 3), st.sampled_from([1, -1])), max_size=7)
)
def test_put_together_they_write_the_same(parts: list[tuple[int, int, int, int]]) -> None:
    """Whatever is joined, each element of the target is what it was."""
    to, copies = 0, []
    for gap, at, count, sign in parts:
        copies.append(copy_of(to + gap // 4, (sign, at), count=count))
        to += gap // 4 + count

    def written(some: Iterable[Copy]) -> list[tuple[int, int, int]]:
        pairs = ((places(one.destination), places(v), s) for one in some for s, v in one.terms)
        return sorted((a, b, sign) for here, there, sign in pairs for a, b in zip(here, there, strict=True))

    joined = coalesce.coalesced(copies)
    assert written(joined) == written(copies) and len(joined) <= len(copies)
