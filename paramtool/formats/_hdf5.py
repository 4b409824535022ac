"""HDF5 files as a row of datasets, each with the place of its bytes; read with h5py, and strictly.

    contiguous      a range of the file, as it is
    compact         a few bytes inside the dataset's own header
    chunked         pieces that may be compressed: decoded by the engine, through h5py, when they are wanted

What a file may not do: point out of itself (external links and external storage, virtual datasets), be a maze (soft
links, groups that hold themselves), or ask for filters beyond those that HDF5 has built in, since others are code that
is looked for on the disk.  Two hard links to one dataset are two names of one storage.

An HDF5 file may stand inside another file (a stored member of a zip): positions are then those in the outer file.

Source: the HDF5 file format specification, version 3.0; h5py's low-level interface.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO

from paramtool.errors import FormatError, UnsafeError
from paramtool.model.checkpoint import Unreadable, Value
from paramtool.model.dtype import DTYPES
from paramtool.model.storage import Backing, ByteRange, Encoded, Inline, Storage
from paramtool.model.view import MAX_EXTENT, contiguous

if TYPE_CHECKING:
    import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n"
STEP = "hdf5:"
"""A decoding step: `hdf5:PATH` is the dataset at PATH of the HDF5 file that the range holds."""
INSIDE = "only data inside the file itself are read"
MAX_ATTRIBUTE_NBYTES = 64 << 20
MAX_OBJECTS = 200_000
MAX_REPEATED = 1000
"""So many times in all a group may be met again on another path: thirty groups can have a thousand million paths."""
MAX_DEPTH = 64
MAX_RATIO = 1100
"""Deflate makes at most 1032 bytes of one."""
FREE_NBYTES = 16 << 20
"""Datasets of up to so many bytes may be of any ratio, and chunks that are larger than their dataset."""
MAX_COMPACT_NBYTES = 16 << 20
"""Of one file together; a single one has at most 64 KiB."""
FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
"""What HDF5 and h5py have built in, by number; szip, nbit and scaleoffset are of no use for weights."""
ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
"""What h5py raises for a damaged file."""


class Part(io.RawIOBase):
    """A range of an open file, as a file of its own for h5py."""

    def __init__(self, file: BinaryIO, start: int, stop: int) -> None:
        self.file, self.start, self.nbytes, self.at = file, start, stop - start, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.nbytes}[whence]
        self.at = max(0, base + offset)
        return self.at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; a damaged length that asks for bytes behind the end is an error, not a row of zeros."""
        if self.at + len(buffer) > self.nbytes:
            raise OSError(f"wants {len(buffer)} bytes at byte {self.at}; the file has {self.nbytes}")
        data = os.pread(self.file.fileno(), len(buffer), self.start + self.at)
        buffer[: len(data)] = data
        self.at += len(data)
        return len(data)


@contextmanager
def _processor_unasked() -> Iterator[None]:
    """Let an import read `platform.uname()` without starting a program.

    Its field `processor` runs `uname -p` when it is first looked at (platform.py, `uname_result`, Python 3.9 and
    later), and h5py 3.16 looks at all fields when `h5py.h5t` is imported, for the machine alone.  The field is filled
    for that time and emptied afterwards, so that `platform.processor()` answers as ever.
    """
    import platform

    fields = vars(platform.uname())
    known = "processor" in fields
    fields.setdefault("processor", "")
    try:
        yield
    finally:
        if not known:
            fields.pop("processor", None)


@contextmanager
def opened(file: BinaryIO, start: int, stop: int, where: str) -> Iterator[h5py.File]:
    """The HDF5 file that a range of an open file holds; FormatError for what h5py cannot read in it."""
    try:
        with _processor_unasked():
            import h5py
    except ImportError:
        hint = "pip install 'paramtool[keras]'"
        raise FormatError(f"{where}: is an HDF5 file, and h5py, which reads those, is not installed", hint) from None
    try:
        with h5py.File(Part(file, start, stop), "r") as found:
            yield found
    except ERRORS as error:
        text = str(error.args[0] if error.args else error).replace("\n", " ")
        raise FormatError(f"{where}: is no sound HDF5 file: {text:.300}", hint="fetch the file again") from None


Order = Callable[[str, Any], list[str]]
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
    """The datasets of an open HDF5 file, and what becomes of them."""

    where: str
    place: ByteRange
    """Where the HDF5 file stands."""
    found: dict[str, Any] = field(default_factory=dict)
    """{path: h5py dataset}, in order."""
    storages: dict[int, Storage] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)
    """{address of a dataset's header: number of its storage}."""
    _compact_nbytes: int = 0
    _seen: set[int] = field(default_factory=set)
    _repeated: int = 0

    def walk(self, group: Any, order: Order, path: str = "", above: tuple[int, ...] = ()) -> None:
        """Gather what a group holds; FormatError or UnsafeError where that is refused."""
        import h5py

        address = h5py.h5o.get_info(group.id).addr
        if address in above or len(above) > MAX_DEPTH:
            what = "holds itself" if address in above else f"stands more than {MAX_DEPTH} groups deep"
            raise FormatError(f"{self.where}: group {path!r:.200} {what}")
        self._repeated += address in self._seen
        self._seen.add(address)
        if self._repeated > MAX_REPEATED or len(self._seen) + len(self.found) > MAX_OBJECTS:
            more = f"more than {MAX_OBJECTS:,} groups and datasets, or endless paths to them"
            raise UnsafeError(f"{self.where}: has {more}")
        for name in order(path, group):
            full = f"{path}/{name}" if path else name
            self._refuse_links(full, group.get(name, getlink=True))
            child = group[name]
            if isinstance(child, h5py.Group):
                self.walk(child, order, full, (*above, address))
            elif isinstance(child, h5py.Dataset):
                self.found[full] = child

    def _refuse_links(self, path: str, link: object) -> None:
        import h5py

        if isinstance(link, h5py.ExternalLink):
            target = f"a link into another file, {link.filename!r:.200}"
            raise UnsafeError(f"{self.where}: {path!r:.200} is {target}", hint=INSIDE)
        if not isinstance(link, h5py.HardLink):
            raise FormatError(f"{self.where}: {path!r:.200} is a soft link; expected the dataset or group itself")

    def value(self, path: str, dataset: Any) -> Value:
        """What a dataset is: a window on its storage, or the reason why it is none.

        `path` is empty where the dataset has none, as those that only references lead to.
        """
        import h5py

        name, unit = _element(dataset)
        if not name or dataset.shape is None:
            return Unreadable(f"an HDF5 reader for the type {dataset.dtype}" if not name else "a shape, which it lacks")
        if prod(size for size in dataset.shape if size) > MAX_EXTENT:
            raise FormatError(f"{self.where}: {path!r:.200} is too large for any machine: {list(dataset.shape)}")
        view = contiguous(0, DTYPES[name], dataset.shape)
        address = h5py.h5o.get_info(dataset.id).addr
        if address not in self._numbers:
            backing = self._backing(path, dataset, view.nbytes, unit)
            if isinstance(backing, Unreadable):
                return backing
            self._numbers[address] = len(self.storages)
            self.storages[len(self.storages)] = Storage(len(self.storages), view.nbytes, backing)
        return contiguous(self._numbers[address], view.dtype, view.shape)

    def _backing(self, path: str, dataset: Any, nbytes: int, unit: int) -> Backing | Unreadable:
        """Where the bytes of a dataset are; `unit` says how many of them a big-endian machine turned round."""
        import h5py

        made = dataset.id.get_create_plist()
        layout = made.get_layout()
        if layout == h5py.h5d.VIRTUAL or made.get_external_count():
            raise UnsafeError(f"{self.where}: {path!r:.200} has its data in other files", hint=INSIDE)
        stored_nbytes = dataset.id.get_storage_size()
        if not nbytes:
            return ByteRange(self.place.file, self.place.start, self.place.start)
        if not stored_nbytes:
            return Unreadable("data, of which nothing was ever written")
        if layout == h5py.h5d.CHUNKED:
            return self._chunked(path, dataset, nbytes, stored_nbytes)
        if stored_nbytes != nbytes:
            raise FormatError(f"{self.where}: {path!r:.200} has {stored_nbytes} bytes; its shape asks for {nbytes}")
        if layout == h5py.h5d.COMPACT:
            return self._compact(path, dataset)
        start = self.place.start + int(dataset.id.get_offset())
        if start + nbytes > self.place.stop:
            needs = f"needs bytes {start}-{start + nbytes}; the file ends at {self.place.stop}"
            raise FormatError(f"{self.where}: {path!r:.200} {needs}: it is truncated")
        source = ByteRange(self.place.file, start, start + nbytes)
        return Encoded(source, (f"swap{unit}",)) if unit > 1 else source

    def _compact(self, path: str, dataset: Any) -> Inline:
        """Bytes that stand in the header, which h5py has read by now."""
        self._compact_nbytes += dataset.id.get_storage_size()
        if self._compact_nbytes > MAX_COMPACT_NBYTES:
            raise UnsafeError(
                f"{self.where}: {path!r:.200}: compact datasets of more than {MAX_COMPACT_NBYTES:,} bytes"
            )
        return Inline(little_endian(dataset)[()].tobytes())

    def _chunked(self, path: str, dataset: Any, nbytes: int, stored_nbytes: int) -> Encoded | Unreadable:
        """Pieces that h5py puts together; refused where that needs foreign code or makes far more than the file has."""
        made = dataset.id.get_create_plist()
        filters = [made.get_filter(k) for k in range(made.get_nfilters())]
        for number, _, _, label in filters:
            if number not in FILTERS:
                raise FormatError(
                    f"{self.where}: {path!r:.200} is compressed by filter {number} ({label!r:.60}); "
                    f"expected {', '.join(FILTERS.values())}",
                    hint="repack it: h5repack -f GZIP=1 IN OUT",
                )
        if nbytes > max(FREE_NBYTES, MAX_RATIO * stored_nbytes):
            raise UnsafeError(f"{self.where}: {path!r:.200} makes {nbytes:,} bytes of {stored_nbytes:,} in the file")
        if (chunk := prod(dataset.chunks) * dataset.dtype.itemsize) > max(FREE_NBYTES, nbytes):
            raise UnsafeError(f"{self.where}: {path!r:.200} has {nbytes:,} bytes, in a chunk of {chunk:,}")
        return Encoded(self.place, (STEP + path,)) if path else Unreadable("a name, to be decompressed by")

    def check_apart(self) -> None:
        """FormatError where two datasets stand on the same bytes, which no writer does."""
        stop, last = 0, ByteRange("", 0, 0)
        places = (s.backing.source if isinstance(s.backing, Encoded) else s.backing for s in self.storages.values())
        ranges = {p for p in places if isinstance(p, ByteRange) and p != self.place and p.nbytes}
        for place in sorted(ranges, key=lambda p: p.start):
            if place.start < stop:
                raise FormatError(
                    f"{self.where}: datasets overlap: bytes {last.start}-{last.stop} and {place.start}-{place.stop}"
                )
            stop, last = place.stop, place


def is_text(dataset: Any) -> bool:
    """Whether a dataset holds texts."""
    import h5py

    try:
        return h5py.check_string_dtype(dataset.dtype) is not None
    except TypeError:
        return False


def little_endian(dataset: Any) -> Any:
    """A dataset that gives little-endian elements, whatever the file has."""
    return dataset.astype(dataset.dtype.newbyteorder("<"))


def _element(dataset: Any) -> tuple[str, int]:
    """(element type, bytes that have to be turned round); no type where the file's is none of paramtool's.

    The type in the file must be just what NumPy has: HDF5 can describe numbers with their bits in any order.
    """
    import h5py

    try:
        dtype = dataset.dtype
        plain = dataset.id.get_type().equal(h5py.h5t.py_create(dtype, logical=True))
    except TypeError:
        return "", 1
    if dtype.kind == "V" and dtype.names is None and texts(dataset, "dtype") == [dtype_of_bytes(dtype)]:
        return dtype_of_bytes(dtype), 1
    if not plain or dtype.kind not in "biufc" or dtype.name not in DTYPES:
        return "", 1
    big = dtype.newbyteorder("<") != dtype
    return dtype.name, (dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize) if big else 1


def dtype_of_bytes(dtype: Any) -> str:
    """What Keras writes beside bytes that HDF5 has no type for (saving_lib.py, H5Entry): always bfloat16."""
    return "bfloat16" if dtype.itemsize == 2 else ""


def texts(thing: Any, name: str) -> list[str] | None:
    """The texts of an attribute, one or a row; None where there is none, or where it holds something else."""
    if name not in thing.attrs:
        return None
    held = thing.attrs.get_id(name)
    nbytes = held.get_space().get_simple_extent_npoints() * held.get_type().get_size()
    if nbytes > MAX_ATTRIBUTE_NBYTES:
        raise FormatError(f"attribute {name!r} has {nbytes:,} bytes; expected at most {MAX_ATTRIBUTE_NBYTES:,}")
    value = thing.attrs[name]
    row = value.ravel().tolist() if hasattr(value, "ravel") and not isinstance(value, bytes) else [value]
    if not all(isinstance(item, (str, bytes)) for item in row):
        return None
    return [item if isinstance(item, str) else item.decode() for item in row]
