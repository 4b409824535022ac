"""Which fused blocks are the buffer of a recurrent network: windows of one storage, in cuDNN's order already."""

from __future__ import annotations

from dataclasses import dataclass

from paramtool import layouts
from paramtool.layouts.evidence import evidence
from paramtool.layouts.networks import Network, modules, network_if_any
from paramtool.layouts.spec import Spec
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint
from paramtool.passes.rnn.convert import convert_if_held

BUFFER = "cudnn"
"""The layout of the buffer, and the layout that the parts have before PyTorch flattens them."""
PARTS = "torch"


@dataclass(frozen=True, slots=True)
class FusedNetwork:
    """A recurrent network whose tensors are in one storage in the order of a layout."""

    at: str
    layout: str
    spec: Spec
    proof: tuple[str, ...]
    """The evidence for the layout."""


def fused_networks(checkpoint: Checkpoint, graph: AliasGraph) -> dict[int, FusedNetwork]:
    """{storage: the network whose buffer it is}, of the graph's fused blocks."""
    parts = layouts.find(PARTS)
    blocks = {block.storage for block in graph.fused}
    shapes = {name: view.shape for name, view in checkpoint.views().items() if view.storage in blocks}
    found: dict[int, FusedNetwork] = {}
    for at in modules(parts, {}, shapes):
        one = network_if_any(parts, at, shapes)
        made = _buffer(checkpoint, one) if one else None
        if made is not None:  # otherwise the block is shown as windows
            storage, spec = made
            layout = layouts.find(BUFFER)
            found.setdefault(storage, FusedNetwork(at, layout.name, spec, evidence(layout)))
    return found


def _buffer(checkpoint: Checkpoint, one: Network) -> tuple[int, Spec] | None:
    """The storage that a network's tensors fill in the buffer's order, from its first byte on, or None."""
    made = convert_if_held(one, checkpoint.views(), layouts.find(BUFFER), {}, at=one.at)
    if made is None or made.parent is None or made.parent.offset:
        return None
    return int(made.parent.storage), one.spec
