"""A small LSTM in the tables of layouts: where each cell of it is in cuDNN's vector, and in torch's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from paramtool import layouts
from paramtool.layouts.layout import stored
from paramtool.layouts.spec import Spec, parse
from paramtool.model.dtype import DTYPES
from paramtool.model.view import contiguous

SPEC = "lstm layers=1 hidden=4 input=3"
TINT_OF_KIND = {"W": "sky", "R": "yellow", "bW": "red", "bR": "grey"}
TINT_OF_GATE = {"i": "blue", "f": "orange", "g": "green", "o": "purple", "r": "blue", "z": "orange", "n": "green"}
"""As `report` has them."""
GATE_WORDS = {"i": "input", "f": "forget", "g": "cell candidate", "o": "output", "r": "reset", "z": "update",
              "n": "candidate"}  # fmt: skip


class Run(NamedTuple):
    """Elements of the vector that one cell has, or one tensor of torch."""

    kind: str
    layer: int
    direction: int
    gate: str
    start: int
    stop: int
    name: str = ""
    shape: tuple[int, ...] = ()


def spec(words: str = SPEC) -> Spec:
    """A network by the words of --spec."""
    return Spec(**parse(words))  # type: ignore[arg-type]


def cells(words: str = SPEC) -> list[Run]:
    """The cells of a network in cuDNN's vector, in the order of their elements."""
    layout = layouts.find("cudnn")
    options = layout.chosen({})
    (vector,) = stored(layout, layout.form(spec(words), options), spec(words), options)
    found = []
    for place in vector.places(contiguous(0, DTYPES["float32"], vector.shape)):
        ((_, one),) = place.terms
        assert place.view.is_contiguous
        start = place.view.offset
        found.append(Run(one.kind, one.layer, one.direction, one.gate, start, start + place.view.numel))
    return sorted(found, key=lambda one: one.start)


def regions(words: str = SPEC) -> list[Run]:
    """The same, with the gates of one matrix or bias as one: these are torch's tensors."""
    names = {(kind, layer, direction): (name, shape) for kind, layer, direction, name, shape in _torch(words)}
    found: list[Run] = []
    for one in cells(words):
        key = one[:3]
        if found and found[-1][:3] == key and found[-1].stop == one.start:
            found[-1] = found[-1]._replace(stop=one.stop)
        else:
            name, shape = names[key]
            found.append(one._replace(gate="", name=name, shape=shape))
    return found


def _torch(words: str) -> Iterator[tuple[str, int, int, str, tuple[int, ...]]]:
    """(kind, layer, direction, name, shape) of each tensor of torch."""
    layout = layouts.find("torch")
    for tensor in stored(layout, layout.form(spec(words), {}), spec(words), {}):
        place = next(tensor.places(contiguous(0, DTYPES["float32"], tensor.shape)))
        ((_, one),) = place.terms
        yield one.kind, one.layer, one.direction, tensor.name, tensor.shape
