"""Maps together with a cast: another layout or another name, and another type.

NumPy and torch make the casts; the arrays of each layout come from the references of the layouts' own tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.model.diff import CAST, CHANGED, LAYOUT, RENAMED, ROUNDED, SAME
from paramtool.parts.layout import PartLayout
from tests.examples import examples
from tests.laws.comparing import compared, has_same_numbers
from tests.laws.test_diff_layouts import LAYOUTS, has_bias, is_named, planted
from tests.laws.test_diff_networks import CASES, files

Arrays = Mapping[str, np.ndarray]
BF16 = np.dtype(ml_dtypes.bfloat16)
LEAD = {"model.": "", "h": "layers", "": "module."}


def as_type(arrays: Arrays, dtype: np.dtype) -> dict[str, np.ndarray]:
    return {name: array.astype(dtype) for name, array in arrays.items()}


def told(found: Diffed) -> list[tuple[str, tuple[str, ...], tuple[str, ...], str]]:
    return [(one.kind, one.a, one.b, one.how) for one in found.tensors]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("casts")


@pytest.mark.sample(9)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("back", [False, True], ids=["fused", "apart"])
@pytest.mark.parametrize("end", ["weight", "bias"])
def test_a_layout_and_a_shorter_type(layout: PartLayout, back: bool, end: str, tmp_path: Path) -> None:
    """float32 fused or taken apart and rounded to bfloat16: the map, what it loses, and the way back."""
    first, second = (dict(one) for one in planted(layout, "weight", "h.3.attn"))
    if end == "bias" and not has_bias(layout):
        pytest.skip("this layout has no bias")
    if end == "bias":
        biases = planted(layout, "bias", "h.3.attn", seed=1)
        first, second = first | dict(biases[0]), second | dict(biases[1])
    a, b = (second, first) if back else (first, second)
    narrow = as_type(b, BF16)
    found = compared(tmp_path, a, narrow)
    assert {one.kind for one in found.tensors} == {ROUNDED} and not found.is_same, told(found)
    maps = [one for one in found.tensors if one.how]
    assert maps and all(is_named(one, layout.name) for one in maps), told(found)
    for one in found.tensors:
        wanted = np.abs(narrow[one.b[0]].astype("f8") - b[one.b[0]].astype("f8"))
        assert one.change is not None and one.change.largest == wanted.max()
    most = max(one.change.largest for one in found.tensors if one.change and one.change.largest is not None)
    found = replace(found, doubts=())  # some layouts have the names of the parts
    assert found.judge(atol=most) and not found.judge(atol=most / 2)
    (tmp_path / "a.safetensors").rename(tmp_path / "wide.safetensors")
    assert {one.kind for one in diff(tmp_path / "b.safetensors", tmp_path / "wide.safetensors").tensors} == {ROUNDED}


@pytest.mark.sample(9)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_layout_and_a_wider_type(layout: PartLayout, tmp_path: Path) -> None:
    """bfloat16 as float32 loses nothing; one other number is told."""
    first, second = planted(layout, "weight", "h.3.attn")
    a = as_type(first, BF16)
    b = as_type(as_type(second, BF16), np.dtype("f4"))
    found = compared(tmp_path, a, b)
    assert {one.kind for one in found.tensors} == {CAST} and has_same_numbers(found) and not found.judge(strict=True)
    name = next(iter(b))
    b[name].flat[b[name].size // 3] += 1
    assert not compared(tmp_path, a, b).is_same


@pytest.mark.sample(9)
@pytest.mark.parametrize("name, spec", CASES, ids=[f"{name}-{spec.kind}" for name, spec in CASES])
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
@pytest.mark.parametrize("dtype", ["f2", "f8"])
def test_a_network_in_another_layout_and_type(name: str, spec: object, back: bool, dtype: str, tmp_path: Path) -> None:
    """Each layout of recurrent networks, rounded to float16 or as float64."""
    if back and name == "paddle":
        pytest.skip("has every tensor under two names, and those that PyTorch lacks are told")
    files(tmp_path, name, spec)  # type: ignore[arg-type]
    one, other = (load_file(tmp_path / f"{side}.safetensors") for side in "ab")
    a, b = (other, one) if back else (one, other)
    found = compared(tmp_path, a, as_type(b, np.dtype(dtype)))
    kinds = {one.kind for one in found.tensors if one.a and one.b}  # constants are in one of the two only
    assert kinds == {ROUNDED if dtype == "f2" else CAST}, told(found)
    assert found.judge(atol=0.01) and found.is_same == (dtype == "f8")
    spoilt = dict(b)
    at = max(b, key=lambda key: b[key].size)
    spoilt[at] = b[at].copy()
    spoilt[at].flat[b[at].size // 2] += 1
    assert not compared(tmp_path, a, as_type(spoilt, np.dtype(dtype))).judge(atol=0.01)


def test_sums_of_biases_in_another_type(tmp_path: Path) -> None:
    """Keras adds the two biases of torch: summed and rounded, or rounded and summed; changed, with the reason."""
    torch.manual_seed(0)
    module = torch.nn.LSTM(6, 20)
    state = {f"rnn.{name}": one.numpy() for name, one in module.state_dict().items()}
    half = as_type(state, np.dtype("f2"))
    sums = {
        "calculated in float32 and cast to float16": (
            state["rnn.bias_ih_l0"] + state["rnn.bias_hh_l0"]
        ).astype("f2"),
        "of float32 and cast to float16 first": half["rnn.bias_ih_l0"] + half["rnn.bias_hh_l0"],
    }  # fmt: skip
    assert not np.array_equal(*sums.values())
    for words, bias in sums.items():
        made = {
            "rnn/kernel": half["rnn.weight_ih_l0"].T,
            "rnn/recurrent_kernel": half["rnn.weight_hh_l0"].T,
            "rnn/bias": bias,
        }
        found = compared(tmp_path, state, made)
        kinds = {one.b[0]: (one.kind, one.how) for one in found.tensors}
        assert kinds["rnn/kernel"][0] == kinds["rnn/recurrent_kernel"][0] == ROUNDED
        kind, how = kinds["rnn/bias"]
        assert kind == CHANGED and "explained by sums of biases" in how and words in how
        made["rnn/bias"] = bias + np.float16(0.01)
        assert not any("explained" in one.how for one in compared(tmp_path, state, made).tensors)


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**32), lead=st.sampled_from(sorted(LEAD)), types=st.sampled_from(["f4 f2", "f2 f4", "f8 f4"]),
    is_small=st.booleans(),
)  # fmt: skip
def test_another_name_and_another_type(place: Path, seed: int, lead: str, types: str, is_small: bool) -> None:
    """A prefix that is added, dropped or renamed: matrices by their numbers, norms of ones by the other names."""
    old, new = types.split()
    random = np.random.default_rng(seed)
    a = {f"{lead}{k}.{end}": random.normal(size=(7, 5)).astype(old) for k in range(3) for end in ("w", "v")}
    a |= {f"{lead}{k}.norm": np.ones(3 if is_small else 64, old) for k in range(3)}
    b = {f"{LEAD[lead]}{name.removeprefix(lead)}": array.astype(new) for name, array in a.items()}
    found = compared(place, a, b)
    expected = ROUNDED if old > new else CAST
    assert {one.kind for one in found.tensors if not one.b[0].endswith("norm")} == {expected}, told(found)
    assert {one.kind for one in found.tensors if one.b[0].endswith("norm")} == {CAST}
    assert {(*one.a, *one.b) for one in found.tensors} == set(zip(a, b, strict=True)), told(found)


def test_float64_that_torch_rounds_by_way_of_float32(tmp_path: Path) -> None:
    """torch rounds float64 to bfloat16 twice: a tie of float32 goes to even, where the number itself would not."""
    numbers = torch.tensor([1.0 + 2.0**-8 + 2.0**-40, 1.5, -3.25], dtype=torch.float64)
    torch.save({"w": numbers}, tmp_path / "a.pt")
    torch.save({"w": numbers.bfloat16()}, tmp_path / "b.pt")
    assert numbers.bfloat16()[0] == 1.0, "torch rounds twice"
    (one,) = diff(tmp_path / "a.pt", tmp_path / "b.pt").tensors
    assert one.kind == ROUNDED
    once = np.array([1.0 + 2.0**-7, 1.5, -3.25], BF16)
    (one,) = compared(tmp_path, {"w": numbers.numpy()}, {"w": once}).tensors
    assert one.kind == ROUNDED
    (one,) = compared(tmp_path, {"w": numbers.numpy()}, {"w": once + BF16.type(0.125)}).tensors
    assert one.kind == CHANGED


@pytest.mark.parametrize("end", [".bias", ".weight_scale_inv", ".lora_B.weight"])
def test_what_is_beside_a_matrix_follows_a_map_that_casts(end: str, tmp_path: Path) -> None:
    """A bias, scales of blocks and a factor of LoRA in the shorter type, by the map of their matrix."""
    random = np.random.default_rng(0)
    shape = {".bias": (48,), ".weight_scale_inv": (12, 2), ".lora_B.weight": (48, 5)}[end]
    order = np.concatenate([np.arange(16 * k + 4 * h, 16 * k + 4 * h + 4) for h in range(4) for k in range(3)])
    made = "h.0.attn.query_key_value"
    blocks = order.reshape(12, 4)[:, 0] // 4
    weights, others = random.normal(size=(48, 16)).astype("f4"), random.normal(size=shape).astype("f4")
    share = len(others) // 3
    a = {f"h.0.attn.{n}_proj.weight": weights[16 * k : 16 * k + 16] for k, n in enumerate("qkv")}
    a |= {f"h.0.attn.{n}_proj{end}": others[share * k : share * k + share] for k, n in enumerate("qkv")}
    b = {f"{made}.weight": weights[order], f"{made}{end}": others[order if share == 16 else blocks]}
    for wrong in (False, True):
        narrow = as_type(b, np.dtype("f2"))
        if wrong:
            narrow[f"{made}{end}"].reshape(-1)[7] += 1
        found = compared(tmp_path, a, narrow)
        kinds = {name: one.kind for one in found.tensors for name in one.b}
        assert kinds[f"{made}.weight"] == ROUNDED
        assert (kinds[f"{made}{end}"] == ROUNDED) is not wrong, told(found)
        assert found.judge(atol=0.01) is not wrong


def test_a_bias_that_stays_is_changed(tmp_path: Path) -> None:
    """Heads of a fused matrix that another layout orders otherwise, with a cast; the bias stays: another model."""
    random = np.random.default_rng(0)
    order = np.concatenate([np.arange(16 * k + 4 * h, 16 * k + 4 * h + 4) for h in range(4) for k in range(3)])
    parts = {f"h.0.attn.{n}_proj.weight": random.normal(size=(16, 8)).astype("f4") for n in "qkv"}
    made, bias = "h.0.attn.query_key_value", random.normal(size=48).astype("f4")
    a = parts | {f"h.0.attn.{n}_proj.bias": bias[16 * k : 16 * k + 16] for k, n in enumerate("qkv")}
    a |= {f"{made}.bias": bias}
    whole = np.concatenate([*parts.values()])[order].astype("f2")
    found = compared(tmp_path, a, {f"{made}.weight": whole, f"{made}.bias": bias.astype("f2")})
    assert {one.b[0]: one.kind for one in found.tensors if one.b} == {
        f"{made}.weight": ROUNDED,
        f"{made}.bias": CHANGED,
    }


def test_the_kinds_that_are_neither(tmp_path: Path) -> None:
    """One type in two checkpoints has no cast, and integers never round."""
    random = np.random.default_rng(0)
    a = {"x": random.normal(size=(8, 8)).astype("f4"), "n": np.arange(64)}
    found = compared(tmp_path, a, {"x": a["x"], "n": a["n"].astype("f4")})
    assert {one.b[0]: one.kind for one in found.tensors} == {"x": SAME, "n": CAST}
    found = compared(tmp_path, a, {"y": a["x"], "m": a["n"].astype("f4") + 0.5})
    assert {one.b[0]: one.kind for one in found.tensors if one.b} == {"y": RENAMED, "m": "added"}
    assert LAYOUT not in {one.kind for one in found.tensors}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_nan_is_the_cast_of_any_nan(dtype: torch.dtype, tmp_path: Path) -> None:
    """As torch casts one; a number beside it that is no NaN is a change all the same."""
    one = torch.randn(40, 8)
    one[3, 2] = one[30, 7] = float("nan")
    torch.save({"w": one}, tmp_path / "a.pt")
    torch.save({"w": one.to(dtype)}, tmp_path / "b.pt")
    (found,) = diff(tmp_path / "a.pt", tmp_path / "b.pt").tensors
    assert found.kind == ("cast" if dtype == torch.float64 else "rounded")
    assert diff(tmp_path / "a.pt", tmp_path / "b.pt").judge(atol=1.0)
    (back,) = diff(tmp_path / "b.pt", tmp_path / "a.pt").tensors
    assert back.kind == found.kind
    torch.save({"w": one.to(dtype).float()}, tmp_path / "c.pt")
    (wide,) = diff(tmp_path / "b.pt", tmp_path / "c.pt").tensors
    assert wide.kind == "cast"
    other = one.clone()
    other[3, 2] = 1.0
    torch.save({"w": other}, tmp_path / "d.pt")
    (changed,) = diff(tmp_path / "d.pt", tmp_path / "b.pt").tensors
    assert changed.kind == "changed"


@pytest.mark.parametrize("first, dtype", [(1 << 24, "f4"), ((1 << 62) + 1, "f8"), (2049, "f2")])
def test_integers_that_are_rounded(first: int, dtype: str, tmp_path: Path) -> None:
    """Beyond the last integer that a type has; also where float64 has not all integers."""
    whole = np.full(64, first) + np.arange(64) * (1 if first < 1 << 60 else 4)
    save_file({"w": whole}, tmp_path / "a.safetensors")
    save_file({"w": whole.astype(dtype)}, tmp_path / "b.safetensors")
    for pair in (("a", "b"), ("b", "a")):
        found = diff(*(tmp_path / f"{name}.safetensors" for name in pair))
        (one,) = found.tensors
        most = max(abs(int(x) - int(y)) for x, y in zip(whole, whole.astype(dtype), strict=True))
        assert (one.kind, one.change and one.change.largest) == (ROUNDED, most), one
        assert found.judge(atol=most) and not found.judge(atol=most - 1) and most


@pytest.mark.parametrize("old, new", [("f4", "i4"), ("i8", "i4"), ("i4", "u2")])
def test_what_wraps_around_or_is_cut_off_is_changed(old: str, new: str, tmp_path: Path) -> None:
    one = (np.arange(64) * 70001.75).astype(old)
    one[1] = 2**33 + 1 if old == "i8" else one[1]
    with np.errstate(all="ignore"):
        save_file({"w": one}, tmp_path / "a.safetensors")
        save_file({"w": one.astype(new)}, tmp_path / "b.safetensors")
    for pair in (("a", "b"), ("b", "a")):
        assert [x.kind for x in diff(*(tmp_path / f"{name}.safetensors" for name in pair)).tensors] == [CHANGED]
