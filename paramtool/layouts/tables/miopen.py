"""MIOpen: order P with i f o g and z r n.  Source: aten/src/ATen/native/miopen/RNN_miopen.cpp @017943b7."""

from dataclasses import replace

from paramtool.layouts.layout import Form, Layout, TensorRule
from paramtool.layouts.tables.cudnn import ORDER_P, TAIL

FLAT = (TensorRule("flat_weights", ORDER_P.replace(" P[(proj hidden)]", "")),)

LAYOUTS = (
    Layout(
        "miopen",
        "MIOpen's weight buffer",
        (
            Form("lstm", "ifog", FLAT),
            Form("gru", "zrn", FLAT, reset="after"),
            Form("rnn", "h", FLAT),
        ),
        options=(replace(TAIL, default="no"),),
        source="aten/src/ATen/native/miopen/RNN_miopen.cpp @017943b7; jax.experimental.rnn's swap_lstm_gates",
        proof=("oracle: jax.experimental.rnn (LSTM)", "equations"),
        gpu=True,
    ),
)
