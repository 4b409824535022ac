"""Runs cases of the layout `equinox` with Equinox' own LSTMCell and GRUCell.

The arrays of a cell that the library made say which names and shapes there must be; `tree_at` replaces them.
"""

from __future__ import annotations

import sys

import equinox
import jax
import jax.numpy as jnp
import numpy as np
from _case_files import Cannot, Case, Outputs, serve
from _cells import Levels, allow, compose

LEVELS = Levels(separators=".")


def run(case: Case) -> Outputs:
    """The library's outputs for a case."""
    if case.kind == "rnn":
        raise Cannot("Equinox has no cell of this kind")
    allow(case)
    name = {"lstm": "LSTMCell", "gru": "GRUCell"}[case.kind]

    def build(layer: int):
        made = getattr(equinox.nn, name)
        return made(case.width(layer), case.hidden, use_bias=case.bias, key=jax.random.key(0))

    def shapes(layer: int) -> dict:
        return {field: leaf.shape for field, leaf in vars(build(layer)).items() if equinox.is_array(leaf)}

    cells = LEVELS.by_cell(case, shapes)

    def run_cell(cell: int, x: np.ndarray, states: list) -> tuple:
        fields = list(cells[cell])
        arrays = [jnp.asarray(cells[cell][field]) for field in fields]
        module = equinox.tree_at(lambda m: [getattr(m, f) for f in fields], build(cell // case.directions), arrays)

        def step(state, value):
            state = jax.vmap(module)(value, state)
            return state, state[0] if isinstance(state, tuple) else state

        first = [jnp.asarray(state) for state in states]
        final, y = jax.lax.scan(step, tuple(first) if len(first) == 2 else first[0], jnp.asarray(x))
        return y, list(final) if isinstance(final, tuple) else [final]

    return compose(case, f"equinox.nn.{name} {equinox.__version__}", run_cell)


if __name__ == "__main__":
    versions = {"equinox": equinox.__version__, "jax": jax.__version__, "numpy": np.__version__}
    sys.exit(serve({"equinox": run}, versions))
