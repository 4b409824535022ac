"""Which windows hold equal bytes: samples first, digests of what still could match, then the bytes themselves.

A digest is only a hint; two windows are equal when their bytes were compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from paramtool.engine.source import Buffer, Source
from paramtool.model.view import View

Named = tuple[str, View]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Equal:
    """Names whose windows hold the same bytes."""

    names: tuple[str, ...]
    digest: str
    """blake3 of the bytes, in row-major order."""
    constant: bool
    """Whether every element has the same value."""


def equal_classes(
    source: Source, groups: Iterable[Sequence[Named]], advance: Advance = lambda nbytes: None
) -> Iterator[Equal]:
    """Classes of two or more equal windows among groups of one dtype and shape each.

    A window without a partner of the same samples is never read further.
    """
    for group in groups:
        for sampled in _sampled(source, group):
            for found, alike in _split(sampled, lambda named: digest(source, named[1], advance)):
                yield from _compared(source, alike, found)


Mark = TypeVar("Mark", bytes, str)


def _split(group: Sequence[Named], key: Callable[[Named], Mark]) -> Iterator[tuple[Mark, list[Named]]]:
    """The subsets of two or more that have one key, each with it."""
    found: dict[Mark, list[Named]] = {}
    for named in group:
        found.setdefault(key(named), []).append(named)
    return ((mark, subset) for mark, subset in found.items() if len(subset) > 1)


def _sampled(source: Source, group: Sequence[Named]) -> Iterator[list[Named]]:
    """The subsets that agree in a few bytes of the middle, then of the beginning and the end.

    One place after the other: weights part at the first, and the others are then never read.
    """
    subsets = [list(group)]
    for place in (1, 0, 2):
        subsets = [part for one in subsets for _, part in _split(one, partial(_sample, source, place))]
    yield from subsets


def _sample(source: Source, place: int, named: Named) -> bytes:
    """A few bytes from the beginning (0), the middle (1) or the end (2): one in two hundred of a long window."""
    view = named[1]
    count = min(view.nbytes, max(8, min(512, view.nbytes // 200)))
    if view.is_contiguous:
        return source.read(int(view.storage), view.byte_start + place * (view.nbytes - count) // 2, count)
    count = min(view.numel, max(1, count // view.dtype.block_bytes))
    start = place * (view.numel - count) // 2
    source.nbytes_read += count * view.dtype.block_bytes
    return source.array(view).flat[start : start + count].tobytes()


def digest(source: Source, view: View, advance: Advance = lambda nbytes: None) -> str:
    """blake3 of a window's elements in row-major order, as hexadecimal text.

    A window that repeats itself (stride 0) may go on for ever: its digest is that of its span, after the word `span`
    and its shape and strides, and is marked so.
    """
    from blake3 import blake3

    made = blake3()
    span = view.byte_stop - view.byte_start
    if view.nbytes > span:
        made.update(f"span {list(view.shape)} {list(view.strides)} ".encode())
        for part in source.chunks(int(view.storage), view.byte_start, view.byte_stop):
            made.update(part)
        return f"span:{made.hexdigest()}"
    for chunk in source.row_major(view):
        made.update(chunk)
        advance(len(chunk))
    return made.hexdigest()


def _compared(source: Source, alike: list[Named], found: str) -> Iterator[Equal]:
    """Split windows with one digest by their bytes; in practice that confirms them."""
    left = alike
    while len(left) > 1:
        first, *others = left
        same = [first] + [other for other in others if same_bytes(source, first[1], source, other[1])]
        left = [named for named in others if named not in same]
        if len(same) > 1:
            names = tuple(name for name, _ in same)
            yield Equal(names, found, is_constant(source, first[1]))


def same_bytes(a_source: Source, a: View, b_source: Source, b: View) -> bool:
    """Whether two windows of one dtype and shape hold the same bytes; stops at the first difference."""
    a, b = _squeezed(a, b)
    return all(x == y for x, y in _aligned(a_source.row_major(a), b_source.row_major(b)))


def _squeezed(a: View, b: View) -> tuple[View, View]:
    """Two windows without the axes along which both repeat themselves; otherwise such could go on for ever."""
    axes = zip(a.shape, a.strides, b.strides, strict=True)
    keep = [k for k, (size, s, t) in enumerate(axes) if size > 1 and (s or t)]
    if 0 in a.shape:
        return a, b
    first, second = (
        View(v.storage, v.dtype, v.offset, tuple(v.shape[k] for k in keep), tuple(v.strides[k] for k in keep))
        for v in (a, b)
    )
    return first, second


def _aligned(a: Iterator[Buffer], b: Iterator[Buffer]) -> Iterator[tuple[Buffer, Buffer]]:
    """Two streams of blocks, cut to equal lengths; an empty piece stands for a stream that ends early."""
    x: Buffer = b""
    y: Buffer = b""
    while True:
        x = x or memoryview(next(a, b""))
        y = y or memoryview(next(b, b""))
        if not x and not y:
            return
        count = min(len(x), len(y))
        if not count:
            yield x, y
            return
        yield x[:count], y[:count]
        x, y = x[count:], y[count:]


def is_constant(source: Source, view: View) -> bool:
    """Whether every element equals the first; stops at the first that does not."""
    if view.dtype.block_elements != 1 or not view.numel:
        return False
    size = view.dtype.block_bytes
    first = b""
    for chunk in source.row_major(view):
        first = first or bytes(chunk[:size])
        if chunk != first * (len(chunk) // size):
            return False
    return True
