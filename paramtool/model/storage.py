"""Storages: the flat byte buffers that windows look into, and where their bytes stand."""

from __future__ import annotations

from dataclasses import dataclass

from paramtool.model.dtype import DType
from paramtool.model.view import View


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was when it was described; the engine refuses to read it once it has changed."""

    path: str
    nbytes: int
    mtime_ns: int
    inode: int = 0
    """0 where it is not known: size and time are compared alone."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `start` to `stop` of a file, as they are."""

    file: str
    """The path, as in `Checkpoint.files`."""
    start: int
    stop: int
    crc32: int | None = None
    """What the container says of these bytes, to be proved when all of them are read; None if it says nothing."""

    @property
    def nbytes(self) -> int:
        """The length of the range."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Encoded:
    """Bytes of a file that have to be decoded first, step by step.

    Steps: `inflate` (raw deflate, as in a zip), `skip128` (leave out so many first bytes, a header), `swap2` `swap4`
    `swap8` (turn the bytes of each unit round: big-endian files).  Decoded into a temporary file, where any window
    can be read.
    One step stands alone: `hdf5:PATH` is a dataset of the HDF5 file in that range, its chunks put together by h5py.
    """

    source: ByteRange
    steps: tuple[str, ...]
    crc32: int | None = None
    """Of the bytes after inflating, before anything is left out or turned round."""


@dataclass(frozen=True, slots=True)
class Inline:
    """A few bytes that are not a range of the file, such as an array that is pickled as text."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Cast:
    """The row-major elements of a window on another storage, each converted to another type, to nearest even."""

    view: View
    """On a storage of the same checkpoint."""
    dtype: DType
    lossless: bool = True
    """Whether casting back gives the same bytes, as the record says."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One element again and again."""

    element: bytes


Backing = ByteRange | Encoded | Inline | Cast | Constant


@dataclass(frozen=True, slots=True)
class Storage:
    """A flat buffer of `nbytes` bytes."""

    id: int
    nbytes: int
    backing: Backing
