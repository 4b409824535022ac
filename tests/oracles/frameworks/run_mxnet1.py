"""Runs cases of the layouts `mxnet`, `mxnet.unfused`, `mxnet.gates` and `mxnet.flat` with MXNet 1.x.

mxnet: a real file (mx.nd.save) with prefixed names, as save_params of a whole net wrote them, through load_parameters.
mxnet.unfused: a real file with the dotted names of save_parameters, through load_parameters.
mxnet.gates: FusedRNNCell.pack_weights, the library's own packer, makes the vector that the operator RNN then runs.
mxnet.flat: the operator RNN runs the vector as it stands.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import mxnet as mx
import numpy as np
from _case_files import Case, Outputs, refuse, require, serve

PREFIX = "enc_"  # of the layer in its net, where names have prefixes


def mode(case: Case) -> str:
    """The library's word for the kind of cell."""
    return case.kind if case.kind != "rnn" else f"rnn_{case.activation}"


def arrays(case: Case, prefix: str = "") -> dict:
    """The case's tensors as the library's arrays."""
    return {prefix + name: mx.nd.array(array, dtype="float32") for name, array in case.tensors.items()}


def states(case: Case) -> list:
    """The initial states as the library's arrays."""
    return [mx.nd.array(state, dtype="float32") for state in case.states()]


def net(case: Case):
    """A net that holds one recurrent layer, so that names have the prefixes that they have in users' files."""
    settings = {"input_size": case.input, "bidirectional": case.bidirectional, "prefix": PREFIX}
    if case.projection:
        settings["projection_size"] = case.projection
    if case.kind == "rnn":
        settings["activation"] = case.activation
    layer = {"lstm": mx.gluon.rnn.LSTM, "gru": mx.gluon.rnn.GRU, "rnn": mx.gluon.rnn.RNN}[case.kind]
    whole = mx.gluon.nn.Sequential(prefix="net_")
    with whole.name_scope():
        whole.add(layer(case.hidden, case.layers, **settings))
    return whole


def saved_shapes(case: Case, prefix: str, save) -> dict:
    """Names, less `prefix`, and shapes in the file that `save` writes of a fresh net of this shape."""
    whole = net(case)
    whole.initialize()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "own.params")
        save(whole, path)
        own = mx.nd.load(path)
    if not all(name.startswith(prefix) for name in own):
        raise ValueError(f"names without {prefix!r}: {sorted(own)}")
    return {name[len(prefix) :]: array.shape for name, array in own.items()}


def run_net(case: Case, prefix: str, way: str) -> Outputs:
    """Load the tensors under `prefix` from a file, as a user would, and run the layer."""
    whole = net(case)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "case.params")
        mx.nd.save(path, arrays(case, prefix))
        whole.load_parameters(path, ctx=mx.cpu())
    layer = whole[0]
    y, final = layer(mx.nd.array(case.x, dtype="float32"), states(case))
    title = f"mxnet {mx.__version__} gluon.rnn.{type(layer).__name__}, {way}"
    return Outputs(title, y.asnumpy(), *(state.asnumpy() for state in final))


def run_prefixed(case: Case) -> Outputs:
    """Layout mxnet."""
    refuse(case, projection=True)
    require(case, saved_shapes(case, PREFIX, lambda whole, path: whole.collect_params().save(path, whole.prefix)))
    return run_net(case, PREFIX, "prefixed names")


def run_unfused(case: Case) -> Outputs:
    """Layout mxnet.unfused."""
    refuse(case, projection=True)
    require(case, saved_shapes(case, "0.", lambda whole, path: whole.save_parameters(path)))
    return run_net(case, "0.", "names of save_parameters")


def run_operator(case: Case, vector, way: str) -> Outputs:
    """The operator RNN on one vector of parameters; it refuses a vector of another length."""
    named = dict(zip(("state", "state_cell"), states(case)))  # noqa: B905 - a cell state stands in an LSTM only
    settings = {"mode": mode(case), "state_size": case.hidden, "num_layers": case.layers, "state_outputs": True}
    if case.projection:
        settings["projection_size"] = case.projection
    x = mx.nd.array(case.x, dtype="float32")
    found = mx.nd.RNN(data=x, parameters=vector, bidirectional=case.bidirectional, **settings, **named)
    return Outputs(f"mxnet {mx.__version__} nd.RNN, {way}", *(array.asnumpy() for array in found))


def run_gates(case: Case) -> Outputs:
    """Layout mxnet.gates."""
    refuse(case)
    cell = mx.rnn.FusedRNNCell(case.hidden, case.layers, mode(case), bidirectional=case.bidirectional, prefix="")
    cells = case.layers * case.directions
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[case.kind] * case.hidden
    first, later = case.input + case.hidden + 2, (case.directions + 1) * case.hidden + 2
    size = gates * (case.directions * first + (cells - case.directions) * later)
    unpacked = cell.unpack_weights({"parameters": mx.nd.zeros((size,))})
    require(case, {name: array.shape for name, array in unpacked.items()})
    packed = cell.pack_weights(arrays(case))
    if list(packed) != ["parameters"]:
        raise ValueError(f"names that pack_weights did not use: {sorted(packed)}")
    return run_operator(case, packed["parameters"], "packed by FusedRNNCell.pack_weights")


def run_flat(case: Case) -> Outputs:
    """Layout mxnet.flat."""
    refuse(case, projection=True)
    require(case, {"parameters": case.tensors.get("parameters", np.zeros(0)).shape})
    return run_operator(case, arrays(case)["parameters"], "one vector")


if __name__ == "__main__":
    layouts = {"mxnet": run_prefixed, "mxnet.unfused": run_unfused, "mxnet.gates": run_gates, "mxnet.flat": run_flat}
    sys.exit(serve(layouts, {"mxnet1": mx.__version__}))
