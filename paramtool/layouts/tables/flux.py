"""Flux.jl: torch's rows with one bias; its GRU has no bias inside r * ( ), its GRUv3 resets before the product.

Julia arrays are column-major: an HDF5 or JLD2 reader shows their axes reversed.  Sources: src/layers/recurrent.jl at
v0.14.25 and v0.15.0; FluxML/Flux.jl pull request 1855 for the packed block.
"""

from paramtool.layouts.layout import Form, Layout, TensorRule

STACK = "[layer{layer}.][{dir}.]"
MATRICES = (TensorRule(STACK + "cell.Wi", "W[(gate hidden) in]"), TensorRule(STACK + "cell.Wh", "R[(gate hidden) rec]"))
SUMMED = "bW+bR[(gate hidden)]"
GRU_BIAS = TensorRule(STACK + "cell.b", "bW+bR.rz[(gate hidden)] bW.n[(gate hidden)]")
CANDIDATE = TensorRule(STACK + "cell.Wh_h\u0303", "R.n[hidden rec]")
# The third block of GRUv3's Wh is never used (v0.15.0): the candidate has a separate matrix.
GRUV3 = (
    MATRICES[0],
    TensorRule(STACK + "cell.Wh", "R.rz[(gate hidden) rec] 0[hidden rec]"),
    TensorRule(STACK + "cell.b", SUMMED),
    CANDIDATE,
)
STATE = TensorRule(STACK + "cell.state0", "h0![rec 1]", optional=True)
STATES = (
    TensorRule(STACK + "cell.state0.1", "h0![rec 1]", optional=True),
    TensorRule(STACK + "cell.state0.2", "c0![hidden 1]", optional=True),
)
OLD_GRUV3 = (
    MATRICES[0],
    TensorRule(STACK + "cell.Wh", "R.rz[(gate hidden) rec]"),
    TensorRule(STACK + "cell.b", SUMMED),
    CANDIDATE,
    STATE,
)
PACKED = TensorRule(STACK + "W", "W[(gate hidden) in] R[(gate hidden) rec] bW+bR![(gate hidden) 1]", along=1)
SIDES = ("forward", "backward")

LAYOUTS = (
    Layout(
        "flux",
        "Flux.jl 0.15 and later: LSTM, GRU, GRUv3, RNN",
        (
            Form("lstm", "ifgo", (*MATRICES, TensorRule(STACK + "cell.bias", SUMMED))),
            Form("gru", "rzn", (*MATRICES, GRU_BIAS), reset="after"),
            Form("gru", "rzn", GRUV3, reset="before"),
            Form("rnn", "h", (*MATRICES, TensorRule(STACK + "cell.bias", SUMMED))),
        ),
        directions=SIDES,
        source="src/layers/recurrent.jl at v0.15.0 and v0.16.0",
        proof=("equations",),
    ),
    Layout(
        "flux.old",
        "Flux.jl 0.14 and before: LSTM, GRU, GRUv3, RNN, with a trained state0",
        (
            Form("lstm", "ifgo", (*MATRICES, TensorRule(STACK + "cell.b", SUMMED), *STATES)),
            Form("gru", "rzn", (*MATRICES, GRU_BIAS, STATE), reset="after"),
            Form("gru", "rzn", OLD_GRUV3, reset="before"),
            Form("rnn", "h", (*MATRICES, TensorRule(STACK + "cell.b", SUMMED), STATE)),
        ),
        directions=SIDES,
        source="src/layers/recurrent.jl at v0.12.10, v0.13.17 and v0.14.25",
        proof=("equations",),
    ),
    Layout(
        "flux.packed",
        "Flux.jl pull request 1855: one matrix [Wi Wh b]",
        (Form("lstm", "ifgo", (PACKED,)), Form("rnn", "h", (PACKED,))),
        directions=SIDES,
        source="FluxML/Flux.jl pull request 1855",
        proof=("equations",),
        names_identify=False,
    ),
)
