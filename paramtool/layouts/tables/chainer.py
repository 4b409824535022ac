"""Chainer NStep links: one array for each gate, w0 to w3 for the input and w4 to w7 for the recurrent side of an LSTM.

Source: chainer/links/rnn/n_step_rnn.py (7.8.1).
"""

from paramtool.layouts.layout import Form, Layout, TensorRule
from paramtool.layouts.spec import GATES


def _form(kind: str) -> Form:
    gates = GATES[kind]
    first = " ".join(f"{gate}={k}" for k, gate in enumerate(gates))
    second = " ".join(f"{gate}={k + len(gates)}" for k, gate in enumerate(gates))
    rows = (
        TensorRule("{cell}/w{gate}", "W[hidden in]", labels=first),
        TensorRule("{cell}/w{gate}", "R[hidden rec]", labels=second),
        TensorRule("{cell}/b{gate}", "bW![hidden]", labels=first),
        TensorRule("{cell}/b{gate}", "bR![hidden]", labels=second),
    )
    return Form(kind, gates, rows, reset="after" if kind == "gru" else "")


LAYOUTS = (
    Layout(
        "chainer",
        "Chainer NStepLSTM, NStepGRU, NStepRNNTanh, NStepRNNReLU and their Bi forms",
        tuple(_form(kind) for kind in GATES),
        separator="/",
        source="chainer/links/rnn/n_step_rnn.py (7.8.1)",
        proof=("oracle: chainer",),
    ),
)
