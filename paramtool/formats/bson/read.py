"""Julia's values in BSON, as BSON.jl writes them.

    {model: {tag: "struct", type: {tag: "datatype", name: ["Flux", "Dense"], params: [...]},
             data: [{tag: "array", type: ..., size: [5, 10], data: <binary>}, ...]},
     _backrefs: [...]}

An object that the program had in several places is in `_backrefs`, and each place says {tag: "backref", ref: n},
from 1.  So arrays that are one object in Julia are one storage here, and a cycle ends where it begins again.

Names are paths: keys of dicts and named tuples, fields of structs (`_types.py`), positions from 1.  The state that
Flux's optimizers keep for each array, in an IdDict, is called after that array: `opt.state.model.layers.1.weight.1`.
Arrays have Julia's shape; the first axis is the fastest.

Structs are kept with the names of their types.  No type is looked up and nothing is run: BSON.jl itself defines types
and functions that a file holds when it loads one.

Source: JuliaIO/BSON.jl @0522fdc, src/extensions.jl, src/anonymous.jl, src/read.jl and src/write.jl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from operator import mul
from struct import Struct
from typing import NamedTuple, NoReturn, TypeVar

from paramtool.errors import FormatError, UnsafeError, plural, some
from paramtool.formats import object_tree
from paramtool.formats.bson import _types
from paramtool.formats.files import Contents, open_source, read_bytes
from paramtool.formats.torch.names import Bounds, names_of
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint, Entry, Module, unescaped_name
from paramtool.model.dtype import DTYPES
from paramtool.model.objects import MAX_DEPTH, Again, Key, Leaf, Node, Opaque, Path, Sequence, TensorRef, stub, word
from paramtool.model.storage import ByteRange, Storage
from paramtool.model.view import MAX_AXES, MAX_EXTENT, Shape, View

# --- The bytes of BSON as documents, rows and numbers.  Binary data stays where it is, as a range of the file --------
#
#     document   i32 length of all of it, its elements, a zero byte; a row is a document whose keys are 0, 1, ...
#     element    one byte of type, the key and a zero byte, the value
#     string     i32 length with the zero byte at its end;   binary   i32 length, one byte of subtype, the bytes
#
# BSON.jl writes and reads nine of the types of elements.  Other programs (MongoDB's tools) write more of them.
#
# Sources: bsonspec.org, version 1.1; JuliaIO/BSON.jl @0522fdc, src/BSON.jl, src/read.jl and src/write.jl.


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
            # The place of binary data, which is skipped
            nbytes = self._length(0, "binary data", -1)
            (subtype,) = self._take(1)
            if subtype:
                self._fail(self.at - 1, f"binary data of subtype {subtype}", "0, as BSON.jl writes it")
            self.at += nbytes
            return Binary(self.at - nbytes, self.at)
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


# --- Julia's values in BSON, as BSON.jl writes them ---


NAME = "bson"
BACKREFS = "_backrefs"
MAX_NUMBERS = 1 << 16
"""The longest array of numbers that is read as values: the keys or values of a dict."""
MAX_PRIMITIVE_NBYTES = 64
T = TypeVar("T")


def read(path: str) -> Checkpoint:
    """Describe a file of BSON.jl; FormatError or UnsafeError if that is not possible."""
    file, source = open_source(path)
    with file:
        top = Parser(Contents(file, source.nbytes), path).document()
        backrefs = top.pop(BACKREFS, None)
        if not isinstance(backrefs, (BsonArray, type(None))):
            raise FormatError(
                f"{path}: {_place(backrefs)}found {_word(backrefs)} as {BACKREFS!r}; expected a row of objects"
            )
        data = _JuliaFile(
            path, lambda at: read_bytes(file, at.start, at.nbytes), backrefs or BsonArray(), source.nbytes
        )
        # The tree, the walk that made it, and the names of its tensors
        walk = _JuliaWalk(data)
        tree = walk.node(top, ())
        if walk.is_keyed:
            walk = _JuliaWalk(data, {place: unescaped_name(path) for place, path in walk.outside.items()})
            tree = walk.node(top, ())
        names, escaped = names_of([found.path for found in walk.tensors])
        if escaped:
            final = {found.path: name for found, name in zip(walk.tensors, names, strict=True)}
            walk = _JuliaWalk(data, {place: final[path] for place, path in walk.outside.items()}, iter(names))
            tree = walk.node(top, ())
    ordered = dict(zip(names, walk.tensors, strict=True))
    roles = object_tree.roles(tree)
    return Checkpoint(
        format=NAME,
        files=(source,),
        storages={
            number: Storage(number, place.nbytes, ByteRange(path, place.start, place.stop))
            for place, number in data.storages.items()
        },
        entries={
            name: Entry(found.view, found.role or roles.get(name) or object_tree.leaf_role(name, "model"))
            for name, found in ordered.items()
        },
        objects=tree,
        sections=object_tree.sections(tree),
        producer="BSON.jl",
        left_out=tuple(_left_out(walk)),
        notes=tuple(_notes(walk)),
        modules=tuple(walk.modules),
    )


def _left_out(walk: _JuliaWalk) -> Iterator[str]:
    if walk.left:
        yield (
            f"{plural(len(walk.left), 'array')} left out, whose elements are not numbers that paramtool knows: "
            f"{some(walk.left, 5)}"
        )


def _notes(walk: _JuliaWalk) -> Iterator[str]:
    """What the tree and the names do not show."""
    if walk.functions:
        yield (
            f"holds the code of {plural(walk.functions, 'anonymous function')} of Julia, which BSON.jl defines when it "
            "loads the file; here nothing was run"
        )
    if walk.tags:
        yield f"has documents with tags that BSON.jl does not know, kept as dicts: {some(sorted(walk.tags), 5)}"


@dataclass
class _JuliaFile:
    """What all walks over a file have in common."""

    where: str
    bytes_of: Callable[[Binary], bytes]
    backrefs: BsonArray
    nbytes: int
    storages: dict[Binary, int] = field(default_factory=dict)
    """{the bytes of an array: its number}."""


class JuliaType(NamedTuple):
    """A type by its name, and its parameters."""

    name: str
    params: tuple[Value, ...] = ()


class _Tensor(NamedTuple):
    """An array of numbers at one of its places."""

    path: Path
    view: View
    role: str
    """Empty where only the name says it."""


@dataclass
class _JuliaWalk:
    """One walk over the values of a file.  Work and names are bounded: a place can repeat the value of another."""

    file: _JuliaFile
    owners: Mapping[Binary, str] = field(default_factory=dict)
    """{array: its name outside of optimizers}."""
    names: Iterator[str] | None = None
    """Names to use instead of plain ones, in order."""
    tensors: list[_Tensor] = field(default_factory=list)
    outside: dict[Binary, Path] = field(default_factory=dict)
    """{array: its first place that is not below a dict whose keys are arrays}."""
    is_keyed: bool = False
    """Whether there is such a dict."""
    shapes: dict[str, Shape] = field(default_factory=dict)
    modules: list[Module] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    functions: int = 0
    tags: set[str] = field(default_factory=set)
    _open: dict[int, Path] = field(default_factory=dict)
    """{back-reference that is being followed: its first place}."""
    _levels: int = 0
    _places: int = 0
    _characters: int = 0
    _keyed: int = 0
    """The dicts around this place whose keys are arrays."""
    _role: str = ""

    # --- any value ------------------------------------------------------------------------------------------------

    def node(self, value: Value, path: Path) -> Node:
        """The node of a value, and of everything in it."""
        self._count(1, len(value) if isinstance(value, (str, bytes)) else 0)
        self._levels += 1
        if self._levels > MAX_DEPTH:
            raise UnsafeError(
                f"{self.file.where}: {unescaped_name(path)[:60]!r}...: nested deeper than {MAX_DEPTH} levels"
            )
        match value:
            case Binary():
                made: Node = self._tensor(path, value, "uint8", (value.nbytes,))
            case BsonArray():
                made = Sequence("list", self._items(value, path))
            case Document():
                made = self._document(value, path)
            case _:
                made = Leaf(value)
        self._levels -= 1
        return made

    def _items(self, row: list[Value], path: Path) -> tuple[Node, ...]:
        """The nodes of values in order, called by their positions."""
        found = []
        for k, item in enumerate(row):  # a loop: a generator would take a frame of the stack for each level
            found.append(self.node(item, (*path, str(k + 1))))
        return tuple(found)

    def _document(self, value: Document, path: Path) -> Node:
        tag = value.get("tag")
        reader = _TAGS.get(tag) if isinstance(tag, str) else None
        if reader is not None:
            return reader(self, value, path)
        if isinstance(tag, str) and "data" in value:
            self.tags.add(tag)
        pairs: list[tuple[Key, Node]] = []
        for key, child in value.items():
            pairs.append((key, self.node(child, (*path, key))))
        return objects.Mapping("dict", tuple(pairs))

    def _backref(self, value: Document, path: Path) -> Node:
        """What a back-reference refers to, expanded at this place too."""
        number, target = self._target(value)
        if number in self._open:
            return Again(unescaped_name(self._open[number]))
        self._open[number] = path
        made = self.node(target, path)
        del self._open[number]
        return replace(made, mark=number) if isinstance(made, (Sequence, objects.Mapping, Opaque)) else made

    def _target(self, value: Document) -> tuple[int, Value]:
        """(number of a back-reference, what it refers to)."""
        number = self._member(value, "ref", int)
        if not 1 <= number <= len(self.file.backrefs):
            self._fail(value, f"the back-reference {number}", f"1 to {len(self.file.backrefs)}")
        return number, self.file.backrefs[number - 1]

    # --- arrays ---------------------------------------------------------------------------------------------------

    def _array(self, value: Document, path: Path) -> Node:
        kind = self._type(value)
        sizes = [
            size for size in self._member(value, "size", BsonArray) if type(size) is int and 0 <= size <= MAX_EXTENT
        ]
        if len(sizes) != len(value["size"]) or len(sizes) > MAX_AXES or prod(sizes) > MAX_EXTENT:  # type: ignore[arg-type]
            self._fail(value, f"the size {list(value['size'])!r:.100}", f"up to {MAX_AXES} lengths")  # type: ignore[arg-type]
        data = value.get("data")
        if isinstance(data, Document):
            data = self._resolved(data)
        dtype = self._dtype(kind)
        if isinstance(data, Binary) and dtype:
            nbytes = DTYPES[dtype].nbytes(prod(sizes))
            if data.nbytes != nbytes:
                self._fail(value, f"{data.nbytes} bytes of data", f"{nbytes} for {kind.name} {sizes}")
            return self._tensor(path, data, dtype, tuple(sizes))
        size = Sequence("tuple", tuple(map(Leaf, sizes)))
        parts: list[tuple[str, Node]] = [("type", Leaf(kind.name)), ("size", size)]
        if isinstance(data, BsonArray) and not dtype:
            if len(data) != prod(sizes):
                self._fail(value, plural(data, "element"), f"{prod(sizes)} for the size {sizes}")
            return Opaque("Core.Array", (*parts, ("items", Sequence("list", self._items(data, path)))))
        if not isinstance(data, Binary):
            self._fail(value, f"{_word(data)} as the data of an array of {kind.name}", "binary data, or a row")
        self.left.append(unescaped_name(path))
        self._count(0, len(self.left[-1]))
        what = f"an array of {kind.name:.100} {sizes}: {data.nbytes} bytes"
        return Opaque("Core.Array", (*parts, ("data", stub(what))))

    def _dtype(self, kind: JuliaType) -> str:
        """The element type of Julia's numbers; empty for any other type."""
        if kind.name == "Base.Complex" and len(kind.params) == 1 and isinstance(kind.params[0], Document):
            return _types.COMPLEX.get(self._named(kind.params[0]).name, "")
        return _types.NUMBERS.get(kind.name, "")

    def _content(self, value: Value) -> tuple[Value, str, Value]:
        """What a value refers to, the type of its elements, and its data: of an array, or of plain bytes."""
        value = self._resolved(value)
        if isinstance(value, Document) and value.get("tag") == "array":
            return value, self._dtype(self._type(value)), value.get("data")
        return value, "uint8", value

    def _tensor(self, path: Path, place: Binary, dtype: str, shape: Shape) -> TensorRef:
        """A tensor at one of its places: column by column, as Julia stores arrays."""
        number = self.file.storages.setdefault(place, len(self.file.storages))
        strides = tuple(accumulate((1, *shape[:-1]), mul)) if shape else ()
        return self._placed(path, place, View(number, DTYPES[dtype], 0, shape, strides))

    def _placed(self, path: Path, place: Binary, view: View) -> TensorRef:
        self.tensors.append(_Tensor(path, view, self._role))
        self._count(0, sum(map(len, path)) + 8 * len(path))  # a path has a pointer for each part
        if not self._keyed:
            self.outside.setdefault(place, path)
        name = next(self.names) if self.names is not None else unescaped_name(path)
        self.shapes[name] = view.shape
        return TensorRef(name)

    # --- structs --------------------------------------------------------------------------------------------------

    def _struct(self, value: Document, path: Path) -> Node:
        kind = self._type(value)
        data = value.get("data")
        if isinstance(data, Document):
            data = self._resolved(data)
        if isinstance(data, Binary):
            # A number, or the bytes of another primitive type
            code = _types.CODES.get(_types.NUMBERS.get(kind.name, ""), "")
            if code and Struct(f"<{code}").size == data.nbytes:
                return Leaf(Struct(f"<{code}").unpack(self.file.bytes_of(data))[0])
            self._count(0, len(kind.name))
            if data.nbytes <= MAX_PRIMITIVE_NBYTES:
                return Opaque(kind.name, (("data", Leaf(self.file.bytes_of(data))),))
            return Opaque(kind.name, (("data", stub(f"a value of {kind.name:.100}: {data.nbytes} bytes")),))
        if not isinstance(data, BsonArray):
            self._fail(value, f"{_word(data)} as the data of a struct {kind.name}", "a row of fields, or binary data")
        if kind.name in _types.DICTS:
            return self._dict(kind, value, data, path)
        if kind.name in _types.TURNED and len(data) == 1 and (made := self._turned(data[0], path)):
            return made
        role, is_tracked = self._role, kind.name in _types.TRACKED
        is_training = is_tracked or kind.name.startswith(_types.OPTIMIZERS)
        parts: list[tuple[str, Node]] = []
        for label, child in zip(self._labels(kind, value, len(data)), data, strict=True):
            is_array = is_tracked and label == "data"
            self._role = "optimizer" if is_training and not is_array else role
            parts.append((label, self.node(child, path if is_array else (*path, label))))
        self._role = role
        self._count(0, len(kind.name) + sum(len(label) for label, _ in parts))
        if module := _types.cell(kind.name, parts, unescaped_name(path), self.shapes):
            self.modules.append(module)
        return Opaque(kind.name, tuple(parts))

    def _labels(self, kind: JuliaType, value: Document, count: int) -> tuple[str, ...]:
        """The names of a struct's fields."""
        if kind.name != _types.NAMED_TUPLE:
            return _types.fields(kind.name, count)
        names = self._resolved(kind.params[0]) if kind.params else None
        if isinstance(names, Document) and names.get("tag") == "tuple":
            found = [self._symbol_name(each) for each in self._member(names, "data", BsonArray)]
            if len(found) == count == len(set(found)):
                return tuple(found)
        return self._fail(value, f"a named tuple of {plural(count, 'value')} without their names", "a name for each")

    def _turned(self, inner: Value, path: Path) -> Node | None:
        """The transpose of a matrix, as a view of the matrix's own bytes; None if it is of something else.

        The adjoint of complex numbers has other values than the matrix.
        """
        before = len(self.tensors)
        inner, dtype, data = self._content(inner)
        if not isinstance(inner, Document) or not dtype or dtype.startswith("complex") or not isinstance(data, Binary):
            return None
        outside = data in self.outside
        made = self._array(inner, path)
        found = self.tensors[before]
        view = found.view
        shape = (view.shape[1], view.shape[0]) if len(view.shape) == 2 else (1, *view.shape)
        strides = (view.strides[1], view.strides[0]) if len(view.shape) == 2 else (1, *view.strides)
        if len(view.shape) not in (1, 2):
            self._fail(inner, f"the transpose of an array of {len(view.shape)} axes", "a matrix or a vector")
        self.tensors[before] = found._replace(view=view.with_axes(shape, strides, 0))
        if not outside:  # the name of the matrix itself comes first
            self.outside.pop(data, None)
        return made

    # --- dicts ----------------------------------------------------------------------------------------------------

    def _dict(self, kind: JuliaType, value: Document, data: BsonArray, path: Path) -> Node:
        """A dict, written as its keys and its values."""
        rows = [self._numbers(each) for each in data]
        if len(rows) != 2:
            self._fail(value, f"{plural(len(rows), 'row')} as the data of a {kind.name}", "its keys and its values")
        keys, values = rows
        if keys is None or values is None:  # long arrays, or arrays of something else than numbers
            labels = ("keys", "values")
            return Opaque(kind.name, tuple((k, self.node(x, (*path, k))) for k, x in zip(labels, data, strict=True)))
        if len(keys) != len(values):
            found = f"a {kind.name} of {plural(len(keys), 'key')} and {plural(len(values), 'value')}"
            self._fail(value, found, "a value for each key")
        pairs: list[tuple[Key, Node]] = []
        for k, key in enumerate(keys):
            _, dtype, held = self._content(key)
            place = held if isinstance(held, Binary) and dtype else None  # where an array of numbers is
            self.is_keyed |= place is not None
            self._keyed += place is not None
            part, kept = self._key(key, place, path, k)
            self._count(0, len(part))
            pairs.append((kept, self.node(values[k], (*path, part))))
            self._keyed -= place is not None
        return objects.Mapping("dict" if kind.name == "Base.Dict" else kind.name, tuple(pairs))

    def _key(self, key: Value, place: Binary | None, path: Path, number: int) -> tuple[str, Key]:
        """A key as a part of names, and as it is kept.

        An array with a name elsewhere is kept as that name; any other is a tensor of its own, `@1`.
        """
        if place is not None and (owner := self.owners.get(place)) is not None:
            return owner, owner
        if isinstance(key, Document) and key.get("tag") == "symbol":
            key = self._symbol_name(key)
        if isinstance(key, (str, bytes, int, float, type(None))):
            return str(key), key
        part = f"@{number + 1}"
        node = self.node(key, (*path, part))
        if isinstance(node, TensorRef):
            return part, node
        kept = node if isinstance(node, (Sequence, Opaque)) else Opaque(type(node).__name__, ())
        return word(kept), kept

    def _numbers(self, value: Value) -> list[Value] | None:
        """The elements of a row, or of a short array of numbers; None if it is neither."""
        _, dtype, data = self._content(value)
        if isinstance(data, BsonArray):
            return data
        code = _types.CODES.get(dtype)
        if not isinstance(data, Binary) or code is None or data.nbytes > MAX_NUMBERS * DTYPES[dtype].block_bytes:
            return None
        count, rest = divmod(data.nbytes, DTYPES[dtype].block_bytes)
        return None if rest else list(Struct(f"<{count}{code}").unpack(self.file.bytes_of(data)))

    # --- other tags -----------------------------------------------------------------------------------------------

    def _tuple(self, value: Document, path: Path) -> Node:
        kind = "tuple" if value["tag"] == "tuple" else "Core.SimpleVector"
        return Sequence(kind, self._items(self._member(value, "data", BsonArray), path))

    def _called(self, kind: str, name: str) -> Node:
        """An object that is only a name."""
        self._count(0, len(name))
        return Opaque(kind, (("name", Leaf(name)),))

    def _symbol(self, value: Document, path: Path) -> Node:
        return self._called("Core.Symbol", self._symbol_name(value))

    def _symbol_name(self, value: Value) -> str:
        value = self._resolved(value)
        if not isinstance(value, Document) or value.get("tag") != "symbol":
            raise FormatError(f"{self.file.where}: {_place(value)}found {_word(value)} as a name; expected a symbol")
        return self._member(value, "name", str)

    def _a_type(self, value: Document, path: Path) -> Node:
        """A type that is a value itself."""
        return self._called("Core.DataType", self._named(value).name)

    def _module(self, value: Document, path: Path) -> Node:
        return self._called("Core.Module", self._dotted(value, "path"))

    # --- types ----------------------------------------------------------------------------------------------------

    def _type(self, value: Document) -> JuliaType:
        """The type of an array's elements, or of a struct."""
        return self._named(self._member(value, "type", Document))

    def _named(self, value: Value) -> JuliaType:
        """The name of a type."""
        kind = self._resolved(value)
        for _ in range(MAX_DEPTH):
            tag = kind.get("tag") if isinstance(kind, Document) else None
            if not isinstance(kind, Document) or tag != "unionall":
                break
            kind = self._resolved(kind.get("body"))
        if isinstance(kind, Document):
            if tag == "datatype":
                return JuliaType(self._dotted(kind, "name"), tuple(self._member(kind, "params", BsonArray)))
            if tag == "jl_anonymous":
                self.functions += 1
                return JuliaType("an anonymous function")
            if tag == "jl_bottom_type":
                return JuliaType("Union{}")
            if tag == "struct":  # a union, or a variable
                return JuliaType("Core.Type")
        raise FormatError(f"{self.file.where}: {_place(kind)}found {_word(kind)} as a type; expected a datatype")

    def _dotted(self, value: Document, member: str) -> str:
        """The path of a module or of a type; in some versions of Julia, Main has other modules inside it."""
        parts = [part for part in self._member(value, member, BsonArray) if isinstance(part, str)]
        if not parts or len(parts) != len(self._member(value, member, BsonArray)):
            self._fail(value, f"{list(value[member])!r:.100} as a {member}", "names")  # type: ignore[arg-type]
        return ".".join(parts[1:] if parts[0] == "Main" and parts[1:2] and parts[1] in _types.ROOTS else parts)

    # --- checks ---------------------------------------------------------------------------------------------------

    def _resolved(self, value: Value) -> Value:
        """What a value refers to; FormatError if that is only itself."""
        seen: set[int] = set()
        while isinstance(value, Document) and value.get("tag") == "backref":
            number, target = self._target(value)
            if number in seen:
                self._fail(value, "a back-reference to itself", "an object")
            seen.add(number)
            value = target
        return value

    def _member(self, value: Document, name: str, kind: type[T]) -> T:
        """A member of a document; FormatError if it is of another kind."""
        found = value.get(name)
        if kind in (BsonArray, Document) and isinstance(found, Document):
            found = self._resolved(found)
        if not isinstance(found, kind) or isinstance(found, bool):
            tag = value.get("tag")
            self._fail(value, f"{_word(found)} as {name!r} of a {tag!r:.40}", _WORDS[kind])
        return found

    def _fail(self, value: Document, found: str, expected: str) -> NoReturn:
        raise FormatError(f"{self.file.where}: {_place(value)}found {found}; expected {expected}")

    def _count(self, places: int, characters: int) -> None:
        """UnsafeError if back-references unfold to much more than the file holds."""
        self._places += places
        self._characters += characters
        bounds = Bounds.of(self.file.nbytes)
        bounds.refuse(self.file.where, self._places, len(self.tensors), self._characters)


_WORDS: Mapping[type, str] = {int: "a whole number", str: "a string", BsonArray: "a row", Document: "a document"}


def _place(value: object) -> str:
    """Where a document is, for the beginning of a message; other values have no place of their own."""
    return f"the document at byte {value.at}: " if isinstance(value, (Document, BsonArray)) else ""


def _word(value: object) -> str:
    """What a value is, for messages."""
    match value:
        case Document():
            return f"a document with the tag {value['tag']!r:.40}" if "tag" in value else "a document"
        case BsonArray():
            return f"a row of {plural(len(value), 'value')}"
        case Binary():
            return "binary data"
        case None:
            return "nothing"
    return f"{value!r:.60}"


_TAGS: Mapping[str, Callable[[_JuliaWalk, Document, Path], Node]] = {
    "array": _JuliaWalk._array,
    "struct": _JuliaWalk._struct,
    "backref": _JuliaWalk._backref,
    "tuple": _JuliaWalk._tuple,
    "svec": _JuliaWalk._tuple,
    "symbol": _JuliaWalk._symbol,
    "datatype": _JuliaWalk._a_type,
    "unionall": _JuliaWalk._a_type,
    "jl_anonymous": _JuliaWalk._a_type,
    "jl_bottom_type": _JuliaWalk._a_type,
    "ref": _JuliaWalk._module,
}
"""{tag: its reader}.  BSON.jl takes a document with any other tag as a dict."""
