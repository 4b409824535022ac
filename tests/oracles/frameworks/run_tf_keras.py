"""Runs cases of the layouts `keras`, `keras.vars` and `keras.cudnn` with tf_keras, the last of Keras 2.

`keras.cudnn` is what CuDNNLSTM and CuDNNGRU keep: tf_keras itself turns it into the weights of LSTM and of
GRU(reset_after=True) on loading a file, and those run on a CPU. The CuDNN layers are built, not run, to say which names
and shapes there must be.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # tf.compat.v1.keras is then tf_keras, which still has the CuDNN layers
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tf_keras
from _case_files import Cannot, Case, Outputs, serve
from _cells import allow
from _keras_networks import LEVELS, Library, build, call, own_name, run
from tf_keras.src.saving.legacy.hdf5_format import preprocess_weights_for_loading

# tf_keras.activations.hard_sigmoid: clip(0.2x + 0.5, 0, 1)
LIBRARY = Library(
    module=tf_keras,
    slope=0.2,
    clip=tf.clip_by_value,
    to_tensor=tf.constant,
    to_numpy=np.asarray,
    title=f"tf_keras {tf_keras.__version__}",
)


def run_cudnn(case: Case) -> Outputs:
    """Outputs for weights of CuDNNLSTM or CuDNNGRU."""
    if case.kind == "rnn":
        raise Cannot("there was no CuDNN layer of this kind")
    allow(case)
    old = getattr(tf.compat.v1.keras.layers, {"lstm": "CuDNNLSTM", "gru": "CuDNNGRU"}[case.kind])

    def shapes(layer: int) -> dict:
        made = old(case.hidden)
        made.build((None, None, case.width(layer)))
        return {own_name(variable): tuple(variable.shape) for variable in made.weights}

    cells, layers = LEVELS.by_cell(case, shapes), []
    for layer in range(case.layers):
        made = build(LIBRARY, replace(case, bias=True), layer)  # a CuDNN layer always has biases
        own = cells[layer * case.directions : (layer + 1) * case.directions]
        listed = [tensors[name] for tensors in own for name in ("kernel", "recurrent_kernel", "bias")]
        made.set_weights(preprocess_weights_for_loading(made, listed, original_keras_version="2"))
        layers.append(made)
    return call(LIBRARY, case, layers, f"{old.__name__} weights through preprocess_weights_for_loading: ")


if __name__ == "__main__":
    runners = {layout: lambda case: run(LIBRARY, case) for layout in ("keras", "keras.vars")}
    runners["keras.cudnn"] = run_cudnn
    versions = {"tf_keras": tf_keras.__version__, "tensorflow": tf.__version__, "numpy": np.__version__}
    sys.exit(serve(runners, versions))
