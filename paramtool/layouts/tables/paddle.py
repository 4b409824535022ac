"""Paddle: torch's order, each parameter under two names, and a transposed projection.

With a projection Paddle assigns the torch-like names wrongly, except for the first direction and layer: it assigns them
in groups of four, while each cell has five tensors.  Such networks only have the names `N.cell...` here.
Source: paddle/nn/layer/rnn.py (3.3.1).
"""

from paramtool.layouts.layout import Form, Layout, TensorRule
from paramtool.layouts.spec import GATES

SIDES = ("_fw", "_bw")
PARTS = {
    "weight_ih": "W[(gate hidden) in]",
    "weight_hh": "R[(gate hidden) rec]",
    "bias_ih": "bW![(gate hidden)]",
    "bias_hh": "bR![(gate hidden)]",
}
CELLS = tuple(TensorRule("{layer}.cell[{dir}]." + part, text, directions=SIDES) for part, text in PARTS.items())
TWINS = tuple(TensorRule(part + "_l{layer}{dir}", text, optional=True, unless="P") for part, text in PARTS.items())
PROJECTION = TensorRule("{layer}.cell[{dir}].weight_ho", "P[hidden proj]", directions=SIDES)

LAYOUTS = (
    Layout(
        "paddle",
        "Paddle nn.LSTM, nn.GRU, nn.SimpleRNN",
        (
            Form("lstm", GATES["lstm"], (*TWINS, *CELLS, PROJECTION)),
            Form("gru", GATES["gru"], (*TWINS, *CELLS), reset="after"),
            Form("rnn", GATES["rnn"], (*TWINS, *CELLS)),
        ),
        source="paddle/nn/layer/rnn.py (3.3.1)",
        proof=("oracle: paddle",),
        note="Paddle 3.3.1 crashes on a network without biases, so zero biases are written",
    ),
)
