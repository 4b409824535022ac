"""Trains a network of Flax with optax, and goes on from what paramtool wrote.

    python train_optax.py FOLDER make      CASE.msgpack after 20 steps, CASE.names.json: whose each array is
    python train_optax.py FOLDER resume    20 more from CASE.moved.msgpack, against 40 without a stop: result.json

tests/oracles/test_optax_training.py runs both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import serialization
from flax.training import train_state
from flax.traverse_util import flatten_dict

STEPS = 20


class Net(nn.Module):
    """An LSTM and dense layers, two of one shape."""

    @nn.compact
    def __call__(self, x):
        """The output of the last step."""
        x = nn.RNN(nn.OptimizedLSTMCell(4))(x)[:, -1]
        x = nn.Dense(4)(x)
        x = nn.Dense(4)(x)
        return nn.Dense(1)(x)


def kinds(params):
    """Kernels and the others."""
    return jax.tree_util.tree_map(lambda one: "kernel" if one.ndim > 1 else "other", params)


def is_kernel(params):
    """Whether each parameter is a kernel."""
    return jax.tree_util.tree_map(lambda one: one.ndim > 1, params)


def is_other(params):
    """Whether each parameter is none."""
    return jax.tree_util.tree_map(lambda one: one.ndim < 2, params)


SCHEDULE = optax.cosine_decay_schedule(1e-2, 100)
CASES = {
    "adam": lambda: optax.adam(1e-2),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(SCHEDULE)),
    "amsgrad": lambda: optax.amsgrad(1e-2),
    "inject": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=1e-2),
    "momentum": lambda: optax.sgd(1e-2, momentum=0.9),
    "rmsprop": lambda: optax.rmsprop(1e-3, momentum=0.9, centered=True),
    "accumulated": lambda: optax.MultiSteps(optax.adam(1e-2), 2).gradient_transformation(),
    "masked": lambda: optax.chain(
        optax.masked(optax.adam(1e-2), is_kernel), optax.masked(optax.set_to_zero(), is_other)
    ),
    "multi": lambda: optax.multi_transform({"kernel": optax.adam(1e-2), "other": optax.sgd(1e-2, 0.9)}, kinds),
}


def fresh(case):
    """A network before its first step."""
    net = Net()
    params = net.init(jax.random.PRNGKey(0), jnp.zeros((2, 5, 3)))["params"]
    return train_state.TrainState.create(apply_fn=net.apply, params=params, tx=CASES[case]())


@jax.jit
def one_step(state, x):
    """One step on one batch."""
    loss = lambda p: jnp.square(state.apply_fn({"params": p}, x) - x.sum((1, 2))[:, None]).mean()  # noqa: E731
    gradients = jax.grad(loss)
    return state.apply_gradients(grads=gradients(state.params))


def train(state, first):
    """Twenty steps, each with its own data."""
    for k in range(first, first + STEPS):
        state = one_step(state, jnp.asarray(np.random.RandomState(k).randn(4, 5, 3), "float32"))
    return state


def whose(state):
    """{path of an array of the state: path of its parameter}, as optax itself maps its state to the parameters."""
    names = jax.tree_util.tree_map_with_path(lambda path, _: "/".join(one.key for one in path), state.params)
    masked = lambda one: isinstance(one, optax.MaskedNode)  # noqa: E731
    mapped = optax.tree_map_params(
        state.tx, lambda kept, name: kept if masked(kept) else name, state.opt_state, names,
        transform_non_params=lambda _: None, is_leaf=masked,
    )  # fmt: skip
    flat = flatten_dict(serialization.to_state_dict(mapped), sep="/")
    return {f"opt_state/{path}": name for path, name in flat.items() if isinstance(name, str)}


def make(folder):
    """Every case after 20 steps."""
    for case in CASES:
        state = train(fresh(case), 0)
        (folder / f"{case}.msgpack").write_bytes(serialization.to_bytes(state))
        (folder / f"{case}.names.json").write_text(json.dumps(whose(state)))


def far(one, other):
    """The largest difference of two trees."""
    pairs = zip(jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a, "float64") - np.asarray(b, "float64")).max()) for a, b in pairs)


def exchanged(tree):
    """A state with the arrays of two layers of one shape exchanged."""
    if isinstance(tree, dict):
        if {"Dense_0", "Dense_1"} <= tree.keys():
            return {**tree, "Dense_0": tree["Dense_1"], "Dense_1": tree["Dense_0"]}
        return {key: exchanged(child) for key, child in tree.items()}
    return tree


def resume(folder):
    """What goes on from the moved files, and from controls."""
    found = {}
    for case in CASES:
        start = fresh(case)
        whole = train(train(start, 0), STEPS)
        moved = serialization.from_bytes(start, (folder / f"{case}.moved.msgpack").read_bytes())
        without = moved.replace(opt_state=start.opt_state)
        tree = serialization.to_state_dict(moved)
        wrong = serialization.from_state_dict(start, {**tree, "opt_state": exchanged(tree["opt_state"])})
        found[case] = {
            name: far(train(one, STEPS).params, whole.params)
            for name, one in (("moved", moved), ("without", without), ("exchanged", wrong))
        }
        found[case]["state"] = far(train(moved, STEPS).opt_state, whole.opt_state)
    (folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    {"make": make, "resume": resume}[sys.argv[2]](Path(sys.argv[1]))
