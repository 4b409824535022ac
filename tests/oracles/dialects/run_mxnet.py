"""MXNet's interleaved attention operators on weights in a file: run by the Python of MXNet's environment.

    python run_mxnet.py IN.npz OUT.npz

IN: x [length, batch, N], heads; weight [3 heads head_dim, N] and bias of the self attention, each head's q, k and v one
below the other; q_weight, q_bias, kv_weight [2 heads head_dim, N] and kv_bias of the attention to y [length, batch, N].
OUT: self and encdec, the heads' results [length, batch, heads head_dim], and the version.
"""

import sys

import mxnet as mx
import numpy as np


def linear(x, weight, bias):
    return mx.nd.FullyConnected(x, weight, bias, num_hidden=weight.shape[0], flatten=False)


def main():
    with np.load(sys.argv[1]) as file:
        given = {name: mx.nd.array(value, dtype="float32") for name, value in file.items() if name != "heads"}
        heads = int(file["heads"])
    ops = mx.nd.contrib
    fused = linear(given["x"], given["weight"], given["bias"])
    scores = mx.nd.softmax(ops.interleaved_matmul_selfatt_qk(fused, heads=heads))
    found = {"self": ops.interleaved_matmul_selfatt_valatt(fused, scores, heads=heads).asnumpy()}
    if "kv_weight" in given:
        q = linear(given["x"], given["q_weight"], given["q_bias"])
        kv = linear(given["y"], given["kv_weight"], given["kv_bias"])
        scores = mx.nd.softmax(ops.interleaved_matmul_encdec_qk(q, kv, heads=heads))
        found["encdec"] = ops.interleaved_matmul_encdec_valatt(kv, scores, heads=heads).asnumpy()
    np.savez(sys.argv[2], version=mx.__version__, **found)


if __name__ == "__main__":
    main()
