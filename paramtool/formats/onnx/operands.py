"""Which stored tensors are constants of a graph: shapes, axes, indices, counts, and numbers that a program wrote.

    Reshape(x, shape)                           the shape is an operand, and no weight
    Reshape(x, Concat(batch, [12], [64]))       so are the integers that it is calculated from
    Where(mask, x, -inf)                        the mask only chooses between the two others
    Div(x, 8.0)                                 one number of a Constant node is part of the program
    LSTM(x, W, R, B, , h)                       zeros are what the node takes without an initial state

A tensor is such a constant if every use of it is one of these, in the whole graph.  A table that Gather reads, the
codes of a quantised weight, or anything that is an output of the graph is none.

Source: docs/Operators.md and the schemas of onnx 1.23: INDICES has the inputs that only take integers or booleans
(tests/oracles/test_onnx_operands.py compares both), and a few that take lengths and factors as floats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from paramtool.grouping import grouped
from paramtool.model.view import Shapes

INDICES: Shapes = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "Col2Im": (1, 2), "Compress": (1,),
    "ConstantOfShape": (0,), "CumProd": (1,), "CumSum": (1,), "DFT": (1, 2), "Dropout": (1, 2), "Expand": (1,),
    "GRU": (4,), "Gather": (1,), "GatherElements": (1,), "GatherND": (1,), "HammingWindow": (0,), "HannWindow": (0,),
    "If": (0,), "LSTM": (4,), "Loop": (0, 1), "MaxUnpool": (1, 2), "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4), "OneHot": (1,), "Pad": (1, 3), "RNN": (4,), "Range": (0, 1, 2), "Reshape": (1,),
    "Resize": (1, 2, 3), "ReverseSequence": (1,), "RoiAlign": (2,), "RotaryEmbedding": (3,), "STFT": (1, 3),
    "Scatter": (1,), "ScatterElements": (1,), "ScatterND": (1,), "SequenceAt": (1,), "SequenceErase": (1,),
    "SequenceInsert": (2,), "Slice": (1, 2, 3, 4), "Split": (1,), "SplitToSequence": (1,), "Squeeze": (1,),
    "TensorScatter": (2,), "Tile": (1,), "TopK": (1,), "Trilu": (1,), "Unsqueeze": (1,), "Upsample": (1,),
    "Where": (0,), "ReduceL1": (1,), "ReduceL2": (1,), "ReduceLogSum": (1,), "ReduceLogSumExp": (1,), "ReduceMax": (1,),
    "ReduceMean": (1,), "ReduceMin": (1,), "ReduceProd": (1,), "ReduceSum": (1,), "ReduceSumSquare": (1,),
}  # fmt: skip
"""{operator: its inputs that say which elements, how many, or where, and whose values are not calculated with}."""
CALCULATING = frozenset({
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "Div", "Equal", "Expand", "Flatten", "Floor",
    "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not",
    "Or", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "Slice", "Split", "Sqrt",
    "Squeeze", "Sub", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
"""Operators by which programs calculate shapes, indices and masks: what only they use is what their outputs are."""
STATES: Shapes = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}
"""{operator: its inputs that are zero where they are left out}"""
ELEMENTWISE = CALCULATING | {"Pow", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "Sin", "Cos", "Reciprocal"}
"""Operators that take numbers of a program; those that take one as a weight, a slope or a scale are none of them."""
NORMS = ("InstanceNormalization", "LayerNormalization")
"""They need a scale, so that programs write ones, and zeros, for a norm that has none, or has them behind."""
EXPORTED = re.compile(r"(onnx::[A-Za-z]+_)?[0-9]+")
"""The names that torch's exporter makes up: of constants, and of tensors that it calculated."""
MOVING = frozenset({
    "Cast", "CastLike", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze",
    "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators of whose outputs every number is one of the inputs."""


class ValueUse(NamedTuple):
    """One use of a value as an input of a node."""

    operator: str
    """Empty for an operator that is not of ONNX."""
    place: int
    outputs: tuple[str, ...]

    def is_at(self, places: Shapes) -> bool:
        """Whether it is one of these inputs of these operators."""
        return self.place in places.get(self.operator, ())


@dataclass
class Operands:
    """What the nodes of a model take their inputs as."""

    uses: dict[str, list[ValueUse]] = field(default_factory=dict)
    """{a stored tensor, or prefix of a graph + name of a value in it: its uses}."""
    producer: str = ""
    results: set[str] = field(default_factory=set)
    """Values that leave their graph."""
    parameters: set[str] = field(default_factory=set)
    """Tensors that the exporter itself calls parameters or buffers."""
    local: dict[str, set[str]] = field(default_factory=dict)
    """{prefix of a graph: the names of its inputs, and of what its nodes have made so far}."""
    outer: dict[str, str] = field(default_factory=dict)
    """{prefix of a graph in a node: that of the graph with the node}."""

    def graph(self, prefix: str, inputs: Iterable[str], outputs: Iterable[str], *, outer: str | None) -> None:
        """Begin a graph; what it gives leaves it, to whoever runs the model or to the node that the graph is in."""
        self.local[prefix] = set(inputs)
        self.results.update(prefix + name for name in outputs)
        if outer is not None:
            self.outer[prefix] = outer

    def key(self, prefix: str, name: str) -> str:
        """Prefix and name of a value, in the innermost graph that has it."""
        at = prefix
        while name not in self.local.get(at, ()) and at in self.outer:
            at = self.outer[at]
        return (at if name in self.local.get(at, ()) else prefix) + name

    def node(self, operator: str, prefix: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Note a node of a graph.

        Inputs are stored tensors or keys of values, and empty where they are left out; outputs are names.  `operator`
        is empty for one that is not of ONNX.
        """
        made = tuple(prefix + name for name in outputs if name)
        self.local.setdefault(prefix, set()).update(outputs)
        for place, name in enumerate(inputs):
            if name:
                self.uses.setdefault(name, []).append(ValueUse(operator, place, made))

    def only_at(self, places: Shapes, passing: frozenset[str]) -> set[str]:
        """The values of which every use is one of these inputs, or leads to nothing else through passing operators."""
        found: set[str] = set()
        makers = grouped(
            (output, name)
            for name, uses in self.uses.items()
            for output in {output for use in uses for output in use.outputs}
        )

        def ends(name: str) -> bool:
            return name in found or not (name in self.uses or name in self.results)

        def holds(name: str) -> bool:
            return name not in self.results and all(
                use.is_at(places) or (use.operator in passing and all(map(ends, use.outputs)))
                for use in self.uses[name]
            )

        waiting = [name for name in self.uses if holds(name)]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [one for one in makers.get(name, ()) if one not in found and holds(one)]
        return found


class StoredConstant(NamedTuple):
    """What the file shows of a stored tensor."""

    name: str
    is_float: bool
    is_one_number: bool
    is_of_constant_node: bool
    is_uniform: Callable[[bool], bool]
    """Whether all of its elements are one number, or zero."""


def constants(tensors: Iterable[StoredConstant], found: Operands) -> Iterator[str]:
    """The names of tensors that are constants of the graph.

    One number that is calculated with, or what a norm takes that has none of its own, is part of the program where a
    Constant node holds it, or where torch's exporter shows that it is no parameter.  Floats that lead to an index by
    arithmetic can be weights.
    """
    indices, states = found.only_at(INDICES, CALCULATING), found.only_at(STATES, MOVING)
    for one in tensors:
        name = one.name
        if name in found.parameters or name in found.results or name not in found.uses:
            continue
        uses = found.uses[name]
        is_number = all(
            one.is_uniform(False) if use.operator in NORMS else one.is_one_number and use.operator in ELEMENTWISE
            for use in uses
        )
        is_written = (
            one.is_of_constant_node
            or bool(found.parameters)
            or (found.producer.startswith("pytorch") and EXPORTED.fullmatch(name) is not None)
        )
        is_index = name in indices and (not one.is_float or all(use.is_at(INDICES) for use in uses))
        if is_index or (is_number and is_written) or (name in states and one.is_uniform(True)):
            yield name
