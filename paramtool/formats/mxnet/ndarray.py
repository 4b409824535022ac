"""One NDArray of MXNet, as `.params` has it after each other, and a pickle in the state of an NDArray.

An NDArray says what it is by its first u32; `shape` is i32 ndim and i64 sizes:

    ndim (V0)         u32 sizes;                                       device, type, data
    0xF993FAC8 (V1)   shape;                                           device, type, data
    0xF993FAC9 (V2)   i32 kind; [stored shape;] shape;  [nothing more] device, type, [type and shape of each
                      auxiliary array,] data, [auxiliary data]
    0xF993FACA (V3)   as V2, always dense; its shapes have NumPy's meaning

Up to V2 a shape without axes is an array without data, and nothing follows it; in V3 that is a scalar, and an array
without data has -1 axes or an axis of -1.  A device is i32 kind, i32 number; a type i32.

Sources: src/ndarray/ndarray.cc of MXNet 1.9 (NDArray::Save, Load, LegacyLoad), include/mxnet/ndarray.h and base.h,
mshadow/base.h (TypeFlag); bytes of MXNet 1.9.1 and 2.0.0b1.
"""

from __future__ import annotations

from functools import cache
from math import prod
from struct import Struct
from typing import BinaryIO

from paramtool.model.checkpoint import Compound, NoData, Value
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.storage import ByteRange, SourceFile, Storage
from paramtool.model.view import MAX_AXES, Shape, View, contiguous

U32, I64, I32 = Struct("<I"), Struct("<q"), Struct("<i")
DEVICE = Struct("<ii")
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
TYPE_FLAGS = (
    "float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool", "int16", "uint16", "uint32", "uint64",
    "bfloat16",
)  # fmt: skip
DEVICES = {1: "cpu", 2: "gpu", 3: "cpu_pinned", 5: "cpu_shared"}
AUXILIARIES: dict[int, tuple[str, ...]] = {0: (), 1: ("indices",), 2: ("indptr", "indices")}
"""{storage kind: its auxiliary arrays in order}; csr keeps its pointers first (enum CSRAuxType)."""
KINDS = {1: "row_sparse", 2: "csr"}


class NdArrayReader:
    """A position in the file, and the storages found so far."""

    def __init__(self, file: BinaryIO, source: SourceFile) -> None:
        self.file = file
        self.source = source
        self.at = 0
        self.storages: dict[int, Storage] = {}
        self.devices: dict[str, None] = {}
        self.versions: set[str] = set()

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self.source.nbytes - self.at

    def array(self) -> Value:
        """One NDArray; ValueError if it is invalid."""
        (magic,) = self.take(U32)
        self.versions.add({V1: "V1", V2: "V2", V3: "V3"}.get(magic, "V0"))
        if magic in (V2, V3):
            return self.array_of_kind(magic)
        if magic != V1 and magic > MAX_AXES:
            raise ValueError(f"begins with {magic:#010x}; expected an NDArray's magic number, or up to {MAX_AXES} axes")
        shape = self.shape() if magic == V1 else self.take(_numbers(magic, "I"))
        return self.dense(shape) if shape else NOTHING

    def array_of_kind(self, magic: int) -> Value:
        """The rest of an NDArray whose storage kind is stored."""
        (kind,) = self.take(I32)
        if kind not in AUXILIARIES or (kind and magic == V3):
            raise ValueError(f"found storage kind {kind}; expected {'0' if magic == V3 else '0, 1 or 2'}")
        stored = self.shape() if kind else ()
        shape = self.shape(may_be_unknown=magic == V3)
        if shape is None or (magic == V2 and not shape):
            return NOTHING
        return self.sparse(kind, stored or (), shape) if kind else self.dense(shape)

    def dense(self, shape: Shape) -> View:
        """Device, type and data of a dense array."""
        self.device()
        return self.data(self.dtype(), shape)

    def sparse(self, kind: int, stored: tuple[int, ...], shape: Shape) -> Compound:
        """The rest of a sparse array: values of the stored shape, and the arrays that say where they belong."""
        self.device()
        dtype = self.dtype()
        labels = AUXILIARIES[kind]
        heads = {label: (self.dtype(), self.shape() or ()) for label in labels}
        if not stored or heads["indices"][1] != stored[:1] or (kind == 1 and stored[1:] != shape[1:]):
            # MXNet itself writes such a file if it saves an array that is still being computed, and cannot read it
            indices = list(heads["indices"][1])
            raise ValueError(f"{KINDS[kind]} of {list(shape)} has {list(stored)} values and {indices} indices")
        if kind == 2 and (len(shape) != 2 or heads["indptr"][1] not in ((shape[0] + 1,), (0,))):
            raise ValueError(
                f"csr of {list(shape)} has {list(heads['indptr'][1])} pointers; expected one more than rows"
            )
        parts = {"data": self.data(dtype, stored)}
        parts |= {label: self.data(*heads[label]) for label in labels}
        return Compound(KINDS[kind], parts, {"shape": shape})

    def shape(self, may_be_unknown: bool = False) -> Shape | None:
        """i32 ndim and i64 sizes; None if any of them is -1, which means that the shape is unknown."""
        (ndim,) = self.take(I32)
        if may_be_unknown and ndim == -1:
            return None
        if not 0 <= ndim <= MAX_AXES:
            raise ValueError(f"found {ndim} axes; expected 0 to {MAX_AXES}")
        sizes = self.take(_numbers(ndim, "q"))
        if may_be_unknown and min(sizes, default=0) == -1:
            return None
        if min(sizes, default=0) < 0:
            raise ValueError(f"found the shape {list(sizes)}; expected no size below 0")
        return sizes

    def device(self) -> None:
        """Where the array was when it was saved."""
        kind, number = self.take(DEVICE)
        if kind not in DEVICES:
            raise ValueError(f"found device kind {kind}; expected one of {', '.join(map(str, DEVICES))}")
        self.devices[f"{DEVICES[kind]}({number})"] = None

    def dtype(self) -> DType:
        """An element type by its number."""
        (flag,) = self.take(I32)
        if not 0 <= flag < len(TYPE_FLAGS):
            raise ValueError(f"found the unknown element type {flag}; expected 0 to {len(TYPE_FLAGS) - 1}")
        return DTYPES[TYPE_FLAGS[flag]]

    def data(self, dtype: DType, shape: Shape) -> View:
        """A view of the bytes that follow, which are skipped."""
        nbytes = dtype.nbytes(prod(shape))
        if nbytes > self.left:
            raise ValueError(f"{dtype.name} {list(shape)} needs {nbytes} bytes, {self.left} are left: it is truncated")
        view = contiguous(len(self.storages), dtype, shape)
        backing = ByteRange(self.source.path, self.at, self.at + nbytes)
        self.storages[len(self.storages)] = Storage(len(self.storages), nbytes, backing)
        self.at += nbytes
        self.file.seek(self.at)
        return view

    def take(self, numbers: Struct) -> tuple[int, ...]:
        """The next numbers; ValueError if the file ends before."""
        raw = self.file.read(numbers.size)
        if len(raw) < numbers.size:
            raise ValueError(f"the file ends at byte {self.at + len(raw)}: it is truncated")
        self.at += numbers.size
        return numbers.unpack(raw)


NOTHING = NoData(DTYPES["float32"], (), "empty")
"""An NDArray without a shape; it has no type either, and MXNet would use float32."""


@cache
def _numbers(count: int, code: str) -> Struct:
    return Struct(f"<{count}{code}")
