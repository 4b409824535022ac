"""oneDNN: dense user formats ldigo, ldgo and ldio.  Source: doc/primitives/rnn.md @515bfba68c.

A linear-before-reset GRU has four rows of bias, u r o u'; the last is inside r * ( ).
"""

from paramtool.layouts.layout import Form, Layout, TensorRule

MATRICES = (
    TensorRule("[layer{layer}.]weights_layer", "W[1 dir in gate hidden]"),
    TensorRule("[layer{layer}.]weights_iter", "R[1 dir rec gate hidden]"),
)
BIAS = TensorRule("[layer{layer}.]bias", "bW+bR![1 dir gate hidden]")
LBR_BIAS = TensorRule(
    "[layer{layer}.]bias",
    "bW+bR!.zr[1 dir gate hidden] bW!.n[1 dir gate hidden] bR!.n[1 dir gate hidden]",
    along=2,
)
PEEPHOLE = TensorRule("[layer{layer}.]weights_peephole", "peep.ifo[1 dir gate hidden]")
PROJECTION = TensorRule("[layer{layer}.]weights_projection", "P[1 dir hidden proj]")

LAYOUTS = (
    Layout(
        "onednn",
        "oneDNN LSTM, GRU, lbr GRU, vanilla RNN",
        (
            Form("lstm", "ifgo", (*MATRICES, BIAS, PEEPHOLE, PROJECTION)),
            Form("gru", "zrn", (*MATRICES, LBR_BIAS), reset="after"),
            Form("gru", "zrn", (*MATRICES, BIAS), reset="before"),
            Form("rnn", "h", (*MATRICES, BIAS)),
        ),
        source="doc/primitives/rnn.md @515bfba68c",
        proof=("oracle: oneDNN 3.6",),
        note='packed "any" formats are opaque and never saved',
    ),
)
