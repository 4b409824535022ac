"""Merging copies: neighbours that continue each other become one, so that gates in the same order are copied at once.

4 copies of (hidden, in), each a gate further on both sides     1 copy of (4 * hidden, in)
2 contiguous runs, the second after the first on both sides     1 run
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paramtool.model.plan import Copy
from paramtool.model.view import View


def coalesced(copies: list[Copy]) -> list[Copy]:
    """The same copies, merged where neighbours continue each other: gates in the same order become one matrix."""
    if len({tuple(view.storage for _, view in copy.terms) for copy in copies}) == len(copies):
        return [_collapsed(copy) for copy in copies]  # no two of the same storages
    found = [_collapsed(copy) for copy in _stacked(copies)]
    return [_collapsed(copy) for copy in _joined(found)]


def _windows(copy: Copy) -> list[View]:
    return [copy.destination, *(view for _, view in copy.terms)]


def _may_merge(a: Copy, b: Copy) -> bool:
    """Whether two copies do the same with the same storages; most neighbours do not, and are told apart here."""
    if len(a.terms) != len(b.terms) or (a.shift, a.scale) != (b.shift, b.scale):
        return False
    return all(sign == other and x.storage == y.storage for (sign, x), (other, y) in zip(a.terms, b.terms, strict=True))


def _alike(a: Copy, b: Copy) -> bool:
    """Whether two copies differ only in where their windows begin."""
    if not _may_merge(a, b):
        return False
    return all(
        (x.storage, x.dtype, x.shape, x.strides) == (y.storage, y.dtype, y.shape, y.strides)
        for x, y in zip(_windows(a), _windows(b), strict=True)
    )


def _stacked(copies: list[Copy]) -> Iterator[Copy]:
    """Runs of copies whose windows are equal steps apart, each run as one copy with one more axis."""
    k = 0
    while k < len(copies):
        first = copies[k]
        steps: list[int] | None = None
        stop = k + 1
        while stop < len(copies) and _alike(first, copies[stop]):
            before, here = _windows(copies[stop - 1]), _windows(copies[stop])
            moved = [b.offset - a.offset for a, b in zip(before, here, strict=True)]
            if min(moved) < 0 or (steps is not None and moved != steps):
                break
            steps = moved
            stop += 1
        if steps is None:
            yield first
        else:
            yield _with_windows(
                first,
                [
                    v.with_axes((stop - k, *v.shape), (step, *v.strides))
                    for v, step in zip(_windows(first), steps, strict=True)
                ],
                copies[k + 1 : stop],
            )
        k = stop


def _with_windows(copy: Copy, windows: list[View], joined: Iterable[Copy] = ()) -> Copy:
    terms = tuple((sign, view) for (sign, _), view in zip(copy.terms, windows[1:], strict=True))
    names = dict.fromkeys(name for one in (copy, *joined) for name in one.names)
    return Copy(windows[0], terms, copy.shift, tuple(names), copy.scale)


def _collapsed(copy: Copy) -> Copy:
    """Merge axes that continue each other in every window."""
    shape = copy.destination.shape
    if not shape or (len(shape) == 1 and shape[0] != 1):
        return copy
    windows = _windows(copy)
    axes: list[tuple[int, list[int]]] = []
    for k, size in enumerate(shape):
        strides = [view.strides[k] for view in windows]
        if size == 1:
            continue
        if axes and all(outer == size * inner for outer, inner in zip(axes[-1][1], strides, strict=True)):
            axes[-1] = (axes[-1][0] * size, strides)
        else:
            axes.append((size, strides))
    merged = tuple(size for size, _ in axes)
    return _with_windows(
        copy,
        [v.with_axes(merged, tuple(strides[n] for _, strides in axes)) for n, v in enumerate(windows)],
    )


def _joined(copies: list[Copy]) -> Iterator[Copy]:
    """Merge contiguous runs that continue each other: adjacent windows of one storage are one copy."""
    last: Copy | None = None
    for copy in copies:
        if last is not None and _continues(last, copy):
            windows = [v.with_axes((v.numel + copy.destination.numel,), (1,)) for v in _windows(last)]
            last = _with_windows(last, windows, [copy])
            continue
        if last is not None:
            yield last
        last = copy
    if last is not None:
        yield last


def _continues(a: Copy, b: Copy) -> bool:
    if not _may_merge(a, b):
        return False
    return all(
        x.storage == y.storage and x.dtype == y.dtype and x.is_contiguous and y.is_contiguous
        and x.offset + x.numel == y.offset
        for x, y in zip(_windows(a), _windows(b), strict=True)
    )  # fmt: skip
