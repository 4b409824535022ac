"""Core ML: MIL operators with gates i f o z and one bias; the older protocol buffer has a field for each gate.

Sources: coremltools mil/ops/defs/iOS15/recurrent.py and mlmodel/format/NeuralNetwork.proto @e0e2f42b.  The GRU of the
old protocol buffer is missing here: it is not known whether its reset gate is applied before or after the product.
"""

from paramtool.layouts.layout import Form, Layout, TensorRule

ROWS = (
    TensorRule("[layer{layer}.]weight_ih{dir}", "W[(gate hidden) in]"),
    TensorRule("[layer{layer}.]weight_hh{dir}", "R[(gate hidden) rec]"),
)
LSTM = (
    *ROWS,
    TensorRule("[layer{layer}.]bias{dir}", "bW+bR[(gate hidden)]"),
    TensorRule("[layer{layer}.]peephole{dir}", "peep.ifo[(gate hidden)]"),
)
# "r o z" in the operator's documentation, where o is the candidate; no bias inside r * ( )
GRU_BIAS = "bW+bR.r[(gate hidden)] bW.n[(gate hidden)] bW+bR.z[(gate hidden)]"
FIELDS = "i=inputGate f=forgetGate g=blockInput o=outputGate"
PEEPHOLES = "i=inputGate f=forgetGate o=outputGate"
PROTO = (
    TensorRule("[layer{layer}.][{dir}.]{gate}WeightMatrix", "W[hidden in]", labels=FIELDS),
    TensorRule("[layer{layer}.][{dir}.]{gate}RecursionMatrix", "R[hidden rec]", labels=FIELDS),
    TensorRule("[layer{layer}.][{dir}.]{gate}BiasVector", "bW+bR[hidden]", labels=FIELDS),
    TensorRule("[layer{layer}.][{dir}.]{gate}PeepholeVector", "peep[hidden]", labels=PEEPHOLES),
)
WAYS = frozenset({"backward"})

LAYOUTS = (
    Layout(
        "coreml",
        "Core ML MIL operators lstm, gru, rnn",
        (
            Form("lstm", "ifog", LSTM, expresses=WAYS),
            Form(
                "gru", "rnz", (*ROWS, TensorRule("[layer{layer}.]bias{dir}", GRU_BIAS)), reset="after", expresses=WAYS
            ),
            Form("rnn", "h", (*ROWS, TensorRule("[layer{layer}.]bias{dir}", "bW+bR[(gate hidden)]")), expresses=WAYS),
        ),
        directions=("", "_back"),
        source="mil/ops/defs/iOS15/recurrent.py @e0e2f42b",
        proof=("oracle: constants of the converter (LSTM, RNN)", "equations: GRU"),
    ),
    Layout(
        "coreml.proto",
        "Core ML NeuralNetwork protocol buffer: LSTMWeightParams",
        (Form("lstm", "ifgo", PROTO, expresses=WAYS | {"coupled"}),),
        directions=("forward", "backward"),
        source="mlmodel/format/NeuralNetwork.proto @e0e2f42b",
        proof=("equations",),
    ),
)
