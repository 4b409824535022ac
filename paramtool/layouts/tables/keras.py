"""Keras: columns are gates, one bias; the GRU has two variants, told apart by the rank of its bias.

Which way a layer runs in time, what a Bidirectional makes of its two outputs, and the activations stand in a model's
configuration alone; a file of weights does not say them.

The legacy CuDNNLSTM and CuDNNGRU store, for each gate, the bytes of the (hidden, in) matrix in an array of shape
(in, hidden): tf_keras/saving/legacy/hdf5_format.py turns them over, and so does the mark `~` here.
"""

from paramtool.layouts.layout import Form, Layout, Tensor

SAYS = frozenset({"backward", "merge"})
WIDE = SAYS | {"gate_activation"}
ACTIVATIONS = ("activation", "gate_activation")
KERNELS = {"kernel": "W[in (gate hidden)]", "recurrent_kernel": "R[rec (gate hidden)]"}
BIAS = "bW+bR[(gate hidden)]"
TWO_BIASES = "bW[1 (gate hidden)] bR[1 (gate hidden)]"
STACK = "[layer{layer}/][{dir}/]"


def _forms(names: dict[str, str]) -> tuple[Form, ...]:
    """`names` says what kernel, recurrent_kernel and bias are called."""

    def rows(bias: str) -> tuple[Tensor, ...]:
        content = {**KERNELS, "bias": bias}
        return tuple(Tensor(STACK + names[part], text) for part, text in content.items())

    return (
        Form("lstm", "ifgo", rows(BIAS), says=WIDE),
        Form("gru", "zrn", rows(TWO_BIASES), reset="after", says=WIDE),
        Form("gru", "zrn", rows(BIAS), reset="before", says=WIDE),
        Form("rnn", "h", rows(BIAS), says=WIDE),
    )


def _cudnn_rows() -> tuple[Tensor, ...]:
    return (
        Tensor(STACK + "kernel", "W~[in (gate hidden)]"),
        Tensor(STACK + "recurrent_kernel", "R~[rec (gate hidden)]"),
        Tensor(STACK + "bias", "bW![(gate hidden)] bR![(gate hidden)]"),
    )


SOURCE = "keras/src/layers/rnn/{lstm,gru,simple_rnn,bidirectional}.py (3.15.1)"
BACKWARD = {"backward": "go_backwards leaves Keras' outputs reversed in time; other libraries turn them back"}
MUST_SAY = ("backward", "merge")
SIDES = ("forward_layer", "backward_layer")
LAYOUTS = (
    Layout(
        "keras",
        "Keras LSTM, GRU, SimpleRNN and Bidirectional: kernel, recurrent_kernel, bias",
        _forms({"kernel": "kernel", "recurrent_kernel": "recurrent_kernel", "bias": "bias"}),
        separator="/",
        directions=SIDES,
        unsaid=ACTIVATIONS,
        must_say=MUST_SAY,
        doubts=BACKWARD,
        source=SOURCE,
        proof=("oracle: Keras 3 (torch backend)", "oracle: tf_keras"),
    ),
    Layout(
        "keras.vars",
        "the files of Keras 3: cell/vars/0, 1, 2",
        _forms({"kernel": "cell/vars/0", "recurrent_kernel": "cell/vars/1", "bias": "cell/vars/2"}),
        separator="/",
        directions=SIDES,
        unsaid=ACTIVATIONS,
        must_say=MUST_SAY,
        doubts=BACKWARD,
        source="keras/src/saving/saving_lib.py (3.15.1)",
        proof=("oracle: Keras 3 (torch backend)",),
    ),
    Layout(
        "keras.cudnn",
        "legacy Keras CuDNNLSTM, CuDNNGRU",
        (
            Form("lstm", "ifgo", _cudnn_rows(), says=SAYS),
            Form("gru", "zrn", _cudnn_rows(), reset="after", says=SAYS),
        ),
        separator="/",
        directions=SIDES,
        must_say=MUST_SAY,
        doubts=BACKWARD,
        source="tf_keras/saving/legacy/hdf5_format.py @dd0a7237b, _convert_rnn_weights",
        proof=("oracle: tf_keras' own converter",),
    ),
)
