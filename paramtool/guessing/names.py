"""Which modules have the names and shapes of a layout's networks; every layout is tried."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from paramtool import layouts
from paramtool.errors import LayoutError, UsageError, plural
from paramtool.grouping import grouped
from paramtool.guessing.candidates import Guess, meaning, unshown
from paramtool.guessing.vectors import home_of
from paramtool.layouts import names, networks
from paramtool.layouts.layout import Layout
from paramtool.layouts.names import is_at_home
from paramtool.layouts.networks import Network
from paramtool.layouts.spec import Facts, Spec
from paramtool.model.view import Shapes

RECURRENT = re.compile(r"lstm|gru|rnn|cell|recurrent|h2h|hh(?![a-z])", re.IGNORECASE)
"""Words in the names of recurrent modules; a layout with everyday names needs one of them."""
HAIKU_GRU = re.compile(r"(?:^|[./])w_[ih](?![a-z])")
"""The names of Haiku's GRU are its own, whatever the module is called."""
JOINED = {
    "haiku": re.compile(r"(?:^|[./])(?:lstm|vanilla_rnn)(?:_\d+)?[./]linear(?:_1)?[./][wb]"),
    "tf1": re.compile(
        r"(?:^|[./])(?:basic_lstm_cell|lstm_cell|lstm_fused_cell|lstm_block_cell|gru_cell|gru_block_cell|basic_rnn_cell"
        r"|cudnn_compatible_\w+_cell)(?:_\d+)?[./]"
    ),
}
"""{library: names that it gives to modules of cells whose matrices look like dense layers}.  Under any other name, a
kernel and a bias are taken for a dense layer, unless the user asks for the module."""
UNSAID = {"cell_clip": 3.0}
"""The usual values of facts that a layout requires the user to give (TensorFlow's BlockLSTM)."""
TAIL = 6
"""How many last parts of a name decide whether it belongs to a layout."""
NAMED = 20.0
"""The score of a network that was found by its names."""

Key = tuple[frozenset[str], str, Spec]
"""The tensors of a network, its module and its spec."""


def by_names(shapes: Shapes, asked: bool = False, homes: Sequence[str] = (), said: Facts | None = None) -> list[Guess]:
    """Networks whose names and shapes are those of a layout, in the order of the file.

    Layouts with everyday names (`kernel`, `W`) count only if a name says that it is recurrent, or if the user `asked`
    for the module.  If layouts give different meanings to the same names, those in `homes`, of the file's library,
    count.  Facts in `said` are not assumed.
    """
    found: dict[Key, list[Network]] = {}
    everything = _by_end(shapes)
    hinted = everything if asked else _by_end(_hinted(shapes))
    for layout in layouts.all_layouts():
        mine = {name: shapes[name] for name in _of_layout(layout, everything if layout.names_identify else hinted)}
        for at in networks.modules(layout, layout.chosen({}), mine) if mine else ():
            near = {name: shape for name, shape in mine.items() if name.startswith(at)}
            for network in _networks(layout, at, near, said or {}):
                if asked or not _could_be_dense(network, shapes):
                    key = (frozenset(network.tensors.values()), at, network.spec)
                    found.setdefault(key, []).append(network)
    kept = _largest(found)
    order = {name: k for k, name in enumerate(shapes)}
    kept.sort(key=lambda key: min(order[name] for name in key[0]))
    made: list[Guess] = []
    for key in kept:
        specs = sum(other[0] == key[0] for other in kept)
        made += (_candidate(alike, found[key], specs, shapes) for alike in _apart(found[key], homes))
    return made


def _hinted(shapes: Shapes) -> list[str]:
    """The names in modules of which some name says that it is recurrent."""
    homes = {home_of(name) for name in shapes if RECURRENT.search(name) or HAIKU_GRU.search(name)}
    return [name for name in shapes if home_of(name) in homes or RECURRENT.search(name)]


def _could_be_dense(network: Network, shapes: Shapes) -> bool:
    """Whether its matrices look like dense layers, and nothing else shows that they are a cell.

    A Haiku cell is the only content of its module; a dense layer beside other tensors is the module's output.
    """
    rows = {network.tensors[one.name]: one.row.kinds() for one in network.stored() if len(one.shape) > 1}
    joined = [name for name, kinds in rows.items() if {"W", "R"} <= kinds]
    library = network.layout.name.split(".")[0]
    if not joined and not (library == "haiku" and network.spec.kind == "rnn"):
        return False
    said = [JOINED[library].search(name) for name in rows] if library in JOINED else [None]
    if not all(match and network.spec.kind in match[0] for match in said):
        return True
    beside = (name for name in shapes if name.startswith(network.at) and name[len(network.at) :][:1] in ("/", "."))
    return library == "haiku" and set(beside) != set(network.tensors.values())


def _apart(alike: list[Network], homes: Sequence[str]) -> list[list[Network]]:
    """Networks of the same tensors, grouped by meaning; only those of the file's library, if there are any."""
    own = [one for one in alike if homes and is_at_home(one.layout.name, homes)]
    if len(own or alike) == 1:
        return [own or alike]
    groups = grouped(
        (meaning(one.layout, one.form, one.spec, one.options, tensors=one.tensors), one) for one in own or alike
    )
    return sorted(groups.values(), key=lambda group: not any(one.layout.names_identify for one in group))


def _by_end(names: Iterable[str]) -> dict[str, list[str]]:
    """Names grouped by their ends, in which numbers of equal length count as equal, so that each end is tried once."""
    return grouped(
        (_NUMBER.sub(lambda number: "0" * len(number[0]), "".join(_PARTS.split(name)[-TAIL:])), name) for name in names
    )


def _of_layout(layout: Layout, by_end: Mapping[str, list[str]]) -> list[str]:
    """The modules that have both kinds of matrices according to the layout's rows."""
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
_NUMBER = re.compile(r"(?<!\d)\d{2,}(?=[./])")
"""The number of a layer or a cell; the last part of a name keeps its numbers, and so does Haiku's `linear_1`."""


def _ends(layout: Layout, tail: str) -> Iterator[tuple[int, frozenset[str]]]:
    """(length of the part after the module's name, kinds of cells there) for each reading of a name."""
    for row, gates in {(row, form.gates) for form in layout.forms for row in form.tensors}:
        said = names.found(row, row.directions or layout.directions, gates, layout.separator, name=tail)
        if said is not None:
            yield len(tail) - len(said.get("at") or ""), row.kinds()


def _networks(layout: Layout, at: str, shapes: Shapes, said: Facts) -> Iterator[Network]:
    """The networks that a module can be in a layout; several if names and shapes do not decide."""
    for options in dict.fromkeys(tuple(form.when.items()) for form in layout.forms):
        try:
            network = networks.network(layout, dict(options), at, shapes, facts=said)
            usual = {fact: UNSAID[fact] for fact in network.lacking if fact in UNSAID}
            yield networks.network(layout, dict(options), at, shapes, facts={**usual, **said}) if usual else network
        except (LayoutError, UsageError):
            seen: dict[object, Network] = {}
            for facts in _facts(layout):
                try:
                    network = networks.network(layout, dict(options), at, shapes, facts={**facts, **said})
                except (LayoutError, UsageError):
                    continue
                seen.setdefault(network.spec, network)
            yield from seen.values()


def _facts(layout: Layout) -> Iterator[Facts]:
    """The facts that a user could give to decide between networks of a layout."""
    for form in layout.forms:
        facts: dict[str, object] = {"kind": form.kind}
        facts |= {fact: UNSAID[fact] for fact in layout.required if fact in UNSAID and form.kind == "lstm"}
        facts |= {"reset": form.reset} if form.reset else {}
        facts |= {"activation": form.activations[0]} if form.kind == "rnn" and len(form.activations) == 1 else {}
        yield facts
        for directions in (False, True):
            yield facts | {"bidirectional": directions}


def _largest(found: Mapping[Key, list[Network]]) -> list[Key]:
    """The networks, without those that leave out tensors for which another reading has a place.

    Of readings of the same tensors, the reading whose names explain more is kept: its module has the shorter name.
    """
    by_tensor = grouped((name, key) for key in found for name in key[0])
    kept = [key for key in found if not any(key[0] < other[0] for other in by_tensor[next(iter(key[0]))])]
    shortest: dict[frozenset[str], int] = {}
    for tensors, at, _ in kept:
        shortest[tensors] = min(len(at), shortest.get(tensors, len(at)))
    return [key for key in kept if len(key[1]) == shortest[key[0]]]


def _candidate(alike: list[Network], every: list[Network], specs: int, shapes: Shapes) -> Guess:
    """One candidate for all layouts that read the same network from the same tensors.

    `every` also has the networks that other layouts read from them; `specs` is how many networks fit in all.
    """
    first = min(alike, key=lambda network: not network.layout.names_identify)
    others = list(dict.fromkeys(n.layout.name for n in alike if n.layout.name != first.layout.name))
    different = list(dict.fromkeys(n.layout.name for n in every if n not in alike))
    reasons = [
        f"{plural(len(first.tensors), 'tensor has', 'tensors have')} the names and shapes of layout {first.layout.name}"
    ]
    if others or different:
        reasons.append(f"{' and '.join([*others, *different])} would have the same names and shapes")
    reasons += gate_orders({n.layout.name: n.form.gates for n in every})
    if specs > 1:
        reasons.append(f"{specs} networks have these names and shapes")
    reasons += [f"assumed {fact}, which no tensor shows; use {other} if that is wrong" for fact, other in first.assumed]
    granted = [unshown(fact, other) for fact, other in (*first.assumed, *networks.to_be_said(first))]
    if _could_be_dense(first, shapes):
        granted.append("a cell or a dense layer, which has the same shapes: the network's code says which")
    # The options that the form of a layout needs, if they are not its defaults.
    defaults = first.layout.chosen({})
    words = [f"{k}={v}" for k, v in first.options.items() if k in first.form.when and defaults[k] != v]
    return Guess(
        at=first.at,
        layout=first.layout.name + (":" + ",".join(words) if words else ""),
        spec=str(first.spec),
        reasons=tuple(reasons),
        sure="names and shapes" if specs == 1 and first.layout.names_identify else "possible",
        score=NAMED + first.layout.names_identify,
        alike=tuple(others),
        tensors=first.tensors,
        unshown=tuple(granted),
    )


def gate_orders(orders: Mapping[str, str]) -> list[str]:
    """The reason that lists the possible orders of gates; empty if there is only one.

    >>> gate_orders({"torch": "ifgo", "onnx": "iofg", "mxnet": "ifgo"})
    ['shapes do not show the order of gates: i f g o (torch, mxnet) or i o f g (onnx)']
    """
    by_order = grouped((" ".join(gates), name) for name, gates in orders.items())
    if len(by_order) < 2:
        return []
    listed = " or ".join(f"{order} ({', '.join(known)})" for order, known in by_order.items())
    return [f"shapes do not show the order of gates: {listed}"]
