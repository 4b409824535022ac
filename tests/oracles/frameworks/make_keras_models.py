"""Makes models of recurrent layers with Keras, saves them in each of its forms, and writes down what they compute.

    python make_keras_models.py keras|tf_keras FOLDER [MODEL ...]

In FOLDER, MODEL.keras and MODEL.h5 have a configuration; MODEL.weights.h5, and MODEL.legacy.h5 of tf_keras, have none.
MODEL.npz has the input `x` (batch, steps, ...) and the output `y`; outputs that are kept apart stand side by side.
Weights are random and large, so that what is left out shows.  tests/oracles/test_keras_models.py reads all of it.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
import zlib
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np

SHAPE = (2, 5, 3)
"""Of the input: batch, steps, features."""
BOTH = {"return_sequences": True}


def models(keras) -> dict:
    """{name: a function that gives the layers of a model, or the shape of its input and the layers}."""
    make, saving = keras.layers, keras.saving

    @saving.register_keras_serializable("mine")
    class Own(make.LSTM):
        """A layer of one's own, which might do anything."""

    @saving.register_keras_serializable("mine")
    class OwnCell(make.LSTMCell):
        """A cell of one's own."""

    def lstm(units: int = 4, **more):
        return make.LSTM(units, **BOTH, **more)

    def both(layer=None, **more):
        return make.Bidirectional(layer or lstm(), **more)

    def rnn(*cells, **more):
        return make.RNN(cells[0] if len(cells) == 1 else list(cells), **BOTH, **more)

    cell, gru_cell = make.LSTMCell, make.GRUCell
    found = {f"merge_{mode}": lambda mode=mode: [both(merge_mode=mode)] for mode in ("sum", "ave", "mul", "concat")}
    if keras.__name__ == "tf_keras":  # Keras 3 refuses to build it
        found["both_backwards"] = lambda: [both(lstm(go_backwards=True))]
    return found | {
        "merge_none": lambda: [both(merge_mode=None)],
        "merge_gru": lambda: [both(make.GRU(4, reset_after=False, **BOTH), merge_mode="sum")],
        "merge_then_lstm": lambda: [both(merge_mode="sum"), lstm(5)],
        "merge_in_a_row": lambda: [both(merge_mode="ave"), both(merge_mode="ave")],
        "both_of_a_cell": lambda: [both(rnn(cell(4)), merge_mode="mul")],
        "both_given": lambda: [both(backward_layer=lstm(go_backwards=True), merge_mode="sum")],
        "both_differ": lambda: [both(backward_layer=lstm(go_backwards=True, activation="relu"), merge_mode="sum")],
        "both_of_a_stack": lambda: [both(rnn(cell(4), cell(4)))],
        "stack": lambda: [rnn(cell(5), cell(4))],
        "stack_of_grus": lambda: [rnn(gru_cell(4), gru_cell(4, reset_after=False)), rnn(gru_cell(4), gru_cell(3))],
        "stack_backwards": lambda: [rnn(cell(5), cell(4), go_backwards=True)],
        "stack_of_one": lambda: [rnn(make.StackedRNNCells([cell(4)]))],
        "stack_with_own": lambda: [rnn(cell(4), OwnCell(4))],
        "cell": lambda: [rnn(cell(4))],
        "cell_of_gru": lambda: [rnn(gru_cell(4, reset_after=False, activation="relu"))],
        "cell_of_rnn": lambda: [rnn(make.SimpleRNNCell(4, activation="relu"))],
        "cell_backwards": lambda: [rnn(gru_cell(4, recurrent_activation="hard_sigmoid"), go_backwards=True)],
        "cell_without_bias": lambda: [rnn(cell(4, use_bias=False))],
        "own_cell": lambda: [rnn(OwnCell(4))],
        "own": lambda: [Own(4, **BOTH)],
        "backwards": lambda: [lstm(go_backwards=True)],
        "backwards_rnn": lambda: [make.SimpleRNN(4, go_backwards=True, **BOTH)],
        "activations": lambda: [lstm(activation="relu", recurrent_activation="hard_sigmoid")],
        "training": lambda: [lstm(dropout=0.4, recurrent_dropout=0.3, unroll=True, unit_forget_bias=False)],
        "in_a_row": lambda: [lstm(4), lstm(3)],
        "without_bias": lambda: [make.GRU(4, use_bias=False, reset_after=False, **BOTH)],
        "in_time": lambda: [(2, 3, 5, 3), make.TimeDistributed(lstm())],
        "conv": lambda: [(2, 3, 5, 5, 3), make.ConvLSTM2D(3, 3)],
    }  # fmt: skip


def build(keras, name: str, layers: list):
    """(model, input)."""
    shape = layers.pop(0) if isinstance(layers[0], tuple) else SHAPE
    random = np.random.default_rng(zlib.crc32(name.encode()))
    value = entry = keras.Input(shape[1:])
    for layer in layers:
        value = layer(value)
    model = keras.Model(entry, value, name=name)
    for weight in model.weights:
        weight.assign(random.normal(size=tuple(weight.shape)).astype("f4"))
    return model, random.normal(size=shape).astype("f4")


def main() -> None:
    """Write what was asked for, or all."""
    library, folder, *names = sys.argv[1:]
    keras, root = importlib.import_module(library), Path(folder)
    makers = models(keras)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names or makers:
            model, x = build(keras, name, makers[name]())
            model.save(root / f"{name}.keras")
            model.save(root / f"{name}.h5")
            model.save_weights(root / f"{name}.weights.h5")
            if library == "tf_keras":
                model.save_weights(root / f"{name}.legacy.h5", save_format="h5")
            y = model(x)
            parts = [np.array(keras.ops.convert_to_numpy(part) if hasattr(keras, "ops") else part) for part in
                     (y if isinstance(y, list | tuple) else [y])]  # fmt: skip
            np.savez(root / f"{name}.npz", x=x, y=np.concatenate(parts, axis=-1))


if __name__ == "__main__":
    main()
