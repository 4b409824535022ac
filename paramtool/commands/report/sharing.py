"""The alias graph as figures: stored tensors, the names that are views of them, and where each view is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from paramtool.commands.inspect import Inspection
from paramtool.commands.report.modules import geometry
from paramtool.drawing.strips import Wire
from paramtool.errors import plural
from paramtool.grouping import grouped
from paramtool.model.alias import Alias, AliasGraph
from paramtool.model.checkpoint import SAID
from paramtool.model.display import short, size, span
from paramtool.model.view import View

NUMBERS = re.compile(r"[0-9]+")
MAX_NAMES, MAX_EQUAL = 10, 4
"""Names of one stored tensor, and of equal tensors, that are drawn."""
RELATIONS = {"same": "the same tensor", "slice": "a slice", "transpose": "transposed", "view": "another view",
             "overlap": "a part of a span"}  # fmt: skip


class SharedGroup(NamedTuple):
    """A stored tensor with its names, and how many others look like it."""

    owner: str
    words: str
    wires: tuple[Wire, ...]
    names: int
    """How many names there are, drawn or not."""
    alike: tuple[str, ...]
    """The stored tensors of groups that look like it, but for numbers in their names."""
    nbytes: int


def shared_groups(found: Inspection) -> list[SharedGroup]:
    """Names that share memory, the largest first; groups of layers that look alike are one."""
    graph = found.graph
    made = (group(owner, members, graph) for owner, members in graph.groups())
    return _folded(made)


def equal_groups(found: Inspection) -> list[SharedGroup]:
    """Names with equal bytes in separate storages, where they were compared."""
    graph = found.graph
    made = []
    for one in found.equal or ():
        view = graph.names[one.names[0]].window
        words = "equal bytes, separate memory" + (", one value" if one.constant else "")
        wires = tuple(Wire(name, f"{words}; {geometry(view)}", "content", WHOLE) for name in one.names[:MAX_EQUAL])
        about = f"{geometry(view)}, {size(view.nbytes)} each"
        nbytes = view.nbytes * (len(one.names) - 1)
        made.append(SharedGroup(one.names[0], about, wires, len(one.names), (), nbytes))
    return _folded(made)


WHOLE = (0.0, 0.0, 1.0, 1.0)


def group(owner: str, members: Sequence[Alias], graph: AliasGraph) -> SharedGroup:
    """A stored tensor with some of its names."""
    view = graph.owners[owner]
    is_span = owner in graph.anonymous
    shown = members[:MAX_NAMES]
    sets = {one.alias_set for one in members}
    wires = tuple(_wire(one, view, graph, several=len(sets) > 1) for one in shown)
    words = f"{geometry(view)}, {size(view.nbytes)}"
    return SharedGroup("bytes of no one tensor" if is_span else owner, words, wires, len(members), (), view.nbytes)


def _wire(one: Alias, owner: View, graph: AliasGraph, *, several: bool) -> Wire:
    relation = graph.relation(one)
    memory = "same memory"
    if one.evidence == "content" or (several and one.alias_set != one.owner):
        memory = f"equal bytes, memory of {one.alias_set}"
    window = part_of(one.window, owner)
    words = [
        f"{RELATIONS[relation]}{_lines(window, owner, relation)}",
        memory,
        *([SAID[one.evidence]] if one.evidence in SAID else []),
        geometry(one.window),
    ]
    kind = "declared" if one.evidence in SAID else one.evidence
    return Wire(one.name, ", ".join(words), kind, window, relation == "transpose")


def _lines(window: tuple[float, float, float, float], owner: View, relation: str) -> str:
    """Which rows or columns a slice is; empty where it is neither.

    >>> from paramtool.model.dtype import DTYPES
    >>> from paramtool.model.view import contiguous
    >>> _lines((0.0, 0.25, 1.0, 0.5), contiguous(0, DTYPES["float32"], (8, 4)), "slice")
    ' of rows 2 to 3'
    """
    left, top, right, bottom = window
    if relation != "slice" or len(owner.shape) < 2:
        return ""
    if (left, right) == (0.0, 1.0):
        count, what, start, stop = owner.shape[0], "row", top, bottom
    elif (top, bottom) == (0.0, 1.0):
        count, what, start, stop = prod(owner.shape[1:]), "column", left, right
    else:
        return ""
    return f" of {span(what, round(start * count), round(stop * count))}"


def part_of(window: View, owner: View) -> tuple[float, float, float, float]:
    """Where a window is on its owner: left, top, right, bottom of the rectangle around it, from 0 to 1.

    The owner is drawn as rows of its first axis and columns of all others; both are in elements of the owner's type.

    >>> from paramtool.model.dtype import DTYPES
    >>> from paramtool.model.view import contiguous
    >>> owner = contiguous(0, DTYPES["float32"], (4, 8))
    >>> part_of(contiguous("w", DTYPES["float32"], (2, 8), 16), owner)
    (0.0, 0.5, 1.0, 1.0)
    >>> part_of(View("w", DTYPES["float32"], 2, (4, 2), (8, 1)), owner)
    (0.25, 0.0, 0.5, 1.0)
    """
    total = max(1, owner.nbytes)
    rows = owner.shape[0] if len(owner.shape) > 1 and owner.shape[0] else 1
    pitch = total / rows
    if not window.numel or window.byte_start >= total:
        return (0.0, 0.0, 0.0, 0.0)
    start, stop = window.byte_start, min(window.byte_stop, total)
    first, last = int(start // pitch), min(rows - 1, int((stop - 1) // pitch))
    left, right = (start - first * pitch) / pitch, (stop - last * pitch) / pitch
    if first != last and not _is_columns(window, pitch):
        left, right = 0.0, 1.0
    return (max(0.0, left), first / rows, min(1.0, right), (last + 1) / rows)


def _is_columns(window: View, pitch: float) -> bool:
    """Whether a window is a rectangle of some columns: an axis steps from row to row, and the others stay in one."""
    size = window.dtype.nbytes(1) if window.dtype.block_elements == 1 else 0
    steps = [(step * size, length) for length, step in window.axes if length > 1]
    inner = sum(step * (length - 1) for step, length in steps if step < pitch) + size
    return any(step == pitch for step, _ in steps) and inner < pitch


def _folded(groups: Iterable[SharedGroup]) -> list[SharedGroup]:
    """Groups that look alike as one, the largest first."""
    alike = grouped(
        (
            (
                numberless(one.owner),
                one.words,
                tuple((*map(numberless, wire[:1]), _numberless_memory(wire.words), *wire[2:]) for wire in one.wires),
                one.names,
            ),
            one,
        )
        for one in groups
    )
    made = [
        group[0]._replace(alike=tuple(one.owner for one in group[1:]), nbytes=sum(one.nbytes for one in group))
        for group in alike.values()
    ]
    return sorted(made, key=lambda one: -one.nbytes)


def numberless(name: str) -> str:
    """A name with a star for each number: layers that look alike have the same."""
    return NUMBERS.sub("*", name)


def _numberless_memory(words: str) -> str:
    """The words of a wire without the numbers in the name of its alias set; those of its shape stay."""
    head, between, rest = words.partition("memory of ")
    return head + between + numberless(rest.partition(",")[0]) + rest.partition(",")[2] if between else words


def last_words(name: str) -> str:
    """What a tensor is in its module: the end of its name.

    >>> last_words("h.0.attn.weight"), last_words("a/kernel")
    ('attn.weight', 'kernel')
    """
    words = re.split("[./]", name)
    return ".".join(words[-2:]) if words[-1] in ("weight", "bias") else words[-1]


def caption(one: SharedGroup) -> str:
    """What a figure shows."""
    more = f", and {len(one.alike)} more that look alike" if one.alike else ""
    hidden = one.names - len(one.wires)
    left_out = f"; {hidden:,} of the names are not drawn" if hidden > 0 else ""
    return f"{short(one.owner, 80)}: {plural(one.names, 'name')}{more}{left_out}"


def rows(found: Inspection) -> Iterator[tuple[str, str, str, str]]:
    """(name, stored tensor, relation, evidence) of every name that is a view of another tensor."""
    for owner, members in found.graph.groups():
        for one in members:
            if one.name != owner:
                yield (one.name, owner, RELATIONS[found.graph.relation(one)], one.evidence)
