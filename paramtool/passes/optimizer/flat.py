"""The state of L-BFGS: vectors over all parameters in order, kept once, under the first one.

    {"state": {0: {"d": T, "prev_flat_grad": T, "old_dirs": [T], "old_stps": [T], "H_diag": T, "n_iter": 4, ...}}}

Its numbers are dot products of such vectors, which do not change when elements only move: so it follows exactly where
every parameter does.  Source: torch 2.13 (optim/lbfgs.py, `_gather_flat_grad`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from paramtool.model import objects
from paramtool.model.objects import Node, TensorRef, word
from paramtool.model.plan import Target, whole
from paramtool.model.view import View, contiguous
from paramtool.passes.optimizer import tree

VECTORS = frozenset({"d", "prev_flat_grad", "old_dirs", "old_stps"})

Made = Callable[[Mapping[str, View]], Sequence[Target]]
"""The new parameters, made of windows of the old ones by name."""


def window(vector: View, start: int, shape: tuple[int, ...]) -> View:
    """The place of a parameter in a vector."""
    return contiguous(vector.storage, vector.dtype, shape, vector.offset + start)


def windows(vector: View, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, View]:
    """{parameter: its place in a vector} of parameters in order."""
    found, start = {}, 0
    for name, shape in shapes.items():
        found[name] = window(vector, start, shape)
        start += prod(shape)
    return found


def moved(node: Node, paths: tuple[str, str], views: Mapping[str, View], make: Made) -> tuple[Node, list[Target]]:
    """The entry with vectors over the new parameters, and these vectors; `paths` are its old and its new one."""
    assert isinstance(node, objects.Mapping)
    targets: list[Target] = []

    def remade(child: Node, path: str) -> Node:
        if isinstance(child, objects.Sequence):
            return replace(child, items=tuple(remade(one, f"{path}.{k}") for k, one in enumerate(child.items)), mark=0)
        if not isinstance(child, TensorRef):
            return child
        targets.append(_joined(path, views[child.name], make))
        return TensorRef(path)

    items = (
        (key, remade(child, f"{paths[1]}.{word(key)}") if key in VECTORS else tree.moved_below(child, *paths))
        for key, child in node.items
    )
    return replace(node, items=tuple(items)), targets


def vectors(node: Node) -> Iterator[str]:
    """The tensors of an entry that are vectors over all parameters."""
    assert isinstance(node, objects.Mapping)
    yield from (name for key, child in node.items if key in VECTORS for name in objects.tensor_names(child))


def _joined(name: str, vector: View, make: Made) -> Target:
    """A vector over all new parameters."""
    copies, start = [], 0
    for target in make({"": vector}):
        for copy in target.copies:
            destination = replace(copy.destination, storage=name, offset=copy.destination.offset + start)
            copies.append(replace(copy, destination=destination))
        start += prod(target.shape)
    return Target(name, vector.dtype, (start,), tuple(copies))


def kept(vector: View) -> Target:
    """A parameter that stays what it is."""
    return whole("", vector)
