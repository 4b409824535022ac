"""The header of a `.npy`: a magic number, a version, and a dict in Python's notation.

    \\x93NUMPY 01 00   u16 length (u32 from version 2)   {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }

The dict is not evaluated: it is parsed as a literal of bounded length with exactly these three keys.  An array of
Python objects is a pickle after the header (`objects.py`).

NumPy has no name for bfloat16.  It is written in three ways: `<V2` (ml_dtypes), `<b2` and `[('bfloat16', '<u2')]`
(both MXNet 2).

Specification: numpy/lib/format.py, "Format Version 1.0" to "3.0".  MXNet's: src/serialization/cnpy.cc.
"""

from __future__ import annotations

import re
from math import prod
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from paramtool.errors import plural
from paramtool.formats import sniff
from paramtool.model.checkpoint import Compound
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.view import MAX_EXTENT, Shape, View

if TYPE_CHECKING:
    from paramtool.formats.files import Buffer

MAGIC = b"\x93NUMPY"
U16, U32 = Struct("<H"), Struct("<I")
LENGTHS = {(1, 0): U16, (2, 0): U32, (3, 0): U32}
"""{version: how the length of the dict is written}"""
FIRST_NBYTES = len(MAGIC) + 2 + 4
"""The number of first bytes that give the length of the header."""
MAX_HEADER_NBYTES = 65_535
"""The limit of version 1; only structured types of thousands of fields need more."""
KEYS = {"descr", "fortran_order", "shape"}
CODES = {
    "b1": "bool", "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64", "i1": "int8", "i2": "int16",
    "i4": "int32", "i8": "int64", "f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64",
    "c16": "complex128", "V2": "bfloat16", "b2": "bfloat16",
}  # fmt: skip
MXNET_BFLOAT16 = [("bfloat16", "<u2")]
BROKEN_FORMAT = re.compile(r"\{'descr': '\|s(\d{1,3})\{'descr': '<i8', 'fortran_order': False, 'shape': \(\), \}\s*")
"""The malformed header that MXNet 2 writes for the string that says how a sparse array is stored: two nested dicts."""


class Header(NamedTuple):
    """The values of a header."""

    descr: object
    """The element type as NumPy writes it."""
    fortran_order: bool
    shape: Shape


def header_nbytes(first: bytes) -> int:
    """The length of a header with its magic number, from its first bytes; ValueError if it is not a header."""
    if not first.startswith(MAGIC):
        raise ValueError(f"begins with {first[: len(MAGIC)]!r}; expected the {MAGIC!r} of an array")
    numbers = LENGTHS.get((first[6], first[7])) if len(first) > 7 else U16
    if numbers is None:
        raise ValueError(f"has version {first[6]}.{first[7]}; expected 1.0, 2.0 or 3.0")
    start = len(MAGIC) + 2 + numbers.size
    if len(first) < start:
        raise ValueError(f"has {plural(len(first), 'byte')}, less than a header: it is truncated")
    (length,) = numbers.unpack_from(first, len(MAGIC) + 2)
    if length > MAX_HEADER_NBYTES:
        raise ValueError(f"has a header of {length} bytes; expected at most {MAX_HEADER_NBYTES}")
    return start + int(length)


def header(raw: bytes) -> Header:
    """The values of a whole header, of length `header_nbytes`; ValueError if it is invalid."""
    version = raw[6]
    text = raw[len(MAGIC) + 2 + LENGTHS[version, 0].size :].decode("utf-8" if version == 3 else "latin-1")
    if broken := BROKEN_FORMAT.fullmatch(text):
        return Header(f"|S{int(broken[1])}", False, ())
    found = _literal(text if version > 2 else re.sub(r"(?<=\d)L(?=[,)])", "", text))  # Python 2 wrote (3L, 4L)
    descr, fortran_order, shape = found["descr"], found["fortran_order"], found["shape"]
    if type(fortran_order) is not bool:
        raise ValueError(f"fortran_order is {fortran_order!r:.60}; expected True or False")
    if not isinstance(shape, tuple) or not all(type(size) is int and 0 <= size <= MAX_EXTENT for size in shape):
        raise ValueError(f"the shape is {_brief(shape)}; expected a tuple of whole numbers from 0 to 2**63-1")
    if _has_objects(descr):
        raise ValueError("holds Python objects in the fields of a type; save them as numbers")
    return Header(descr, fortran_order, shape)


def array_stop(data: Buffer, at: int) -> int:
    """Where an array in some bytes ends; of one of objects, and of one that cannot be read, where its header does."""
    stop = at + sniff.numpy_stop(data[at : at + 12])
    try:
        found = header(data[at : min(stop, at + 2 * MAX_HEADER_NBYTES)])
        return stop + prod(found.shape) * element(found.descr, 0, 0).nbytes
    except (ValueError, LookupError):
        return stop


def _literal(text: str) -> dict[str, object]:
    """The dict that a text spells, each key once; ValueError if it is anything else."""
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler may warn about the text of a hostile file
            body = ast.parse(text.lstrip(" \t"), mode="eval").body  # as ast.literal_eval, which NumPy calls
            if not isinstance(body, ast.Dict) or len(body.keys) != len(KEYS):
                raise ValueError
            found = ast.literal_eval(body)
            if found.keys() != KEYS:
                raise ValueError
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError(f"the header is {text.strip()!r:.100}; expected a dict of {', '.join(sorted(KEYS))}") from None
    return dict(found)


def _brief(value: object) -> str:
    """A short string for a value that may have a number of thousands of digits."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        return "made of huge numbers"


def _has_objects(descr: object) -> bool:
    """Whether a type is Python objects, or has a field of them."""
    if isinstance(descr, str):
        return bool(re.fullmatch(r"[<>|=]?O\d*", descr))
    return isinstance(descr, (list, tuple)) and any(_has_objects(part) for part in descr)


PLAIN = r"([<>|])([a-zA-Z])(\d{1,9})?(\[\w+(?:/\d+)?\])?"
"""A type as NumPy writes it; it reads other words, too, which may mean objects: `object`, `f4,O`."""


def _is_written(descr: object) -> bool:
    """Whether a type, or the type of each field and of what stands in it, is one that NumPy writes."""
    if isinstance(descr, list):
        return all(isinstance(field, tuple) and 1 < len(field) < 4 and _is_written(field[1]) for field in descr)
    if isinstance(descr, tuple):  # an array in each element: its type and its shape
        return len(descr) == 2 and _is_written(descr[0])
    return isinstance(descr, str) and re.fullmatch(PLAIN, descr) is not None


class Element(NamedTuple):
    """A NumPy element type."""

    nbytes: int
    dtype: DType | None
    """None if paramtool has no such type; the bytes can still be read."""
    swap: int
    """The number of bytes to byte-swap together; 1 in a little-endian file."""
    note: str = ""


def element(descr: object, nbytes: int, numel: int) -> Element:
    """The element type of a header whose data has `nbytes` bytes; ValueError if it is not a type.

    The fields of a structured type are ignored: the data determines the length of an element.
    """
    if descr == MXNET_BFLOAT16:
        return Element(2, DTYPES["bfloat16"], 1, f"{descr} is how MXNet 2 writes bfloat16")
    if isinstance(descr, list) and descr and _is_written(descr):
        return Element(nbytes // numel if numel else 0, None, 1)
    match = re.fullmatch(PLAIN, descr) if isinstance(descr, str) else None
    if match is None:
        raise ValueError(f"the type is {_brief(descr)}; expected one that NumPy writes, such as '<f4'")
    order, kind, count, unit = match.groups()
    dtype = DTYPES.get(CODES.get(kind + (count or ""), ""))
    if dtype and not unit and (order != "|" or dtype.block_bytes == 1):
        swap = (dtype.component or dtype).block_bytes if order == ">" else 1
        writer = {"V": "ml_dtypes writes", "b": "MXNet 2 writes"}.get(kind if dtype.name == "bfloat16" else "", "")
        return Element(dtype.block_bytes, dtype, swap, f"{descr!r} is how {writer} bfloat16" if writer else "")
    if kind in "mM":
        return Element(8, None, 1)
    if count and (kind in "SUV" or kind + count in ("f12", "f16", "c24", "c32")):
        return Element(int(count) * (4 if kind == "U" else 1), None, 1)
    raise ValueError(f"the type is {descr!r:.60}, which is not known")


def value(found: Header, storage: int, nbytes: int) -> tuple[View | Compound, Element]:
    """The array of a header whose data has `nbytes` bytes; ValueError if header and data do not fit.

    Strings, dates, long doubles and structures have no element type.  They become a compound: a row of bytes for each
    element.
    """
    numel = prod(found.shape)
    kind = element(found.descr, nbytes, numel)
    if (needed := numel * kind.nbytes) != nbytes:
        raise ValueError(f"{found.descr!s:.100} {list(found.shape)} needs {needed} bytes; found {nbytes}")
    if kind.dtype:
        return View(storage, kind.dtype, 0, found.shape, _strides(found, 1)), kind
    shape = (*found.shape, kind.nbytes)
    data = View(storage, DTYPES["uint8"], 0, shape, (*_strides(found, kind.nbytes), 1))
    return Compound(f"NumPy {found.descr!s:.100}", {"bytes": data}, {"descr": found.descr}), kind


def _strides(found: Header, step: int) -> Shape:
    """Strides in elements: the last axis is the fastest, in Fortran order the first."""
    strides = []
    for size in found.shape if found.fortran_order else reversed(found.shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(strides if found.fortran_order else reversed(strides))
