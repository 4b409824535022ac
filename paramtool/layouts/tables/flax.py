"""Flax: linen has one matrix for each gate; nnx does too in LSTMCell, and fuses them in OptimizedLSTMCell and GRUCell.

linen.GRUCell has a bias inside r * ( ), nnx.GRUCell has none: a GRU with such a bias cannot go there.  `if_` in nnx
because `if` is a word of Python.  Sources: flax/linen/recurrent.py and flax/nnx/nn/recurrent.py (0.12.8).
"""

from paramtool.layouts.layout import Form, Layout, TensorRule

STACK = "[layer{layer}/][{dir}/]"
SIDES = ("forward", "backward")


def _lstm(labels: str) -> tuple[TensorRule, ...]:
    return (
        TensorRule(STACK + "i{gate}/kernel", "W[in hidden]", labels=labels),
        TensorRule(STACK + "h{gate}/kernel", "R[rec hidden]"),
        TensorRule(STACK + "h{gate}/bias", "bW+bR![hidden]"),
    )


LINEN_GRU = (
    TensorRule(STACK + "i{gate}/kernel", "W[in hidden]"),
    TensorRule(STACK + "i{gate}/bias", "bW+bR!.rz[hidden]", labels="r=r z=z"),
    TensorRule(STACK + "in/bias", "bW!.n[hidden]"),
    TensorRule(STACK + "h{gate}/kernel", "R[rec hidden]"),
    TensorRule(STACK + "hn/bias", "bR!.n[hidden]"),
)
LINEN_RNN = (
    TensorRule(STACK + "i/kernel", "W[in hidden]"),
    TensorRule(STACK + "i/bias", "bW+bR![hidden]"),
    TensorRule(STACK + "h/kernel", "R[rec hidden]"),
)
NNX_GRU = (
    TensorRule(STACK + "dense_i/kernel", "W[in (gate hidden)]"),
    TensorRule(STACK + "dense_i/bias", "bW+bR!.rz[(gate hidden)] bW!.n[(gate hidden)]"),
    TensorRule(STACK + "dense_h/kernel", "R[rec (gate hidden)]"),
)
NNX_RNN = (
    TensorRule(STACK + "dense_i/kernel", "W[in hidden]"),
    TensorRule(STACK + "dense_i/bias", "bW+bR![hidden]"),
    TensorRule(STACK + "dense_h/kernel", "R[rec hidden]"),
)
NNX_OPTIMIZED = (
    TensorRule(STACK + "dense_i/kernel", "W[in (gate hidden)]"),
    TensorRule(STACK + "dense_h/kernel", "R[rec (gate hidden)]"),
    TensorRule(STACK + "dense_h/bias", "bW+bR![(gate hidden)]"),
)
LAYOUTS = (
    Layout(
        "flax.linen",
        "Flax linen LSTMCell, OptimizedLSTMCell, GRUCell, SimpleCell",
        (
            Form("lstm", "ifgo", _lstm("")),
            Form("gru", "rzn", LINEN_GRU, reset="after"),
            Form("rnn", "h", LINEN_RNN),
        ),
        separator="/",
        directions=SIDES,
        source="flax/linen/recurrent.py (0.12.8)",
        proof=("oracle: flax.linen",),
        note="linen has no stacks: each module names its layers itself, see --rename",
    ),
    Layout(
        "flax.nnx",
        "Flax nnx LSTMCell, GRUCell, SimpleCell",
        (
            Form("lstm", "ifgo", _lstm("i=i f=f_ g=g o=o")),
            Form("gru", "rzn", NNX_GRU, reset="after"),
            Form("rnn", "h", NNX_RNN),
        ),
        separator="/",
        directions=SIDES,
        source="flax/nnx/nn/recurrent.py (0.12.8)",
        proof=("oracle: flax.nnx",),
    ),
    Layout(
        "flax.nnx.optimized",
        "Flax nnx OptimizedLSTMCell",
        (Form("lstm", "ifgo", NNX_OPTIMIZED),),
        separator="/",
        directions=SIDES,
        source="flax/nnx/nn/recurrent.py (0.12.8)",
        proof=("oracle: flax.nnx",),
    ),
)
