"""The recurrent networks of a checkpoint for `inspect`: what the file says, and what names and shapes show.

PyTorch's names are read here, without the tables of layouts: importing them takes as long as describing a file.  A law
compares this reading with the tables' own.  Files of formats that describe little ask `paramtool.guessing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from paramtool.errors import ParamtoolError
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.view import Shape, Shapes

TENSOR = re.compile(r"(?:(.*)\.)?(weight|bias)_(ih|hh|hr)(?:_l(\d+)(_reverse)?)?", re.DOTALL)
"""The names of torch.nn.RNNBase._all_weights (torch/nn/modules/rnn.py); without a layer, of RNNCellBase."""
KINDS = {1: "rnn", 3: "gru", 4: "lstm"}
"""Networks by the number of their gates."""
OTHERS = r"(?i)recurrent_kernel|(?:h2h|_weight_hh|recurrent_R)|lstm|gru(?![a-z])|rnn"
"""Words of recurrent modules in the names of other libraries."""
BY_NAME = ("torch", "safetensors")
"""Formats whose files have PyTorch's names, if any."""
Key = tuple[str, int, str]
"""(weight_ih, layer, "_reverse" or "")"""


@frozen
class NamedNetwork:
    """A recurrent network in a file."""

    at: str
    """Its module; empty where its tensors stand at the top."""
    layout: str
    spec: str
    """As `--spec` takes it."""
    source: str
    """Who says so: what the file has of it, or `names and shapes`."""


def networks(checkpoint: Checkpoint) -> tuple[NamedNetwork, ...]:
    """Those that the file describes, else those that its names and shapes show; reads no tensor."""
    described = tuple(
        NamedNetwork(one.at, one.layout, one.spec, one.source or "record")
        for one in checkpoint.modules
        if not one.refused
    )
    taken = {name for one in checkpoint.modules for name in one.tensors.values()}
    named = () if described else tuple(of_torch(_shapes(checkpoint, taken)))
    if described or named or checkpoint.format.startswith(BY_NAME):
        return (*described, *named)
    if not any(re.search(OTHERS, name) for name in checkpoint.entries):
        return ()
    from paramtool.guessing.names import by_names
    from paramtool.layouts.names import homes

    found = by_names(_shapes(checkpoint, taken), homes=homes(checkpoint.format))
    return tuple(NamedNetwork(one.at, one.layout, one.spec, one.sure) for one in found)


def can_convert(checkpoint: Checkpoint, source: str | None) -> bool:
    """Whether every network that a conversion would find has a place in torch's layout, and no fact is missing."""
    from paramtool import layouts
    from paramtool.passes.rnn.convert import convert
    from paramtool.passes.rnn.find import NetworkRequest, find

    try:
        for one in find(checkpoint, NetworkRequest(source, {}, ())):
            convert(one.network, checkpoint.views(), layouts.find("torch"), {}, at=one.network.at)
    except ParamtoolError:
        return False
    return True


def _shapes(checkpoint: Checkpoint, taken: set[str]) -> dict[str, Shape]:
    return {
        name: view.shape
        for name, view in checkpoint.views().items()
        if name not in taken and checkpoint.entries[name].role == "model"
    }


def of_torch(shapes: Shapes) -> Iterator[NamedNetwork]:
    """Networks of PyTorch by their names and shapes, in the order of the file.

    >>> [one.spec for one in of_torch({"a.weight_ih_l0": (8, 3), "a.weight_hh_l0": (8, 2)})]
    ['lstm input=3 hidden=2 bias=no']
    """
    if not any("weight_hh" in name for name in shapes):
        return
    modules: dict[tuple[str, bool], dict[Key, Shape]] = {}
    for name, shape in shapes.items():
        if (match := TENSOR.fullmatch(name)) is not None:
            at, what, which, layer, reverse = match.groups()
            tensors = modules.setdefault((at or "", layer is None), {})
            tensors[f"{what}_{which}", int(layer or 0), reverse or ""] = shape
    for (at, is_cell), tensors in modules.items():
        if spec := _spec(tensors):
            yield NamedNetwork(at, "torch.cell" if is_cell else "torch", spec, "names and shapes")


def _spec(tensors: Mapping[Key, Shape]) -> str:
    """The network in words; empty where the shapes are none's."""
    recurrent, inputs = tensors.get(("weight_hh", 0, ""), ()), tensors.get(("weight_ih", 0, ""), ())
    if len(recurrent) != 2 or len(inputs) != 2:
        return ""
    (rows, width), (_, size) = recurrent, inputs
    folded = tensors.get(("weight_hr", 0, ""))
    hidden = folded[1] if folded and len(folded) == 2 else width
    kind = KINDS.get(rows // hidden if hidden and rows % hidden == 0 else 0, "")
    directions = ["", "_reverse"] if ("weight_hh", 0, "_reverse") in tensors else [""]
    layers = 1 + max(layer for _, layer, _ in tensors)
    for layer in range(layers):
        inside = size if layer == 0 else width * len(directions)
        for direction in directions:
            expected = {"weight_ih": (rows, inside), "weight_hh": (rows, width)}
            if any(tensors.get((own, layer, direction)) != shape for own, shape in expected.items()):
                return ""
    words = [kind, f"input={size}", f"hidden={hidden}", *([f"layers={layers}"] if layers > 1 else [])]
    words += ["bidirectional"] * (len(directions) > 1)
    words += [f"projection={width}"] * (folded is not None)
    words += ["bias=no"] * (("bias_ih", 0, "") not in tensors)
    words += ["reset=after"] * (kind == "gru")
    return " ".join(words) if kind else ""
