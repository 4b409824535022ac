"""Maps of recurrent networks: what a dozen libraries make of one network, by their documented orders of gates.

Each layout is written here with NumPy alone.  The canonical network is PyTorch's: for each layer and direction an input
matrix [gates, hidden, in], a recurrent one [gates, hidden, hidden], and two biases [gates, hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tests.laws.diff_trials.kinds_parts import spoilt
from tests.laws.diff_trials.pairs import Array, Arrays, Module, Random, kind, numbers

MIN_VECTOR = 64
"""Elements of a flat vector that is taken for a network."""
GATES = {"lstm": "ifgo", "gru": "rzn", "rnn": "h"}
IFGO_ZRN = {"lstm": "ifgo", "gru": "zrn", "rnn": "h"}
IOFG_ZRN = {"lstm": "iofg", "gru": "zrn", "rnn": "h"}
IFOG = {"lstm": "ifog", "gru": "rnz", "rnn": "h"}


class Cell(NamedTuple):
    """One direction of one layer."""

    layer: int
    direction: int
    wide: Array
    deep: Array
    first: Array
    second: Array


class Net(NamedTuple):
    """A network in PyTorch's order of gates."""

    kind: str
    biases: str
    """`none`, `both`, or `first` where the second one is zero."""
    directions: int
    cells: tuple[Cell, ...]

    @property
    def layers(self) -> int:
        """How many."""
        return len(self.cells) // self.directions


def _ordered(net: Net, array: Array, orders: Mapping[str, str]) -> Array:
    """The gates in another order, one below the other."""
    order = [GATES[net.kind].index(gate) for gate in orders[net.kind]]
    return array[order].reshape(-1, *array.shape[2:])


Writer = Callable[[Net, str], Arrays]
WRITERS: dict[str, Writer] = {}


def writer(name: str) -> Callable[[Writer], Writer]:
    """What a library makes of a network."""

    def add(made: Writer) -> Writer:
        WRITERS[name] = made
        return made

    return add


@writer("torch")
def _torch(net: Net, at: str) -> Arrays:
    found: Arrays = {}
    for cell in net.cells:
        end = f"_l{cell.layer}{'_reverse' if cell.direction else ''}"
        own = {"weight_ih": cell.wide, "weight_hh": cell.deep}
        own |= {} if net.biases == "none" else {"bias_ih": cell.first, "bias_hh": cell.second}
        found |= {f"{at}.{name}{end}": _ordered(net, one, GATES) for name, one in own.items()}
    return found


@writer("mxnet")
def _mxnet(net: Net, at: str) -> Arrays:
    """Gluon: both biases, always."""
    found: Arrays = {}
    for cell in net.cells:
        head = f"{at}_{'lr'[cell.direction]}{cell.layer}"
        own = {"i2h_weight": cell.wide, "h2h_weight": cell.deep, "i2h_bias": cell.first, "h2h_bias": cell.second}
        found |= {f"{head}_{name}": _ordered(net, one, GATES) for name, one in own.items()}
    return found


def _flat(net: Net) -> Array:
    """Order P: all matrices, then all biases."""
    weights = [one.reshape(-1) for cell in net.cells for one in (cell.wide, cell.deep)]
    return np.concatenate([*weights, *(one.reshape(-1) for cell in net.cells for one in (cell.first, cell.second))])


@writer("mxnet.v2")
def _mxnet_vector(net: Net, at: str) -> Arrays:
    return {f"{at}.rnn_param": _flat(net)}


@writer("onnx")
def _onnx(net: Net, at: str) -> Arrays:
    """A node for each layer: W [directions, gates * hidden, in], R, and B of both biases."""
    found: Arrays = {}
    for layer in range(net.layers):
        cells = [cell for cell in net.cells if cell.layer == layer]
        head = f"{at}.layer{layer}" if net.layers > 1 else at
        found[f"{head}.W"] = np.stack([_ordered(net, cell.wide, IOFG_ZRN) for cell in cells])
        found[f"{head}.R"] = np.stack([_ordered(net, cell.deep, IOFG_ZRN) for cell in cells])
        if net.biases != "none":
            both = [[_ordered(net, one, IOFG_ZRN) for one in (cell.first, cell.second)] for cell in cells]
            found[f"{head}.B"] = np.stack([np.concatenate(one) for one in both])
    return found


@writer("chainer")
def _chainer(net: Net, at: str) -> Arrays:
    """An array for each gate: those of the inputs, then the recurrent ones."""
    found: Arrays = {}
    for number, cell in enumerate(net.cells):
        weights, biases = [*cell.wide, *cell.deep], [*cell.first, *cell.second]
        found |= {f"{at}/{number}/w{k}": one for k, one in enumerate(weights)}
        found |= {f"{at}/{number}/b{k}": one for k, one in enumerate(biases)}
    return found


def _heads(net: Net, at: str, separator: str, names: tuple[str, str]) -> Iterator[tuple[str, Cell]]:
    """(module, cell), in libraries whose users stack layers."""
    for cell in net.cells:
        words = [at, *([f"layer{cell.layer}"] if net.layers > 1 else [])]
        words += [names[cell.direction]] if net.directions > 1 else []
        yield separator.join(words), cell


@writer("keras")
def _keras(net: Net, at: str) -> Arrays:
    """Columns; one bias, but for a GRU with its reset after the product, which has both."""
    found: Arrays = {}
    for head, cell in _heads(net, at, "/", ("forward_layer", "backward_layer")):
        found[f"{head}/kernel"] = _ordered(net, cell.wide, IFGO_ZRN).T
        found[f"{head}/recurrent_kernel"] = _ordered(net, cell.deep, IFGO_ZRN).T
        if net.biases != "none":
            both = [_ordered(net, one, IFGO_ZRN) for one in (cell.first, cell.second)]
            found[f"{head}/bias"] = np.stack(both) if net.kind == "gru" else both[0]
    return found


@writer("coreml")
def _coreml(net: Net, at: str) -> Arrays:
    found: Arrays = {}
    for cell in net.cells:
        head = f"{at}.layer{cell.layer}" if net.layers > 1 else at
        end = "_back" if cell.direction else ""
        own = {"weight_ih": cell.wide, "weight_hh": cell.deep, **({"bias": cell.first} if net.biases != "none" else {})}
        found |= {f"{head}.{name}{end}": _ordered(net, one, IFOG) for name, one in own.items()}
    return found


@writer("equinox")
def _equinox(net: Net, at: str) -> Arrays:
    found: Arrays = {}
    for head, cell in _heads(net, at, ".", ("forward", "backward")):
        own = {"weight_ih": cell.wide, "weight_hh": cell.deep, **({"bias": cell.first} if net.biases != "none" else {})}
        found |= {f"{head}.{name}": _ordered(net, one, GATES) for name, one in own.items()}
        if net.kind == "gru" and net.biases != "none":
            found[f"{head}.bias_n"] = cell.second[2]
    return found


@writer("flux")
def _flux(net: Net, at: str) -> Arrays:
    found: Arrays = {}
    for head, cell in _heads(net, at, ".", ("forward", "backward")):
        own = {"Wi": cell.wide, "Wh": cell.deep}
        if net.biases != "none":
            own["b" if net.kind == "gru" else "bias"] = cell.first
        found |= {f"{head}.cell.{name}": _ordered(net, one, GATES) for name, one in own.items()}
    return found


@writer("flax.linen")
def _linen(net: Net, at: str) -> Arrays:
    """A layer for each gate, whose bias is on the recurrent side of an LSTM, and on both of a GRU's candidate."""
    found: Arrays = {}
    for head, cell in _heads(net, at, "/", ("forward", "backward")):
        for k, gate in enumerate(GATES[net.kind]):
            found[f"{head}/i{gate}/kernel"], found[f"{head}/h{gate}/kernel"] = cell.wide[k].T, cell.deep[k].T
            found[f"{head}/{'i' if net.kind == 'gru' else 'h'}{gate}/bias"] = cell.first[k]
        if net.kind == "gru":
            found[f"{head}/hn/bias"] = cell.second[2]
    return found


ONE_BIAS = {
    "keras": ("lstm", "rnn"), "coreml": ("lstm", "gru", "rnn"), "equinox": ("lstm", "gru", "rnn"),
    "flux": ("lstm", "gru", "rnn"), "flax.linen": ("lstm", "gru", "rnn"),
}  # fmt: skip
"""Layouts that have no place for some second bias, and of which networks."""
NONE = {"equinox": ("rnn",), "flax.linen": ("rnn",), "coreml": ("gru", "rnn")}
"""Networks that a library does not have, or has in another form."""


def a_net(random: Random, what: str = "", biases: str = "") -> Net:
    """A network of random sizes."""
    what = what or str(random.choice(["lstm", "lstm", "gru", "rnn"]))
    count, hidden, width = len(GATES[what]), int(random.integers(3, 9)), int(random.integers(2, 12))
    layers, directions = (int(random.choice([1, 1, 2])) for _ in range(2))
    biases = biases or str(random.choice(["none", "first", "both"]))
    cells = []
    for layer in range(layers):
        inner = width if not layer else hidden * directions
        for direction in range(directions):
            first, second = (numbers(random, (count, hidden)) for _ in range(2))
            first *= biases != "none"
            second *= biases == "both"
            cells.append(
                Cell(layer, direction, numbers(random, (count, hidden, inner)),
                     numbers(random, (count, hidden, hidden)), np.abs(first) if biases == "none" else first,
                     np.abs(second) if biases != "both" else second)
            )  # fmt: skip
    return Net(what, biases, directions, tuple(cells))


def in_the_second(net: Net) -> Net:
    """The same network, whose biases that are added are in the second of two."""
    is_split = net.kind == "gru"  # the candidate's biases are not added
    cells = []
    for cell in net.cells:
        first, second = cell.second.copy(), cell.first.copy()
        if is_split:
            first[2], second[2] = cell.first[2], cell.second[2]
        cells.append(cell._replace(first=first, second=second))
    return net._replace(cells=tuple(cells))


def _writers(net: Net) -> list[str]:
    """The libraries that have such a network, and lose nothing of it."""
    return [
        name for name in WRITERS
        if net.kind not in NONE.get(name, ()) and not (net.biases == "both" and net.kind in ONE_BIAS.get(name, ()))
    ]  # fmt: skip


@kind("network")
def _network(random: Random, at: str) -> Module:
    """One network of two libraries."""
    net = a_net(random)
    names = random.choice(_writers(net), 2, replace=False)
    nets = [net, net]
    have_both = [net.kind not in ONE_BIAS.get(str(name), ()) for name in names]
    if net.biases == "first" and have_both[0] != have_both[1] and random.random() < 0.5:
        nets[have_both.index(True)] = in_the_second(net)
    a, b = (WRITERS[str(name)](one, f"{at}.rnn") for name, one in zip(names, nets, strict=True))
    is_found = "mxnet.v2" not in names or len(_flat(net)) >= MIN_VECTOR
    return Module(a, b, is_found=is_found, is_found_back=is_found)


@kind("network with another number")
def _network_changed(random: Random, at: str) -> Module:
    """One bit of one tensor, in either library."""
    net = a_net(random)
    names = random.choice(_writers(net), 2, replace=False)
    a, b = (WRITERS[str(name)](net, f"{at}.rnn") for name in names)
    name, one = spoilt(random, b)
    return Module(a, {**b, name: one}, keeps=False)


@kind("network of other gates")
def _network_of_other_gates(random: Random, at: str) -> Module:
    """Two gates are exchanged in one matrix or bias: the right shapes and elements, and another network."""
    net = a_net(random)
    while net.kind == "rnn":
        net = a_net(random)
    names = random.choice(_writers(net), 2, replace=False)
    wrong = net.cells[0]._replace(deep=net.cells[0].deep[[1, 0, *range(2, len(net.cells[0].deep))]])
    a = WRITERS[str(names[0])](net, f"{at}.rnn")
    b = WRITERS[str(names[1])](net._replace(cells=(wrong, *net.cells[1:])), f"{at}.rnn")
    return Module(a, b, keeps=None)


@kind("network with both biases in one")
def _summed(random: Random, at: str) -> Module:
    """A library with one bias has the sum of two: explained, and changed."""
    net = a_net(random)
    while net.kind != "lstm" or net.biases != "both":
        net = a_net(random)
    cells = [cell._replace(first=cell.first + cell.second, second=cell.second * 0) for cell in net.cells]
    old = str(random.choice(["torch", "mxnet", "onnx", "chainer"]))
    new = str(random.choice(["keras", "coreml", "equinox", "flux", "flax.linen"]))
    a = WRITERS[old](net, f"{at}.rnn")
    one = Module(a, WRITERS[new](net._replace(cells=tuple(cells)), f"{at}.rnn"), keeps=False)
    return one if random.random() < 0.5 else one.turned()
