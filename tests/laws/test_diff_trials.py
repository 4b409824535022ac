"""Random pairs whose truth NumPy knows: `diff` says nothing false of them; and the judge sees what is false."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.model.diff import CHANGED, LAYOUT, SAME, TensorDiff
from tests.examples import IS_HARD
from tests.laws.diff_trials.files import written
from tests.laws.diff_trials.judge import judged
from tests.laws.diff_trials.pairs import KINDS, Module, Pair, apart, pair
from tests.laws.diff_trials.running import outcome
from tests.parts.references import REFERENCES
from tests.versions import needs

SAMPLE = 25
"""Pairs of one test."""
CHANGES = ("same", "renamed", "layout", "cast", "rounded")


@pytest.mark.sample(2)
@needs("torch", "2.8", "torch.save of float8, which 2.1 refuses")
@pytest.mark.parametrize("start", range(4 if not IS_HARD else 400))
@pytest.mark.filterwarnings("ignore:.*quantiz.*")
def test_random_pairs_have_no_false_verdict(start: int, tmp_path: Path) -> None:
    """Nothing lost is the same, what is said of a tensor is so, and what the documents say is found."""
    for seed in range(SAMPLE * start, SAMPLE * start + SAMPLE):
        assert not outcome(pair(seed), tmp_path, seed).faults, seed


def alone(kind: str, seed: int) -> Pair:
    """A pair of one module."""
    module = apart(KINDS[kind](np.random.default_rng(seed), "layers.0"))
    return Pair([(kind, module)], (".pt", ".pt") if module.needs_torch else (".safetensors", ".safetensors"))


@cache
def kept(kind: str, seed: int = 0) -> Pair | None:
    """A pair of one module of a kind that holds the same weights; None if that kind never does."""
    pairs = (alone(kind, number) for number in range(seed, seed + 30))
    return next(
        (one for one in pairs if one.modules[0][1].keeps and all(array.size for array in one.sides[1].values())), None
    )


def with_b(one: Pair, change: Callable[[Module], Module]) -> Pair:
    """The same pair with another module."""
    ((kind, module),) = one.modules
    return Pair([(kind, change(module))], one.endings)


def other_bits(module: Module, name: str) -> Module:
    """A module one of whose tensors of B has other bits in one element."""
    changed = module.b[name].copy()
    raw = changed.reshape(-1).view("u1")
    raw[0] ^= 1 if changed.dtype == bool else 0x5A
    return module._replace(b={**module.b, name: changed}, is_shared=False)


@pytest.mark.sample(24)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kept(kind)])
@pytest.mark.filterwarnings("ignore:.*quantiz.*")
def test_the_judge_sees_an_element_that_is_another(kind: str, tmp_path: Path) -> None:
    """What is said of the weights as they are is false of weights with one other element."""
    one = kept(kind)
    assert one is not None
    found = diff(*written(one, tmp_path))
    assert not judged(one, found).false
    names = [each.b[0] for each in found.tensors if each.kind in CHANGES and each.b and each.b[0] in one.sides[1]]
    for name in names:
        assert judged(with_b(one, lambda module, name=name: other_bits(module, name)), found).false, name
    assert names or kind in ("renamed and tiny", "axes")


def test_the_judge_sees_another_layout(tmp_path: Path) -> None:
    """A layout that has the same shapes and puts the elements elsewhere."""
    seen = 0
    for seed in range(40):
        one = alone("layout", seed)
        found = diff(*written(one, tmp_path))
        for each in found.tensors:
            other = {"qkv": "qkv-per-element", "gate-up": "up-gate", "up-gate": "gate-up"}.get(each.layout, "")
            if each.kind == LAYOUT and other in REFERENCES:
                false = replace(
                    found, tensors=(*(t for t in found.tensors if t is not each), replace(each, layout=other))
                )
                assert judged(one, false).false, (seed, each)
                seen += 1
    assert seen


def changed_as(found: Diffed, change: Callable[[TensorDiff], TensorDiff]) -> Diffed:
    return replace(found, tensors=tuple(map(change, found.tensors)))


def test_the_judge_sees_figures_that_are_wrong(tmp_path: Path) -> None:
    """Of elements and of the largest difference; a change that is none; a change that is called the same."""
    one = alone("unrelated", 3)
    found = diff(*written(one, tmp_path))
    (each,) = found.tensors
    assert each.kind == CHANGED and each.change is not None and each.change.largest is not None
    fewer, nearer = each.change._replace(elements=1), each.change._replace(largest=each.change.largest / 2)
    for change in (fewer, nearer):
        assert judged(one, changed_as(found, lambda t, change=change: replace(t, change=change))).false
    assert judged(one, changed_as(found, lambda t: replace(t, kind=SAME))).false
    assert judged(with_b(one, lambda module: module._replace(b=module.a)), found).false


def test_the_judge_sees_a_tensor_without_a_verdict(tmp_path: Path) -> None:
    one = alone("partly renamed", 0)
    found = diff(*written(one, tmp_path))
    assert judged(one, replace(found, tensors=found.tensors[1:])).false


def test_the_judge_sees_a_map_that_was_not_found(tmp_path: Path) -> None:
    """A planted map that is said to be found is a fault; another one is counted."""
    one = alone("rows", 0)
    found = diff(*written(one, tmp_path))
    lost = changed_as(found, lambda t: replace(t, kind=CHANGED, change=None))
    assert judged(one, lost).false and judged(one, lost).missed == ["rows"]
    unsaid = with_b(one, lambda module: module._replace(is_found=False))
    assert judged(unsaid, lost) == ([], ["rows"])
