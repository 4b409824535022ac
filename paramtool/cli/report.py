"""`paramtool report`: one page to look at."""

from __future__ import annotations

from typing import Any

from paramtool.cli import _render
from paramtool.cli._options import Row, command_line
from paramtool.cli._render import Rows
from paramtool.commands.report.write import PageReport, report
from paramtool.errors import plural
from paramtool.model.display import size


@command_line(
    report,
    "PATH [OTHER]",
    common="output force equal only lock fail_on",
    codes="0 the page was written, whatever is on it; 2 usage, 3 bad file, 4 unsafe file, 7 output.",
    output=Row("Where to write the page.  [default: <stem>.report.html beside PATH]", "PAGE.html"),
    force=Row("Overwrite an existing page, and no other kind of file."),
    equal=Row("Read all tensors and look for equal bytes in separate storages."),
    only=Row("Show this section of a training checkpoint.", "SECTION"),
    fail_on=Row(
        "Show what RULE finds, as inspect names rules; it does not change the exit code.  Repeatable.",
        "RULE",
    ),
    lock=Row("Compare PATH with a lock file and show what check finds, by its configuration.", "FILE"),
)
def command(path: str, other: str | None, **options: Any) -> None:
    """Write one page of HTML about a checkpoint: where its bytes are, which names share memory, fused buffers with
    gaps, gates and heads in colour, and findings.  With OTHER, the page also shows how OTHER differs from PATH.

    The page is one file.  It loads nothing from a network and runs nothing but its own script.

    \b
    $ paramtool report model.pt -o model.html
    $ paramtool report base/ finetuned/ -o change.html
    """
    _render.report(report(path, other, progress=_render.progress, **options), _rows)


def _rows(found: PageReport) -> Rows:
    yield "report", found.output, size(found.nbytes), plural(found.sections, "section")
    for title in found.sections:
        yield "section", title
