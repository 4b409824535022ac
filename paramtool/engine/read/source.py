"""Reading windows of a described checkpoint in order, block by block; CRCs that the container states are checked.

An encoded storage is decoded while it is read if all of it is read in order.  Otherwise it is decoded once into a
temporary file, in which zeros take no space.  Constants are never stored.  An assembled tensor is read from its parts,
and everything else in place.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from paramtool.engine.read.assembled import Assembly
from paramtool.engine.read.blocks import BLOCK_NBYTES, blocks
from paramtool.engine.read.elements import Elements, take
from paramtool.errors import FormatError, OutputError, some
from paramtool.formats.files import changed, check_unchanged, file_changed, open_source, read_at, read_bytes
from paramtool.formats.pickle.texts import LONGEST, decoded
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.dtype import DType
from paramtool.model.inflating import Budget
from paramtool.model.storage import (
    Assembled,
    Backing,
    ByteRange,
    Cast,
    Constant,
    Encoded,
    Inline,
    Ranges,
    SourceFile,
    Storage,
)
from paramtool.model.view import View

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    import numpy as np

    Array = np.ndarray[Any, Any]

Buffer = memoryview | bytes
MAX_OPEN_FILES = 16
"""The limit for one checkpoint; comparing opens two, and some systems allow 256 open files for a process."""
MANY_OPEN_FILES = 128
"""The limit where the system allows eight times as many: a tensor can have a part in every rank's file."""
CHUNK_NBYTES = 1 << 20
"""How many bytes are read at once; they should stay in a processor's cache between reading and writing."""
THREAD_NBYTES = 4 << 20
"""A CRC of more bytes is computed in a thread of its own."""
ELEMENTS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "V16"}
"""{element size in bytes: a NumPy type that copies elements unchanged}."""


def number_type(dtype: DType) -> str:
    """The NumPy type to calculate with; ValueError for types that NumPy cannot calculate with."""
    import ml_dtypes
    import numpy as np

    if dtype.block_bytes not in ELEMENTS:
        raise ValueError(f"NumPy cannot calculate with {dtype.name}")
    return np.dtype(dtype.name).str if not hasattr(ml_dtypes, dtype.name) else dtype.name


class Source:
    """The files of a checkpoint, open for reading windows.  A context manager."""

    def __init__(self, checkpoint: Checkpoint, max_files: int = 0) -> None:
        """`max_files` may be open at once; 0 for as many as the system allows easily."""
        self.checkpoint = checkpoint
        self._max_files = max_files or _allowed_files()
        self._noted = {file.path: file for file in checkpoint.files}
        self.nbytes_read = 0
        """Bytes that were read from storages so far."""
        self._files: dict[str, BinaryIO] = {}
        self._spool: BinaryIO | None = None
        self._spooled: dict[int, int] = {}
        self._streamed: set[int] = set()
        """Storages that were decoded while they were read; a second read decodes them into the temporary file."""
        self._assemblies: dict[int, Assembly] = {}
        self._charged: set[int] = set()
        self._budget = Budget(sum(file.nbytes for file in checkpoint.files))
        self._proved: set[ByteRange] = set()
        self._pending: dict[ByteRange, Future[int]] = {}
        self._worker: ThreadPoolExecutor | None = None
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
        """An open file; if too many are open, the file that was opened first is closed."""
        if path in self._files:
            return self._files[path]
        if len(self._files) >= self._max_files:
            self.settle()
            self._files.pop(next(iter(self._files))).close()
        file, _ = open_source(path)
        self._files[path] = file
        if changed(self._noted[path], os.fstat(file.fileno())):
            raise file_changed(path)
        return file

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
        for file in self.checkpoint.files:
            check_unchanged(file)
        self._checked = True

    def close(self) -> None:
        """Close every file, after the thread has finished its work."""
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)
        for file in [*self._files.values(), *([self._spool] if self._spool else [])]:
            file.close()
        self._files.clear()

    def place(self, storage_id: int) -> tuple[BinaryIO, int]:
        """The file that has a storage's decoded bytes, and where they begin; no file has those of assembled tensors."""
        return self._place(self.checkpoint.storages[storage_id])

    def _place(self, storage: Storage) -> tuple[BinaryIO, int]:
        if isinstance(storage.backing, ByteRange):
            return self._file(storage.backing.file), storage.backing.start
        if isinstance(storage.backing, Assembled):
            raise TypeError(f"storage {storage.id} is in several places")
        if self._spool is None:
            self._spool = _spool()
        if storage.id not in self._spooled:
            self._spooled[storage.id] = self._decode_into(self._spool, storage)
        return self._spool, self._spooled[storage.id]

    def read(self, storage_id: int, start: int, nbytes: int) -> bytes:
        """Bytes of a storage; FormatError if the file is too short."""
        storage = self.checkpoint.storages[storage_id]
        if (element := self._constant(storage)) is not None:
            return bytes(_repeated(element, start, nbytes))
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
        backing = self.checkpoint.storages[int(view.storage)].backing
        if not isinstance(backing, Assembled) or not view.is_contiguous:
            return [view]
        return self._assembly(int(view.storage), backing).runs(view.byte_start, view.byte_stop) or [view]

    def _charge(self, storage: Storage) -> None:
        """Count the size of a storage once against the limit of bytes that may be inflated or calculated."""
        if storage.id in self._charged or not _is_made(storage.backing):
            return
        self._charged.add(storage.id)
        self._budget.spend(self.checkpoint.files[0].path, storage.nbytes)

    def check_inflated(self, storage_ids: Iterable[int]) -> None:
        """FormatError if reading some storages would inflate or calculate more than is allowed; reads nothing."""
        if isinstance(self.checkpoint.storages, Ranges):  # plain bytes
            return
        for storage_id in storage_ids:
            self._charge(self.checkpoint.storages[storage_id])

    def read_into(self, storage_id: int, start: int, buffer: memoryview) -> None:
        """Fill a buffer with bytes of a storage; FormatError if the file is too short.  No CRC is checked."""
        self.nbytes_read += len(buffer)
        self._fill(storage_id, start, buffer)

    def _fill(self, storage_id: int, start: int, buffer: memoryview) -> None:
        storage = self.checkpoint.storages[storage_id]
        if (element := self._constant(storage)) is not None:
            for at in range(0, len(buffer), CHUNK_NBYTES):
                part = buffer[at : at + CHUNK_NBYTES]
                part[:] = _repeated(element, start + at, len(part))
            return
        if isinstance(storage.backing, Assembled):
            self._assembly(storage_id, storage.backing).fill(start, buffer, self._fill, self._taken)
            return
        file, base = self._place(storage)
        read_at(file, base + start, buffer)

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
            yield from _repetitions(element, start, stop)
            return
        if self._is_streamed(storage, start, stop):
            self._streamed.add(storage_id)
            for part in self._decoded(storage):
                yield memoryview(part)
            self.nbytes_read += stop - start
            return
        if sealed := self.unproved(storage_id, start, stop - start):
            yield from self._proved_blocks(sealed)
            return
        self.prove_later(storage_id)
        if isinstance(storage.backing, Assembled):
            yield from self._assembled_blocks(storage_id, start, stop)
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
        found = self.checkpoint.storages[storage_id].backing
        if nbytes >= THREAD_NBYTES or not isinstance(found, ByteRange) or (start, nbytes) != (0, found.nbytes):
            return None
        return None if found.crc32 is None or found in self._proved else found

    def compare(self, sealed: ByteRange, found: int) -> None:
        """FormatError if a range has another CRC than its container states."""
        self._proved.add(sealed)
        self._compare(sealed, found)

    def _proved_blocks(self, sealed: ByteRange) -> Iterator[memoryview]:
        """All bytes of a range in blocks; its CRC is compared at the end, and nothing is read twice."""
        found = 0
        for block in read_blocks(self._file(sealed.file), sealed.start, sealed.stop):
            found = zlib.crc32(block, found)
            yield block
        self.nbytes_read += sealed.nbytes
        self.compare(sealed, found)

    def _assembled_blocks(self, storage_id: int, start: int, stop: int) -> Iterator[memoryview]:
        """Bytes of an assembled tensor in blocks that share one buffer."""
        buffer = memoryview(bytearray(min(BLOCK_NBYTES, stop - start)))
        for at in range(start, stop, len(buffer)):
            part = buffer[: stop - at]
            self._fill(storage_id, at, part)
            yield part

    def _is_streamed(self, storage: Storage, start: int, stop: int) -> bool:
        """Whether bytes are decoded while they are read: all of a storage, for the first time."""
        if isinstance(storage.backing, (ByteRange, Assembled)) or (start, stop) != (0, storage.nbytes):
            return False
        return storage.id not in self._spooled and storage.id not in self._streamed

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
        self._begin(backing if backing.crc32 is not None else self._sealed(backing))

    def _begin(self, sealed: ByteRange | None) -> None:
        """Begin to compare a range with its CRC, unless that was done before."""
        if sealed is None or sealed in self._proved:
            return
        self._proved.add(sealed)
        if sealed.nbytes < THREAD_NBYTES:
            self._compare(sealed, crc32_of(self._file(sealed.file), sealed.start, sealed.stop))
            return
        if self._worker is None:
            from concurrent.futures import ThreadPoolExecutor

            self._worker = ThreadPoolExecutor(1)
        self._pending[sealed] = self._worker.submit(crc32_of, self._file(sealed.file), sealed.start, sealed.stop)

    def _sealed(self, part: ByteRange) -> ByteRange | None:
        """The range with a CRC that contains a part of a file, or None."""
        return next((one for one in self.checkpoint.sealed if _is_within(part, one)), None)

    def settle(self) -> None:
        """Wait for the comparisons that were begun; FormatError if a CRC is wrong."""
        while self._pending:
            sealed, pending = self._pending.popitem()
            self._compare(sealed, pending.result())

    def _compare(self, sealed: ByteRange, found: int) -> None:
        if found != sealed.crc32:
            raise self._damaged(sealed, found)

    def _damaged(self, sealed: ByteRange, found: int) -> FormatError:
        """The error for a range whose bytes do not have its CRC; it names the range and its tensors."""
        inside = {key for key, storage in self.checkpoint.storages.items() if _is_within(storage.backing, sealed)}
        around = {key for key, storage in self.checkpoint.storages.items() if _has_part(storage.backing, inside)}
        names = [name for name, view in self.checkpoint.windows() if view.storage in inside | around]
        what = f"storage {min(inside)}" if len(inside) == 1 else f"bytes {sealed.start}-{sealed.stop}"
        of = f" (with {some(names, 3)})" if names else ""
        return FormatError(
            f"{sealed.file}: {what}{of} has CRC {found:08x}; the archive says {sealed.crc32:08x}: the file is damaged",
            hint="fetch the file again",
        )

    def will_read(self, storage_id: int, starts: Iterable[int], nbytes: int) -> None:
        """Tell the kernel which bytes of a storage will be read, so that a disk fetches them in parallel."""
        is_assembled = isinstance(self.checkpoint.storages[storage_id].backing, Assembled)
        if is_assembled or not hasattr(os, "posix_fadvise"):  # macOS, Windows
            return
        file, base = self.place(storage_id)
        with suppress(OSError):  # only advice
            for start in starts:
                os.posix_fadvise(file.fileno(), base + start, nbytes, os.POSIX_FADV_WILLNEED)

    def array(self, view: View) -> Elements:
        """A window of raw elements that are read when they are indexed; packed types are one row of bytes.

        These reads are not counted in `nbytes_read`, and no CRC is checked.
        """
        fill = partial(self._fill, int(view.storage))
        if view.dtype.block_elements != 1:
            return Elements(fill, "u1", view.byte_start, (view.byte_stop - view.byte_start,), strides=(1,))
        size = view.dtype.block_bytes
        return Elements(
            fill, ELEMENTS[size], view.byte_start, view.shape, strides=[stride * size for stride in view.strides]
        )

    def take(self, storage_id: int, starts: Array, nbytes: int) -> Array:
        """`nbytes` bytes of a storage from each position on, one row for each; counted, and no CRC is checked."""
        self.nbytes_read += len(starts) * nbytes
        return take(partial(self._fill, storage_id), starts, nbytes)

    def row_major(self, view: View) -> Iterator[Buffer]:
        """The elements of a window in row-major order, as blocks of bytes."""
        if not view.numel:
            return
        if view.is_contiguous:
            yield from self.chunks(int(view.storage), view.byte_start, view.byte_stop)
            return
        import numpy as np

        self.prove(int(view.storage))
        array = self.array(view)
        for box in blocks(view.shape, BLOCK_NBYTES // view.dtype.block_bytes):
            block = np.ascontiguousarray(array[box])
            self.nbytes_read += block.nbytes
            yield block.reshape(-1).view("u1").data

    def _decode_into(self, spool: BinaryIO, storage: Storage) -> int:
        """Decode a storage to the end of the nameless temporary file; returns where it begins there."""
        start = spool.seek(0, os.SEEK_END)
        try:
            for part in self._decoded(storage):
                if _is_zero(part):
                    spool.seek(len(part), os.SEEK_CUR)
                else:
                    spool.write(part)
            spool.flush()
            os.ftruncate(spool.fileno(), spool.tell())
        except OSError as error:
            what = f"cannot store a decoded storage of {storage.nbytes} bytes"
            raise OutputError(
                f"{tempfile.gettempdir()}: {what}: {error.strerror}",
                hint="set TMPDIR to a folder with more space",
            ) from None
        return start

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
            where = self.checkpoint.files[0].path
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
            yield from _repetitions(backing.element, 0, nbytes)

    def _decode(self, storage: Storage, backing: Encoded) -> Iterator[Buffer]:
        crc = 0
        left = b""
        unit, skip = _argument(backing, "swap", 1), _argument(backing, "skip", 0)
        for chunk in self._inflated(storage, backing, storage.nbytes + skip):
            crc = zlib.crc32(chunk, crc)
            chunk, skip = left + chunk[skip:], max(0, skip - len(chunk))
            whole = len(chunk) - len(chunk) % unit
            left = chunk[whole:]
            yield _swapped(chunk[:whole], unit)
        if backing.crc32 is not None and crc != backing.crc32:
            raise self._damaged(backing.source._replace(crc32=backing.crc32), crc)

    def _inflated(self, storage: Storage, backing: Encoded, nbytes: int) -> Iterator[bytes]:
        """The bytes of an encoded storage, inflated if that is a step; never more than `nbytes`."""
        file = self._file(backing.source.file)
        if path := next((step[5:] for step in backing.steps if step.startswith("hdf5:")), ""):
            from paramtool.formats.hdf5 import datasets

            self._begin(self._sealed(backing.source))
            self.settle()
            yield from datasets.elements(file, backing.source, path, storage.nbytes)
            return
        raw = (
            self._pread(file, at, min(BLOCK_NBYTES, stop - at))
            for start, stop in _kept(backing)
            for at in range(start, stop, BLOCK_NBYTES)
        )
        if form := next((step for step in backing.steps if step in LONGEST), ""):
            yield from self._from_text(raw, backing, form)
            return
        if "inflate" not in backing.steps:
            yield from raw
            return
        machine = zlib.decompressobj(-15)
        made = 0
        for chunk in raw:
            while chunk:
                try:
                    out = machine.decompress(chunk, BLOCK_NBYTES)
                except zlib.error as error:
                    raise FormatError(f"{file.name}: storage {storage.id} cannot be inflated: {error}") from None
                chunk = machine.unconsumed_tail
                made += len(out)
                if made > nbytes:
                    raise FormatError(f"{file.name}: storage {storage.id} inflates to more than {nbytes} bytes")
                if out:
                    yield out
        if not machine.eof:
            raise FormatError(f"{file.name}: storage {storage.id} inflates to less than {nbytes} bytes")

    def _from_text(self, raw: Iterable[bytes], backing: Encoded, form: str) -> Iterator[bytes]:
        """The bytes that a pickle holds as text."""
        try:
            yield from decoded(raw, form)
        except ValueError as error:
            where = f"bytes {backing.source.start}-{backing.source.stop}"
            raise FormatError(f"{backing.source.file}: {where}: the text of an array is damaged: {error}") from None


def _allowed_files() -> int:
    """How many files of a checkpoint may be open at once: an eighth of what the process may open, within bounds."""
    try:
        import resource
    except ImportError:  # Windows
        return MAX_OPEN_FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(MAX_OPEN_FILES, min(MANY_OPEN_FILES, soft // 8)) if soft >= 0 else MANY_OPEN_FILES


def _kept(backing: Encoded) -> Iterator[tuple[int, int]]:
    """The ranges (start, stop) of the file that an encoded storage is made of: the whole source, or parts of it."""
    parts = next((step[5:] for step in backing.steps if step.startswith("keep:")), f"0-{backing.source.nbytes}")
    for part in parts.split(","):
        start, stop = map(int, part.split("-"))
        yield backing.source.start + start, backing.source.start + stop


def _is_within(backing: Backing, around: ByteRange) -> bool:
    """Whether a storage is read from inside a range of a file."""
    part = backing.source if isinstance(backing, Encoded) else backing
    return (
        isinstance(part, ByteRange)
        and part.file == around.file
        and around.start <= part.start
        and part.stop <= around.stop
    )


def _has_part(backing: Backing, storages: set[int]) -> bool:
    """Whether a tensor is assembled from any of these storages."""
    return isinstance(backing, Assembled) and any(part.there.storage in storages for part in backing.parts)


def _spool() -> BinaryIO:
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


def read_blocks(file: BinaryIO, start: int, stop: int) -> Iterator[memoryview]:
    """Bytes of a file in blocks that share one buffer; FormatError if they cannot be read."""
    buffer = memoryview(bytearray(min(CHUNK_NBYTES, stop - start)))
    while start < stop:
        part = buffer[: min(len(buffer), stop - start)]
        read_at(file, start, part)
        yield part
        start += len(part)


def crc32_of(file: BinaryIO, start: int, stop: int) -> int:
    """The CRC of bytes of a file."""
    found = 0
    for block in read_blocks(file, start, stop):
        found = zlib.crc32(block, found)
    return found


def _is_made(backing: Backing) -> bool:
    """Whether a storage can have more bytes than its file has for it."""
    if isinstance(backing, Encoded):
        return any(step == "inflate" or step.startswith("hdf5:") for step in backing.steps)
    return not isinstance(backing, ByteRange)


def _repeated(element: bytes, start: int, nbytes: int) -> bytes:
    """`nbytes` bytes of a repeated element, from byte `start` on.

    >>> _repeated(b"abc", 4, 5)
    b'bcabc'
    """
    first = start % len(element)
    return (element * ((first + nbytes) // len(element) + 1))[first : first + nbytes]


def _repetitions(element: bytes, start: int, stop: int) -> Iterator[memoryview]:
    """The same in blocks, which are parts of one buffer."""
    step = max(BLOCK_NBYTES // len(element), 1) * len(element)
    block = memoryview(_repeated(element, start, min(step, stop - start)))
    for at in range(start, stop, step):
        yield block[: stop - at]


def _is_zero(part: Buffer) -> bool:
    """Whether all bytes of a block are zero; checks only the first and the last if these are not."""
    return bool(part) and not part[0] and not part[-1] and not bytes(part).strip(b"\0")


def _argument(backing: Encoded, step: str, otherwise: int) -> int:
    """The number in a step, such as 4 in `swap4`; `otherwise` if there is no such step."""
    return next((int(word[len(step) :]) for word in backing.steps if word.startswith(step)), otherwise)


def _swapped(data: bytes, unit: int) -> bytes:
    """The bytes of each unit in reverse order.

    >>> _swapped(b"abcd", 2)
    b'badc'
    """
    if unit == 1:
        return data
    import numpy as np

    return np.frombuffer(data, f"u{unit}").byteswap().tobytes()
