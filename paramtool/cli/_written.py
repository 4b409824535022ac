"""What the reports of commands that write have in common, and the report of every set of weights of a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from paramtool.cli import _render
from paramtool.cli._options import given
from paramtool.cli._render import MANY, NEXT, Rows, Texts, every, most
from paramtool.cli._streams import quoted
from paramtool.errors import leading, plural
from paramtool.model.display import size

if TYPE_CHECKING:
    from paramtool.commands.opening import Each
    from paramtool.commands.output.write import CheckpointReport, R, Report


def head(found: CheckpointReport, command: str, *facts: str) -> Texts:
    """The first row: what was written, or would be."""
    return (command if found.written else "dry run", f"{found.input} -> {found.output}", *facts)


def checked(found: Report) -> tuple[str, str]:
    """Whether the output was read back, and how long all of it took."""
    return ("all read back and equal" if found.verified else "not verified", f"{found.seconds:.1f} s")


def physical(found: Report, nbytes: int) -> Rows:
    """How much of an output is new on the disk, where some of it shares its blocks with what was read."""
    if cloned := found.cloned_nbytes:
        yield "on disk", f"{size(nbytes - cloned)} new", f"{size(cloned)} in blocks that the input has too"


def beside(found: Any) -> Rows:
    """Which other files of a folder came along or were written anew, and what became of objects."""
    if found.sidecars:
        yield "with", plural(found.sidecars, "other file"), leading(found.sidecars, MANY)
        # The row for files that came along under names of weights: they are no smaller than they were.
        from paramtool.commands.output.sidecar_checks import other_weights

        others = other_weights(found.sidecars)
        yield "as before", plural(others, "file") if others else None, leading(others, MANY), "may be weights; not read"
    if made := getattr(found, "made", ()):
        yield "with", leading(made, most(MANY)), "written anew, for these weights"
    yield from every("left out", found.left_out)
    yield from every("plain", getattr(found, "changed", ()))
    if needs := getattr(found, "needs", ()):  # classes in a torch file that `torch.load(weights_only=True)` refuses
        shown = leading(needs, MANY) + (" (--json lists them)" if len(needs) > MANY else "")
        yield ("opens", f"with torch.load(weights_only=False), as its source does, because of {shown}",
               "--plain writes these as dicts, lists, numbers and strings")  # fmt: skip


def weakest(lacks: bool, keeps_objects: bool) -> str:
    """The flags by which `verify` accepts an output that lacks names or ties, and objects."""
    return " ".join(("--subset",) * lacks + ("--tensors-only",) * (not keeps_objects))


def each_set(found: Each[R], rows: Callable[[R], Iterable[Texts]], flag: Callable[[R], str]) -> None:
    """Print what was done with each set; `flag` is what `verify` needs to know of one."""

    def made(found: Each[R]) -> Rows:
        what = "each" if found.written else "dry run"
        yield what, f"{found.input} -> {found.output}", f"{plural(found.members, 'set')} of weights"
        yield from beside(found)
        for one in found.members:
            yield from (row for row in rows(one) if row[0] != NEXT)
        if found.written:
            flags = {flag(one) for one in found.members}
            lacks, keeps = (any(word in one for one in flags) for word in ("--subset", "--tensors-only"))
            yield NEXT, verify_line(found.output, found.input, flag=weakest(lacks, not keeps), each=True)

    _render.report(found, made, [text for one in found.members for text in one.warnings])


def verify_line(output: str, source: str, only: str | None = None, flag: str = "", *, each: bool = False) -> str:
    """The command that compares an output with what it was made from; `flag` says what it does not hold.

    It repeats the --allow-class, --allow-unknown, --new-config and --weights that the user gave.
    """
    words = ["paramtool verify", quoted(output), quoted(source), *([] if only is None else ["--only", quoted(only)])]
    words += [*["--each"] * each, *[flag] * bool(flag), *given("weights", "new_config", "allow_class", "allow_unknown")]
    return " ".join(words)
