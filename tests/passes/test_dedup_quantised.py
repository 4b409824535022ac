"""Packed weights are compared together with their scales; parts of networks are sought where tables place them."""

from __future__ import annotations

from itertools import permutations

import pytest

from paramtool.model import alias, quantised
from paramtool.model.checkpoint import Checkpoint, Compound, Entry
from paramtool.model.dtype import DTYPES
from paramtool.model.match import Content, Equal, Match
from paramtool.model.view import View, contiguous
from paramtool.passes.dedup.candidates import Candidate, candidates, scales_of, windows, with_scales
from paramtool.passes.dedup.placement import settle
from tests.passes.made import checkpoint, view


def made(types: dict[str, str]) -> Checkpoint:
    """A checkpoint of tensors of 16 elements: {name: dtype}."""
    return checkpoint({name: view(k, 16, dtype=dtype) for k, (name, dtype) in enumerate(types.items())})


def groups(*names: str) -> dict[str, set[str]]:
    """What goes with what, of names that say their dtype behind a `:`; without one they are float32."""
    types = {name.split(":")[0]: [*name.split(":"), "float32"][1] for name in names}
    return {packed: set(others) for packed, others in quantised.groups(made(types).entries).items()}


Q = {"m.weight": {"m.scale"}}


@pytest.mark.parametrize(
    "names, expected",
    [
        (["m.weight:int8", "m.weight_scale"], {"m.weight": {"m.weight_scale"}}),
        (["m.weight:float8_e4m3fn", "m.w_scale"], {"m.weight": {"m.w_scale"}}),
        (["m.weight:uint8", "m.scale_weight"], {"m.weight": {"m.scale_weight"}}),
        (["m/weight:int8", "m/weight_scale"], {"m/weight": {"m/weight_scale"}}),
        (["m.weight._data:int8", "m.weight._scale"], {"m.weight._data": {"m.weight._scale"}}),
        (["m.weight:int8", "m.weight_quantizer._scale"], {"m.weight": {"m.weight_quantizer._scale"}}),
        (["m.weight:int8", "m.weightless._scale"], {}),
        (
            ["m.weight:uint8", "m.weight.absmax", "m.weight.quant_state.x", "m.weight.nested"],
            {"m.weight": {"m.weight.absmax", "m.weight.quant_state.x", "m.weight.nested"}},
        ),
        (["m.weight:uint8", "m.weight.nested"], {}),
        (["m.weight:int8", "m.SCB"], {"m.weight": {"m.SCB"}}),
        (["m.B:int32", "m.s"], {"m.B": {"m.s"}}),
        (["m.weight:int8", "m.bias", "m.news", "other.scale"], {}),
        (["m.weight", "m.weight_scale"], {}),
        (["m.weight:float16", "m.weight_scale"], {}),
        (["m.flags:bool", "m.scale"], {}),
        (["m.W_q", "m.scale"], {"m.W_q": {"m.scale"}}),
        (["m.weight:int64", "m.scale"], Q),
        (["m.table:int64", "m.scale"], {}),
        (["m.table:float4_e2m1fn", "m.scale"], {"m.table": {"m.scale"}}),
        (["m.weight:int8", "m.scale", "m.mask:bool", "m.ids:int32", "m.position_ids:int32", "m.num_step:int8"], Q),
        (["m.qweight:int32", "m.scales", "m.qzeros:int32", "m.g_idx:int32"],
         {"m.qweight": {"m.scales", "m.qzeros", "m.g_idx"}}),
        (["m.qweight:int32", "m.g_idx:int32"], {}),
        (["m.weight:uint32", "m.scales", "m.biases"], {"m.weight": {"m.scales", "m.biases"}}),
        (["m.weight_packed:int32", "m.weight_scale", "m.weight_shape:int64"],
         {"m.weight_packed": {"m.weight_scale", "m.weight_shape"}}),
        (["e.w1:uint8", "e.w2:uint8", "e.w1_scale", "e.w2_scale"], {"e.w1": {"e.w1_scale"}, "e.w2": {"e.w2_scale"}}),
        (["e.layer1_weight:int8", "e.layer2_weight:int8", "e.layer1_scale"], {"e.layer1_weight": {"e.layer1_scale"}}),
        (["r.weight_ih_l0:int8", "r.weight_hh_l0:int8", "r.scale_ih_l0"], {"r.weight_ih_l0": {"r.scale_ih_l0"}}),
        (["e.a:int8", "e.b:int8", "e.scale"], {"e.a": {"e.scale"}, "e.b": {"e.scale"}}),
        (["weight:int8", "scale"], {"weight": {"scale"}}),
    ],
)  # fmt: skip
def test_what_goes_with_what(names: list[str], expected: dict[str, set[str]]) -> None:
    """Beside them, below them, in a module of theirs, by what names have in common; in whatever order."""
    assert groups(*names) == expected == groups(*reversed(names))


def test_too_many() -> None:
    """A scale that could go with more packed tensors than that goes with none."""
    most = [f"e.{chr(97 + k)}:int8" for k in range(quantised.MOST)]
    assert len(groups(*most, "e.scale")) == quantised.MOST
    assert groups(*most, "e.z:int8", "e.scale") == {}
    alike = [f"e.w_{chr(97 + k)}:int8" for k in range(quantised.MOST + 1)]
    assert groups(*alike, "e.w_scale") == {} and len(groups(*alike[1:], "e.w_scale")) == quantised.MOST


def test_parts_and_packed() -> None:
    """All that belongs together, and of it what means nothing by itself; compound tensors are left alone."""
    one = made({"m.weight": "int8", "m.scale": "float32", "m.g_idx": "int32", "m.bias": "float32", "lone": "int8"})
    assert quantised.parts(quantised.groups(one.entries)) == {"m.weight", "m.scale", "m.g_idx"}
    assert quantised.packed(one.entries) == {"m.weight", "m.g_idx"}
    float8 = made({"m.weight": "float8_e4m3fn", "m.scale": "float32", "m.weight_zero": "float16"})
    assert quantised.packed(float8.entries) == {"m.weight"}
    compound = Entry(Compound("quantized", {"values": view(0, 4, dtype="int8")}))
    assert quantised.groups({"m.weight": compound, "m.scale": Entry(view(1, 4))}) == {}


def test_scales() -> None:
    """Only what is no candidate already, in file order, and never to be moved; nothing without elements."""
    one = checkpoint(
        {"m.zero": view(0, 1), "m.weight": view(1, 64, dtype="int8"), "m.scale": view(2, 1), "m.bias": view(3, 1)}
        | {"m.zeros": view(4, 0), "m.w_scale": view(5, 64)}
    )
    found = candidates(one, alias.build(one), 64)
    small = scales_of(one, quantised.groups(one.entries), found)
    assert [x.name for x in found] == ["m.weight", "m.w_scale"]
    assert small == [Candidate(name, one.entries[name].value, "model", False) for name in ("m.zero", "m.scale")]


LAYERS = {f"{m}.{part}": kind for m in ("a", "b", "c") for part, kind in (("weight", "int8"), ("w_scale", "float32"))}
WEIGHTS, SCALES = ("a.weight", "b.weight", "c.weight"), ("a.w_scale", "b.w_scale", "c.w_scale")


def whole(one: Checkpoint, *classes: tuple[str, ...], small: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The classes that are left of classes of equal names."""
    equal = [Equal(names, f"digest{k}", False) for k, names in enumerate(classes)]
    left_out = [Candidate(name, one.entries[name].value, "model", False) for name in small]
    found = with_scales(one.entries, quantised.groups(one.entries), equal, left_out)
    assert all(x.digest in {y.digest for y in equal if set(x.names) <= set(y.names)} for x in found)
    return {x.names for x in found}


def test_equal_weights_with_other_scales_are_other_weights() -> None:
    """Packed weights stay together as far as everything that goes with them is equal, and so do their scales."""
    one = made(LAYERS)
    assert whole(one, WEIGHTS, SCALES) == {WEIGHTS, SCALES}
    assert whole(one, WEIGHTS) == set()
    assert whole(one, SCALES) == set()
    assert whole(one, WEIGHTS, SCALES[:2]) == {WEIGHTS[:2], SCALES[:2]}
    assert whole(one, WEIGHTS[1:], SCALES) == {WEIGHTS[1:], SCALES[1:]}
    assert whole(one, WEIGHTS, SCALES, small=SCALES) == {WEIGHTS}
    more = made(LAYERS | {"c.w_zero": "float32"})
    assert whole(more, WEIGHTS, SCALES) == {WEIGHTS[:2], SCALES[:2]}


def test_what_a_scale_is_called_counts() -> None:
    """Two tensors whose scale and zero point are exchanged are not equal; modules of other names are."""
    one = made(
        {f"{m}.{w}": t for m in "ab" for w, t in (("weight", "int8"), ("scale", "float32"), ("zero", "float32"))}
    )
    assert whole(one, ("a.weight", "b.weight"), ("a.scale", "b.zero"), ("a.zero", "b.scale")) == set()
    fine = (("a.weight", "b.weight"), ("a.scale", "b.scale"), ("a.zero", "b.zero"))
    assert whole(one, *fine) == set(fine)
    renamed = made({"e.w1": "uint8", "e.w1_scale": "float32", "e.w2": "uint8", "e.w2_scale": "float32"})
    pairs = (("e.w1", "e.w2"), ("e.w1_scale", "e.w2_scale"))
    assert whole(renamed, *pairs) == set(pairs)


def test_scales_that_are_tied() -> None:
    """One window under two names is equal to itself, though nothing was compared; others are as they are."""
    types = {"a.weight": view(0, 16, dtype="int8"), "b.weight": view(1, 16, dtype="int8"), "v": (4,), "u": view(3, 4)}
    tied = checkpoint({**types, "v": view(4, 4), "a.w_scale": view(2, 1), "b.w_scale": view(2, 1)})
    assert whole(tied, ("a.weight", "b.weight"), ("v", "u")) == {("a.weight", "b.weight"), ("v", "u")}
    apart = checkpoint({**types, "v": view(4, 4), "a.w_scale": view(2, 1), "b.w_scale": view(5, 1)})
    assert whole(apart, ("a.weight", "b.weight"), ("v", "u")) == {("v", "u")}


# --- fused vectors ---------------------------------------------------------------------------------------------

INPUT, HIDDEN = 2, 3


def network(gates: int, vector: int, dtype: str = "float32") -> dict[str, Candidate]:
    """The tensors of a network of PyTorch's, and a vector of some length."""
    rows = gates * HIDDEN
    shapes = {"r.weight_ih_l0": (rows, INPUT), "r.weight_hh_l0": (rows, HIDDEN)}
    shapes |= {"r.bias_ih_l0": (rows,), "r.bias_hh_l0": (rows,), "flat": (vector,)}
    one = checkpoint({name: view(k, *shape, dtype=dtype) for k, (name, shape) in enumerate(shapes.items())})
    return {x.name: x for x in candidates(one, alias.build(one), 1)}


@pytest.mark.parametrize("gates", [1, 3, 4])
def test_where_a_fused_vector_holds_a_network(gates: int) -> None:
    """cuDNN's order, which is known: all matrices, then all biases; no window reaches outside the vector."""
    rows = gates * HIDDEN
    length = rows * (INPUT + HIDDEN + 2)
    found = network(gates, length)
    matches = windows(found.values())
    for match in matches:
        assert (match.owner, match.window.shape) == ("flat", found[match.name].view.shape)
        assert match.window.byte_stop <= 4 * length and match.window.storage == "flat"
        assert match.relation == ("slice" if match.window.is_contiguous else "transpose")
    starts = {"r.weight_ih_l0": 0, "r.weight_hh_l0": rows * INPUT}
    starts |= {"r.bias_ih_l0": rows * (INPUT + HIDDEN), "r.bias_hh_l0": rows * (INPUT + HIDDEN + 1)}
    expected = {n: contiguous("flat", DTYPES["float32"], found[n].view.shape, k) for n, k in starts.items()}
    assert set(expected.items()) <= {(match.name, match.window) for match in matches}
    one = checkpoint({name: x.view.shape for name, x in found.items()})
    proved = {match.name: match for match in matches if match.window == expected[match.name]}
    joined = settle(alias.build(one), Content(matches=tuple(proved.values())), False, False)
    assert list(joined.owners) == ["flat"]
    assert {(m.alias_set, m.set_evidence) for m in joined.names.values()} == {(name, "storage") for name in found}


def keras(vector: int) -> dict[str, tuple[int, ...]]:
    """The shapes of an LSTM of Keras, and a vector of some length."""
    rows = 4 * HIDDEN
    return {"l/kernel": (INPUT, rows), "l/recurrent_kernel": (HIDDEN, rows), "l/bias": (rows,), "flat": (vector,)}


def test_transposed_matrices() -> None:
    """Keras has its matrices the other way round; its one bias is the sum of two, which is no window."""
    rows = 4 * HIDDEN
    one = checkpoint(keras(rows * (INPUT + HIDDEN + 2)))
    float32 = DTYPES["float32"]
    matches = windows(candidates(one, alias.build(one), 1))
    assert {
        Match("l/kernel", "flat", View("flat", float32, 0, (INPUT, rows), (1, INPUT)), "transpose"),
        Match(
            "l/recurrent_kernel", "flat", View("flat", float32, rows * INPUT, (HIDDEN, rows), (1, HIDDEN)), "transpose"
        ),
    } <= set(matches)
    assert all(match.relation == "transpose" for match in matches if match.name != "l/bias")


def test_a_vector_of_the_size_of_a_packed_matrix() -> None:
    """Flux packs a network into one matrix; a vector of as many elements is no such matrix."""
    one = checkpoint(keras(4 * HIDDEN * (INPUT + HIDDEN + 1)))
    assert windows(candidates(one, alias.build(one), 1)) == []


def test_no_vector_no_guess() -> None:
    """A vector of another length, type or role, one inside a larger tensor, a tensor that is missing."""
    length = 4 * HIDDEN * (INPUT + HIDDEN + 2)
    found = network(4, length)
    assert windows(found.values())
    for other in (
        network(4, length + 1)["flat"],
        network(4, length, "float16")["flat"],
        found["flat"]._replace(role="ema"),
        found["flat"]._replace(is_whole=False),
    ):
        assert windows({**found, "flat": other}.values()) == []
    for name in found:
        assert windows(one for one in found.values() if one.name != name) == []
    orders = list(permutations(found.values()))[::17]
    assert all({m.name for m in windows(some)} == found.keys() - {"flat"} for some in orders[:3])
