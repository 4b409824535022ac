"""The bytes of BSON as documents, rows and numbers.  Binary data stays where it is, as a range of the file.

    document   i32 length of all of it, its elements, a zero byte; a row is a document whose keys are 0, 1, ...
    element    one byte of type, the key and a zero byte, the value
    string     i32 length with the zero byte at its end;   binary   i32 length, one byte of subtype, the bytes

BSON.jl writes and reads nine of the types of elements.  Other programs (MongoDB's tools) write more of them.

Sources: bsonspec.org, version 1.1; JuliaIO/BSON.jl @0522fdc, src/BSON.jl, src/read.jl and src/write.jl.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, NoReturn

from paramtool.errors import FormatError, UnsafeError
from paramtool.formats.files import Contents

I32, I64, DOUBLE = Struct("<i"), Struct("<q"), Struct("<d")
END, NUMBER, STRING, DOCUMENT, ROW, BINARY, BOOL, NULL, INT32, INT64 = 0, 1, 2, 3, 4, 5, 8, 10, 16, 18
OTHERS = {
    6: "undefined", 7: "ObjectId", 9: "date", 11: "regular expression", 12: "DBPointer", 13: "JavaScript",
    14: "symbol", 15: "JavaScript with scope", 17: "timestamp", 19: "decimal128", 127: "maximum key",
    255: "minimum key",
}  # fmt: skip
"""Types of elements of BSON that BSON.jl neither writes nor reads."""
MAX_VALUES = 5_000_000
MAX_LEVELS = 2000
"""The deepest nesting of documents; a struct of Julia takes two levels, and one more for each array around it."""


class Binary(NamedTuple):
    """Bytes of the file that were not read."""

    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.stop - self.start


class Document(dict[str, "Value"]):
    """A document, and the byte where it begins."""

    __slots__ = ("at",)
    at: int


class BsonArray(list["Value"]):
    """A row of values, and the byte where it begins."""

    __slots__ = ("at",)
    at: int


Value = None | bool | int | float | str | bytes | Binary | Document | BsonArray
"""`bytes` is a string that is not UTF-8, which Julia's strings can be."""


class _Open(NamedTuple):
    """A document that is being read."""

    container: Document | BsonArray
    stop: int
    """The byte behind it."""


class Parser:
    """A position in a file that holds one document."""

    def __init__(self, contents: Contents, where: str) -> None:
        self.contents = contents
        self.where = where
        self.at = 0
        self.stop = len(contents)
        """The end of the innermost document."""

    def document(self) -> Document:
        """The document; FormatError names the first byte that is wrong."""
        made = Document()
        todo = [self._opened(made)]
        if self.stop < len(self.contents):
            self._fail(self.stop, f"{len(self.contents) - self.stop} bytes follow the document", "the end of the file")
        values = 0
        while todo:
            container, stop = todo[-1]
            start = self.at
            kind = self._take(1)[0]
            if kind == END:
                if self.at != stop:
                    self._fail(start, "the end of a document", f"it at byte {stop - 1}, as its length says")
                todo.pop()
                self.stop = todo[-1].stop if todo else stop
                continue
            values += 1
            if values > MAX_VALUES:
                raise UnsafeError(f"{self.where}: has more than {MAX_VALUES:,} values")
            key = self._key(isinstance(container, BsonArray))
            if kind in (DOCUMENT, ROW):
                child: Document | BsonArray = Document() if kind == DOCUMENT else BsonArray()
                todo.append(self._opened(child))
                if len(todo) > MAX_LEVELS:
                    raise UnsafeError(f"{self.where}: byte {start}: nested deeper than {MAX_LEVELS} levels")
                value: Value = child
            else:
                value = self._value(kind, start)
            if isinstance(container, BsonArray):
                container.append(value)
            elif key in container:
                self._fail(start, f"the key {key!r:.200} again", "each key once")
            else:
                container[key] = value
        return made

    def _opened(self, container: Document | BsonArray) -> _Open:
        """Begin a document at the current byte."""
        container.at = start = self.at
        nbytes = self._length(5, "a document")
        self.stop = start + nbytes
        return _Open(container, self.stop)

    def _length(self, least: int, what: str, counted: int = 4) -> int:
        """A length, of which `counted` bytes stand before the current byte; FormatError if they are not there."""
        start = self.at
        (nbytes,) = I32.unpack(self._take(4))
        if not least <= nbytes <= self.stop - self.at + counted:
            left = self.stop - self.at + counted
            cut = "; the file is truncated" if nbytes >= least and self.stop == len(self.contents) else ""
            self._fail(start, f"{what} of {nbytes} bytes", f"{least} to {left}{cut}")
        return int(nbytes)

    def _key(self, is_row: bool) -> str:
        """A key; those of a row say nothing, and BSON.jl does not look at them either."""
        end = self.contents.find(b"\0", self.at, self.stop)
        if end < 0:
            self._fail(self.at, "a key without an end", f"a zero byte before byte {self.stop}")
        raw, start = b"" if is_row else self.contents[self.at : end], self.at
        self.at = end + 1
        try:
            return raw.decode()
        except UnicodeDecodeError:
            pass
        return self._fail(start, f"the key {raw!r:.100}", "UTF-8")

    def _value(self, kind: int, start: int) -> Value:
        """A value that holds no others."""
        if kind == NUMBER:
            return float(DOUBLE.unpack(self._take(8))[0])
        if kind == STRING:
            return self._string()
        if kind == BINARY:
            return self._binary()
        if kind == BOOL:
            (value,) = self._take(1)
            if value > 1:
                self._fail(self.at - 1, f"{value} as a truth value", "0 or 1")
            return bool(value)
        if kind == NULL:
            return None
        if kind not in (INT32, INT64):
            self._fail(
                start,
                f"an element of type {kind:#04x}{f' ({OTHERS[kind]})' if kind in OTHERS else ''}",
                "one of those that Julia's BSON.jl writes; files of other programs are not read",
            )
        numbers = I32 if kind == INT32 else I64
        return int(numbers.unpack(self._take(numbers.size))[0])

    def _string(self) -> str | bytes:
        """A string; bytes if it is not UTF-8."""
        nbytes = self._length(1, "a string", 0)
        raw = self._take(nbytes)
        if raw[-1]:
            self._fail(self.at - 1, f"{raw[-1]:#04x} at the end of a string", "0")
        try:
            return raw[:-1].decode()
        except UnicodeDecodeError:
            return raw[:-1]

    def _binary(self) -> Binary:
        """The place of binary data, which is skipped."""
        nbytes = self._length(0, "binary data", -1)
        (subtype,) = self._take(1)
        if subtype:
            self._fail(self.at - 1, f"binary data of subtype {subtype}", "0, as BSON.jl writes it")
        self.at += nbytes
        return Binary(self.at - nbytes, self.at)

    def _take(self, nbytes: int) -> bytes:
        """The next bytes of the innermost document."""
        if self.at + nbytes > self.stop:
            cut = "; the file is truncated" if self.stop == len(self.contents) else ""
            self._fail(self.at, f"{self.stop - self.at} bytes", f"{nbytes} more in this document{cut}")
        raw = self.contents[self.at : self.at + nbytes]
        self.at += nbytes
        return raw

    def _fail(self, at: int, found: str, expected: str) -> NoReturn:
        raise FormatError(f"{self.where}: byte {at}: found {found}; expected {expected}")


__all__ = ["Binary", "BsonArray", "Document", "Parser", "Value"]
