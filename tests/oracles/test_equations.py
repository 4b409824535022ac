"""Libraries that cannot be run here, by their own equations: weights that paramtool made for them must fit.

The cells are in `equations.py` and `flat_equations.py`.  The weights are float32 and the arithmetic is float64, so that
the only difference from the network that was converted is the rounding of sums of biases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from tests.laws.conversions import Held, forced, held, meets, plan_of
from tests.oracles import equations
from tests.oracles.equations import HIDDEN, INPUT, Array, Arrays, Equations, Network, unroll
from tests.oracles.flat_equations import flat, tensorrt
from tests.oracles.frameworks import reference

STEPS, SAMPLES = 5, 3
TIGHT, FAR = 1e-5, 0.05
"""The largest error of a right conversion, and the least of a wrong one."""


# --- what is compared -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class System:
    """A library, under one choice of options."""

    layout: str
    steps: Equations
    kinds: tuple[str, ...] = ("lstm", "gru", "rnn")
    options: Mapping[str, str] = field(default_factory=dict)
    inner_bias: bool = True
    """Whether its GRU has a bias inside r * ( )."""
    outer_bias: bool = True
    """Whether its GRU's candidate has a bias outside."""
    projection: bool = False
    peephole: bool = False

    def __str__(self) -> str:
        return " ".join([self.layout, *map("=".join, self.options.items())])


INPUT_BIAS = flat("flat_weights", "ifco", "rzh", ("Wb",), room=False)
RECURRENT_BIAS = flat("flat_weights", "ifco", "rzh", ("Rb",), room=False)
SYSTEMS = (
    System("flux", equations.flux, inner_bias=False),
    System("flux.old", equations.flux_old, inner_bias=False),
    System("flux.packed", equations.flux_packed, ("lstm", "rnn")),
    System("lasagne", equations.lasagne, ("lstm", "gru"), inner_bias=False, peephole=True),
    System("cntk", flat("W", "ifco", "rzh")),
    System("cntk.lstm", equations.cntk_native, ("lstm",)),
    System("tensorrt", tensorrt),
    System("miopen", flat("flat_weights", "ifoc", "zrh", room=False)),
    System("tf1.opaque", flat("opaque_kernel", "ifco", "rzh")),
    System("tf1.canonical", equations.tf_canonical, ("lstm", "gru")),
    System("tf1.basic", equations.tf_basic, ("lstm",)),
    System("coreml", equations.coreml, inner_bias=False, peephole=True),
    System("coreml.proto", equations.coreml_proto, ("lstm",), peephole=True),
    System("cudnn", flat("flat_weights", "ifco", "rzh"), projection=True),
    System("cudnn", flat("flat_weights", "ifco", "rzh", room=False), options={"tail": "no"}),
    System("cudnn", INPUT_BIAS, options={"bias_mode": "input"}, inner_bias=False),
    System("cudnn", RECURRENT_BIAS, options={"bias_mode": "recurrent"}, outer_bias=False),
)
every_system = pytest.mark.parametrize("system", SYSTEMS, ids=str)


def weights(network: Network, system: System | None = None, seed: int = 0) -> dict[str, Array]:
    """Random float32 weights by torch's names, large enough that every gate matters; biases without a place are 0."""
    random = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for layer, direction in network.cells():
        end = f"l{layer}" + "_reverse" * direction
        rows = network.gates * HIDDEN
        shapes = {"weight_ih": (rows, network.width(layer)), "weight_hh": (rows, network.state)}
        if network.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if network.projection:
            shapes["weight_hr"] = (network.projection, HIDDEN)
        if network.peephole:
            shapes["weight_ch"] = (3 * HIDDEN,)
        for name, shape in shapes.items():
            found[f"{name}_{end}"] = random.uniform(-1.5, 1.5, shape).astype(np.float32)
        if network.kind == "gru" and network.bias and system is not None:
            found[f"bias_hh_{end}"][2 * HIDDEN :] *= system.inner_bias
            found[f"bias_ih_{end}"][2 * HIDDEN :] *= system.outer_bias
    return found


def inputs(network: Network) -> tuple[Array, list[Array]]:
    """x, and h0 with, for an LSTM, c0; numbers of float32, in float64."""
    random = np.random.default_rng(7)

    def numbers(*shape: int) -> Array:
        return random.normal(size=shape).astype(np.float32).astype(np.float64)

    cells = network.layers * network.directions
    states = [numbers(cells, SAMPLES, network.state)]
    if network.kind == "lstm":
        states.append(numbers(cells, SAMPLES, HIDDEN))
    return numbers(STEPS, SAMPLES, INPUT), states


def expected(network: Network, named: Arrays) -> list[Array]:
    """What torch computes with weights of those names in float64: y, hn and, of an LSTM, cn."""
    import torch

    words: dict[str, Any] = {"bias": network.bias, "bidirectional": network.directions == 2}
    words |= {"nonlinearity": network.activation} if network.kind == "rnn" else {}
    words |= {"proj_size": network.projection} if network.projection else {}
    module = getattr(torch.nn, network.kind.upper())(INPUT, HIDDEN, network.layers, **words)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in named.items()})
    x, states = inputs(network)
    first = tuple(torch.from_numpy(state) for state in states)
    with torch.no_grad():
        y, last = module.double()(torch.from_numpy(x), first if network.kind == "lstm" else first[0])
    return [found.numpy() for found in (y, *(last if network.kind == "lstm" else (last,)))]


def converted(network: Network, named: Arrays, system: System, must_hold: bool = True) -> Arrays:
    """The system's own tensors, as paramtool makes them of torch's."""
    source = held({f"net.{name}": array for name, array in named.items()}, "torch", network.spec)
    return arrays_of(source, system, must_hold)


def arrays_of(source: Held, system: System, must_hold: bool = True) -> Arrays:
    """The system's own tensors, in float64."""
    plan = plan_of(source, system.layout, system.options)
    assert not must_hold or meets(source, plan)
    return {name: array.astype(np.float64) for name, array in forced(source, plan).arrays().items()}


def error(network: Network, system: System, arrays: Arrays, wanted: list[Array]) -> float:
    """The largest difference between what a system's equations give and what is wanted."""
    x, states = inputs(network)
    y, last = unroll(network, system.steps(network, arrays), x, states)
    return max(float(np.abs(a - b).max()) for a, b in zip([y, *last], wanted, strict=True))


def cases(system: System) -> Iterator[Network]:
    """Networks that a system has: both directions, two layers, with and without biases."""
    for kind in system.kinds:
        for layers, directions in ((1, 1), (1, 2), (2, 1), (2, 2)):
            for bias in (True, False):
                for activation in ("tanh", "relu") if kind == "rnn" else ("tanh",):
                    yield Network(kind, layers, directions, bias, activation=activation)
    if system.projection:
        yield from (Network("lstm", layers, 2, bias, projection=2) for layers in (1, 2) for bias in (True, False))


@pytest.mark.sample(3)
@every_system
def test_computes_what_torch_computes(system: System) -> None:
    """A torch module's weights, converted, give its outputs and last states by the library's own equations."""
    for network in cases(system):
        named = weights(network, system)
        arrays = converted(network, named, system)
        assert error(network, system, arrays, expected(network, named)) < TIGHT, network


@pytest.mark.sample(4)
@every_system
def test_every_other_order_of_gates_is_wrong(system: System) -> None:
    """With any two or more gates in each other's places the outputs are far off: the order above is the only one."""
    for kind in system.kinds:
        network = Network(kind)
        named = weights(network, system)
        wanted = expected(network, named)
        for order in list(permutations(range(network.gates)))[1:]:
            blocks = {name: np.split(array, network.gates) for name, array in named.items()}
            mixed = {name: np.concatenate([parts[k] for k in order]) for name, parts in blocks.items()}
            assert error(network, system, converted(network, mixed, system, False), wanted) > FAR, (kind, order)


def by_reference(network: Network, named: Arrays) -> list[Array]:
    """What the equations of `reference.py` give, for networks that torch has not."""
    x, states = inputs(network)
    words = reference.Settings(reset=network.reset, activation=network.activation)
    found = reference.run(network.kind, named, x, *states, settings=words)
    return list(found.values())


def reset_before(network: Network, named: Arrays) -> Held:
    """A GRU in TensorFlow 1's layout, put together by hand from torch's names: r and u, then the candidate."""
    found: dict[str, Array] = {}
    for layer, direction in network.cells():
        end = f"l{layer}" + "_reverse" * direction
        prefix = "net/" + network.slashed(layer, direction)
        joined = np.vstack([named[f"weight_ih_{end}"].T, named[f"weight_hh_{end}"].T])
        bias = named[f"bias_ih_{end}"] + named[f"bias_hh_{end}"]
        for part, rows in (("gates", slice(0, 2 * HIDDEN)), ("candidate", slice(2 * HIDDEN, None))):
            found |= {f"{prefix}{part}/kernel": joined[:, rows], f"{prefix}{part}/bias": bias[rows]}
    return held(found, "tf1.basic", network.spec)


@pytest.mark.parametrize("name", ["flux", "flux.old"])
@pytest.mark.parametrize("size", [(1, 1), (2, 2)], ids=str)
def test_gruv3_computes_what_a_gru_that_resets_before_computes(name: str, size: tuple[int, int]) -> None:
    """Flux's GRUv3 has the candidate's matrix apart; made of a TensorFlow 1 GRU, it gives what that one gives."""
    network = Network("gru", *size, reset="before")
    named = weights(network)
    system = System(name, equations.flux if name == "flux" else equations.flux_old)
    arrays = arrays_of(reset_before(network, named), system)
    assert error(network, system, arrays, by_reference(network, named)) < TIGHT
    assert error(network, system, arrays, by_reference(Network("gru", *size), named)) > FAR


@pytest.mark.parametrize("system", [system for system in SYSTEMS if system.peephole], ids=str)
@pytest.mark.parametrize("size", [(1, 1), (2, 2)], ids=str)
def test_peepholes(system: System, size: tuple[int, int]) -> None:
    """ONNX' peepholes, put together by hand as i o f, end at the right gates; left out, everything is far off."""
    network = Network("lstm", *size, peephole=True)
    named = weights(network)
    wanted = by_reference(network, named)
    arrays = arrays_of(onnx_lstm(network, named), system)
    assert error(network, system, arrays, wanted) < TIGHT
    blind = {n: array * (0 if "peephole" in n.lower() or "W_cell_to" in n else 1) for n, array in arrays.items()}
    assert error(network, system, blind, wanted) > FAR


def onnx_lstm(network: Network, named: Arrays) -> Held:
    """An LSTM in ONNX' layout, put together by hand: i o f c, both biases side by side, P = i o f."""

    def rows(array: Array, order: str, own: str) -> Array:
        parts = dict(zip(own, np.split(array, len(own)), strict=True))
        return np.concatenate([parts[gate] for gate in order])

    found: dict[str, Array] = {}
    for layer in range(network.layers):
        ends = [f"l{layer}" + "_reverse" * direction for direction in range(network.directions)]
        moved = {
            name: np.stack([rows(named[f"{name}_{end}"], "iofg", "ifgo") for end in ends])
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        front = f"net.layer{layer}." if network.layers > 1 else "net."
        found |= {front + "W": moved["weight_ih"], front + "R": moved["weight_hh"]}
        found[front + "B"] = np.concatenate([moved["bias_ih"], moved["bias_hh"]], axis=1)
        found[front + "P"] = np.stack([rows(named[f"weight_ch_{end}"], "iof", "ifo") for end in ends])
    return held(found, "onnx", network.spec)


# --- negative controls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", [system for system in SYSTEMS if "gru" in system.kinds], ids=str)
def test_a_dropped_inner_bias_is_far_off(system: System) -> None:
    """A GRU with biases inside and outside r * ( ): refused and far off where one has no place, right elsewhere."""
    network = Network("gru")
    named = weights(network)
    source = held({f"net.{name}": array for name, array in named.items()}, "torch", network.spec)
    fits = meets(source, plan_of(source, system.layout, system.options))
    assert fits == (system.inner_bias and system.outer_bias)
    off = error(network, system, converted(network, named, system, must_hold=False), expected(network, named))
    assert off < TIGHT if fits else off > FAR


def test_a_forget_bias_that_is_not_subtracted_is_far_off() -> None:
    """A cell that adds 1 to f, filled as if it added nothing."""
    network = Network("lstm")
    named = weights(network)
    arrays = converted(network, named, System("tf1.basic", equations.tf_basic, options={"forget_bias": "0"}))
    assert error(network, System("tf1.basic", equations.tf_basic), arrays, expected(network, named)) > FAR


def test_an_update_gate_that_is_not_complemented_is_far_off() -> None:
    """Lasagne's u is the complement of torch's z: with torch's own numbers the network is another one."""
    network, system = Network("gru"), next(system for system in SYSTEMS if system.layout == "lasagne")
    named = weights(network, system)
    arrays = converted(network, named, system)
    plain = {name: -array if "updategate" in name else array for name, array in arrays.items()}
    assert error(network, system, plain, expected(network, named)) > FAR


def test_a_transposed_matrix_is_far_off() -> None:
    """A square recurrent matrix the other way round has the right shape and is wrong."""
    network, system = Network("lstm"), next(system for system in SYSTEMS if system.layout == "cntk.lstm")
    named = weights(network)
    arrays = dict(converted(network, named, system))
    arrays["H"] = np.concatenate([part.T for part in np.split(arrays["H"], 4, axis=1)], axis=1)
    assert error(network, system, arrays, expected(network, named)) > FAR
