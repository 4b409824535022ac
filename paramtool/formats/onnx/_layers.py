"""The layers of a model that are not recurrent: which initializer is which part of which layer, by its nodes.

    Gemm              weight "out in" with transB=1, else "in out"; bias
    MatMul            weight "in out"; bias in an Add behind it
    Gather            weight "row dim" of an embedding
    Conv              weight "out in *k"; depthwise if each group has one channel
    ConvTranspose     weight "in out *k"
    BatchNormalization, LayerNormalization, GroupNormalization
    PRelu             slope "out" with axes of length 1; so are scale and shift of a group norm that is taken apart, in
                      the Mul and the Add of the module that has the InstanceNormalization

A layer is called as its initializers are (`fc.weight` is of `fc`), or as the path of its node (`/fc/MatMul`), which
torch's exporters write where they compute a weight, or give it more axes, and call it by a number (`onnx::MatMul_17`).

Source: docs/Operators.md of onnx 1.23; torch/onnx/_internal/torchscript_exporter of torch 2.13 for the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from paramtool.errors import plural, some
from paramtool.grouping import grouped
from paramtool.model import conventions
from paramtool.model.checkpoint import LayerPart
from paramtool.model.images import CHANNEL, FIRST, NOTHING, Flow, Image, Signal, beside, first, image, moved, reshaped
from paramtool.model.view import Shapes

NORMS = {
    "BatchNormalization": ("batchnorm", ("", "scale", "shift", "mean", "variance")),
    "LayerNormalization": ("layernorm", ("", "scale", "shift")),
    "GroupNormalization": ("groupnorm", ("", "scale", "shift")),
}
"""{operator: (kind, the part that each input is)}."""
CHANNELWISE = {"PRelu": ("prelu", "slope"), "Mul": ("groupnorm", "scale"), "Add": ("groupnorm", "shift")}
"""{operator: (kind, the part that a stored tensor with one axis is)}, of operators that compute element by element."""
EPSILON = 1e-5
"""What a norm adds to a variance if its node does not say it."""
SETTINGS = {
    "epsilon": ("epsilon", "f"), "num_groups": ("groups", "i"), "strides": ("strides", "ints"),
    "dilations": ("dilation_rate", "ints"), "pads": ("pads", "ints"), "output_padding": ("more", "ints"),
    "auto_pad": ("pads of", "s"), "output_shape": ("pads of", "ints"),
}  # fmt: skip
"""{attribute: (Keras' word for it, the field of its value)}, of what a layer computes besides its weights."""
NO_PART = ("", "")
CONVOLUTIONS = {"Conv": ("conv", "out in *k"), "ConvTranspose": ("conv_transposed", "in out *k")}
RECURRENT = ("LSTM", "GRU", "RNN")
ARGUMENTS = {
    "LeakyRelu": {"alpha": 0.01}, "Elu": {"alpha": 1.0}, "Celu": {"alpha": 1.0}, "ThresholdedRelu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5}, "Swish": {"alpha": 1.0}, "Gelu": {"approximate": 0.0},
}  # fmt: skip
"""{operator: {attribute: its default}}, of functions of single numbers"""
NO_IMAGE = (
    "Shape",
    "Size",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GlobalLpPool",
    "Attention",
    "MatMul",
    "Gemm",
    "Einsum",
)
"""What operators end in of whose outputs nothing is a flattened image, or in a known order, without stored weights."""
QUANTISED = re.compile(r"(De)?[Qq]uantize.*|QLinear.*|.*Integer.*|QGemm|QAttention|DynamicQuantize.*|.*NBits")
"""Operators of quantised models, of ONNX and of onnxruntime."""
FOLDED = re.compile(r"onnx::(Conv|ConvTranspose)_[0-9]+")
"""How torch's exporter calls the weights of a convolution into which it folded a batch norm."""


class TensorUse(NamedTuple):
    """What a node takes an initializer as."""

    node: str
    kind: str = ""
    """As in `model.conventions`; empty where that is not known."""
    part: str = ""
    axes: str = ""
    problem: str = ""
    """Why other values cannot stand in its place."""
    is_scaled: bool = False
    """Whether it is because the node is quantised."""


ONCE = "the exporter stored equal values once"
SHOWN = 4
"""The most names that a note lists."""


@dataclass
class Uses:
    """What the nodes of a model take its initializers as."""

    found: dict[str, list[TensorUse]] = field(default_factory=dict)
    """{initializer: its uses, in the order of the nodes}."""
    products: dict[str, str] = field(default_factory=dict)
    """{output of a MatMul with stored weights: the node's name}."""
    normed: dict[str, str] = field(default_factory=dict)
    """{output of an InstanceNormalization, reshaped or scaled: its node's name}."""
    recurrent: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    """(node, operator, initializers) of recurrent nodes."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """{node: what it computes besides its weights}"""
    flow: Flow = field(default_factory=Flow)
    images: dict[str, Image] = field(default_factory=dict)
    """{a value: what is known of it}, of images and of the outputs of layers"""
    signals: dict[str, Signal] = field(default_factory=dict)
    """{a value: what became of the outputs of layers}"""

    def node(
        self,
        operator: str,
        label: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        shapes: Shapes,
        numbers: Mapping[str, float],
        values: Mapping[str, Sequence[float]],
        axes: Sequence[int],
        settings: Mapping[str, Any],
    ) -> None:
        """Note a node: what it takes initializers as, and what it makes of images.

        `inputs` are initializers, of which `shapes` has those that are stored, or values as `outputs` of other nodes;
        `numbers` has the attributes that are numbers, `values` the numbers in small tensors, `axes` is `perm`, and
        `settings` are as in `SETTINGS`.
        """
        default = {"epsilon": EPSILON} if operator in (*NORMS, "InstanceNormalization") else {}
        self.settings[label] = {**default, **settings}
        if operator == "InstanceNormalization":
            self.settings[label]["groups"] = next(iter(shapes.get("".join(inputs[1:2]), ())), None)
        given = [self.images[name] for name in inputs if name in self.images]
        weight = next((shapes[name] for name in inputs[1:] if len(shapes.get(name, ())) > 1), ())
        x = self.flow.merged(given) if operator in ("Add", "Sub", "Mul", "Div") else first(given)
        kind, problem = "", ""
        takes: Sequence[tuple[str, str]] = ()
        """(part, axes) of each input; the part is empty for what is no weight."""
        if operator.endswith(("Conv", "ConvTranspose")):
            groups, is_transposed = int(numbers.get("group", 1)), operator.endswith("Transpose")
            taken, made = weight[:2] if weight else (0, 0)
            taken, made = (taken, made * groups) if is_transposed else (made * groups, taken)
            self.flow.is_convolved(label, x, taken, 0)
            self.settings[label]["pads"] = _pads(settings, len(weight) - 2)
            x = image(made or -1, FIRST, max(2, len(weight) - 1))._replace(
                unseen="" if made else f"{operator} node {label!r:.200}"
            )
            if operator in CONVOLUTIONS and weight:
                kind, order = CONVOLUTIONS[operator]
                takes = NO_PART, ("weight", order), conventions.BIAS
                if operator == "Conv" and groups > 1 and weight[1] == 1:
                    kind, takes = "depthwise", (NO_PART, ("weight", "(in mult) 1 *k"), ("bias", "(in mult)"))
                if FOLDED.fullmatch(inputs[1]):
                    problem = (
                        f"the exporter folded another layer, mostly a batch norm, into {operator} node {label!r:.200}"
                    )
        elif operator in RECURRENT:
            is_rows = (
                x.joined > 1 < len(x.dims) and x.dims[0][1] != CHANNEL
            )  # the graph does not show how many axes are joined
            self.flow.takes(label, x._replace(joined=len(x.dims) - 1) if is_rows else x)
            x = NOTHING
        elif operator.endswith(("MatMul", "Gemm")) and weight:
            x = self.flow.dense(label, x, weight[-1])
            if operator == "Gemm" or (operator == "MatMul" and len(weight) == 2):
                kind, order = "dense", "out in" if numbers.get("transB") else "in out"
                takes = NO_PART, ("weight", order), conventions.BIAS
                if scaled := [name for name in ("alpha", "beta") if numbers.get(name, 1.0) != 1.0]:
                    problem = f"Gemm node {label!r:.200} multiplies by {scaled[0]}"
                if operator == "MatMul":
                    self.products |= dict.fromkeys(outputs, label)
        elif operator in NORMS:
            self.flow.takes(label, x._replace(joined=max(x.joined, len(weight))), "out")
            x = x._replace(makers=(*x.makers, label)) if x.makers and x.joined == 1 and not x.dims else x
            kind, parts = NORMS[operator]
            takes = [(part, conventions.PER_CHANNEL[kind]) for part in parts]
        elif operator.endswith(NO_IMAGE) or (operator == "Gather" and inputs[:1] and inputs[0] in shapes):
            x = NOTHING
            if operator == "Gather" and len(shapes[inputs[0]]) == 2 and not numbers.get("axis"):
                kind, takes = "embedding", [("weight", conventions.TABLE)]
        elif operator == "Add" and len(inputs) == 2:
            for name, other in (inputs, inputs[::-1]):
                if len(shapes.get(name, ())) == 1 and other in self.products:
                    use = TensorUse(self.products[other], "dense", *conventions.BIAS)
                    self.found.setdefault(name, []).append(use)
        elif operator == "Concat" and (numbers.get("axis") in (1, -1) or x.joined > 1):
            x = beside(given)
        elif operator in ("Split", "Slice", "Gather"):
            x = x._replace(unseen=f"{operator} node {label!r:.200}")
        elif operator == "Transpose" and axes:
            dims = x.dims or tuple((0, k) for k in range(len(axes) - 1))
            x = moved(x._replace(dims=dims, joined=1) if x.makers else x, axes)
        elif operator in ("Flatten", "Reshape"):
            stored = [-1] if operator == "Flatten" else values.get("".join(inputs[1:2]), ())
            is_known, target = bool(stored), [int(size) for size in stored or [0] * 3][1:]
            x = reshaped(x, target) if x.makers and (x.dims or is_known) else x._replace(joined=max(2, len(x.dims)))
        for name in outputs if x != NOTHING else ():
            self.images[name] = x
        signal = self.signal(operator, label, inputs, kind, numbers=numbers, values=values)
        for name in outputs if signal.makers else ():
            self.signals[name] = signal
        norm = label if operator == "InstanceNormalization" else next(filter(None, map(self.normed.get, inputs)), "")
        if norm and operator in ("InstanceNormalization", "Reshape", "Mul") and path_of(norm) == path_of(label):
            self.normed |= dict.fromkeys(outputs, norm)
        if operator == "PRelu" or (operator in CHANNELWISE and norm and path_of(norm) == path_of(label)):
            for name in inputs:
                if len(size := shapes.get(name, ())) > 1 and prod(size) == max(size):
                    order = " ".join("out" if k == size.index(max(size)) else "1" for k in range(len(size)))
                    uses = self.found.setdefault(name, [])
                    other = next((use.node for use in uses if path_of(use.node) != path_of(label)), "")
                    told = f"it is of nodes {label!r:.200} and {other!r:.200}: {ONCE}" if other else ""
                    uses.append(TensorUse(norm or label, *CHANNELWISE[operator], order, told))
        is_scaled = QUANTISED.fullmatch(operator) is not None
        if is_scaled:
            problem, takes = f"{operator} node {label!r:.200} reads it by scales", [NO_PART] * len(inputs)
        for name, (part, order) in zip(inputs, takes, strict=False):
            if name in shapes and (part or is_scaled):
                self.found.setdefault(name, []).append(TensorUse(label, kind, part, order, problem, is_scaled))

    def signal(
        self, operator: str, label: str, inputs: Sequence[str], kind: str,
        *, numbers: Mapping[str, float], values: Mapping[str, Sequence[float]],
    ) -> Signal:  # fmt: skip
        """What a node makes of values, as in `node`."""
        given: list[Signal | float] = [
            self.signals[name] if name in self.signals else values[name][0]
            for name in inputs
            if name in self.signals or len(values.get(name, ())) == 1
        ]
        signals = [one for one in given if isinstance(one, Signal)]
        kind = "groupnorm" if operator == "InstanceNormalization" else kind
        if kind or operator in (*RECURRENT, "PRelu"):
            return self.flow.ends(signals, label, kind)
        if operator in ("Shape", "Size") or operator.endswith(NO_IMAGE[-4:]):
            return Signal()  # or of attention, whose parts exporters write in many ways
        if operator in ("Add", "Sub", "Mul", "Div") and len(given) < 2:
            return signals[0] if signals else Signal()  # a bias, or scales
        if operator == "Clip":
            given += [*given[len(given) :], *(numbers[key] for key in ("min", "max") if key in numbers)]
        given += [numbers.get(key, usual) for key, usual in ARGUMENTS.get(operator, {}).items()]
        return self.flow.computes(operator, given)

    def notes(self) -> Iterator[str]:
        """What is told of tensors that cannot be given other values."""
        for name, uses in self.found.items():
            if uses[0].part == "weight" and uses[0].problem and FOLDED.fullmatch(name):
                yield f"{name!r}: {uses[0].problem}; no tensor of a checkpoint has these values"
        scaled = [name for name, uses in self.found.items() if any(use.is_scaled for use in uses)]
        if scaled:
            yield (
                f"{plural(len(scaled), 'tensor')} of quantised nodes, whose scales belong to their values: "
                f"{some([name[:200] for name in scaled], SHOWN)}"
            )

    def parts(self, others: Iterable[str]) -> dict[str, LayerPart]:
        """{initializer: what it is}, of those whose nodes say one thing; `others` are no weights unless a node says."""
        titles = {uses[0].node: title for name, uses in reversed(self.found.items()) if (title := _named(name))}
        kinds = {uses[0].node: uses[0].kind for uses in self.found.values()}
        kinds |= {node: "rnn" for node, _, _ in self.recurrent}
        alike = grouped(((path_of(node), kind), node) for node, kind in kinds.items() if node not in titles)
        for (path, _), nodes in alike.items():
            titles |= {node: f"{path}[{k}]" if len(nodes) > 1 else path for k, node in enumerate(nodes)}
        found = {name: LayerPart("", is_state=True) for name in others if name not in self.found}
        found |= {
            name: LayerPart(
                *(titles[node], *uses[0][1:4]),
                images=self.flow.found.get(node, {}),
                settings={**self.settings[node], **self.flow.settings(node)},
            )
            for name, uses in self.found.items()
            for node in [uses[0].node]
            if not problem(uses)
        }
        for node, _, tensors in self.recurrent:
            images, settings = self.flow.found.get(node, {}), self.flow.settings(node)
            found |= dict.fromkeys(tensors, LayerPart(titles[node], images=images, settings=settings))
        return found


def problem(uses: Sequence[TensorUse]) -> str:
    """Why an initializer that is used so cannot be filled; empty if it can."""
    if said := next((use.problem for use in uses if use.problem), ""):
        return said
    parts = list(dict.fromkeys(use.part for use in uses))
    if len(parts) > 1:
        return f"it is the {parts[0]} of node {uses[0].node!r:.200} and the {parts[1]} of another: {ONCE}"
    return ""


def _pads(settings: Mapping[str, Any], rank: int) -> list[int] | None:
    """As in `conventions.pads`; what a transposed convolution adds behind is less to take off."""
    if settings.get("pads of", "NOTSET") != "NOTSET":
        return None
    pads, more = (settings.get(word) or [0] * 2 * rank for word in ("pads", "more"))
    return [*pads[:rank], *(one - other for one, other in zip(pads[rank:], more, strict=False))]


def path_of(node: str) -> str:
    """The path of a node that torch's exporter named; else its name.

    >>> path_of("/encoder/fc/MatMul"), path_of("Conv_3")
    ('encoder/fc', 'Conv_3')
    """
    return node.strip("/").rpartition("/")[0] if "/" in node.strip("/") else node.strip("/")


def _named(name: str) -> str:
    """The layer that an initializer is of, if it is called as the tensors of a library's layers are; else empty."""
    layer, _, own = name.rpartition("." if "." in name else "/")
    return layer if own.removesuffix(":0") in conventions.OWN_NAMES else ""
