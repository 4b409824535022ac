"""Lists of names, as people write them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from paramtool.commands.progress import Path
from paramtool.errors import NoSuchFileError, UsageError

STANDARD_INPUT = "-"


def read_names(path: Path) -> list[str]:
    """The names of a text file, one a line; `-` is standard input.

    Empty lines are skipped, and a repeated name counts once.  UsageError where there is none, or where the
    file is no UTF-8 text.
    """
    path = os.fspath(path)
    names = list(dict.fromkeys(line for line in lines_of(path) if line.strip()))
    if not names:
        raise UsageError(f"{path}: holds no name", hint="one name a line, as `inspect --tensors` shows them")
    return names


def lines_of(path: str) -> list[str]:
    """The lines of a text file; `-` is standard input.  UsageError where it cannot be read, or is not UTF-8 text."""
    try:
        if path == STANDARD_INPUT:
            if sys.stdin is None:  # closed
                raise UsageError("standard input is closed; expected the list of names there")
            data = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                data = file.read()
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise NoSuchFileError(path, "cannot be read: No such file or directory") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text: byte {error.start} is invalid", hint="one name a line") from None
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


PAIR = "NAME=OTHER"


def pairs(words: Iterable[str], flag: str, form: str = PAIR) -> dict[str, str]:
    """`NAME=FIRST`, several times, as a mapping; UsageError where a word has another form or a name two values.

    Names of another form than PAIR may be empty, as that of the outermost module is.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, other = word.partition("=")
        if not equals or (form == PAIR and not (name and other)):
            raise UsageError(f"{flag} {word!r:.200}: expected {form}, two names with = between them")
        if found.setdefault(name, other) != other:
            raise UsageError(f"{flag} {word!r:.200}: {name!r} is {found[name]!r} already")
    return found


def with_firsts(ties: Mapping[str, str] | None) -> dict[str, str]:
    """Ties of names to others, in which those others stand, too.

    >>> with_firsts({"encoder.weight": "decoder.weight"})
    {'encoder.weight': 'decoder.weight', 'decoder.weight': 'decoder.weight'}
    >>> with_firsts({"a": "b", "b": "c"}), with_firsts({"a": "b", "b": "a"})
    ({'a': 'c', 'b': 'c', 'c': 'c'}, {'a': 'b', 'b': 'b'})
    """
    firsts: dict[str, str] = {}
    for name, other in (ties or {}).items():
        one, two = firsts.get(name, name), firsts.get(other, other)
        firsts = {each: two if first == one else first for each, first in firsts.items()}
        firsts |= {name: two, other: two}
    return firsts
