"""safetensors: a length, a JSON header, and the tensors' bytes.

    u64 N                        little-endian, at most 100,000,000
    N bytes of JSON              {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
                                  "__metadata__": {"text": "text"}}, may end in spaces
    the data                     row by row, little-endian; no overlap, no gap, nothing after it

Specification: the "Format" part of the safetensors README; the limit from its reader (safetensors/src/tensor.rs).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import Any, BinaryIO

from paramtool.errors import Defects, FormatError, plural
from paramtool.formats import object_tree, strict_json
from paramtool.formats.files import open_source
from paramtool.formats.record import codec as record
from paramtool.formats.record import layouts
from paramtool.formats.safetensors import DTYPE_CODES
from paramtool.formats.sniff import INTERRUPTED, MAX_SAFETENSORS_HEADER
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.objects import EMPTY
from paramtool.model.storage import Ranges, SourceFile
from paramtool.model.view import Shape, View, Views, contiguous

NAME = "safetensors"
HEADER_LENGTH = Struct("<Q")
METADATA = "__metadata__"
MAX_DEPTH = 126
"""The deepest nesting of an entry with unknown members: serde_json accepts 127 levels, including the header."""


def read(path: str) -> Checkpoint:
    """Describe a safetensors file; FormatError, or Defects if there are several."""
    file, source = open_source(path)
    with file:
        header, data_start = _read_header(file, source)
    said = header.pop(METADATA, None)
    metadata: dict[str, str] = {} if said is None else said  # absent, or null
    if not strict_json.are_texts(metadata, dict):
        raise FormatError(f"{path}: {METADATA} must map strings to strings")
    stored, storages = _tensors(source, header, data_start)
    names = record.decode(path, stored, metadata)
    found = Checkpoint(
        format=NAME,
        files=(source,),
        storages={**storages, **names.storages} if names.storages else storages,
        entries=names.entries,
        metadata=names.leftover,
        modules=layouts.decode(path, metadata),
        producer="paramtool" if record.KEY in metadata else "",
    )
    return object_tree.with_tree(found, names.objects or EMPTY)


def _read_header(file: BinaryIO, source: SourceFile) -> tuple[dict[str, Any], int]:
    path = source.path
    start = file.read(HEADER_LENGTH.size)
    if len(start) < HEADER_LENGTH.size:
        raise FormatError(
            f"{path}: has {plural(len(start), 'byte')}; a safetensors file begins with 8 bytes of header length"
        )
    (length,) = HEADER_LENGTH.unpack(start)
    if length > MAX_SAFETENSORS_HEADER:
        raise FormatError(f"{path}: byte 0: header length {length}; the specification allows {MAX_SAFETENSORS_HEADER}")
    if HEADER_LENGTH.size + length > source.nbytes:
        raise FormatError(
            f"{path}: byte 0: header length {length}, but the file has {source.nbytes} bytes; expected at least "
            f"{HEADER_LENGTH.size + length}: it is truncated, or not a safetensors file",
            hint=INTERRUPTED,
        )
    read = file.read(length)
    if read[:1] != b"{":
        raise FormatError(f"{path}: byte 8: the header begins with {read[:1]!r}; expected '{{'")
    try:
        text = read.decode("utf-8")
        del read  # a million names are a hundred megabytes
        header = strict_json.strict(text, _compact, finite=True)
    except ValueError as error:
        raise FormatError(f"{path}: byte 8: the header is not valid JSON: {error}") from None
    return header, HEADER_LENGTH.size + length


def _compact(item: dict[str, Any]) -> Any:
    """What is kept of an object in the header: the values of a tensor's entry, or the whole of another object."""
    try:
        return _entry(item)
    except ValueError:
        return item


def _tensors(source: SourceFile, header: dict[str, Any], data_start: int) -> tuple[Views, Ranges]:
    """Every stored tensor with its own storage; Defects has all defects of the header.  Empties the header."""
    defects: list[str] = []
    hint = ""
    stored: dict[str, View] = {}
    begins, ends = [], []
    for number, (name, item) in enumerate(header.items()):
        header[name] = None  # so that entries and views are not in memory at the same time
        try:
            dtype, shape, begin, end = item if isinstance(item, tuple) else _entry(item)
            view = contiguous(number, dtype, shape)
            if view.nbytes != end - begin:
                raise ValueError(f"data_offsets hold {end - begin} bytes; {dtype.name} {list(shape)} has {view.nbytes}")
        except ValueError as error:
            defects.append(f"{name!r:.200}: {error}")
            continue
        stored[name] = view
        begins.append(begin)
        ends.append(end)
    if not defects:
        defects = list(_layout_defects(zip(begins, ends, stored, strict=True), source.nbytes, data_start))
        is_cut = source.nbytes - data_start < max(ends, default=0)
        hint = INTERRUPTED if is_cut else ""
    if defects:
        raise Defects(source.path, defects, hint)
    return stored, Ranges(source.path, (data_start + n for n in begins), (data_start + n for n in ends))


def _entry(item: Any) -> tuple[DType, tuple[int, ...], int, int]:
    """dtype, shape, begin and end of one header entry; ValueError if it is invalid."""
    if not isinstance(item, dict) or not {"dtype", "shape", "data_offsets"} <= item.keys():
        raise ValueError("expected an object with dtype, shape and data_offsets")
    if len(item) > 3 and strict_json.depth(item) > MAX_DEPTH:
        raise ValueError("has a member that is nested too deeply")
    code, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
    if not isinstance(code, str) or code not in DTYPE_CODES:
        raise ValueError(f"unknown dtype {code!r:.60}")
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
    if not all(type(number) is int and number >= 0 for number in numbers) or len(offsets) != 2:
        raise ValueError(f"shape {shape!r:.60} and data_offsets {offsets!r:.60} must be whole numbers")
    if offsets[0] > offsets[1]:
        raise ValueError(f"data_offsets {offsets!r:.60} end before they begin")
    return DTYPES[DTYPE_CODES[code]], _one_of_equal(tuple(shape)), offsets[0], offsets[1]


@lru_cache(4096)
def _one_of_equal(shape: Shape) -> tuple[int, ...]:
    """The same tuple for equal shapes: many tensors have few different shapes."""
    return shape


def _layout_defects(ranges: Iterable[tuple[int, int, str]], nbytes: int, data_start: int) -> Iterable[str]:
    """Overlaps, gaps, and data that does not end at the end of the file."""
    reach, data_nbytes = 0, nbytes - data_start
    for begin, end, name in sorted(ranges):
        if begin < reach:
            yield f"{name!r:.200}: begins at byte {begin} of the data; the tensor before it ends at {reach}: an overlap"
        elif begin > reach:
            yield f"{name!r:.200}: begins at byte {begin} of the data; the tensor before it ends at {reach}: a gap"
        reach = max(reach, end)
    if reach > data_nbytes:
        yield f"the file is truncated: it has {nbytes} bytes; expected {data_start + reach}, as its header says"
    elif reach < data_nbytes:
        yield f"{data_nbytes - reach} bytes follow the last tensor; expected the end of the file"


def stored_names(path: str) -> list[str]:
    """The names of the stored tensors in the order of the header, which is that of their storages' numbers."""
    file, source = open_source(path)
    with file:
        header, _ = _read_header(file, source)
    return [name for name in header if name != METADATA]
