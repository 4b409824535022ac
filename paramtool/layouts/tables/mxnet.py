"""MXNet: one order of gates, and a naming scheme for each way of saving.

`r` in `r0_` is the reverse direction.  Both biases are always stored.  Sources: python/mxnet/gluon/rnn/rnn_layer.py and
python/mxnet/rnn/rnn_cell.py (tag 1.9.1), src/operator/rnn-inl.h, and pull request 20384 for 2.0.
"""

from paramtool.layouts.layout import Form, Layout, TensorRule
from paramtool.layouts.spec import GATES
from paramtool.layouts.tables.cudnn import ALWAYS_P

PARTS = {
    "i2h_weight": "W[(gate hidden) in]",
    "h2h_weight": "R[(gate hidden) rec]",
    "i2h_bias": "bW![(gate hidden)]",
    "h2h_bias": "bR![(gate hidden)]",
    "h2r_weight": "P[proj hidden]",
}
GATE_LABELS = {"lstm": "i=_i f=_f g=_c o=_o", "gru": "r=_r z=_z n=_o", "rnn": "h="}
"""The `_o` of a GRU is its candidate: RNNCell.unpack_weights calls it the output."""


def _forms(template: str, content: dict[str, str] = PARTS) -> tuple[Form, ...]:
    """One form for each kind; only an LSTM has a projection."""
    return tuple(
        Form(
            kind,
            GATES[kind],
            tuple(
                TensorRule(template.replace("PART", part), text)
                for part, text in content.items()
                if "P[" not in text or kind == "lstm"
            ),
            reset="after" if kind == "gru" else "",
        )
        for kind in GATES
    )


def _flat(name: str) -> tuple[Form, ...]:
    return tuple(
        Form(kind, GATES[kind], (TensorRule(name, ALWAYS_P),), reset="after" if kind == "gru" else "") for kind in GATES
    )


def _gates() -> tuple[Form, ...]:
    return tuple(
        Form(
            kind,
            GATES[kind],
            (
                TensorRule("{dir}{layer}_i2h{gate}_weight", "W[hidden in]", labels=GATE_LABELS[kind]),
                TensorRule("{dir}{layer}_h2h{gate}_weight", "R[hidden rec]", labels=GATE_LABELS[kind]),
                TensorRule("{dir}{layer}_i2h{gate}_bias", "bW![hidden]", labels=GATE_LABELS[kind]),
                TensorRule("{dir}{layer}_h2h{gate}_bias", "bR![hidden]", labels=GATE_LABELS[kind]),
            ),
            reset="after" if kind == "gru" else "",
        )
        for kind in GATES
    )


SOURCE = "python/mxnet/gluon/rnn/rnn_layer.py, python/mxnet/rnn/rnn_cell.py, src/operator/rnn-inl.h (1.9.1)"
LAYOUTS = (
    Layout(
        "mxnet",
        "MXNet 1.x Gluon rnn.LSTM, GRU, RNN: collect_params().save, save_params, export",
        _forms("{dir}{layer}_PART"),
        separator="_",
        directions=("l", "r"),
        source=SOURCE,
        proof=("oracle: mxnet 1.9.1",),
    ),
    Layout(
        "mxnet.unfused",
        "MXNet 1.3 to 1.9 Gluon: Block.save_parameters",
        _forms("_unfused.{layer}.[{dir}_cell.]PART"),
        directions=("l", "r"),
        source=SOURCE,
        proof=("oracle: mxnet 1.9.1",),
        note="MXNet 1.9.1 itself cannot save 11 layers or more in this scheme",
    ),
    Layout(
        "mxnet.gates",
        "MXNet 1.x mx.rnn.save_rnn_checkpoint: one array for each gate",
        _gates(),
        separator="_",
        directions=("l", "r"),
        source=SOURCE,
        proof=("oracle: mxnet 1.9.1",),
    ),
    Layout(
        "mxnet.cell",
        "MXNet Gluon LSTMCell, GRUCell, RNNCell and contrib LSTMPCell",
        _forms("[{layer}.]PART"),
        max_directions=1,
        source=SOURCE,
        proof=("oracle: mxnet 1.9.1",),
    ),
    Layout(
        "mxnet.flat",
        "MXNet 1.x FusedRNNCell and the RNN operator: one vector",
        _flat("parameters"),
        separator="_",
        source="src/operator/rnn-inl.h (1.9.1); the projection is where its CPU code puts it",
        proof=("oracle: mxnet 1.9.1",),
    ),
    Layout(
        "mxnet.v2",
        "MXNet 2.0.0b1 and later Gluon: one vector",
        _flat("rnn_param"),
        source="pull request 20384, commit 5f0efbbe33",
        proof=("oracle: mxnet 2.0.0b1",),
    ),
)
