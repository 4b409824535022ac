"""Ties that only one of two checkpoints has, or that are of other elements: torch shares the memory, and writes."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.commands.diff.ties import TiedPair, share_alike
from paramtool.model.diff import SAME
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View
from tests.examples import examples

X = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
C = torch.complex(X[:6, :6], X[2:, 2:])
BASE, PERIOD = torch.arange(20.0), torch.arange(2.0).repeat(20)
MOVED = torch.cat([torch.zeros(5), BASE[2:14]])
State = dict[str, torch.Tensor]


def symmetric() -> torch.Tensor:
    return X + X.T


def tied(one: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor]) -> State:
    return {"x": one, "y": view(one)}


ONLY = "'y': shares memory with 'x' in A only"
OTHER = "'y': shares other elements with 'x' in B than in A"
CASES: dict[str, tuple[State, State, str]] = {
    "a conjugate, carried out": (tied(C, torch.conj), {"x": C, "y": C.conj().resolve_conj().clone()}, ONLY),
    "a conjugate of a copy": (tied(C, torch.conj), {"x": C, "y": C.clone().conj()}, ONLY),
    "a negative, carried out": (tied(X, torch._neg_view), {"x": X, "y": -X}, ONLY),
    "a negative of a copy": (tied(X, torch._neg_view), {"x": X, "y": torch._neg_view(X.clone())}, ONLY),
    "a transpose": (tied(X, torch.t), {"x": X, "y": X.T.contiguous()}, ONLY),
    "a transpose of a copy": (tied(X, torch.t), {"x": X, "y": X.clone().T}, ONLY),
    "an overlap": ({"x": BASE[:8], "y": BASE[4:12]}, {"x": BASE[:8].clone(), "y": BASE[4:12].clone()}, ONLY),
    "neighbours": ({"x": PERIOD[:8], "y": PERIOD[4:12]}, {"x": PERIOD[:8], "y": PERIOD[8:16]}, ONLY),
    "another overlap": ({"x": PERIOD[:8], "y": PERIOD[4:12]}, {"x": PERIOD[:8], "y": PERIOD[2:10]}, OTHER),
    "the whole, and an overlap": (
        {"x": PERIOD[:8], "y": PERIOD[:8]}, {"x": PERIOD[:8], "y": PERIOD[2:10]}, OTHER,
    ),
    "itself, and its transpose": (tied(symmetric(), lambda one: one), tied(symmetric(), torch.t), OTHER),
    "a conjugate in both": (tied(C, torch.conj), tied(C.clone(), torch.conj), ""),
    "a negative in both": (tied(X, torch._neg_view), tied(X.clone(), torch._neg_view), ""),
    "a transpose in both": (tied(X, torch.t), tied(X.T.contiguous().T, torch.t), ""),
    "apart in one storage": ({"x": BASE[:8], "y": BASE[8:16]}, {"x": BASE[:8].clone(), "y": BASE[8:16].clone()}, ""),
    "the same overlap elsewhere": ({"x": BASE[2:10], "y": BASE[6:14]}, {"x": MOVED[5:13], "y": MOVED[9:17]}, ""),
}  # fmt: skip


def compared(place: Path, a: State, b: State) -> Diffed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, state in (("a", a), ("b", b)):
            torch.save(state, place / f"{name}.pt")
    return diff(place / "a.pt", place / "b.pt")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_what_is_tied_otherwise(case: str, back: bool, tmp_path: Path) -> None:
    """All bytes are the same, and the verdict is by the memory that names share."""
    a, b, wanted = CASES[case]
    a, b = (b, a) if back else (a, b)
    found = compared(tmp_path, a, b)
    assert {one.kind for one in found.tensors} == {SAME}, found.tensors
    assert found.ties == ((wanted.replace("in A only", "in B only") if back else wanted),) * bool(wanted)
    assert found.is_same == (not wanted)


def test_a_third_name_of_a_chain(tmp_path: Path) -> None:
    """Each overlaps the next: the last one shares other elements with the one before it, and none with the first."""
    a = {"x": PERIOD[:8], "y": PERIOD[4:12], "z": PERIOD[10:18]}
    b = {"x": PERIOD[:8], "y": PERIOD[4:12], "z": PERIOD[8:16]}
    found = compared(tmp_path, a, b)
    assert found.ties == ("'z': shares other elements with 'y' in B than in A",)


def elements(view: View) -> np.ndarray:
    """Where each element is, as NumPy's strides have it."""
    storage = np.arange(200)
    return np.lib.stride_tricks.as_strided(
        storage[view.offset :], view.shape, [stride * storage.itemsize for stride in view.strides]
    )


def windows(chance: random.Random) -> Iterator[tuple[View, tuple[int, ...]]]:
    """A window of a random kind: rows, a transpose, steps, repeated rows, or strides of no box."""
    shape = (chance.randint(1, 4), chance.randint(1, 4))
    order = chance.choice(list(permutations(range(2))))
    steps = [0, 0]
    inner = chance.randint(1, 3)
    for axis in order:
        steps[axis] = inner
        inner *= shape[axis] + chance.randint(0, 1)
    if chance.random() < 0.2:
        steps[chance.randrange(2)] = chance.choice([0, 2, 3])
    yield View(0, DTYPES["float32"], chance.randint(0, 12), shape, tuple(steps)), shape


@settings(max_examples=examples(400), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_numpy_says_which_elements_are_shared(seed: int) -> None:
    """Pairs of windows of the same shapes: the same element of both, as NumPy addresses it, or another one."""
    chance = random.Random(seed)
    (one, shape), (other, shape_of_other) = next(windows(chance)), next(windows(chance))

    def again(view: View) -> View:
        kind = chance.randrange(3)
        if kind == 0:
            return View(0, view.dtype, view.offset + 7, view.shape, view.strides)
        steps = view.strides if kind == 1 else view.strides[::-1]
        return View(0, view.dtype, chance.randint(0, 12), view.shape, steps)

    a, b = TiedPair(one, other), TiedPair(again(one), again(other))
    facts = []
    for pair in (a, b):
        first, second = (elements(view).reshape(-1) for view in pair)
        facts.append((second[:, None] == first).tolist())
    is_alike = facts[0] == facts[1]
    found = share_alike(a, b)
    injective = all(len({*elements(view).reshape(-1).tolist()}) == view.numel for pair in (a, b) for view in pair)
    assert found == is_alike or (not injective and not found)
    assert shape == one.shape and shape_of_other == other.shape


Q, K, V = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(1))
JOINED = torch.cat([Q, V, K])
MOVED_Q = Q.flip(0)


def layers(*parts: tuple[str, torch.Tensor]) -> State:
    return {f"l.{k}.{name}": tensor for k in range(2) for name, tensor in parts}


KINDS = {"gate": (12, 8), "up": (12, 8), "down": (8, 12)}


def experts() -> State:
    """Two experts that share all their tensors, and one more."""
    chance = torch.Generator().manual_seed(2)
    apart = {kind: torch.randn(2, *shape, generator=chance) for kind, shape in KINDS.items()}
    memory = {kind: [each[0].clone(), each[1].clone()] for kind, each in apart.items()}
    return {f"m.experts.{k}.{kind}_proj.weight": memory[kind][k // 2] for k in range(3) for kind in KINDS}


def stacked(state: State) -> State:
    gate, up, down = ([state[f"m.experts.{k}.{kind}_proj.weight"] for k in range(3)] for kind in KINDS)
    both = [torch.cat(pair) for pair in zip(gate, up, strict=True)]
    return {"m.experts.gate_up_proj": torch.stack(both), "m.experts.down_proj": torch.stack(down)}


QKV = tuple((f"{name}_proj.weight", one) for name, one in zip("qkv", (Q, K, V), strict=True))
PARTS = layers(*QKV)
LOST: dict[str, tuple[State, State, str, str]] = {
    "rows in another order": (
        {"a": Q, "b": Q}, {"a": MOVED_Q, "b": MOVED_Q.clone()},
        "'b': shares memory with 'a' in A only", "'b': shares memory with 'a' in B only",
    ),
    "layers of a fused tensor": (
        PARTS, {f"l.{k}.qkv_proj.weight": torch.cat([Q, K, V]) for k in range(2)},
        "'l.1.qkv_proj.weight': shares memory with 'l.0.qkv_proj.weight' in A only, as 'l.1.q_proj.weight' and"
        " 'l.0.q_proj.weight'",
        "'l.1.q_proj.weight': shares memory with 'l.0.q_proj.weight' in B only",
    ),
    "layers of joined rows": (
        layers(("x", Q), ("y", K), ("z", V)), {f"l.{k}.t": JOINED.clone() for k in range(2)},
        "'l.1.t': shares memory with 'l.0.t' in A only, as 'l.1.x' and 'l.0.x'",
        "'l.1.x': shares memory with 'l.0.x' in B only",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOST)
def test_ties_of_tensors_that_are_made_of_several(case: str, tmp_path: Path) -> None:
    a, b, there, back = LOST[case]
    found = compared(tmp_path, a, b)
    assert there in found.ties and not found.is_same, found
    found = compared(tmp_path, b, a)
    assert back in found.ties and not found.is_same, found


@pytest.mark.parametrize("name", ["qkv_proj.weight", "t"])
def test_layers_that_share_a_joined_tensor_keep_their_ties(name: str, tmp_path: Path) -> None:
    joined = torch.cat([Q, K, V])
    for pair in ((PARTS, layers((name, joined))), (layers((name, joined)), PARTS)):
        assert not compared(tmp_path, *pair).ties


def test_parts_of_a_tied_tensor_that_are_tied_in_part(tmp_path: Path) -> None:
    """Only the keys of the two layers share memory in B."""
    names = [f"{name}_proj.weight" for name in "qkv"]
    parts = {f"l.{k}.{name}": one if name[0] == "k" else one.clone() for k in range(2) for name, one in QKV}
    found = compared(tmp_path, layers(("qkv_proj.weight", torch.cat([Q, K, V]))), parts)
    assert found.ties == tuple(f"'l.1.{n}': shares memory with 'l.0.{n}' in A only, as 'l.1.qkv_proj.weight' and"
                               " 'l.0.qkv_proj.weight'" for n in (names[0], names[2]))  # fmt: skip


WITHIN: dict[str, tuple[State, State, str]] = {
    "queries and keys": (
        {f"a.{name}_proj.weight": Q if name != "v" else V for name in "qkv"},
        {"a.qkv_proj.weight": torch.cat([Q, Q, V])},
        "'a.q_proj.weight = a.k_proj.weight'",
    ),
    "experts": (experts(), stacked(experts()), "'m.experts.0.gate_proj.weight = m.experts.1.gate_proj.weight'"),
    "rows": ({"x": Q, "y": Q, "z": V}, {"t": torch.cat([Q, V, Q])}, "'x = y'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WITHIN)
def test_ties_inside_one_tensor_are_a_warning(case: str, tmp_path: Path) -> None:
    a, b, names = WITHIN[case]
    for pair, side in (((a, b), "A"), ((b, a), "B")):
        found = compared(tmp_path, *pair)
        assert not found.ties and not found.judge(strict=True)
        assert any(f" of {side} " in one and "no room for a tie" in one and names in one for one in found.notes), found
        assert found.is_same or case == "rows"  # y is in no tensor of B


def test_one_tensor_that_is_two_in_the_other_is_no_tie(tmp_path: Path) -> None:
    for pair in (
        ({"x": Q}, {"x": MOVED_Q, "y": MOVED_Q.clone()}),
        ({"f": JOINED}, {"s": JOINED[:24], "t": JOINED[16:]}),
    ):
        assert not compared(tmp_path, *pair).ties
