"""Writes the files of a plan to their temporary place: literal bytes, runs of the source, and calculated tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import BinaryIO
from zlib import crc32

from paramtool.engine.read.crcs import THREAD_NBYTES, crc32_of
from paramtool.engine.read.elements import forget_rooms
from paramtool.engine.read.source import Source
from paramtool.engine.read.threads import Promise, Threads
from paramtool.engine.write.arithmetic import bands
from paramtool.engine.write.casting import Counts
from paramtool.engine.write.places import writing
from paramtool.engine.write.sink import Advance, Sink
from paramtool.engine.write.staging import Staged, sync_folder
from paramtool.errors import FormatError, OutputError
from paramtool.formats.files import open_source, read_at
from paramtool.formats.output import Late, OutputFile
from paramtool.model.plan import Target
from paramtool.model.storage import ByteRange
from paramtool.model.view import View

KERNEL_NBYTES = 1 << 20
"""Longer runs of bytes are copied by the kernel."""
SHORT_NBYTES = 128 << 10
"""Shorter runs are gathered in a buffer of this size; a larger one does not stay in a processor's cache."""


def write(
    staged: Staged,
    outputs: Iterable[OutputFile],
    source: Source,
    advance: Advance = lambda nbytes: None,
    *,
    counts: Counts | None = None,
) -> None:
    """Write every file of an output to its temporary place, in one pass over the source, flushed to the disk.

    `counts` gets what casts do to the numbers of each tensor.
    OutputError if writing fails; FormatError if the source is damaged, UnsafeError if it expands beyond the limit.
    """
    outputs = list(outputs)
    staged.watch(source.hand_over())
    _check_space(staged, sum(output.nbytes for output in outputs))
    for output in outputs:
        with Sink(staged, output.name, advance) as sink:
            _write_segments(output, source, sink, counts)
        staged.cloned += sink.cloned
    forget_rooms()
    source.settle()
    if staged.is_folder:
        with writing(staged.path):
            sync_folder(staged.temporary)


def _write_segments(output: OutputFile, source: Source, sink: Sink, counts: Counts | None) -> None:
    """Write a file from its first byte to its last, and then the segments that need the CRCs of its targets."""
    late = [segment for segment in output.segments if isinstance(segment, Late)]
    places: list[int] = []
    short = _ShortRuns(source, sink)
    with Checksums(sink.file, sink.name) as checksums:
        for segment in output.segments:
            if late or not isinstance(segment, Target):
                short.flush()
            start = sink.position
            if isinstance(segment, bytes):
                sink.write(segment)
            elif isinstance(segment, Late):
                places.append(start)
                sink.extend(segment.nbytes)
            elif isinstance(segment, ByteRange):
                # Append a range of another file; FormatError if it cannot be read
                file, _ = open_source(segment.file)
                with file:
                    sink.copy(file, segment.start, segment.nbytes)
                if late:
                    checksums.add_range(start, segment.nbytes)
            else:
                _write_target(segment, short, counts)
                if late:
                    short.flush()
                    checksums.add(segment, source, start)
        short.flush()
        crcs = checksums.all()
    for start, segment in zip(places, late, strict=True):
        sink.fill(segment.make(crcs), start)


def copy_whole(staged: Staged, files: Mapping[str, str], advance: Advance) -> None:
    """Copy whole regular files into an output folder: {name in it, with `/`: file}; `advance` gets each byte count.

    FormatError if a file cannot be read, OutputError if writing fails.
    """
    for name, source in files.items():
        file, status = open_source(source)
        with file:
            make_folder(staged, os.path.dirname(name))
            with Sink(staged, name, advance) as sink:
                sink.copy(file, 0, status.nbytes)
            staged.watch_side(name, status)
    inside = {os.path.dirname(name) for name in files}
    while around := {os.path.dirname(name) for name in inside} - inside:
        inside |= around
    with writing(staged.path):
        for name in inside:
            sync_folder(staged.file(name))


def make_folder(staged: Staged, name: str) -> None:
    """Make a folder inside an output folder, with its parents; nothing for the empty name."""
    with writing(staged.path):
        staged.make_folders(name)


def _check_space(staged: Staged, nbytes: int) -> None:
    try:
        status = os.statvfs(os.path.dirname(staged.temporary) or ".")
    except (OSError, AttributeError):  # not known; Windows has no statvfs
        return
    free = status.f_bavail * status.f_frsize
    if nbytes > free:
        raise OutputError(
            f"{staged.path}: needs {nbytes} bytes; the disk has {free} left",
            hint="free some space, or choose -o on another disk",
        )


class _ShortRuns:
    """Short runs of the source that follow each other in the output, gathered in a buffer and written together.

    Those that follow each other in a file of the source, too, are read together.  Where a run is all that a CRC was
    stated for, its CRC is computed in the buffer.
    """

    def __init__(self, source: Source, sink: Sink) -> None:
        self.source = source
        self.sink = sink
        self._buffer = memoryview(bytearray(SHORT_NBYTES))
        self._filled = 0
        """How much of the buffer has been read."""
        self._storage, self._file, self._start, self._nbytes = 0, "", 0, 0
        """What is read next: its first storage, and its bytes in a file."""
        self._sealed: list[tuple[int, ByteRange]] = []
        """Where in the buffer is a range whose CRC is to be compared."""

    def add(self, view: View, backing: ByteRange) -> None:
        """Append a run of fewer bytes than the buffer has."""
        start, nbytes = backing.start + view.byte_start, view.nbytes
        if self._filled + self._nbytes + nbytes > len(self._buffer):
            self.flush()
        if (backing.file, start) != (self._file, self._start + self._nbytes):
            self._read()
            self._storage, self._file, self._start = view.number, backing.file, start
        if sealed := self.source.unproved(view.number, view.byte_start, nbytes):
            self._sealed.append((self._filled + self._nbytes, sealed))
        else:
            self.source.prove_later(view.number)
        self._nbytes += nbytes

    def _read(self) -> None:
        if self._nbytes:
            file, _ = self.source.place(self._storage)
            stop = self._filled + self._nbytes
            read_at(file, self._start, self._buffer[self._filled : stop])
            self.source.nbytes_read += self._nbytes
            self._filled, self._file, self._nbytes = stop, "", 0

    def flush(self) -> None:
        """Write what was added; FormatError if a CRC of it is wrong."""
        self._read()
        for start, sealed in self._sealed:
            self.source.compare(sealed, crc32(self._buffer[start : start + sealed.nbytes]))
        self._sealed.clear()
        if self._filled:
            self.sink.write(self._buffer[: self._filled])
            self._filled = 0
            self.source.settle()


def _write_target(target: Target, short: _ShortRuns, counts: Counts | None) -> None:
    source, sink = short.source, short.sink
    copies = sorted(target.copies, key=lambda copy: copy.destination.offset)
    if all(copy.is_plain and copy.destination.is_contiguous for copy in copies):  # runs, one after the other
        for copy in copies:
            for view in source.runs(copy.source):
                _write_run(view, short)
        return
    short.flush()
    for copy in copies:
        for view in copy.sources:
            if copy.is_plain:
                source.prove_later(view.number)
            else:
                source.prove(view.number)
    for band in bands(target, source, counts):
        sink.write(band.data)


def _write_run(view: View, short: _ShortRuns) -> None:
    """Append a window row by row; the kernel copies it if it is one long run whose CRC is not to be computed here."""
    source, sink = short.source, short.sink
    backing = source.checkpoint.storage_of(view).backing
    run = backing if isinstance(backing, ByteRange) and view.is_contiguous else None
    if run is not None and view.nbytes < SHORT_NBYTES:
        short.add(view, run)
        return
    short.flush()
    number = view.number
    if run is not None and view.nbytes >= KERNEL_NBYTES and not source.unproved(number, view.byte_start, view.nbytes):
        source.prove_later(number)
        file, base = source.place(number)
        source.nbytes_read += view.nbytes
        sink.copy(file, base + view.byte_start, view.nbytes)
        return
    for chunk in source.row_major(view):
        sink.write(chunk)


# --- CRCs of an output, computed while it is written -----------------------------------------------------------------
#
# A container such as a zip states the CRC of each member, but the kernel may copy a member without this process
# seeing its bytes.  So a thread reads each target back from the output while the next target is written; its pages
# are still in memory.  If the source's container states the CRC of a storage, it is not computed again: `Source`
# checks it before the output is kept.


class Checksums:
    """The CRC-32 of each target and each copied range of one file, in order.

    A context manager, in which the file stays open.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._found: list[int | Promise[int]] = []
        self._threads = Threads()

    def __enter__(self) -> Checksums:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.close()

    def add(self, target: Target, source: Source, start: int) -> None:
        """Add a target that was written as a whole from byte `start` of the file."""
        known = proved_crc32(target, source)
        if known is not None:
            self._found.append(known)
        else:
            self.add_range(start, target.nbytes)

    def add_range(self, start: int, nbytes: int) -> None:
        """Add what was written from byte `start` of the file."""
        if nbytes < THREAD_NBYTES:
            self._found.append(self._crc32(start, start + nbytes))
            return
        self._found.append(self._threads.submit(partial(self._crc32, start, start + nbytes)))

    def _crc32(self, start: int, stop: int) -> int:
        try:
            return crc32_of(self._file, start, stop)
        except FormatError as error:
            raise OutputError(f"{self._name}: cannot be read back: {error.message}") from None

    def all(self) -> list[int]:
        """The CRC of every target and range so far; waits until all are known."""
        return [found if isinstance(found, int) else found.result() for found in self._found]


def proved_crc32(target: Target, source: Source) -> int | None:
    """The CRC of a target that is one whole storage of a container that states its CRC; else None."""
    if len(target.copies) != 1 or not target.copies[0].is_plain or not target.copies[0].destination.is_contiguous:
        return None
    view = target.copies[0].source
    backing = source.checkpoint.storage_of(view).backing
    whole = view.is_contiguous and (view.byte_start, view.nbytes) == (0, target.nbytes)
    return backing.crc32 if whole and isinstance(backing, ByteRange) and backing.nbytes == target.nbytes else None
