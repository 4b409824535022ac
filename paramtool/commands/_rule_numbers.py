"""Rules about numbers: how large the files are, how many parameters there are, and whether all numbers are finite."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from paramtool.commands._rule_names import quoted
from paramtool.commands.sizes import size
from paramtool.errors import UsageError, plural, some
from paramtool.grouping import grouped

if TYPE_CHECKING:
    from paramtool.commands.inspect import Inspection

Judged = tuple[str, tuple[str, ...]] | tuple[str, tuple[str, ...], str]


class Share(NamedTuple):
    """A part of all bytes of the files."""

    percent: float


class Range(NamedTuple):
    """Numbers from `least` to `most`, both included; None for no limit."""

    least: int | None
    most: int | None

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.least:,}"
        if self.least is None:
            return f"at most {self.most:,}"
        return f"at least {self.least:,}" if self.most is None else f"{self.least:,} to {self.most:,}"


def parse_range(text: str) -> Range:
    """`N`, `A..B`, `A..` or `..B`; UsageError for anything else.

    >>> parse_range("5"), parse_range("..7")
    (Range(least=5, most=5), Range(least=None, most=7))
    """
    found = re.fullmatch(r"(\d{0,15})(?:(\.\.)(\d{0,15}))?", text, re.ASCII)
    if found is None or not (found[1] or found[3]):
        raise UsageError(f"{text[:60]!r} is not a range of numbers; write 124439808, 100..200, 100.. or ..200")
    least = int(found[1]) if found[1] else None
    most = least if not found[2] else int(found[3]) if found[3] else None
    if least is not None and most is not None and least > most:
        raise UsageError(f"{text!r} is an empty range: {least} is more than {most}")
    return Range(least, most)


def file_nbytes(found: Inspection) -> int:
    """Bytes of all files of the checkpoint."""
    return sum(file.nbytes for file in found.checkpoint.files)


def too_large(found: Inspection, limit: int) -> Iterator[Judged]:
    """A finding where the files are larger than `limit` bytes."""
    nbytes = file_nbytes(found)
    if nbytes > limit:
        files = plural(len(found.checkpoint.files), "file")
        yield f"{nbytes} bytes in {files} ({size(nbytes)}), more than {size(limit)}", ()


def wrong_count(found: Inspection, wanted: Range) -> Iterator[Judged]:
    """A finding where the number of parameters is not in a range."""
    number = found.parameters
    if (wanted.least is not None and number < wanted.least) or (wanted.most is not None and number > wanted.most):
        yield f"{plural(number, 'parameter')}, expected {wanted}", ()


def not_finite(found: Inspection, patterns: Sequence[str] | None) -> Iterator[Judged]:
    """A finding for each tensor with a NaN or an infinity; every view is read once, for all of its names.

    `patterns` are of names; None for all tensors.
    """
    names = grouped(
        (view, name)
        for name, view in found.checkpoint.windows()
        if patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)
    )
    from paramtool.engine.read.finite import NotFinite, counted, has_nonfinite
    from paramtool.engine.read.source import Source

    if not (views := [view for view in names if has_nonfinite(view.dtype)]):
        return
    with Source(found.checkpoint) as source:
        known = found.numbers()
        for view in views:
            counts: NotFinite = known.get(view) or counted(source, view)
            if counts.total:
                what = f"holds {counts} of {plural(view.numel, 'number')}, the first at {counts.place(view.shape)}"
                yield f"{quoted(names[view][0])} {what}", tuple(names[view]), what


def judged_nothing(found: Inspection, patterns: Sequence[str] | None) -> Iterator[str]:
    """Where no tensor matches the patterns of `not_finite`: that nothing was judged."""
    names = [name for name, _ in found.checkpoint.windows()] if patterns is not None else []
    if patterns and not any(fnmatchcase(name, pattern) for name in names for pattern in patterns):
        yield f"no tensor matches {some(patterns, 4)}, so none was judged"
