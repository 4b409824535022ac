"""Opens what paramtool wrote for MXNet 1.9.1, and runs it: `python open_mxnet1.py FOLDER`.

FOLDER has known.npz with the inputs, and NETWORK-WAY.params; found.npz gets what each computes, as NETWORK-WAY.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mxnet as mx
import numpy as np

np.bool = bool  # MXNet 1.9.1 asks for it
from mxnet.gluon import nn, rnn  # noqa: E402

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
    """Every network in every file."""
    found = {}
    with np.load(FOLDER / "known.npz") as known:
        x, tokens = mx.nd.array(known["x"]), mx.nd.array(known["tokens"])
    for kind, make in KINDS.items():
        for layout in ("mxnet", "mxnet.unfused"):
            layer = make(HIDDEN, 2, input_size=EMBEDDED, bidirectional=True)
            layer.load_parameters(str(FOLDER / f"{kind}-{layout}.params"))
            found[f"{kind}-{layout}"] = layer(x).asnumpy()
    words = Words()
    words.load_parameters(str(FOLDER / "words-gluon.params"))
    found["words-gluon"] = words(tokens).asnumpy()

    layer = rnn.LSTM(HIDDEN, 2, input_size=EMBEDDED, bidirectional=True, prefix="enc_")
    layer(mx.sym.var("data")).save(str(FOLDER / "lstm-checkpoint-symbol.json"))
    symbol, parameters, auxiliary = mx.model.load_checkpoint(str(FOLDER / "lstm-checkpoint"), 0)
    assert not auxiliary and all(name.startswith("enc_") for name in parameters)
    states = {name: mx.nd.zeros((4, 3, HIDDEN)) for name in symbol.list_arguments() if "state" in name}
    bound = symbol.bind(mx.cpu(), {**parameters, **states, "data": x})
    found["lstm-checkpoint"] = bound.forward()[0].asnumpy()

    types = mx.nd.load(str(FOLDER / "types.params"))
    for name, array in types.items():
        if name == "bfloat16":
            assert array.asnumpy().view("<u2").tolist() == [[0, 16256, 16384], [16448, 16512, 16544]], array
        elif name == "none":
            assert array.shape == (0, 3)
        elif len(name) < 100:
            assert array.asnumpy().dtype.name == name, (name, array.dtype)
            assert array.asnumpy().tolist() == np.arange(6).reshape(2, 3).astype(name).tolist()
    np.savez(FOLDER / "found.npz", **found)


if __name__ == "__main__":
    main()
