"""Runs cases of the layout `chainer` with Chainer's NStepLSTM, NStepGRU, NStepRNNTanh, NStepRNNReLU and their Bi forms.

The weights take the library's usual way: an .npz file as save_npz writes it, and load_npz. That one takes no notice of
names too many and lets NumPy broadcast a wrong shape, so both are checked here first.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import chainer
import numpy as np
from _case_files import Case, Outputs, refuse, require, serve


def build(case: Case):
    """The library's link for the case, with weights of its own."""
    suffix = {"lstm": "LSTM", "gru": "GRU"}.get(case.kind) or {"tanh": "RNNTanh", "relu": "RNNReLU"}[case.activation]
    link = getattr(chainer.links, f"NStep{'Bi' if case.bidirectional else ''}{suffix}")
    return link(case.layers, case.input, case.hidden, 0.0)


def load(case: Case, link) -> None:
    """Fill the link from a file of its own format."""
    require(case, {name.lstrip("/"): param.shape for name, param in link.namedparams()})
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "case.npz")
        np.savez(path, **case.tensors)
        chainer.serializers.load_npz(path, link, strict=True)


def run(case: Case) -> Outputs:
    """The library's outputs for a case."""
    refuse(case)
    link = build(case)
    load(case, link)
    samples = [np.ascontiguousarray(case.x[:, n]) for n in range(case.x.shape[1])]
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        *final, ys = link(*case.states(), samples)
    y = np.stack([sample.array for sample in ys], axis=1)
    title = f"chainer {chainer.__version__} links.{type(link).__name__}"
    return Outputs(title, y, *(state.array for state in final))


if __name__ == "__main__":
    sys.exit(serve({"chainer": run}, {"chainer": chainer.__version__}))
