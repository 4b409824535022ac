"""cuDNN: one flat vector, all matrices, then all biases ("order P").  Other libraries copied this order.

cuDNN does not guarantee this order; programs are to query it (cudnnGetRNNWeightParams).  `python -m proof
cudnn` does, and `records/` has the answers of five versions, 8.9.7 to 9.28.0.  The storages of checkpoints that were
saved from GPUs have this order too, and PyTorch asserts it each time it makes such a buffer
(aten/src/ATen/native/cudnn/RNN.cpp, get_parameters).
"""

from paramtool.layouts.layout import UNSEEN, Form, Layout, Option, TensorRule
from paramtool.layouts.spec import GATES

MATRICES = "{layer dir: W[(gate hidden in)] R[(gate hidden rec)] P[(proj hidden)]}"
"""linLayerID 0 to 3 (LSTM) of each pseudo-layer, then 4 to 7, and 8 for the projection."""
BOTH_BIASES = "{layer dir: bW!tail[(gate hidden)] bR!tail[(gate hidden)]}"
ORDER_P = f"{MATRICES} {BOTH_BIASES}"
ALWAYS_P = ORDER_P.replace("!tail", "!")
"""Order P for libraries that always store both biases."""
ONE_BIAS = {
    "lstm": "{layer dir: bW+bR[(gate hidden)]}",
    "rnn": "{layer dir: bW+bR[(gate hidden)]}",
}
# CUDNN_RNN_SINGLE_INP_BIAS: the bias is added to the input's product; for a GRU's candidate it is outside r * ( )
INPUT_BIAS = ONE_BIAS | {"gru": "{layer dir: bW+bR.rz[(gate hidden)] bW.n[(gate hidden)]}"}
# CUDNN_RNN_SINGLE_REC_BIAS: added to the recurrent product; for a GRU's candidate it is inside r * ( )
RECURRENT_BIAS = ONE_BIAS | {"gru": "{layer dir: bW+bR.rz[(gate hidden)] bR.n[(gate hidden)]}"}


def _forms(mode: str, biases: dict[str, str]) -> tuple[Form, ...]:
    return tuple(
        Form(
            kind,
            GATES[kind],
            (TensorRule("flat_weights", f"{MATRICES} {biases[kind]}"),),
            reset="after" if kind == "gru" else "",
            when={"bias_mode": mode},
        )
        for kind in GATES
    )


BIAS_MODE = Option(
    "bias_mode",
    "double",
    "double, input or recurrent: cuDNN's cudnnRNNBiasMode_t",
    True,
    ("double", "input", "recurrent"),
)
TAIL = Option(
    "tail",
    "yes",
    "yes, no or unseen: whether a buffer without biases has space for them; unseen space may hold anything",
    True,
    ("yes", "no", UNSEEN),
)

LAYOUTS = (
    Layout(
        "cudnn",
        "cuDNN's weight space, as PyTorch flattens it on a GPU",
        forms=(
            *_forms("double", dict.fromkeys(GATES, BOTH_BIASES)),
            *_forms("input", INPUT_BIAS),
            *_forms("recurrent", RECURRENT_BIAS),
        ),
        options=(
            BIAS_MODE,
            TAIL,
        ),
        source="cuDNN's cudnnGetRNNWeightParams; 72 storages in 11 files saved from GPUs; "
        "aten/src/ATen/native/cudnn/RNN.cpp; TensorFlow's CudnnOpaqueParamsSaveable; jax.experimental.rnn",
        proof=("files: storages saved from GPUs", "oracle: jax.experimental.rnn (LSTM)"),
        gpu=True,
    ),
)
