"""Haiku: one linear layer on [x, h], 1 added to the forget gate at every step, and a GRU whose z is the complement.

Source: haiku/_src/recurrent.py (dm-haiku 0.0.17).  Its GRU computes h' = (1 - z) h + z a, so z's rows are negated here.
"""

from paramtool.layouts.layout import Form, Layout, Option, TensorRule

STACK = "[layer{layer}/][{dir}/]"
LSTM = (
    TensorRule(STACK + "linear/w", "W[in (gate hidden)] R[rec (gate hidden)]"),
    TensorRule(STACK + "linear/b", "bW+bR!.ig[(gate hidden)] bW+bR-1!.f[(gate hidden)] bW+bR!.o[(gate hidden)]"),
)
GRU = (
    TensorRule(STACK + "w_i", "-W.z[in (gate hidden)] W.rn[in (gate hidden)]", along=1),
    TensorRule(STACK + "w_h", "-R.z[rec (gate hidden)] R.rn[rec (gate hidden)]", along=1),
    TensorRule(STACK + "b", "-bW-bR!.z[(gate hidden)] bW+bR!.rn[(gate hidden)]"),
)
MATRICES = (TensorRule(STACK + "linear/w", "W[in hidden]"), TensorRule(STACK + "linear_1/w", "R[rec hidden]"))
TWO_BIASES = (TensorRule(STACK + "linear/b", "bW![hidden]"), TensorRule(STACK + "linear_1/b", "bR![hidden]"))
ONE_BIAS = (TensorRule(STACK + "linear/b", "bW+bR![hidden]"),)

LAYOUTS = (
    Layout(
        "haiku",
        "Haiku LSTM, GRU, VanillaRNN",
        (
            Form("lstm", "igfo", LSTM),
            Form("gru", "zrn", GRU, reset="before"),
            Form("rnn", "h", MATRICES + TWO_BIASES, when={"double_bias": "yes"}, activations=("relu",)),
            Form("rnn", "h", MATRICES + ONE_BIAS, when={"double_bias": "no"}, activations=("relu",)),
        ),
        separator="/",
        directions=("forward", "backward"),
        options=(Option("double_bias", "yes", "yes or no: VanillaRNN's argument of that name", True, ("yes", "no")),),
        source="haiku/_src/recurrent.py (dm-haiku 0.0.17)",
        proof=("oracle: haiku",),
        names_identify=False,
    ),
)
