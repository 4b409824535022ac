"""Trains a network of MXNet 1.9.1's Gluon, and goes on with what paramtool read of the trainer's states.

    python train_gluon.py FOLDER make      CASE/m.params and CASE/t.states after 20 steps, CASE.kept.npz: whose each is
    python train_gluon.py FOLDER resume    20 more with the arrays of CASE.found.npz, against 40: result.json

tests/oracles/test_gluon_training.py runs both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mxnet as mx
import numpy as np

np.bool = bool  # MXNet 1.9.1 asks for it
from mxnet import autograd, gluon  # noqa: E402

STEPS = 20
CASES = {
    "adam": ("adam", {"learning_rate": 0.01}),
    "momentum": ("sgd", {"learning_rate": 0.001, "momentum": 0.9}),
    "rmsprop": ("rmsprop", {"learning_rate": 0.001, "centered": True}),
}
MIXED = {
    "mixed-adam": ("adam", {"learning_rate": 0.01, "multi_precision": True}),
    "mixed-sgd": ("sgd", {"learning_rate": 0.001, "momentum": 0.9, "multi_precision": True}),
    "mixed-adagrad": ("adagrad", {"learning_rate": 0.01, "multi_precision": True}),
}
"""In float16, of which MXNet multiplies no matrices without a GPU: the loss is of the parameters alone."""


class Net(gluon.nn.HybridSequential):
    """An LSTM, a normalisation and dense layers, two of one shape; the tenth comes before the second by its name."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.add(gluon.rnn.LSTM(4, layout="NTC", input_size=3, prefix="lstm_"))
            self.add(gluon.nn.Dense(4, in_units=20, prefix="dense9_"))
            self.add(gluon.nn.BatchNorm(in_channels=4, prefix="norm_"))
            self.add(gluon.nn.Dense(4, in_units=4, prefix="dense10_"))
            self.add(gluon.nn.Dense(4, in_units=4, prefix="dense2_"))


def fresh(case):
    """A network and a trainer before the first step."""
    mx.random.seed(0)
    np.random.seed(0)
    net = Net()
    net.initialize(mx.init.Xavier())
    if case in MIXED:
        net.cast("float16")
    return net, gluon.Trainer(net.collect_params(), *{**CASES, **MIXED}[case])


def train(case, net, trainer, first):
    """Twenty steps, each with its own data."""
    for k in range(first, first + STEPS):
        x = mx.nd.array(np.random.RandomState(k).randn(2, 5, 3))
        with autograd.record():
            if case in MIXED:
                every = [one for one in net.collect_params().values() if one.grad_req != "null"]
                loss = sum((one.data().astype("float32") ** 2).sum() for one in every)
            else:
                loss = ((net(x) - x.sum(axis=(1, 2)).reshape((-1, 1))) ** 2).sum()
        loss.backward()
        trainer.step(2)


def flat(state):
    """The arrays of a state, one inside the other, in order."""
    if state is None:
        return []
    return [one for part in state for one in flat(part)] if isinstance(state, (tuple, list)) else [state]


def make(folder):
    """Every case after 20 steps, and after 40."""
    for case in {**CASES, **MIXED}:
        place = folder / case
        place.mkdir()
        net, trainer = fresh(case)
        train(case, net, trainer, 0)
        net.collect_params().save(str(place / "m.params"))
        trainer.save_states(str(place / "t.states"))
        names = {index: one.name for index, one in enumerate(trainer._params)}
        states = trainer._updaters[0].states
        kept = {f"{names[k]} {n}": one.asnumpy() for k, state in states.items() for n, one in enumerate(flat(state))}
        np.savez(folder / f"{case}.kept.npz", **kept)


def far(one, other):
    """The largest difference of two networks."""
    pairs = zip(one.collect_params().values(), other.collect_params().values(), strict=True)
    return max(float(abs(a.data().asnumpy().astype("f8") - b.data().asnumpy().astype("f8")).max()) for a, b in pairs)


def goes_on(case, place, change):
    """20 more steps with the state of the file after a change of {name and number: array}."""
    net, trainer = fresh(case)
    net.collect_params().load(str(place / "m.params"))
    trainer.load_states(str(place / "t.states"))
    names = {index: one.name for index, one in enumerate(trainer._params)}
    found = change(dict(np.load(place.parent / f"{case}.found.npz")))
    for index, state in trainer._updaters[0].states.items():
        for n, one in enumerate(flat(state)):
            one[:] = 0
            one[:] = mx.nd.array(found[f"{names[index]} {n}"], dtype=one.dtype)
    train(case, net, trainer, STEPS)
    return net


def exchanged(found):
    """The arrays of two layers of one shape exchanged."""
    other = {"dense2": "dense10", "dense10": "dense2"}
    words = {name: name.split("_")[1] for name in found}
    return {
        name: found[name.replace(word, other[word])] if word in other else found[name] for name, word in words.items()
    }


def resume(folder):
    """What goes on from what was read, and from controls."""
    result = {}
    for case in CASES:
        whole, trainer = fresh(case)
        train(case, whole, trainer, 0)
        train(case, whole, trainer, STEPS)
        place = folder / case
        zeros = lambda found: {name: one * 0 for name, one in found.items()}  # noqa: E731
        result[case] = {
            "found": far(goes_on(case, place, dict), whole),
            "without": far(goes_on(case, place, zeros), whole),
            "exchanged": far(goes_on(case, place, exchanged), whole),
        }
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    {"make": make, "resume": resume}[sys.argv[2]](Path(sys.argv[1]))
