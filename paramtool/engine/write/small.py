"""Small outputs that are made in memory: records, locks, reports."""

from __future__ import annotations

from collections.abc import Iterable

from paramtool.engine.write.sink import Sink
from paramtool.engine.write.staging import Staged


def write_small(path: str, data: bytes, *, force: bool = False, inputs: Iterable[str] = ()) -> tuple[str, ...]:
    """Write a complete file or nothing; OutputError if it exists and `force` is not given, or is one of the inputs.

    What is given back is what was done about the leftovers of runs that were killed.
    """
    with Staged(path, False, force, inputs) as staged:
        with Sink(staged, "", lambda nbytes: None) as sink:
            sink.write(data)
        staged.commit()
    return tuple(staged.notes)
