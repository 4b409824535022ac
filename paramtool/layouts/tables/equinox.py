"""Equinox: torch's rows with one bias, and a separate inner bias of the GRU.  Source: equinox/nn/_rnn.py (0.13.8)."""

from paramtool.layouts.layout import Form, Layout, TensorRule

STACK = "[layer{layer}.][{dir}.]"
MATRICES = (
    TensorRule(STACK + "weight_ih", "W[(gate hidden) in]"),
    TensorRule(STACK + "weight_hh", "R[(gate hidden) rec]"),
)
LAYOUTS = (
    Layout(
        "equinox",
        "Equinox LSTMCell, GRUCell",
        (
            Form("lstm", "ifgo", (*MATRICES, TensorRule(STACK + "bias", "bW+bR[(gate hidden)]"))),
            Form(
                "gru",
                "rzn",
                (
                    *MATRICES,
                    TensorRule(STACK + "bias", "bW+bR.rz[(gate hidden)] bW.n[(gate hidden)]"),
                    TensorRule(STACK + "bias_n", "bR.n[hidden]"),
                ),
                reset="after",
            ),
        ),
        directions=("forward", "backward"),
        source="equinox/nn/_rnn.py (0.13.8)",
        proof=("oracle: equinox",),
        note="an .eqx file has no names, only leaves in the order of the tree",
    ),
)
