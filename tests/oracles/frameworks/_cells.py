"""Networks put together from single cells or layers: which tensors belong to which, and running them in turn.

Most frameworks have cells only, and leave the names of a larger network to its author. The layouts put the layer in
front where there are several, and then the direction where there are two: `layer1/forward/kernel`, but `kernel` alone.

Like `_case_files.py`, this needs NumPy only and Python 3.8, and knows nothing of paramtool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from _case_files import Cannot, Case, Outputs, refuse, require


@dataclass(frozen=True)
class Levels:
    """What a layout calls the layers and the directions, and what it puts between the levels of a name."""

    layer: str = "layer{}"
    directions: Sequence[str] = ("forward", "backward")
    separators: str = "/"

    def of_layer(self, case: Case, layer: int) -> list:
        """The levels in front of what belongs to a layer."""
        return [self.layer.format(layer)] if case.layers > 1 else []

    def of_cell(self, case: Case, cell: int) -> list:
        """The levels in front of what belongs to a cell."""
        layer, direction = divmod(cell, case.directions)
        return self.of_layer(case, layer) + ([self.directions[direction]] if case.directions > 1 else [])

    def by_cell(self, case: Case, shapes: Callable[[int], Mapping[str, Sequence[int]]]) -> list:
        """{path: array} of each cell; `shapes(layer)` is {path: shape} of the framework's own cell, paths with '/'."""
        cells = range(case.layers * case.directions)
        return self._share_out(case, [(self.of_cell(case, cell), shapes(cell // case.directions)) for cell in cells])

    def by_layer(self, case: Case, shapes: Callable[[int], Mapping[str, Sequence[int]]]) -> list:
        """{path: array} of each layer; `shapes(layer)` is {path: shape} of the framework's own layer."""
        return self._share_out(case, [(self.of_layer(case, layer), shapes(layer)) for layer in range(case.layers)])

    def _share_out(self, case: Case, parts: list) -> list:
        """The case's tensors, each to its part; ValueError unless the names and shapes are exactly those expected."""
        found = [mark for mark in self.separators if any(mark in name for name in case.tensors)]
        mark = found[0] if found else self.separators[0]
        names = [{path: mark.join([*front, *path.split("/")]) for path in shapes} for front, shapes in parts]
        expected = {}
        for own, (_, shapes) in zip(names, parts):  # noqa: B905 - zip has no `strict` before Python 3.10
            expected.update({name: tuple(shapes[path]) for path, name in own.items()})
        lacking = [name for name in expected if name not in case.tensors]
        if lacking and not case.bias and all("bias" in name or re.search(r"\bb$", name) for name in lacking):
            raise Cannot(f"no cell without biases in this library: {lacking[0]} is always there; it could be zeros")
        require(case, expected)
        return [{path: case.tensors[name] for path, name in own.items()} for own in names]


def compose(case: Case, ran: str, run_cell: Callable[[int, np.ndarray, list], tuple]) -> Outputs:
    """Run all cells; as in torch, a backward cell meets time in reverse, and its outputs stand after the forward ones.

    `run_cell(cell, x, states)`, cell = layer*D + direction, x (T, N, in) in the order in which the cell meets it,
    states = [h0, and c0 of an LSTM], gives (y, [hn, and cn]).
    """
    x, finals = case.x, []
    for layer in range(case.layers):
        outputs = []
        for direction in range(case.directions):
            cell, order = layer * case.directions + direction, slice(None, None, -1 if direction else 1)
            y, final = run_cell(cell, x[order], [state[cell] for state in case.states()])
            outputs.append(np.asarray(y)[order])
            finals.append([np.asarray(state) for state in final])
        x = np.concatenate(outputs, axis=-1)
    return Outputs(ran, x, *(np.stack(states) for states in map(list, zip(*finals))))  # noqa: B905 - as above


def allow(
    case: Case, *, resets: Sequence[str] = ("after",), options: Sequence[str] = (), relu: bool = False, **has: bool
) -> None:
    """Cannot, for what the framework lacks; `relu`: its LSTM and GRU take this activation too; `has` as in `refuse`."""
    unknown = {name: value for name, value in case.options.items() if name not in options and value is not None}
    if unknown.get("gate_activation") == "sigmoid":
        del unknown["gate_activation"]
    free = relu and case.kind != "rnn" and case.activation == "relu"
    plain = replace(case, options=unknown, activation=None if free else case.activation)
    refuse(plain, reset_before="before" in resets, **has)
    if case.kind == "gru" and case.reset not in resets:
        raise Cannot("the reset gate of this library's GRU is applied before the product")


def hard_sigmoid(case: Case) -> tuple | None:
    """(slope, shift) where the gates are clip(slope*x + shift, 0, 1), None where they are sigmoids."""
    said = case.options.get("gate_activation") or "sigmoid"
    if said == "sigmoid":
        return None
    found = re.fullmatch(r"hard_sigmoid\(([^,]+),([^,]+)\)", said)
    if found is None:
        raise Cannot(f"gate activation {said}")
    return float(found[1]), float(found[2])


def same_slope(gates: tuple, slope: float) -> bool:
    """Whether `gates` of `hard_sigmoid` are clip(slope*x + 0.5, 0, 1), but for how many digits were written."""
    return abs(gates[0] - slope) < 1e-6 and gates[1] == 0.5


def agreeing(runs: Sequence[Outputs]) -> Outputs:
    """The first of several runs that must come to the same; AssertionError where they differ."""
    first = runs[0]
    for other in runs[1:]:
        for name in ("y", "hn", "cn"):
            if getattr(first, name) is not None:
                np.testing.assert_allclose(getattr(other, name), getattr(first, name), rtol=0, atol=2e-6)
    return replace(first, ran="; ".join(run.ran for run in runs))
