"""Writing the files of a plan into their temporary place: literal bytes, runs of the source, and what is calculated."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from paramtool.engine.arithmetic import boxes, element_type, value
from paramtool.engine.checksums import Checksums
from paramtool.engine.sink import Advance, Sink
from paramtool.engine.source import Source
from paramtool.engine.staging import Staged, output_error, sync_folder
from paramtool.errors import OutputError
from paramtool.formats._files import open_source
from paramtool.formats._output import Late, OutputFile
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View

KERNEL_NBYTES = 1 << 20
"""Longer runs of bytes are copied by the kernel."""
ASSEMBLED_NBYTES = 64 << 20
"""Targets up to this are put together in memory; larger ones in the mapped output."""


def write(
    staged: Staged, outputs: Iterable[OutputFile], source: Source, advance: Advance = lambda nbytes: None
) -> None:
    """Write every file of an output to its temporary place, one pass over the source, flushed to the disk.

    OutputError where the disk refuses; FormatError where the source turns out damaged.
    """
    outputs = list(outputs)
    _check_space(staged, sum(output.nbytes for output in outputs))
    for output in outputs:
        with Sink(staged.file(output.name), staged.path, advance) as sink:
            _write_segments(output, source, sink)
        staged.cloned += sink.cloned
    source.settle()
    if staged.is_folder:
        sync_folder(staged.temporary)


def _write_segments(output: OutputFile, source: Source, sink: Sink) -> None:
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


def copy_whole(staged: Staged, files: Mapping[str, str], advance: Advance) -> None:
    """Copy whole regular files into an output folder: {name in it, with `/`: file}; `advance` hears of every byte.

    FormatError where a file cannot be read, OutputError where the disk refuses.
    """
    for name, source in files.items():
        path = staged.file(name)
        file, status = open_source(source)
        with file:
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            except OSError as error:
                raise output_error(staged.path, error) from None
            with Sink(path, staged.path, advance) as sink:
                sink.copy(file, 0, status.nbytes)
    for place in {os.path.dirname(staged.file(name)) for name in files}:
        sync_folder(place)


def make_folder(staged: Staged, name: str) -> None:
    """Make a folder inside an output folder, with those around it; nothing for the empty name."""
    try:
        if name:
            os.makedirs(staged.file(name), exist_ok=True)
    except OSError as error:
        raise output_error(staged.path, error) from None


def _check_space(staged: Staged, nbytes: int) -> None:
    status = os.statvfs(os.path.dirname(staged.temporary) or ".")
    free = status.f_bavail * status.f_frsize
    if nbytes > free:
        raise OutputError(
            f"{staged.path}: needs {nbytes} bytes and the disk has {free} left",
            hint="free some space, or -o on another disk",
        )


def _write_target(target: Target, source: Source, sink: Sink) -> None:
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


def _write_run(view: View, source: Source, sink: Sink) -> None:
    """Append a window row by row, by the kernel where it is one long run."""
    if view.is_contiguous and view.nbytes >= KERNEL_NBYTES:
        source.prove_later(int(view.storage))
        file, base = source.place(int(view.storage))
        source.nbytes_read += view.nbytes
        sink.copy(file, base + view.byte_start, view.nbytes)
        return
    for chunk in source.row_major(view):
        sink.write(chunk)


def _assemble(target: Target, source: Source, sink: Sink) -> None:
    """Put a target together in memory, and append it."""
    import numpy as np

    data = np.empty(target.nbytes, "u1")
    for copy in target.copies:
        _fill(copy, source, data.data, 0)
    sink.write(data.data)


def _scatter(copy: Copy, source: Source, sink: Sink, start: int) -> None:
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
        out[box] = value(copy, box, source)
        advance(out[box].nbytes)
