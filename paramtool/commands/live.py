"""The weights of a checkpoint for a model in memory: the same plan as `convert --into`, and the values as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paramtool.commands.into import planned
from paramtool.commands.opening import opened
from paramtool.commands.output.losses import allow
from paramtool.commands.progress import Path, silent
from paramtool.commands.relayout_options import RelayoutOptions
from paramtool.engine.read.elements import Array
from paramtool.engine.read.source import Source
from paramtool.engine.write.arithmetic import computed, prove
from paramtool.errors import LayoutError
from paramtool.layouts.networks import Network
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint, Entry, LayerPart
from paramtool.model.display import Displayed
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import check_made
from paramtool.model.storage import ByteRange, SourceFile, Storage
from paramtool.model.view import Shape, contiguous
from paramtool.passes import select
from paramtool.passes.rnn.find import NetworkRequest, find


@frozen(repr=False)
class LoadedInto(Displayed):
    """What `load_into` put into a model."""

    filled: Mapping[str, tuple[str, ...]]
    """{a tensor of the model: the tensors of the file that it was filled from}."""
    unfilled: tuple[str, ...]
    """Weights of the model that keep their values."""
    unused: tuple[str, ...]
    """Tensors of the file that are used nowhere."""
    warnings: tuple[str, ...]
    """What was assumed."""

    _facts = "`unfilled` and `unused`"
    _members = "filled=filled.keys unfilled unused warnings"


def options(said: Mapping[str, Any]) -> RelayoutOptions:
    """The options of a function that fills a model in memory, by its keywords."""
    names = ("source", "spec", "strict", "only", "weights", "flatten", "partial")
    return RelayoutOptions(map=tuple(said["map"]), **{name: said[name] for name in names})


def values(
    path: Path,
    model: Checkpoint,
    options: RelayoutOptions,
    put: Callable[[Mapping[str, Array]], None],
    *,
    networks: Sequence[Network] | None = None,
) -> LoadedInto:
    """Let `put` have the new values of a model's tensors, once everything is known to fit."""
    found = opened(path, options.weights, silent, options).checkpoint
    checkpoint = select.section(found, options.only) if options.only is not None else found
    warnings = allow(checkpoint)
    into, more = planned(checkpoint, model, options, networks)
    check_made(into.targets.values(), checkpoint)
    with Source(checkpoint) as source:
        prove(into.requires, source)
        arrays = {name: computed(target, source) for name, target in into.targets.items()}
        source.settle()
    put(arrays)
    names = checkpoint.views()
    by_view = {view: name for name, view in names.items()}
    used = {
        name: tuple(dict.fromkeys(n for c in t.copies for n in c.names or (by_view.get(c.source, ""),) if n))
        for name, t in into.targets.items()
        if t.copies
    }
    return LoadedInto(used, into.unfilled, into.unused, (*checkpoint.said(), *warnings, *more, *into.notes))


def described(tensors: Mapping[str, tuple[str, Shape]], parts: Mapping[str, LayerPart]) -> Checkpoint:
    """A model in memory as a checkpoint: {name: (dtype, shape)}."""
    views = {name: contiguous(k, DTYPES[dtype], shape) for k, (name, (dtype, shape)) in enumerate(tensors.items())}
    storages = {v.number: Storage(v.number, v.nbytes, ByteRange("", 0, v.nbytes)) for v in views.values()}
    entries = {name: Entry(view) for name, view in views.items()}
    return Checkpoint("model", (SourceFile("the model", 0, 0),), storages, entries, parts=parts)


def networks_by_names(model: Checkpoint, *layouts: str) -> list[Network]:
    """The recurrent networks of a model with the names of these layouts, of which the first ones count."""
    found: list[Network] = []
    taken: set[str] = set()
    for layout in layouts:
        try:
            more = [one.network for one in find(model, NetworkRequest(layout, {}, (), lenient=True))]
        except LayoutError:  # there is none, and what no layout explains is listed as not filled
            continue
        found += [one for one in more if taken.isdisjoint(one.tensors.values())]
        taken |= {name for one in more for name in one.tensors.values()}
    return found
