"""Lasagne: one array for each gate; peepholes by default, trained initial states, a GRU whose u is the complement.

Source: lasagne/layers/recurrent.py @5d3c63c.  Its GRU computes h' = (1 - u) h + u c, with the product before the reset
gate and no bias inside: u's columns are negated here.
"""

from paramtool.layouts.layout import Form, Layout, Option, TensorRule

STACK = "[layer{layer}.][{dir}.]"
LSTM_GATES = "i=ingate f=forgetgate g=cell o=outgate"
LSTM = (
    TensorRule(STACK + "W_in_to_{gate}", "W[in hidden]", labels=LSTM_GATES),
    TensorRule(STACK + "W_hid_to_{gate}", "R[rec hidden]", labels=LSTM_GATES),
    TensorRule(STACK + "b_{gate}", "bW+bR![hidden]", labels=LSTM_GATES),
    TensorRule(STACK + "W_cell_to_{gate}", "peep!peepholes.ifo[hidden]", labels="i=ingate f=forgetgate o=outgate"),
    TensorRule(STACK + "cell_init", "c0![1 hidden]", optional=True),
    TensorRule(STACK + "hid_init", "h0![1 rec]", optional=True),
)
GRU = (
    TensorRule(STACK + "W_in_to_{gate}", "W.rn[in hidden]", labels="r=resetgate n=hidden_update"),
    TensorRule(STACK + "W_in_to_updategate", "-W.z[in hidden]"),
    TensorRule(STACK + "W_hid_to_{gate}", "R.rn[rec hidden]", labels="r=resetgate n=hidden_update"),
    TensorRule(STACK + "W_hid_to_updategate", "-R.z[rec hidden]"),
    TensorRule(STACK + "b_resetgate", "bW+bR!.r[hidden]"),
    TensorRule(STACK + "b_updategate", "-bW-bR!.z[hidden]"),
    TensorRule(STACK + "b_hidden_update", "bW!.n[hidden]"),
    TensorRule(STACK + "hid_init", "h0![1 rec]", optional=True),
)

PEEPHOLES = Option(
    "peepholes", "yes", "yes or no: whether zero peepholes are written for a network that has none", True, ("yes", "no")
)

LAYOUTS = (
    Layout(
        "lasagne",
        "Lasagne LSTMLayer, GRULayer",
        (Form("lstm", "ifgo", LSTM, expresses=frozenset({"backward"})), Form("gru", "rzn", GRU, reset="after")),
        directions=("forward", "backward"),
        options=(PEEPHOLES,),
        source="lasagne/layers/recurrent.py @5d3c63c",
        proof=("equations",),
    ),
)
