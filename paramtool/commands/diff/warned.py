"""What a comparison warns of: the same weights, and yet a model that takes names as they are may compute other things.

None of it is a difference of the weights, so it changes no exit code; `--strict` refuses all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from paramtool.commands.diff.tied_parts import LostTie
from paramtool.dialects import NAMES as DIALECTS
from paramtool.engine.compare.cast_verdicts import ROUNDING
from paramtool.errors import plural, some
from paramtool.model.checkpoint import GRAPH
from paramtool.model.diff import CAST, LAYOUT, LED_BACK, RECORD, ROUNDED, SAME, TensorDiff
from paramtool.passes.diff.exchanges import exchanged
from paramtool.passes.diff.numbering import layer_place, number_words, without_number_words

_TURNED = re.compile(r"transposed|negated|backwards|axes \([0-9, ]+\)")
"""What `how` says of maps that are the same for all rows."""
KERNELS = ("kernel", "vars/0")
"""How the names of kernels end that Flax and Keras store, in one order of axes for all layers of a type."""
_IN_SEQUENCE = re.compile(r"(?<![^.])[0-9]+\.[^.]+$")
"""The numbers of torch's Sequential: its layers can be of any type."""
SHOWN = 3
"""How many names a warning shows."""


def warnings(
    tensors: Sequence[TensorDiff], without_room: Sequence[LostTie], otherwise: Mapping[str, str]
) -> Iterator[str]:
    """The warnings, in sentences.

    `without_room` are ties that one of the two has no room for, `otherwise` tensors of recurrent networks with the map
    of a layout that does not make them.
    """
    yield from _without_room(without_room)
    yield from _moved_in_place(tensors)
    yield from _unlike_others(tensors)
    yield from _unlike_layouts(tensors, otherwise)
    yield from _exchanged(tensors)
    yield from _calculated_with(tensors)


def _without_room(lost: Sequence[LostTie]) -> Iterator[str]:
    """Ties of tensors that one tensor of the other side holds."""
    for side, other in (("A", "B"), ("B", "A")):
        names = [f"{one.olds[0]} = {one.olds[1]}" if one.olds else f"{one.other} = {one.name}"
                 for one in lost if one.where == side]  # fmt: skip
        if names:
            yield (
                f"{plural(len(names), f'tie of {side} is', f'ties of {side} are')} not in {other}, which has the"
                f" numbers of both in one tensor and no room for a tie (--strict refuses them): {some(names, SHOWN)}"
            )


def _moved_in_place(tensors: Sequence[TensorDiff]) -> Iterator[str]:
    """Tensors whose numbers moved under one name and shape, by no dialect: to a loader, that is another model."""
    moved = (one for one in tensors if one.kind in (LAYOUT, CAST, ROUNDED) and one.how and one.layout not in DIALECTS)
    names = [one.b[0] for one in moved if one.b and one.a == one.b and one.shapes[0] == one.shapes[1]]
    if names:
        many = plural(len(names), "tensor has its", "tensors have their")
        yield (
            f"{many} numbers in other places under the same name and shape, by a map that gives all bytes of B: the"
            " weights are the same in another layout, but a model that reads these names without the map computes"
            f" something else (--strict refuses them): {some(names, SHOWN)}"
        )


def _unlike_others(tensors: Sequence[TensorDiff]) -> Iterator[str]:
    """Tensors of few layers that are the same by another map than those of the other layers: one of them is wrong."""
    layers: dict[object, dict[str, list[str]]] = {}
    for one in tensors:
        if one.a and one.b and one.kind in LED_BACK and one.layout != RECORD:
            name = one.b[0]
            if number_words(name) and not _IN_SEQUENCE.search(name):
                by_map = layers.setdefault(without_number_words(name), {})
                by_map.setdefault((one.layout or "rows") if one.how else "", []).append(name)
            olds = () if name.endswith(KERNELS) else tuple(map(layer_place, one.a))
            axes = sum(size > 1 for size in one.shapes[1] or ())
            by_map = layers.setdefault((layer_place(name), olds, axes), {})
            by_map.setdefault(_map_word(one), []).append(name)
    found: dict[str, None] = {}
    for by_map in layers.values():
        most = max(map(len, by_map.values()))
        usual = [word for word, own in by_map.items() if len(own) == most]
        found |= {name: None for word, own in by_map.items() if [word] != usual for name in own}
    names = [*found]
    if names:
        many = plural(len(names), "tensor is", "tensors are")
        yield f"{many} the same by another map than those of other layers (--strict refuses them): {some(names, SHOWN)}"


def _unlike_layouts(tensors: Sequence[TensorDiff], otherwise: Mapping[str, str]) -> Iterator[str]:
    """Tensors of recurrent networks in both, with exchanged gates or of another matrix."""
    led = [one for one in tensors if one.b and one.a and one.kind in LED_BACK and one.kind != SAME and not one.layout]
    names = [one.b[0] for one in led if one.b[0] in otherwise]
    if names:
        many = plural(len(names), "tensor of a recurrent network is", "tensors of recurrent networks are")
        yield (
            f"{many} the same by another map than that of the layouts ({otherwise[names[0]]}): a program that reads B"
            f" computes something else (--strict refuses them): {some(names, SHOWN)}"
        )


def _map_word(one: TensorDiff) -> str:
    """What is the same in the maps of all layers: the layout, or the order of axes; empty for none."""
    if one.layout or not one.how:
        return one.layout
    return " ".join(_TURNED.findall(one.how)) or "rows"


def _calculated_with(tensors: Sequence[TensorDiff]) -> Iterator[str]:
    """Floating point of two graphs under one name that differs, and is no weight: a scale, a limit."""
    names = [
        one.b[0]
        for one in tensors
        if one.kind == GRAPH and one.change and one.change.largest and one.dtypes[1].startswith(ROUNDING)
    ]
    if names and all(one.kind in (*LED_BACK, GRAPH) for one in tensors):
        many = plural(len(names), "number of the graph differs", "numbers of the graph differ")
        yield (
            f"{many}: the weights are the same, the model computes something else (--strict refuses it):"
            f" {some(names, SHOWN)}"
        )


def _exchanged(tensors: Sequence[TensorDiff]) -> Iterator[str]:
    """Tensors under new names that are in each other's places, by the rename that the other tensors show."""
    found: Mapping[str, TensorDiff] = {
        one.b[0]: one
        for one in tensors
        if one.a and one.b and one.kind in LED_BACK and one.is_unique and one.layout != RECORD
    }
    if all(one.kind == SAME for one in found.values()):
        return

    def is_alike(x: str, y: str) -> bool:
        return (found[x].dtypes[1], found[x].shapes[1]) == (found[y].dtypes[1], found[y].shapes[1])

    names = exchanged([(one.a[0], new) for new, one in found.items()], is_alike)
    if names:
        many = plural(len(names), "tensor is", "tensors are")
        yield (
            f"{many} in the place of another one, by the rename that the other tensors show: the weights are the same"
            " under other names, but a model that reads these names by that rename computes something else"
            f" (--strict refuses them): {some(names, SHOWN)}"
        )
