"""Where the tensors of a recurrent network would be in a fused vector, according to the tables of the layouts.

A checkpoint may hold a network twice: as named tensors, and as the fused vector that cuDNN or MXNet runs.  The tables
say where each tensor is in such a vector, transposed or not, so that no search is needed.  Comparing the bytes proves
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from paramtool import layouts
from paramtool.grouping import grouped
from paramtool.layouts.layout import Layout
from paramtool.layouts.networks import Network, modules, network_if_any
from paramtool.model.match import Match
from paramtool.model.plan import Target
from paramtool.model.view import View, Views, contiguous, contiguous_strides, reshaped
from paramtool.passes.dedup.candidates import Candidate
from paramtool.passes.rnn.convert import convert_if_held


def windows(found: Iterable[Candidate]) -> list[Match]:
    """Possible matches, still to be proved: a tensor of a network, and its window in a vector of the right length."""
    parts = {one.name: one for one in found if one.is_whole}
    views = {name: one.view for name, one in parts.items()}
    least = min((view.numel for view in views.values() if len(view.shape) > 1), default=0)
    vectors = grouped(
        (one.view.numel, one)
        for one in parts.values()
        if len(one.view.shape) == 1 and one.view.numel > least > 0  # a fused vector holds at least one matrix
    )
    if not vectors:
        return []
    guesses: list[Match] = []
    for made in _networks(views):
        for flat in _flat():
            for target, back in _both_ways(made, views, flat):
                for vector in vectors.get(target.view.numel, ()):
                    guesses += _matches(made, parts, vector, back)
    return guesses


def _networks(views: Views) -> Iterator[Network]:
    """Every network of which all named tensors are present."""
    shapes = {name: view.shape for name, view in views.items()}
    for layout in layouts.all_layouts():
        if layout in _flat():
            continue
        for at in modules(layout, {}, shapes):
            if found := network_if_any(layout, at, shapes):
                yield found


def _flat() -> list[Layout]:
    """Layouts that store a whole network in one tensor."""
    return [one for one in layouts.all_layouts() if len({row.name for form in one.forms for row in form.tensors}) == 1]


def _both_ways(made: Network, views: Views, flat: Layout) -> Iterator[tuple[Target, Network]]:
    """The vector of a network, and that vector read as a network; nothing if the layout packs it as a matrix."""
    there = convert_if_held(made, views, flat, {}, at="")
    if there and len(there.targets) == 1 and len(there.targets[0].view.shape) == 1:
        own = next(iter(there.tensors))
        yield there.targets[0], Network("", flat, there.form, there.spec, there.options, {own: own})


def _matches(made: Network, parts: Mapping[str, Candidate], vector: Candidate, back: Network) -> Iterator[Match]:
    """The parts of a network, each with the window of the vector that should hold it."""
    own = next(iter(back.tensors))
    view = contiguous(vector.name, vector.view.dtype, vector.view.shape)
    again = convert_if_held(back, {own: view}, made.layout, made.options, at="")
    if again is None:
        return
    targets = {target.name: target for target in again.targets}
    for layout_name, name in made.tensors.items():
        part, target = parts.get(name), targets.get(again.tensors.get(layout_name, ""))
        if part is None or target is None or part.name == vector.name:
            continue
        if (part.view.dtype, part.role) != (vector.view.dtype, vector.role):
            continue
        window = _one_window(target)
        window = window and reshaped(window, part.view.shape)
        if window is not None:
            relation = "slice" if window.is_contiguous else "transpose"
            yield Match(name, vector.name, window, relation)


def _one_window(target: Target) -> View | None:
    """The one window that a target copies row by row; None if it is assembled from several, or calculated."""
    if len(target.copies) != 1 or not target.copies[0].is_plain:
        return None
    destination, source = target.copies[0].destination, target.copies[0].source
    order = sorted(range(len(destination.shape)), key=lambda k: -destination.strides[k])
    shape = tuple(destination.shape[k] for k in order)
    if destination.numel != target.view.numel or tuple(destination.strides[k] for k in order) != contiguous_strides(
        shape
    ):
        return None
    ordered = View(source.storage, source.dtype, source.offset, shape, tuple(source.strides[k] for k in order))
    return reshaped(ordered, target.shape)
