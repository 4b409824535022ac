"""Runs cases of the layout `mxnet.v2` with Gluon of MXNet 2.0.

The vector `rnn_param` takes the library's usual way: a zip of .npy members, as its own save_parameters writes one,
through load_parameters. Whether the vector has the right length is checked against what the layer itself infers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import mxnet as mx
import numpy as np
from _case_files import Case, Outputs, refuse, require, serve


def build(case: Case):
    """The library's layer for the case; its parameter has no length yet."""
    settings = {"input_size": case.input, "bidirectional": case.bidirectional}
    if case.projection:
        settings["projection_size"] = case.projection
    if case.kind == "rnn":
        settings["activation"] = case.activation
    layer = {"lstm": mx.gluon.rnn.LSTM, "gru": mx.gluon.rnn.GRU, "rnn": mx.gluon.rnn.RNN}[case.kind]
    return layer(case.hidden, case.layers, **settings)


def run(case: Case) -> Outputs:
    """The library's outputs for a case."""
    refuse(case, projection=True)
    x, states = mx.np.array(case.x), [mx.np.array(state) for state in case.states()]
    fresh = build(case)
    fresh.infer_shape(x)
    require(case, {name: parameter.shape for name, parameter in fresh.collect_params().items()})
    layer = build(case)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.params"
        with path.open("wb") as file:  # np.savez would add .npz to a name
            np.savez(file, **case.tensors)
        layer.load_parameters(str(path), device=mx.cpu())
    y, final = layer(x, states)
    title = f"mxnet {mx.__version__} gluon.rnn.{type(layer).__name__}"
    return Outputs(title, y.asnumpy(), *(state.asnumpy() for state in final))


if __name__ == "__main__":
    mx.npx.set_np()
    sys.exit(serve({"mxnet.v2": run}, {"mxnet2": mx.__version__}))
