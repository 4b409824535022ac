"""Which windows could be equal: questions for the engine, from names, dtypes and shapes alone.

    candidates        every window that is compared, once
    equal_groups      same role, dtype and shape
    shape_groups      same role, dtype and size, in different shapes
    row_groups        rows of one length: could the small tensors be slices of the large ones?
    transpose_groups  the same lengths of axes, in any order
    cast_groups       one shape, a narrow and a wide type of number
    scales_of         what belongs to the codes of quantised weights, whatever its size

Tensors below a minimum size are not compared: counters and scales are equal by chance.  Packed types are compared
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from paramtool import layouts
from paramtool.grouping import grouped
from paramtool.layouts.layout import Layout
from paramtool.layouts.networks import Network, modules, network_if_any
from paramtool.model.alias import AliasGraph, Windows, fills
from paramtool.model.checkpoint import Checkpoint, Entries, Entry
from paramtool.model.dtype import NARROWER
from paramtool.model.match import Equal, Match, Rows
from paramtool.model.plan import Target
from paramtool.model.quantised import Groups, parts
from paramtool.model.view import View, Views, contiguous, contiguous_strides, reshaped
from paramtool.passes.rnn.convert import convert_if_held


class Candidate(NamedTuple):
    """A window that could equal another: its first name, and where it is in the source."""

    name: str
    view: View
    role: str
    is_whole: bool
    """Whether it is all of its owner, so that it need not be stored if another tensor has its bytes."""
    is_crossed: bool = False
    """Whether other names are transposes of its owner or views of parts of its rows: then it should stay."""


def candidates(
    checkpoint: Checkpoint, graph: AliasGraph, min_nbytes: int, across_roles: bool = False
) -> list[Candidate]:
    """Windows that could equal others: contiguous in the stored tensor, with at least `min_nbytes` bytes.

    Content never joins different roles (model, optimizer, EMA, buffer), unless `across_roles` says so.
    """
    found: dict[View, Candidate] = {}
    crossed = {member.owner for member in graph.names.values() if not member.window.is_contiguous}
    for name, member in graph.names.items():
        window = member.window
        if name not in checkpoint.entries or not window.is_contiguous or window.nbytes < max(min_nbytes, 1):
            continue
        if member.owner in graph.derived:
            continue
        role = "" if across_roles else checkpoint.entries[name].role
        whole = member.owner not in graph.anonymous and fills(member, graph)
        found.setdefault(window, Candidate(name, member.source, role, whole, member.owner in crossed))
    return list(found.values())


def equal_groups(found: Iterable[Candidate]) -> list[Windows]:
    """Groups of two or more windows of one role, dtype and shape."""
    groups = _grouped(found, lambda one: (one.role, one.view.dtype, one.view.shape))
    return [[(one.name, one.view) for one in group] for group in groups if len(group) > 1]


def distinct(found: Iterable[Candidate], equal: Iterable[Equal], without: Collection[str] = ()) -> list[Candidate]:
    """One candidate for each class of equal windows, and all that equal no other; none of those in `without`.

    For a class that is a window inside a larger tensor, which stays there, if it has one.
    """
    found = list(found)
    inner = {one.name for one in found if not one.is_whole}
    second = set[str]()
    for one in equal:
        first = next((name for name in one.names if name in inner), one.names[0])
        second.update(name for name in one.names if name != first)
    return [one for one in found if one.name not in second and one.name not in without]


def shape_groups(found: Iterable[Candidate]) -> list[list[tuple[tuple[str, View], bool]]]:
    """Groups of windows of one role, dtype and size in several shapes, each with whether it may become a view."""
    plain = [one for one in found if one.view.dtype.block_elements == 1]
    groups = _grouped(plain, lambda one: (one.role, one.view.dtype, one.view.nbytes))
    return [
        [((one.name, one.view), one.is_whole) for one in group]
        for group in groups
        if len({one.view.shape for one in group}) > 1
    ]


def row_groups(found: Iterable[Candidate], done: Collection[str]) -> list[tuple[list[Rows], list[Rows]]]:
    """(tensors that may be slices, tensors that may hold them), each pair read as rows of one length.

    A matrix is a slice of another as whole rows, and a vector is a slice of a stack of vectors as one row.  Any tensor
    can be a slice of a vector, such as a fused network, from any element on.  Tensors ascend by size, so that the
    smallest owner is found first.  Tensors in `done` are not searched for and may still hold others.
    """
    plain = [one for one in found if one.view.dtype.block_elements == 1 and one.view.shape]
    plain.sort(key=lambda one: one.view.nbytes)
    groups = []
    for group in _grouped(plain, lambda one: (one.role, one.view.dtype, one.view.shape[-1])):
        size = group[0].view.dtype.nbytes(group[0].view.shape[-1])
        large = [one for one in group if len(one.view.shape) > 1 and one.view.nbytes > group[0].view.nbytes]
        groups.append(_rows(group, large, size, done))
    for group in _grouped(plain, lambda one: (one.role, one.view.dtype)):
        vectors = [one for one in group if len(one.view.shape) == 1 and one.view.nbytes > group[0].view.nbytes]
        groups.append(_rows(group, vectors, group[0].view.dtype.block_bytes, done))
    return [(small, large) for small, large in groups if small and large]


def _rows(
    group: Sequence[Candidate], large: Sequence[Candidate], pitch: int, done: Collection[str]
) -> tuple[list[Rows], list[Rows]]:
    most = max((one.view.nbytes for one in large), default=0)
    sought = [one for one in group if one.is_whole and one.view.nbytes < most and one.name not in done]
    small = [Rows(one.name, one.view, pitch) for one in sought]
    return small, [Rows(one.name, one.view, pitch) for one in large]


def transpose_groups(found: Iterable[Candidate]) -> list[Windows]:
    """Groups of windows of one role and dtype with two or more axes longer than 1, of the same lengths in some order.

    Each may hold the windows after it as transposes; those that should stay come first.
    """
    some = [
        one
        for one in sorted(found, key=lambda one: not one.is_crossed)
        if one.view.dtype.block_elements == 1 and sum(size > 1 for size in one.view.shape) > 1
    ]
    groups = _grouped(some, lambda one: (one.role, one.view.dtype, tuple(sorted(one.view.shape))))
    return [[(one.name, one.view) for one in group] for group in groups if len(group) > 1]


def cast_groups(found: Iterable[Candidate]) -> list[tuple[Windows, Windows]]:
    """Pairs of lists (narrow, wide) of windows of one role and shape."""
    some = [one for one in found if one.is_whole]
    groups = []
    for group in _grouped(some, lambda one: (one.role, one.view.shape)):
        types = grouped((one.view.dtype.name, (one.name, one.view)) for one in group)
        for wide, narrower in NARROWER.items():
            groups += [(types[narrow], types[wide]) for narrow in narrower if narrow in types and wide in types]
    return groups


def _grouped(found: Iterable[Candidate], key: Callable[[Candidate], Hashable]) -> list[list[Candidate]]:
    groups = grouped((key(one), one) for one in found)
    return list(groups.values())


def scales_of(checkpoint: Checkpoint, packed: Groups, found: Collection[Candidate]) -> list[Candidate]:
    """The tensors that belong to packed weights and are too small to be candidates by themselves."""
    known = {one.name for one in found}
    small = []
    for name in parts(packed) - known:
        value = checkpoint.entries[name].value
        if isinstance(value, View) and value.numel:
            small.append(Candidate(name, value, checkpoint.entries[name].role, False))
    order = {name: k for k, name in enumerate(checkpoint.entries)}
    return sorted(small, key=lambda one: order[one.name])


def with_scales(entries: Entries, packed: Groups, equal: Iterable[Equal], small: Iterable[Candidate]) -> list[Equal]:
    """The classes of equal names, split where scales of packed weights differ, and without those in `small`."""
    classes = list(equal)
    class_of = {_window(entries[name]): k for k, one in enumerate(classes) for name in one.names}

    def content(name: str) -> str:
        window = _window(entries[name])
        return str(class_of.get(window, window))

    signature: dict[str, list[object]] = {}
    for name, others in packed.items():
        mark = (content(name), sorted((label, content(other)) for other, label in others.items()))
        for part in (name, *others):
            signature.setdefault(part, []).append(mark)
    left_out = {one.name for one in small}
    return [part for one in classes for part in _apart(one, signature, left_out)]


def _window(entry: Entry) -> str:
    """A string that is the same for two names exactly if they have the same window."""
    return repr(entry.value)


def _apart(one: Equal, signature: Mapping[str, object], left_out: Collection[str]) -> Iterator[Equal]:
    alike = grouped((repr(signature.get(name)), name) for name in one.names if name not in left_out)
    for names in alike.values():
        if len(names) > 1:
            yield replace(one, names=tuple(names))


# --- Where the tensors of a recurrent network would be in a fused vector, according to the tables of the layouts ------
#
# A checkpoint may hold a network twice: as named tensors, and as the fused vector that cuDNN or MXNet runs.  The tables
# say where each tensor is in such a vector, transposed or not, so that no search is needed.  Comparing the bytes proves
# it.


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
    return [one for one in layouts.all_layouts() if one.is_of_one_tensor]


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
    ordered = source.with_axes(shape, tuple(source.strides[k] for k in order))
    return reshaped(ordered, target.shape)
