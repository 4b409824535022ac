"""Flax's `.msgpack`: a tree of dicts, and in it arrays, each with its shape, its element type and its bytes.

    map        {"params": {"Dense_0": {"kernel": EXT, "bias": EXT}}, "step": 100}
    EXT 1      an array: a msgpack value again, [[sizes], "float32", bytes], row by row, little-endian
    EXT 3      a NumPy scalar, packed alike;  EXT 2  a complex number, [real, imaginary]
    above 1 GiB    {"__msgpack_chunked_array__": true, "shape": {"0": ...}, "chunks": {"0": EXT 1, ...}}

A tensor is called by the keys that lead to it, joined by `/`, as flax joins them itself
(`flax.traverse_util.flatten_dict(tree, sep="/")`).  The file shares nothing: every array has bytes of its own.

The bytes of arrays are skipped.  Everything else becomes the tree of objects, if there is anything beside dicts of
arrays, or an optimizer's state.

Sources: flax/serialization.py (0.12.8); msgpack's specification.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import BinaryIO, NamedTuple

from paramtool.errors import Defects, FormatError, UnsafeError
from paramtool.formats import object_tree
from paramtool.formats.files import open_source
from paramtool.formats.msgpack import codes
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint, Entry, Section, Unreadable, Value
from paramtool.model.dtype import DTYPES
from paramtool.model.objects import EMPTY, Leaf, Mapping, Node, Path, Sequence, TensorRef, stub
from paramtool.model.storage import ByteRange, Encoded, SourceFile, Storage
from paramtool.model.view import MAX_AXES, MAX_EXTENT, Shape, View, contiguous

NAME = "msgpack"
SEPARATOR = "/"
MAX_DEPTH = objects.MAX_DEPTH
MAX_VALUES = 2_000_000
"""The most values of a file: keys, numbers, arrays."""
MAX_TEXT_NBYTES = 64 << 20
"""The most bytes of strings and other values that are kept."""
MAX_NAMES_NBYTES = 256 << 20
"""The most characters of all names: every tensor has the keys that lead to it in its own."""
MAX_BYTES_NBYTES = object_tree.MAX_ARRAY_NBYTES
"""Longer byte strings beside the arrays are left out."""
BUFFERS = "batch_stats"
"""The collection of flax's BatchNorm: running statistics."""


def read(path: str) -> Checkpoint:
    """Describe a file of flax's; FormatError if it is damaged, UnsafeError if it is too large to describe."""
    file, source = open_source(path)
    with file:
        walker = _Walker(file, source)
        try:
            tree = walker.value((), 0)
        except ValueError as error:
            raise FormatError(f"{path}: byte {walker.start}: {error}") from None
        if walker.at < source.nbytes:
            left = source.nbytes - walker.at
            raise FormatError(f"{path}: {left} bytes follow the tree at byte {walker.at}; expected the end of the file")
    if not isinstance(tree, (Mapping, TensorRef)):
        raise FormatError(f"{path}: byte 0: found a {type(tree).__name__}; expected a dict of arrays, or an array")
    if walker.defects:
        raise Defects(path, walker.defects)
    roles = object_tree.roles(tree)
    entries = {name: Entry(value, _role(name, roles.get(name, "model"))) for name, value in walker.values.items()}
    is_plain = not walker.others and {entry.role for entry in entries.values()} <= {"model", "buffer"}
    return Checkpoint(
        format=NAME,
        files=(source,),
        storages=walker.storages,
        entries=entries,
        objects=EMPTY if is_plain else tree,
        sections=() if is_plain else tuple(_sections(tree)),
        producer="flax" if entries else "",
        left_out=tuple(walker.left_out),
    )


def _role(name: str, role: str) -> str:
    return "buffer" if role == "model" and BUFFERS in name.split(SEPARATOR)[:-1] else role


def _sections(tree: Node) -> Iterator[Section]:
    """The keys at the top that hold nothing but named tensors below them."""
    if isinstance(tree, Mapping):
        for key, child in tree.items:
            word = objects.word(key)
            if isinstance(child, Mapping) and any(objects.tensor_names(child)):
                yield Section(word, f"{word}{SEPARATOR}", object_tree.role_of(word, "model"))


class _PackedArray(NamedTuple):
    """An array as it is packed: where its bytes are."""

    dtype: str
    shape: Shape
    start: int
    stop: int


@dataclass
class _Walker:
    """A position in the file, and what was found up to there."""

    file: BinaryIO
    source: SourceFile
    at: int = 0
    start: int = 0
    """Where the value begins that is being read."""
    count: int = 0
    text_nbytes: int = 0
    names_nbytes: int = 0
    others: bool = False
    """Whether there is anything that names of tensors do not tell."""
    values: dict[str, Value] = field(default_factory=dict)
    storages: dict[int, Storage] = field(default_factory=dict)
    packed: dict[str, _PackedArray] = field(default_factory=dict)
    defects: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def value(self, path: Path, depth: int) -> Node:
        """The value at this position; ValueError if it is invalid."""
        self.start = self.at
        self.count += 1
        if self.count > MAX_VALUES:
            raise UnsafeError(f"{self.source.path}: byte {self.at}: more than {MAX_VALUES:,} values")
        if depth > MAX_DEPTH:
            raise UnsafeError(f"{self.source.path}: byte {self.at}: nested more than {MAX_DEPTH} deep")
        kind, held = self.head()
        match kind:
            case "map":
                return self.mapping(path, depth, held)
            case "array":
                self.others = True
                items = [self.value((*path, str(k)), depth + 1) for k in self.countdown(held, 1)]
                return Sequence("list", tuple(items))
            case "ext":
                return self.extension(path, held)
            case "str":
                self.others = True
                return Leaf(self.text(held))
            case "bin":
                self.others = True
                # A byte string beside the arrays: kept, if it is short
                if held <= MAX_BYTES_NBYTES:
                    self.keep(held)
                    return Leaf(self.take(held))
                self.skip(held)
                return stub(f"{held} bytes")
        self.others = True
        return Leaf(self.number(held))

    def head(self) -> tuple[str, int]:
        """(what follows, its length), or for a number ("", its first byte)."""
        return codes.began(self.take)

    def number(self, first: int) -> bool | int | float | None:
        """A number, None, True or False, from its first byte."""
        if first in codes.CONSTANTS:
            return codes.CONSTANTS[first]
        if first in codes.NUMBERS:
            form = codes.NUMBERS[first]
            found: int | float = form.unpack(self.take(form.size))[0]
            return found
        return first - 256 if first >= 0xE0 else first

    def mapping(self, path: Path, depth: int, count: int) -> Node:
        """A dict; an array, if it is one in pieces."""
        items: dict[objects.Key, Node] = {}
        before = self.others
        for _ in self.countdown(count, 2):
            key = self.key()
            if key in items:
                raise ValueError(f"the key {key!r:.100} is there twice; expected each key once")
            items[key] = self.value((*path, objects.word(key)), depth + 1)
        if codes.CHUNKED in items:
            self.others = before
            return self.chunked(path, items)
        self.others |= not items
        return Mapping("dict", tuple(items.items()))

    def key(self) -> objects.Key:
        """A key: text, or a whole number."""
        self.start = self.at
        kind, held = self.head()
        if kind == "str":
            return self.text(held)
        if not kind and type(key := self.number(held)) is int:
            self.others = True
            return key
        raise ValueError(f"found a key of another kind ({kind or 'a constant'}); expected text or a whole number")

    def countdown(self, count: int, each: int) -> range:
        """The numbers up to `count`; ValueError if that many values, of `each` bytes at least, cannot follow."""
        if count * each > self.left:
            raise ValueError(f"found {count} items, but {self.left} bytes follow: the file is truncated")
        return range(count)

    def extension(self, path: Path, nbytes: int) -> Node:
        """A value of flax's own types."""
        (kind,) = self.take(1)
        stop = self.at + nbytes
        if nbytes > self.left:
            raise ValueError(f"has {nbytes} bytes, {self.left} are left: the file is truncated")
        if kind in (codes.NDARRAY, codes.SCALAR):
            name = self.name(path)
            packed = self.packed[name] = self.array(stop)
            self.values[name] = self.stored(packed)
            return TensorRef(name)
        self.others = True
        if kind == codes.COMPLEX:
            real, imaginary = self.parts(stop, 2)
            return Leaf(complex(real, imaginary))
        self.skip(nbytes)
        self.left_out.append(f"{SEPARATOR.join(path)!r:.200}: is of the extension type {kind}, and was left out")
        return stub(f"{nbytes} bytes of the extension type {kind}")

    def name(self, path: Path) -> str:
        """What a tensor is called; a defect, if another is called so."""
        self.names_nbytes += sum(map(len, path)) + len(path)
        if self.names_nbytes > MAX_NAMES_NBYTES:
            raise UnsafeError(f"{self.source.path}: byte {self.at}: more than {MAX_NAMES_NBYTES:,} characters of names")
        name = SEPARATOR.join(path)
        if name in self.values:
            self.defects.append(f"{name!r:.200}: two arrays are called so; expected each name once")
        return name

    def array(self, stop: int) -> _PackedArray:
        """An array: [[sizes], dtype, bytes], which fill the extension."""
        kind, count = self.head()
        if (kind, count) != ("array", 3):
            raise ValueError("an array begins with another value; expected a list of shape, dtype and bytes")
        kind, axes = self.head()
        if kind != "array" or axes > MAX_AXES:
            raise ValueError(
                f"the shape of an array is {kind or 'a number'} of {axes}; expected up to {MAX_AXES} sizes"
            )
        shape = tuple(self.whole() for _ in range(axes))
        kind, nbytes = self.head()
        if kind not in ("str", "bin"):
            raise ValueError("the element type of an array is no text")
        dtype = self.text(nbytes)
        kind, nbytes = self.head()
        if kind not in ("bin", "str") or self.at + nbytes != stop:
            raise ValueError(f"the bytes of an array end at {self.at + nbytes}; expected {stop}, where it ends")
        start = self.at
        self.skip(nbytes)
        return _PackedArray(dtype, shape, start, stop)

    def stored(self, packed: _PackedArray) -> Value:
        """What an array is: a view of its bytes, or the reason why it has no form here."""
        dtype = DTYPES.get(packed.dtype)
        if dtype is None or dtype.block_elements > 1:
            return Unreadable(f"an element type {packed.dtype!r:.60}")
        found, nbytes = packed.stop - packed.start, dtype.nbytes(prod(packed.shape))
        if found != nbytes:
            raise ValueError(f"{dtype.name} {list(packed.shape)} needs {nbytes} bytes; found {found}")
        number = len(self.storages)
        self.storages[number] = Storage(number, found, ByteRange(self.source.path, packed.start, packed.stop))
        return contiguous(number, dtype, packed.shape)

    def chunked(self, path: Path, items: dict[objects.Key, Node]) -> Node:
        """An array in pieces, as one storage; ValueError if they do not make its shape."""
        sizes = _numbered(items.get("shape"))
        parts = _numbered(items.get("chunks"))
        shape = tuple(one.value for one in sizes if isinstance(one, Leaf) and type(one.value) is int)
        names = [one.name for one in parts if isinstance(one, TensorRef)]
        where = f"{SEPARATOR.join(path)!r:.200}"
        known = len(shape) == len(sizes) and len(names) == len(parts) and names and {*names} <= {*self.packed}
        if len(items) != 3 or items[codes.CHUNKED] != Leaf(True) or not known:
            raise ValueError(f"{where}: an array in pieces needs a shape and arrays in order")
        if min(shape, default=0) < 0 or prod(size for size in shape if size) > MAX_EXTENT or len(shape) > MAX_AXES:
            raise ValueError(f"{where}: its shape is {shape!r:.100}")
        views = [self.values.pop(name) for name in names]
        packed = [self.packed.pop(name) for name in names]
        if len({(one.dtype, one.shape[1:]) for one in packed}) > 1 or not all(one.shape for one in packed):
            raise ValueError(f"{where}: its pieces have several types, or rows of several shapes")
        first = views[0]
        if not isinstance(first, View):
            self.values[name := self.name(path)] = first
            return TensorRef(name)
        nbytes = sum(one.stop - one.start for one in packed)
        if nbytes != first.dtype.nbytes(prod(shape)):
            raise ValueError(f"{where}: its pieces have {nbytes} bytes, not those of {list(shape)}")
        numbers = [int(view.storage) for view in views if isinstance(view, View)]
        for number in numbers:
            del self.storages[number]
        start = min(one.start for one in packed)
        kept = ",".join(f"{one.start - start}-{one.stop - start}" for one in packed)
        number = min(numbers)
        backing = Encoded(ByteRange(self.source.path, start, max(one.stop for one in packed)), (f"keep:{kept}",))
        self.storages[number] = Storage(number, nbytes, backing)
        name = self.name(path)
        self.values[name] = contiguous(number, first.dtype, shape)
        return TensorRef(name)

    def parts(self, stop: int, count: int) -> list[float]:
        """A list of `count` numbers, which fill the extension up to `stop`."""
        if self.head() != ("array", count):
            raise ValueError(f"a complex number is no list of {count} numbers")
        found = []
        for _ in range(count):
            kind, first = self.head()
            number = self.number(first) if not kind else None
            if not isinstance(number, (int, float)):
                raise ValueError("a part of a complex number is no number")
            found.append(float(number))
        if self.at != stop:
            raise ValueError(f"a complex number ends at byte {self.at}; expected {stop}")
        return found

    def whole(self) -> int:
        """A size."""
        kind, first = self.head()
        found = self.number(first) if not kind else None
        if type(found) is not int or not 0 <= found <= MAX_EXTENT:
            raise ValueError(f"a size of an array is {found!r:.40}; expected a whole number from 0 on")
        return found

    def text(self, nbytes: int) -> str:
        """The string of `nbytes` bytes from here on."""
        self.keep(nbytes)
        raw = self.take(nbytes)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{raw!r:.100} is not UTF-8") from None

    def keep(self, nbytes: int) -> None:
        """Count what is kept of strings and bytes."""
        self.text_nbytes += nbytes
        if self.text_nbytes > MAX_TEXT_NBYTES:
            raise UnsafeError(f"{self.source.path}: byte {self.at}: more than {MAX_TEXT_NBYTES:,} bytes of text")

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self.source.nbytes - self.at

    def skip(self, nbytes: int) -> None:
        """Skip `nbytes` bytes; ValueError if the file ends before."""
        if nbytes > self.left:
            raise ValueError(f"has {nbytes} bytes, {self.left} are left: the file is truncated")
        self.at += nbytes
        self.file.seek(self.at)

    def take(self, nbytes: int) -> bytes:
        """The next bytes; ValueError if the file ends before."""
        raw = self.file.read(nbytes) if nbytes <= self.left else b""
        if len(raw) < nbytes:
            raise ValueError(f"needs {nbytes} bytes at byte {self.at}, {self.left} are left: the file is truncated")
        self.at += nbytes
        return raw


def _numbered(node: Node | None) -> list[Node]:
    """The values of a dict with the keys "0", "1", ... in this order; ValueError if it is none."""
    if not isinstance(node, Mapping) or {key for key, _ in node.items} != {str(k) for k in range(len(node.items))}:
        raise ValueError("an array in pieces has no numbered shape and chunks")
    found = dict(node.items)
    return [found[str(k)] for k in range(len(found))]
