"""What the metadata of a model says of networks that are several nodes, and the proof of it by the nodes.

    {"encoder.lstm": {"nodes": ["encoder.lstm.layer0", "encoder.lstm.layer1"], "states": ["encoder.lstm.initial_h"]}}

paramtool writes it (`write.py`); any program can change the graph afterwards.  So the nodes must be there, must have
the same facts, and each must take what the one before it gives.  If not, every node is described alone, with a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from paramtool.errors import FormatError
from paramtool.formats.strict_json import strict
from paramtool.model.checkpoint import Module

BETWEEN = {"Transpose", "Reshape", "Squeeze", "ReduceSum", "ReduceMean", "ReduceProd"}
"""The operators that bring the output of a layer into the form of an input."""
MERGES = ("concat", "sum", "ave", "mul", "none")


class NodeRun(NamedTuple):
    """The values that a recurrent node takes and gives."""

    x: str
    y: str


class NetworkWords(NamedTuple):
    """What the metadata says of one network."""

    nodes: tuple[str, ...]
    states: tuple[str, ...]
    """Initializers that stand for initial states that callers give."""
    merge: str
    """How the outputs of two directions are merged."""


def said(text: str) -> dict[str, NetworkWords]:
    """{module: what a model's metadata says of it}; empty if it is not of the form that paramtool writes."""
    try:
        document = strict(text) if text else {}
        return {at: _said(one) for at, one in document.items()}
    except (FormatError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _said(one: Any) -> NetworkWords:
    found = NetworkWords(tuple(one["nodes"]), tuple(one.get("states", ())), one.get("merge", "concat"))
    if not found.nodes or not all(isinstance(word, str) for word in (*found.nodes, *found.states)):
        raise ValueError
    return found


def joined(
    modules: Sequence[Module], said: Mapping[str, NetworkWords], runs: Mapping[str, NodeRun], before: Mapping[str, str]
) -> tuple[list[Module], list[str]]:
    """The modules with those that are layers of one network as one, and notes on what is not as the metadata says."""
    by_node = {module.at: module for module in modules}
    notes, made, taken = [], dict[str, Module](), set[str]()
    for at, one in said.items():
        there = [by_node[name] for name in one.nodes if name in by_node and name in runs]
        if len(there) == len(set(one.nodes)) and taken.isdisjoint(one.nodes) and _is_one(one, there, runs, before):
            made[one.nodes[0]] = _network(at, one, there)
            taken |= set(one.nodes)
        else:
            notes.append(
                f"the metadata says that {at!r:.200} is the network of {', '.join(map(repr, one.nodes[:4])):.400}, and "
                "these nodes are not: each is described alone"
            )
    rest = (made.get(module.at) or module for module in modules if module.at in made or module.at not in taken)
    return list(rest), notes


def _is_one(
    one: NetworkWords, layers: Sequence[Module], runs: Mapping[str, NodeRun], before: Mapping[str, str]
) -> bool:
    """Whether the layers have the same facts, and each takes what the one before gives."""
    if one.merge not in MERGES or any(module.refused for module in layers):
        return False
    if len({_facts(module) for module in layers}) > 1:
        return False
    for lower, upper in zip(one.nodes, one.nodes[1:], strict=False):
        value = runs[upper].x
        for _ in range(len(BETWEEN)):
            value = before.get(value, value)
        if not value or value != runs[lower].y:
            return False
    return True


def _facts(module: Module) -> tuple[str, ...]:
    """The words of a layer's spec, apart from the size of its input."""
    return tuple(word for word in module.spec.split() if not word.startswith("input="))


def _network(at: str, one: NetworkWords, layers: Sequence[Module]) -> Module:
    """The module of all layers."""
    words = [layers[0].spec]
    words += [f"layers={len(layers)}"] * (len(layers) > 1)
    words += [f"merge={one.merge}"] * (one.merge != "concat")
    tensors = {
        f"layer{k}.{name}" if len(layers) > 1 else name: tensor
        for k, module in enumerate(layers)
        for name, tensor in module.tensors.items()
    }
    source = layers[0].source if len(layers) == 1 else f"{len(layers)} nodes from {layers[0].source} on"
    return replace(layers[0], at=at, spec=" ".join(words), tensors=tensors, source=source)
