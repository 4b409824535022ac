"""JSON documents as text, piece by piece, so that a long one is never there as a whole.

An iterator in a document represents an array whose items are made while it is written, and a function a value that is
known when its turn comes.  The text is the one that
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


class _Array(list[object]):
    """An array whose items are made while it is written."""

    def __init__(self, items: Iterable[object]) -> None:
        self.items = iter(items)
        self.first = [*islice(self.items, 1)]

    def __bool__(self) -> bool:
        return bool(self.first)

    def __iter__(self) -> Iterator[object]:
        return chain(self.first, self.items)


def pieces(value: object) -> Iterator[str]:
    """The text of a value.

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
    encoder = json.JSONEncoder(indent=2, default=lambda late: late() if callable(late) else _Array(late))
    for piece in encoder.iterencode(value):
        yield piece.replace("##[", "#\\u0023[")


def kept(text: Iterable[str]) -> Iterator[str]:
    """The same text once all of it is known, so that nothing is printed of one that does not end.

    A long one is kept in a temporary file that has no name and is gone with the process; OutputError where there is no
    room.
    """
    with tempfile.SpooledTemporaryFile(MAX_KEPT_NBYTES, "w+", encoding="ascii") as file:
        try:
            file.writelines(text)
        except OSError as error:
            raise OutputError(
                f"{tempfile.gettempdir()}: the JSON document of several files is kept there until its end: "
                f"{error.strerror or type(error).__name__}",
                hint="TMPDIR names another folder",
            ) from None
        file.seek(0)
        while piece := file.read(CHUNK_CHARACTERS):
            yield piece
