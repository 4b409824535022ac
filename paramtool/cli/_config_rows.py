"""The table of a config's ties for people: config says / file says / result."""

from __future__ import annotations

from collections.abc import Iterator

from paramtool.cli import _render
from paramtool.commands.config_ties import DeclaredTies, apart_text
from paramtool.passes.config_ties.declared import BROKEN

RESULT_TEXTS = {
    "tied": "declared and tied",
    "one-name": "fine: the file stores one name",
    "equal-not-tied": "declared, and equal in separate memory",
    "diverged": "DIVERGED: declared, and different",
    "shared-though-denied": "SHARED: one storage, and the config denies the tie",
    "equal-though-denied": "equal bytes in separate memory; the config denies the tie",
    "apart": "stored apart, and no tie is declared",
    "undeclared": "shared, and the config does not declare it",
    "undeclared-equal": "equal in separate memory, and the config declares nothing",
    "not-compared": "not compared",
}
"""Results of `passes.declared` for people."""
DENIED_NAME = "the file stores one name; a model with both initialises the other"
SAYS = {True: "tied", False: "apart", None: "nothing"}


def rows(found: DeclaredTies, many: int) -> Iterator[_render.Row]:
    """A head, and a row for each tie, those that do not hold first; of very many the first."""
    ties = sorted(found.rows, key=lambda row: row.result not in BROKEN)
    yield ("config", found.path, "config says", "file says", "result")
    for row in ties[:many]:
        names = " = ".join(row.tie.names[:many]) + (" = ..." if len(row.tie.names) > many else "")
        yield (
            "tie",
            names,
            f"{SAYS[row.says]}: {row.why}",
            f"{row.file}{apart_text(row)}",
            (DENIED_NAME if row.says is False and row.result == "one-name" else RESULT_TEXTS[row.result]),
        )
    if len(ties) > many:
        yield ("tie", f"and {len(ties) - many} more", "--verbose and --json list them")
