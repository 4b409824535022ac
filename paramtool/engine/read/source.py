"""Reading windows of a described checkpoint in order, block by block; CRCs that the container states are checked.

An encoded storage is decoded while it is read if all of it is read in order.  Otherwise it is decoded once into a
temporary file, in which zeros take no space.  Constants are never stored.  An assembled tensor is read from its parts,
and everything else in place.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import accumulate
from types import TracebackType
from typing import BinaryIO

from paramtool.engine.read.blocks import BLOCK_NBYTES, blocks
from paramtool.engine.read.crcs import THREAD_NBYTES, Crcs, Sums
from paramtool.engine.read.elements import ELEMENTS, Array, Elements, forget_rooms, number_type, take
from paramtool.engine.read.open_files import CHUNK_NBYTES, OpenFiles, read_blocks
from paramtool.errors import FormatError, OutputError
from paramtool.formats.files import Placed, inflated, read_at, read_bytes
from paramtool.formats.pickle.texts import LONGEST, decoded
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.dtype import DTYPES
from paramtool.model.inflating import Budget
from paramtool.model.storage import (
    Assembled,
    ByteRange,
    Cast,
    Constant,
    Encoded,
    Inline,
    Part,
    SourceFile,
    Storage,
    is_made,
)
from paramtool.model.tiling import within
from paramtool.model.view import View, contiguous

Buffer = memoryview | bytes


class Source:
    """The files of a checkpoint, open for reading windows.  A context manager."""

    def __init__(self, checkpoint: Checkpoint, max_files: int = 0, *, compares_crcs: bool = True) -> None:
        """`max_files` may be open at once; 0 for as many as the system allows easily."""
        self.checkpoint = checkpoint
        self._files = OpenFiles(checkpoint.files, max_files)
        self._crcs = Crcs(checkpoint, compares_crcs)
        self.nbytes_read = 0
        """Bytes that were read from storages so far."""
        self._spool = Spool()
        self._streamed: set[int] = set()
        """Storages that were decoded while they were read; a second read decodes them into the temporary file."""
        self._assemblies: dict[int, Assembly] = {}
        self._charged: set[int | View] = set()
        self._budget = Budget(sum(file.nbytes for file in checkpoint.files))
        self._checked = False

    def __enter__(self) -> Source:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def _open(self) -> None:
        """Open every file once, so that a missing or changed file is an error before anything is written."""
        for source in self.checkpoint.files:
            self._file(source.path)

    def _file(self, path: str) -> BinaryIO:
        """An open file; comparisons end before another file is closed for it."""
        if self._files.closes_another(path):
            self.settle()
        return self._files.open(path)

    def share(self, views: Iterable[View]) -> bool:
        """Open what holds some windows, so that several threads can read them; False if only one thread can."""
        backings = [self.checkpoint.storages[number].backing for number in {view.number for view in views}]
        paths = {backing.file for backing in backings if isinstance(backing, ByteRange)}
        for path in paths:
            self._file(path)
        plain = all(isinstance(backing, ByteRange) for backing in backings)
        return plain and not any(self._files.closes_another(path) for path in paths)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None and not self._checked:
            self.check_unchanged()

    def hand_over(self) -> tuple[SourceFile, ...]:
        """The files, for a caller that checks at the end whether they are unchanged; `Source` then does not."""
        self._checked = True
        return self.checkpoint.files

    def check_unchanged(self) -> None:
        """FormatError if a file was replaced or written to since it was described."""
        self._files.check_unchanged()
        self._checked = True

    def close(self) -> None:
        """Close every file, after the thread has finished its work."""
        self._crcs.close()
        self._files.close()
        self._spool.close()
        forget_rooms()

    def place(self, storage_id: int) -> tuple[BinaryIO, int]:
        """The file that has a storage's decoded bytes, and where they begin; no file has those of assembled tensors."""
        return self._place(self.checkpoint.storages[storage_id])

    def _place(self, storage: Storage) -> tuple[BinaryIO, int]:
        if isinstance(storage.backing, ByteRange):
            return self._file(storage.backing.file), storage.backing.start
        if isinstance(storage.backing, Assembled):
            raise TypeError(f"storage {storage.id} is in several places")
        if storage.id not in self._spool:
            self._spool.add(storage.id, self._decoded(storage), storage.nbytes)
        return self._spool.place(storage.id)

    def read(self, storage_id: int, start: int, nbytes: int) -> bytes:
        """Bytes of a storage; FormatError if the file is too short."""
        storage = self.checkpoint.storages[storage_id]
        if (element := self._constant(storage)) is not None:
            return bytes(repeated(element, start, nbytes))
        if isinstance(storage.backing, Assembled):
            data = bytearray(nbytes)
            self.read_into(storage_id, start, memoryview(data))
            return bytes(data)
        file, base = self._place(storage)
        return self._pread(file, base + start, nbytes)

    def _constant(self, storage: Storage) -> bytes | None:
        """The element that a storage repeats; None if it is not a constant."""
        if not isinstance(storage.backing, Constant):
            return None
        self._charge(storage)
        return storage.backing.element

    def _assembly(self, storage_id: int, backing: Assembled) -> Assembly:
        """The parts of an assembled tensor, in order."""
        if storage_id not in self._assemblies:
            self._charge(self.checkpoint.storages[storage_id])
            self._assemblies[storage_id] = Assembly(backing)
        return self._assemblies[storage_id]

    def runs(self, view: View) -> list[View]:
        """A window as windows of bytes on the storages that it is assembled from, in order, where each is a run.

        Otherwise the window itself, alone.
        """
        backing = self.checkpoint.storage_of(view).backing
        if not isinstance(backing, Assembled) or not view.is_contiguous:
            return [view]
        return self._assembly(view.number, backing).runs(view.byte_start, view.byte_stop) or [view]

    def _charge(self, storage: Storage) -> None:
        """Count the size of a storage once against the limit of bytes that may be inflated or calculated."""
        if is_made(storage.backing):
            self._charge_once(storage.id, storage.nbytes)

    def _charge_once(self, what: int | View, nbytes: int) -> None:
        if what not in self._charged:
            self._charged.add(what)
            self._budget.spend(self.checkpoint.path, nbytes)

    def read_into(self, storage_id: int, start: int, buffer: memoryview) -> None:
        """Fill a buffer with bytes of a storage; FormatError if the file is too short.  No CRC is checked."""
        self.nbytes_read += len(buffer)
        self._fill(storage_id, start, buffer)

    def _fill(self, storage_id: int, start: int, buffer: memoryview) -> None:
        storage = self.checkpoint.storages[storage_id]
        if (element := self._constant(storage)) is not None:
            for at in range(0, len(buffer), CHUNK_NBYTES):
                part = buffer[at : at + CHUNK_NBYTES]
                part[:] = repeated(element, start + at, len(part))
            return
        if isinstance(storage.backing, Assembled):
            self._assembly(storage_id, storage.backing).fill(start, buffer, self._fill, self._taken)
            return
        file, base = self._place(storage)
        read_at(file, base + start, buffer)

    def _reader(self, storage_id: int) -> Callable[[int, memoryview], None]:
        """What `_fill` does to a storage, for many calls while no other storage is read."""
        storage = self.checkpoint.storages[storage_id]
        if not isinstance(storage.backing, ByteRange):
            return partial(self._fill, storage_id)
        file, base = self._place(storage)
        return Placed(file, base)

    def _taken(self, view: View, box: tuple[slice, ...]) -> Array:
        """The raw elements of a box of a window."""
        return self.array(view)[box]

    def _pread(self, file: BinaryIO, start: int, nbytes: int) -> bytes:
        self.nbytes_read += nbytes
        return read_bytes(file, start, nbytes)

    def chunks(self, storage_id: int, start: int, stop: int) -> Iterator[memoryview]:
        """Bytes `start` to `stop` of a storage in blocks; its CRC, if it has one, is checked by the end.

        A block is valid only until the next one is asked for: all blocks share one buffer.
        """
        storage = self.checkpoint.storages[storage_id]
        if (element := self._constant(storage)) is not None:
            yield from repetitions(element, start, stop)
            return
        if self._is_streamed(storage, start, stop):
            self._streamed.add(storage_id)
            for part in self._decoded(storage):
                yield memoryview(part)
            self.nbytes_read += stop - start
            return
        if sealed := self.unproved(storage_id, start, stop - start):
            # All bytes of a range in blocks; its CRC is compared at the end, and nothing is read twice
            found = 0
            for block in read_blocks(self._file(sealed.file), sealed.start, sealed.stop):
                found = zlib.crc32(block, found)
                yield block
            self.nbytes_read += sealed.nbytes
            self.compare(sealed, found)
            return
        self.prove_later(storage_id)
        if isinstance(storage.backing, Assembled):
            # Bytes of an assembled tensor in blocks that share one buffer
            buffer = memoryview(bytearray(min(BLOCK_NBYTES, stop - start)))
            for at in range(start, stop, len(buffer)):
                part = buffer[: stop - at]
                self._fill(storage_id, at, part)
                yield part
        else:
            file, base = self.place(storage_id)
            yield from read_blocks(file, base + start, base + stop)
        self.nbytes_read += stop - start
        self.settle()

    def unproved(self, storage_id: int, start: int, nbytes: int) -> ByteRange | None:
        """The range of some bytes if they are all that a CRC was stated for, which was not compared before.

        A caller that reads them anyway gives their CRC to `compare`, so that they are read once.  None for more bytes
        than that is faster for: a thread compares them while the kernel copies them.
        """
        found = self.stated(storage_id, start, nbytes) if nbytes < THREAD_NBYTES else None
        return found if found and self.is_unproved(found) else None

    def stated(self, storage_id: int, start: int, nbytes: int) -> ByteRange | None:
        """The range of some bytes if they are all that a CRC was stated for."""
        found = self.checkpoint.storages[storage_id].backing
        if not isinstance(found, ByteRange) or found.crc32 is None or (start, nbytes) != (0, found.nbytes):
            return None
        return found

    def is_unproved(self, sealed: ByteRange) -> bool:
        """Whether a range has a CRC that was not compared yet."""
        return self._crcs.is_unproved(sealed)

    def compare(self, sealed: ByteRange, found: int) -> None:
        """FormatError if a range has another CRC than its container states."""
        self._crcs.compare(sealed, found)

    def _is_streamed(self, storage: Storage, start: int, stop: int) -> bool:
        """Whether bytes are decoded while they are read: all of a storage, for the first time."""
        if isinstance(storage.backing, (ByteRange, Assembled)) or (start, stop) != (0, storage.nbytes):
            return False
        return storage.id not in self._spool and storage.id not in self._streamed

    def prove(self, storage_id: int) -> None:
        """Compare a whole storage with its CRC, unless that was done before; FormatError if they differ."""
        self.prove_later(storage_id)
        self.settle()

    def prove_later(self, storage_id: int) -> None:
        """Begin to compare a storage with its CRC, in a thread if it is large; `settle` gives the result."""
        backing = self.checkpoint.storages[storage_id].backing
        if isinstance(backing, Assembled):
            for part in self._assembly(storage_id, backing).storages():
                self.prove_later(part)
        if not isinstance(backing, ByteRange):
            return
        self._crcs.begin(backing if backing.crc32 is not None else self._crcs.around(backing), self._file)

    def settle(self) -> None:
        """Wait for the comparisons that were begun; FormatError if a CRC is wrong."""
        self._crcs.settle()

    def will_read(self, storage_id: int, starts: Iterable[int], nbytes: int) -> None:
        """Tell the kernel which bytes of a storage will be read, so that a disk fetches them in parallel."""
        is_assembled = isinstance(self.checkpoint.storages[storage_id].backing, Assembled)
        if is_assembled or not hasattr(os, "posix_fadvise"):  # macOS, Windows
            return
        file, base = self.place(storage_id)
        with suppress(OSError):  # only advice
            for start in starts:
                os.posix_fadvise(file.fileno(), base + start, nbytes, os.POSIX_FADV_WILLNEED)

    def array(self, view: View, sums: Sums | None = None) -> Elements:
        """A window of raw elements that are read when they are indexed; packed types are one row of bytes.

        These reads are not counted in `nbytes_read`, and no CRC is checked; `sums` gets those of what is read.
        """
        reader = partial(self._reader, view.number)
        if sums is not None:
            reader = partial(sums.reader, reader)
        if view.dtype.block_elements != 1:
            return Elements(reader, "u1", view.byte_start, (view.byte_stop - view.byte_start,), strides=(1,))
        size = view.dtype.block_bytes
        repeats = view.nbytes > view.byte_stop - view.byte_start
        return Elements(
            reader,
            ELEMENTS[size],
            view.byte_start,
            view.shape,
            strides=[stride * size for stride in view.strides],
            charge=partial(self._charge_once, view, view.nbytes) if repeats else None,
        )

    def numbers(self, view: View) -> Elements:
        """The same as numbers; ValueError for a type that NumPy has none for."""
        return self.array(view).view(number_type(view.dtype))

    def take(self, storage_id: int, starts: Array, nbytes: int) -> Array:
        """`nbytes` bytes of a storage from each position on, one row for each; counted, and no CRC is checked."""
        self.nbytes_read += len(starts) * nbytes
        return take(self._reader(storage_id), starts, nbytes)

    def row_major(self, view: View) -> Iterator[Buffer]:
        """The elements of a window in row-major order, as blocks of bytes."""
        if not view.numel:
            return
        if view.is_contiguous:
            yield from self.chunks(view.number, view.byte_start, view.byte_stop)
            return
        import numpy as np

        self.prove(view.number)
        array = self.array(view)
        for box in blocks(view.shape, BLOCK_NBYTES // view.dtype.block_bytes):
            block = np.ascontiguousarray(array[box])
            self.nbytes_read += block.nbytes
            yield block.reshape(-1).view("u1").data

    def _decoded(self, storage: Storage) -> Iterator[Buffer]:
        """All bytes of a storage that has to be decoded or calculated; FormatError if their number is wrong."""
        self._charge(storage)
        made = 0
        if isinstance(storage.backing, Encoded):
            parts = self._decode(storage, storage.backing)
        elif isinstance(storage.backing, Inline):
            parts = iter([storage.backing.data])
        else:
            parts = self._derived(storage.backing, storage.nbytes)
        for part in parts:
            made += len(part)
            yield part
        if made != storage.nbytes:
            where = self.checkpoint.path
            raise FormatError(f"{where}: storage {storage.id} decodes to {made} bytes; expected {storage.nbytes}")

    def _derived(self, backing: Cast | Constant | ByteRange | Assembled, nbytes: int) -> Iterator[Buffer]:
        """The bytes of a storage that is calculated."""
        if isinstance(backing, Cast):
            import numpy as np

            narrow, wide = number_type(backing.view.dtype), number_type(backing.dtype)
            with np.errstate(all="ignore"):
                for block in self.row_major(backing.view):
                    yield np.frombuffer(block, narrow).astype(wide).view("u1").data
        elif isinstance(backing, Constant):
            yield from repetitions(backing.element, 0, nbytes)

    def _decode(self, storage: Storage, backing: Encoded) -> Iterator[Buffer]:
        crc = 0
        left = b""
        unit, skip = argument(backing, "swap", 1), argument(backing, "skip", 0)
        for chunk in self._unpacked(storage, backing, storage.nbytes + skip):
            crc = zlib.crc32(chunk, crc)
            chunk, skip = left + chunk[skip:], max(0, skip - len(chunk))
            whole = len(chunk) - len(chunk) % unit
            left = chunk[whole:]
            yield swapped(chunk[:whole], unit)
        if backing.crc32 is not None and crc != backing.crc32:
            raise self._crcs.damaged(backing.source._replace(crc32=backing.crc32), crc)

    def _unpacked(self, storage: Storage, backing: Encoded, nbytes: int) -> Iterator[bytes]:
        """The bytes of an encoded storage, before they are byte-swapped; never more than `nbytes`."""
        file = self._file(backing.source.file)
        if path := next((step[5:] for step in backing.steps if step.startswith("hdf5:")), ""):
            from paramtool.formats.hdf5 import datasets

            self._crcs.begin(self._crcs.around(backing.source), self._file)
            self.settle()
            yield from datasets.elements(file, backing.source, path, storage.nbytes)
            return
        raw = (
            self._pread(file, at, min(BLOCK_NBYTES, stop - at))
            for start, stop in kept(backing)
            for at in range(start, stop, BLOCK_NBYTES)
        )
        yield from unpacked(raw, backing, f"{file.name}: storage {storage.id}", nbytes)


# --- Bytes of an assembled tensor, collected from its parts when they are asked for; nothing is stored in between ----
#
#     the tensor, row-major      0 1 2 3 | 4 5 6 7        here   boxes of it: columns 0-1, and columns 2-3
#     asked: bytes of 2 to 5         2 3   4 5            there  each box in a storage of its own
#
# The elements that are asked for are boxes of each part, and each box is read from the storage where it is.  Where
# the parts are runs of bytes, as shards of rows are, a writer asks for the runs and copies each from its file.


BYTE = DTYPES["uint8"]
Fill = Callable[[int, int, memoryview], None]
"""Fills a buffer with the bytes of a storage: its number, where they begin, and the buffer."""
Take = Callable[[View, tuple[slice, ...]], "Array"]
"""The elements of a box of a window, as an array of raw elements."""


class Assembly:
    """The parts of an assembled tensor, in the order in which they begin."""

    __slots__ = ("_parts", "_reach", "_starts")

    def __init__(self, backing: Assembled) -> None:
        self._parts = sorted((part for part in backing.parts if part.here.numel), key=lambda part: part.here.byte_start)
        self._starts = [part.here.byte_start for part in self._parts]
        self._reach = list(accumulate((part.here.byte_stop for part in self._parts), max))
        """For each part, the last byte of it and of all before it."""

    def storages(self) -> list[int]:
        """The numbers of the storages that it is read from, each once."""
        return list(dict.fromkeys(part.there.number for part in self._parts))

    def runs(self, start: int, stop: int) -> list[View]:
        """Windows of bytes on other storages that are bytes `start` to `stop` of the tensor, in order.

        An empty list if a part that is asked for is not a run of bytes.
        """
        found: list[View] = []
        at = start
        for part in self._near(start, stop):
            here, there = part.here, part.there
            if not here.is_contiguous or not there.is_contiguous or here.byte_start > at:
                return []
            end = min(stop, here.byte_stop)
            found.append(contiguous(there.storage, BYTE, (end - at,), there.byte_start + at - here.byte_start))
            at = end
        return found if at == stop else []

    def fill(self, start: int, buffer: memoryview, fill: Fill, take: Take) -> None:
        """Fill a buffer with the bytes of the tensor from byte `start` on."""
        stop = start + len(buffer)
        for part in self._near(start, stop):
            here, there = part.here, part.there
            if here.is_contiguous and there.is_contiguous:
                low, high = max(start, here.byte_start), min(stop, here.byte_stop)
                fill(there.number, there.byte_start + low - here.byte_start, buffer[low - start : high - start])
            else:
                _fill_boxes(part, start, buffer, take)

    def _near(self, start: int, stop: int) -> Iterator[Part]:
        """The parts that can have bytes from `start` to `stop`."""
        for k in range(bisect_right(self._reach, start), bisect_left(self._starts, stop)):
            if self._parts[k].here.byte_stop > start:
                yield self._parts[k]


def _fill_boxes(part: Part, start: int, buffer: memoryview, take: Take) -> None:
    """Fill the elements of a part that are in a buffer; those that cross its ends are read whole."""
    import numpy as np

    here, size = part.here, part.here.dtype.block_bytes
    low, high = start - start % size, start + len(buffer) + -(start + len(buffer)) % size
    is_whole = (low, high) == (start, start + len(buffer))
    room = np.frombuffer(buffer if is_whole else bytearray(high - low), "u1")
    if not is_whole:
        room[start - low : start - low + len(buffer)] = np.frombuffer(buffer, "u1")
    for box in within(here, low, high):
        values = take(part.there, box)
        at = here.byte_start - low + size * sum(a.start * s for a, s in zip(box, here.strides, strict=True))
        out = np.ndarray(values.shape, values.dtype, room.data, at, [stride * size for stride in here.strides])
        out[...] = values
    if not is_whole:
        buffer[:] = room[start - low : start - low + len(buffer)].data


# --- The steps that decode bytes of a file: keep ranges, inflate, read text, swap bytes; and repeated elements -------


def kept(backing: Encoded) -> Iterator[tuple[int, int]]:
    """The ranges (start, stop) of the file that an encoded storage is made of: the whole source, or parts of it."""
    parts = next((step[5:] for step in backing.steps if step.startswith("keep:")), f"0-{backing.source.nbytes}")
    for part in parts.split(","):
        start, stop = map(int, part.split("-"))
        yield backing.source.start + start, backing.source.start + stop


def unpacked(raw: Iterable[bytes], backing: Encoded, where: str, nbytes: int) -> Iterator[bytes]:
    """The bytes of an encoded storage: from text or inflated, if that is a step; never more than `nbytes` inflated."""
    if form := next((step for step in backing.steps if step in LONGEST), ""):
        return _from_text(raw, backing, form)
    return _inflated(raw, where, nbytes) if "inflate" in backing.steps else iter(raw)


def _from_text(raw: Iterable[bytes], backing: Encoded, form: str) -> Iterator[bytes]:
    """The bytes that a pickle holds as text."""
    try:
        yield from decoded(raw, form)
    except ValueError as error:
        where = f"bytes {backing.source.start}-{backing.source.stop}"
        raise FormatError(f"{backing.source.file}: {where}: the text of an array is damaged: {error}") from None


def _inflated(raw: Iterable[bytes], where: str, nbytes: int) -> Iterator[bytes]:
    """Raw deflate data, inflated to exactly `nbytes` bytes."""
    machine = zlib.decompressobj(-15)
    made = 0
    for chunk in raw:
        while chunk:
            try:
                out = inflated(machine, chunk, BLOCK_NBYTES)
            except ValueError as error:
                raise FormatError(f"{where} {error}") from None
            chunk = machine.unconsumed_tail
            made += len(out)
            if made > nbytes:
                raise FormatError(f"{where} inflates to more than {nbytes} bytes")
            if out:
                yield out
    if not machine.eof:
        raise FormatError(f"{where} inflates to less than {nbytes} bytes")


def argument(backing: Encoded, step: str, otherwise: int) -> int:
    """The number in a step, such as 4 in `swap4`; `otherwise` if there is no such step."""
    return next((int(word[len(step) :]) for word in backing.steps if word.startswith(step)), otherwise)


def swapped(data: bytes, unit: int) -> bytes:
    """The bytes of each unit in reverse order.

    >>> swapped(b"abcd", 2)
    b'badc'
    """
    if unit == 1:
        return data
    import numpy as np

    return np.frombuffer(data, f"u{unit}").byteswap().tobytes()


def repeated(element: bytes, start: int, nbytes: int) -> bytes:
    """`nbytes` bytes of a repeated element, from byte `start` on.

    >>> repeated(b"abc", 4, 5)
    b'bcabc'
    """
    first = start % len(element)
    return (element * ((first + nbytes) // len(element) + 1))[first : first + nbytes]


def repetitions(element: bytes, start: int, stop: int) -> Iterator[memoryview]:
    """The same in blocks, which are parts of one buffer."""
    step = max(BLOCK_NBYTES // len(element), 1) * len(element)
    block = memoryview(repeated(element, start, min(step, stop - start)))
    for at in range(start, stop, step):
        yield block[: stop - at]


# --- Decoded storages in a temporary file without a name, in which zeros take no space -------------------------------


class Spool:
    """A temporary file that is made when the first storage is added to it."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._starts: dict[int, int] = {}

    def __contains__(self, storage_id: int) -> bool:
        return storage_id in self._starts

    @property
    def file(self) -> BinaryIO:
        """The file; OutputError if it cannot be made."""
        if self._file is None:
            self._file = _temporary()
        return self._file

    def place(self, storage_id: int) -> tuple[BinaryIO, int]:
        """The file, and where a storage begins in it."""
        return self.file, self._starts[storage_id]

    def add(self, storage_id: int, parts: Iterable[memoryview | bytes], nbytes: int) -> None:
        """Write the `nbytes` bytes of a storage to the end."""
        file = self.file
        start = file.seek(0, os.SEEK_END)
        try:
            for part in parts:
                if _is_zero(part):
                    file.seek(len(part), os.SEEK_CUR)
                else:
                    file.write(part)
            file.flush()
            os.ftruncate(file.fileno(), file.tell())
        except OSError as error:
            raise OutputError(
                f"{tempfile.gettempdir()}: cannot store a decoded storage of {nbytes} bytes: {error.strerror}",
                hint="set TMPDIR to a folder with more space",
            ) from None
        self._starts[storage_id] = start

    def close(self) -> None:
        """Close the file, which ends it."""
        if self._file is not None:
            self._file.close()


def _temporary() -> BinaryIO:
    """A nameless temporary file in the folder of TMPDIR, or the system's; OutputError if it cannot be made there.

    Python itself would try other folders, and finally the current one.
    """
    folder = os.environ.get("TMPDIR") or "/tmp" if os.name == "posix" else tempfile.gettempdir()
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise OutputError(
            f"{folder}: cannot make a temporary file: {error.strerror}", hint="set TMPDIR to another folder"
        ) from None


def _is_zero(part: memoryview | bytes) -> bool:
    """Whether all bytes of a block are zero; checks only the first and the last if these are not."""
    return bool(part) and not part[0] and not part[-1] and not bytes(part).strip(b"\0")
