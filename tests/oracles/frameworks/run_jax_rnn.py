"""Runs LSTM cases of the layouts `cudnn` and `miopen` with JAX' own reader of such vectors, on a CPU.

`jax.experimental.rnn` hands a flat vector to cuDNN on a GPU. Beside that it has `unpack_lstm_weights`, which says where
in the vector each matrix and bias stands, `lstm_ref`, which runs them, and `swap_lstm_gates`, which turns cuDNN's order
of gates into MIOpen's and back. So this is JAX' knowledge of the vector, not an answer of cuDNN or of MIOpen.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
from _case_files import Cannot, Case, Outputs, refuse, require, serve
from jax.experimental import rnn


def run(case: Case) -> Outputs:
    """The outputs of `lstm_ref`."""
    if case.kind != "lstm":
        raise Cannot("jax.experimental.rnn has LSTMs only")
    refuse(case)
    if not case.bias and case.layout == "miopen":
        raise Cannot("its vector always has room for biases")
    sizes = (case.input, case.hidden, case.layers, case.bidirectional)
    require(case, {"flat_weights": (rnn.get_num_params_in_lstm(*sizes),)})
    vector = jnp.asarray(case.tensors["flat_weights"])
    if case.layout == "miopen":
        vector = rnn.swap_lstm_gates(vector, *sizes)
    parts = rnn.unpack_lstm_weights(vector, *sizes)
    x = jnp.asarray(np.swapaxes(case.x, 0, 1))
    lengths = jnp.full((x.shape[0],), x.shape[1], jnp.int32)
    states = [jnp.asarray(state) for state in case.states()]
    y, hn, cn = rnn.lstm_ref(x, *states, *parts, lengths, case.input, case.hidden, case.layers, 0.0, case.bidirectional)
    swapped = " after swap_lstm_gates" if case.layout == "miopen" else ""
    title = f"jax {jax.__version__} experimental.rnn.lstm_ref of unpack_lstm_weights{swapped}, on a CPU"
    return Outputs(title, np.swapaxes(np.asarray(y), 0, 1), np.asarray(hn), np.asarray(cn))


if __name__ == "__main__":
    sys.exit(serve({"cudnn": run, "miopen": run}, {"jax": jax.__version__, "numpy": np.__version__}))
