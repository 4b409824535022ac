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
from paramtool.engine.compare.shared_elements import TiedPair, share_alike
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
    assert found.is_same() == (not wanted)


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
