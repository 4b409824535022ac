"""Runs cases of the layouts `flax.linen`, `flax.nnx` and `flax.nnx.optimized` with Flax's own cells.

The cell's own parameters (of linen's `init`, of nnx' `state`) say which names and shapes there must be.
Linen's LSTMCell and OptimizedLSTMCell have the same parameters: both are run, and must agree.
"""

from __future__ import annotations

import sys

import flax
import jax
import jax.numpy as jnp
import numpy as np
from _case_files import Cannot, Case, Outputs, serve
from _cells import Levels, agreeing, allow, compose, hard_sigmoid, same_slope
from flax import linen, nnx
from flax.traverse_util import flatten_dict, unflatten_dict

LEVELS = Levels(separators="/.")
LINEN = {"lstm": ("LSTMCell", "OptimizedLSTMCell"), "gru": ("GRUCell",), "rnn": ("SimpleCell",)}
NNX = {"lstm": "LSTMCell", "gru": "GRUCell", "rnn": "SimpleCell"}


def settings(case: Case) -> dict:
    """The activation functions, as the cells' constructors take them."""
    allow(case, relu=True, options=("gate_activation",))
    chosen = {"activation_fn": {"tanh": jnp.tanh, "relu": jax.nn.relu}[case.activation or "tanh"]}
    gates = hard_sigmoid(case)
    if gates is not None:
        if case.kind == "rnn" or not same_slope(gates, 1 / 6):
            raise Cannot(f"gates clip({gates[0]}x + {gates[1]}): the hard_sigmoid of jax is x/6 + 0.5")
        chosen["gate_fn"] = jax.nn.hard_sigmoid
    return chosen


def carry_of(states: list):
    """(h, c) as the carry (c, h), or h alone; and the way back, for it is its own inverse."""
    return states[0] if len(states) == 1 else (states[1], states[0])


def scan(step, x: np.ndarray, states: list) -> tuple:
    """Run `step(carry, x_t)` over time; (y, [hn, cn])."""
    carry, y = jax.lax.scan(step, carry_of([jnp.asarray(state) for state in states]), jnp.asarray(x))
    return y, carry_of(carry) if isinstance(carry, tuple) else [carry]


def run_linen(case: Case) -> Outputs:
    """Outputs of linen's cells."""
    chosen = settings(case)

    def run_one(name: str) -> Outputs:
        module = getattr(linen, name)(case.hidden, **chosen)

        def shapes(layer: int) -> dict:
            state = jnp.zeros((1, case.hidden))
            carry = carry_of([state] * len(case.states()))
            made = jax.eval_shape(module.init, jax.random.key(0), carry, jnp.zeros((1, case.width(layer))))
            return {path: leaf.shape for path, leaf in flatten_dict(made["params"], sep="/").items()}

        params = [unflatten_dict(tensors, sep="/") for tensors in LEVELS.by_cell(case, shapes)]
        return compose(
            case,
            f"flax.linen.{name} {flax.__version__}",
            lambda cell, x, states: scan(lambda c, v: module.apply({"params": params[cell]}, c, v), x, states),
        )

    return agreeing([run_one(name) for name in LINEN[case.kind]])


def run_nnx(case: Case) -> Outputs:
    """Outputs of nnx' cells."""
    chosen = settings(case)
    name = NNX[case.kind]
    if case.layout == "flax.nnx.optimized":
        if case.kind != "lstm":
            raise Cannot("the only optimized cell of nnx is OptimizedLSTMCell")
        name = "OptimizedLSTMCell"

    def build(layer: int):
        return getattr(nnx, name)(case.width(layer), case.hidden, rngs=nnx.Rngs(0), **chosen)

    def shapes(layer: int) -> dict:
        return {"/".join(path): leaf.get_value().shape for path, leaf in nnx.to_flat_state(nnx.state(build(layer)))}

    parameters = LEVELS.by_cell(case, shapes)

    def run_cell(cell: int, x: np.ndarray, states: list) -> tuple:
        module = build(cell // case.directions)
        loaded = [(tuple(path.split("/")), nnx.Param(jnp.asarray(v))) for path, v in parameters[cell].items()]
        nnx.update(module, nnx.from_flat_state(loaded))
        graph, state = nnx.split(module)
        return scan(lambda carry, value: nnx.merge(graph, state)(carry, value), x, states)

    return compose(case, f"flax.nnx.{name} {flax.__version__}", run_cell)


if __name__ == "__main__":
    runners = {"flax.linen": run_linen, "flax.nnx": run_nnx, "flax.nnx.optimized": run_nnx}
    sys.exit(serve(runners, {"flax": flax.__version__, "jax": jax.__version__, "numpy": np.__version__}))
