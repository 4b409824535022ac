"""`paramtool inspect`: what files are, and which rules they do not keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from paramtool.cli import _display, _render
from paramtool.cli._display import current
from paramtool.cli._failures import Failure, failure
from paramtool.cli._options import FAIL_ON, JSON, ONLY, READING, WEIGHTS, Row, command_line
from paramtool.cli._paths import check
from paramtool.cli._text import FILES, plural, size
from paramtool.commands import inspect as inspect_command
from paramtool.commands.inspect import Inspection
from paramtool.errors import MAX_LISTED, ParamtoolError, UnsafeError, UsageError, exit_code, printable
from paramtool.formats.once import remembering
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.finding import Finding

if TYPE_CHECKING:
    from paramtool.commands.listed import Listing

MANY_NAMES = 3
"""How many names a group of findings shows."""
CODES = (
    "0 fine, 1 a --fail-on rule found something, 2 usage, 3 bad file, 4 unsafe file.  Unsafe counts more "
    "than bad, and that more than usage and findings."
)


@frozen
class _Seen:
    """One of the paths, and what became of it."""

    path: str
    how: _Printing
    found: Inspection | None = None
    """None where it cannot be described."""
    failure: Failure | None = None
    _members = "path exit_code=code inspection error=failure"

    @property
    def inspection(self) -> Listing | None:
        """Its document."""
        from paramtool.commands.listed import Listing

        return Listing(self.found, self.how.tensors, self.how.tree, self.how.depth) if self.found is not None else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What rules found."""
        return self.found.findings if self.found is not None else ()

    @property
    def code(self) -> int:
        """The exit code that it has alone."""
        return exit_code([self.failure.code if self.failure else 0, int(bool(self.findings))])


@command_line(
    inspect_command.inspect,
    click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=FILES),
    common="tensors tree digest config only weights optimizer fail_on",
    more=lambda: _rules(),  # imported for the long help alone
    codes=CODES,
    json=JSON,
    tensors=Row("List every tensor."),
    tree=Row("List the modules, with the tensors, parameters and bytes below each."),
    depth=Row("With --tree, go down N levels.", "N", type=click.IntRange(1)),
    digest=Row("Read everything: print a digest of each tensor and find equal tensors."),
    only=ONLY,
    weights=WEIGHTS,
    optimizer=Row("List the optimizers' states, which parameters they belong to, and how that is known."),
    optimizer_names=Row(
        "Take the names of the parameters from FILE, one line for each entry of the optimizer.", "FILE", type=FILES
    ),
    fail_on=FAIL_ON,
    **READING,
)
@remembering()
def command(
    paths: tuple[str, ...], tensors: bool, *, tree: bool, depth: int | None, digest: bool,
    fail_on: tuple[str, ...], allow_unknown: bool, **options: Any,
) -> int:  # fmt: skip
    """Show what is in checkpoints.  paramtool imports and runs nothing from them, and reads tensor data only for
    --digest, --config and rules about bytes.  A file is unsafe if its pickles call unknown names: inspect lists all of
    them and exits with code 4.  If one of several files cannot be read, the others are still listed.

    The parameter count covers floating-point and complex tensors of the model, and integer tensors called weight.  It
    excludes masks, and counts shared tensors once.  For a file without parameters, inspect lists the objects.

    \b
    $ paramtool inspect model.pt
    $ paramtool inspect *.pt --quiet --fail-on 'unused-bytes>1MB'
    $ paramtool inspect ./gpt2 --config ./gpt2 --fail-on config-ties
    $ paramtool inspect ./checkpoint-500 --optimizer
    """
    if current.quiet and current.as_json:
        raise UsageError("--quiet prints lines of text and --json one document", hint="give one of the two")
    if depth is not None and not tree:
        raise UsageError("--depth needs --tree", hint="--tree --depth 2")

    if fail_on:
        from paramtool.commands.rules import parse

        for text in fail_on:
            parse(text)
    listed = tensors or tree or digest or current.verbose or options["optimizer"] or options["optimizer_names"]
    how = _Printing(tensors or digest, tree, depth, len(fail_on), current.as_json or current.quiet or bool(listed))

    def look(path: str) -> _Seen:
        check(path, "inspect")
        found = inspect_command.inspect(
            path, digest=digest, fail_on=fail_on, allow_unknown=allow_unknown, progress=_render.progress, **options
        )
        return _Seen(path, how, found, _refused(found, allow_unknown))

    return _one(look(paths[0]), how) if len(paths) == 1 else _many(paths, look, how)


def _rules() -> list[tuple[str, str]]:
    """Each rule, and what it finds."""
    from paramtool.commands.rules import KINDS

    return [(kind.id + kind.form, kind.words) for kind in KINDS]


def _refused(found: Inspection, allow_unknown: bool) -> Failure | None:
    """Why a file is unsafe that was listed all the same, or how an optimizer contradicts the model."""
    try:
        if not allow_unknown:
            found.refuse()
        if found.optimizers:
            from paramtool.commands.optimizers import refuse_defects

            refuse_defects(found.path, [binding for file in found.optimizers for binding in file.bindings])
    except ParamtoolError as error:
        return failure(error)
    return None


@frozen
class _Printing:
    """What is printed of each file."""

    tensors: bool
    tree: bool
    depth: int | None
    rules: int
    """How many rules there are."""
    is_listing: bool
    """Whether each of several files is listed; else it is one line."""

    def text(self, seen: _Seen, where: str = "") -> None:
        """The listing, the findings, which say `where` if that is not plain, and the verdict."""
        if seen.found is not None and not current.quiet:
            from paramtool.cli._inspect_rows import rows

            _render.rows(rows(seen.found, self.tensors, tree=self.tree, depth=self.depth))
        self.findings(seen.findings, where)
        if self.rules and seen.found is not None and not current.quiet:
            _render.rows([_verdict(seen.findings, self.rules)])

    def findings(self, found: Sequence[Finding], where: str) -> None:
        """What rules found: of a kind one row on a terminal, and a line each elsewhere."""
        if _render.is_table() and not current.verbose:
            _render.rows(_grouped(found, where))
        else:
            _render.lines((where + line for line in _capped(found)), "finding")


def _capped(findings: Sequence[Finding]) -> Iterator[str]:
    """The lines of findings, one each; of one rule the first, and how many more there are."""
    most = _display.most(MAX_LISTED)
    for rule, group in groupby(findings, key=lambda finding: finding.rule):
        texts = [finding.message for finding in group]
        yield from (f"{rule}: {text}" for text in texts[:most])
        if more := len(texts[most:]):
            yield f"{rule}: and {more} more; --verbose and --json list them"


def _grouped(findings: Sequence[Finding], where: str) -> _render.Rows:
    """A row for what a rule finds, with the first names of those of which it finds the same."""
    groups = grouped(((finding.rule, finding.what or finding.message), finding) for finding in findings)
    for (rule, what), group in groups.items():
        if len(group) == 1:
            yield ("finding", where + rule, group[0].message)
            continue
        names = [name for finding in group for name in finding.names]
        more = len(names) - MANY_NAMES
        yield ("finding", where + rule, f"{plural(len(names), 'tensor')}: each {what}")
        yield from (("", "", f"  {one}") for one in names[:MANY_NAMES])
        if more > 0:
            yield ("", "", f"  and {more} more; --verbose and --json list them")


def _verdict(findings: Sequence[Finding], rules: int) -> _render.Row:
    """The last line of a file that rules were asked about."""
    broken = len({finding.rule for finding in findings})
    if not findings:
        return ("verdict", "fine: " + plural(rules, "rule finds nothing", "rules find nothing"))
    return ("verdict", f"{plural(len(findings), 'finding')} from {broken} of {plural(rules, 'rule')}, exit code 1")


def _one(seen: _Seen, how: _Printing) -> int:
    """One path: its document or its listing, and then why it is unsafe, if it is."""
    if current.as_json:
        _render.json_document(seen.inspection)
    else:
        how.text(seen)
    _complain(seen)
    return seen.code


def _many(paths: tuple[str, ...], look: Callable[[str], _Seen], how: _Printing) -> int:
    """Every path in order, also after one has failed; the exit code is the one that counts of theirs."""
    from paramtool.cli._json_text import Kept

    codes: list[int] = []
    table: list[_render.Row] = []
    broken: list[tuple[str, Finding]] = []
    with Kept() if current.as_json else nullcontext() as kept:
        for path in paths:
            seen = _looked(path, look, how)
            codes.append(seen.code)
            if kept is not None:
                kept.add(seen)
            elif how.is_listing:
                # The listing of one of several, with an empty line after it.
                how.text(seen, f"{seen.path}: ")
                _render.lines([""] if seen.found is not None and not current.quiet else [])
            else:
                table.append(_in_a_line(seen))
                broken += ((seen.path, one) for one in seen.findings)
                continue
            _complain(seen)
        _render.rows(table)
        for path, group in grouped(broken).items():
            how.findings(group, f"{path}: ")
        if kept is not None:
            head = {"schema": "paramtool.inspect-files/1", "exit_code": exit_code(codes)}
            _render.text(kept.document(head, "files"))
        elif not current.quiet:
            fine, findings = codes.count(0), codes.count(1)
            words = [f"{fine} fine", f"{findings} with findings", f"{len(codes) - fine - findings} with errors"]
            _render.rows([(("total", plural(len(codes), "file"), ", ".join(words)))])
    return exit_code(codes)


def _in_a_line(seen: _Seen) -> _render.Row:
    """The verdict of a file, its path, and the reason, or what it is."""
    if seen.failure is not None:
        is_unsafe = seen.code == UnsafeError.exit_code
        first, *others = seen.failure.message.removeprefix(f"{printable(seen.path)}: ").splitlines()
        why = f"{first.rstrip(':')}: {others[0].strip()}" if others else first
        why = f"asks for {others[0].strip()}: nothing was run" if is_unsafe and others else why
        return ("unsafe" if is_unsafe else "error", seen.path, why)
    assert seen.found is not None
    checkpoint = seen.found.checkpoint
    facts = [checkpoint.format, plural(len(checkpoint.entries), "tensor"), size(checkpoint.nbytes)]
    more = [plural(len(seen.findings), "finding")] if seen.findings else []
    return ("finding" if seen.findings else "fine", seen.path, " · ".join([*facts, *more]))


def _looked(path: str, look: Callable[[str], _Seen], how: _Printing) -> _Seen:
    """One of several paths; an error of its own stays with it, and says which path it is of."""
    try:
        return look(path)
    except Exception as error:
        failed = failure(error)
        if failed is None:
            raise
        if not failed.message.startswith((path, printable(path))):
            failed = Failure(failed.code, f"{printable(path)}: {failed.message}", failed.hint)
        return _Seen(path, how, None, failed)


def _complain(seen: _Seen) -> None:
    """The error of a path, after what was printed of it."""
    if seen.failure is not None:
        _render.flush()
        seen.failure.complain()
