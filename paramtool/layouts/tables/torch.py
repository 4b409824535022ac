"""PyTorch: `torch.nn.LSTM`, `GRU`, `RNN`, and their cells.  Rows are gates, both biases are kept apart."""

from paramtool.layouts.layout import Form, Layout, Tensor
from paramtool.layouts.spec import GATES

ROWS = (
    Tensor("weight_ih_l{layer}{dir}", "W[(gate hidden) in]"),
    Tensor("weight_hh_l{layer}{dir}", "R[(gate hidden) rec]"),
    Tensor("bias_ih_l{layer}{dir}", "bW[(gate hidden)]"),
    Tensor("bias_hh_l{layer}{dir}", "bR[(gate hidden)]"),
)
PROJECTION = Tensor("weight_hr_l{layer}{dir}", "P[proj hidden]")
CELL = (
    Tensor("[{layer}.]weight_ih", "W[(gate hidden) in]"),
    Tensor("[{layer}.]weight_hh", "R[(gate hidden) rec]"),
    Tensor("[{layer}.]bias_ih", "bW[(gate hidden)]"),
    Tensor("[{layer}.]bias_hh", "bR[(gate hidden)]"),
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
