"""Makes recurrent models with MXNet 1.9.1's Gluon, saves their weights in each of its ways, and runs them.

    python make_mxnet_models.py FOLDER

In FOLDER, MODEL.save.params is of `Block.save_parameters`, MODEL.collect.params of `collect_params().save`, and
MODEL.npz has the input `x` (steps, batch, features) and the output `y` from states of zeros.
tests/oracles/test_mxnet_models.py reads all of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mxnet as mx
import numpy as np

np.bool = bool  # MXNet 1.9.1 asks for it
from mxnet.gluon import Block, nn, rnn  # noqa: E402

STEPS, BATCH, IN, HIDDEN = 5, 2, 3, 4


class ScaledCell(rnn.LSTMCell):
    """A cell with a weight of its own."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.gain = self.params.get("gain", shape=(HIDDEN,))

    def hybrid_forward(self, F, *args, gain=None, **more):
        y, state = super().hybrid_forward(F, *args, **more)
        return F.broadcast_mul(y, gain), state


class Scaled(rnn.LSTM):
    """A layer with a weight of its own."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.scale = self.params.get("scale", shape=(HIDDEN,))

    def hybrid_forward(self, F, inputs, states=None, scale=None, **more):
        found = super().hybrid_forward(F, inputs, states, **more)
        y, *states = found if isinstance(found, (list, tuple)) else [found]
        return [F.broadcast_mul(y, scale), *states] if states else F.broadcast_mul(y, scale)


class Tagger(Block):
    """One recurrent network under the name `enc`, and a head."""

    def __init__(self, enc):
        super().__init__()
        self.enc = enc
        self.head = nn.Dense(2, in_units=HIDDEN, flatten=False)

    def forward(self, x):
        if isinstance(self.enc, rnn.RecurrentCell):
            y, _ = self.enc.unroll(STEPS, x, layout="TNC", merge_outputs=True)
        else:
            y = self.enc(x)
        self.head(y[:, :, :HIDDEN])
        return y


MODELS = {
    "lstm": lambda: rnn.LSTM(HIDDEN, input_size=IN),
    "two": lambda: rnn.LSTM(HIDDEN, 2, input_size=IN),
    "gru": lambda: rnn.GRU(HIDDEN, bidirectional=True, input_size=IN),
    "cell": lambda: rnn.LSTMCell(HIDDEN, input_size=IN),
    "gru_cell": lambda: rnn.GRUCell(HIDDEN, input_size=IN),
    "scaled_cell": lambda: ScaledCell(HIDDEN, input_size=IN),
    "scaled": lambda: Scaled(HIDDEN, input_size=IN),
}


def main() -> None:
    """Write every model."""
    folder = Path(sys.argv[1])
    for name, make in MODELS.items():
        mx.random.seed(len(name))
        model = Tagger(make())
        model.initialize(mx.init.Normal(0.5))
        for parameter in model.collect_params().values():
            parameter.set_data(mx.nd.random.normal(0, 0.7, shape=parameter.shape))
        x = np.random.default_rng(0).standard_normal((STEPS, BATCH, IN)).astype("f4")
        y = model(mx.nd.array(x)).asnumpy()
        if name != "scaled":  # save_parameters of a layer fails on names that it does not know
            model.save_parameters(str(folder / f"{name}.save.params"))
        model.collect_params().save(str(folder / f"{name}.collect.params"))
        np.savez(folder / f"{name}.npz", x=x, y=y)


if __name__ == "__main__":
    main()
