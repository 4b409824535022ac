"""What is known of Julia's types: numbers, the fields of structs, and which structs are recurrent cells.

BSON.jl writes the fields of a struct as a row, without their names.  The names of Flux's own fields are in `FIELDS`,
found by the type's name and the number of fields, because they changed between versions.  Fields of other structs are
called by their positions, from 1.

Sources: FluxML/Flux.jl, src/layers/basic.jl, conv.jl, normalise.jl and recurrent.jl, and src/optimise/optimisers.jl, at
v0.9.0, v0.10.4, v0.11.6, v0.12.10, v0.13.17, v0.14.25, v0.15.0 and @3f2f828b5; FluxML/Optimisers.jl, src/interface.jl
and src/rules.jl (v0.3); FluxML/Tracker.jl, src/lib/array.jl; JuliaLang/julia, stdlib/LinearAlgebra/src/adjtrans.jl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paramtool.model.checkpoint import Module
from paramtool.model.objects import Node, Opaque, TensorRef, items_of
from paramtool.model.view import Shapes

NUMBERS = {
    "Core.Float16": "float16", "Core.Float32": "float32", "Core.Float64": "float64", "Core.Bool": "bool",
    "Core.Int8": "int8", "Core.Int16": "int16", "Core.Int32": "int32", "Core.Int64": "int64",
    "Core.UInt8": "uint8", "Core.UInt16": "uint16", "Core.UInt32": "uint32", "Core.UInt64": "uint64",
    "Core.BFloat16": "bfloat16", "BFloat16s.BFloat16": "bfloat16",
}  # fmt: skip
"""{type: element type}.  BFloat16 is of the package BFloat16s.jl, and since Julia 1.11 of Core."""
COMPLEX = {"Core.Float16": "complex32", "Core.Float32": "complex64", "Core.Float64": "complex128"}
"""{parameter of Base.Complex: element type}."""
CODES = {
    "float16": "e", "float32": "f", "float64": "d", "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
}  # fmt: skip
"""{element type: its letter in Python's struct}."""
ROOTS = ("Core", "Base", "LinearAlgebra", "Flux", "NNlib", "Tracker", "Optimisers", "BFloat16s")
"""Modules whose names are read; files also call them `Main.Base` and `Main.Core` (BSON.jl's own test files)."""
DICTS = ("Base.Dict", "Base.IdDict")
"""BSON.jl writes the keys and the values of these, not their fields."""
TURNED = ("LinearAlgebra.Transpose", "LinearAlgebra.Adjoint")
TRACKED = ("Tracker.TrackedArray", "Flux.Tracker.TrackedArray")
"""The arrays of Flux before 0.10.  Their `data` has the name of the array itself; the rest is of training."""
OPTIMIZERS = ("Flux.Optimise.", "Optimisers.")

_NORM = ("λ", "β", "γ", "μ", "σ²", "ϵ", "momentum", "affine", "track_stats", "active", "chs")
_CONV = ("σ", "weight", "bias", "stride", "pad", "dilation", "groups")
_FLUX: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "Chain": (("layers",),),
    "Maxout": (("layers",),),
    "SkipConnection": (("layers", "connection"),),
    "Parallel": (("connection", "layers"),),
    "PairwiseFusion": (("connection", "layers"),),
    "Dense": (("weight", "bias", "σ"),),
    "Scale": (("scale", "bias", "σ"),),
    "Diagonal": (("α", "β"),),
    "Bilinear": (("weight", "bias", "σ"),),
    "Embedding": (("weight",), ("weight", "padding_idx")),
    "EmbeddingBag": (("weight", "reduction"),),
    "Conv": (_CONV, _CONV[:-1]),
    "ConvTranspose": (_CONV, _CONV[:-1], (*_CONV[:5], "outpad", *_CONV[5:])),
    "DepthwiseConv": (_CONV[:-1],),
    "CrossCor": (_CONV[:-1],),
    "BatchNorm": (_NORM, ("λ", "β", "γ", "μ", "σ²", "ϵ", "momentum", "active")),
    "InstanceNorm": (_NORM, ("λ", "β", "γ", "μ", "σ²", "ϵ", "momentum", "active")),
    "GroupNorm": (("G", *_NORM), ("G", "λ", "β", "γ", "μ", "σ²", "ϵ", "momentum", "active")),
    "LayerNorm": (("diag",), ("λ", "diag", "ϵ", "size", "affine")),
    "WeightNorm": (("layer", "g", "which", "dims"),),
    "Dropout": (("p", "dims", "active"), ("p", "dims", "active", "rng")),
    "AlphaDropout": (("p", "active"), ("p", "active", "rng")),
    "MultiHeadAttention": (("nheads", "q_proj", "k_proj", "v_proj", "attn_drop", "out_proj"),),
    "Recur": (("cell", "state"), ("cell", "init", "state")),
    "Recurrence": (("cell",),),
    "RNN": (("cell",),),
    "LSTM": (("cell",),),
    "GRU": (("cell",),),
    "GRUv3": (("cell",),),
    "RNNCell": (("σ", "Wi", "Wh", "bias"), ("σ", "Wi", "Wh", "b", "state0")),
    "LSTMCell": (("Wi", "Wh", "bias"), ("Wi", "Wh", "b", "state0"), ("Wi", "Wh", "b", "h", "c")),
    "GRUCell": (("Wi", "Wh", "b"), ("Wi", "Wh", "b", "state0")),
    "GRUv3Cell": (("Wi", "Wh", "b", "Wh_h\u0303"), ("Wi", "Wh", "b", "Wh_h\u0303", "state0")),
}
"""{struct of Flux: its fields, in one row for each number of fields}.  Before 0.12 Dense called its weight `W` and its
bias `b`; RNNCell and GRUCell called their trained state `h`: the places are the same."""
FIELDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    **{f"Flux.{name}": rows for name, rows in _FLUX.items()},
    **{
        f"Flux.Optimise.{name}": (("eta", "beta", "state"), ("eta", "beta", "epsilon", "state"))
        for name in ("Adam", "ADAM", "RAdam", "RADAM", "AdaMax", "OAdam", "OADAM", "AMSGrad", "NAdam", "NADAM",
                     "AdaBelief")
    },
    "Flux.Optimise.Descent": (("eta",),),
    "Optimisers.Descent": (("eta",),),
    "Optimisers.Momentum": (("eta", "rho"),),
    "Flux.Optimise.Momentum": (("eta", "rho", "velocity"),),
    "Flux.Optimise.Nesterov": (("eta", "rho", "velocity"),),
    "Flux.Optimise.RMSProp": (("eta", "rho", "acc"), ("eta", "rho", "epsilon", "acc")),
    "Flux.Optimise.Optimiser": (("os",),),
    "Optimisers.Leaf": (("rule", "state"), ("rule", "state", "frozen")),
    **{
        f"Optimisers.{name}": (("eta", "beta", "epsilon"),)
        for name in ("Adam", "RAdam", "AdaMax", "OAdam", "NAdam", "AMSGrad", "AdaBelief")
    },
    **dict.fromkeys(TRACKED, (("tracker", "data"), ("tracker", "data", "grad"))),
}  # fmt: skip


def fields(name: str, count: int) -> tuple[str, ...]:
    """The names of a struct's fields, or their positions, from 1.

    >>> fields("Flux.Dense", 3), fields("Main.Mine", 2)
    (('weight', 'bias', 'σ'), ('1', '2'))
    """
    known = (row for row in FIELDS.get(name, ()) if len(row) == count)
    return next(known, tuple(str(k + 1) for k in range(count)))


class _FluxCell(NamedTuple):
    """What a struct's type says of a network."""

    spec: str
    bias: str
    """The field of its bias, without a trained state."""
    gates: int


NAMED_TUPLE = "Core.NamedTuple"
CELLS = {
    "Flux.RNNCell": _FluxCell("rnn", "bias", 1),
    "Flux.LSTMCell": _FluxCell("lstm", "bias", 4),
    "Flux.GRUCell": _FluxCell("gru reset=after", "b", 3),
    "Flux.GRUv3Cell": _FluxCell("gru reset=before", "b", 3),
}
ACTIVATIONS = {"#tanh": "tanh", "#tanh_fast": "tanh", "#relu": "relu"}
"""{the type of a function, without its module: the activation}."""


def cell(name: str, parts: Sequence[tuple[str, Node]], at: str, shapes: Shapes) -> Module | None:
    """The recurrent network that a struct of Flux is, by its type and its fields; None if it is no cell.

    `Flux.state` makes named tuples of structs: their fields, and the shapes of the matrices, show which cell one was.
    That state does not include an activation.
    """
    held = {label: _data(node) for label, node in parts}
    inputs, recurrent = held.get("Wi"), held.get("Wh")
    if not isinstance(inputs, TensorRef) or not isinstance(recurrent, TensorRef):
        return None
    if name == NAMED_TUPLE:
        rows, width = (*shapes[inputs.name], 0)[0], (*shapes[recurrent.name], 0)[-2]
        like = (one for one in CELLS if tuple(held) in FIELDS[one] and rows == CELLS[one].gates * width)
        name, source = next(like, ""), "the names of a Flux.state"
    else:
        source = f"a struct {name}"
    if (known := CELLS.get(name)) is None:
        return None
    spec, refused = known.spec, ""
    unsure: tuple[str, ...] = ()
    function = held.get("σ")
    if isinstance(function, Opaque):
        activation = ACTIVATIONS.get(function.path.rpartition(".")[2], "")
        spec = f"rnn activation={activation}" if activation else spec
        refused = "" if activation else f"its activation is {function.path:.100}; expected tanh or relu"
    elif function is not None:
        unsure = ("activation=tanh", "activation=relu")
    layout = "flux" if known.bias in held and "state0" not in held else "flux.old"
    tensors = {f"cell.{own}": ref.name for own, ref in _tensors(held)}
    return Module(at, layout, spec, tensors, source=source, refused=refused, unsure=unsure)


def _data(node: Node) -> Node:
    """The array itself of a tracked one."""
    return dict(node.parts).get("data", node) if isinstance(node, Opaque) and node.path in TRACKED else node


def _tensors(held: Mapping[str, Node]) -> list[tuple[str, TensorRef]]:
    """(name in the layout, tensor) of each tensor of a cell."""
    found = [(label, node) for label, node in held.items() if isinstance(node, TensorRef)]
    renamed = {"h": "state0.1", "c": "state0.2"}
    states = held.get("state0")
    inside = items_of(states)
    found += [(f"state0.{k}", node) for k, node in enumerate(map(_data, inside), 1) if isinstance(node, TensorRef)]
    return [(renamed.get(label, label), node) for label, node in found]
