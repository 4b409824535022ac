"""Runs cases of the layout `mxnet.cell` with the cells of Gluon in MXNet 1.x, each filled from a real file.

One file a cell, with the names of Block.save_parameters; what such a file of a fresh cell holds says which names and
shapes there must be. A projected LSTM is contrib's LSTMPCell.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import mxnet as mx
import numpy as np
from _case_files import Case, Outputs, refuse, serve
from _cells import Levels, compose

LEVELS = Levels(layer="{}", separators=".")


def build(case: Case, layer: int):
    """The library's cell."""
    settings = {"input_size": case.width(layer)}
    if case.kind == "rnn":
        return mx.gluon.rnn.RNNCell(case.hidden, activation=case.activation, **settings)
    if case.projection:
        return mx.gluon.contrib.rnn.LSTMPCell(case.hidden, case.projection, **settings)
    return {"lstm": mx.gluon.rnn.LSTMCell, "gru": mx.gluon.rnn.GRUCell}[case.kind](case.hidden, **settings)


def saved_shapes(case: Case, layer: int) -> dict:
    """Names and shapes in the file of a fresh cell."""
    cell = build(case, layer)
    cell.initialize()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "own.params")
        cell.save_parameters(path)
        return {name: array.shape for name, array in mx.nd.load(path).items()}


def run(case: Case) -> Outputs:
    """The library's outputs for a case."""
    refuse(case, projection=True)
    tensors = LEVELS.by_cell(case, lambda layer: saved_shapes(case, layer))

    def run_cell(index: int, x: np.ndarray, states: list) -> tuple:
        cell = build(case, index)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "case.params")
            mx.nd.save(path, {name: mx.nd.array(array, dtype="float32") for name, array in tensors[index].items()})
            cell.load_parameters(path, ctx=mx.cpu())
        first = [mx.nd.array(state, dtype="float32") for state in states]
        x = mx.nd.array(np.ascontiguousarray(x), dtype="float32")
        y, final = cell.unroll(len(x), x, begin_state=first, layout="TNC", merge_outputs=True)
        return y.asnumpy(), [state.asnumpy() for state in final]

    title = f"mxnet {mx.__version__} gluon {type(build(case, 0)).__name__}"
    return compose(case, title, run_cell)


if __name__ == "__main__":
    sys.exit(serve({"mxnet.cell": run}, {"mxnet1": mx.__version__}))
