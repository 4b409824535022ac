"""Which configurations are measured, in which order, and how long each could take.  Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from paramtool.layouts.spec import Spec

VARIANTS = ("fused", "separate", "concatenated")
MODES = ("forward", "forward_backward")
"""Inference without a graph; and training, with gradients of the input and of every parameter."""
GATES = {"lstm": 4, "gru": 3}
TOLERANCE = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-9}
"""How far outputs of variants may be apart."""
FEWEST_ROUNDS, MOST_ROUNDS = 3, 200
AXES = ("hidden", "layers", "sequence")
LARGEST = 1 << 20
"""The largest number on an axis, and the largest batch."""
MOST_VALUES = 32
"""On an axis: more would make a picture that is too large."""
GRID: dict[str, list[Any]] = {
    "kinds": ["lstm", "gru"],
    "dtypes": ["float32", "float16"],
    "hidden": [128, 256, 512, 1024, 2048],
    "layers": [1, 2, 4],
    "sequence": [1, 8, 64, 512],
}
QUICK = GRID | {"hidden": [128, 512], "layers": [1, 2], "sequence": [1, 64]}
ASSUMED_RATE = {
    "cuda": {"float16": 6e13, "float32": 2e13, "float64": 1e13},
    "cpu": dict.fromkeys(TOLERANCE, 3e10) | {"float16": 5e9},
}
"""Operations in a second, and below seconds for a step of a layer: guesses to plan the time by, not measurements."""
ASSUMED_STEP = 2e-5
ASSUMED_START = 0.1
"""Seconds to make and to prove the variants of a configuration."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A configuration; the input is as wide as the hidden state."""

    kind: str
    dtype: str
    hidden: int
    layers: int
    sequence: int
    batch: int

    def __str__(self) -> str:
        return f"{self.kind} {self.dtype}, hidden {self.hidden}, layers {self.layers}, sequence {self.sequence}"

    @property
    def spec(self) -> Spec:
        """The network."""
        more = {"reset": "after"} if self.kind == "gru" else {}
        return Spec(self.kind, self.hidden, self.hidden, layers=self.layers, **more)

    @property
    def operations(self) -> int:
        """Multiplications and additions of a forward pass; a backward pass has twice as many.

        >>> Cell("lstm", "float32", 10, 1, 3, 2).operations == 2 * 3 * 2 * 8 * 10 * 10
        True
        """
        return 2 * self.sequence * self.batch * self.layers * 2 * GATES[self.kind] * self.hidden**2


def cells(settings: dict[str, Any]) -> list[Cell]:
    """The grid."""
    return [Cell(*point, settings["batch"]) for point in product(*(settings[name] for name in GRID))]


def spread(plan: Sequence[Cell]) -> list[Cell]:
    """The same in an order of which every beginning covers the grid evenly: steps of about the golden section.

    >>> spread(list(range(10)))
    [0, 7, 4, 1, 8, 5, 2, 9, 6, 3]
    """
    count = len(plan)
    step = round(count * 0.618)
    while math.gcd(step, count) != 1:
        step += 1
    return [plan[number * step % count] for number in range(count)]


def predicted(cell: Cell, device: str, seconds: float) -> float:
    """How many seconds a configuration could take, all that is not counted included."""
    forward = cell.operations / ASSUMED_RATE[device][cell.dtype] + cell.sequence * cell.layers * ASSUMED_STEP
    one = len(VARIANTS) * (1 + 3) * forward  # forward, and forward+backward
    rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(seconds / one)))
    return ASSUMED_START + (3 + rounds) * one  # the proof, warming up, the memory
