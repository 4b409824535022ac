"""The steps that decode bytes of a file: keep ranges, inflate, read text, swap bytes; and repeated elements."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from paramtool.engine.read.blocks import BLOCK_NBYTES
from paramtool.errors import FormatError
from paramtool.formats.pickle.texts import LONGEST, decoded
from paramtool.model.storage import Backing, ByteRange, Encoded


def is_made(backing: Backing) -> bool:
    """Whether a storage can have more bytes than its file has for it."""
    if isinstance(backing, Encoded):
        return any(step == "inflate" or step.startswith("hdf5:") for step in backing.steps)
    return not isinstance(backing, ByteRange)


def kept(backing: Encoded) -> Iterator[tuple[int, int]]:
    """The ranges (start, stop) of the file that an encoded storage is made of: the whole source, or parts of it."""
    parts = next((step[5:] for step in backing.steps if step.startswith("keep:")), f"0-{backing.source.nbytes}")
    for part in parts.split(","):
        start, stop = map(int, part.split("-"))
        yield backing.source.start + start, backing.source.start + stop


def unpacked(raw: Iterable[bytes], backing: Encoded, where: str, nbytes: int) -> Iterator[bytes]:
    """The bytes of an encoded storage: from text or inflated, if that is a step; never more than `nbytes` inflated."""
    if form := next((step for step in backing.steps if step in LONGEST), ""):
        return _from_text(raw, backing, form)
    return _inflated(raw, where, nbytes) if "inflate" in backing.steps else iter(raw)


def _from_text(raw: Iterable[bytes], backing: Encoded, form: str) -> Iterator[bytes]:
    """The bytes that a pickle holds as text."""
    try:
        yield from decoded(raw, form)
    except ValueError as error:
        where = f"bytes {backing.source.start}-{backing.source.stop}"
        raise FormatError(f"{backing.source.file}: {where}: the text of an array is damaged: {error}") from None


def _inflated(raw: Iterable[bytes], where: str, nbytes: int) -> Iterator[bytes]:
    """Raw deflate data, inflated to exactly `nbytes` bytes."""
    machine = zlib.decompressobj(-15)
    made = 0
    for chunk in raw:
        while chunk:
            try:
                out = machine.decompress(chunk, BLOCK_NBYTES)
            except zlib.error as error:
                raise FormatError(f"{where} cannot be inflated: {error}") from None
            chunk = machine.unconsumed_tail
            made += len(out)
            if made > nbytes:
                raise FormatError(f"{where} inflates to more than {nbytes} bytes")
            if out:
                yield out
    if not machine.eof:
        raise FormatError(f"{where} inflates to less than {nbytes} bytes")


def argument(backing: Encoded, step: str, otherwise: int) -> int:
    """The number in a step, such as 4 in `swap4`; `otherwise` if there is no such step."""
    return next((int(word[len(step) :]) for word in backing.steps if word.startswith(step)), otherwise)


def swapped(data: bytes, unit: int) -> bytes:
    """The bytes of each unit in reverse order.

    >>> swapped(b"abcd", 2)
    b'badc'
    """
    if unit == 1:
        return data
    import numpy as np

    return np.frombuffer(data, f"u{unit}").byteswap().tobytes()


def repeated(element: bytes, start: int, nbytes: int) -> bytes:
    """`nbytes` bytes of a repeated element, from byte `start` on.

    >>> repeated(b"abc", 4, 5)
    b'bcabc'
    """
    first = start % len(element)
    return (element * ((first + nbytes) // len(element) + 1))[first : first + nbytes]


def repetitions(element: bytes, start: int, stop: int) -> Iterator[memoryview]:
    """The same in blocks, which are parts of one buffer."""
    step = max(BLOCK_NBYTES // len(element), 1) * len(element)
    block = memoryview(repeated(element, start, min(step, stop - start)))
    for at in range(start, stop, step):
        yield block[: stop - at]
