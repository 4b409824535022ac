"""Runs cases of the layout `onednn` with oneDNN's own RNN primitives, through the C interface of its shared library.

The library is the one that PaddlePaddle's package carries (`paddle/libs/libdnnl.so.3`), or the one that the variable
ONEDNN_LIBRARY names. Each layer is one primitive; the case's tensors are handed over as they stand, as dense memory in
the orders ldigo, ldgo and ldio. Numbers below are those of dnnl_types.h and dnnl_common_types.h, release 3.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
from _case_files import Case, Outputs, refuse, require, serve

CPU, IN_ORDER, F32, FORWARD_INFERENCE = 1, 1, 3, 96
LEFT_TO_RIGHT, BIDIRECTIONAL_CONCAT = 1, 3
ELTWISE = {"relu": 0x20, "tanh": 0x21}
# DNNL_ARG_*
ARGUMENTS = {"src_layer": 1, "src_iter": 2, "src_iter_c": 3, "dst_layer": 17, "dst_iter": 18, "dst_iter_c": 19}
ARGUMENTS.update(weights_layer=33, weights_iter=34, weights_peephole=35, weights_projection=36, bias=41)
ORDER = ["src_layer", "src_iter", "weights_layer", "weights_iter", "bias", "dst_layer", "dst_iter"]
# of dnnl_lstm_forward_primitive_desc_create
LSTM_ORDER = ["src_layer", "src_iter", "src_iter_c", "weights_layer", "weights_iter", "weights_peephole"]
LSTM_ORDER += ["weights_projection", "bias", "dst_layer", "dst_iter", "dst_iter_c"]
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


class Version(ctypes.Structure):
    """dnnl_version_t."""

    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


class Argument(ctypes.Structure):
    """dnnl_exec_arg_t."""

    _fields_ = (("arg", ctypes.c_int), ("memory", ctypes.c_void_p))


def find_library() -> str:
    """Path of the shared library."""
    if "ONEDNN_LIBRARY" in os.environ:
        return os.environ["ONEDNN_LIBRARY"]
    spec = importlib.util.find_spec("paddle")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("no oneDNN: install paddlepaddle, or let ONEDNN_LIBRARY name libdnnl.so.3")
    return str(Path(spec.submodule_search_locations[0], "libs", "libdnnl.so.3"))


class OneDNN:
    """The library with an engine and a stream on the CPU."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(find_library())
        self.library.dnnl_version.restype = ctypes.POINTER(Version)
        version = self.library.dnnl_version().contents
        self.version = f"{version.major}.{version.minor}.{version.patch}"
        if version.major != 3:
            raise SystemExit(f"oneDNN {self.version}: this script knows the interface of release 3")
        self.engine = self.make("engine_create", ctypes.c_int(CPU), ctypes.c_size_t(0))
        self.stream = self.make("stream_create", self.engine, ctypes.c_uint(IN_ORDER))

    def call(self, name: str, *arguments) -> None:
        """Call a function of the library; RuntimeError unless it returns dnnl_success."""
        status = getattr(self.library, f"dnnl_{name}")(*arguments)
        if status:
            raise RuntimeError(f"dnnl_{name} returned status {status}")

    def make(self, name: str, *arguments) -> ctypes.c_void_p:
        """The object that a creating function puts behind its first argument."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def describe(self, array: np.ndarray) -> ctypes.c_void_p:
        """A memory descriptor of a C-contiguous float32 array."""
        dims = ctypes.c_int64 * 12  # DNNL_MAX_NDIMS
        strides = dims(*(step // array.itemsize for step in array.strides))
        return self.make(
            "memory_desc_create_with_strides", ctypes.c_int(array.ndim), dims(*array.shape), ctypes.c_int(F32), strides
        )

    def run(self, case: Case, arrays: dict) -> None:
        """Run one layer on `arrays`, named as in ARGUMENTS; results land in those whose name starts with dst."""
        described = {name: self.describe(array) for name, array in arrays.items()}
        order = LSTM_ORDER if case.kind == "lstm" else ORDER
        descriptors = [described.get(name, ctypes.c_void_p()) for name in order]
        direction = ctypes.c_int(BIDIRECTIONAL_CONCAT if case.bidirectional else LEFT_TO_RIGHT)
        head, tail = [self.engine, ctypes.c_int(FORWARD_INFERENCE)], [ctypes.c_uint(0)]
        if case.kind == "rnn":
            head.append(ctypes.c_int(ELTWISE[case.activation]))
            tail += [ctypes.c_float(0.0), ctypes.c_float(0.0)]
        kind = {"rnn": "vanilla_rnn", "gru": "lbr_gru" if case.reset == "after" else "gru"}.get(case.kind, "lstm")
        made = self.make(
            f"{kind}_forward_primitive_desc_create", *head, direction, *descriptors, *tail, ctypes.c_void_p()
        )
        primitive = self.make("primitive_create", made)
        passed = (Argument * len(arrays))()
        for position, (name, array) in enumerate(arrays.items()):
            memory = self.make("memory_create", described[name], self.engine, ctypes.c_void_p(array.ctypes.data))
            passed[position] = Argument(ARGUMENTS[name], memory.value)
        self.call("primitive_execute", primitive, self.stream, ctypes.c_int(len(arrays)), passed)
        self.call("stream_wait", self.stream)


def shapes(case: Case, layer: int) -> dict:
    """Names and shapes of one layer's weights: (1, directions, in, gates, hidden) and so on."""
    lead, gates = (1, case.directions), GATES[case.kind]
    found = {
        "weights_layer": (*lead, case.width(layer), gates, case.hidden),
        "weights_iter": (*lead, case.recurrent, gates, case.hidden),
        # also of a network without biases, as zeros: the CPU has no implementation that goes without
        "bias": (*lead, gates + (case.kind == "gru" and case.reset == "after"), case.hidden),
    }
    if case.peephole:
        found["weights_peephole"] = (*lead, 3, case.hidden)
    if case.projection:
        found["weights_projection"] = (*lead, case.hidden, case.projection)
    return found


def run(onednn: OneDNN, case: Case) -> Outputs:
    """The library's outputs for a case."""
    refuse(case, projection=True, peephole=True, reset_before=True)
    prefixes = [f"layer{layer}." if case.layers > 1 else "" for layer in range(case.layers)]
    weights = [{prefixes[k] + name: shape for name, shape in shapes(case, k).items()} for k in range(case.layers)]
    require(case, {name: shape for layer in weights for name, shape in layer.items()})
    steps, samples, _ = case.x.shape
    split = (case.layers, 1, case.directions, samples, -1)  # one layer of it is ldnc
    h0, c0 = (None if state is None else state.reshape(split) for state in (case.h0, case.c0))
    hn, cn = (None if state is None else np.full_like(state, np.nan) for state in (h0, c0))
    y = np.ascontiguousarray(case.x)
    for layer in range(case.layers):
        arrays = {"src_layer": y, "src_iter": h0[layer]}
        arrays.update({name[len(prefixes[layer]) :]: case.tensors[name] for name in weights[layer]})
        y = np.full((steps, samples, case.directions * case.recurrent), np.nan, np.float32)
        arrays.update(dst_layer=y, dst_iter=hn[layer])
        if case.kind == "lstm":
            arrays.update(src_iter_c=c0[layer], dst_iter_c=cn[layer])
        onednn.run(case, {name: np.require(array, np.float32, "CW") for name, array in arrays.items()})
    final = [state.reshape(before.shape) for state, before in ((hn, case.h0), (cn, case.c0)) if state is not None]
    return Outputs(f"oneDNN {onednn.version} {case.kind}", y, *final)


if __name__ == "__main__":
    library = OneDNN()
    sys.exit(serve({"onednn": partial(run, library)}, {"onednn": library.version}))
