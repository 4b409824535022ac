"""Bytes that a pickle holds as text, decoded piece by piece; none of the forms makes more bytes than it has.

    utf8      the UTF-8 of a text with a character for each byte (protocols 1 and 2 of Python 3)
    unicode   the same text, with `\\u000a` and the like for a few characters (protocol 0 of Python 3)
    string    a string of Python 2 as its `repr` shows it, without quotes (protocol 0)

Source: save_bytes and save_str in Lib/pickle.py (3.13); string_repr in Objects/stringobject.c (2.7).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

LONGEST = {"": 1, "utf8": 2, "unicode": 6, "string": 4}
"""{form: the most bytes that it takes for one}"""
STEP_NBYTES = 64 << 10
_STRING = re.compile(rb"(?:[^\\]+|\\[\\'\"nrt]|\\x[0-9a-fA-F]{2})*")


def decoded(pieces: Iterable[bytes], form: str) -> Iterator[bytes]:
    """The bytes that pieces of a text stand for; ValueError where they are not such a text.

    >>> b"".join(decoded([b"a\\xc3", b"\\xa9"], "utf8")), b"".join(decoded([b"a\\\\", b"xe9"], "string"))
    (b'a\\xe9', b'a\\xe9')
    """
    if not form:
        yield from pieces
    elif form == "string":
        left = b""
        for piece in pieces:
            for start in range(0, len(piece), STEP_NBYTES):
                left += piece[start : start + STEP_NBYTES]
                found = _STRING.match(left)
                stop = found.end() if found else 0
                yield left[:stop].decode("unicode_escape").encode("latin-1")
                left = left[stop:]
                if len(left) > 3:
                    raise _wrong(left)
        if left:
            raise _wrong(left)
    else:
        decoder = codecs.getincrementaldecoder("utf-8" if form == "utf8" else "raw-unicode-escape")()
        for piece in pieces:
            yield decoder.decode(piece).encode("latin-1")
        yield decoder.decode(b"", True).encode("latin-1")


def _wrong(left: bytes) -> ValueError:
    return ValueError(f"found {left[:4]!r} in a string; expected an escape as Python 2 writes it")
