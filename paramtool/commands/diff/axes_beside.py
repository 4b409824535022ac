"""Biases beside kernels whose axes moved: along some of these axes, and moved as they are.

query/kernel [32, 4, 8] = query.weight [32, 32]     axes (1, 2, 0), reshaped
query/bias [4, 8] = query.bias [32]                 axes 1 and 2 of the kernel, which are axis 0 of the weight
"""

from __future__ import annotations

from dataclasses import replace

from paramtool.commands.diff.axes import words
from paramtool.commands.diff.renames import NamePair
from paramtool.commands.diff.settled import Settled, may_be_cast
from paramtool.engine.compare.axes import AxesWay, along
from paramtool.engine.compare.cast_verdicts import CastPair
from paramtool.engine.compare.sides import is_constant
from paramtool.model.diff import CHANGED
from paramtool.passes.diff.names import biases_of


def beside_axes(work: Settled) -> None:
    """Settle the biases beside what is another tensor with its axes moved, where the same move gives every byte."""
    for name, way in work.ways.items():
        for old in biases_of(work.found[name].a[0], work.left_a):
            for new in biases_of(name, work.left_b):
                if not work.is_exchanged(old, new):
                    _settle(work, NamePair(old, new), name, way)


def strays(work: Settled) -> None:
    """Biases that are where they were, of kernels whose axes moved along them: together they are other weights."""
    for name, way in work.ways.items():
        kernel = work.found[name]
        for old in biases_of(kernel.a[0], work.a) if kernel.is_unique else ():
            for new in biases_of(name, work.b):
                one = work.found.get(new)
                if (
                    one is None
                    or one.a != (old,)
                    or one.kind == CHANGED
                    or is_constant(work.sides.b.source, work.b[new])
                ):
                    continue
                every = list(along(way, work.a[old], work.b[new]))
                if every and not any(work.proved([CastPair(by.moved, by.b)]) for by in every):
                    how = f"does not follow the axes of {name!r}"
                    work.found[new] = replace(one, kind=CHANGED, how=how, change=None)


def _settle(work: Settled, names: NamePair, weight: str, way: AxesWay) -> None:
    if names.old not in work.left_a or names.new not in work.left_b:  # one of several that are called so
        return
    a, b = work.a[names.old], work.b[names.new]
    if a.numel != b.numel or a.shape == b.shape or not may_be_cast(a, b):
        return
    for one in along(way, a, b):
        pair = CastPair(one.moved, one.b)
        if kind := work.proved([pair]):
            work.use(names.old, [a])
            how = f"{words(a.shape, b.shape, one) if one.is_moved else 'reshaped'}, as {weight!r}"
            work.settle(kind, [names.old], names.new, how=how, change=work.lost(kind, [pair]))
            return
