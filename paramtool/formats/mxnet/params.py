"""MXNet's `.params`: a list of consecutive NDArrays, then their names.

    u64 0x112, u64 0                the list's magic number, and zero
    u64 count, count NDArrays
    u64 names, then for each        u64 length and its bytes; no names at all for a plain list

An NDArray is as `ndarray.py` says.

Each array has its own storage: such a file shares nothing.  Names are as in the file, including `arg:` and `aux:`, with
which a model's symbol distinguishes parameters and auxiliary states.

Sources: src/ndarray/ndarray.cc of MXNet 1.9 (NDArray::Save, Load, LegacyLoad), include/mxnet/ndarray.h and base.h,
mshadow/base.h (TypeFlag); bytes of MXNet 1.9.1 and 2.0.0b1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from struct import Struct

from paramtool.errors import Defects, FormatError, UnsafeError, plural
from paramtool.formats.files import open_source
from paramtool.formats.mxnet import ndarray, symbol
from paramtool.formats.mxnet.ndarray import U32, NdArrayReader
from paramtool.formats.output import OutputFile, Segment, is_utf8
from paramtool.model.checkpoint import Checkpoint, Entry, Value
from paramtool.model.plan import Plan, Target
from paramtool.model.view import View

NAME = "mxnet"
HEADER = Struct("<QQQ")
"""magic number, reserved, count of arrays"""
U64 = Struct("<Q")
MAGIC = 0x112
MAX_ARRAYS = 2_000_000
MAX_NAMES_NBYTES = 256 << 20


def read(path: str) -> Checkpoint:
    """Describe a file with MXNet's NDArray list; FormatError, or Defects if several names are wrong."""
    file, source = open_source(path)
    with file:
        reader = ParamsReader(file, source)
        values = reader.arrays()
        names = reader.names(len(values))
    entries = {name: Entry(value, symbol.role(name)) for name, value in zip(names, values, strict=True)}
    views = {name: value for name, value in zip(names, values, strict=True) if isinstance(value, View)}
    modules, parts, notes = symbol.describe(path, views)
    places = [place for place in reader.devices if not place.startswith("cpu")]
    return Checkpoint(
        format=" ".join([NAME, "+".join(sorted(reader.versions))]).rstrip(),
        files=(source,),
        storages=reader.storages,
        entries=entries,
        producer="MXNet" + (f", saved from {', '.join(places[:3])}" if places else ""),
        notes=notes,
        modules=modules,
        parts=parts,
    )


class ParamsReader(NdArrayReader):
    """A position in the file, and the storages found so far."""

    def arrays(self) -> list[Value]:
        """Every array in order; FormatError at the first invalid one, since the next begins where it ends."""
        path = self.source.path
        if self.left < HEADER.size:
            raise FormatError(f"{path}: has {self.left} bytes; an MXNet file begins with {HEADER.size} bytes of header")
        magic, reserved, count = self.take(HEADER)
        if magic != MAGIC or reserved:
            raise FormatError(f"{path}: byte 0: found {magic:#x} and {reserved:#x}; expected {MAGIC:#x} and 0")
        if count > MAX_ARRAYS:
            raise UnsafeError(f"{path}: byte 16: found {count} arrays; expected at most {MAX_ARRAYS}")
        if count * U32.size > self.left:
            raise FormatError(f"{path}: byte 16: found {count} arrays, but {self.left} bytes follow; it is truncated")
        values = []
        for number in range(count):
            start = self.at
            try:
                values.append(self.array())
            except ValueError as error:
                raise FormatError(f"{path}: array {number} of {count}, at byte {start}: {error}") from None
        return values

    def names(self, count: int) -> list[str]:
        """The names at the end of the file; for unnamed arrays, their numbers."""
        path, start = self.source.path, self.at
        try:
            (found,) = self.take(U64)
            if found not in (0, count):
                raise ValueError(f"{plural(found, 'name')}; expected {count}, or none")
            names = [self.name() for _ in range(found)]
        except ValueError as error:
            raise FormatError(f"{path}: the names, at byte {start}: {error}") from None
        if self.left:
            raise FormatError(f"{path}: {self.left} bytes follow the names; expected the end of the file")
        if twice := [(name, many) for name, many in Counter(names).items() if many > 1]:
            # A line for each duplicate name; MXNet's reader takes the last array of that name.
            lines = [f"{name!r:.200}: appears {many} times; expected each name once" for name, many in twice]
            raise Defects(path, lines)
        return names or [str(number) for number in range(count)]

    def name(self) -> str:
        """One name; ValueError if it is invalid."""
        (nbytes,) = self.take(U64)
        if nbytes > min(self.left, MAX_NAMES_NBYTES):
            raise ValueError(f"a name of {nbytes} bytes at byte {self.at}, {self.left} are left: it is truncated")
        raw = self.file.read(nbytes)
        self.at += nbytes
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{raw!r:.100} at byte {self.at - nbytes} is not UTF-8") from None


# --- Write MXNet's `.params`: an NDArray list of version V2, which MXNet 1.0 to 2.0 reads, dense and on the CPU -------
#
# Names are those of the source: `arg:` and `aux:`, with which `mx.model.load_checkpoint` tells parameters from
# auxiliary states, are a part of the name.
#
# Sources: src/ndarray/ndarray.cc (NDArray::Save) and mshadow/base.h (TypeFlag) of MXNet 1.9.1.


FLAGS = {
    name: flag
    for flag, name in enumerate(ndarray.TYPE_FLAGS)
    if name not in ("int16", "uint16", "uint32", "uint64")  # of 2.0 alone: 1.9.1 says "Unknown type enum 8"
}
"""{dtype: its number}, of those that MXNet 1.9.1 reads."""
DENSE = 0
CPU = ndarray.DEVICE.pack(1, 0)


def refusals(dtypes: Mapping[str, str]) -> dict[str, str]:
    """{name: reason} for the names in {name: dtype} that a `.params` file cannot store."""
    refused = {name: f"MXNet 1.9 has no {dtype}" for name, dtype in dtypes.items() if dtype not in FLAGS}
    for name in dtypes:
        if "\0" in name:
            refused[name] = "MXNet ends a name at its first zero byte"
        elif not is_utf8(name):
            refused[name] = "is not UTF-8"
    return refused


def unfit(target: Target) -> str:
    """Why an NDArray list cannot store a tensor of this shape; empty if it can."""
    if target.shape:
        return ""
    return "has no axes, which means an array without data to MXNet 1.x; a shape of [1] can be stored"


def lay_out(plan: Plan) -> tuple[OutputFile, ...]:
    """One file; every name of the plan is a target."""
    return (OutputFile("", tuple(_segments(plan.targets))),)


def _segments(targets: tuple[Target, ...]) -> Iterator[Segment]:
    before = HEADER.pack(MAGIC, 0, len(targets))
    for target in targets:
        shape = b"".join(ndarray.I64.pack(size) for size in target.shape)
        head = ndarray.U32.pack(ndarray.V2) + ndarray.I32.pack(DENSE) + ndarray.I32.pack(len(target.shape)) + shape
        yield before + head + CPU + ndarray.I32.pack(FLAGS[target.dtype.name])
        yield target
        before = b""
    names = [target.name.encode() for target in targets]
    yield U64.pack(len(names)) + b"".join(U64.pack(len(name)) + name for name in names)
