"""The content of an HDF5 file as plain data, read with h5py in a separate process (`formats/sandbox.py`).

`describe` lists the objects of a file by the addresses of their headers, each of them once:

    {"address": 96, "links": [["name", 800], ["a", "soft link"], ["b", {"file": "x.h5"}]], "strings": {...}}
    {"address": 800, "shape": [2, 3], "type": "float32", ...}           what `datasets.Dataset` has
    {"address": 900, "error": "wrong B-tree signature"}

Nothing is judged here but what h5py cannot be asked for from outside.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from math import prod
from typing import Any, BinaryIO

from paramtool.formats.hdf5.datasets import (
    MAX_ATTRIBUTE_NBYTES,
    MAX_COMPACT_NBYTES,
    MAX_OBJECTS,
    MAX_REFERENCES,
    MAX_STRUCT_NBYTES,
)
from paramtool.formats.sandbox import REFUSALS
from paramtool.model.dtype import DTYPES
from paramtool.model.view import Shape


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


with _processor_unasked():
    import h5py


class FileRange(io.RawIOBase):
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
        """Fill a buffer; a damaged length that asks for bytes after the end is an error, not zeros."""
        if self.at + len(buffer) > self.nbytes:
            raise OSError(f"needs {len(buffer)} bytes at byte {self.at}; the file has {self.nbytes}")
        data = os.pread(self.file.fileno(), len(buffer), self.start + self.at)
        buffer[: len(data)] = data
        self.at += len(data)
        return len(data)


def describe(file: BinaryIO, *, start: int, stop: int, **asked: Any) -> Iterable[bytes]:
    """The objects of the HDF5 file in a range of an open file, a line of JSON each; the root group is the first."""
    with h5py.File(FileRange(file, start, stop), "r") as root:
        description = _Description(root.id, **asked)
        for found in description.objects():
            yield json.dumps(found, separators=(",", ":")).encode() + b"\n"


def elements(file: BinaryIO, *, start: int, stop: int, path: str, part_nbytes: int) -> Iterable[bytes]:
    """The elements of the dataset at a path, little-endian and row by row."""
    with h5py.File(FileRange(file, start, stop), "r") as root:
        yield from _elements(root[path], part_nbytes)


def digests(file: BinaryIO, *, start: int, stop: int, paths: Sequence[str], part_nbytes: int) -> Iterable[bytes]:
    """The SHA-256 of the same, of the dataset at each path: a line each."""
    with h5py.File(FileRange(file, start, stop), "r") as root:
        for path in paths:
            found = hashlib.sha256()
            for piece in _elements(root[path], part_nbytes):
                found.update(piece)
            yield found.hexdigest().encode() + b"\n"


def _elements(dataset: Any, part_nbytes: int) -> Iterator[bytes]:
    little = dataset if dataset.dtype.kind == "V" else dataset.astype(dataset.dtype.newbyteorder("<"))
    for box in boxes(dataset.shape, dataset.chunks, max(1, part_nbytes // dataset.dtype.itemsize)):
        yield little[box].tobytes()


def boxes(shape: Shape, chunks: tuple[int, ...] | None, max_elements: int) -> Iterator[tuple[int | slice, ...]]:
    """Boxes of at most `max_elements` elements that tile a shape, row by row, ending with the chunks where they can.

    A chunk is decoded for each box that it meets, so boxes are as high as whole chunks.

    >>> list(boxes((5, 3), (2, 2), 13))
    [(slice(0, 4, None),), (slice(4, 5, None),)]
    """
    axis = 0
    while axis < len(shape) - 1 and prod(shape[axis + 1 :]) > max_elements:
        axis += 1
    if not shape:
        yield ()
        return
    step = max(1, max_elements // max(1, prod(shape[axis + 1 :])))
    if chunks and step > chunks[axis]:
        step -= step % chunks[axis]
    for outer in product(*(range(size) for size in shape[:axis])):
        for begin in range(0, shape[axis], step):
            yield (*outer, slice(begin, min(begin + step, shape[axis])))


@dataclass
class _Description:
    """Goes through a file, every object once."""

    root: Any
    strings: Sequence[str]
    """Attributes of groups that are read where they hold strings; long lists are split into NAME0, NAME1, ..."""
    values: bool
    """Whether structs, and rows of references, are read, and what they refer to is an object as well."""
    compact_nbytes: int = 0
    seen: set[int] = field(default_factory=set)
    waiting: list[tuple[int, Callable[[], Any]]] = field(default_factory=list)

    def objects(self) -> Iterator[dict[str, Any]]:
        """All objects that are reached from the root; one more than `MAX_OBJECTS` where there are more."""
        self.wait(int(h5py.h5o.get_info(self.root).addr), lambda: self.root)
        for _ in range(MAX_OBJECTS + 1):
            if not self.waiting:
                return
            address, opening = self.waiting.pop()
            try:
                yield {"address": address, **self.facts(opening())}
            except REFUSALS as error:
                yield {"address": address, "error": str(error.args[0] if error.args else error)[:1000]}

    def wait(self, address: int, opening: Callable[[], Any]) -> int:
        """Note an object to be described, and how it is opened; its address."""
        if address not in self.seen:
            self.seen.add(address)
            self.waiting.append((address, opening))
        return address

    def facts(self, opened: Any) -> dict[str, Any]:
        """The description of one object; for a named type it is empty."""
        if isinstance(opened, h5py.h5g.GroupID):
            return self.group(opened)
        return self.dataset(opened) if isinstance(opened, h5py.h5d.DatasetID) else {}

    # --- groups ---------------------------------------------------------------------------------------------------

    def group(self, opened: Any) -> dict[str, Any]:
        """The links of a group in its own order, and its attributes."""
        links: list[list[Any]] = []
        for name in opened:
            link = opened.links.get_info(name)
            text = name.decode("utf-8", "surrogateescape")
            if link.type == h5py.h5l.TYPE_HARD:
                links.append([text, self.wait(int(link.u), partial(h5py.h5o.open, opened, name))])
            elif link.type == h5py.h5l.TYPE_EXTERNAL:
                file, _ = opened.links.get_val(name)
                links.append([text, {"file": file.decode("utf-8", "surrogateescape")}])
            else:
                links.append([text, "soft link"])
        names = self.strings if h5py.h5a.get_num_attrs(opened) else ()
        held = ((name, self.row(opened, name)) for name in names)
        return {"links": links, "strings": {name: row for name, row in held if row is not None}}

    def row(self, opened: Any, name: str) -> list[str] | None:
        """The strings of an attribute, or of the parts into which a long one is split; None if there are none."""
        found = self.attribute(opened, name)
        if found is not None:
            return found
        rows = None
        for k in count():
            part = self.attribute(opened, f"{name}{k}")
            if part is None:
                break
            rows = (rows or []) + part
        return rows

    def attribute(self, opened: Any, name: str) -> list[str] | None:
        """The strings of an attribute, one or several; None if it is missing, or holds something else."""
        if not h5py.h5a.exists(opened, name.encode()):
            return None
        held = h5py.h5a.open(opened, name.encode())
        nbytes = held.get_space().get_simple_extent_npoints() * held.get_type().get_size()
        if nbytes > MAX_ATTRIBUTE_NBYTES:
            raise ValueError(f"attribute {name!r} has {nbytes:,} bytes; expected at most {MAX_ATTRIBUTE_NBYTES:,}")
        value = h5py.AttributeManager(_GroupAttributes(opened))[name]
        row = value.ravel().tolist() if hasattr(value, "ravel") and not isinstance(value, bytes) else [value]
        if not all(isinstance(item, (str, bytes)) for item in row):
            return None
        return [item if isinstance(item, str) else item.decode() for item in row]

    # --- datasets -------------------------------------------------------------------------------------------------

    def dataset(self, opened: Any) -> dict[str, Any]:
        """The fields of `datasets.Dataset`; of one with its data in other files no more, since asking opens those."""
        made = opened.get_create_plist()
        layout = LAYOUTS.get(made.get_layout(), "unknown")
        if layout == "virtual" or made.get_external_count():
            return {"is_elsewhere": True}
        try:
            dtype = opened.dtype
        except TypeError:
            dtype = None
        name, unit = self.element(opened, dtype) if dtype is not None else ("", 1)
        null = opened.get_space().get_simple_extent_type() == h5py.h5s.NULL
        found: dict[str, Any] = {
            "shape": None if null else list(opened.shape),
            "type": name,
            "unit": unit,
            "described": str(dtype)[:200] if dtype is not None else "that NumPy does not have",
            "is_string": dtype is not None and h5py.check_string_dtype(dtype) is not None,
            "is_number": dtype is not None and dtype.kind in "biufc",
            "layout": layout,
            "stored_nbytes": int(opened.get_storage_size()),
        }
        if layout == "contiguous":
            found["offset"] = opened.get_offset()
        if layout == "chunked":
            filters = (made.get_filter(k) for k in range(made.get_nfilters()))
            found["filters"] = [[int(number), label.decode("utf-8", "replace")[:60]] for number, _, _, label in filters]
            found["chunk_nbytes"] = prod(made.get_chunk()) * opened.get_type().get_size()
        if layout == "compact" and name:
            self.compact_nbytes += found["stored_nbytes"]
            if self.compact_nbytes <= MAX_COMPACT_NBYTES:
                found["data"] = h5py.Dataset(opened).astype(dtype.newbyteorder("<"))[()].tobytes().hex()
        if self.values and dtype is not None and not null:
            found |= self.parts(opened, dtype)
        return found

    def element(self, opened: Any, dtype: Any) -> tuple[str, int]:
        """(element type, bytes to byte-swap together); no type if paramtool does not have the file's.

        The type in the file must be just what NumPy has: HDF5 can describe numbers with their bits in any order.
        """
        if dtype.kind == "V" and dtype.names is None:
            said = self.attribute(opened, "dtype")
            return (said[0], 1) if said == [of_bytes(dtype.itemsize)] else ("", 1)
        if dtype.kind not in "biufc" or dtype.name not in DTYPES:
            return "", 1
        if not opened.get_type().equal(h5py.h5t.py_create(dtype, logical=True)):
            return "", 1
        big = dtype.newbyteorder("<") != dtype
        return dtype.name, (dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize) if big else 1

    # --- structs and references -----------------------------------------------------------------------------------

    def parts(self, opened: Any, dtype: Any) -> dict[str, Any]:
        """What one struct, or a row of references, holds."""
        if dtype.names and opened.shape == () and dtype.itemsize <= MAX_STRUCT_NBYTES:
            return {"struct": self.part(h5py.Dataset(opened)[()])["fields"]}
        if h5py.check_ref_dtype(dtype) is h5py.Reference and prod(opened.shape) <= MAX_REFERENCES:
            return {"references": [self.part(held)["to"] for held in h5py.Dataset(opened)[()].ravel()]}
        return {}

    def part(self, held: Any) -> dict[str, Any]:
        """A field of a struct, or an element of a row: what it refers to, its own fields, or something else."""
        if isinstance(held, h5py.Reference):
            if not held:
                return {"to": None}
            target = h5py.h5r.dereference(held, self.root)
            return {"to": self.wait(int(h5py.h5o.get_info(target).addr), lambda: target)}
        if getattr(held, "dtype", None) is not None and held.dtype.names:
            return {"fields": [[name, self.part(held[name])] for name in held.dtype.names]}
        return {}


class _GroupAttributes:
    """As much of a group as h5py's attributes ask for."""

    def __init__(self, opened: Any) -> None:
        self.id = opened


LAYOUTS = {
    h5py.h5d.COMPACT: "compact",
    h5py.h5d.CONTIGUOUS: "contiguous",
    h5py.h5d.CHUNKED: "chunked",
    h5py.h5d.VIRTUAL: "virtual",
}


def of_bytes(nbytes: int) -> str:
    """The mark that Keras writes for data without an HDF5 type (saving_lib.py, H5Entry): always bfloat16."""
    return "bfloat16" if nbytes == 2 else ""
