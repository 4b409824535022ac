"""A second oracle beside torch: the equations of RNN, GRU and LSTM, gate by gate, in NumPy and float64.

Weights go by torch's names: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_hr_l0, then `_reverse`, then
l1 ...; biases may be absent. Torch has no peepholes: here they are `weight_ch_l0` (3H,), rows i f o as in ONNX' P.

    rnn    h' = act(W x + b + U h + b')
    gru    r = s(r-rows), z = s(z-rows), h' = (1 - z) n + z h
           reset "after":   n = act(W x + b + r (U h + b'))     (PyTorch; without b', that of Flax nnx and of Flux)
           reset "before":  n = act(W x + b + U (r h) + b')     (ONNX' default, TensorFlow 1, Haiku)
    lstm   i = s(i-rows + p_i c), f = s(f-rows + p_f c), g = act(g-rows), c' = clip(f c + i g),
           o = s(o-rows + p_o c'), h' = P (o act(c'))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

GATES = {"rnn": "h", "gru": "rzn", "lstm": "ifgo"}
ACTIVATIONS = {"tanh": np.tanh, "relu": lambda v: np.maximum(v, 0.0)}


@dataclass(frozen=True)
class Settings:
    """What the weights do not say."""

    reset: str = "after"
    activation: str = "tanh"
    hard_sigmoid: tuple[float, float] | None = None
    """(slope, shift) where the gates are clip(slope*x + shift, 0, 1) and not sigmoids."""
    cell_clip: float | None = None

    def gate(self, v: np.ndarray) -> np.ndarray:
        """The gates' function."""
        if self.hard_sigmoid is None:
            return 1.0 / (1.0 + np.exp(-v))
        return np.clip(self.hard_sigmoid[0] * v + self.hard_sigmoid[1], 0.0, 1.0)


@dataclass(frozen=True)
class Cell:
    """One cell: its parts by gate, W["i"] (H, in), U["i"] (H, R), b["i"] and d["i"] (H,) of the two biases."""

    W: Mapping[str, np.ndarray]
    U: Mapping[str, np.ndarray]
    b: Mapping[str, np.ndarray]
    d: Mapping[str, np.ndarray]
    p: Mapping[str, np.ndarray]
    """Peepholes, zeros where there are none."""
    projection: np.ndarray | None
    settings: Settings

    def rows(self, gate: str, x: np.ndarray, h: np.ndarray) -> np.ndarray:
        """A gate before its function."""
        return x @ self.W[gate].T + self.b[gate] + h @ self.U[gate].T + self.d[gate]

    def rnn(self, x: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, ...]:
        """One step."""
        return (ACTIVATIONS[self.settings.activation](self.rows("h", x, h)),)

    def gru(self, x: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, ...]:
        """One step."""
        r, z = self.settings.gate(self.rows("r", x, h)), self.settings.gate(self.rows("z", x, h))
        if self.settings.reset == "after":
            inner = r * (h @ self.U["n"].T + self.d["n"])
        else:
            inner = (r * h) @ self.U["n"].T + self.d["n"]
        n = ACTIVATIONS[self.settings.activation](x @ self.W["n"].T + self.b["n"] + inner)
        return ((1.0 - z) * n + z * h,)

    def lstm(self, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, ...]:
        """One step."""
        act, clip = ACTIVATIONS[self.settings.activation], self.settings.cell_clip
        i = self.settings.gate(self.rows("i", x, h) + self.p["i"] * c)
        f = self.settings.gate(self.rows("f", x, h) + self.p["f"] * c)
        c = f * c + i * act(self.rows("g", x, h))
        if clip is not None:
            c = np.clip(c, -clip, clip)
        h = self.settings.gate(self.rows("o", x, h) + self.p["o"] * c) * act(c)
        return (h if self.projection is None else h @ self.projection.T, c)


def cell_of(kind: str, weights: Mapping[str, np.ndarray], end: str, settings: Settings) -> Cell:
    """The cell whose names end in `end` (`l0`, `l0_reverse`)."""
    wide = {name: np.asarray(weights[f"{name}_{end}"], np.float64) for name in ("weight_ih", "weight_hh")}
    hidden = len(wide["weight_ih"]) // len(GATES[kind])

    def by_gate(array: np.ndarray, gates: str) -> dict[str, np.ndarray]:
        return {gate: array[n * hidden : (n + 1) * hidden] for n, gate in enumerate(gates)}

    def vector(name: str, gates: str) -> dict[str, np.ndarray]:
        zeros = np.zeros(len(gates) * hidden)
        return by_gate(np.asarray(weights.get(f"{name}_{end}", zeros), np.float64), gates)

    projection = weights.get(f"weight_hr_{end}")
    return Cell(
        W=by_gate(wide["weight_ih"], GATES[kind]),
        U=by_gate(wide["weight_hh"], GATES[kind]),
        b=vector("bias_ih", GATES[kind]),
        d=vector("bias_hh", GATES[kind]),
        p=vector("weight_ch", "ifo"),
        projection=None if projection is None else np.asarray(projection, np.float64),
        settings=settings,
    )


def unroll(step: Callable[..., tuple[np.ndarray, ...]], x: np.ndarray, states: tuple[np.ndarray, ...]) -> tuple:
    """(outputs of all steps, last states)."""
    y = []
    for value in x:
        states = step(value, *states)
        y.append(states[0])
    return np.stack(y), states


def run(
    kind: str,
    weights: Mapping[str, np.ndarray],
    x: np.ndarray,
    h0: np.ndarray,
    c0: np.ndarray | None = None,
    settings: Settings | None = None,
) -> dict[str, np.ndarray]:
    """y (T, N, D*R), hn (L*D, N, R) and, of an LSTM, cn (L*D, N, H), all as torch gives them but in float64."""
    directions = 2 if "weight_ih_l0_reverse" in weights else 1
    first = [np.asarray(state, np.float64) for state in (h0, c0) if state is not None]
    x, finals = np.asarray(x, np.float64), []
    for layer in range(len(h0) // directions):
        outputs = []
        for direction in range(directions):
            cell = cell_of(kind, weights, f"l{layer}" + "_reverse" * direction, settings or Settings())
            states = tuple(state[layer * directions + direction] for state in first)
            order = slice(None, None, -1 if direction else 1)
            y, last = unroll(getattr(cell, kind), x[order], states)
            outputs.append(y[order])
            finals.append(last)
        x = np.concatenate(outputs, axis=-1)
    found = {"y": x, "hn": np.stack([last[0] for last in finals])}
    return {**found, "cn": np.stack([last[1] for last in finals])} if kind == "lstm" else found
