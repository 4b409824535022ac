"""What a format passes to the engine: files, as sequences of literal bytes and tensors."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import groupby

from paramtool.errors import PlanError, listed, plural
from paramtool.lazy_dataclass import frozen
from paramtool.model.plan import Plan, Target
from paramtool.model.storage import ByteRange


@frozen
class Late:
    """Literal bytes that are only known after every target of the file is written, such as a zip's directory."""

    nbytes: int
    make: Callable[[Sequence[int]], bytes]
    """From the CRC-32 of each target and each copied range of the file, in order, to exactly `nbytes` bytes."""


Segment = bytes | Target | ByteRange | Late
"""Literal bytes, a tensor, a range of another file that is copied unchanged, or bytes that are known last."""


@frozen
class OutputFile:
    """One file of an output: its segments, in file order."""

    name: str
    """The name in the output folder; empty if the output is a single file."""
    segments: tuple[Segment, ...]

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets alone, in order."""
        return tuple(segment for segment in self.segments if isinstance(segment, Target))

    @property
    def nbytes(self) -> int:
        """The size the file will have."""
        return length(self.segments)


def length(parts: Iterable[Segment]) -> int:
    """How many bytes segments have."""
    return sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)


def joined(parts: Iterable[Segment]) -> tuple[Segment, ...]:
    """The segments with literal bytes that follow each other as one, and without empty ones."""
    found: list[Segment] = []
    for is_literal, run in groupby((part for part in parts if length((part,))), lambda part: isinstance(part, bytes)):
        if is_literal:
            found.append(b"".join(run))  # type: ignore[arg-type]  # all are bytes
        else:
            found += run
    return tuple(found)


def refuse_tensors(plan: Plan, what: str, refused: Mapping[str, str], hint: str) -> None:
    """PlanError for tensors of a plan, each with the reason, that an output, which people call `what`, cannot store."""
    if refused:
        lines = [f"{name!r:.200}: {reason}" for name, reason in refused.items()]
        head = f"{plan.source}: {what} cannot store {plural(len(refused), 'tensor')}:"
        raise PlanError(listed(head, lines), hint=hint)


def is_utf8(name: str) -> bool:
    """Whether a name can be written in UTF-8: half of a surrogate pair cannot.

    >>> is_utf8("\\u00fc"), is_utf8("\\ud800")
    (True, False)
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def tensor_above(name: str, names: Container[str], separator: str) -> str | None:
    """The first of `names` that a name would be inside of, in a format whose names are paths; None if there is none.

    >>> tensor_above("a/b/c", {"a/b"}, "/"), tensor_above("a", {"a"}, "/")
    ('a/b', None)
    """
    parts = name.split(separator)
    above = (separator.join(parts[:k]) for k in range(1, len(parts)))
    return next((other for other in above if other in names), None)


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
