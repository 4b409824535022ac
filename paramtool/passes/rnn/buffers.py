"""Which fused blocks are the buffer of a recurrent network: windows of one storage, in cuDNN's order already."""

from __future__ import annotations

from collections.abc import Hashable

from paramtool import layouts
from paramtool.layouts.evidence import evidence
from paramtool.layouts.networks import modules, network_if_any
from paramtool.layouts.spec import Spec
from paramtool.lazy_dataclass import frozen
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint, Ordered
from paramtool.model.view import StorageId, Views
from paramtool.passes.rnn.convert import convert_if_held

BUFFER = "cudnn"
"""The layout of the buffer, and the layout that the parts have before PyTorch flattens them."""
PARTS = "torch"


@frozen
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
    views = {name: view for name, view in checkpoint.views().items() if view.storage in blocks}
    shapes = {name: view.shape for name, view in views.items()}
    names = Ordered(views)
    known: dict[Hashable, tuple[int, Spec] | None] = {}
    buffers: dict[int, tuple[str, Spec]] = {}
    for at in modules(parts, {}, shapes):
        inside = {name: views[name] for name in names.under(f"{at}." if at else "")}
        storages = list(dict.fromkeys(view.storage for view in inside.values()))
        # Where the tensors of a module are, without the module's name and the numbers of its storages.
        number = {storage: k for k, storage in enumerate(storages)}
        geometry = tuple(
            (name[len(at) :], view.dtype.name, view.shape, view.strides, view.offset, number[view.storage])
            for name, view in inside.items()
        )
        if geometry not in known:
            known[geometry] = _buffer(at, inside, storages)
        if (found := known[geometry]) is not None:  # otherwise the block is shown as windows
            buffers.setdefault(int(storages[found[0]]), (at, found[1]))
    proof = evidence(layouts.find(BUFFER)) if buffers else ()
    return {storage: FusedNetwork(at, BUFFER, spec, proof) for storage, (at, spec) in buffers.items()}


def _buffer(at: str, views: Views, storages: list[StorageId]) -> tuple[int, Spec] | None:
    """Which of the storages a network's tensors fill in the buffer's order, from its first byte on.

    None where they fill none.
    """
    one = network_if_any(layouts.find(PARTS), at, {name: view.shape for name, view in views.items()})
    made = convert_if_held(one, views, layouts.find(BUFFER), {}, at=at) if one else None
    if one is None or made is None or made.parent is None or made.parent.offset:
        return None
    return storages.index(made.parent.storage), one.spec
