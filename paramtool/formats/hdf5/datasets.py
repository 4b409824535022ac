"""HDF5 files as lists of datasets, each with the position of its bytes.

    contiguous      a range of the file, as it is
    compact         a few bytes inside the dataset's own header
    chunked         chunks that may be compressed: decoded by the engine, through h5py, when they are needed

h5py reads the file, and libhdf5 may loop or crash on a damaged one: both run in a separate process (`_worker.py`).
Its answer is plain data and trusted no more than the file: all checks are done here.

A file is refused if it refers to other files (external links, external storage, virtual datasets), if its groups are
not a tree (soft links, groups that contain themselves), or if it needs filters that are not built into HDF5: those are
code that is searched for on the disk.  Two hard links to one dataset are two names of one storage.

An HDF5 file may be inside another file (a stored member of a zip): positions are then those in the outer file.

Source: the HDF5 file format specification, version 3.0; h5py's low-level interface.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, BinaryIO

from paramtool.errors import FormatError, UnsafeError
from paramtool.formats import sandbox
from paramtool.model.checkpoint import Unreadable, Value
from paramtool.model.dtype import DTYPES
from paramtool.model.storage import Backing, ByteRange, Encoded, Inline, Storage, overlapping
from paramtool.model.view import MAX_EXTENT, Shape, contiguous

STEP = "hdf5:"
"""A decoding step: `hdf5:PATH` is the dataset at PATH of the HDF5 file that the range holds."""
INSIDE = "only data inside the file itself is read"
WORKER = "paramtool.formats.hdf5._worker"
UNSOUND = "not a valid HDF5 file"
AGAIN = "download the file again"
MAX_ATTRIBUTE_NBYTES = 64 << 20
MAX_STRUCT_NBYTES = 1 << 20
MAX_REFERENCES = 1 << 16
"""The most references in one array."""
MAX_OBJECTS = 200_000
MAX_REPEATED = 1000
"""The most repeated visits of groups by other paths: thirty groups can have a thousand million paths."""
MAX_DEPTH = 64
MAX_RATIO = 1100
"""The largest compression ratio; deflate has at most 1032."""
FREE_NBYTES = 16 << 20
"""The size up to which datasets may have any ratio, and chunks may be larger than their dataset."""
MAX_COMPACT_NBYTES = 16 << 20
"""The most bytes of all compact datasets of a file; a single one has at most 64 KiB."""
MAX_DESCRIPTION_NBYTES = 1 << 29
"""The largest description of one file."""
FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
"""{number: filter} of HDF5's and h5py's built-in filters; szip, nbit and scaleoffset are not used for weights."""
DESCRIBED_PER_SECOND = 1 << 18
"""Bytes of a file of the smallest objects that a slow machine describes in a second of processor time."""
MAX_DESCRIBED_NBYTES = 1 << 27
"""No description takes longer for a larger file: the number of objects is limited."""
DECODED_PER_SECOND = 4_000_000
"""Bytes of chunks that a slow machine decodes in a second; a fast one decodes 150,000,000."""
PART_NBYTES = 32 << 20
"""The bytes of a dataset that are decoded at once."""
MEMORY_NBYTES = 1 << 30
"""The memory of a worker."""


@dataclass(frozen=True, slots=True)
class Hdf5Group:
    """A group, with those string attributes that were asked for."""

    address: int
    links: Mapping[str, object]
    """{name: the address of an object, or a description of another kind of link}, in the group's own order."""
    strings: Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset."""

    address: int
    shape: Shape | None
    """None for HDF5's null space, which holds nothing and has no shape."""
    type: str
    """The element type; empty if paramtool does not have it."""
    unit: int
    """The number of bytes to byte-swap together, for big-endian data."""
    described: str
    """The type as NumPy shows it."""
    is_string: bool
    is_number: bool
    layout: str
    """`contiguous`, `compact` or `chunked`."""
    stored_nbytes: int
    offset: int | None = None
    """For a contiguous dataset; None if no data was ever written."""
    filters: Sequence[tuple[int, str]] = ()
    """For a chunked dataset, by number and name."""
    chunk_nbytes: int = 0
    data: bytes | None = None
    """For a compact dataset, little-endian."""
    struct: Sequence[tuple[str, object]] | None = None
    """The fields of one struct: an address or None for a reference, fields again, or OTHER."""
    references: Sequence[int | None] | None = None
    """An array of references."""


ELSEWHERE = "has its data in other files"
OTHER = "other"
"""A field that is neither a reference nor a struct."""


class File:
    """The objects of an HDF5 file, by address."""

    def __init__(self, where: str, objects: Mapping[int, Hdf5Group | Dataset | str | None], root: int) -> None:
        self.where = where
        self._objects = objects
        self._root = root

    @property
    def root(self) -> Hdf5Group:
        """The group that holds all others."""
        root = self.object(self._root)
        assert isinstance(root, Hdf5Group)
        return root

    def object(self, address: object) -> Hdf5Group | Dataset | None:
        """The object at an address, None if it is neither group nor dataset; FormatError if it is damaged."""
        found = self._objects.get(address, "is missing") if isinstance(address, int) else "has no address"
        if isinstance(found, str):
            raise FormatError(f"{self.where}: {UNSOUND}: {found:.300}", AGAIN)
        return found


def read(file: BinaryIO, place: ByteRange, strings: Sequence[str], *, values: bool = False) -> File:
    """The objects of the HDF5 file in a range of an open file; FormatError if it cannot be read.

    `strings` names the attributes of groups to read; with `values`, structs and references are read, too.
    """
    asked: dict[str, object] = {"strings": list(strings), "values": values}
    seconds = 1 + -(-min(place.nbytes, MAX_DESCRIBED_NBYTES) // DESCRIBED_PER_SECOND)
    objects: dict[int, Hdf5Group | Dataset | str | None] = {}
    for line in _lines(_asked(file, place, "describe", asked, seconds, MEMORY_NBYTES), place.file):
        try:
            row = json.loads(line)
            address = _number(row["address"])
            objects[address] = _object(address, row)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise FormatError(f"{place.file}: {UNSOUND}: its description cannot be read", AGAIN) from None
    if len(objects) > MAX_OBJECTS:
        raise UnsafeError(f"{place.file}: has more than {MAX_OBJECTS:,} groups and datasets")
    root = next(iter(objects), -1)
    if not isinstance(objects.get(root), (Hdf5Group, str)):
        raise FormatError(f"{place.file}: {UNSOUND}: it has no root group", AGAIN)
    # UnsafeError for a link into another file, and for data there, whether or not a name leads to them
    above: dict[int, tuple[int, str]] = {}
    for address in (waiting := [root]):
        found = objects.get(address)
        for name, link in found.links.items() if isinstance(found, Hdf5Group) else ():
            if isinstance(link, dict):
                path = _path({**above, -1: (address, name)}, -1)
                raise UnsafeError(
                    f"{place.file}: {path} is a link into another file, {link.get('file')!r:.200}", hint=INSIDE
                )
            if isinstance(link, int) and link not in above and link != root:
                above[link] = address, name
                waiting.append(link)
    for address, found in objects.items():
        if found == ELSEWHERE:
            path = _path(above, address) if address in above else "a dataset without a name"
            raise UnsafeError(f"{place.file}: {path} {ELSEWHERE}", hint=INSIDE)
    return File(place.file, objects, root)


def _path(above: Mapping[int, tuple[int, str]], address: int) -> str:
    """The path of an object as messages have it: {address: the group that it is in, and its name there}."""
    parts: list[str] = []
    while address in above:
        address, name = above[address]
        parts.append(name)
    return f"{'/'.join(reversed(parts))!r:.200}"


def elements(file: BinaryIO, place: ByteRange, path: str, nbytes: int) -> Iterator[bytes]:
    """The elements of a chunked dataset of `nbytes` bytes, little-endian and row by row, as blocks of any length."""
    yield from _decoded(file, place, "elements", {"path": path}, nbytes)


def digests(file: BinaryIO, place: ByteRange, paths: Sequence[str], nbytes: int) -> dict[str, str]:
    """{path: SHA-256 of the elements, little-endian and row by row} as h5py reads datasets of `nbytes` bytes."""
    text = b"".join(_decoded(file, place, "digests", {"paths": list(paths)}, nbytes)).decode()
    return dict(zip(paths, text.split(), strict=False))


def _decoded(file: BinaryIO, place: ByteRange, function: str, asked: dict[str, object], nbytes: int) -> Iterator[bytes]:
    """What the worker says of datasets of `nbytes` bytes."""
    seconds = 2 + -(-(nbytes + place.nbytes) // DECODED_PER_SECOND)
    memory = MEMORY_NBYTES + 4 * max(FREE_NBYTES, min(nbytes, 1 << 32))
    return _asked(file, place, function, asked | {"part_nbytes": PART_NBYTES}, seconds, memory)


def _asked(
    file: BinaryIO, place: ByteRange, function: str, asked: dict[str, object], seconds: int, memory: int
) -> Iterator[bytes]:
    """What the worker says of the HDF5 file in a range; FormatError without h5py."""
    from importlib.util import find_spec

    if find_spec("h5py") is None:
        hint = "pip install 'paramtool[keras]'"
        raise FormatError(f"{place.file}: is an HDF5 file; reading it needs h5py, which is not installed", hint)
    arguments = {"start": place.start, "stop": place.stop, **asked}
    question = sandbox.Question(WORKER, function, arguments, sandbox.WorkerLimits(seconds, memory), UNSOUND)
    return sandbox.ask(file, place.file, question)


def _lines(pieces: Iterator[bytes], where: str) -> Iterator[bytes]:
    """The lines of an answer that arrives in pieces."""
    nbytes, rest = 0, b""
    for piece in pieces:
        nbytes += len(piece)
        if nbytes > MAX_DESCRIPTION_NBYTES:
            raise UnsafeError(f"{where}: its names and attributes have more than {MAX_DESCRIPTION_NBYTES:,} bytes")
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines


def _object(address: int, row: dict[str, Any]) -> Hdf5Group | Dataset | str | None:
    """An object from a line of `_worker.describe`; ValueError, KeyError or TypeError if it is malformed."""
    if "error" in row:
        return str(row["error"])
    if "links" in row:
        links = {_text(name): link for name, link in row["links"]}
        return Hdf5Group(address, links, {_text(name): list(map(_text, held)) for name, held in row["strings"].items()})
    if "is_elsewhere" in row:
        return ELSEWHERE
    if "layout" not in row:
        return None
    shape = row["shape"]
    name = _text(row["type"])
    if name and name not in DTYPES:
        raise ValueError
    return Dataset(
        address=address,
        shape=None if shape is None else tuple(map(_number, shape)),
        type=name,
        unit=_number(row["unit"]),
        described=_text(row["described"]),
        is_string=bool(row["is_string"]),
        is_number=bool(row["is_number"]),
        layout=_text(row["layout"]),
        stored_nbytes=_number(row["stored_nbytes"]),
        offset=None if row.get("offset") is None else _number(row["offset"]),
        filters=[(_number(number), _text(label)) for number, label in row.get("filters", ())],
        chunk_nbytes=_number(row.get("chunk_nbytes", 0)),
        data=bytes.fromhex(row["data"]) if "data" in row else None,
        struct=_fields(row["struct"]) if "struct" in row else None,
        references=[_reference(held) for held in row["references"]] if "references" in row else None,
    )


def _fields(rows: Sequence[Any]) -> list[tuple[str, object]]:
    return [(_text(label), _part(part)) for label, part in rows]


def _part(part: dict[str, Any]) -> object:
    if "to" in part:
        return _reference(part["to"])
    return _fields(part["fields"]) if "fields" in part else OTHER


def _reference(held: object) -> int | None:
    return None if held is None else _number(held)


def _number(held: object) -> int:
    """A whole number that is not negative; ValueError for anything else."""
    if type(held) is not int or not 0 <= held < 1 << 64:
        raise ValueError
    return held


def _text(held: object) -> str:
    if not isinstance(held, str):
        raise ValueError
    return held


Order = Callable[[str, Hdf5Group], list[str]]
"""From the path of a group and the group to the names in it, in order."""


def natural(name: str) -> list[object]:
    """A key that puts numbers in the order of their value, and forward before backward.

    >>> sorted(["10", "9", "gru_10", "gru_9", "backward_layer", "forward_layer"], key=natural)
    ['9', '10', 'forward_layer', 'backward_layer', 'gru_9', 'gru_10']
    """
    name = re.sub("^(forward|backward)", lambda match: {"f": "b0", "b": "b1"}[match[1][0]], name)
    return [int(part) if part.isdigit() else part for part in re.split("([0-9]+)", name)]


@dataclass
class Datasets:
    """The datasets of an HDF5 file by their paths, and their storages."""

    file: File
    place: ByteRange
    """The range of the HDF5 file."""
    found: dict[str, Dataset] = field(default_factory=dict)
    """By path, in order."""
    storages: dict[int, Storage] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)
    """{address of a dataset's header: number of its storage}."""
    _seen: set[int] = field(default_factory=set)
    _repeated: int = 0

    @property
    def where(self) -> str:
        """The file's name, for messages."""
        return self.file.where

    def walk(self, group: Hdf5Group, order: Order, path: str = "", above: tuple[int, ...] = ()) -> None:
        """Gather the datasets in a group; FormatError or UnsafeError if the group is refused."""
        if group.address in above or len(above) > MAX_DEPTH:
            what = "contains itself" if group.address in above else f"is more than {MAX_DEPTH} groups deep"
            raise FormatError(f"{self.where}: group {path!r:.200} {what}")
        self._repeated += group.address in self._seen
        self._seen.add(group.address)
        if self._repeated > MAX_REPEATED or len(self._seen) + len(self.found) > MAX_OBJECTS:
            more = f"more than {MAX_OBJECTS:,} groups and datasets, or endless paths to them"
            raise UnsafeError(f"{self.where}: has {more}")
        for name in order(path, group):
            full = f"{path}/{name}" if path else name
            link = group.links[name]
            if not is_text(full):
                raise FormatError(f"{self.where}: the name {full!r:.200} is not UTF-8", AGAIN)
            if not isinstance(link, int):
                raise FormatError(f"{self.where}: {full!r:.200} is a soft link; expected the dataset or group itself")
            child = self.file.object(link)
            if isinstance(child, Hdf5Group):
                self.walk(child, order, full, (*above, group.address))
            elif child is not None:
                self.found[full] = child

    def value(self, path: str, dataset: Dataset) -> Value:
        """The value of a dataset: a view of its storage, or the reason why it cannot be read.

        `path` is empty for datasets that are only reached by references.
        """
        if not dataset.type or dataset.shape is None:
            reader = f"an HDF5 reader for the type {dataset.described}"
            return Unreadable(reader if not dataset.type else "a shape, which it lacks")
        if prod(size for size in dataset.shape if size) > MAX_EXTENT:
            raise FormatError(f"{self.where}: {path!r:.200} is too large for any machine: {list(dataset.shape)}")
        view = contiguous(0, DTYPES[dataset.type], dataset.shape)
        if dataset.address not in self._numbers:
            backing = self._backing(path, dataset, view.nbytes)
            if isinstance(backing, Unreadable):
                return backing
            self._numbers[dataset.address] = len(self.storages)
            self.storages[len(self.storages)] = Storage(len(self.storages), view.nbytes, backing)
        return contiguous(self._numbers[dataset.address], view.dtype, view.shape)

    def _backing(self, path: str, dataset: Dataset, nbytes: int) -> Backing | Unreadable:
        """Where the bytes of a dataset are."""
        if not nbytes:
            return ByteRange(self.place.file, self.place.start, self.place.start)
        if not dataset.stored_nbytes:
            return Unreadable("data, of which nothing was ever written")
        if dataset.layout == "chunked":
            # Chunks that h5py decodes; refused if they need foreign filters or inflate to far more than the file has
            for number, label in dataset.filters:
                if number not in FILTERS:
                    raise FormatError(
                        f"{self.where}: {path!r:.200} is compressed by filter {number} ({label!r:.60}); "
                        f"expected {', '.join(FILTERS.values())}",
                        hint="repack it: h5repack -f GZIP=1 IN OUT",
                    )
            if nbytes > max(FREE_NBYTES, MAX_RATIO * dataset.stored_nbytes):
                what = f"inflates {dataset.stored_nbytes:,} bytes of the file to {nbytes:,}"
                raise UnsafeError(f"{self.where}: {path!r:.200} {what}")
            if dataset.chunk_nbytes > max(FREE_NBYTES, nbytes):
                raise UnsafeError(
                    f"{self.where}: {path!r:.200} has {nbytes:,} bytes, in a chunk of {dataset.chunk_nbytes:,}"
                )
            return Encoded(self.place, (STEP + path,)) if path else Unreadable("a name, to be decompressed by")
        if dataset.stored_nbytes != nbytes:
            raise FormatError(
                f"{self.where}: {path!r:.200} has {dataset.stored_nbytes} bytes; its shape asks for {nbytes}"
            )
        if dataset.layout == "compact":
            return self._compact(path, dataset, nbytes)
        if dataset.layout != "contiguous" or dataset.offset is None:
            raise FormatError(f"{self.where}: {path!r:.200} does not say where its bytes are")
        start = self.place.start + dataset.offset
        if start + nbytes > self.place.stop:
            needs = f"needs bytes {start}-{start + nbytes}; the file ends at {self.place.stop}"
            raise FormatError(f"{self.where}: {path!r:.200} {needs}: it is truncated")
        source = ByteRange(self.place.file, start, start + nbytes)
        return Encoded(source, (f"swap{dataset.unit}",)) if dataset.unit > 1 else source

    def _compact(self, path: str, dataset: Dataset, nbytes: int) -> Inline:
        """Bytes in the dataset's header, which h5py has already read."""
        if dataset.data is None or len(dataset.data) != nbytes:
            what = f"exceeds the limit of {MAX_COMPACT_NBYTES:,} bytes for all compact datasets of a file"
            raise UnsafeError(f"{self.where}: {path!r:.200} {what}")
        return Inline(dataset.data)

    def check_apart(self) -> None:
        """FormatError if two datasets overlap, which no writer does."""
        places = (s.backing.source if isinstance(s.backing, Encoded) else s.backing for s in self.storages.values())
        if found := overlapping(p for p in places if isinstance(p, ByteRange) and p != self.place and p.nbytes):
            last, place = found
            raise FormatError(
                f"{self.where}: datasets overlap: bytes {last.start}-{last.stop} and {place.start}-{place.stop}"
            )


def texts(held: File, names: Collection[str]) -> dict[str, str]:
    """Attributes of the root group that are one string; FormatError if one is not UTF-8."""
    found = {name: row[0] for name, row in held.root.strings.items() if name in names and len(row) == 1}
    for name, text in found.items():
        if not is_text(text):
            raise FormatError(f"{held.where}: attribute {name!r} is not UTF-8", AGAIN)
    return found


def is_text(text: str) -> bool:
    """Whether a string can be written in UTF-8: names and attributes of HDF5 may hold any bytes."""
    return text.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in text)
