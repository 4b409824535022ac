"""Runs cases of the layout `haiku` with Haiku's own LSTM, GRU and VanillaRNN.

The parameters that `init` of the transformed module makes say which names and shapes there must be. The LSTM adds 1 to
the forget gate on every call, whatever the bias; VanillaRNN is relu only, and has no second bias if the case has none.
"""

from __future__ import annotations

import sys

import haiku
import jax
import jax.numpy as jnp
import numpy as np
from _case_files import Cannot, Case, Outputs, serve
from _cells import Levels, allow, compose

LEVELS = Levels()
MODULE = "core"  # names the module inside the transform; the layout's names start below it


def build(case: Case):
    """The library's core; inside a transform only."""
    if case.kind == "lstm":
        return haiku.LSTM(case.hidden, name=MODULE)
    if case.kind == "gru":
        return haiku.GRU(case.hidden, name=MODULE)
    double = any(name.split("/")[-2:] == ["linear_1", "b"] for name in case.tensors)
    return haiku.VanillaRNN(case.hidden, double_bias=double, name=MODULE)


def state_of(states: list):
    """(h, c) or h alone, as the cores take it."""
    return haiku.LSTMState(hidden=states[0], cell=states[1]) if len(states) == 2 else states[0]


def check(case: Case) -> None:
    """Cannot, for what the cores lack."""
    allow(case, resets=("before",), options=("forget_bias",))
    if case.kind == "rnn" and case.activation != "relu":
        raise Cannot("VanillaRNN is relu only")
    if case.options.get("forget_bias", 1.0) != 1.0:
        raise Cannot("LSTM always adds 1 to the forget gate")


def run(case: Case) -> Outputs:
    """The library's outputs for a case."""
    check(case)
    unroll = haiku.without_apply_rng(haiku.transform(lambda x, state: haiku.dynamic_unroll(build(case), x, state)))

    def shapes(layer: int) -> dict:
        state = state_of([jnp.zeros((1, case.hidden))] * len(case.states()))
        made = jax.eval_shape(unroll.init, jax.random.key(0), jnp.zeros((1, 1, case.width(layer))), state)
        named = {f"{module}/{name}": leaf.shape for module, own in made.items() for name, leaf in own.items()}
        return {name[len(MODULE) + 1 :]: shape for name, shape in named.items()}

    cells = LEVELS.by_cell(case, shapes)

    def run_cell(cell: int, x: np.ndarray, states: list) -> tuple:
        params = {}
        for path, array in cells[cell].items():
            module, name = f"{MODULE}/{path}".rsplit("/", 1)
            params.setdefault(module, {})[name] = jnp.asarray(array)
        y, final = unroll.apply(params, jnp.asarray(x), state_of([jnp.asarray(state) for state in states]))
        return y, list(final) if isinstance(final, tuple) else [final]  # LSTMState is (hidden, cell)

    kind = {"lstm": "LSTM", "gru": "GRU", "rnn": "VanillaRNN"}[case.kind]
    return compose(case, f"haiku.{kind} {haiku.__version__}", run_cell)


if __name__ == "__main__":
    versions = {"dm-haiku": haiku.__version__, "jax": jax.__version__, "numpy": np.__version__}
    sys.exit(serve({"haiku": run}, versions))
