"""One model in the framework of this interpreter: an embedding, an LSTM, a bidirectional GRU and a dense layer.

python into_models.py FRAMEWORK make FOLDER     saves it untrained (tf_keras)
python into_models.py FRAMEWORK run FOLDER      runs it with the weights of FOLDER/m.pt, and writes out.npy
python into_models.py symbol GAMMA FOLDER       saves a model of MXNet's symbols, and what it computes: GAMMA is 1 where
                                                the gamma of its norm is fixed, and the file has another
python into_models.py gluon GAMMA FOLDER        fills a block with such a norm from FOLDER/m.pt
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

if not hasattr(np, "bool"):  # MXNet asks for what NumPy 1.24 dropped
    np.bool = bool
BATCH = np.arange(28).reshape(4, 7) % 20


def tf_keras(folder: Path, does: str) -> None:
    import tf_keras as keras
    from tf_keras import layers

    if does == "make":
        given = keras.Input((7,))
        x = layers.LSTM(5, return_sequences=True, name="enc")(layers.Embedding(20, 6, name="emb")(given))
        x = layers.Bidirectional(layers.GRU(4), name="bi")(x)
        model = keras.Model(given, layers.Dense(3, name="fc")(x))
        model.compile("adam", "mean_squared_error")
        model.fit(np.ones((2, 7)), np.ones((2, 3)), verbose=0)
        model.save(folder / "model.h5")
        model.save_weights(folder / "plain.h5")
        return
    model = keras.models.load_model(folder / "out.model.h5")
    np.save(folder / "out.npy", model.predict(BATCH, verbose=0))
    model.load_weights(folder / "out.plain.h5")
    np.save(folder / "weights.npy", model.predict(BATCH, verbose=0))


def mxnet(folder: Path, does: str) -> None:
    import mxnet as mx
    from mxnet.gluon import nn, rnn

    import paramtool.mxnet

    old = mx.__version__.startswith("1.")

    class Model(mx.gluon.Block):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(20, 6)
            self.enc = rnn.LSTM(5, layout="NTC", input_size=6)
            self.bi = rnn.GRU(4, layout="NTC", bidirectional=True, input_size=5)
            self.fc = nn.Dense(3, in_units=8)

        def forward(self, x: object) -> object:
            _, states = self.bi(self.enc(self.emb(x)), self.bi.begin_state(4))
            first, second = states[0][0], states[0][1]
            both = mx.nd.concat(first, second, dim=1) if old else mx.np.concatenate([first, second], 1)
            return self.fc(both)

    model = Model()
    model.initialize()
    given = mx.nd.array(BATCH) if old else mx.np.array(BATCH)
    model(given)
    report = paramtool.mxnet.load_into(model, folder / "m.pt", strict=True)
    assert not report.unused
    np.save(folder / "out.npy", model(given).asnumpy())


def symbol(folder: Path, gamma: str) -> None:
    import mxnet as mx

    np.random.seed(0)
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=4, name="conv")
    x = mx.sym.BatchNorm(x, fix_gamma=gamma == "1", eps=1e-3, name="bn")
    x = mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=5, name="fc")
    shapes, _, states = x.infer_shape(data=(2, 3, 5, 5))
    held = [
        {name: np.random.rand(*shape) * 0.8 + 0.1 for name, shape in zip(names, sizes, strict=True) if name != "data"}
        for names, sizes in ((x.list_arguments(), shapes), (x.list_auxiliary_states(), states))
    ]
    weights, statistics = ({name: mx.nd.array(value) for name, value in one.items()} for one in held)
    mx.model.save_checkpoint(str(folder / "m"), 0, x, weights, statistics)
    data = np.random.rand(2, 3, 5, 5).astype("f4")
    bound = x.bind(mx.cpu(), {**weights, "data": mx.nd.array(data)}, aux_states=statistics)
    np.savez(folder / "run.npz", x=data, y=bound.forward(is_train=False)[0].asnumpy())


def gluon(folder: Path, gamma: str) -> None:
    import mxnet as mx
    from mxnet.gluon import nn

    import paramtool.mxnet
    from paramtool.errors import LayoutError

    block = nn.HybridSequential()
    block.add(nn.Dense(3, in_units=4), nn.BatchNorm(in_channels=3, scale=gamma != "1", epsilon=1e-5))
    block.initialize()
    try:
        paramtool.mxnet.load_into(block, folder / "m.pt", strict=True)
    except LayoutError as error:
        (folder / "refused.txt").write_text(error.message)
    np.save(folder / "out.npy", block(mx.nd.array(np.load(folder / "x.npy"))).asnumpy())


def flax(folder: Path, does: str) -> None:
    import jax
    from flax import linen as nn

    import paramtool.flax

    class Model(nn.Module):  # type: ignore[misc,unused-ignore]
        @nn.compact
        def __call__(self, x: object) -> object:
            x = nn.RNN(nn.OptimizedLSTMCell(5, name="enc"))(nn.Embed(20, 6, name="emb")(x))
            return nn.Dense(3, name="fc")(x[:, -1])

    model = Model()
    params = paramtool.flax.load(folder / "m.pt", like=model.init(jax.random.PRNGKey(0), BATCH))
    np.save(folder / "out.npy", np.asarray(model.apply(params, BATCH)))


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[3]), sys.argv[2])
