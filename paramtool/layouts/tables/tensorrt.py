"""TensorRT's deprecated IRNNLayer: two flat vectors, gates f i c o and z r h.  Source: include/NvInfer.h at 7.1.3."""

from paramtool.layouts.layout import Form, Layout, TensorRule

FLAT = (
    TensorRule("weights", "{layer dir: W[(gate hidden in)] R[(gate hidden rec)]}"),
    TensorRule("biases", "{layer dir: bW![(gate hidden)] bR![(gate hidden)]}"),
)

LAYOUTS = (
    Layout(
        "tensorrt",
        "TensorRT IRNNLayer: setWeights, setBias",
        (
            Form("lstm", "figo", FLAT),
            Form("gru", "zrn", FLAT, reset="after"),
            Form("rnn", "h", FLAT),
        ),
        source="include/NvInfer.h and samples/opensource/sampleCharRNN at tag 7.1.3",
        proof=("equations",),
        names_identify=False,
    ),
)
