"""The grid of networks: every kind, depth, direction, bias mode, element type and algorithm of cuDNN.

A point of the grid is a `Case`.  `asked` gives all points; `built` the networks without bias modes and algorithms,
which torch chooses itself; `run` the networks that are small enough to compute on a CPU in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from paramtool.layouts.spec import Spec
from paramtool.lazy_dataclass import dataclass

BIAS_MODES = ("none", "input", "double", "recurrent")
"""cudnnRNNBiasMode_t, in cuDNN's order."""
DTYPES = ("float16", "bfloat16", "float32", "float64")
ALGORITHMS = ("standard", "persist_static", "persist_dynamic", "persist_static_small_h")
"""cudnnRNNAlgo_t, in cuDNN's order."""
SIZES = ((3, 5), (5, 5), (33, 31), (64, 64), (40, 128), (1024, 1024), (80, 2048))
"""(input, hidden): odd, powers of two, large; the input as wide as the hidden state, narrower and wider."""
QUICK_SIZES = ((3, 5), (64, 64))
MAX_RUN_HIDDEN = 128
"""Wider networks are run with one layer and one direction: a CPU computes them in float64 beside the GPU."""


@dataclass(frozen=True, slots=True)
class Case:
    """A network, and the options by which cuDNN stores it."""

    spec: Spec
    """The network; without biases if the mode is `none`."""
    bias_mode: str
    dtype: str
    algorithm: str = "standard"

    def __str__(self) -> str:
        return f"{self.spec}, {self.bias_mode} bias mode, {self.dtype}, {self.algorithm}"


def specs(quick: bool) -> Iterator[Spec]:
    """The networks of the grid, all with biases."""
    for layers, bidirectional, size in product(
        (1, 2) if quick else (1, 2, 3, 4), (False, True), QUICK_SIZES if quick else SIZES
    ):
        for kind, more in _kinds(size[1]):
            yield Spec(kind, *size, layers=layers, bidirectional=bidirectional, **more)


def _kinds(hidden: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "rnn", {"activation": "tanh"}
    yield "rnn", {"activation": "relu"}
    yield "gru", {"reset": "after"}
    yield "lstm", {}
    yield "lstm", {"projection": hidden // 2}


def asked(quick: bool) -> Iterator[Case]:
    """The cases that cuDNN is asked about."""
    for spec, mode, dtype, algorithm in product(specs(quick), BIAS_MODES, DTYPES, ALGORITHMS):
        yield Case(replace(spec, bias=mode != "none"), mode, dtype, algorithm)


def built(quick: bool) -> Iterator[Case]:
    """The cases that torch is asked to flatten: with both biases, or none."""
    for spec, mode, dtype in product(specs(quick), ("none", "double"), DTYPES):
        yield Case(replace(spec, bias=mode != "none"), mode, dtype)


def run(quick: bool) -> Iterator[Case]:
    """The cases that are computed."""
    for case in built(quick):
        if case.spec.hidden <= MAX_RUN_HIDDEN or case.spec.layers * case.spec.directions == 1:
            yield case
