"""Questions about a weight space and their answers, in one form for cuDNN and for the table of a layout.

For every pseudo-layer (layer * directions + direction) and linLayerID there may be a matrix and a bias.  The IDs of a
kind with G gates: 0 to G-1 are the gates' input weights, G to 2G-1 the recurrent ones, 8 the projection of an LSTM; a
bias has the ID of the product that it is added to (cuDNN API reference, cudnnGetRNNWeightParams).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from paramtool.layouts.spec import Cell, Spec
from paramtool.lazy_dataclass import dataclass

PROJECTION = 8
"""The linLayerID of the projection."""


class Key(NamedTuple):
    """One question: a matrix or a bias."""

    pseudo_layer: int
    linear: int
    """linLayerID."""
    what: str
    """`matrix` or `bias`."""

    def cell(self, spec: Spec) -> Cell:
        """The cell that is there according to cuDNN's documentation."""
        layer, direction = divmod(self.pseudo_layer, spec.directions)
        if self.linear == PROJECTION:
            return Cell("P", layer, direction)
        recurrent, gate = divmod(self.linear, len(spec.gates))
        kinds = ("W", "R") if self.what == "matrix" else ("bW", "bR")
        return Cell(kinds[recurrent], layer, direction, spec.gates[gate])


@dataclass(frozen=True, slots=True)
class Region:
    """A tensor in the weight space; shape and strides in elements, with cuDNN's leading axis of length 1."""

    byte_start: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def nbytes(self, itemsize: int) -> int:
        """The number of bytes from its first to its last element."""
        return itemsize * (1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)))


@dataclass(frozen=True, slots=True)
class Answer:
    """A weight space: its size, and the region of every matrix and bias."""

    nbytes: int
    regions: Mapping[Key, Region]
    """Matrices and biases that do not exist have no entry."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The library does not support the network."""

    why: str
    """The library's own words: the name of the status, and its explanation."""


def linear_ids(spec: Spec) -> range:
    """The IDs that a kind may have; for an LSTM also the ID of the projection, which may not exist."""
    return range(PROJECTION + 1 if spec.kind == "lstm" else 2 * len(spec.gates))


def keys(spec: Spec) -> Iterator[tuple[int, int]]:
    """Every pair of a pseudo-layer and an ID."""
    for pseudo_layer in range(spec.layers * spec.directions):
        for linear in linear_ids(spec):
            yield pseudo_layer, linear


def as_json(answer: Answer | Unsupported) -> dict[str, Any]:
    """An answer as JSON data: regions as [pseudo-layer, linLayerID, what, byte_start, dtype, shape, strides]."""
    if isinstance(answer, Unsupported):
        return {"unsupported": answer.why}
    return {
        "nbytes": answer.nbytes,
        "regions": [[*key, r.byte_start, r.dtype, list(r.shape), list(r.strides)] for key, r in answer.regions.items()],
    }


def from_json(data: Mapping[str, Any]) -> Answer | Unsupported:
    """The inverse of `as_json`."""
    if "unsupported" in data:
        return Unsupported(data["unsupported"])
    regions = {
        Key(pseudo, linear, what): Region(start, dtype, tuple(shape), tuple(strides))
        for pseudo, linear, what, start, dtype, shape, strides in data["regions"]
    }
    return Answer(data["nbytes"], regions)
