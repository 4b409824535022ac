"""ONNX: one operator for each layer, both directions on axis 0, both biases in one vector.

The GRU's attribute linear_before_reset selects its variant; no GPU library has the default, 0.
Source: the schemas of LSTM, GRU and RNN in onnx 1.23.2.
"""

from paramtool.layouts.layout import Form, Layout, TensorRule

FUNCTIONS = frozenset(
    ("relu", "tanh", "sigmoid", "hard_sigmoid", "leaky_relu", "thresholded_relu", "elu", "softsign", "softplus",
     "affine", "scaled_tanh", "linear")
)  # fmt: skip
"""The activations of its operators, as a spec writes them; `linear` is Affine with alpha=1 and beta=0."""
WIDE = frozenset({"gate_activation", "clip", "coupled", "backward"})
ROWS = (
    TensorRule("[layer{layer}.]W", "W[dir (gate hidden) in]"),
    TensorRule("[layer{layer}.]R", "R[dir (gate hidden) rec]"),
    TensorRule("[layer{layer}.]B", "bW[dir (gate hidden)] bR[dir (gate hidden)]", along=1),
)
# An initial state, if the file stores one for any batch size.
STATE_H = TensorRule("[layer{layer}.]initial_h", "h0[dir 1 rec]", optional=True)
STATE_C = TensorRule("[layer{layer}.]initial_c", "c0[dir 1 hidden]", optional=True)
PEEPHOLE = TensorRule("[layer{layer}.]P", "peep.iof[dir (gate hidden)]")

LAYOUTS = (
    Layout(
        "onnx",
        "ONNX LSTM, GRU, RNN",
        (
            Form("lstm", "iofg", (*ROWS, PEEPHOLE, STATE_H, STATE_C), expresses=WIDE),
            Form("gru", "zrn", (*ROWS, STATE_H), reset="after", expresses=WIDE),
            Form("gru", "zrn", (*ROWS, STATE_H), reset="before", expresses=WIDE),
            Form("rnn", "h", (*ROWS, STATE_H), expresses=WIDE),
        ),
        source="operator schemas of onnx 1.23.2",
        proof=("oracle: onnxruntime",),
        functions=FUNCTIONS,
        names_identify=False,
    ),
)
