"""MIOpen: order P with i f o g and z r n.  Source: aten/src/ATen/native/miopen/RNN_miopen.cpp @017943b7."""

from paramtool.layouts.cudnn import ORDER_P
from paramtool.layouts.layout import Form, Layout, Option, Tensor

FLAT = (Tensor("flat_weights", ORDER_P.replace(" P[(proj hidden)]", "")),)

LAYOUTS = (
    Layout(
        "miopen",
        "MIOpen's weight buffer",
        (
            Form("lstm", "ifog", FLAT),
            Form("gru", "zrn", FLAT, reset="after"),
            Form("rnn", "h", FLAT),
        ),
        options=(Option("tail", "no", "yes or no: whether there is room for biases that the network lacks", True),),
        source="aten/src/ATen/native/miopen/RNN_miopen.cpp @017943b7; jax.experimental.rnn's swap_lstm_gates",
        proof=("source only",),
    ),
)
