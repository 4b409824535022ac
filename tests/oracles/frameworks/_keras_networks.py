"""Networks of Keras layers, for Keras 3 and for tf_keras, whose layers are built and called in the same way.

Layouts: `keras`, where each cell's variables go by their own names, and `keras.vars`, whose names are paths in a
`.weights.h5` file: there, the library writes such a file, its datasets are filled with the case's tensors, and the
library loads it again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from _case_files import Case, Outputs
from _cells import Levels, allow, hard_sigmoid, same_slope

LEVELS = Levels(directions=("forward_layer", "backward_layer"), separators="/.")
RESETS = ("after", "before")


@dataclass(frozen=True)
class Library:
    """One of the two: its module, and where it differs from the other."""

    module: Any
    slope: float
    """Of the function that it calls `hard_sigmoid`."""
    clip: Callable
    """Of three arguments, for a hard sigmoid of another slope."""
    to_tensor: Callable
    to_numpy: Callable
    title: str


def one_way(library: Library, case: Case):
    """A layer that runs forward, with weights of its own."""
    names = {"lstm": "LSTM", "gru": "GRU", "rnn": "SimpleRNN"}
    settings = {"use_bias": case.bias, "return_sequences": True, "return_state": True}
    settings["activation"] = case.activation or "tanh"
    if case.kind == "gru":
        settings["reset_after"] = case.reset == "after"
    gates = hard_sigmoid(case)
    if case.kind != "rnn":
        settings["recurrent_activation"] = "sigmoid" if gates is None else gate_function(library, gates)
    return getattr(library.module.layers, names[case.kind])(case.hidden, **settings)


def gate_function(library: Library, gates: tuple):
    """The library's own hard sigmoid where it has that slope, else a function made of its operations."""
    if same_slope(gates, library.slope):
        return "hard_sigmoid"

    def clipped(x):
        return library.clip(gates[0] * x + gates[1], 0.0, 1.0)

    return clipped


def build(library: Library, case: Case, layer: int):
    """One layer of the network, with its variables."""
    made = one_way(library, case)
    if case.bidirectional:
        # Bidirectional makes its two layers from the configuration of the one, where a function is only a name
        functions = {"clipped": getattr(made, "recurrent_activation", None)}
        with library.module.saving.custom_object_scope(functions):
            made = library.module.layers.Bidirectional(made)
    made.build((None, None, case.width(layer)))
    return made


def parts(layer) -> list:
    """The layers that run one way each, forward first."""
    return [layer.forward_layer, layer.backward_layer] if hasattr(layer, "forward_layer") else [layer]


def own_name(variable) -> str:
    """`kernel` of `bidirectional/forward_lstm/lstm_cell/kernel:0`."""
    return variable.name.split("/")[-1].split(":")[0]


def load_by_name(library: Library, case: Case) -> list:
    """The network's layers, filled with tensors of the layout `keras`."""
    layers = [build(library, case, layer) for layer in range(case.layers)]

    def shapes(layer: int) -> dict:
        return {own_name(v): tuple(v.shape) for v in parts(layers[layer])[0].cell.weights}

    cells = [part.cell for layer in layers for part in parts(layer)]
    for cell, tensors in enumerate(LEVELS.by_cell(case, shapes)):
        for variable in cells[cell].weights:
            variable.assign(tensors[own_name(variable)])
    return layers


def load_file(library: Library, case: Case) -> list:
    """The network's layers, each filled from a file of its own with the layout's tensors in it."""
    layers = [build(library, case, layer) for layer in range(case.layers)]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{layer}.weights.h5" for layer in range(case.layers)]
        models = [model_of(library, case, layers[layer], layer) for layer in range(case.layers)]
        for layer, model in enumerate(models):
            model.save_weights(str(paths[layer]))
        filled = LEVELS.by_layer(case, lambda layer: {k: d[1] for k, d in datasets(paths[layer]).items()})
        for layer, tensors in enumerate(filled):
            places = datasets(paths[layer])
            with h5py.File(paths[layer], "r+") as file:
                for path, array in tensors.items():
                    file[places[path][0]][...] = array
            models[layer].load_weights(str(paths[layer]))
    return layers


def model_of(library: Library, case: Case, layer, index: int):
    """A model with nothing in it but the layer."""
    entry = library.module.Input((None, case.width(index)))
    return library.module.Model(entry, layer(entry)[0])


def datasets(path: Path) -> dict:
    """{path below `layers/<layer>/`: (whole path, shape)} of a file's variables."""
    found = {}

    def note(name: str, item) -> None:
        if isinstance(item, h5py.Dataset):
            found[name.split("/", 2)[2]] = (name, item.shape)

    with h5py.File(path, "r") as file:
        file.visititems(note)
    return found


def call(library: Library, case: Case, layers: list, title: str) -> Outputs:
    """Run filled layers one after another."""
    x, states = library.to_tensor(np.swapaxes(case.x, 0, 1)), case.states()
    finals = []
    for layer, made in enumerate(layers):
        cells = range(layer * case.directions, (layer + 1) * case.directions)
        x, *final = made(x, initial_state=[library.to_tensor(state[cell]) for cell in cells for state in states])
        finals += [library.to_numpy(state) for state in final]
    last = [np.stack(finals[kind :: len(states)]) for kind in range(len(states))]
    kind = type(parts(layers[0])[0]).__name__
    wrapped = f"Bidirectional({kind})" if case.bidirectional else kind
    return Outputs(f"{title}{library.title} layers.{wrapped}", np.swapaxes(library.to_numpy(x), 0, 1), *last)


def run(library: Library, case: Case) -> Outputs:
    """The library's outputs for a case of either layout."""
    allow(case, resets=RESETS, relu=True, options=("gate_activation",))
    if case.layout == "keras.vars":
        return call(library, case, load_file(library, case), "through a .weights.h5 file: ")
    return call(library, case, load_by_name(library, case), "")
