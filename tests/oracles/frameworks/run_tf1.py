"""Runs cases of TensorFlow 1's layouts, as far as TensorFlow 2 still has what they are for.

`tf1.basic`: the cells of tf.compat.v1.nn.rnn_cell under dynamic_rnn, in a graph, where their variables have the names
that checkpoints have. A plain LSTM is run as BasicLSTMCell and as LSTMCell, which must agree.
`tf1.block`: the ops BlockLSTM and GRUBlockCell, which contrib's LSTMBlockCell and GRUBlockCell called.
`tf1.canonical`: BlockLSTM without a forget bias, since contrib's CudnnCompatibleLSTMCell was an LSTMBlockCell with
forget_bias=0. The compatible GRU cell was Python alone and is gone.
`tf1.opaque`: not at all on a CPU.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # the cells of tf.compat.v1.nn.rnn_cell are in tf_keras
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tf_keras
from _case_files import Cannot, Case, Outputs, serve
from _cells import Levels, agreeing, allow, compose

V1 = tf.compat.v1
CELLS = V1.nn.rnn_cell
LEVELS = Levels(layer="cell_{}", directions=("fw", "bw"))
RAN = f"tensorflow {tf.__version__}"


def forget_bias(case: Case, default: float = 1.0) -> float:
    """What an LSTM adds to the forget gate's bias on every call."""
    return float(case.options.get("forget_bias", default))


def build(case: Case, name: str):
    """The cell `name` of nn.rnn_cell."""
    activation = {"tanh": tf.tanh, "relu": tf.nn.relu}[case.activation or "tanh"]
    settings = {"activation": activation}
    if case.kind == "lstm":
        settings["forget_bias"] = forget_bias(case)
    if name == "LSTMCell":
        settings.update(use_peepholes=case.peephole, num_proj=case.projection or None)
        settings["cell_clip"] = case.options.get("cell_clip")
    return getattr(CELLS, name)(case.hidden, **settings)


def unroll(case: Case, name: str, x, states: list) -> tuple:
    """Put the cell into the current graph: {name below the cell's scope: variable}, [y, hn, cn]."""
    cell = build(case, name)
    first = [tf.constant(state) for state in states]
    initial = CELLS.LSTMStateTuple(c=first[1], h=first[0]) if case.kind == "lstm" else first[0]
    y, final = V1.nn.dynamic_rnn(cell, tf.constant(x), initial_state=initial, time_major=True)
    variables = {v.name.split("/", 2)[2].split(":")[0]: v for v in cell.variables}  # rnn/lstm_cell/kernel:0
    return variables, [y, final.h, final.c] if case.kind == "lstm" else [y, final]


def run_cells(case: Case, name: str) -> Outputs:
    """Outputs of the cell `name`."""
    states = [np.zeros((1, case.recurrent), np.float32), np.zeros((1, case.hidden), np.float32)][: len(case.states())]

    def shapes(layer: int) -> dict:
        with tf.Graph().as_default():
            variables, _ = unroll(case, name, np.zeros((1, 1, case.width(layer)), np.float32), states)
            return {path: tuple(variable.shape) for path, variable in variables.items()}

    cells = LEVELS.by_cell(case, shapes)

    def run_cell(cell: int, x: np.ndarray, states: list) -> tuple:
        with tf.Graph().as_default(), V1.Session() as session:
            variables, outputs = unroll(case, name, x, states)
            for path, variable in variables.items():
                variable.load(cells[cell][path], session)
            y, *final = session.run(outputs)
            return y, final

    return compose(case, f"{RAN} compat.v1.nn.rnn_cell.{name}", run_cell)


def run_basic(case: Case) -> Outputs:
    """Outputs for the layout `tf1.basic`."""
    options = ("forget_bias", "cell_clip") if case.kind == "lstm" else ()
    allow(case, resets=("before",), options=options, relu=True, projection=True, peephole=case.kind == "lstm")
    if case.kind != "lstm":
        return run_cells(case, {"gru": "GRUCell", "rnn": "BasicRNNCell"}[case.kind])
    fuller = case.projection or case.peephole or case.options.get("cell_clip") is not None
    return agreeing([run_cells(case, name) for name in (["LSTMCell"] if fuller else ["BasicLSTMCell", "LSTMCell"])])


def block_lstm(case: Case, bias: float, clip: float) -> Outputs:
    """Outputs of the op BlockLSTM; no clipping of the cell where `clip` is not positive."""
    diagonals = ("w_i_diag", "w_f_diag", "w_o_diag") if case.peephole else ()

    def shapes(layer: int) -> dict:  # of the op's documentation
        found = {"kernel": (case.width(layer) + case.hidden, 4 * case.hidden), "bias": (4 * case.hidden,)}
        return {**found, **dict.fromkeys(diagonals, (case.hidden,))}

    cells, unused = LEVELS.by_cell(case, shapes), np.zeros(case.hidden, np.float32)

    def run_cell(cell: int, x: np.ndarray, states: list) -> tuple:
        own = cells[cell]
        found = tf.raw_ops.BlockLSTM(
            seq_len_max=tf.constant(len(x), tf.int64),
            x=x,
            cs_prev=states[1],
            h_prev=states[0],
            w=own["kernel"],
            wci=own.get("w_i_diag", unused),
            wcf=own.get("w_f_diag", unused),
            wco=own.get("w_o_diag", unused),
            b=own["bias"],
            forget_bias=bias,
            cell_clip=clip,
            use_peephole=case.peephole,
        )
        return found.h, [found.h[-1], found.cs[-1]]

    return compose(case, f"{RAN} raw_ops.BlockLSTM forget_bias={bias} cell_clip={clip}", run_cell)


def block_gru(case: Case) -> Outputs:
    """Outputs of the op GRUBlockCell."""

    def shapes(layer: int) -> dict:  # of the op's documentation
        rows, found = case.width(layer) + case.hidden, {}
        for name, columns in [("gates", 2 * case.hidden), ("candidate", case.hidden)]:
            found.update({f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)})
        return found

    cells = LEVELS.by_cell(case, shapes)

    def run_cell(cell: int, x: np.ndarray, states: list) -> tuple:
        own, h, y = cells[cell], states[0], []
        weights = {"w_ru": own["gates/kernel"], "w_c": own["candidate/kernel"]}
        weights.update(b_ru=own["gates/bias"], b_c=own["candidate/bias"])
        for value in x:
            h = tf.raw_ops.GRUBlockCell(x=value, h_prev=h, **weights).h
            y.append(h)
        return np.stack(y), [h]

    return compose(case, f"{RAN} raw_ops.GRUBlockCell", run_cell)


def run_block(case: Case) -> Outputs:
    """Outputs for the layout `tf1.block`."""
    if case.kind == "rnn":
        raise Cannot("contrib had no block cell of this kind")
    options = ("forget_bias", "cell_clip") if case.kind == "lstm" else ()
    allow(case, resets=("before",), options=options, peephole=case.kind == "lstm")
    if case.kind == "gru":
        return block_gru(case)
    clip = case.options.get("cell_clip")
    return block_lstm(case, forget_bias(case), -1.0 if clip is None else float(clip))


def run_canonical(case: Case) -> Outputs:
    """Outputs for the layout `tf1.canonical`."""
    if case.kind != "lstm":
        raise Cannot("CudnnCompatibleGRUCell went with contrib, and no op of TensorFlow takes its weights as they are")
    allow(case, options=("forget_bias",))
    if forget_bias(case, 0.0) != 0.0:
        raise Cannot("CudnnCompatibleLSTMCell adds nothing to the forget gate")
    return block_lstm(case, 0.0, -1.0)


def run_opaque(case: Case) -> Outputs:
    """Cannot, always."""
    raise Cannot("TensorFlow's CudnnRNN ops have no kernels for a CPU")


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the cells say that they are deprecated
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    runners = {"tf1.basic": run_basic, "tf1.block": run_block, "tf1.canonical": run_canonical}
    versions = {"tensorflow": tf.__version__, "tf_keras": tf_keras.__version__, "numpy": np.__version__}
    sys.exit(serve({**runners, "tf1.opaque": run_opaque}, versions))
