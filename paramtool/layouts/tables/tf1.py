"""TensorFlow 1 cells: one kernel with the input's rows above the recurrent ones, and a forget bias added at run time.

The forget bias (1.0 by default) and the cell clip are arguments of the constructor; no checkpoint has them.

ELMo's files (bilm-tf, AllenNLP) have the names of TensorFlow before 1.0, and a stack for each direction: the backward
one is given only its own outputs, so the two are no bidirectional network.

Sources: tf_keras/layers/rnn/legacy_cells.py; tensorflow/contrib/cudnn_rnn/python/ops/cudnn_rnn_ops.py
@05d0f1f3; the documentation of the raw operations BlockLSTM and GRUBlockCell;
allennlp/modules/elmo_lstm.py and lstm_cell_with_projection.py of AllenNLP 2.10.1.
"""

from paramtool.layouts.layout import Form, Layout, Option, TensorRule
from paramtool.layouts.spec import GATES
from paramtool.layouts.tables.cudnn import ALWAYS_P

SCOPES = "<basic_lstm_cell/|lstm_cell/|lstm_fused_cell/|lstm_block_cell/|gru_cell/|gru_block_cell/|basic_rnn_cell/>"
CUDNN_SCOPES = "<cudnn_compatible_lstm_cell/|cudnn_compatible_gru_cell/>"
STACK = "[cell_{layer}/]<bidirectional_rnn/>[{dir}/]" + SCOPES
OPAQUE_PROJECTION = {
    "P": "it is not known where cuDNN 7 and older put a projection; after R is assumed, as in cuDNN 8.9.7 and later"
}
CUDNN_STACK = "[cell_{layer}/]<bidirectional_rnn/>[{dir}/]" + CUDNN_SCOPES
JOINED = "W[in (gate hidden)] R[rec (gate hidden)]"
SHIFTED_BIAS = "bW+bR!.ig[(gate hidden)] bW+bR-forget_bias!.f[(gate hidden)] bW+bR!.o[(gate hidden)]"
LSTM = (
    TensorRule(STACK + "kernel", JOINED),
    TensorRule(STACK + "bias", SHIFTED_BIAS),
    *(TensorRule(f"{STACK}w_{gate}_diag", f"peep.{gate}[hidden]") for gate in "ifo"),
)
PROJECTION = TensorRule(STACK + "projection/kernel", "P[hidden proj]")
GRU = (
    TensorRule(STACK + "gates/kernel", "W.rz[in (gate hidden)] R.rz[rec (gate hidden)]"),
    TensorRule(STACK + "gates/bias", "bW+bR!.rz[(gate hidden)]"),
    TensorRule(STACK + "candidate/kernel", "W.n[in hidden] R.n[rec hidden]"),
    TensorRule(STACK + "candidate/bias", "bW+bR!.n[hidden]"),
)
RNN = (TensorRule(STACK + "kernel", JOINED), TensorRule(STACK + "bias", "bW+bR![(gate hidden)]"))
CUDNN_GRU = (
    TensorRule(CUDNN_STACK + "gates/kernel", "W.rz[in (gate hidden)] R.rz[rec (gate hidden)]"),
    TensorRule(CUDNN_STACK + "gates/bias", "bW+bR!.rz[(gate hidden)]"),
    TensorRule(CUDNN_STACK + "candidate/input_projection/kernel", "W.n[in hidden]"),
    TensorRule(CUDNN_STACK + "candidate/input_projection/bias", "bW!.n[hidden]"),
    TensorRule(CUDNN_STACK + "candidate/hidden_projection/kernel", "R.n[rec hidden]"),
    TensorRule(CUDNN_STACK + "candidate/hidden_projection/bias", "bR!.n[hidden]"),
)
FORGET_BIAS = Option("forget_bias", "1.0", "what the cell adds to the forget gate at run time; not in the checkpoint")
SIDES = ("fw", "bw")
ELMO_CELL = "RNN/MultiRNNCell/Cell{layer}/LSTMCell/"
ELMO = (
    TensorRule(ELMO_CELL + "W_0", JOINED),
    TensorRule(ELMO_CELL + "B", SHIFTED_BIAS),
    TensorRule(ELMO_CELL + "W_P_0", "P[hidden proj]"),
)
ELMO_OUTSIDE = (
    "ELMo's cells clip the memory cell and the projected state at each step, by cell_clip and proj_clip of its "
    "options.json (3 in the published models); torch.nn.LSTM and cuDNN do not",
    "ELMo adds the input of each layer but the first to its output (skip connections), and its two directions are two "
    "separate stacks; torch.nn.LSTM adds nothing: --stack splits the layers, so that a program can add between them",
)
"""What ELMo's programs do that no tensor shows (allennlp/modules/elmo_lstm.py, lstm_cell_with_projection.py)."""

LAYOUTS = (
    Layout(
        "tf1.basic",
        "TensorFlow 1 BasicLSTMCell, LSTMCell, GRUCell, BasicRNNCell",
        (
            Form("lstm", "igfo", (*LSTM, PROJECTION), expresses=frozenset({"cell_clip"})),
            Form("gru", "rzn", GRU, reset="before"),
            Form("rnn", "h", RNN),
        ),
        separator="/",
        directions=SIDES,
        options=(FORGET_BIAS,),
        source="tf_keras/layers/rnn/legacy_cells.py @dd0a7237b",
        proof=("oracle: TensorFlow's cells",),
        names_identify=False,
    ),
    Layout(
        "tf1.block",
        "TensorFlow 1 LSTMBlockCell, LSTMBlockFusedCell, GRUBlockCell",
        (
            Form("lstm", "igfo", LSTM, expresses=frozenset({"cell_clip"})),
            Form("gru", "rzn", GRU, reset="before"),
        ),
        separator="/",
        directions=SIDES,
        options=(FORGET_BIAS,),
        source="documentation of the raw operations BlockLSTM and GRUBlockCell",
        proof=("oracle: TensorFlow's raw operations",),
        names_identify=False,
        required=("cell_clip",),
        note="BlockLSTM clips the cell at 3 by default: give cell_clip=3.0 or cell_clip=0 in the spec",
    ),
    Layout(
        "tf1.opaque",
        "TensorFlow 1 contrib.cudnn_rnn: the opaque vector",
        tuple(
            Form(kind, GATES[kind], (TensorRule("opaque_kernel", ALWAYS_P),), reset="after" if kind == "gru" else "")
            for kind in GATES
        ),
        separator="/",
        caveats=OPAQUE_PROJECTION,
        source="tensorflow/contrib/cudnn_rnn/python/ops/cudnn_rnn_ops.py @05d0f1f3: the order of its canonical list",
        proof=("equations",),
        gpu=True,
    ),
    Layout(
        "tf1.canonical",
        "TensorFlow 1 contrib.cudnn_rnn: CudnnCompatibleLSTMCell, CudnnCompatibleGRUCell",
        (
            Form(
                "lstm",
                "igfo",
                (TensorRule(CUDNN_STACK + "kernel", JOINED), TensorRule(CUDNN_STACK + "bias", "bW+bR![(gate hidden)]")),
            ),
            Form("gru", "rzn", CUDNN_GRU, reset="after"),
        ),
        separator="/",
        directions=SIDES,
        source="tensorflow/contrib/cudnn_rnn/python/ops/cudnn_rnn_ops.py @05d0f1f3",
        proof=("oracle: TensorFlow's LSTMCell without a forget bias", "equations: the GRU"),
        names_identify=False,
    ),
    Layout(
        "tf1.elmo",
        "ELMo's HDF5 of TensorFlow: LSTMCell with projection, a stack for each direction",
        (Form("lstm", "igfo", ELMO),),
        separator="/",
        max_directions=1,
        options=(FORGET_BIAS,),
        source="allennlp/modules/elmo_lstm.py (load_weights) of AllenNLP 2.10.1",
        proof=("files: weights that AllenNLP itself converted", "equations"),
        outside=ELMO_OUTSIDE,
    ),
)
