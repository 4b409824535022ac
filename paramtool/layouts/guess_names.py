"""Which modules have the names and shapes of a layout's networks: every layout is asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from paramtool import layouts
from paramtool.errors import LayoutError, UsageError, plural
from paramtool.layouts import names, networks
from paramtool.layouts.guess import Candidate
from paramtool.layouts.guess_vectors import Shapes
from paramtool.layouts.layout import Layout
from paramtool.layouts.networks import Network
from paramtool.layouts.spec import Facts

RECURRENT = re.compile(r"lstm|gru|rnn|cell|recurrent|h2h|hh(?![a-z])", re.IGNORECASE)
"""Words of recurrent modules; where the names of a layout say little, one of them is asked for."""
TAIL = 6
"""So many last parts of a name say whether it is of a layout."""
NAMED = 20.0
"""The score of a network that is found by its names."""

Key = tuple[frozenset[str], str, object]
"""The tensors of a network, its module and its spec."""


def by_names(shapes: Shapes, asked: bool = False) -> list[Candidate]:
    """Networks whose names and shapes are those of a layout, in the order of the file.

    Layouts with everyday names (`kernel`, `W`) count only where a name says that it is recurrent, or where the module
    was `asked` for.
    """
    found: dict[Key, list[Network]] = {}
    everything = _by_end(shapes)
    hinted = everything if asked else _by_end(name for name in shapes if RECURRENT.search(name))
    for layout in layouts.all_layouts():
        mine = {name: shapes[name] for name in _of_layout(layout, everything if layout.telling else hinted)}
        for at in networks.modules(layout, layout.chosen({}), mine) if mine else ():
            near = {name: shape for name, shape in mine.items() if name.startswith(at)}
            for network in _networks(layout, at, near):
                key = (frozenset(network.tensors.values()), at, network.spec)
                found.setdefault(key, []).append(network)
    kept = _largest(found)
    order = {name: k for k, name in enumerate(shapes)}
    kept.sort(key=lambda key: min(order[name] for name in key[0]))
    return [_candidate(found[key], sum(other[0] == key[0] for other in kept)) for key in kept]


def _by_end(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by their ends, in which one number stands for all of its length: each end is looked at once."""
    found: dict[str, list[str]] = {}
    for name in names:
        end = _NUMBER.sub(lambda number: "0" * len(number[0]), "".join(_PARTS.split(name)[-TAIL:]))
        found.setdefault(end, []).append(name)
    return found


def _of_layout(layout: Layout, by_end: Mapping[str, list[str]]) -> list[str]:
    """Names of modules that have both kinds of matrices, as the layout's rows read them."""
    readings: dict[str, list[str]] = {}
    kinds: dict[str, frozenset[str]] = {}
    for end, members in by_end.items():
        for length, said in _ends(layout, end):
            for name in members:
                at = name[: len(name) - length]
                readings.setdefault(name, []).append(at)
                kinds[at] = kinds.get(at, frozenset()) | said
    return [name for name, ats in readings.items() if any({"W", "R"} <= kinds[at] for at in ats)]


_PARTS = re.compile(r"(?<=[./])")
_NUMBER = re.compile(r"(?<!\d)\d+(?=[./])")
"""Of a layer or a cell; the last part of a name keeps its numbers."""


def _ends(layout: Layout, tail: str) -> Iterator[tuple[int, frozenset[str]]]:
    """How many letters behind the module's name each reading of a name takes, and the kinds of cells there."""
    for row, gates in {(row, form.gates) for form in layout.forms for row in form.tensors}:
        said = names.found(row, row.directions or layout.directions, gates, layout.separator, tail)
        if said is not None:
            blocks = row.blocks()
            yield len(tail) - len(said.get("at") or ""), frozenset().union(*(block.kinds for block in blocks))


def _networks(layout: Layout, at: str, shapes: Shapes) -> Iterator[Network]:
    """The networks that a module can be in a layout: one, or, where names and shapes leave it open, each of them."""
    for options in dict.fromkeys(tuple(form.when.items()) for form in layout.forms):
        try:
            yield networks.network(layout, dict(options), at, shapes, {})
        except (LayoutError, UsageError):
            seen: dict[object, Network] = {}
            for facts in _facts(layout):
                try:
                    network = networks.network(layout, dict(options), at, shapes, facts)
                except (LayoutError, UsageError):
                    continue
                seen.setdefault(network.spec, network)
            yield from seen.values()


def _facts(layout: Layout) -> Iterator[Facts]:
    """What could be said to make one network of several."""
    for form in layout.forms:
        facts: dict[str, object] = {"kind": form.kind}
        facts |= {"reset": form.reset} if form.reset else {}
        facts |= {"activation": form.activations[0]} if form.kind == "rnn" and len(form.activations) == 1 else {}
        yield facts
        for directions in (False, True):
            yield facts | {"bidirectional": directions}


def _largest(found: Mapping[Key, list[Network]]) -> list[Key]:
    """Without the networks that leave out tensors which another reading has a place for."""
    by_tensor: dict[str, list[Key]] = {}
    for key in found:
        for name in key[0]:
            by_tensor.setdefault(name, []).append(key)
    return [key for key in found if not any(key[0] < other[0] for other in by_tensor[next(iter(key[0]))])]


def _candidate(alike: list[Network], specs: int) -> Candidate:
    """One candidate of the layouts that read the same tensors as the same network; `specs` networks fit in all."""
    first = min(alike, key=lambda network: not network.layout.telling)
    others = list(dict.fromkeys(n.layout.name for n in alike if n.layout.name != first.layout.name))
    reasons = [
        f"{plural(len(first.tensors), 'tensor has', 'tensors have')} the names and shapes of layout {first.layout.name}"
    ]
    if others:
        reasons.append(f"{' and '.join(others)} would have the same names and shapes")
    reasons += gate_orders({n.layout.name: n.form.gates for n in alike})
    if specs > 1:
        reasons.append(f"names and shapes leave {specs} networks open")
    reasons += [f"assumed {fact}, which no tensor shows; {other} says otherwise" for fact, other in first.assumed]
    reasons += [f"no tensor shows {what}: {how}" for what, how in networks.to_be_said(first)]
    return Candidate(
        at=first.at,
        layout=first.layout.name + _said(first),
        spec=str(first.spec),
        reasons=tuple(reasons),
        sure="names and shapes" if specs == 1 and first.layout.telling else "possible",
        score=NAMED + first.layout.telling,
        alike=tuple(others),
        tensors=first.tensors,
        is_open=bool(first.lacking),
    )


def _said(network: Network) -> str:
    """The options of a layout that its form is for, where they are not its defaults."""
    defaults = network.layout.chosen({})
    words = [f"{k}={v}" for k, v in network.options.items() if k in network.form.when and defaults[k] != v]
    return ":" + ",".join(words) if words else ""


def gate_orders(orders: Mapping[str, str]) -> list[str]:
    """The reason that names the orders of gates which fit alike, where there are several.

    >>> gate_orders({"torch": "ifgo", "onnx": "iofg", "mxnet": "ifgo"})
    ['shapes cannot tell the order of gates: i f g o (torch, mxnet) and i o f g (onnx) fit alike']
    """
    by_order: dict[str, list[str]] = {}
    for name, gates in orders.items():
        by_order.setdefault(" ".join(gates), []).append(name)
    if len(by_order) < 2:
        return []
    listed = " and ".join(f"{order} ({', '.join(known)})" for order, known in by_order.items())
    return [f"shapes cannot tell the order of gates: {listed} fit alike"]
