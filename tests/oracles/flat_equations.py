"""Libraries that keep a whole network in one or two vectors: cuDNN, who copied its order, and TensorRT.

As in `equations.py`, everything here is in the libraries' own words; see there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.oracles.equations import ACTIVATIONS, HIDDEN, Array, Arrays, Equations, Network, Step, sigmoid, tanh


@dataclass
class Tape:
    """A flat vector, read from its beginning."""

    values: Array
    at: int = 0

    def take(self, *shape: int) -> Array:
        """The next block, row by row."""
        size = int(np.prod(shape))
        found = self.values[self.at : self.at + size]
        assert len(found) == size, "the vector ends too early"
        self.at += size
        return found.reshape(shape)


Parts = dict[tuple[str, str], Array]
"""(`W`, `R`, `Wb`, `Rb`, or `P`; the gate) -> what stands there, for one cell."""


def gated(tape: Tape, names: str, kind: str, *shape: int) -> Parts:
    """The next blocks of a vector, one a gate."""
    return {(kind, gate): tape.take(*shape) for gate in names}


def cudnn_order(network: Network, tape: Tape, names: str, biases: tuple[str, ...]) -> list[Parts]:
    """cuDNN's pseudo-layers: matrices in the order of linLayerID (the projection is 8), then biases likewise."""
    cells: list[Parts] = []
    for layer, _ in network.cells():
        parts = gated(tape, names, "W", HIDDEN, network.width(layer))
        parts |= gated(tape, names, "R", HIDDEN, network.state)
        if network.projection:
            parts |= {("P", ""): tape.take(network.projection, HIDDEN)}
        cells.append(parts)
    for parts in cells:
        for kind in biases:
            found = gated(tape, names, kind, HIDDEN)
            parts |= found if network.bias else {}
            assert network.bias or not any(array.any() for array in found.values())
    assert tape.at == len(tape.values), "the vector is too long"
    return cells


def nvidia(network: Network, parts: Parts, names: str) -> Step:
    """A cell of cuDNN, MIOpen or TensorRT, by gate; `names` are the library's, in the order i f c o, or r z h.

    LSTM: c = f*c + i*c', h = o*tanh(c).  GRU: h' = tanh(W x + Wb + r*(R h + Rb)), h = (1 - z)*h' + z*h.
    """

    def side(matrix: str, bias: str, gate: str, value: Array) -> Array:
        return np.asarray(value @ parts[matrix, gate].T + parts.get((bias, gate), 0))

    def both(gate: str, x: Array, h: Array) -> Array:
        return side("W", "Wb", gate, x) + side("R", "Rb", gate, h)

    def rnn(x: Array, h: Array) -> tuple[Array]:
        return (ACTIVATIONS[network.activation](both(names, x, h)),)

    def lstm(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        i, f, new, o = (both(gate, x, h) for gate in names)
        c = sigmoid(f) * c + sigmoid(i) * tanh(new)
        h = sigmoid(o) * tanh(c)
        return (h @ parts["P", ""].T if network.projection else h), c

    def gru(x: Array, h: Array) -> tuple[Array]:
        reset, update, new = names
        r, z = sigmoid(both(reset, x, h)), sigmoid(both(update, x, h))
        candidate = tanh(side("W", "Wb", new, x) + r * side("R", "Rb", new, h))
        return ((1 - z) * candidate + z * h,)

    return {"rnn": rnn, "lstm": lstm, "gru": gru}[network.kind]


def flat(name: str, lstm: str, gru: str, biases: tuple[str, ...] = ("Wb", "Rb"), room: bool = True) -> Equations:
    """A library with one vector in cuDNN's order; `lstm` and `gru` are its gates in their order.

    i, f, c, o are the input, forget, new memory and output gates, r, z, h reset, update and new memory.  `room` says
    whether a network without biases has room for them.
    """

    def system(network: Network, a: Arrays) -> list[Step]:
        assert list(a) == [name]
        own = {"lstm": lstm, "gru": gru, "rnn": "y"}[network.kind]
        there = biases if network.bias or room else ()
        words = {"lstm": "ifco", "gru": "rzh", "rnn": "y"}[network.kind]
        return [nvidia(network, parts, words) for parts in cudnn_order(network, Tape(a[name]), own, there)]

    return system


def tensorrt(network: Network, a: Arrays) -> list[Step]:
    """TensorRT: NvInfer.h at 7.1.3, IRNNLayer::setWeights: G(kLSTM, l) = W f i c o, R f i c o; G(kGRU, l) = z r h."""
    own = {"lstm": "fico", "gru": "zrh", "rnn": "i"}[network.kind]
    words = {"lstm": "ifco", "gru": "rzh", "rnn": "i"}[network.kind]
    weights, biases, steps = Tape(a["weights"]), Tape(a["biases"]), []
    for layer, _ in network.cells():
        parts = gated(weights, own, "W", HIDDEN, network.width(layer)) | gated(weights, own, "R", HIDDEN, HIDDEN)
        parts |= gated(biases, own, "Wb", HIDDEN) | gated(biases, own, "Rb", HIDDEN)
        steps.append(nvidia(network, parts, words))
    assert (weights.at, biases.at) == (len(a["weights"]), len(a["biases"]))
    return steps
