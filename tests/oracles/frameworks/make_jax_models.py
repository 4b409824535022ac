"""Makes recurrent models with Flax linen, Flax nnx, Haiku and Equinox, saves their weights, and runs them.

    python make_jax_models.py FOLDER

In FOLDER, LIBRARY.MODEL.npz has the weights under the path of each, and LIBRARY.MODEL.io.npz the input `x` (steps,
batch, features) and the output `y` from states of zeros.  Weights are random and large, so that what is left out shows.
tests/oracles/test_jax_models.py reads all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as linen
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict

STEPS, BATCH, IN, HIDDEN = 5, 2, 3, 4
Model = tuple[Mapping[str, Any], Callable[[Mapping[str, Any]], Any]]
"""Weights by path, and the output for weights of these paths."""


def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((STEPS, BATCH, IN)).astype("f4")


# --- Flax linen -------------------------------------------------------------------------------------------------------


class NormedLinen(linen.LSTMCell):
    """An LSTM cell with a normalised state."""

    @linen.compact
    def __call__(self, carry: Any, inputs: Any) -> Any:
        (c, h), y = super().__call__(carry, inputs)
        return (c, linen.LayerNorm(name="ln")(h)), y


class TaggerLinen(linen.Module):
    """One recurrent layer under the name `enc`, and a head."""

    cell: Any

    @linen.compact
    def __call__(self, inputs: Any) -> Any:
        y = linen.RNN(self.cell(HIDDEN, name="enc"), time_major=True)(inputs)
        linen.Dense(2, name="head")(y)
        return y


def of_linen() -> Iterator[tuple[str, Model]]:
    cells = {
        "lstm": linen.LSTMCell,
        "optimized": linen.OptimizedLSTMCell,
        "gru": linen.GRUCell,
        "simple": linen.SimpleCell,
        "normed": NormedLinen,
    }
    for name, cell in cells.items():
        model = TaggerLinen(cell)
        weights = flatten_dict(model.init(jax.random.key(0), x()), sep="/")

        def run(given: Mapping[str, Any], model: Any = model) -> Any:
            nested: dict[str, Any] = {}
            for path, value in given.items():
                *groups, last = path.split("/")
                at = nested
                for group in groups:
                    at = at.setdefault(group, {})
                at[last] = value
            return model.apply(nested, x())

        yield f"linen.{name}", (weights, run)


# --- Flax nnx ---------------------------------------------------------------------------------------------------------


class NormedNnx(nnx.GRUCell):
    """A GRU cell with a normalised output."""

    def __init__(self, *sizes: int, rngs: nnx.Rngs) -> None:
        super().__init__(*sizes, rngs=rngs)
        self.ln = nnx.LayerNorm(HIDDEN, rngs=rngs)

    def __call__(self, carry: Any, inputs: Any) -> Any:
        h, _ = super().__call__(carry, inputs)
        return self.ln(h), self.ln(h)


def of_nnx() -> Iterator[tuple[str, Model]]:
    cells = {
        "lstm": nnx.LSTMCell,
        "optimized": nnx.OptimizedLSTMCell,
        "gru": nnx.GRUCell,
        "simple": nnx.SimpleCell,
        "normed": NormedNnx,
    }
    for name, cell in cells.items():

        class Tagger(nnx.Module):
            def __init__(self, cell: Any = cell) -> None:
                self.enc = cell(IN, HIDDEN, rngs=nnx.Rngs(0))
                self.head = nnx.Linear(HIDDEN, 2, rngs=nnx.Rngs(1))

        model = Tagger()
        state = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
        weights = {".".join(map(str, path)): leaf[...] for path, leaf in state.items()}

        def run(given: Mapping[str, Any], model: Any = model, state: Any = state) -> Any:
            for path, leaf in state.items():
                leaf[...] = jnp.asarray(given[".".join(map(str, path))])
            nnx.update(model, nnx.from_flat_state(list(state.items())))
            carry, found = model.enc.initialize_carry((BATCH, IN), nnx.Rngs(0)), []
            for step in x():
                carry, y = model.enc(carry, step)
                found.append(y)
            return jnp.stack(found)

        yield f"nnx.{name}", (weights, run)


# --- Haiku ------------------------------------------------------------------------------------------------------------


class NormedHaiku(hk.LSTM):
    """An LSTM with a normalised output."""

    def __call__(self, inputs: Any, prev_state: Any) -> Any:
        y, state = super().__call__(inputs, prev_state)
        return hk.LayerNorm(-1, True, True, name="ln")(y), state


def of_haiku() -> Iterator[tuple[str, Model]]:
    cores = {"lstm": hk.LSTM, "gru": hk.GRU, "rnn": hk.VanillaRNN, "normed": NormedHaiku}
    for name, core in cores.items():

        def forward(core: Any = core) -> Any:
            made = core(HIDDEN, name="enc")
            y, _ = hk.dynamic_unroll(made, x(), made.initial_state(BATCH))
            hk.Linear(2, name="head")(y)
            return y

        model = hk.without_apply_rng(hk.transform(forward))
        weights = {
            f"{module}/{own}": value
            for module, inside in model.init(jax.random.key(0)).items()
            for own, value in inside.items()
        }

        def run(given: Mapping[str, Any], model: Any = model) -> Any:
            nested: dict[str, Any] = {}
            for path, value in given.items():
                module, _, own = path.rpartition("/")
                nested.setdefault(module, {})[own] = value
            return model.apply(nested)

        yield f"haiku.{name}", (weights, run)


# --- Equinox ----------------------------------------------------------------------------------------------------------


class NormedEquinox(eqx.nn.GRUCell):
    """A GRU cell with a weight of its own."""

    scale: Any

    def __init__(self, *sizes: int, key: Any) -> None:
        super().__init__(*sizes, key=key)
        self.scale = jnp.ones(HIDDEN)

    def __call__(self, *args: Any, **more: Any) -> Any:
        return super().__call__(*args, **more) * self.scale


class OneBias(eqx.Module):
    """A cell of one's own with Equinox's names, one bias and gates in another order."""

    weight_ih: Any
    weight_hh: Any
    bias: Any
    gain: Any

    def __init__(self, *sizes: int, key: Any) -> None:
        random = np.random.default_rng(1).standard_normal
        self.weight_ih, self.weight_hh = (
            jnp.asarray(random((4 * HIDDEN, IN))),
            jnp.asarray(random((4 * HIDDEN, HIDDEN))),
        )
        self.bias, self.gain = jnp.asarray(random(4 * HIDDEN)), jnp.ones(HIDDEN)

    def __call__(self, inputs: Any, state: Any) -> Any:
        h, c = state
        o, f, i, g = jnp.split(self.weight_ih @ inputs + self.weight_hh @ h + self.bias, 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c) * self.gain, c


def of_equinox() -> Iterator[tuple[str, Model]]:
    cells = {"lstm": eqx.nn.LSTMCell, "gru": eqx.nn.GRUCell, "normed": NormedEquinox, "own": OneBias}
    for name, make in cells.items():
        cell = make(IN, HIDDEN, key=jax.random.key(0))
        fields = [field for field, leaf in vars(cell).items() if eqx.is_array(leaf)]
        weights = {f"enc.{field}": getattr(cell, field) for field in fields} | {"head.weight": jnp.ones((2, HIDDEN))}

        def run(given: Mapping[str, Any], cell: Any = cell, fields: Any = fields) -> Any:
            made = eqx.tree_at(
                lambda m: [getattr(m, f) for f in fields], cell, [jnp.asarray(given[f"enc.{f}"]) for f in fields]
            )
            zeros = jnp.zeros((BATCH, HIDDEN))
            state, found = (zeros if isinstance(made, eqx.nn.GRUCell) else (zeros, zeros)), []
            for step in x():
                state = jax.vmap(made)(step, state)
                found.append(state[0] if isinstance(state, tuple) else state)
            return jnp.stack(found)

        yield f"equinox.{name}", (weights, run)


def main() -> None:
    """Write every model."""
    folder = Path(sys.argv[1])
    for library in (of_linen, of_nnx, of_haiku, of_equinox):
        for name, (weights, run) in library():
            random = np.random.default_rng(len(name))
            given = {path: random.standard_normal(np.shape(value)).astype("f4") for path, value in weights.items()}
            np.savez(folder / f"{name}.npz", **given)
            np.savez(folder / f"{name}.io.npz", x=x(), y=np.asarray(run(given)))


if __name__ == "__main__":
    main()
