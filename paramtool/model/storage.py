"""Storages: the flat byte buffers that windows look into, and where their bytes stand."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from paramtool.lazy_dataclass import dataclass
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
    mode: int = 0o600
    """Who might read it then: the permissions of st_mode."""


class ByteRange(NamedTuple):
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


class Storage(NamedTuple):
    """A flat buffer of `nbytes` bytes."""

    id: int
    nbytes: int
    backing: Backing


class Ranges(Mapping[int, Storage]):
    """The storages of a file that stand there as they are, numbered from 0: a few numbers each, made when asked for.

    `crc32s` has what the container says of each; nothing where it says nothing.

    >>> Ranges("model.safetensors", [8, 24], [24, 32])[1].backing
    ByteRange(file='model.safetensors', start=24, stop=32, crc32=None)
    """

    __slots__ = ("_crc32s", "_file", "_starts", "_stops")

    def __init__(self, file: str, starts: Iterable[int], stops: Iterable[int], crc32s: Iterable[int] = ()) -> None:
        self._file = file
        self._starts = array("Q", starts)
        self._stops = array("Q", stops)
        self._crc32s = array("L", crc32s)

    @classmethod
    def of(cls, ranges: Sequence[ByteRange]) -> Ranges | None:
        """The storages that ranges of one file are; None where they are of several, or CRCs are known of some only."""
        files = {one.file for one in ranges}
        known = {one.crc32 is not None for one in ranges if one.nbytes}  # the CRC of nothing is 0
        if len(files) != 1 or len(known) > 1:
            return None
        crc32s = [one.crc32 or 0 for one in ranges] if True in known else []
        return cls(files.pop(), [one.start for one in ranges], [one.stop for one in ranges], crc32s)

    def __getitem__(self, number: int) -> Storage:
        """The storage of that number; KeyError where there is none."""
        if not 0 <= number < len(self._starts):
            raise KeyError(number)
        start, stop = self._starts[number], self._stops[number]
        crc32 = self._crc32s[number] if self._crc32s else None
        return Storage(number, stop - start, ByteRange(self._file, start, stop, crc32))

    def __iter__(self) -> Iterator[int]:
        """The numbers, in order."""
        return iter(range(len(self._starts)))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._starts)
