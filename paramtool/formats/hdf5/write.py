"""Write plain HDF5: a dataset for each tensor, in groups at `/`, and hard links for further names of a whole tensor.

h5py writes the container into a file that keeps only what was written (`_Sparse`): the datasets have their places in
it, and no bytes.  What h5py wrote becomes literal bytes of the output, and the tensors stand between them.

Nothing in the file depends on the time: no object has a date.  bfloat16, which HDF5 does not have, is two opaque bytes
and an attribute that says so, as Keras 3 writes it.

Sources: the HDF5 file format specification; keras/src/saving/saving_lib.py (3.15, H5Entry).
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from paramtool.errors import UsageError
from paramtool.formats.output import OutputFile, Segment, is_utf8, tensor_above
from paramtool.model.plan import Plan, Target

SEPARATOR = "/"
MAX_AXES = 32
"""H5S_MAX_RANK."""
DTYPES = frozenset((
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128",
))  # fmt: skip
MARKED = "bfloat16"
"""The element type that an attribute `dtype` names."""


def refusals(dtypes: Mapping[str, str]) -> dict[str, str]:
    """{name: reason} for the names in {name: dtype} that an HDF5 file cannot store."""
    refused = {name: f"HDF5 has no {dtype}" for name, dtype in dtypes.items() if dtype not in DTYPES}
    for name in dtypes:
        parts = name.split(SEPARATOR)
        if (held := tensor_above(name, dtypes, SEPARATOR)) is not None:
            refused[name] = f"is inside {held!r:.200}, which is a tensor itself"
        elif not all(parts) or "." in parts:
            refused[name] = "HDF5 has no name without letters, and takes '.' for the group itself"
        elif "\0" in name or not is_utf8(name):
            refused[name] = "HDF5 stores names as UTF-8 without zero bytes"
    return refused


def unfit(target: Target) -> str:
    """Why HDF5 cannot store a tensor of this shape; empty if it can."""
    return f"has {len(target.shape)} axes; HDF5 stores up to {MAX_AXES}" if len(target.shape) > MAX_AXES else ""


def lay_out(plan: Plan) -> tuple[OutputFile, ...]:
    """One file: a dataset for each target, and hard links for the other names.  UsageError without h5py."""
    if find_spec("h5py") is None:
        raise UsageError(
            f"{plan.source}: writing HDF5 needs h5py, which is not installed", hint="pip install 'paramtool[keras]'"
        )
    file = _SparseFile()
    places = _container(file, plan)
    segments: list[Segment] = []
    at = 0
    for start, target in sorted(places.items()):
        segments += [file.literal(at, start), target]
        at = start + target.nbytes
    segments.append(file.literal(at, file.nbytes))
    return (OutputFile("", tuple(segments)),)


def _container(file: _SparseFile, plan: Plan) -> dict[int, Target]:
    """Write everything but the tensors; {byte: the tensor at that place}."""
    import h5py

    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST)
    storing = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    storing.set_layout(h5py.h5d.CONTIGUOUS)
    storing.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    storing.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    storing.set_obj_track_times(False)
    linking = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    linking.set_create_intermediate_group(True)
    linking.set_char_encoding(h5py.h5t.CSET_UTF8)
    places: dict[int, Target] = {}
    with h5py.File(file, "w", libver=("earliest", "latest"), track_times=False) as made:
        for target in plan.targets:
            space = h5py.h5s.create_simple(target.shape) if target.shape else h5py.h5s.create(h5py.h5s.SCALAR)
            stored = h5py.h5d.create(made.id, None, _type(target.dtype.name), space, storing)
            if target.dtype.name == MARKED:
                h5py.AttributeManager(h5py.Dataset(stored)).create("dtype", MARKED)
            h5py.h5o.link(stored, made.id, target.name.encode(), lcpl=linking)
            if target.nbytes:
                places[stored.get_offset()] = target
        for one in plan.aliases:
            made.id.links.create_hard(one.name.encode(), made.id, one.owner.encode(), lcpl=linking)
    return places


def _type(name: str) -> Any:
    """HDF5's type for the elements of a tensor, as h5py has it."""
    import h5py
    import numpy as np

    if name == MARKED:
        return h5py.h5t.py_create(np.dtype("V2"), logical=True)
    return h5py.h5t.py_create(np.dtype(name).newbyteorder("<"), logical=True)


class _SparseFile(io.RawIOBase):
    """A file that keeps the runs of bytes that were written, and no others: those are zero."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._at = 0
        self._starts: list[int] = []
        self._runs: dict[int, bytearray] = {}

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.nbytes}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def truncate(self, size: int | None = None) -> int:
        """Only ever to the end that h5py has reached: what lies behind it was not written."""
        self.nbytes = self._at if size is None else size
        return self.nbytes

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer).cast("B")
        found = self.literal(self._at, max(self._at, min(self._at + len(room), self.nbytes)))
        room[: len(found)] = found
        self._at += len(found)
        return len(found)

    def write(self, data: Any) -> int:
        piece = memoryview(data).cast("B")
        start, stop = self._at, self._at + len(piece)
        k = bisect_right(self._starts, start) - 1
        if k < 0 or self._starts[k] + len(self._runs[self._starts[k]]) < start:
            k += 1
            self._starts.insert(k, start)
            self._runs[start] = bytearray()
        first = self._starts[k]
        run = self._runs[first]
        while k + 1 < len(self._starts) and self._starts[k + 1] <= stop:  # runs that it reaches become one
            other = self._starts.pop(k + 1)
            more = self._runs.pop(other)
            run += bytes(max(0, other - first - len(run))) + more[max(0, first + len(run) - other) :]
        run[start - first : stop - first] = piece
        self._at = stop
        self.nbytes = max(self.nbytes, stop)
        return len(piece)

    def literal(self, start: int, stop: int) -> bytes:
        """The bytes of a range."""
        found = bytearray(stop - start)
        k = max(0, bisect_right(self._starts, start) - 1)
        for first in self._starts[k : bisect_right(self._starts, stop)]:
            run = self._runs[first]
            low, high = max(start, first), min(stop, first + len(run))
            if low < high:
                found[low - start : high - start] = run[low - first : high - first]
        return bytes(found)
