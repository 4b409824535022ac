"""`--weights` and `--each`: which sets of weights of a folder a command takes, and the report of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from paramtool.cli import _render
from paramtool.cli._text import NEXT, came_along, plural, verify_line, weakest

if TYPE_CHECKING:
    from paramtool.commands.opening import Each
    from paramtool.commands.output.write import R


def report(
    found: Each[R],
    rows: Callable[[R], Iterable[_render.Row]],
    *,
    flag: Callable[[R], str],
) -> None:
    """Print what was done with each set; `flag` is what `verify` needs to know of one."""
    warnings = (*(text for one in found.members for text in one.warnings), *found.warnings)
    _render.report(found, _rows(found, rows, flag), warnings)


def _rows(found: Each[R], rows: Callable[[R], Iterable[_render.Row]], flag: Callable[[R], str]) -> _render.Rows:
    what = "each" if found.written else "dry run"
    yield (what, f"{found.input} -> {found.output}", f"{plural(len(found.members), 'set')} of weights")
    yield from came_along(found.sidecars)
    yield from (("left out", text) for text in found.left_out)
    for one in found.members:
        yield from (row for row in rows(one) if row[0] != NEXT)
    if found.written:
        flags = {flag(one) for one in found.members}
        lacks, keeps = (any(word in one for one in flags) for word in ("--subset", "--tensors-only"))
        yield (NEXT, verify_line(found.output, found.input, flag=weakest(lacks, not keeps), each=True))
