"""What the reports of commands that write have in common, and the report of every set of weights of a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from paramtool.cli import _render
from paramtool.cli._display import most
from paramtool.cli._render import Row, Rows, every
from paramtool.cli._text import NEXT, plural, size, verify_line
from paramtool.errors import leading

if TYPE_CHECKING:
    from paramtool.commands.opening import Each
    from paramtool.commands.output.report import CheckpointReport, Report
    from paramtool.commands.output.write import R

MANY = 8
"""How many files a row names."""
FEW = 6
"""How many classes it names."""


def head(found: CheckpointReport, command: str, *facts: str) -> Row:
    """The first row: what was written, or would be."""
    return (command if found.written else "dry run", f"{found.input} -> {found.output}", *facts)


def checked(found: Report) -> tuple[str, str]:
    """Whether the output was read back, and how long all of it took."""
    return ("all read back and equal" if found.verified else "not verified", f"{found.seconds:.1f} s")


def physical(found: Report, nbytes: int) -> Rows:
    """How much of an output is new on the disk, where some of it shares its blocks with what was read."""
    if cloned := found.cloned_nbytes:
        yield ("on disk", f"{size(nbytes - cloned)} new", f"{size(cloned)} in blocks that the input has too")


def beside(
    sidecars: Sequence[str],
    left_out: Iterable[str],
    changed: Iterable[str] = (),
    needs: Sequence[str] = (),
    made: Sequence[str] = (),
) -> Rows:
    """Which other files of a folder came along or were written anew, and what became of objects."""
    if sidecars:
        yield ("with", plural(len(sidecars), "other file"), leading(sidecars, MANY))
        # The row for files that came along under names of weights: they are no smaller than they were.
        from paramtool.commands.output.sidecar_checks import other_weights

        if found := other_weights(sidecars):
            yield ("as before", plural(len(found), "file"), leading(found, MANY), "may be weights; not read")
    if made:
        yield ("with", leading(made, most(MANY)), "written anew, for these weights")
    yield from every("left out", left_out)
    yield from every("plain", changed)
    if needs:  # classes in a torch file that `torch.load(weights_only=True)` refuses
        shown = leading(needs, FEW) + (" (--json lists them)" if len(needs) > FEW else "")
        yield ("opens", f"with torch.load(weights_only=False), as its source does, because of {shown}",
               "--plain writes these as dicts, lists, numbers and strings")  # fmt: skip


def weakest(lacks: bool, keeps_objects: bool) -> str:
    """The flags by which `verify` accepts an output that lacks names or ties, and objects."""
    return " ".join(("--subset",) * lacks + ("--tensors-only",) * (not keeps_objects))


def each_set(found: Each[R], rows: Callable[[R], Iterable[Row]], flag: Callable[[R], str]) -> None:
    """Print what was done with each set; `flag` is what `verify` needs to know of one."""
    warnings = (*(text for one in found.members for text in one.warnings), *found.warnings)
    _render.report(found, _rows(found, rows, flag), warnings)


def _rows(found: Each[R], rows: Callable[[R], Iterable[Row]], flag: Callable[[R], str]) -> Rows:
    what = "each" if found.written else "dry run"
    yield (what, f"{found.input} -> {found.output}", f"{plural(len(found.members), 'set')} of weights")
    yield from beside(found.sidecars, found.left_out)
    for one in found.members:
        yield from (row for row in rows(one) if row[0] != NEXT)
    if found.written:
        flags = {flag(one) for one in found.members}
        lacks, keeps = (any(word in one for one in flags) for word in ("--subset", "--tensors-only"))
        yield (NEXT, verify_line(found.output, found.input, flag=weakest(lacks, not keeps), each=True))
