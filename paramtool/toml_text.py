"""Text in TOML: its tables, and the line and column of every key and item, for messages.

tomllib decides what is valid; the scanner here only says where things are, and is given valid text alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from paramtool.errors import UsageError

Key = tuple[str | int, ...]
"""The way to a value: keys of tables, and positions in arrays, from 0."""
Position = tuple[int, int]
"""(line, column), both from 1; columns count characters."""


def parsed(text: str, where: str, most: int) -> dict[str, Any]:
    """The tables of a TOML file of at most `most` characters; UsageError with the place where it is not valid."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    if len(text) > most:
        raise UsageError(f"has {len(text)} characters; such a file has at most {most}").at(where)
    if text.startswith("\ufeff"):
        raise UsageError("begins with a byte order mark, which TOML does not have: save it as UTF-8 without").at(
            where, 1
        )
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError is one; numbers of thousands of digits raise another
        raise _placed(str(error), text, where) from None
    except RecursionError:
        raise UsageError("is nested too deeply").at(where) from None


def _placed(said: str, text: str, where: str) -> UsageError:
    """What tomllib says, at the place that it says."""
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", said)
    if found is None:
        return UsageError(f"is not valid TOML: {said}").at(where)
    line = int(found[1]) if found[1] else text.count("\n") + 1
    column = int(found[2]) if found[2] else len(text) - text.rfind("\n")
    return UsageError(f"is not valid TOML: {said[: found.start()]}").at(where, line, column)


def positions(text: str) -> Mapping[Key, Position]:
    """Where each key of a valid TOML text begins, and each item of its arrays; tables by the first mention.

    >>> positions('a = [1, "x"]\\n[b]\\nc.d = 2')
    {('a',): (1, 1), ('a', 0): (1, 6), ('a', 1): (1, 9), ('b',): (2, 2), ('b', 'c'): (3, 1), ('b', 'c', 'd'): (3, 3)}
    """
    scanner = _Scanner(text)
    scanner.document()
    starts = [0, *(at.end() for at in re.finditer("\n", text))]
    return {key: _line_and_column(starts, at) for key, at in scanner.found.items()}


def _line_and_column(starts: list[int], at: int) -> Position:
    from bisect import bisect_right

    line = bisect_right(starts, at)
    return line, at - starts[line - 1] + 1


_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRINGS = {
    '"""': re.compile(r'"""(?:[^\\]|\\.)*?"""(?!"(?!""))"{0,2}', re.S),
    "'''": re.compile(r"'''.*?'''(?!'(?!''))'{0,2}", re.S),
    '"': re.compile(r'"(?:[^"\\]|\\.)*"'),
    "'": re.compile(r"'[^']*'"),
}
"""{how a string begins: all of it}; a multi-line string may end with one or two quotes of its own."""
_PLAIN = re.compile(r"[^,\]}#\n]*")
"""A number, a date or a truth value."""


class _Scanner:
    """A walk over valid text; `found` has the offset of each key and item."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[Key, int] = {}
        self._tables: dict[Key, int] = {}
        """{array of tables: how many there are so far}"""

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match[0] if match else ""

    def document(self) -> None:
        """All statements."""
        table: Key = ()
        self._skip(_SPACE)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_SPACE)

    def _header(self) -> Key:
        """`[a.b]` or `[[a.b]]`: the table that follows."""
        is_array = self.text.startswith("[[", self.at)
        start, self.at = self.at, self.at + 1 + is_array
        names = self._names()
        table: Key = ()
        for place, (name, offset) in enumerate(names):
            table = (*table, name)
            self.found.setdefault(table, offset)
            if is_array and place == len(names) - 1:
                self._tables[table] = self._tables.get(table, -1) + 1
            if table in self._tables:
                table = (*table, self._tables[table])
                self.found.setdefault(table, start)
        self.at += 1 + is_array
        return table

    def _names(self) -> list[tuple[str, int]]:
        """A dotted key, and where each part begins; leaves the position behind it and its spaces."""
        found = []
        while True:
            self._skip(_BLANK)
            start = self.at
            found.append((self._name(), start))
            self._skip(_BLANK)
            if not self.text.startswith(".", self.at):
                return found
            self.at += 1

    def _name(self) -> str:
        quote = self.text[self.at]
        if quote not in "\"'":
            return self._skip(_BARE_KEY)
        whole = self._skip(_STRINGS[quote])
        if quote == "'" or "\\" not in whole:
            return whole[1:-1]
        (name,) = parsed(f"{whole} = 0", "", sys.maxsize)
        return name

    def _pair(self, table: Key) -> None:
        for name, offset in self._names():
            table = (*table, name)
            self.found.setdefault(table, offset)
        self.at += 1  # the equals sign
        self._skip(_BLANK)
        self._value(table)

    def _value(self, key: Key) -> None:
        match self.text[self.at]:
            case "[":
                self._container(key, "]")
            case "{":
                self._container(key, "}")
            case '"' | "'":
                start = next(start for start in _STRINGS if self.text.startswith(start, self.at))
                self._skip(_STRINGS[start])
            case _:
                self._skip(_PLAIN)

    def _container(self, key: Key, end: str) -> None:
        """An array or an inline table."""
        self.at += 1
        self._skip(_SPACE)
        number = 0
        while self.text[self.at] != end:
            if end == "]":
                self.found[(*key, number)] = self.at
                self._value((*key, number))
                number += 1
            else:
                self._pair(key)
            self._skip(_SPACE)
            if self.text[self.at] == ",":
                self.at += 1
            self._skip(_SPACE)
        self.at += 1
