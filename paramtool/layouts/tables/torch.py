"""PyTorch: `torch.nn.LSTM`, `GRU`, `RNN`, and their cells.  Rows are gates, both biases are kept apart."""

from paramtool.layouts.layout import Form, Layout, TensorRule
from paramtool.layouts.spec import GATES

ROWS = (
    TensorRule("weight_ih_l{layer}{dir}", "W[(gate hidden) in]"),
    TensorRule("weight_hh_l{layer}{dir}", "R[(gate hidden) rec]"),
    TensorRule("bias_ih_l{layer}{dir}", "bW[(gate hidden)]"),
    TensorRule("bias_hh_l{layer}{dir}", "bR[(gate hidden)]"),
)
PROJECTION = TensorRule("weight_hr_l{layer}{dir}", "P[proj hidden]")
CELL = (
    TensorRule("[{layer}.]weight_ih", "W[(gate hidden) in]"),
    TensorRule("[{layer}.]weight_hh", "R[(gate hidden) rec]"),
    TensorRule("[{layer}.]bias_ih", "bW[(gate hidden)]"),
    TensorRule("[{layer}.]bias_hh", "bR[(gate hidden)]"),
)

LAYOUTS = (
    Layout(
        "torch",
        "PyTorch nn.LSTM, nn.GRU, nn.RNN",
        forms=(
            Form("lstm", GATES["lstm"], (*ROWS, PROJECTION)),
            Form("gru", GATES["gru"], ROWS, reset="after"),
            Form("rnn", GATES["rnn"], ROWS),
        ),
        source="torch/nn/modules/rnn.py (2.13.0), _flat_weights_names and the docstrings' order of gates",
        proof=("oracle: torch",),
    ),
    Layout(
        "torch.cell",
        "PyTorch nn.LSTMCell, nn.GRUCell, nn.RNNCell",
        forms=(
            Form("lstm", GATES["lstm"], CELL),
            Form("gru", GATES["gru"], CELL, reset="after"),
            Form("rnn", GATES["rnn"], CELL),
        ),
        max_directions=1,
        source="torch/nn/modules/rnn.py (2.13.0)",
        proof=("oracle: torch",),
    ),
)
