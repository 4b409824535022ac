"""The first bytes of msgpack's values, and flax's extension types.

Sources: github.com/msgpack/msgpack/blob/master/spec.md; flax/serialization.py (0.12.8).
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from struct import Struct, error

NDARRAY, COMPLEX, SCALAR = 1, 2, 3
"""Flax's extension types: an array and a NumPy scalar, each packed as [shape, dtype, bytes], and a complex number."""
CHUNKED = "__msgpack_chunked_array__"
"""The key that marks a dict as an array in pieces: `shape` and `chunks` are dicts with keys "0", "1", ..."""
CHUNK_NBYTES = 1 << 30
"""The most bytes of an array in one piece (MAX_CHUNK_SIZE)."""
U8, U16, U32 = Struct(">B"), Struct(">H"), Struct(">I")
LENGTHS = {
    0xC4: ("bin", U8), 0xC5: ("bin", U16), 0xC6: ("bin", U32),
    0xC7: ("ext", U8), 0xC8: ("ext", U16), 0xC9: ("ext", U32),
    0xD9: ("str", U8), 0xDA: ("str", U16), 0xDB: ("str", U32),
    0xDC: ("array", U16), 0xDD: ("array", U32), 0xDE: ("map", U16), 0xDF: ("map", U32),
}  # fmt: skip
"""{first byte: what follows, and how its length is written}"""
FIXED = ((0x80, 0x90, "map"), (0x90, 0xA0, "array"), (0xA0, 0xC0, "str"))
"""(from, to, what follows): the length is in the first byte."""
FIXED_EXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
"""{first byte: the length of an extension}"""
NUMBERS = {
    0xCA: Struct(">f"), 0xCB: Struct(">d"), 0xCC: U8, 0xCD: U16, 0xCE: U32, 0xCF: Struct(">Q"),
    0xD0: Struct(">b"), 0xD1: Struct(">h"), 0xD2: Struct(">i"), 0xD3: Struct(">q"),
}  # fmt: skip
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def began(take: Callable[[int], bytes]) -> tuple[str, int]:
    """(what follows, its length), or for a number ("", its first byte); `take` gives the next bytes."""
    first = take(1)[0]
    for low, high, kind in FIXED:
        if low <= first < high:
            return kind, first - low & (0x1F if kind == "str" else 0x0F)
    if first in LENGTHS:
        kind, form = LENGTHS[first]
        return kind, int(form.unpack(take(form.size))[0])
    if first in FIXED_EXT:
        return "ext", FIXED_EXT[first]
    if first == 0xC1:
        raise ValueError("found 0xc1, which msgpack never uses; expected a value")
    return "", first


def begins_tree(head: bytes, nbytes: int) -> bool:
    r"""Whether a file of `nbytes` bytes that begins with `head` can be a tree of flax's.

    Dicts have text as keys, or whole numbers; everything is valid up to the first array, which is one of flax's, or up
    to the end of `head`.

    >>> begins_tree(b"\x81\xa6params\x81\xa1w\xd8\x01\x93\x90\xa7float32\xc4\x04....", 34)
    True
    >>> begins_tree(b"\x82\x00\x01", 3)
    False
    """
    at, keys = 0, [False]
    """For each value that is open, innermost last: whether it is a key."""
    texts = 0
    while keys and at < len(head):
        is_key, stream = keys.pop(), BytesIO(head[at : at + 5])
        first = head[at]
        try:
            kind, count = began(stream.read)
        except error:  # the length is behind these bytes
            break
        except ValueError:
            return False
        at += stream.tell() + (NUMBERS[first].size if first in NUMBERS else 0)
        if is_key and (kind not in ("", "str") or first in CONSTANTS or 0xCA <= first <= 0xCB):
            return False
        if count * (2 if kind == "map" else 1) > nbytes - at and kind:
            return False
        if kind == "ext" and head[at : at + 1] != bytes((COMPLEX,)):
            return head[at : at + 1] in (b"", b"\1", b"\3") and head[at + 1 : at + 2] in (b"", b"\x93")
        if kind == "map":
            keys += [False, True] * min(count, len(head))
        elif kind == "array":
            keys += [False] * min(count, len(head))
        elif kind:
            texts += kind == "str"
            at += count + (kind == "ext")
    return bool(texts) and (bool(keys) or at >= nbytes)
