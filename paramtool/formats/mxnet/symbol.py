"""The recurrent networks in MXNet's symbol file, the JSON file next to the parameters.

    {"nodes": [{"op": "null", "name": "enc_parameters", "inputs": []}, ...,
               {"op": "RNN", "name": "enc_rnn", "inputs": [[0, 0, 0], [1, 0, 0], ...],
                "attrs": {"mode": "lstm", "state_size": "5", "num_layers": "2", "bidirectional": "True"}}], ...}

The second input of an RNN node leads to its parameters: one flat variable (FusedRNNCell, MXNet 2), or a node that joins
the variables of a Gluon layer.  The attributes of a node are called `attrs` since MXNet 1.0, `attr` before, and `param`
before 0.9 (nnvm/src/pass/saveload_json.cc, src/nnvm/legacy_json_util.cc).

Nothing in this file can make reading the parameters fail: its defects become notes.

Sources: src/operator/rnn-inl.h (RNNParam), python/mxnet/{model,rnn/rnn_cell}.py, python/mxnet/gluon/rnn/rnn_layer.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from paramtool.errors import FormatError, message_of
from paramtool.formats import object_tree, strict_json
from paramtool.formats.files import open_source
from paramtool.model import conventions
from paramtool.model.checkpoint import LayerPart, Module
from paramtool.model.view import Views

MAX_NBYTES = 64 << 20
MAX_NETWORKS, MAX_STEPS = 1000, 10_000
"""The most RNN nodes that are read, and the most nodes that are visited for the parameters of each."""
MAX_NOTES = 5
PREFIXES = ("", "arg:", "aux:")
"""Prefixes that a variable's name may have in the file of parameters."""
PART = re.compile(r"[lr]\d+_(?:i2h|h2h|h2r)_(?:[a-z]_)?(?:weight|bias)$")
"""The end of the name of one tensor of a layer, or of one gate of it; `l` and `r` are the directions."""
FLAT = {"parameters": "mxnet.flat", "rnn_param": "mxnet.v2"}
"""{end of a variable's name: the layout that has one such vector}"""
STATISTICS = ("running_mean", "running_var", "moving_mean", "moving_var")
"""How the names of BatchNorm's statistics end (gluon/nn/basic_layers.py, src/operator/nn/batch_norm.cc)."""
RECURRENT = re.compile(r"arg:.*(?:i2h|h2h)_(?:[a-z]_)?(?:weight|bias)|.*_parameters|(?:.*[.:])?rnn_param", re.DOTALL)
"""Names for which a symbol file would give more facts; Gluon's save_parameters writes no symbol file."""


def role(name: str) -> str:
    """The role of a tensor by its name: auxiliary states and the statistics of BatchNorm are buffers."""
    if name.startswith("aux:") or name.endswith(STATISTICS):
        return "buffer"
    return object_tree.leaf_role(name.removeprefix("arg:"), "model")


def describe(path: str, views: Views) -> tuple[tuple[Module, ...], dict[str, LayerPart], tuple[str, ...]]:
    """The recurrent networks in the symbol file of `path`, whose tensors are `views`, its other layers, and notes."""
    stem = os.path.splitext(path)[0]  # `X-0001.params` or `X.params` (python/mxnet/model.py, save_checkpoint)
    places = [f"{prefix}-symbol.json" for prefix in (stem, re.sub(r"-\d+$", "", stem))]
    place = next(filter(os.path.isfile, places), "")
    if not place:
        named = any(RECURRENT.fullmatch(name) for name in views)
        return (), {}, ("there is no symbol file that describes its recurrent networks",) if named else ()
    try:
        # The nodes of a symbol file; FormatError or ValueError if it is invalid.
        file, source = open_source(place)
        with file:
            if source.nbytes > MAX_NBYTES:
                raise ValueError(f"it has {source.nbytes} bytes; expected at most {MAX_NBYTES}")
            found = strict_json.strict(file.read(source.nbytes).decode())
        nodes = found.get("nodes") if isinstance(found, dict) else None
        if not isinstance(nodes, list):
            raise ValueError("it has no list of nodes")
        networks = [node for node in nodes if isinstance(node, dict) and node.get("op") == "RNN"]
        if len(networks) > MAX_NETWORKS:
            raise ValueError(f"it has {len(networks)} RNN nodes; expected at most {MAX_NETWORKS}")
    except (FormatError, ValueError) as error:
        return (), {}, (f"{os.path.basename(place)}: ignored: {message_of(error)}",)
    modules: dict[tuple[str, str], Module] = {}
    notes = []
    for node in networks:
        label = f"RNN node {str(node.get('name'))[:100]!r} of {os.path.basename(place)}"
        try:
            module = _module(node, nodes, views, label)
            modules.setdefault((module.layout, module.at), module)
        except ValueError as error:
            notes.append(f"{label}: {error}")
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"{len(notes) - MAX_NOTES} more RNN nodes of the symbol file are ignored, too"]
    return tuple(modules.values()), dict(_parts(nodes, views)), tuple(notes)


LAYERS = {
    "FullyConnected": "dense", "Convolution": "conv", "Deconvolution": "conv_transposed", "Embedding": "embedding",
    "BatchNorm": "batchnorm", "LayerNorm": "layernorm", "GroupNorm": "groupnorm",
}  # fmt: skip
"""{operator: its kind in `model.conventions`}; its inputs follow each other as the tensors of a row there."""


EPSILONS = {"batchnorm": 1e-3, "layernorm": 1e-5, "groupnorm": 1e-5}
"""{kind of norm: what it adds to a variance if its node does not say it}.  Source: src/operator/nn of MXNet 1.9."""


def _parts(nodes: list[Any], views: Views) -> Iterator[tuple[str, LayerPart]]:
    """(tensor, what it is) of nodes that are not recurrent; one whose inputs cannot be traced is left out."""
    for node in nodes:
        kind = LAYERS.get(str(node.get("op")), "") if isinstance(node, dict) else ""
        if not kind:
            continue
        attrs = _attributes(node)
        try:
            variables = [next(_variables(nodes, number)) for number in _inputs(node)[1:]]
            settings = {"epsilon": float(attrs.get("eps", EPSILONS[kind]))} if kind in EPSILONS else {}
        except (ValueError, StopIteration):
            continue
        names = [next((end + one for end in PREFIXES if end + one in views), "") for one in variables]
        shape = views[names[0]].shape if names and names[0] else ()
        if kind == "conv" and attrs.get("num_group", "1") != "1" and shape[1:2] == (1,):
            kind = "depthwise"
        is_fixed = kind == "batchnorm" and attrs.get("fix_gamma", "True").lower() in ("true", "1")
        (row,) = conventions.of_kind(kind, "mxnet")
        for name, (part, axes) in zip(names, row.tensors.values(), strict=False):
            if name:
                constant = 1.0 if is_fixed and part == "scale" else None
                yield name, LayerPart(str(node.get("name")), kind, part, axes, constant=constant, settings=settings)


MODES = {"lstm": ("lstm", 4, "i", ""), "gru": ("gru", 3, "r", "reset=after"),
         "rnn_tanh": ("rnn", 1, "", "activation=tanh"), "rnn_relu": ("rnn", 1, "", "activation=relu")}  # fmt: skip
"""{mode: (kind, gates, the first gate, a word of the spec)}; the GRU resets after the product, as cuDNN's does."""


def _attributes(node: Mapping[str, Any]) -> dict[str, str]:
    attrs: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):
        found = node.get(key)
        attrs |= {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}
    return attrs


def _whole(attrs: Mapping[str, str], name: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,8}", attrs.get(name, "")):
        raise ValueError(f"its {name} is {attrs.get(name, '')[:40]!r}; expected a whole number from 1")
    return int(attrs[name])


def _module(node: Mapping[str, Any], nodes: list[Any], views: Views, label: str) -> Module:
    """An RNN node with the tensors that it reads; ValueError if it is no network, or the file does not have them."""
    attrs = _attributes(node)
    mode = attrs.get("mode", "")
    if mode not in MODES:
        raise ValueError(f"its mode {mode[:40]!r} is unknown")
    kind, gates, gate, word = MODES[mode]
    hidden, layers = _whole(attrs, "state_size"), _whole(attrs, "num_layers")
    projection = 0 if attrs.get("projection_size", "None") == "None" else _whole(attrs, "projection_size")
    directions = 2 if attrs.get("bidirectional", "").lower() in ("true", "1") else 1
    low, high = (attrs.get(f"lstm_state_clip_{end}", "None") for end in ("min", "max"))
    clip = ""
    if not low == high == "None":
        bound = float(high)
        if not (0 < bound < float("inf") and float(low) == -bound):
            raise ValueError(f"it clips its cells from {low[:20]} to {high[:20]}, which a spec cannot express")
        clip = f"cell_clip={bound}"
    inputs = _inputs(node)
    if len(inputs) < 2:
        raise ValueError("it has no input for its parameters")
    place = _place(list(_variables(nodes, inputs[1])), views, gate)
    if place.layout in FLAT.values():
        (name,) = place.tensors.values()
        width, rows = projection or hidden, gates * hidden
        inner = (layers - 1) * width * directions
        each = layers * (rows * (width + 2) + projection * hidden)
        size, left = divmod(views[name].numel - directions * (each + inner * rows), directions * rows)
        fits = size > 0 and not left and len(views[name].shape) == 1
    else:
        is_apart = place.layout == "mxnet.gates"
        name = place.tensors.get(f"l0_i2h_{f'{gate}_' if is_apart else ''}weight", "")
        shape = views[name].shape if name else ()
        fits = len(shape) == 2 and shape[0] == (hidden if is_apart else gates * hidden)
        size = shape[-1] if fits else 0
    if not fits:
        found = list(views[name].shape) if name else []
        raise ValueError(f"{name!r} has the shape {found}, which does not fit its attributes")
    words = [kind, f"input={size}", f"hidden={hidden}"]
    words += [f"layers={layers}"] if layers > 1 else []
    words += ["bidirectional"] if directions > 1 else []
    words += [f"projection={projection}"] if projection else []
    spec = " ".join(filter(None, [*words, word, clip]))
    separator = "." if place.layout == "mxnet.v2" else "_"
    follows = all(place.prefix + end == name for end, name in place.tensors.items())
    if follows and (not place.prefix or place.prefix.endswith(separator)):
        return Module(place.prefix.removesuffix(separator), place.layout, spec, source=label)
    return Module(str(node.get("name")), place.layout, spec, place.tensors, source=label)


def _inputs(node: Mapping[str, Any]) -> list[int]:
    """The numbers of a node's input nodes; ValueError if they are not numbers."""
    inputs = node.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(i, list) and i and type(i[0]) is int for i in inputs):
        raise ValueError("the inputs of a node are not numbers of nodes")
    return [i[0] for i in inputs]


def _variables(nodes: list[Any], number: int) -> Iterator[str]:
    """The variables on which a node depends, in order."""
    todo = [number]
    seen: set[int] = set()
    while todo:
        number = todo.pop()
        if number in seen:
            continue
        seen.add(number)
        node = nodes[number] if 0 <= number < len(nodes) else None
        if not isinstance(node, dict) or len(seen) > MAX_STEPS:
            raise ValueError(f"its parameters cannot be traced: node {number} does not exist, or is too far away")
        if node.get("op") == "null":
            yield str(node.get("name"))
        else:
            todo.extend(reversed(_inputs(node)))


class _SymbolPlace(NamedTuple):
    """The tensors of a network."""

    layout: str
    prefix: str
    """The prefix of their names, including the separator, if they follow the layout."""
    tensors: dict[str, str]
    """{the layout's own name: the name in the file}"""


def _place(variables: list[str], views: Views, gate: str) -> _SymbolPlace:
    """The layout of a network and its tensors; ValueError if the file does not have them."""
    ends = [PART.search(name) for name in variables]
    bases = {name[: end.start()] if end else "" for name, end in zip(variables, ends, strict=True)}
    for prefix in PREFIXES:
        if len(variables) == 1 and (found := _flat(variables[0], prefix, views, gate)):
            return found
        if len(bases) == 1 and all(ends) and all(prefix + name in views for name in variables):
            base = bases.pop()
            return _SymbolPlace("mxnet", prefix + base, {name[len(base) :]: prefix + name for name in variables})
    names = ", ".join(variables[:3])[:200]
    raise ValueError(f"it reads {names!r}, which the file does not have, or not in a known layout")


def _flat(variable: str, prefix: str, views: Views, gate: str) -> _SymbolPlace | None:
    """The place of a flat vector, or of the tensors that the file has instead of it.

    mx.rnn.save_rnn_checkpoint writes an array for each gate, although the symbol reads the vector.
    """
    end = next((end for end in FLAT if variable.endswith(end)), "")
    base = prefix + (variable.removesuffix(end) if end else variable)
    if prefix + variable in views:
        own = end or "parameters"
        return _SymbolPlace(FLAT[own], base, {own: prefix + variable})
    found = {name[len(base) :]: name for name in views if end and name.startswith(base)}
    found = {end: name for end, name in found.items() if PART.fullmatch(end)}
    if "l0_i2h_weight" in found:
        return _SymbolPlace("mxnet", base, found)
    return _SymbolPlace("mxnet.gates", base, found) if f"l0_i2h_{gate}_weight" in found else None
