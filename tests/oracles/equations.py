"""Recurrent cells of libraries that cannot be run here, written from their sources and documentation.

Words, orders of gates and shapes are each library's own; nothing is shared with paramtool's tables.  A function takes a
network and its tensors by the library's names, and gives the step of each cell: layer by layer, forward, then backward.
Where a library leaves the names of stacks to its users, they are paramtool's: `layer1.backward.cell.Wi`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paramtool.layouts.spec import Spec

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Step = Callable[..., tuple[Array, ...]]
"""(x (N, in), h, and c of an LSTM) -> (h, and c)."""

INPUT, HIDDEN = 3, 4


def sigmoid(v: Array) -> Array:
    """1 / (1 + exp(-v))."""
    return np.asarray(1 / (1 + np.exp(-v)))


def relu(v: Array) -> Array:
    """max(v, 0)."""
    return np.maximum(v, 0)


tanh = np.tanh
ACTIVATIONS = {"tanh": np.tanh, "relu": relu}


@dataclass(frozen=True)
class Network:
    """What a system is told of a network beside its weights."""

    kind: str
    layers: int = 1
    directions: int = 1
    bias: bool = True
    reset: str = "after"
    activation: str = "tanh"
    projection: int = 0
    peephole: bool = False

    @property
    def spec(self) -> Spec:
        """As paramtool says it."""
        said = {"gru": {"reset": self.reset}, "rnn": {"activation": self.activation}}.get(self.kind, {})
        both = {"bidirectional": self.directions == 2, "bias": self.bias, "projection": self.projection}
        return Spec(self.kind, INPUT, HIDDEN, self.layers, peephole=self.peephole, **both, **said)  # type: ignore[arg-type]

    @property
    def gates(self) -> int:
        """How many blocks of rows a matrix has."""
        return {"lstm": 4, "gru": 3, "rnn": 1}[self.kind]

    @property
    def state(self) -> int:
        """The width of h."""
        return self.projection or HIDDEN

    def width(self, layer: int) -> int:
        """What a layer is given at each step."""
        return INPUT if layer == 0 else self.state * self.directions

    def cells(self) -> Iterator[tuple[int, int]]:
        """(layer, direction), forward before backward."""
        for layer in range(self.layers):
            for direction in range(self.directions):
                yield layer, direction

    def prefix(self, layer: int, direction: int, word: str, sides: tuple[str, str], mark: str) -> str:
        """What stands in front of a cell's tensors: its layer where there are several, its side where there are two."""
        levels = [word.format(layer)] if self.layers > 1 else []
        levels += [sides[direction]] if self.directions > 1 else []
        return "".join(level + mark for level in levels)

    def dotted(self, layer: int, direction: int) -> str:
        """`layer1.backward.`"""
        return self.prefix(layer, direction, "layer{}", ("forward", "backward"), ".")

    def slashed(self, layer: int, direction: int) -> str:
        """`cell_1/bw/`, as TensorFlow 1 has it."""
        return self.prefix(layer, direction, "cell_{}", ("fw", "bw"), "/")


Equations = Callable[[Network, Arrays], list[Step]]
"""A library: the steps of a network's cells, from the network's own tensors."""


def unroll(network: Network, steps: list[Step], x: Array, states: list[Array]) -> tuple[Array, list[Array]]:
    """Outputs (T, N, D*R) of a stack and the last states; a backward cell meets time in reverse."""
    last: list[tuple[Array, ...]] = []
    for layer in range(network.layers):
        outputs = []
        for direction in range(network.directions):
            cell = layer * network.directions + direction
            order = slice(None, None, -1 if direction else 1)
            now = tuple(state[cell] for state in states)
            y = []
            for value in x[order]:
                now = steps[cell](value, *now)
                y.append(now[0])
            outputs.append(np.stack(y)[order])
            last.append(now)
        x = np.concatenate(outputs, axis=-1)
    return x, [np.stack(each) for each in zip(*last, strict=True)]


def flux(network: Network, a: Arrays) -> list[Step]:
    """Flux.jl 0.15: src/layers/recurrent.jl.  Matrices act on columns: Wi * x .+ Wh * h .+ b."""
    return [flux_cell(network, a, network.dotted(*cell)) for cell in network.cells()]


def flux_old(network: Network, a: Arrays) -> list[Step]:
    """Flux.jl up to 0.14: every bias is `b`; GRUv3's Wh has no third block."""
    bias = "cell.b" if network.kind == "gru" else "cell.bias"
    renamed = {name.replace("cell.b", bias): array for name, array in a.items()}
    assert not any(array.any() for name, array in a.items() if "state0" in name)
    return flux(network, renamed)


def flux_packed(network: Network, a: Arrays) -> list[Step]:
    """Flux.jl pull request 1855: one matrix W that acts on [x; h; 1]."""

    def cell(w: Array) -> Step:
        def both(x: Array, h: Array) -> Array:
            column: Array = np.vstack([x.T, h.T, np.ones((1, len(x)))])
            return w @ column

        def rnn(x: Array, h: Array) -> tuple[Array]:
            return (ACTIVATIONS[network.activation](both(x, h)).T,)

        def lstm(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
            inputs, forget, cell, output = np.split(both(x, h), 4)
            c = (sigmoid(forget) * c.T + sigmoid(inputs) * tanh(cell)).T
            return sigmoid(output).T * tanh(c), c

        return rnn if network.kind == "rnn" else lstm

    prefixes = [network.dotted(*at) for at in network.cells()]
    return [cell(a[prefix + "W"]) for prefix in prefixes]


def flux_cell(network: Network, a: Arrays, prefix: str) -> Step:
    """One cell of Flux."""
    wi, wh = a[prefix + "cell.Wi"], a[prefix + "cell.Wh"]
    bias = a.get(prefix + ("cell.b" if network.kind == "gru" else "cell.bias"), np.zeros(len(wi)))[:, None]

    def rnn(x: Array, h: Array) -> tuple[Array]:
        return (ACTIVATIONS[network.activation](wi @ x.T + wh @ h.T + bias).T,)

    def lstm(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        inputs, forget, cell, output = np.split(wi @ x.T + wh @ h.T + bias, 4)
        c = (sigmoid(forget) * c.T + sigmoid(inputs) * tanh(cell)).T
        return sigmoid(output).T * tanh(c), c

    def gru(x: Array, h: Array) -> tuple[Array]:
        gxs, bs = np.split(wi @ x.T, 3), np.split(bias, 3)
        ghs = np.split(wh @ h.T, len(wh) // HIDDEN)
        r, z = sigmoid(gxs[0] + ghs[0] + bs[0]), sigmoid(gxs[1] + ghs[1] + bs[1])
        candidate = prefix + "cell.Wh_h\u0303"
        if candidate in a:  # GRUv3
            new = tanh(gxs[2] + a[candidate] @ (r * h.T) + bs[2])
        else:
            new = tanh(gxs[2] + r * ghs[2] + bs[2])
        return (((1 - z) * new + z * h.T).T,)

    return {"rnn": rnn, "lstm": lstm, "gru": gru}[network.kind]


def lasagne(network: Network, a: Arrays) -> list[Step]:
    """Lasagne: lasagne/layers/recurrent.py.  Rows are samples: x W_in_to_gate + h W_hid_to_gate + b_gate."""

    def cell(prefix: str) -> Step:
        def gate(name: str, x: Array, h: Array) -> Array:
            found = x @ a[f"{prefix}W_in_to_{name}"] + h @ a[f"{prefix}W_hid_to_{name}"] + a[f"{prefix}b_{name}"]
            return np.asarray(found)

        def peep(name: str, c: Array) -> Array:
            return c * a.get(f"{prefix}W_cell_to_{name}", np.zeros(HIDDEN))

        def lstm(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
            ingate = sigmoid(gate("ingate", x, h) + peep("ingate", c))
            forgetgate = sigmoid(gate("forgetgate", x, h) + peep("forgetgate", c))
            new = forgetgate * c + ingate * tanh(gate("cell", x, h))
            return sigmoid(gate("outgate", x, h) + peep("outgate", new)) * tanh(new), new

        def gru(x: Array, h: Array) -> tuple[Array]:
            resetgate, updategate = sigmoid(gate("resetgate", x, h)), sigmoid(gate("updategate", x, h))
            hidden_in = x @ a[f"{prefix}W_in_to_hidden_update"] + a[f"{prefix}b_hidden_update"]
            update = tanh(hidden_in + resetgate * (h @ a[f"{prefix}W_hid_to_hidden_update"]))
            return ((1 - updategate) * h + updategate * update,)

        return lstm if network.kind == "lstm" else gru

    return [cell(network.dotted(*at)) for at in network.cells()]


def cntk_native(network: Network, a: Arrays) -> list[Step]:
    """CNTK's LSTM block: bindings/python/cntk/layers/blocks.py; proj4 is cut into it, bit, ft, ot."""

    def cell(prefix: str) -> Step:
        def lstm(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
            proj4 = a[prefix + "b"] + x @ a[prefix + "W"] + h @ a[prefix + "H"]
            it, bit, ft, ot = (proj4[:, k * HIDDEN : (k + 1) * HIDDEN] for k in range(4))
            c = sigmoid(ft) * c + sigmoid(it) * tanh(bit)
            return sigmoid(ot) * tanh(c), c

        return lstm

    return [cell(network.dotted(*at)) for at in network.cells()]


def tf_canonical(network: Network, a: Arrays) -> list[Step]:
    """TensorFlow 1: CudnnCompatibleLSTMCell (i, ci, f, o; no forget bias) and CudnnCompatibleGRUCell."""

    def cell(prefix: str) -> Step:
        def lstm(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
            i, ci, f, o = np.split(np.hstack([x, h]) @ a[prefix + "kernel"] + a[prefix + "bias"], 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * tanh(ci)
            return sigmoid(o) * tanh(c), c

        def side(name: str, value: Array) -> Array:
            front = f"{prefix}candidate/{name}_projection"
            return np.asarray(value @ a[f"{front}/kernel"] + a[f"{front}/bias"])

        def gru(x: Array, h: Array) -> tuple[Array]:
            gates = np.hstack([x, h]) @ a[prefix + "gates/kernel"] + a[prefix + "gates/bias"]
            r, u = np.split(sigmoid(gates), 2, axis=1)
            candidate = tanh(side("input", x) + r * side("hidden", h))
            return ((1 - u) * candidate + u * h,)

        return lstm if network.kind == "lstm" else gru

    return [cell(network.slashed(*at)) for at in network.cells()]


def tf_basic(network: Network, a: Arrays) -> list[Step]:
    """TensorFlow 1's BasicLSTMCell: i, j, f, o, and sigmoid(f + forget_bias) with 1 unless said."""

    def cell(prefix: str) -> Step:
        def lstm(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
            i, j, f, o = np.split(np.hstack([x, h]) @ a[prefix + "kernel"] + a[prefix + "bias"], 4, axis=1)
            c = c * sigmoid(f + 1.0) + sigmoid(i) * tanh(j)
            return tanh(c) * sigmoid(o), c

        return lstm

    return [cell(network.slashed(*at)) for at in network.cells()]


def coreml(network: Network, a: Arrays) -> list[Step]:
    """Core ML's MIL operators lstm, gru and rnn: i f o z; r o z, where o is the candidate; `_back` runs backward."""

    def cell(layer: int, direction: int) -> Step:
        front = f"layer{layer}." if network.layers > 1 else ""

        def own(name: str, otherwise: int = 0) -> Array:
            return a.get(f"{front}{name}{'_back' * direction}", np.zeros(otherwise))

        wih, whh = own("weight_ih"), own("weight_hh")
        bias, peephole = own("bias", len(wih)), np.split(own("peephole", 3 * HIDDEN), 3)

        def rnn(x: Array, h: Array) -> tuple[Array]:
            return (ACTIVATIONS[network.activation](x @ wih.T + h @ whh.T + bias),)

        def lstm(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
            i, f, o, z = np.split(x @ wih.T + h @ whh.T + bias, 4, axis=1)
            i, f = sigmoid(i + peephole[0] * c), sigmoid(f + peephole[1] * c)
            c = f * c + i * tanh(z)
            return sigmoid(o + peephole[2] * c) * tanh(c), c

        def gru(x: Array, h: Array) -> tuple[Array]:
            (xr, xo, xz), (hr, ho, hz) = np.split(x @ wih.T + bias, 3, axis=1), np.split(h @ whh.T, 3, axis=1)
            r, z = sigmoid(xr + hr), sigmoid(xz + hz)
            return ((1 - z) * tanh(xo + r * ho) + z * h,)

        return {"rnn": rnn, "lstm": lstm, "gru": gru}[network.kind]

    return [cell(*at) for at in network.cells()]


def coreml_proto(network: Network, a: Arrays) -> list[Step]:
    """Core ML's older protocol buffer, LSTMWeightParams: a field for each gate; the candidate is `blockInput`."""

    def cell(prefix: str) -> Step:
        def gate(name: str, x: Array, h: Array) -> Array:
            found = x @ a[f"{prefix}{name}WeightMatrix"].T + h @ a[f"{prefix}{name}RecursionMatrix"].T
            return np.asarray(found + a.get(f"{prefix}{name}BiasVector", 0))

        def peep(name: str, c: Array) -> Array:
            return np.asarray(a.get(f"{prefix}{name}PeepholeVector", 0) * c)

        def lstm(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
            i = sigmoid(gate("inputGate", x, h) + peep("inputGate", c))
            f = sigmoid(gate("forgetGate", x, h) + peep("forgetGate", c))
            c = f * c + i * tanh(gate("blockInput", x, h))
            return sigmoid(gate("outputGate", x, h) + peep("outputGate", c)) * tanh(c), c

        return lstm

    return [cell(network.dotted(*at)) for at in network.cells()]
