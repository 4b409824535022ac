"""AllenNLP's ELMo: torch's rows in linear layers, with one bias, a projection, and a stack for each direction.

The modules of a stack are `forward_layer_0`, `forward_layer_1`, ...: the network's own module ends with `forward` or
`backward`.  The backward stack is given only its own outputs, so the two are no bidirectional network.  A sequence goes
through it from its end.

Sources: allennlp/modules/elmo_lstm.py and lstm_cell_with_projection.py of AllenNLP 2.10.1.
"""

from paramtool.layouts.layout import Form, Layout, TensorRule
from paramtool.layouts.tables.tf1 import ELMO_OUTSIDE

CELL = "layer_{layer}."
LSTM = (
    TensorRule(CELL + "input_linearity.weight", "W[(gate hidden) in]"),
    TensorRule(CELL + "state_linearity.weight", "R[(gate hidden) rec]"),
    TensorRule(CELL + "state_linearity.bias", "bW+bR![(gate hidden)]"),
    TensorRule(CELL + "state_projection.weight", "P[proj hidden]"),
)

LAYOUTS = (
    Layout(
        "allennlp.elmo",
        "AllenNLP ElmoLstm: LstmCellWithProjection, a stack for each direction",
        (Form("lstm", "ifgo", LSTM),),
        separator="_",
        max_directions=1,
        source="allennlp/modules/elmo_lstm.py, allennlp/modules/lstm_cell_with_projection.py of AllenNLP 2.10.1",
        proof=("files: weights that AllenNLP itself converted", "equations"),
        outside=ELMO_OUTSIDE,
    ),
)
