"""`paramtool diff`: how two checkpoints differ, and the map between them where only names or layouts do."""

from __future__ import annotations

from math import inf
from typing import Any

import click

from paramtool.cli import _completion, _diff_rows, _display, _render
from paramtool.cli._help import Command
from paramtool.cli._options import JSON, MEMORY, READING, Row, options
from paramtool.cli._text import FILE
from paramtool.commands.diff import diff as diff_command
from paramtool.errors import exit_code as first_of

EPILOG = "Exit codes: 0 compared, 1 other weights, or no base (with --exit-code), 2 usage, 3 bad file, 4 unsafe file."


@click.command(
    "diff",
    cls=Command,
    common="find_base stat rows exit_code strict atol rtol only config",
    epilog=EPILOG,
)
@click.argument("paths", type=FILE, nargs=-1, metavar="A B")
@options(
    diff_command.diff,
    find_base=click.option(
        "--find-base",
        metavar="X",
        type=FILE,
        help="Instead: name the base that X was fine-tuned from, of the candidates A, B and more, by sampled rows.",
    ),
    stat=click.option(
        "--stat", is_flag=True, help="Print the verdict and counts only, and ties and objects that differ."
    ),
    rows=click.option(
        "--rows", is_flag=True, help="Say which rows of each changed tensor differ, and the mean difference."
    ),
    exit_code=click.option("--exit-code", is_flag=True, help="Exit with 1 where A and B are not the same weights."),
    strict=click.option(
        "--strict",
        is_flag=True,
        help="With --exit-code: names, layouts, lossless casts, metadata and graph constants have to be the same, too.",
    ),
    atol=click.option(
        "--atol",
        type=float,
        default=0.0,
        metavar="X",
        help="With --exit-code: accept numbers that are no further apart than X + RTOL * |b|, as numpy.allclose.",
    ),
    rtol=click.option(
        "--rtol", type=float, default=0.0, metavar="RTOL", help="The same, relative to the numbers of B."
    ),
    only=Row("Compare this section of both.", "SECTION", _completion.sections_of("paths")),
    memory=MEMORY,
    **READING,
    json=JSON,
)
@_display.options
def command(
    paths: tuple[str, ...],
    *,
    find_base: str | None,
    stat: bool,
    rows: bool,
    exit_code: bool,
    strict: bool,
    atol: float,
    rtol: float,
    as_json: bool,
    **options: Any,
) -> int:
    """Compare two checkpoints by content: what changed, and what is the same under other names or in another layout.

    Every verdict is proved by comparing all bytes.

    \b
    $ paramtool diff base/ finetuned/
    $ paramtool diff --find-base finetuned/ candidate-1/ candidate-2/
    """
    _check(paths, find_base, exit_code, strict or bool(atol or rtol))
    for flag, number in (("--atol", atol), ("--rtol", rtol)):
        if not 0 <= number < inf:
            raise click.UsageError(f"{flag} is {number:g}; expected a finite number, which is 0 or more")
    if find_base is not None:
        if stat or rows or strict or atol or rtol or options.pop("only") is not None:
            raise click.UsageError("--find-base takes --exit-code alone of what is said of two checkpoints")
        return _find_base(find_base, paths, options, exit_code=exit_code, as_json=as_json)
    found = diff_command.diff(*paths, rtol=rtol, progress=_render.progress, **options)
    _render.report(
        found, as_json, _diff_rows.rows(found, stat=stat, rows=rows, strict=strict), (*found.notes, *found.doubts)
    )
    return 1 if exit_code and not found.judge(strict=strict, atol=atol) else 0


def _check(paths: tuple[str, ...], find_base: str | None, exit_code: bool, judges: bool) -> None:
    """A usage error for another number of checkpoints than two, and for options that do nothing."""
    if find_base is not None and not paths:
        raise click.UsageError(f"no candidates are given; expected --find-base {find_base} CANDIDATE...")
    if find_base is None and len(paths) != 2:
        found = "1 is" if len(paths) == 1 else f"{len(paths)} are"
        raise click.UsageError(f"diff compares two checkpoints, A and B, and {found} given")
    if judges and not exit_code:
        raise click.UsageError("--strict, --atol and --rtol say when --exit-code gives 1, and --exit-code is not given")


def _find_base(
    path: str, candidates: tuple[str, ...], options: dict[str, Any], *, exit_code: bool, as_json: bool
) -> int:
    """The candidates by their distance, and the one that is the base."""
    from paramtool.commands.diff.find_base import find_base

    options.pop("memory")
    found = find_base(path, candidates, progress=_render.counted, **options)
    _render.report(found, as_json, _diff_rows.base_rows(found))
    return first_of([*(one.exit_code for one in found.candidates), int(exit_code and not found.base)])
