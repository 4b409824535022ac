"""Plain values for the content of pickles: names, objects that were never made, and tables of known names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paramtool.lazy_dataclass import frozen
from paramtool.model.objects import STREAM

if TYPE_CHECKING:
    from paramtool.formats.files import Buffer

PREVIEW_WIDTH = 80


@frozen
class PickleLimits:
    """The resources that one pickle may use before it counts as a bomb."""

    max_nbytes: int = 512 << 20
    max_stack: int = 1_000_000
    """Entries, marks included."""
    max_memo: int = 20_000_000
    max_objects: int = 20_000_000
    """Containers, instances and what constructors make."""
    max_int_nbytes: int = 1024

    @classmethod
    def of_stored(cls, stored_nbytes: int) -> PickleLimits:
        """The limits of a pickle with `stored_nbytes` bytes in its file, where it may be deflated.

        An uncompressed pickle has at least a byte for each object, a deflated one fewer: the pickles of torch.save
        compress to a third or a sixth, and 10 bytes of the file then make up to 2 objects.
        """
        usual = cls()
        most = MIN_DEFLATED_OBJECTS + OBJECTS_PER_STORED_BYTE * stored_nbytes
        return replace(usual, max_objects=min(usual.max_objects, most), max_memo=min(usual.max_memo, most))


MIN_DEFLATED_OBJECTS = 200_000
OBJECTS_PER_STORED_BYTE = 4


class Global:
    """A name that the pickle mentions; it is never looked up.

    Old names are converted to new ones: `__builtin__` to `builtins`, `copy_reg` to `copyreg`, `long` to `int`.

    >>> Global("__builtin__", "set").path, Global("__builtin__", "long").path
    ('builtins.set', 'builtins.int')
    """

    __slots__ = ("module", "name", "path")

    def __init__(self, module: str, name: str) -> None:
        self.module = RENAMED.get(module, module)
        self.name = RENAMED_TYPES.get(name, name) if self.module == "builtins" else name
        self.path = f"{self.module}.{self.name}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Global) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"<global {shown(self.path)}>"


class Instance:
    """A record of an object that is not plain data: its class or callable, and what was put into it."""

    __slots__ = ("args", "called", "kwargs", "mapping", "path", "sequence", "state")

    def __init__(self, path: str, args: tuple[object, ...], called: bool) -> None:
        self.path = path
        self.args = args
        self.called = called
        """True: the pickle calls it (anything might run); False: it only makes an object of a class."""
        self.kwargs: dict[str, object] = {}
        self.mapping: dict[object, object] | None = None
        """Its items, if it was filled like a dict."""
        self.sequence: list[object] | None = None
        """Its items, if it was filled like a list or a set."""
        self.state: object | None = None
        """Its attributes (BUILD); a list of states where there were several and not all were dicts."""

    def __repr__(self) -> str:
        return f"<instance of {shown(self.path)}>"


class PickledSpan:
    """Bytes or text that stand in the pickle and were not read: where they are, and how they are written there.

    `form` is how the bytes of the file become those that are meant:

        ""        as they are: the bytes that protocols 3 to 5 write, and the strings of Python 2's binary opcodes
        utf8      the UTF-8 of a text whose characters are the bytes: what `_codecs.encode(text, "latin1")` gets
        unicode   the same text with escapes (protocol 0)
        string    a Python 2 string with escapes (protocol 0)
    """

    __slots__ = ("_data", "form", "is_bytes", "make", "start", "stop")

    def __init__(self, data: Buffer, start: int, stop: int, *, form: str, make: Callable[[bytes], object]) -> None:
        self._data = data
        self.start = start
        self.stop = stop
        self.form = form
        self.make = make
        """What the opcode makes of the bytes in the file."""
        self.is_bytes = form in ("", "string")
        """Whether they stand for bytes; a text does so once it was encoded."""

    @property
    def nbytes(self) -> int:
        """The bytes in the file."""
        return self.stop - self.start

    def encoded(self) -> PickledSpan:
        """The bytes of a string, one for each character."""
        made = PickledSpan(self._data, self.start, self.stop, form=self.form, make=self.make)
        made.is_bytes = True
        return made

    def part(self, start: int, stop: int) -> PickledSpan:
        """Some of its bytes, which the file has to hold unencoded."""
        assert not self.form
        stop = min(self.stop, self.start + stop)
        return PickledSpan(self._data, self.start + start, stop, form="", make=self.make)

    def raw(self) -> bytes:
        """The bytes in the file; ValueError if they are too many to be an ordinary value."""
        if self.nbytes > MAX_VALUE_NBYTES:
            raise ValueError(f"a value of {self.nbytes} bytes; expected at most {MAX_VALUE_NBYTES}")
        return self._data[self.start : self.stop]

    def bytes(self) -> bytes:
        """The bytes that are meant; ValueError if the text is damaged."""
        from paramtool.formats.pickle.texts import decoded

        return b"".join(decoded([self.raw()], self.form))

    def value(self) -> object:
        """What the opcode, or the call that encodes its text, would have made; ValueError if that is not possible."""
        is_encoded = self.is_bytes and self.form in ("utf8", "unicode")
        return self.bytes() if is_encoded else self.make(self.raw())


MAX_VALUE_NBYTES = 16 << 20
"""The longest bytes and texts outside of arrays that are read."""


@frozen
class Use:
    """An unknown name and the strongest thing the pickle does with it."""

    path: str
    called: bool
    arguments: str
    """A short safe preview of the first call's arguments, at most 80 characters; empty if not called."""


@frozen
class Result:
    """The result of running one pickle."""

    value: object
    stop: int
    """Index just after its STOP: where the next of several stacked pickles starts."""
    uses: tuple[Use, ...]
    """Unknown names, one each, in order of first mention."""
    skipped: int = 0
    """Bytes that were not read: those of its spans."""


RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}
RENAMED_TYPES = {"long": "int", "unicode": "str"}
"""What protocols 0 to 2 call the types of Python 3, in both directions (`NAME_MAPPING` in Lib/_compat_pickle.py)."""

CALLS_ITS_FIRST = {"torch._tensor._rebuild_from_type_v2", "torch.tensor._rebuild_from_type_v2"}
"""`f(function, type, arguments, state)`: calls its first argument (torch/_tensor.py; the old name up to torch 1.8)."""
MAPPINGS = frozenset({"collections.OrderedDict", "collections.defaultdict", "collections.Counter"})
"""Filled like a dict."""
SEQUENCES = frozenset({"builtins.set", "builtins.frozenset", "collections.deque"})
"""Filled like a list."""
INERT = (
    MAPPINGS
    | SEQUENCES
    | {f"builtins.{name}" for name in ("int", "float", "complex", "bool", "str", "bytes", "bytearray", "object")}
    | {f"builtins.{name}" for name in ("list", "dict", "tuple", "slice", "range", "xrange")}
    | {
        f"{module}.{name}"
        for module in ("pathlib", "pathlib._local")
        for name in ("PurePosixPath", "PosixPath", "PureWindowsPath", "WindowsPath")
    }
    | {f"datetime.{name}" for name in ("date", "time", "datetime", "timedelta", "timezone")}
    | {"decimal.Decimal", "fractions.Fraction", "uuid.UUID", "argparse.Namespace", "types.SimpleNamespace"}
    | {STREAM}
)
"""Classes of the standard library that only hold their arguments."""

ATOMS = frozenset({str, int, float, bool, bytes, type(None)})


ESCAPES = {b"\\": b"\\", b"'": b"'", b'"': b'"', b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescape(text: bytes) -> bytes:
    """The bytes of a string in Python 2's repr, without quotes.

    Raises ValueError or KeyError for escapes that it never writes.

    >>> unescape(rb"a\\n\\x41\\\\")
    b'a\\nA\\\\'
    """
    made, at = bytearray(), 0
    while (slash := text.find(b"\\", at)) >= 0:
        made += text[at:slash]
        letter = text[slash + 1 : slash + 2]
        at = slash + (4 if letter == b"x" else 2)
        made += bytes([int(text[slash + 2 : at], 16)]) if letter == b"x" else ESCAPES[letter]
    return bytes(made + text[at:])


def preview(value: object, depth: int = 2) -> str:
    """A value in at most 80 printable characters; looks at a few items only, two levels deep.

    >>> preview(("curl x | sh", [1, (2, (3,))], b"\\x1b[0m"))
    "('curl x | sh', [1, (...)], b'\\\\x1b[0m')"
    >>> len(preview("x" * 1000))
    80
    """
    if type(value) in (str, bytes):
        text = repr(value[:PREVIEW_WIDTH])  # type: ignore[index]  # text by its type
    elif type(value) is int:
        text = str(value) if value.bit_length() < 128 else "a big number"
    elif type(value) in ATOMS:
        text = repr(value)
    elif type(value) in BRACKETS:
        text = _preview_items(value, depth)
    elif type(value) is Global or type(value) is Instance:
        text = shown(value.path[:PREVIEW_WIDTH]) + ("" if type(value) is Global else "(...)")
    else:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= PREVIEW_WIDTH else text[: PREVIEW_WIDTH - 3] + "..."


BRACKETS: dict[type, tuple[str, str]] = {tuple: ("(", ")"), list: ("[", "]"), dict: ("{", "}")}


def _preview_items(value: Any, depth: int) -> str:
    opening, closing = BRACKETS[type(value)]
    if depth == 0:
        return f"{opening}...{closing}" if value else opening + closing
    shown: list[str] = []
    for key in value:
        if len(shown) == 4:
            shown.append("...")
            break
        text = preview(key, depth - 1)
        shown.append(f"{text}: {preview(value[key], depth - 1)}" if type(value) is dict else text)
    comma = "," if type(value) is tuple and len(value) == 1 else ""
    return f"{opening}{', '.join(shown)}{comma}{closing}"


def shown(text: str) -> str:
    """Text with control characters escaped.

    >>> shown("os\\x1b[0m")
    'os\\\\x1b[0m'
    """
    return text if text.isprintable() else repr(text)[1:-1]
