"""Which modules have the names and shapes of a layout's networks: every layout is asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from paramtool import layouts
from paramtool.errors import LayoutError, UsageError, plural
from paramtool.guessing.candidates import Guess
from paramtool.guessing.decide import meaning, unshown
from paramtool.guessing.vectors import Shapes, home_of
from paramtool.layouts import names, networks
from paramtool.layouts.homes import is_at_home
from paramtool.layouts.layout import Layout
from paramtool.layouts.networks import Network
from paramtool.layouts.spec import Facts, Spec

RECURRENT = re.compile(r"lstm|gru|rnn|cell|recurrent|h2h|hh(?![a-z])", re.IGNORECASE)
"""Words of recurrent modules; where the names of a layout say little, one of them is asked for."""
HAIKU_GRU = re.compile(r"(?:^|[./])w_[ih](?![a-z])")
"""Haiku's GRU has names of its own, whatever the module is called."""
JOINED = {
    "haiku": re.compile(r"(?:^|[./])(?:lstm|vanilla_rnn)(?:_\d+)?[./]linear(?:_1)?[./][wb]"),
    "tf1": re.compile(
        r"(?:^|[./])(?:basic_lstm_cell|lstm_cell|lstm_fused_cell|lstm_block_cell|gru_cell|gru_block_cell|basic_rnn_cell"
        r"|cudnn_compatible_\w+_cell)(?:_\d+)?[./]"
    ),
}
"""{library: names of its cells whose matrices are those of dense layers}: the names that its classes give to modules.
Under any other name a kernel and a bias are a dense layer, unless somebody asks."""
UNSAID = {"cell_clip": 3.0}
"""The usual value of what a layout does not let anybody assume (TensorFlow's BlockLSTM)."""
TAIL = 6
"""So many last parts of a name say whether it is of a layout."""
NAMED = 20.0
"""The score of a network that is found by its names."""

Key = tuple[frozenset[str], str, Spec]
"""The tensors of a network, its module and its spec."""


def by_names(shapes: Shapes, asked: bool = False, homes: Sequence[str] = (), said: Facts | None = None) -> list[Guess]:
    """Networks whose names and shapes are those of a layout, in the order of the file.

    Layouts with everyday names (`kernel`, `W`) count only where a name says that it is recurrent, or where the module
    was `asked` for.  Of layouts that mean other things by the same names, those at `homes` in the file are taken; what
    is `said` of the networks is not assumed.
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
    """Names of modules in which one says that it is recurrent."""
    homes = {home_of(name) for name in shapes if RECURRENT.search(name) or HAIKU_GRU.search(name)}
    return [name for name in shapes if home_of(name) in homes or RECURRENT.search(name)]


def _could_be_dense(network: Network, shapes: Shapes) -> bool:
    """Whether its matrices are those of dense layers, and nothing else says that they are a cell's.

    A cell of Haiku is all that its module has; a dense layer beside other things is the module's output.
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
    """Networks of the same tensors by what they mean; only those at home in the file, where there are any."""
    own = [one for one in alike if homes and is_at_home(one.layout.name, homes)]
    if len(own or alike) == 1:
        return [own or alike]
    groups: dict[object, list[Network]] = {}
    for one in own or alike:
        key = meaning(one.layout, one.form, one.spec, one.options, tensors=one.tensors)
        groups.setdefault(key, []).append(one)
    return sorted(groups.values(), key=lambda group: not any(one.layout.names_identify for one in group))


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
_NUMBER = re.compile(r"(?<!\d)\d{2,}(?=[./])")
"""Of a layer or a cell; the last part of a name keeps its numbers, and so does `linear_1` of Haiku."""


def _ends(layout: Layout, tail: str) -> Iterator[tuple[int, frozenset[str]]]:
    """How many letters behind the module's name each reading of a name takes, and the kinds of cells there."""
    for row, gates in {(row, form.gates) for form in layout.forms for row in form.tensors}:
        said = names.found(row, row.directions or layout.directions, gates, layout.separator, name=tail)
        if said is not None:
            blocks = row.blocks()
            yield len(tail) - len(said.get("at") or ""), frozenset().union(*(block.kinds for block in blocks))


def _networks(layout: Layout, at: str, shapes: Shapes, said: Facts) -> Iterator[Network]:
    """The networks that a module can be in a layout: one, or, where names and shapes leave it open, each of them."""
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
    """What could be said to make one network of several."""
    for form in layout.forms:
        facts: dict[str, object] = {"kind": form.kind}
        facts |= {fact: UNSAID[fact] for fact in layout.required if fact in UNSAID and form.kind == "lstm"}
        facts |= {"reset": form.reset} if form.reset else {}
        facts |= {"activation": form.activations[0]} if form.kind == "rnn" and len(form.activations) == 1 else {}
        yield facts
        for directions in (False, True):
            yield facts | {"bidirectional": directions}


def _largest(found: Mapping[Key, list[Network]]) -> list[Key]:
    """Without the networks that leave out tensors which another reading has a place for.

    Of readings of the same tensors that one is kept whose names explain more: its module has the shorter name.
    """
    by_tensor: dict[str, list[Key]] = {}
    for key in found:
        for name in key[0]:
            by_tensor.setdefault(name, []).append(key)
    kept = [key for key in found if not any(key[0] < other[0] for other in by_tensor[next(iter(key[0]))])]
    shortest: dict[frozenset[str], int] = {}
    for tensors, at, _ in kept:
        shortest[tensors] = min(len(at), shortest.get(tensors, len(at)))
    return [key for key in kept if len(key[1]) == shortest[key[0]]]


def _candidate(alike: list[Network], every: list[Network], specs: int, shapes: Shapes) -> Guess:
    """One candidate of the layouts that read the same network from the same tensors.

    `every` has those of other layouts that read others from them; `specs` networks fit in all.
    """
    first = min(alike, key=lambda network: not network.layout.names_identify)
    others = list(dict.fromkeys(n.layout.name for n in alike if n.layout.name != first.layout.name))
    strange = list(dict.fromkeys(n.layout.name for n in every if n not in alike))
    reasons = [
        f"{plural(len(first.tensors), 'tensor has', 'tensors have')} the names and shapes of layout {first.layout.name}"
    ]
    if others or strange:
        reasons.append(f"{' and '.join([*others, *strange])} would have the same names and shapes")
    reasons += gate_orders({n.layout.name: n.form.gates for n in every})
    if specs > 1:
        reasons.append(f"names and shapes leave {specs} networks open")
    reasons += [f"assumed {fact}, which no tensor shows; {other} says otherwise" for fact, other in first.assumed]
    granted = [unshown(fact, other) for fact, other in (*first.assumed, *networks.to_be_said(first))]
    if _could_be_dense(first, shapes):
        granted.append("a cell or a dense layer, which has the same shapes: the network's code says which")
    return Guess(
        at=first.at,
        layout=first.layout.name + _said(first),
        spec=str(first.spec),
        reasons=tuple(reasons),
        sure="names and shapes" if specs == 1 and first.layout.names_identify else "possible",
        score=NAMED + first.layout.names_identify,
        alike=tuple(others),
        tensors=first.tensors,
        unshown=tuple(granted),
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
