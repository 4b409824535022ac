"""Reads bundles with TensorFlow: `read_bundles.py OUT.npz PREFIX ...`; and runs the LSTMs of Keras that are in them.

OUT.npz has `k:KEY` for each tensor of the k-th bundle, as its bits where NumPy lacks the type, and `k>NAME` for what an
LSTM computes of `k<NAME`, with the weights that the graph of objects calls NAME/lstm_cell/...
"""

from __future__ import annotations

import os
import re
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def main() -> None:
    """Read all of them."""
    made: dict[str, np.ndarray] = {}
    for k, prefix in enumerate(sys.argv[2:]):
        reader = tf.train.load_checkpoint(prefix)
        keys = reader.get_variable_to_shape_map()
        for key in keys:
            value = np.asarray(reader.get_tensor(key))
            if value.dtype.kind in "OS":
                continue
            made[f"{k}:{key}"] = value if value.dtype.isbuiltin == 1 else value.view(f"u{value.itemsize}")
        if GRAPH not in keys:
            continue
        held = TrackableObjectGraph.FromString(reader.get_tensor(GRAPH))
        full = {a.full_name: a.checkpoint_key for node in held.nodes for a in node.attributes}
        for name, key in full.items():
            if match := re.fullmatch(r"([^/]+)/(lstm_cell(_\d+)?)/kernel", name):
                weights = [reader.get_tensor(key)]
                weights += [
                    reader.get_tensor(full[f"{match[1]}/{match[2]}/{part}"]) for part in ("recurrent_kernel", "bias")
                ]
                layer = tf_keras.layers.LSTM(weights[1].shape[0], return_sequences=True)
                x = np.random.default_rng(k).normal(size=(2, 7, weights[0].shape[0])).astype("f4")
                layer.build(x.shape)
                layer.set_weights(weights)
                made |= {f"{k}<{match[1]}": x, f"{k}>{match[1]}": layer(x).numpy()}
    np.savez(sys.argv[1], **made)


if __name__ == "__main__":
    main()
