"""What the reports of commands that write have in common, and the report of every set of weights of a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from paramtool.cli import _render
from paramtool.cli._options import given
from paramtool.cli._render import MANY, NEXT, Rows, Texts, every, most
from paramtool.cli._streams import quoted
from paramtool.commands import adapter_config
from paramtool.commands.output.sidecar_checks import other_weights
from paramtool.errors import leading, plural
from paramtool.model.display import size

if TYPE_CHECKING:
    from paramtool.commands.opening import Each
    from paramtool.commands.output.write import Report, WholeReport


def head(found: Any, command: str, *facts: str, source: str = "") -> Texts:
    """The first row: what was written, or would be, and from what."""
    return (command if found.written else "dry run", f"{source or found.input} -> {found.output}", *facts)


def checked(found: Report) -> tuple[str, str]:
    """Whether the output was read back, and how long all of it took."""
    return ("all read back and equal" if found.verified else "not verified", f"{found.seconds:.1f} s")


def physical(found: Report, nbytes: int) -> Rows:
    """How much of an output is new on the disk, where some of it shares its blocks with what was read."""
    if cloned := found.cloned_nbytes:
        yield "on disk", f"{size(nbytes - cloned)} new", f"{size(cloned)} in blocks that the input has too"


def beside(found: Any) -> Rows:
    """Which other files of a folder came along or were written anew, and what became of objects."""
    yield "with", plural(found.sidecars, "other file"), found.sidecars
    others = other_weights(found.sidecars)  # under names of weights: they are no smaller than they were
    yield "as before", plural(others, "file"), others, "may be weights; not read"
    yield "with", getattr(found, "made", None), "written anew, for these weights"
    yield from every("left out", found.left_out)
    yield from every("plain", getattr(found, "changed", ()))
    if needs := getattr(found, "needs", ()):  # classes in a torch file that `torch.load(weights_only=True)` refuses
        why = f"as its source does, because of {leading(needs, most(MANY))}"
        plain = "--plain writes these as dicts, lists, numbers and strings"
        yield "opens", f"with torch.load(weights_only=False), {why}", plain


def weakest(found: WholeReport, lacks: object) -> str:
    """The flags by which `verify` accepts an output that lacks names or ties, an adapter's config, and objects."""
    is_adapter = os.path.isfile(os.path.join(found.input, adapter_config.NAME)) and not os.path.isdir(found.output)
    subset = bool(lacks or is_adapter or not found.keeps_ties)
    return " ".join(("--subset",) * subset + ("--tensors-only",) * (not found.keeps_objects))


def report(found: Any, rows: Callable[[Any], Iterable[Texts]], flag: Callable[[Any], str]) -> None:
    """Print what was done, or what with each set; `flag` is what `verify` needs to know of one."""

    def made(found: Each[Any]) -> Rows:
        yield head(found, "each", f"{plural(found.members, 'set')} of weights")
        yield from beside(found)
        for one in found.members:
            yield from (row for row in rows(one) if row[0] != NEXT)
        if found.written:
            said = {word for one in found.members for word in flag(one).split()}
            yield NEXT, verify_line(found, " ".join(["--each", *sorted(said)]))

    members = getattr(found, "members", ())
    _render.report(found, made if members else rows, [text for one in members for text in one.warnings])


def verify_line(found: Any, flag: str = "", output: str = "") -> str:
    """The command that compares an output with what it was made from; `flag` says what it does not hold.

    It repeats the --allow-class, --allow-unknown, --new-config and --weights that the user gave.
    """
    only = getattr(found, "section", None)
    words = ["paramtool verify", quoted(output or found.output), quoted(found.input)]
    words += ["" if only is None else f"--only {quoted(only)}", flag]
    return " ".join(filter(None, [*words, *given("weights", "new_config", "allow_class", "allow_unknown")]))
