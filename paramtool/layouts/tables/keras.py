"""Keras: columns are gates, one bias; the GRU has two variants, which differ in the rank of the bias.

Keras 1 has an array for each gate, called `lstm_1_W_i`; with `consume_less="gpu"`, and in a SimpleRNN, the columns of
one array `lstm_1_W` are those of a kernel today.

Only a model's configuration has a layer's direction in time, how a Bidirectional merges its two outputs, and the
activations; a file of weights does not have them.

The legacy CuDNNLSTM and CuDNNGRU store, for each gate, the bytes of the (hidden, in) matrix in an array of shape
(in, hidden): tf_keras/saving/legacy/hdf5_format.py reorders them, and so does the mark `~` here.
"""

from paramtool.layouts.layout import Form, Layout, TensorRule

EXPRESSES = frozenset({"backward", "merge"})
WIDE = EXPRESSES | {"gate_activation"}
ACTIVATIONS = ("activation", "gate_activation")
KERNELS = {"kernel": "W[in (gate hidden)]", "recurrent_kernel": "R[rec (gate hidden)]"}
BIAS = "bW+bR[(gate hidden)]"
TWO_BIASES = "bW[1 (gate hidden)] bR[1 (gate hidden)]"
STACK = "[layer{layer}/][{dir}/]"


def _forms(names: dict[str, str]) -> tuple[Form, ...]:
    """The forms; `names` maps kernel, recurrent_kernel and bias to their names in the file."""

    def rows(bias: str) -> tuple[TensorRule, ...]:
        content = {**KERNELS, "bias": bias}
        return tuple(TensorRule(STACK + names[part], text) for part, text in content.items())

    return (
        Form("lstm", "ifgo", rows(BIAS), expresses=WIDE),
        Form("gru", "zrn", rows(TWO_BIASES), reset="after", expresses=WIDE),
        Form("gru", "zrn", rows(BIAS), reset="before", expresses=WIDE),
        Form("rnn", "h", rows(BIAS), expresses=WIDE),
    )


def _cudnn_rows() -> tuple[TensorRule, ...]:
    return (
        TensorRule(STACK + "kernel", "W~[in (gate hidden)]"),
        TensorRule(STACK + "recurrent_kernel", "R~[rec (gate hidden)]"),
        TensorRule(STACK + "bias", "bW![(gate hidden)] bR![(gate hidden)]"),
    )


def _gate_rows(labels: str) -> tuple[TensorRule, ...]:
    content = {"W_{gate}": "W[in hidden]", "U_{gate}": "R[rec hidden]", "b_{gate}": "bW+bR[hidden]"}
    return tuple(TensorRule(STACK + name, text, labels=labels) for name, text in content.items())


SOURCE = "keras/src/layers/rnn/{lstm,gru,simple_rnn,bidirectional}.py (3.15.1)"
BACKWARD = {"backward": "with go_backwards, Keras' outputs stay reversed in time; other libraries reverse them again"}
REQUIRED = ("backward", "merge")
SIDES = ("forward_layer", "backward_layer")
LAYOUTS = (
    Layout(
        "keras",
        "Keras LSTM, GRU, SimpleRNN and Bidirectional: kernel, recurrent_kernel, bias",
        _forms({"kernel": "kernel", "recurrent_kernel": "recurrent_kernel", "bias": "bias"}),
        separator="/",
        directions=SIDES,
        assumed=ACTIVATIONS,
        required=REQUIRED,
        caveats=BACKWARD,
        source=SOURCE,
        proof=("oracle: Keras 3 (torch backend)", "oracle: tf_keras"),
    ),
    Layout(
        "keras.vars",
        "the files of Keras 3: cell/vars/0, 1, 2",
        _forms({"kernel": "cell/vars/0", "recurrent_kernel": "cell/vars/1", "bias": "cell/vars/2"}),
        separator="/",
        directions=SIDES,
        assumed=ACTIVATIONS,
        required=REQUIRED,
        caveats=BACKWARD,
        source="keras/src/saving/saving_lib.py (3.15.1)",
        proof=("oracle: Keras 3 (torch backend)",),
    ),
    Layout(
        "keras.cudnn",
        "legacy Keras CuDNNLSTM, CuDNNGRU",
        (
            Form("lstm", "ifgo", _cudnn_rows(), expresses=EXPRESSES),
            Form("gru", "zrn", _cudnn_rows(), reset="after", expresses=EXPRESSES),
        ),
        separator="/",
        directions=SIDES,
        required=REQUIRED,
        caveats=BACKWARD,
        source="tf_keras/saving/legacy/hdf5_format.py @dd0a7237b, _convert_rnn_weights",
        proof=("oracle: tf_keras' own converter",),
    ),
    Layout(
        "keras.gates",
        "Keras 1: one array for each gate",
        (
            Form("lstm", "ifgo", _gate_rows("i=i f=f g=c o=o"), expresses=WIDE),
            Form("gru", "zrn", _gate_rows("z=z r=r n=h"), reset="before", expresses=WIDE),
        ),
        separator="/",
        directions=SIDES,
        assumed=("activation",),
        required=(*REQUIRED, "gate_activation"),
        caveats=BACKWARD,
        source="keras/layers/recurrent.py (1.2.2)",
        proof=("files: outputs that tf_keras computed from files of this form",),
    ),
)
