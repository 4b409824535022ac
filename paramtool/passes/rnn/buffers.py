"""Which fused blocks are the buffer of a recurrent network: separate windows that lie in cuDNN's order already."""

from __future__ import annotations

from collections.abc import Mapping

from paramtool import layouts
from paramtool.layouts.evidence import evidence
from paramtool.layouts.networks import Network, modules, network_if_any
from paramtool.layouts.spec import Spec
from paramtool.lazy_dataclass import dataclass
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.view import View
from paramtool.passes.rnn.convert import convert_if_held

BUFFER = "cudnn"
"""The layout that is looked for, and the one that parts have before PyTorch flattens them."""
PARTS = "torch"


@dataclass(frozen=True, slots=True)
class FusedNetwork:
    """A recurrent network whose tensors lie in one storage as a layout wants them."""

    at: str
    layout: str
    spec: Spec
    proof: tuple[str, ...]
    """What is known of the layout."""


def fused_networks(checkpoint: Checkpoint, graph: AliasGraph) -> dict[int, FusedNetwork]:
    """{storage: the network whose buffer it is}, of the graph's fused blocks."""
    parts = layouts.find(PARTS)
    blocks = {block.storage for block in graph.fused}
    views = checkpoint.views()
    shapes = {name: view.shape for name, view in views.items() if view.storage in blocks}
    buffers: dict[int, Network] = {}
    for at in modules(parts, {}, shapes):
        one = network_if_any(parts, at, shapes)
        storage = _buffer(views, one) if one else None
        if one and storage is not None:  # else the block is shown as windows
            buffers.setdefault(storage, one)
    proof = evidence(layouts.find(BUFFER)) if buffers else ()
    return {storage: FusedNetwork(one.at, BUFFER, one.spec, proof) for storage, one in buffers.items()}


def _buffer(views: Mapping[str, View], one: Network) -> int | None:
    """The storage that a network's tensors fill in the buffer's order, from its first byte on; None otherwise."""
    made = convert_if_held(one, views, layouts.find(BUFFER), {}, at=one.at)
    if made is None or made.parent is None or made.parent.offset:
        return None
    return int(made.parent.storage)
