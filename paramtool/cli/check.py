"""`paramtool check`: rules and a lock over many checkpoints, for CI."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool import __version__
from paramtool.cli import _paths, _render
from paramtool.cli._failures import Failure, failure
from paramtool.cli._options import FAIL_ON, Row, command_line
from paramtool.cli._render import LISTED, NEXT, Rows, current, every, most
from paramtool.cli._streams import is_github, quoted
from paramtool.commands.check import check as check_command
from paramtool.commands.check.config import FILE as CONFIG
from paramtool.commands.check.config import PYPROJECT
from paramtool.commands.check.report import Checked, CheckedFile
from paramtool.commands.rules import parse
from paramtool.errors import MAX_LISTED, OutputError, ParamtoolError, UsageError, leading, plural, printable, some
from paramtool.formats.files import watching
from paramtool.grouping import grouped
from paramtool.lockfile.lock import NAME
from paramtool.model.finding import BY_ID, ERROR, LOWERED, FileLine, Finding

if TYPE_CHECKING:
    from paramtool.findings.report import CheckReport


# --- `check`: the findings in each form, printed or written to a file, and the summary of a job on GitHub ------------


SUMMARY = "GITHUB_STEP_SUMMARY"
"""The environment variable that names the file for the summary of a step."""
SUFFIXES = {".sarif": "sarif", ".xml": "junit", ".md": "markdown", ".json": "json", ".txt": "text"}


class NotChecked(NamedTuple):
    """A run that checked nothing: its configuration or its lock cannot be read, or nothing says what is checked."""

    error: ParamtoolError
    inputs: tuple[str, ...]
    """Paths of the command line, which no output replaces."""
    files: tuple[CheckedFile, ...] = ()

    @property
    def exit_code(self) -> int:
        """That of the error."""
        return self.error.exit_code


Result = Checked | NotChecked
"""What a run of `check` has to say."""


FORMS = ("text", "github", "sarif", "junit", "markdown", "json")
"""What --format takes."""


def _pieces(form: str, found: Result) -> Iterator[str]:
    """A form, piece by piece, without its last line break."""
    if form == "json":
        from paramtool.cli._json_text import document, pieces

        return pieces(document(found if isinstance(found, Checked) else found.error))
    if form == "text":
        made: Any = _checked_rows(found) if isinstance(found, Checked) else [
            ("error", found.error.message), ("verdict", f"nothing checked, exit code {found.error.exit_code}"),
        ]  # fmt: skip
        lines = _render.plain_lines(made)
    else:
        module = import_module(f"paramtool.findings.{form}")
        report = reported(found)
        lines = iter([module.text(report, __version__)]) if form == "sarif" else module.lines(report)
    return (f"\n{line}" if k else line for k, line in enumerate(lines))


def reported(found: Result) -> CheckReport:
    """The findings with paths relative to the repository on GitHub, and elsewhere to the working directory."""
    from paramtool.findings.report import CheckReport

    root = os.path.realpath((is_github() and os.environ.get("GITHUB_WORKSPACE")) or os.getcwd())
    if isinstance(found, NotChecked):
        # The file that is wrong, with line and column; an empty path and 0 where they are not known.
        path, *where = found.error.place or (getattr(found.error, "filename", None) or "", 0, 0)
        place = FileLine(_below(root, path), *where)
        return CheckReport([], [], {place.path: found.error.message}, {place.path: place})
    errors = {_below(root, file.path): file.error.message for file in found.files if file.error is not None}
    places = (one.place and one.place._replace(path=_below(root, one.place.path)) for one in found.findings)
    moved = [
        replace(one, path=_below(root, one.path), place=place)
        for one, place in zip(found.findings, places, strict=True)
    ]
    return CheckReport(moved, [_below(root, one.path) for one in found.files], errors)


def _below(root: str, path: str) -> str:
    """A path relative to `root` if it is below it; otherwise as it was given."""
    if not path:
        return path
    whole = os.path.normpath(os.path.join(os.getcwd(), path))
    return os.path.relpath(whole, root) if whole.startswith(root.rstrip("/") + "/") else path


def form_of(output: str) -> str:
    """The form that the suffix of an output names."""
    found = SUFFIXES.get(os.path.splitext(output)[1].lower())
    if found is None:
        known = ", ".join(f"{suffix} ({form})" for suffix, form in SUFFIXES.items())
        raise UsageError(f"{output}: the suffix names no format; expected one of {known}", hint="or --format FORMAT")
    return found


def write(found: Result, form: str, output: str, *, force: bool) -> tuple[str, ...]:
    """Write one form to a file, complete or not at all; OutputError if it exists and `force` is not given.

    With `force` only a file in that form is replaced.  What is given back is what was done about the leftovers of runs
    that were killed.
    """
    from paramtool.commands.earlier_output import CHECKED, inputs_of

    data = "".join(_pieces(form, found)) + "\n"
    if isinstance(found, Checked):
        paths = (*(file.path for file in found.files), found.lock, found.config)
    else:
        paths = found.inputs
    return CHECKED[form].write(output, data.encode("utf-8"), force=force, inputs=inputs_of(paths))


def add_summary(found: Result) -> str:
    """Append the findings to the summary of a step on GitHub; what went wrong, or nothing."""
    from paramtool.findings import markdown

    path = os.environ.get(SUMMARY, "")
    if not path:
        return ""
    try:
        number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        with open(number, "ab") as file:
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode):
                return f"{path} is not a file: {SUMMARY} names it, and got no summary"
            lines = markdown.lines(reported(found), max(0, markdown.MAX_BYTES - status.st_size))
            file.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return f"{path}: {why}: {SUMMARY} names it, and got no summary"
    return ""


# --- `paramtool check`: rules and a lock over many checkpoints, for CI ---


MANY = 3
"""How many files an error of several names."""


def _found(paths: tuple[str, ...], options: dict[str, Any]) -> Checked | NotChecked:
    """What a run found; an error that ends it is said on standard error at once, since its forms may fail, too."""
    try:
        # The same, in which the error of what is no path at all, such as a URL, says so.
        found = check_command.check(paths, progress=_render.progress, **options)
        files = (
            replace(file, error=_paths.explained(file.error, file.path, "check")) if file.error is not None else file
            for file in found.files
        )
        return replace(found, files=tuple(files))
    except ParamtoolError as error:
        _complain(error)
        given = (*paths, options["lock"], options["config"], *(error.place or ())[:1], NAME, CONFIG, PYPROJECT)
        return NotChecked(error, tuple(path for path in given if path))


def _complain(error: ParamtoolError | None) -> None:
    if error is not None and (failed := failure(error)) is not None:
        failed.complain()


def _complain_of(files: Iterable[CheckedFile]) -> None:
    """The errors of files; what is wrong with several in the same words is said once."""
    said = ((file.path, file.error) for file in files if file.error is not None)
    groups = grouped(((error.message.removeprefix(f"{path}: "), error.hint), (path, error)) for path, error in said)
    for (text, hint), group in groups.items():
        paths = [printable(path) for path, _ in group]
        alike = Failure(group[0][1].exit_code, f"{leading(paths, most(MANY))}: {text}", hint)
        (alike if len(group) > 1 else failure(group[0][1]) or alike).complain()


@command_line(
    check_command.check,
    "[PATH...]",
    paths=_paths.FILES,
    common="lock config fail_on form output force",
    codes="0 no finding of severity error, 1 at least one, 2 usage or configuration, 3 bad file or lock, 4 unsafe "
    "file.  An internal error counts most, then unsafe, bad, usage and findings; one bad file does not stop the "
    "others.",
    lock=Row(
        "Compare with this lock.  [default: that of the configuration, or ./paramtool.lock, if it exists]", "FILE"
    ),
    config=Row(
        "Take the rules from this file.  [default: ./paramtool.toml, or [tool.paramtool] in ./pyproject.toml]", "FILE"
    ),
    fail_on=FAIL_ON,
    content_only=Row("Compare only tensors with the lock: no ties, objects, dialects and files."),
    form=Row(
        f"Print the findings as {', '.join(FORMS)}.  [default: github where GITHUB_ACTIONS is true, else text]",
        "FORM",
        flag="--format",
        choices=FORMS,
    ),
    output=Row(
        "Write the form to this file, by default that of its suffix (.sarif, .xml for junit, .md, .json, .txt), and "
        "print the usual one.",
        "PATH",
    ),
    force=Row("Replace an earlier output in the same form, and no other kind of file."),
)
@watching()
def command(paths: tuple[str, ...], *, form: str | None, output: str | None, force: bool, **options: Any) -> int:
    """Check checkpoints by the rules of a configuration and against a lock.

    Without a configuration and a lock, check looks for unsafe pickles, ties that config.json declares, and more than
    1% of unused or duplicate bytes.  Patterns in quotes are expanded.  Without PATH, everything is checked that the
    configuration or the lock names.

    \b
    $ paramtool check models/*.safetensors --lock paramtool.lock
    $ paramtool check --config paramtool.toml -o results.sarif
    """
    form = "json" if current.as_json else form
    written = form or form_of(output) if output is not None else None
    found = _found(paths, options)
    usual = "github" if is_github() else "text"
    shown = form or usual if output is None else usual
    if isinstance(found, Checked):
        if shown == "text":  # before every other line
            _render.rows(_findings(one for one in found.general if one.id == LOWERED.id), always=True)
            _render.flush()
        _render.warn(*found.notes)
    if output is not None and written is not None:
        try:
            _render.warn(*write(found, written, output, force=force))
        except OutputError as error:
            if found.exit_code not in (70, 4):
                raise
            _complain(error)  # which hides no unsafe file
    if shown != "text":
        _render.text(_pieces(shown, found))
        _render.warn(*filter(None, [add_summary(found) if shown == "github" else ""]))
    elif isinstance(found, Checked):  # otherwise standard error has it
        _render.rows(_checked_rows(found))
    _render.flush()
    _complain_of(
        file for file in found.files
        if shown != "text" or not any(one.id == check_command.UNSAFE for one in file.findings)  # which says it
    )  # fmt: skip
    return found.exit_code


# --- The rows of `check`: a line for each finding, bounded for each rule and file, and the counts ---------------------


MANY_NAMES = 4
"""The most tensors that a row names."""


def _checked_rows(found: Checked) -> Rows:
    """Findings of the run, what was used, the findings of each file, assumptions, counts, and what comes next."""
    yield from _findings(one for one in found.general if one.id != LOWERED.id)
    used = [("lock", found.lock), ("configuration", found.config)]
    if texts := [f"{word} {path}" for word, path in used if path]:
        yield "checked by", ", ".join(texts)
    for file in found.files:
        yield from _findings(file.findings)
        yield from every("note", (f"{file.path}: {text}" for text in file.notes))
    yield "verdict", f"{found.summary}, exit code {found.exit_code}" if found.exit_code else found.summary
    # What a person does next: lock what passes, or look at what a rule finds.
    if found.exit_code == 0 and not found.lock and found.files:
        paths = " ".join(quoted(file.path) for file in found.files[:4])
        yield NEXT, f"paramtool lock {paths}{' ...' if len(found.files) > 4 else ''}"
    for file in found.files:
        failing = [one for one in file.findings if one.fails and not file.error]
        rules = [f" --fail-on {quoted(one.rule)}" for one in failing if _is_rule(one.rule)]
        if rules or any(one.id.startswith("PT1") for one in failing):  # ties, which inspect lists
            yield NEXT, f"paramtool inspect {quoted(file.path)}{''.join(rules[:1])}"
            break


def _is_rule(text: str) -> bool:
    """Whether `inspect --fail-on` finds the same."""
    try:
        return bool(parse(text))
    except UsageError:
        return False


def _findings(findings: Iterable[Finding]) -> Rows:
    """A row for what is found, with the first tensors of those of which the same is found; of one kind the first rows.

    With --verbose each finding has a row of its own.
    """
    kinds = grouped(((one.id, one.severity, bool(one.allowed)), one) for one in findings)
    for (rule_id, severity, allowed), members in kinds.items():
        same = (((one.what, one.allowed) if one.what and not current.verbose else id(one), one) for one in members)
        rule, rows = f"{rule_id} {BY_ID[rule_id].name}", [*grouped(same).values()]
        label = "allowed" if allowed else "finding" if severity == ERROR else severity
        for group in rows[: most(MAX_LISTED)]:
            one = group[0]
            message = one.message
            if len(group) > 1:  # what is found of several tensors, and the first names
                tail = f"; {LISTED}" if len(group) > MANY_NAMES else ""
                names = some([each.names[0] for each in group], MANY_NAMES)
                message = f"{plural(group, 'tensor')}, each {one.what}: {names}{tail}"
            yield label, _where(one), f"{rule}: {message}", f"allowed {one.allowed}" if one.allowed else ""
        if more := sum(map(len, rows[most(MAX_LISTED) :])):
            yield label, _where(rows[0][0]), f"{rule}: and {more} more; {LISTED}"


def _where(finding: Finding) -> str:
    """The checkpoint, or the line of the configuration that a finding is about."""
    if finding.path or finding.place is None:
        return finding.path
    return f"{finding.place.path}:{finding.place.line}"
