"""CNTK: optimized_rnnstack's flat parameter (order P), and the native LSTM.

Source: bindings/python/cntk/misc/optimized_rnnstack_converter.py @0840bc7e.
"""

from paramtool.layouts.layout import Form, Layout, TensorRule
from paramtool.layouts.spec import GATES
from paramtool.layouts.tables.cudnn import ALWAYS_P

FLAT = ALWAYS_P.replace(" P[(proj hidden)]", "")
STACK = "[layer{layer}.][{dir}.]"

LAYOUTS = (
    Layout(
        "cntk",
        "CNTK optimized_rnnstack",
        tuple(
            Form(kind, GATES[kind], (TensorRule("W", FLAT),), reset="after" if kind == "gru" else "") for kind in GATES
        ),
        source="bindings/python/cntk/misc/optimized_rnnstack_converter.py @0840bc7e",
        proof=("equations",),
        names_identify=False,
    ),
    Layout(
        "cntk.lstm",
        "CNTK's native LSTM: W, H, b",
        (
            Form(
                "lstm",
                "igfo",
                (
                    TensorRule(STACK + "W", "W[in (gate hidden)]"),
                    TensorRule(STACK + "H", "R[rec (gate hidden)]"),
                    TensorRule(STACK + "b", "bW+bR![(gate hidden)]"),
                ),
            ),
        ),
        directions=("forward", "backward"),
        source="bindings/python/cntk/misc/optimized_rnnstack_converter.py @0840bc7e",
        proof=("equations",),
        names_identify=False,
    ),
)
