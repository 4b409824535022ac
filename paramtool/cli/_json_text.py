"""JSON documents as text, piece by piece, so that a long one is never there as a whole.

An iterator in a document represents an array whose items are made while it is written.  The text is the one that
`json.dumps(..., indent=2)` gives of the same document with lists.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator

from paramtool.errors import OutputError
from paramtool.model.document import document as document

CHUNK_CHARACTERS = 1 << 16
MAX_KEPT_NBYTES = 8 << 20
"""More than this goes to a temporary file."""
_LINE = "\n"
_STEP = "  "
_encode = json.JSONEncoder().encode
"""Without an indent it is the encoder in C; the other leaves garbage behind at each call, and nobody collects it."""


def _encoded(value: object) -> str:
    """A value without `##[`, which a log on GitHub obeys in any line: the same string, written with an escape."""
    return _encode(value).replace("##[", "#\\u0023[")


def pieces(value: object, line: str = _LINE) -> Iterator[str]:
    """The text of a value; `line` begins its further lines.

    >>> print("".join(pieces({"path": "a.pt", "groups": iter([{"shape": [2]}]), "notes": iter([])})))
    {
      "path": "a.pt",
      "groups": [
        {
          "shape": [
            2
          ]
        }
      ],
      "notes": []
    }
    """
    match value:
        case dict():
            members = (f"{_key(key)}: " for key in value)
            yield from _container("{}", zip(members, value.values(), strict=True), line)
        case Iterator() | list() | tuple():
            yield from _container("[]", (("", item) for item in value), line)
        case _:
            yield _encoded(value)


def _container(brackets: str, items: Iterable[tuple[str, object]], line: str) -> Iterator[str]:
    inner = line + _STEP
    before = brackets[0]
    for label, item in items:
        if item is None or type(item) in (str, int, bool):
            yield f"{before}{inner}{label}{_encoded(item)}"
        else:
            yield f"{before}{inner}{label}"
            yield from pieces(item, inner)
        before = ","
    yield f"{line}{brackets[1]}" if before == "," else brackets


def _key(key: object) -> str:
    """The name of a member; a number becomes a string."""
    return _encoded(key) if isinstance(key, str) else f'"{_encoded(key)}"'


def chunks(found: Iterable[str]) -> Iterator[str]:
    """The same text in fewer and longer pieces."""
    waiting: list[str] = []
    length = 0
    for piece in found:
        waiting.append(piece)
        length += len(piece)
        if length >= CHUNK_CHARACTERS:
            yield "".join(waiting)
            waiting, length = [], 0
    yield "".join(waiting)


class Kept:
    """The text of an array whose items are known before the members in front of it: a member of a document.

    Many items are kept in a temporary file that has no name and is gone with the process.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(MAX_KEPT_NBYTES, "w+", encoding="ascii")
        self._line = _LINE + _STEP
        self._before = "["

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, item: object) -> None:
        """Keep one more item; OutputError where there is no room."""
        inner = self._line + _STEP
        try:
            self._file.write(self._before + inner)
            self._file.writelines(chunks(pieces(document(item), inner)))
            self._before = ","
        except OSError as error:
            raise OutputError(
                f"{tempfile.gettempdir()}: the JSON document of several files is kept there until its end: "
                f"{error.strerror or type(error).__name__}",
                hint="TMPDIR names another folder",
            ) from None

    def document(self, head: dict[str, object], member: str) -> Iterator[str]:
        """The text of a document: what `head` says, and the items as its last member."""
        for key, value in head.items():
            yield f"{'{' if key == next(iter(head)) else ','}{self._line}{_key(key)}: "
            yield from pieces(value, self._line)
        yield f",{self._line}{_key(member)}: "
        self._file.seek(0)
        while text := self._file.read(CHUNK_CHARACTERS):
            yield text
        yield f"{self._line}]\n}}" if self._before == "," else "[]\n}"
