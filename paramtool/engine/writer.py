"""Writing files: beside their place first, flushed to the disk, and moved there only when everything is right.

Nothing that exists is overwritten without `force`, nothing half-written is left behind, and what is read can never be
what is written.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Any, BinaryIO

from paramtool.engine.arithmetic import boxes, element_type, value
from paramtool.engine.checksums import Checksums
from paramtool.engine.earlier import foreign
from paramtool.engine.reflink import block_nbytes, clone, whole_blocks
from paramtool.engine.source import Buffer, Source, read_blocks
from paramtool.errors import OutputError
from paramtool.formats._files import open_source
from paramtool.formats._output import Late, OutputFile
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View

Advance = Callable[[int], None]
FLUSH_NBYTES = 64 << 20
"""After so many bytes the disk is told to begin."""
KERNEL_NBYTES = 1 << 20
"""Longer runs of bytes are copied by the kernel."""
KERNEL_STEP_NBYTES = 16 << 20
ASSEMBLED_NBYTES = 64 << 20
"""Targets up to this are put together in memory; larger ones in the mapped output."""
COPY: Callable[..., int] = getattr(os, "copy_file_range", lambda *places: 0)
"""Linux has it; elsewhere nothing is ever copied so."""
ADVISE: Callable[..., None] = getattr(os, "posix_fadvise", lambda *advice: None)
DONTNEED: int = getattr(os, "POSIX_FADV_DONTNEED", 0)
CANNOT_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}
"""How kernels and file systems say that they cannot copy between these two files."""
NOTHING: Mapping[str, str] = {}


class Staged:
    """An output in the making: a file, or a folder of files, under a temporary name beside its place.

    Used as a context manager; without `commit` everything is removed.
    """

    def __init__(
        self, path: str, is_folder: bool, force: bool, inputs: Iterable[str] = (), known: Mapping[str, str] = NOTHING
    ) -> None:
        self.path = os.path.normpath(path)
        self.is_folder = is_folder
        self.force = force
        self.cloned = 0
        """Bytes of the output that share their blocks with the source."""
        check_place(path, is_folder, force, inputs, known)
        # The name is known before anything is made, so that an interruption at any moment finds what to remove.
        name = f".{os.path.basename(self.path)[:150]}.{secrets.token_hex(4)}.tmp"
        self.temporary = os.path.join(os.path.dirname(self.path) or ".", name)

    def __enter__(self) -> Staged:
        try:
            if self.is_folder:
                os.mkdir(self.temporary)
            else:
                os.close(os.open(self.temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from None
        except BaseException:
            self._remove(self.temporary)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove(self.temporary)

    def file(self, name: str) -> str:
        """Where a file of the output is written for now."""
        return os.path.join(self.temporary, name) if self.is_folder else self.temporary

    def commit(self) -> None:
        """Move the output to its place; OutputError where something stands there now."""
        try:
            if not self.is_folder:
                self._commit_file()
            else:
                self._commit_folder()
            _sync_folder(os.path.dirname(self.path) or ".")
        except OSError as error:
            raise _output_error(self.path, error) from None

    def _commit_file(self) -> None:
        if self.force:
            os.replace(self.temporary, self.path)
            return
        try:
            os.link(self.temporary, self.path)  # a link never overwrites, a rename would
        except FileExistsError:
            raise OutputError(f"{self.path}: was made by somebody else meanwhile") from None
        except OSError:  # a file system without hard links
            if os.path.lexists(self.path):
                raise OutputError(f"{self.path}: was made by somebody else meanwhile") from None
            os.rename(self.temporary, self.path)

    def _commit_folder(self) -> None:
        old = f"{self.temporary}.old"
        if self.force and os.path.isdir(self.path):
            os.rename(self.path, old)
            try:
                os.rename(self.temporary, self.path)
            except BaseException:
                os.rename(old, self.path)
                raise
            self._remove(old)
        else:
            os.rename(self.temporary, self.path)

    @staticmethod
    def _remove(path: str) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.lexists(path):
            os.unlink(path)


def check_place(
    path: str, is_folder: bool, force: bool, inputs: Iterable[str] = (), known: Mapping[str, str] = NOTHING
) -> None:
    """Whether an output may be put at `path`; OutputError says why not.

    It never replaces what is read, nor a folder that holds anything but an earlier output of this program: weights, and
    unchanged copies of `known` files (see `earlier.foreign`).
    """
    if not path or (path.endswith(os.sep) and not is_folder):
        raise OutputError(f"{path or 'the output'!r}: is no name for a file", hint="-o FILE.safetensors")
    path = os.path.normpath(path)
    parent = os.path.dirname(path) or "."
    if not os.path.isdir(parent):
        raise OutputError(f"{path}: the folder {parent} does not exist", hint=f"mkdir -p {parent}")
    if not os.path.lexists(path):
        return
    mine = os.path.realpath(path)
    for source in inputs:
        folders = {os.path.realpath(os.path.dirname(source) or "."), os.path.dirname(os.path.realpath(source))}
        if os.path.realpath(source) == mine or (os.path.isdir(mine) and mine in folders):
            raise OutputError(f"{path}: is what is read; it is never overwritten", hint="choose another -o")
    if not force:
        raise OutputError(f"{path}: exists", hint="--force overwrites it, -o writes elsewhere")
    if not (os.path.isdir(path) if is_folder else os.path.isfile(path)):
        kind = "a folder" if is_folder else "a file"
        raise OutputError(f"{path}: exists and is not {kind}; --force would lose it")
    if is_folder and (others := list(islice(foreign(path, known), 5))):
        raise OutputError(
            f"{path}: holds other files, which --force would lose: {', '.join(others)}",
            hint="remove the folder, or choose another -o",
        )


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some file systems cannot sync a folder; the files themselves are safe
    finally:
        os.close(descriptor)


def _output_error(path: str, error: OSError) -> OutputError:
    hint = "free some space, or -o on another disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return OutputError(f"{path}: cannot be written: {error.strerror}", hint=hint)


def write(
    staged: Staged, outputs: Iterable[OutputFile], source: Source, advance: Advance = lambda nbytes: None
) -> None:
    """Write every file of an output to its temporary place, one pass over the source, flushed to the disk.

    OutputError where the disk refuses; FormatError where the source turns out damaged.
    """
    outputs = list(outputs)
    _check_space(staged, sum(output.nbytes for output in outputs))
    for output in outputs:
        with _Sink(staged.file(output.name), staged.path, advance) as sink:
            _write_segments(output, source, sink)
        staged.cloned += sink.cloned
    source.settle()
    if staged.is_folder:
        _sync_folder(staged.temporary)


def _write_segments(output: OutputFile, source: Source, sink: _Sink) -> None:
    """Write a file from its first byte to its last, and then what only the CRCs of its targets say."""
    late = [segment for segment in output.segments if isinstance(segment, Late)]
    places: list[int] = []
    with Checksums(sink.file) as checksums:
        for segment in output.segments:
            start = sink.position
            if isinstance(segment, bytes):
                sink.write(segment)
            elif isinstance(segment, Late):
                places.append(start)
                sink.extend(segment.nbytes)
            else:
                _write_target(segment, source, sink)
                if late:
                    checksums.add(segment, source, start)
        crcs = checksums.all()
    for start, segment in zip(places, late, strict=True):
        sink.fill(segment.make(crcs), start)


def copy_whole(staged: Staged, files: Mapping[str, str]) -> None:
    """Copy whole regular files into an output folder: {name in it, with `/`: file}.

    FormatError where a file cannot be read, OutputError where the disk refuses.
    """
    for name, source in files.items():
        path = staged.file(name)
        file, status = open_source(source)
        with file:
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            except OSError as error:
                raise _output_error(staged.path, error) from None
            with _Sink(path, staged.path, lambda nbytes: None) as sink:
                sink.copy(file, 0, status.nbytes)
    for place in {os.path.dirname(staged.file(name)) for name in files}:
        _sync_folder(place)


def _check_space(staged: Staged, nbytes: int) -> None:
    status = os.statvfs(os.path.dirname(staged.temporary) or ".")
    free = status.f_bavail * status.f_frsize
    if nbytes > free:
        raise OutputError(
            f"{staged.path}: needs {nbytes} bytes and the disk has {free} left",
            hint="free some space, or -o on another disk",
        )


class _Sink:
    """One file being written; its errors are the output's."""

    def __init__(self, path: str, name: str, advance: Advance) -> None:
        self.name = name
        self.advance = advance
        self.position = 0
        self.cloned = 0
        """Bytes that stand in blocks of another file."""
        self._path = path
        self._flushed = 0

    def __enter__(self) -> _Sink:
        try:
            self.file: BinaryIO = open(self._path, "w+b", buffering=0)
        except OSError as error:
            raise _output_error(self.name, error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                os.fsync(self.file.fileno())
        except OSError as failed:
            raise _output_error(self.name, failed) from None
        finally:
            self.file.close()

    def write(self, data: Buffer) -> None:
        """Write all of `data`."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            raise _output_error(self.name, error) from None
        self._wrote(len(data))

    def copy(self, file: BinaryIO, start: int, nbytes: int) -> None:
        """Append bytes of another file: blocks are shared where the file system can, the rest is copied."""
        before, inside = whole_blocks(start, nbytes, self.position, block_nbytes(self.file))
        self._copy(file, start, before)
        cloned = self._clone(file, start + before, inside)
        self._copy(file, start + before + cloned, nbytes - before - cloned)

    def _clone(self, file: BinaryIO, start: int, nbytes: int) -> int:
        """Append whole blocks of another file by sharing them; how many bytes of them are shared."""
        if not nbytes or not clone(file, start, nbytes, self.file, self.position):
            return 0
        self.cloned += nbytes
        self._wrote(nbytes)
        self.file.seek(self.position)
        return nbytes

    def _copy(self, file: BinaryIO, start: int, nbytes: int) -> None:
        """Append bytes of another file, by the kernel where it can."""
        stop = start + nbytes
        while start < stop:
            try:
                count = COPY(
                    file.fileno(), self.file.fileno(), min(stop - start, KERNEL_STEP_NBYTES), start, self.position
                )
            except OSError as error:
                if error.errno not in CANNOT_COPY:
                    raise _output_error(self.name, error) from None
                count = 0
            if not count:  # another file system, an old kernel, or the end of the source
                self._copy_by_hand(file, start, stop)
                return
            start += count
            self._wrote(count)
        self.file.seek(self.position)

    def _copy_by_hand(self, file: BinaryIO, start: int, stop: int) -> None:
        self.file.seek(self.position)
        for block in read_blocks(file, start, stop):
            self.write(block)

    def _wrote(self, nbytes: int) -> None:
        """Count, and let the disk begin now and then: the last flush is short then."""
        self.position += nbytes
        self.advance(nbytes)
        if self.position - self._flushed >= FLUSH_NBYTES:
            with suppress(OSError):  # only advice: dirty pages are sent to the disk and not waited for
                ADVISE(self.file.fileno(), self._flushed, self.position - self._flushed, DONTNEED)
            self._flushed = self.position

    def fill(self, data: bytes, start: int) -> None:
        """Write `data` into room that was made at byte `start`."""
        rest = memoryview(data)
        try:
            while rest:
                count = os.pwrite(self.file.fileno(), rest, start)
                start, rest = start + count, rest[count:]
        except OSError as error:
            raise _output_error(self.name, error) from None
        self.advance(len(data))

    def extend(self, nbytes: int) -> None:
        """Make room for `nbytes` bytes, to be filled in any order."""
        self.position += nbytes
        try:
            self.file.truncate(self.position)
            self.file.seek(self.position)
        except OSError as error:
            raise _output_error(self.name, error) from None


def _write_target(target: Target, source: Source, sink: _Sink) -> None:
    copies = sorted(target.copies, key=lambda copy: copy.destination.offset)
    if all(copy.is_plain and copy.destination.is_contiguous for copy in copies):  # runs, one behind the other
        for copy in copies:
            _write_run(copy.terms[0][1], source, sink)
        return
    if target.nbytes <= ASSEMBLED_NBYTES:
        _assemble(target, source, sink)
        return
    start = sink.position
    sink.extend(target.nbytes)
    for copy in copies:
        _scatter(copy, source, sink, start)


def _write_run(view: View, source: Source, sink: _Sink) -> None:
    """Append a window row by row, by the kernel where it is one long run."""
    if view.is_contiguous and view.nbytes >= KERNEL_NBYTES:
        source.prove_later(int(view.storage))
        file, base = source.place(int(view.storage))
        source.nbytes_read += view.nbytes
        sink.copy(file, base + view.byte_start, view.nbytes)
        return
    for chunk in source.row_major(view):
        sink.write(chunk)


def _assemble(target: Target, source: Source, sink: _Sink) -> None:
    """Put a target together in memory, and append it."""
    import numpy as np

    data = np.empty(target.nbytes, "u1")
    for copy in target.copies:
        _fill(copy, source, data.data, 0)
    sink.write(data.data)


def _scatter(copy: Copy, source: Source, sink: _Sink, start: int) -> None:
    """Fill a window of the file, block by block."""
    import mmap

    view = copy.destination
    if not view.numel:
        return
    base = start - start % mmap.ALLOCATIONGRANULARITY
    with mmap.mmap(sink.file.fileno(), start - base + view.byte_stop, offset=base) as mapped:
        _fill(copy, source, mapped, start - base, sink.advance)
        mapped.flush()


def _fill(copy: Copy, source: Source, into: Any, start: int, advance: Advance = lambda nbytes: None) -> None:
    """Make a copy in memory that can be written to, where the target begins at byte `start`."""
    import numpy as np

    view = copy.destination
    size = view.dtype.block_bytes
    strides = [stride * size for stride in view.strides]
    out = np.ndarray(view.shape, element_type(copy), into, start + view.byte_start, strides)
    for _, term in copy.terms:
        source.prove(int(term.storage))
    for box in boxes(copy):
        part = out[box]
        part[...] = value(copy, box, source)
        advance(part.nbytes)
