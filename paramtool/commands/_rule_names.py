"""Names in what rules find: quoted, missing, and what a missing one could have meant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from paramtool.model.checkpoint import Ordered

if TYPE_CHECKING:
    from paramtool.commands.inspect import Inspection

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
