"""Which of many streams of bytes are equal: all are read side by side, and fall apart block by block.

What differs early is hardly read, every stream is read at most once, and what is left is equal, byte by byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from paramtool.engine.read.streams import Stream, same

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

K = TypeVar("K")
MANY = 8
"""So many different blocks are compared with each other; of more, only those whose CRCs agree."""


class Alike(Generic[K]):
    """Streams whose bytes agree so far."""

    def __init__(self, keys: list[K], made: Any, element: int, first: Array | None = None) -> None:
        self.keys = keys
        self.made = made
        """The digest of what was read; None where nobody asks for it."""
        self.element = element
        self.first = first
        """The first element; None before the first block."""
        self.is_constant = element > 0
        """Whether all elements so far are like the first."""

    @property
    def digest(self) -> str:
        """blake3 of the bytes."""
        return str(self.made.hexdigest())

    def part(self, keys: list[K], block: Array) -> Alike[K]:
        """Those that also have one more block in common."""
        found = Alike(keys, self.made and self.made.copy(), self.element, self.first)
        if found.made is not None:
            found.made.update(block.data)
        if self.is_constant:
            values = block.view(f"V{self.element}" if self.element > 8 else f"u{self.element}")
            found.first = values[:1].copy() if self.first is None else self.first
            found.is_constant = bool((values == found.first).all())
        else:
            found.is_constant = False
        return found


def refined(
    streams: Mapping[K, Stream], nbytes: int, size: int, *, marks: bool = False, element: int = 0
) -> list[Alike[K]]:
    """The sets of two or more streams of `nbytes` bytes that are equal, in the order of their first ones.

    Blocks have `size` bytes.  `marks` also makes the digest of each set, and says whether its elements, of `element`
    bytes each, are all alike.
    """
    import numpy as np

    made = None
    if marks:
        from blake3 import blake3

        made = blake3()
    alike = [Alike(list(streams), made, element if marks else 0)]
    buffers = [np.empty(min(size, nbytes), "u1") for _ in range(2)]
    for at in range(0, nbytes, size):
        count = min(size, nbytes - at)
        alike = [part for one in alike for part in _parts(one, streams, buffers, count)]
    order = {key: k for k, key in enumerate(streams)}
    return sorted(alike, key=lambda one: order[one.keys[0]])


def _parts(one: Alike[K], streams: Mapping[K, Stream], buffers: list[Array], count: int) -> Iterator[Alike[K]]:
    """What a set falls apart into at the next block: those of two or more.

    A block that is like one before it is read over by the next; so as many are held as there are different ones.
    """
    kinds: list[tuple[Array, list[K]]] = []
    marked: dict[int, list[tuple[Array, list[K]]]] = {}
    """The kinds by their CRC, once there are many."""
    for key in one.keys:
        if len(buffers) <= len(kinds):
            buffers.append(buffers[0].copy())
        block = buffers[len(kinds)][:count]
        streams[key].into(block)
        like = kinds if len(kinds) < MANY else marked.setdefault(zlib.crc32(block.data), [])
        found = next((keys for known, keys in like if same(known, block)), None)
        if found is not None:
            found.append(key)
            continue
        kinds.append((block, [key]))
        if like is not kinds:
            like.append(kinds[-1])
        elif len(kinds) == MANY:
            for kind in kinds:
                marked.setdefault(zlib.crc32(kind[0].data), []).append(kind)
    yield from (one.part(keys, block) for block, keys in kinds if len(keys) > 1)
