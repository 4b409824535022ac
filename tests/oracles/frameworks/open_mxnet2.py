"""Opens what paramtool wrote for MXNet 2.0, and runs it: `python open_mxnet2.py FOLDER`.

FOLDER has known.npz with the inputs, and NETWORK-v2.npz; found.npz gets what each computes, as NETWORK-v2.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet.gluon import nn, rnn

FOLDER = Path(sys.argv[1])
HIDDEN, EMBEDDED, TOKENS = 5, 6, 11
KINDS = {"lstm": rnn.LSTM, "gru": rnn.GRU, "rnn": lambda *args, **more: rnn.RNN(*args, activation="tanh", **more)}


class Words(mx.gluon.Block):
    """A language model; the names of its blocks are those of torch's."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, EMBEDDED)
        self.encoder = rnn.LSTM(HIDDEN, 2, input_size=EMBEDDED)
        self.decoder = nn.Dense(TOKENS, in_units=HIDDEN, flatten=False)

    def forward(self, x):
        return self.decoder(self.encoder(self.embedding(x)))


def main() -> None:
    """Every network."""
    mx.npx.set_np()
    found = {}
    with np.load(FOLDER / "known.npz") as known:
        x, tokens = mx.np.array(known["x"]), mx.np.array(known["tokens"])
    for kind, make in KINDS.items():
        layer = make(HIDDEN, 2, input_size=EMBEDDED, bidirectional=True)
        layer.load_parameters(str(FOLDER / f"{kind}-v2.npz"))
        found[f"{kind}-v2"] = layer(x).asnumpy()
    words = Words()
    words.load_parameters(str(FOLDER / "words-v2.params"))
    found["words-v2"] = words(tokens).asnumpy()
    np.savez(FOLDER / "found.npz", **found)


if __name__ == "__main__":
    main()
