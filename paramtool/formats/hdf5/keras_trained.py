"""The variables that Keras trains in the order of the model, which is the order of its optimizer's.

A model lists the variables of one layer after the other; a layer those of its own that are trained, then those of the
layers in it, as it made them (keras 3.15.1, layers/layer.py, `variables`, `trainable_variables`).  In a file, `vars/N`
has a layer's variables in that order, those that are not trained last (`save_own_variables`).

The configuration says the order of the layers.  Without one, the groups of a file do so for the layers of one class
only: `dense`, `dense_1` are numbered in the model's order (saving/saving_lib.py, `_save_container_state`).  Then the
order of all is known if the shapes in the optimizer leave one possibility.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from paramtool.formats.hdf5.keras_config import BACKWARD, FORWARD, KerasConfig, Layer, snake_case
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.optimizer import OptimizerState, Order, Parameter, StateEntry
from paramtool.model.view import Shape, Shapes, View

SECTION = "layers"
_INSIDE = {
    "Bidirectional": (FORWARD, BACKWARD),
    "MultiHeadAttention": ("query_dense", "key_dense", "value_dense", "output_dense"),
    "GroupedQueryAttention": ("query_dense", "key_dense", "value_dense", "output_dense"),
}
"""{class: the layers in it, in the order in which it makes them}: layers/rnn/bidirectional.py, `__init__`;
layers/attention/multi_head_attention.py and grouped_query_attention.py, `build` (keras 3.15.1)."""
_NOT_TRAINED = frozenset({"Normalization", "Discretization", "StringLookup", "IntegerLookup", "TextVectorization",
                          "Hashing", "HashedCrossing"})  # fmt: skip
"""Classes whose own variables are all not trained (layers/preprocessing)."""
_NORM = "BatchNormalization"
_BY_WORD = {snake_case(name): inside for name, inside in _INSIDE.items()}
_NOT_TRAINED_WORDS = {snake_case(name) for name in _NOT_TRAINED}
_STATE = "seed_generator"
_ALONE = frozenset({"cell", "layer", _STATE})
"""Groups of which a layer has one."""
_VARS = re.compile(r"(?P<group>.*?)/?vars/(?P<number>\d+)")
_NUMBERED = re.compile(r"(?P<base>.*?)(?:_(?P<number>\d+))?")
_MOST = 200_000
"""Of more possibilities, none is tried."""


class _Variable(NamedTuple):
    name: str
    shape: Shape
    group: str
    number: int


def order(checkpoint: Checkpoint, state: OptimizerState, shapes: Shapes) -> Order | None:
    """The variables that the optimizer of a file of Keras has, in order; None where no order is known."""
    entries = {
        n: e.value.shape for n, e in checkpoint.entries.items() if isinstance(e.value, View) and e.role != "optimizer"
    }
    found = [*_variables(entries)]
    config = KerasConfig.of(checkpoint.metadata)
    if not found or len(found) < len(entries):
        return None
    if config.layers:
        return _by_config(found, config, len(state.entries))
    # The only order of the layers that the shapes of the optimizer allow; None where there are several, or none
    wanted = [_shape(entry, shapes) for entry in state.entries]
    chains: dict[str, dict[int, str]] = {}
    layers: dict[str, list[tuple[tuple[int, ...], int, _Variable]]] = {}
    for one in found:
        top, *pieces = one.group.removeprefix(f"{SECTION}/").split("/")
        match = _NUMBERED.fullmatch(top)
        assert match
        inside = _rank(pieces, _BY_WORD.get(match["base"], ()))
        if inside is None:
            return None
        chains.setdefault(match["base"], {})[int(match["number"] or 0)] = top
        layers.setdefault(top, []).append((inside, one.number, one))
    ordered = [[top for _, top in sorted(chain.items())] for chain in chains.values()]
    trained = {
        top: _trained_of(top, [one for *_, one in sorted(ones, key=lambda row: row[:2])])
        for top, ones in layers.items()
    }
    if sum(map(len, trained.values())) != len(wanted) or None in wanted:
        return None
    rows = [[tuple(one.shape for one in trained[group]) for group in chain] for chain in ordered]
    merged = _merged(rows, tuple(wanted))
    if merged is None:
        return None
    places = [0] * len(ordered)
    listed: list[_Variable] = []
    for k in merged:
        listed += trained[ordered[k][places[k]]]
        places[k] += 1
    return _order(listed, "the numbers of its layers, of which one order fits the shapes")


def names_in_order(shapes: Shapes, metadata: Mapping[str, str], count: int) -> list[str]:
    """The variables that Keras trains of a model with these tensors, in its order; none where that is not known.

    `count` is how many the optimizer has.
    """
    found = [*_variables(shapes)]
    known = _by_config(found, KerasConfig.of(metadata), count) if len(found) == len(shapes) else None
    return [f"{SECTION}/{one.name}" for one in known.parameters] if known else []


def _variables(shapes: Shapes) -> Iterator[_Variable]:
    for name, shape in shapes.items():
        match = _VARS.fullmatch(name)
        if match and name.startswith(f"{SECTION}/"):
            yield _Variable(name, shape, match["group"], int(match["number"]))


def _order(found: Sequence[_Variable], source: str) -> Order:
    parameters = tuple(Parameter(one.name.removeprefix(f"{SECTION}/"), one.shape) for one in found)
    return Order(parameters, source, True, SECTION)


# By the configuration


def _by_config(found: Sequence[_Variable], config: KerasConfig, count: int) -> Order | None:
    """The order of a configuration.

    A layer that was frozen after the optimizer was made is in the optimizer: it counts where there are too few else.
    """
    by_path = config.by_path()
    ranks = {path: k for k, path in enumerate(config.ranks())}
    ranked: list[tuple[int, tuple[int, ...], int, _Variable]] = []
    frozen: set[str] = set()
    for one in found:
        layer = next((by_path[path] for path in _above(one.group) if path in by_path), None)
        top = next((path for path in _above(one.group) if path in ranks), None)
        if layer is None or top is None:
            return None
        inside = _rank_inside(one.group.removeprefix(top).strip("/"), config, top)
        if inside is None:
            return None
        if _may_be_trained(one, layer):
            ranked.append((ranks[top], inside, one.number, one))
            if any(by_path[path].config.get("trainable") is False for path in _above(one.group) if path in by_path):
                frozen.add(one.name)
    ranked.sort(key=lambda row: row[:3])
    trained = [row[3] for row in ranked if row[3].name not in frozen]
    if len(trained) < count:
        trained = [row[3] for row in ranked]
    return _order(trained, "the layers of its configuration")


def _above(group: str) -> Iterator[str]:
    """A group and those around it, the inner ones first."""
    pieces = group.split("/")
    yield from ("/".join(pieces[:k]) for k in range(len(pieces), 0, -1))


def _rank_inside(rest: str, config: KerasConfig, top: str) -> tuple[int, ...] | None:
    """The place of a group in a layer; None where the order inside the layer is not known."""
    layer = config.by_path()[top]
    pieces = [piece for piece in rest.split("/") if piece]
    if layer.cells and pieces[:2] == ["cell", "cells"]:
        paths, place = [cell.path for cell in layer.cells], f"{top}/{rest}"
        return (paths.index(place),) if place in paths else None
    return _rank(pieces, _INSIDE.get(layer.class_name, ()))


def _rank(pieces: Sequence[str], names: Sequence[str]) -> tuple[int, ...] | None:
    """The place of a group in a layer whose inner layers have these names, in this order; a wrapper has one."""
    ranks = []
    for piece in pieces:
        if piece not in names and piece not in _ALONE:
            return None
        ranks.append(names.index(piece) if piece in names else 0)
    return tuple(ranks)


def _may_be_trained(one: _Variable, layer: Layer) -> bool:
    """Whether Keras may train a variable; a custom layer may have others."""
    if one.group.rpartition("/")[2] == _STATE or layer.class_name in _NOT_TRAINED:
        return False
    if layer.class_name == _NORM:
        return one.number < sum(layer.config.get(flag, True) is not False for flag in ("scale", "center"))
    return True


# By the numbers of the groups


def _shape(entry: StateEntry, shapes: Shapes) -> Shape | None:
    """The shape of the variable of an entry."""
    kept = (slot.tensor for slot in entry.slots if slot.is_whole)
    return next((shapes[name] for name in kept if name in shapes), None)


def _trained_of(top: str, ones: Sequence[_Variable]) -> Sequence[_Variable]:
    """The trained variables of a layer of which only the class is known: not the last two of a BatchNormalization."""
    ones = [one for one in ones if one.group.rpartition("/")[2] != _STATE]
    word = _NUMBERED.sub(r"\g<base>", top, count=1)
    if word in _NOT_TRAINED_WORDS:
        return ()
    return ones[:-2] if word == snake_case(_NORM) else ones


def _merged(rows: Sequence[Sequence[tuple[object, ...]]], wanted: tuple[object, ...]) -> list[int] | None:
    """Which row each step comes from, where one merge of the rows gives what is wanted; None where several do, or none.

    >>> _merged([[("a",), ("b",)], [("c",)]], ("a", "c", "b")), _merged([[("a",)], [("a",)]], ("a", "a"))
    ([0, 1, 0], None)
    """
    tried = 0

    @cache
    def ways(places: tuple[int, ...], at: int) -> int:
        nonlocal tried
        tried += 1
        if tried > _MOST:
            return 2
        if at == len(wanted):
            return 1 if all(place == len(row) for place, row in zip(places, rows, strict=True)) else 0
        return min(2, sum(ways(after, then) for _, after, then in steps(places, at)))

    def steps(places: tuple[int, ...], at: int) -> Iterator[tuple[int, tuple[int, ...], int]]:
        for k, (place, row) in enumerate(zip(places, rows, strict=True)):
            if place < len(row) and wanted[at : at + len(row[place])] == row[place]:
                yield k, (*places[:k], place + 1, *places[k + 1 :]), at + len(row[place])

    places, at, merged = (0,) * len(rows), 0, []
    if ways(places, at) != 1:
        return None
    while at < len(wanted):
        k, places, at = next(step for step in steps(places, at) if ways(step[1], step[2]))
        merged.append(k)
    return merged
