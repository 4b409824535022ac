"""Write pickles of protocol 2, with the opcodes that `torch.load(weights_only=True)` accepts.

A value is made of None, bool, int, float, complex, str, bytes, list and tuple, and of the few classes below, which
represent what a pickle can express and plain Python values cannot.  Nothing is imported to write a name.

Strings, names and containers are memoized (BINPUT) and fetched when they appear again, so a list or a `Dict` may
contain itself.

Opcodes: Lib/pickletools.py; which of them are taken: torch/_weights_only_unpickler.py (2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import pack
from typing import Any, NamedTuple

MAX_INT_BITS = 255 * 8 - 1
"""LONG1 has at most 255 bytes, one bit of them the sign; LONG4 is not taken."""
BATCH = 1000
"""The number of items that are set at once, as in Python."""


class Name(NamedTuple):
    """A class or a function."""

    module: str
    name: str


@dataclass(eq=False, slots=True)
class Dict:
    """A dict, as the pairs that it is filled with; keys that Python takes for one are kept apart."""

    pairs: list[tuple[object, object]]


@dataclass(eq=False, slots=True)
class Call:
    """The result of a call, with items and attributes."""

    function: Name
    args: tuple[object, ...] = ()
    pairs: list[tuple[object, object]] = field(default_factory=list)
    state: object = None
    items: list[object] = field(default_factory=list)
    """Appended to it."""
    new: bool = False
    """Made by NEWOBJ: the bare object of a class, without a call of its constructor."""
    shared: bool = False
    """Whether other places refer to the same object."""


@dataclass(frozen=True, slots=True)
class Persistent:
    """What the reader finds outside the pickle under this id."""

    id: object


BYTES, COMPLEX = Name("_codecs", "encode"), Name("__builtin__", "complex")


def dumps(value: object) -> bytes:
    r"""The pickle of a value.

    >>> dumps([1, "w"])
    b'\x80\x02]q\x00(K\x01X\x01\x00\x00\x00wq\x01e.'
    """
    writer = _PickleWriter()
    writer.save(value)
    return b"\x80\x02" + bytes(writer.out) + b"."


class _PickleWriter:
    """The pickle so far, and what is remembered of it."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.memo: dict[object, int] = {}
        """{string, name, or identity of a container: its index}."""

    def save(self, value: object) -> None:
        """Write a value; TypeError if its type is not supported."""
        form = _FORMS.get(type(value))
        if form is None:
            raise TypeError(f"a {type(value).__name__} cannot be pickled")
        form(self, value)

    def fetched(self, key: object) -> bool:
        """Write what was memoized under a key; False if nothing was."""
        if (index := self.memo.get(key)) is None:
            return False
        self.out += b"h" + bytes((index,)) if index < 256 else pack("<cI", b"j", index)
        return True

    def remember(self, key: object) -> None:
        """Remember what was written last."""
        index = self.memo.setdefault(key, len(self.memo))
        self.out += b"q" + bytes((index,)) if index < 256 else pack("<cI", b"r", index)

    def constant(self, value: bool | None) -> None:
        self.out += {None: b"N", True: b"\x88", False: b"\x89"}[value]

    def integer(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self.out += b"K" + bytes((value,))
        elif 0 <= value < 1 << 16:
            self.out += pack("<cH", b"M", value)
        elif -(1 << 31) <= value < 1 << 31:
            self.out += pack("<ci", b"J", value)
        elif value.bit_length() <= MAX_INT_BITS:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.out += b"\x8a" + bytes((len(data),)) + data
        else:
            raise TypeError(f"a number of {value.bit_length()} bits cannot be pickled")

    def number(self, value: float) -> None:
        self.out += pack(">cd", b"G", value)

    def complex_number(self, value: complex) -> None:
        self.call(Call(COMPLEX, (value.real, value.imag)))

    def text(self, value: str) -> None:
        if not self.fetched(value):
            data = value.encode("utf-8", "surrogatepass")
            self.out += pack("<cI", b"X", len(data)) + data
            self.remember(value)

    def data(self, value: bytes) -> None:
        self.call(Call(BYTES, (value.decode("latin1"), "latin1")))

    def name(self, value: Name) -> None:
        if not self.fetched(value):
            self.out += f"c{value.module}\n{value.name}\n".encode()
            self.remember(value)

    def tuple_of(self, items: tuple[object, ...]) -> None:
        if len(items) > 3:
            self.out += b"("
        for item in items:
            self.save(item)
        self.out += (b")", b"\x85", b"\x86", b"\x87")[len(items)] if len(items) < 4 else b"t"

    def list_of(self, items: list[object]) -> None:
        if self.fetched(id(items)):
            return
        self.out += b"]"
        self.remember(id(items))
        self.appended(items)

    def appended(self, items: list[object]) -> None:
        for start in range(0, len(items), BATCH):
            self.out += b"("
            for item in items[start : start + BATCH]:
                self.save(item)
            self.out += b"e"

    def dict_of(self, value: Dict) -> None:
        if not self.fetched(id(value)):
            self.out += b"}"
            self.remember(id(value))
            self.pairs(value.pairs)

    def call(self, value: Call) -> None:
        if self.fetched(id(value)):
            return
        self.name(value.function)
        self.tuple_of(value.args)
        self.out += b"\x81" if value.new else b"R"
        # what is only called holds nothing that could be itself
        if value.shared or value.pairs or value.items or value.state is not None:
            self.remember(id(value))
        self.appended(value.items)
        self.pairs(value.pairs)
        if value.state is not None:
            self.save(value.state)
            self.out += b"b"

    def pairs(self, pairs: list[tuple[object, object]]) -> None:
        for start in range(0, len(pairs), BATCH):
            self.out += b"("
            for pair in pairs[start : start + BATCH]:
                for item in pair:
                    self.save(item)
            self.out += b"u"

    def persistent(self, value: Persistent) -> None:
        self.save(value.id)
        self.out += b"Q"


_FORMS: dict[type, Callable[[_PickleWriter, Any], None]] = {
    str: _PickleWriter.text,
    tuple: _PickleWriter.tuple_of,
    int: _PickleWriter.integer,
    bool: _PickleWriter.constant,
    type(None): _PickleWriter.constant,
    float: _PickleWriter.number,
    Call: _PickleWriter.call,
    Persistent: _PickleWriter.persistent,
    Name: _PickleWriter.name,
    list: _PickleWriter.list_of,
    Dict: _PickleWriter.dict_of,
    bytes: _PickleWriter.data,
    complex: _PickleWriter.complex_number,
}
