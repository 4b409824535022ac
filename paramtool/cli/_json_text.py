"""JSON documents as text, piece by piece, so that a long one is never there as a whole.

An iterator in a document represents an array whose items are made while it is written.  The text is the one that
`json.dumps(..., indent=2)` gives of the same document with lists.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from paramtool.errors import OutputError
from paramtool.model.document import document as document

CHUNK_CHARACTERS = 1 << 16
MAX_KEPT_NBYTES = 8 << 20
"""More than this goes to a temporary file."""
_LINE = "\n"
_INNER = "\n    "
"""The line of an item in a list of a document."""


class _Array(list[object]):
    """An array whose items are made while it is written."""

    def __init__(self, items: Iterable[object]) -> None:
        self.items = iter(items)
        self.first = [*islice(self.items, 1)]

    def __bool__(self) -> bool:
        return bool(self.first)

    def __iter__(self) -> Iterator[object]:
        return chain(self.first, self.items)


def pieces(value: object, line: str = _LINE) -> Iterator[str]:
    """The text of a value; `line` begins its further lines.

    `##[`, which a log on GitHub obeys in any line, is written with an escape.

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
    for piece in json.JSONEncoder(indent=2, default=_Array).iterencode(value):
        yield piece.replace("##[", "#\\u0023[").replace(_LINE, line)


class Kept:
    """The text of an array whose items are known before the members in front of it: a member of a document.

    Many items are kept in a temporary file that has no name and is gone with the process.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(MAX_KEPT_NBYTES, "w+", encoding="ascii")
        self._before = "["

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, item: object) -> None:
        """Keep one more item; OutputError where there is no room."""
        try:
            self._file.write(self._before + _INNER)
            self._file.writelines(pieces(document(item), _INNER))
            self._before = ","
        except OSError as error:
            raise OutputError(
                f"{tempfile.gettempdir()}: the JSON document of several files is kept there until its end: "
                f"{error.strerror or type(error).__name__}",
                hint="TMPDIR names another folder",
            ) from None

    def document(self, head: dict[str, object], member: str) -> Iterator[str]:
        """The text of a document: what `head` says, and the items as its last member."""
        before, _, after = "".join(pieces({**head, member: []})).rpartition("[]")
        yield before
        self._file.seek(0)
        while text := self._file.read(CHUNK_CHARACTERS):
            yield text
        yield f"{'[' if self._before == '[' else f'{_LINE}  '}]{after}"
