"""Rules about numbers: how large the files are, how many parameters there are, and whether all numbers are finite."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from paramtool.commands.sizes import size
from paramtool.errors import UsageError, plural, some
from paramtool.grouping import grouped
from paramtool.model.checkpoint import Ordered

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
        files = plural(found.checkpoint.files, "file")
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


# --- Names in what rules find: quoted, missing, and what a missing one could have meant -------------------------------


MAX_QUOTED = 200
"""Longer names are cut off in a finding, and no name like them is looked for."""


def quoted(name: str) -> str:
    """A name in quotes, cut off where it is very long."""
    return repr(name) if len(name) <= MAX_QUOTED else f"{name[:MAX_QUOTED]!r}..."


def absent(found: Inspection, name: str) -> str:
    """That a name is not there."""
    where = "the file" if found.section is None else f"section {found.section!r}"
    return f"{quoted(name)} is not in {where}"


def _equal(name: str, wanted: str) -> bool:
    return name == wanted


def advice(found: Inspection, lacking: Iterable[str], matches: Callable[[str, str], bool] = _equal) -> str:
    """What one of the names or patterns that are not there could have meant."""
    from paramtool.passes.select import MAX_LOOKED_UP

    names = [name for name in found.checkpoint.entries if len(name) <= MAX_QUOTED]
    short = (name for name in lacking if len(name) <= MAX_QUOTED) if names else ()
    ordered = Ordered(names)
    looked_up = islice(short, MAX_LOOKED_UP)  # a list of a million names is compared with a million
    return next(filter(None, (_meant(found, name, names, ordered, matches=matches) for name in looked_up)), "")


def _meant(
    found: Inspection, name: str, names: Collection[str], ordered: Ordered, *, matches: Callable[[str, str], bool]
) -> str:
    """What a name could have meant: one in a section, under a prefix, or spelt otherwise."""
    inside = [
        repr(section.name)
        for section in found.checkpoint.sections
        if any(matches(other.removeprefix(section.prefix), name) for other in ordered.under(section.prefix))
    ]
    if inside:
        return f"; section {' and section '.join(inside[:2])} has {quoted(name)}: --only takes a section alone"
    likely = _likely(name, names)
    return f"; did you mean {' or '.join(map(repr, likely))}?" if likely else ""


def _likely(name: str, names: Collection[str]) -> list[str]:
    """At most two names that are longer or shorter by a prefix that ends in a dot, or look alike."""
    from paramtool.passes import select

    if name.strip() in names:
        return [name.strip()]
    if (head := select.head_of([name], names))[1]:
        return [name.removeprefix(head[0])]
    longer = [other for other in names if other.endswith(f".{name}")]
    return longer[:2] or select.alike(name, names)
