"""The words of a line: names, shapes, numbers.

A word has no space.  A name with a space, a quote, a `#` or anything but printable ASCII is written as a JSON string
with escapes, so that a lock file is ASCII, one line stays one line, and no name can colour a terminal.
"""

from __future__ import annotations

import json
import re

from paramtool.errors import FormatError
from paramtool.model.view import Shape

_PLAIN = re.compile(r"[!$-<>-\[\]-~]+")
"""Printable ASCII without the space, `"`, `#`, `=` and the backslash."""
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"]+')
_SHAPE = re.compile(r"\[(?:(?:0|[1-9][0-9]*)(?:,(?:0|[1-9][0-9]*))*)?\]")
MAX_DIGITS = 20
"""Of a length or a size; 2**64 has 20."""


def quoted(text: str) -> str:
    """A name as one word.

    >>> print(quoted("a.weight"), quoted("two words"), quoted(""))
    a.weight "two words" ""
    """
    if _PLAIN.fullmatch(text):
        return text
    return json.dumps(text).replace("\x7f", "\\u007f").replace("#", "\\u0023")


def split(line: str) -> list[str]:
    """The words of a line, as they are written; FormatError where it has others than words with one space between."""
    words = _WORD.findall(line)
    if " ".join(words) != line:
        raise FormatError("the words have to have one space between them, and quotes have to be closed")
    return words


def unquoted(word: str) -> str:
    """The name that a word is; FormatError where it is not as `quoted` would write it."""
    name = word
    if word.startswith('"'):
        try:
            name = json.loads(word)
        except ValueError:
            raise FormatError(f"{word:.80} is not a string of JSON") from None
    if quoted(name) != word:
        raise FormatError(f"{word:.80} has to be written {quoted(name):.80}")
    return name


def shape_text(shape: Shape) -> str:
    """`[2,3]`, without spaces.

    >>> shape_text((2, 3)), shape_text(())
    ('[2,3]', '[]')
    """
    return f"[{','.join(map(str, shape))}]"


def shape_of(word: str) -> Shape:
    """The shape that a word is; FormatError where it is none."""
    if not _SHAPE.fullmatch(word) or any(len(size) > MAX_DIGITS for size in word[1:-1].split(",")):
        raise FormatError(f"{word:.80} is not a shape such as [2,3]")
    return tuple(int(size) for size in word[1:-1].split(",") if size)


def count_of(word: str) -> int:
    """A number of bytes; FormatError where it is none."""
    if not re.fullmatch(r"0|[1-9][0-9]*", word) or len(word) > MAX_DIGITS:
        raise FormatError(f"{word:.80} is not a number of bytes")
    return int(word)
