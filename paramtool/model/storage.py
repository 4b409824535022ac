"""Storages: the flat byte buffers that windows view, and where their bytes are."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from paramtool.lazy_dataclass import frozen
from paramtool.model.dtype import DType
from paramtool.model.view import View


@frozen
class SourceFile:
    """A file as it was when it was described; the engine refuses to read it once it has changed."""

    path: str
    nbytes: int
    mtime_ns: int
    inode: int = 0
    """0 where it is not known: then only size and time are compared."""
    mode: int = 0o600
    """Its permissions then (of st_mode)."""


class ByteRange(NamedTuple):
    """Bytes `start` to `stop` of a file, as they are."""

    file: str
    """The path, as in `Checkpoint.files`."""
    start: int
    stop: int
    crc32: int | None = None
    """The CRC that the container states, proved when all bytes are read; None if it states none."""

    @property
    def nbytes(self) -> int:
        """The length of the range."""
        return self.stop - self.start


def overlapping(ranges: Iterable[ByteRange]) -> tuple[ByteRange, ByteRange] | None:
    """The first two different ranges of one file that share bytes; None where all are apart.

    >>> overlapping([ByteRange("f", 0, 8), ByteRange("f", 4, 6), ByteRange("g", 0, 8)])
    (ByteRange(file='f', start=0, stop=8, crc32=None), ByteRange(file='f', start=4, stop=6, crc32=None))
    """
    last = ByteRange("", 0, 0)
    for place in sorted(set(ranges), key=lambda one: one[:3]):
        if place.file == last.file and place.start < last.stop:
            return last, place
        if place.file != last.file or place.stop > last.stop:
            last = place
    return None


@frozen
class Encoded:
    """Bytes of a file that have to be decoded first, step by step.

    Steps: `inflate` (raw deflate, as in a zip), `skip128` (skip that many bytes, a header), `swap2` `swap4` `swap8`
    (byte-swap units of that size, for big-endian files), `utf8` `unicode` `string` (bytes that a pickle holds as text,
    `formats/pickle/texts.py`), `keep:0-8,12-20` (these ranges of the source alone, one after the other, for arrays that
    are stored in pieces).  The result goes to a temporary file, where any window can be
    read.
    `hdf5:PATH` is always the only step: a dataset of the HDF5 file in that range, whose chunks h5py assembles.
    """

    source: ByteRange
    steps: tuple[str, ...]
    crc32: int | None = None
    """The CRC of the bytes after inflating, before any are skipped or byte-swapped."""


@frozen
class Inline:
    """Bytes that are not a range of the file, such as an array that is pickled as text."""

    data: bytes


@frozen
class Cast:
    """The row-major elements of a window on another storage, each cast to another dtype, rounded to nearest even."""

    view: View
    """A window on a storage of the same checkpoint."""
    dtype: DType
    lossless: bool = True
    """Whether casting back gives the same bytes, as the record says."""


@frozen
class Constant:
    """One element, repeated."""

    element: bytes


@frozen
class Part:
    """A box of an assembled tensor, and where its elements are."""

    here: View
    """The box in the assembled tensor: a window on storage -1, with the row-major strides of the whole."""
    there: View
    """Where its elements are: a window of the same shape and dtype on another storage of the same checkpoint."""


@frozen
class Assembled:
    """A row-major tensor whose elements are in several storages, such as one that ranks saved in shards.

    The parts tile it: each element is in exactly one.  They are windows on byte ranges and encoded bytes alone.
    """

    parts: tuple[Part, ...]


Backing = ByteRange | Encoded | Inline | Cast | Constant | Assembled


def is_made(backing: Backing) -> bool:
    """Whether a storage can have more bytes than its file has for it."""
    if isinstance(backing, Encoded):
        return any(step == "inflate" or step.startswith("hdf5:") for step in backing.steps)
    return not isinstance(backing, ByteRange)


class Storage(NamedTuple):
    """A flat buffer of `nbytes` bytes."""

    id: int
    nbytes: int
    backing: Backing


class Ranges(Mapping[int, Storage]):
    """The storages that are plain byte ranges of files, numbered from 0.  Each `Storage` is made when asked for.

    `crc32s` has the CRC that the container states for each; it is empty where the container states none.

    >>> Ranges("model.safetensors", [8, 24], [24, 32])[1].backing
    ByteRange(file='model.safetensors', start=24, stop=32, crc32=None)
    """

    __slots__ = ("_crc32s", "_ends", "_files", "_starts", "_stops")

    def __init__(self, file: str, starts: Iterable[int], stops: Iterable[int], crc32s: Iterable[int] = ()) -> None:
        self._starts = array("Q", starts)
        self._stops = array("Q", stops)
        self._crc32s = array("L", crc32s)
        self._files = [file]
        self._ends = [len(self._starts)]
        """For each file, the number after its last storage."""

    @classmethod
    def of(cls, ranges: Sequence[ByteRange]) -> Ranges | None:
        """The storages in ranges of one file; None for ranges of several files, or if only some CRCs are known."""
        files = {one.file for one in ranges}
        known = {one.crc32 is not None for one in ranges if one.nbytes}  # the CRC of nothing is 0
        if len(files) != 1 or len(known) > 1:
            return None
        crc32s = [one.crc32 or 0 for one in ranges] if True in known else []
        return cls(files.pop(), [one.start for one in ranges], [one.stop for one in ranges], crc32s)

    @classmethod
    def together(cls, parts: Sequence[Mapping[int, Storage]]) -> Ranges | None:
        """The storages of one checkpoint and then those of the next; None where some are more than plain ranges.

        >>> two = Ranges.together([Ranges("a", [8], [24]), Ranges("b", [0, 4], [4, 9])])
        >>> [two[k].backing.file for k in two], two[2].backing.start
        (['a', 'b', 'b'], 4)
        """
        found = cls("", (), ())
        found._files, found._ends = [], []
        for part in parts:
            if not isinstance(part, Ranges) or part._crc32s:
                return None
            found._files += part._files
            found._ends += [len(found) + end for end in part._ends]
            found._starts += part._starts
            found._stops += part._stops
        return found

    def __getitem__(self, number: int) -> Storage:
        """The storage of that number; KeyError where there is none."""
        if not 0 <= number < len(self._starts):
            raise KeyError(number)
        start, stop = self._starts[number], self._stops[number]
        crc32 = self._crc32s[number] if self._crc32s else None
        file = self._files[bisect_right(self._ends, number)]
        return Storage(number, stop - start, ByteRange(file, start, stop, crc32))

    def __iter__(self) -> Iterator[int]:
        """The numbers, in order."""
        return iter(range(len(self._starts)))

    def __len__(self) -> int:
        """The number of storages."""
        return len(self._starts)

    def nbytes_of(self, number: int) -> int | None:
        """The size of a storage, without the rest of it; None where there is none."""
        return self._stops[number] - self._starts[number] if 0 <= number < len(self._starts) else None


def nbytes_of(storages: Mapping[int, Storage], number: int | str) -> int | None:
    """The size of a storage; None where there is none of that number."""
    if not isinstance(number, int):
        return None
    if isinstance(storages, Ranges):
        return storages.nbytes_of(number)
    found = storages.get(number)
    return None if found is None else found.nbytes
