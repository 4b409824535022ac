"""A step of a comparison for files that hold a graph: tensors that they store once, and that the other file has twice.

An exporter stores equal initializers once, under one name of its own, and several nodes take it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from paramtool.commands.diff.renames import equal_names
from paramtool.commands.diff.settled import Settled
from paramtool.errors import plural
from paramtool.model.conventions import COUNTERS
from paramtool.model.diff import LAYOUT, LED_BACK, RENAMED, SAME
from paramtool.model.view import Views


def stored_once(state: Settled) -> None:
    """Tensors of one checkpoint that the graph of the other one has under another name."""
    uses_a, uses_b = (one.uses for one in state.checkpoints)
    a, b = state.checkpoints
    # What torch's batch norms count in training; no other library has it
    is_told = bool(uses_b or b.parts)
    found = {old: new for new, one in state.found.items() if one.kind in LED_BACK for old in one.a}
    for name in list(state.left_a):
        if _is_counter(name, found, is_told):
            state.settle_only_a(LAYOUT, name, "a counter that B's format leaves out")
    _counters_of_b(state, is_told=bool(uses_a or a.parts))
    # Tensors of equal bytes, if as many nodes take the one that a graph stores.
    known = {name: one.a[0] for name, one in state.found.items() if one.kind in (SAME, RENAMED) and len(one.a) == 1}
    if state.left_a and uses_b:
        graph = {name: state.b[name] for name in known if uses_b.get(name, 0) > 1 and name in state.b}
        for name, other in list(_equal(state, state.left_a, graph, is_first=True)):
            one = state.found[other]
            if len(one.a) < uses_b[other]:
                how = f"B stores equal tensors once, and {plural(uses_b[other], 'node takes', 'nodes take')} it"
                state.found[other] = replace(one, kind=RENAMED, a=(*one.a, name), how=how)
                del state.left_a[name]
    if state.left_b and uses_a:
        counts = dict.fromkeys(known.values(), 1)
        graph = {name: state.a[name] for name in counts if uses_a.get(name, 0) > 1 and name in state.a}
        for name, other in list(_equal(state, state.left_b, graph, is_first=False)):
            if counts[other] < uses_a[other]:
                counts[other] += 1
                how = f"A stores equal tensors once, and {plural(uses_a[other], 'node takes', 'nodes take')} it"
                state.settle(RENAMED, [other], name, how=how)


def _counters_of_b(state: Settled, is_told: bool) -> None:
    """The same of A."""
    found = {new: one.a[0] for new, one in state.found.items() if one.kind in LED_BACK and one.a}
    for name in list(state.left_b):
        if _is_counter(name, found, is_told):
            state.settle_only_b(LAYOUT, name, "a counter that A's format leaves out")


def _is_counter(name: str, found: Mapping[str, str], is_told: bool) -> bool:
    """Whether a tensor is the counter of a batch norm whose statistics are found, in a file without counters."""
    at, dot, last = name.rpartition(".")
    other = found.get(f"{at}{dot}running_mean")
    return last in COUNTERS and other is not None and (is_told or not other.endswith("running_mean"))


def _equal(state: Settled, left: Views, graph: Views, *, is_first: bool) -> Iterator[tuple[str, str]]:
    """(tensor that is left, tensor of the graph on the other side) of the same bytes."""
    for pair in equal_names(state, left, graph) if is_first else equal_names(state, graph, left):
        mine, theirs = pair if is_first else pair[::-1]
        yield from ((name, theirs[0]) for name in mine)
