"""A file with some of its ranges replaced, and everything else of it byte for byte."""

from __future__ import annotations

from collections.abc import Mapping

from paramtool.errors import PlanError
from paramtool.formats.output import Segment
from paramtool.model.plan import Target
from paramtool.model.storage import ByteRange


def spliced(whole: ByteRange, fills: Mapping[tuple[int, int], Target]) -> tuple[Segment, ...]:
    """The segments of a range of a file in which each range (start, stop) of `fills` holds a target instead.

    Ranges count from the beginning of the file.  PlanError if two of them overlap, or one has another size than its
    target.
    """
    segments: list[Segment] = []
    at = whole.start
    for (start, stop), target in sorted(fills.items(), key=lambda item: item[0]):
        if start < at or stop > whole.stop:
            raise PlanError(
                f"{whole.file}: {target.name!r} is at bytes {start} to {stop}, which overlap another tensor"
            )
        if stop - start != target.nbytes:
            had = stop - start
            raise PlanError(f"{whole.file}: {target.name!r} has {had} bytes; its new values have {target.nbytes}")
        if start > at:
            segments.append(ByteRange(whole.file, at, start))
        if target.nbytes:
            segments.append(target)
        at = stop
    if at < whole.stop:
        segments.append(ByteRange(whole.file, at, whole.stop))
    return tuple(segments)
