"""Digests of windows, and whether two windows hold the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from paramtool.engine.read.source import Buffer, Source
from paramtool.engine.read.streams import same
from paramtool.model.view import View

Advance = Callable[[int], None]


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


def same_bytes(a_source: Source, a: View, b_source: Source, b: View) -> bool:
    """Whether two windows of one dtype and shape hold the same bytes; stops at the first difference."""
    a, b = squeezed(a, b)
    import numpy as np

    blocks = aligned(a_source.row_major(a), b_source.row_major(b))
    return all(len(x) == len(y) and same(np.frombuffer(x, "u1"), np.frombuffer(y, "u1")) for x, y in blocks)


def squeezed(a: View, b: View) -> tuple[View, View]:
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


def aligned(
    a: Iterator[Buffer], b: Iterator[Buffer], a_size: int = 1, b_size: int = 1
) -> Iterator[tuple[Buffer, Buffer]]:
    """Two streams of blocks, cut to equal numbers of elements of so many bytes each.

    An empty piece stands for a stream that ends early.
    """
    x: Buffer = b""
    y: Buffer = b""
    while True:
        x = x or memoryview(next(a, b""))
        y = y or memoryview(next(b, b""))
        if not x and not y:
            return
        count = min(len(x) // a_size, len(y) // b_size)
        if not count:
            yield x, y
            return
        yield x[: count * a_size], y[: count * b_size]
        x, y = x[count * a_size :], y[count * b_size :]
