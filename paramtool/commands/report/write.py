"""`report`: makes the page and writes it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from paramtool.commands import inspect as inspect_command
from paramtool.commands.earlier_output import PAGE, inputs_of
from paramtool.commands.inspect import Inspection
from paramtool.commands.progress import MEMORY_NBYTES, MIN_EQUAL_NBYTES, Path, Progress, silent
from paramtool.commands.report import compared
from paramtool.commands.report import page as page_of
from paramtool.drawing.document import MADE_BY, PageSection, page
from paramtool.drawing.markup import Markup, joined, tag
from paramtool.errors import OutputError, plural
from paramtool.formats.files import watching
from paramtool.formats.judging import judging
from paramtool.lazy_dataclass import frozen
from paramtool.model.display import Displayed, size
from paramtool.model.inflating import limiting


@frozen(repr=False)
class PageReport(Displayed):
    """The page that was written."""

    output: str
    """The page."""
    nbytes: int
    """Its size in bytes."""
    a: Inspection
    """What `inspect` knows of the checkpoint."""
    sections: tuple[str, ...]
    """The titles of its sections."""
    other: str = ""
    """The second checkpoint; empty where there is one."""
    warnings: tuple[str, ...] = ()
    """What was done about the leftovers of runs that were killed."""

    _facts = "`sections`"
    _schema = "report/1"
    _members = "output nbytes sections warnings"


@limiting
@judging("path", "other")
@watching()
def report(
    path: Path,
    other: Path | None = None,
    *,
    output: Path | None = None,
    force: bool = False,
    equal: bool = False,
    only: str | None = None,
    config: str | None = None,
    fail_on: Sequence[str] = (),
    lock: Path | None = None,
    memory: int = MEMORY_NBYTES,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> PageReport:
    """Write one page of HTML about a checkpoint, or about how `other` differs from it; it needs no network.

    `output` is by default the path with `.report.html`; OutputError where it exists, without `force`, and where it is a
    file of another kind.  Tensors are read for `equal`, which looks for equal bytes in separate storages, for rules of
    `fail_on` that compare bytes, and for `other`.  `config`, `fail_on` and `only` as of `inspect`; `lock` is a lock
    file that `path` is compared with, as `check` does, by its configuration.  All findings are on the page, and nothing
    fails.  Errors, `allow_class` and `allow_unknown` as of `read`.
    """
    place = default_output(path) if output is None else os.fspath(output)
    reading: dict[str, Any] = {"allow_class": allow_class, "allow_unknown": allow_unknown, "progress": progress}

    def looked(path: Path, **more: Any) -> Inspection:
        found = inspect_command.inspect(
            path, equal=equal, min_equal_bytes=MIN_EQUAL_NBYTES, only=only, **reading, **more
        )
        if not allow_unknown:
            found.refuse(beside=False)
        return found

    found = looked(path, config=config, fail_on=fail_on)
    others = [] if other is None else [looked(other)]
    if lock is not None:
        # The same with what `check` finds against a lock; the error of a checkpoint that it cannot check.
        from paramtool.commands.check.check import check

        checked = check([found.path], lock=lock, **reading)
        for file in checked.files:
            if file.error is not None:
                raise file.error
        found = replace(found, findings=(*found.findings, *checked.findings))
    second = next(iter(others), None)
    inputs = inputs_of(one for one in (path, other, lock) if one is not None)
    # OutputError if the page cannot be written there; checked before anything is compared.
    PAGE.check(place, force=force, inputs=inputs)
    if os.path.isdir(place):
        raise OutputError(f"{place}: is a folder; expected a file", hint="-o report.html")
    made = list(page_of.sections(found))
    if second is not None:
        made = [
            *_differences(found, second, memory, reading),
            *_both(made, page_of.sections(second)),
        ]
    name = _name(found.path)
    text = page(
        (name if second is None else f"{name} and {_name(second.path)}"),
        _head(found, second),
        made,
        _foot(found, second),
    )
    content = text.encode("utf-8", "backslashreplace")
    beside = [(one.below, one.allow_class) for one in (found, *others) if one.below and not allow_unknown]
    told = (text for below, allowed in beside for text in (*below.warnings((), allowed), *below.told))
    warnings = (*PAGE.write(place, content, force=force, inputs=inputs), *dict.fromkeys(told))
    titles = tuple(one.title for one in made)
    return PageReport(place, len(content), found, titles, "" if second is None else second.path, warnings)


def default_output(path: Path) -> str:
    """Where the page of a checkpoint goes, beside it.

    >>> default_output("models/a.safetensors"), default_output("models/gpt2/")
    ('models/a.report.html', 'models/gpt2.report.html')
    """
    whole = os.fspath(path).rstrip("/") or os.fspath(path)
    stem = whole if os.path.isdir(whole) else os.path.splitext(whole)[0]
    return f"{stem}.report.html"


def _differences(a: Inspection, b: Inspection, memory: int, reading: dict[str, Any]) -> Iterator[PageSection]:
    """The sections about two checkpoints."""
    from paramtool.commands.diff.diff import diff
    from paramtool.commands.opening import Allowed, opened
    from paramtool.commands.sections import section_of

    found = diff(a.path, b.path, only=a.section, memory=memory, **reading)
    allowed = Allowed(reading["allow_class"], reading["allow_unknown"])
    first, second = (opened(one.path, None, reading["progress"], allowed).checkpoint for one in (a, b))
    if a.section is not None:
        first, second = section_of(first, a.section), section_of(second, a.section)
    return compared.sections(found, (first, second), (a.graph, b.graph), memory)


def _both(a: Iterable[PageSection], b: Iterable[PageSection]) -> Iterator[PageSection]:
    """The sections of two checkpoints: those of A, each followed by that of B where it says something else."""
    mine, theirs = ({one.id: one for one in side} for side in (a, b))
    for name in page_of.SECTION_IDS:
        first, second = mine.get(name), theirs.get(name)
        if first is not None and second is not None and first.body == second.body:
            yield first._replace(title=f"{first.title} (A and B)")
            continue
        if first is not None:
            yield first._replace(title=f"{first.title} (A{' only' if second is None else ''})")
        if second is not None:
            yield PageSection(f"{name}-b", f"{second.title} (B{' only' if first is None else ''})", second.body)


def _name(path: str) -> str:
    """The last part of a path."""
    return os.path.basename(path.rstrip("/")) or path


def _head(found: Inspection, other: Inspection | None) -> Markup:
    """The title, and the numbers of the checkpoints."""
    if other is None:
        kicker = "Checkpoint" + (f", section {found.section}" if found.section else "")
        return joined((tag("p", kicker, class_="kicker"), tag("h1", _name(found.path)), fact_list(found)))
    names = _name(found.path), _name(other.path)
    title = joined((tag("span", names[0]), " and ", tag("span", names[1])))
    return joined((tag("p", "Two checkpoints", class_="kicker"), tag("h1", title), fact_table(found, other, names)))


def _foot(*found: Inspection | None) -> Markup:
    """What made the page, and of what."""
    files = [
        f"{_name(one.path)}, {plural(len(one.checkpoint.files), 'file')} of "
        f"{sum(file.nbytes for file in one.checkpoint.files):,} bytes"
        for one in found
        if one is not None
    ]
    return tag("p", f"{MADE_BY}{' and '.join(files)}.  Nothing in them was run.")


# --- The numbers at the top of a page, of one checkpoint or of two ---------------------------------------------------


class Fact(NamedTuple):
    """A number with its name."""

    name: str
    value: str
    more: str = ""


def facts(found: Inspection) -> list[Fact]:
    """What is said of every checkpoint, in one order."""
    checkpoint = found.checkpoint
    nbytes = sum(file.nbytes for file in checkpoint.files)
    dtypes = dict.fromkeys(view.dtype.name for _, view in checkpoint.windows())
    shared = sum(len(members) - 1 for _, members in found.graph.groups())
    equal = "not compared" if found.duplicate_nbytes is None else size(found.duplicate_nbytes)
    return [
        Fact("Size", size(nbytes), plural(checkpoint.files, "file")),
        Fact("Parameters", f"{found.parameters:,}", "shared ones once"),
        Fact("Tensors", f"{len(checkpoint.entries):,}", f"{found.distinct:,} distinct"),
        Fact("Types", ", ".join(islice(dtypes, 3)) or "none", f"and {len(dtypes) - 3} more" if len(dtypes) > 3 else ""),
        Fact("Shared", plural(shared, "more name"), "of tensors that are stored once"),
        Fact("Unused bytes", size(found.unused_nbytes), "in no tensor"),
        Fact("Stored twice", equal, "equal bytes in separate storages"),
        Fact("Format", checkpoint.format, checkpoint.producer),
    ]


def fact_list(found: Inspection) -> Markup:
    """The numbers of one checkpoint."""
    made = joined(tag("div", tag("dt", one.name), tag("dd", *_cell(one))) for one in facts(found))
    return tag("dl", made, class_="facts")


def fact_table(a: Inspection, b: Inspection, names: tuple[str, str]) -> Markup:
    """The numbers of two checkpoints side by side; those that differ are bold."""
    heads = (tag("th", letter, tag("small", name), scope="col") for letter, name in zip("AB", names, strict=True))
    rows = (
        tag("tr", tag("th", mine.name, scope="row"), tag("td", *_cell(mine)), tag("td", *_cell(theirs)),
            class_="differs" if mine != theirs else None)
        for mine, theirs in zip(facts(a), facts(b), strict=True)
    )  # fmt: skip
    caption = tag("caption", "Numbers of both; those that differ are bold")
    return tag("table", caption, tag("thead", tag("tr", tag("td"), *heads)), tag("tbody", *rows), class_="facts")


def _cell(one: Fact) -> tuple[str, Markup | None]:
    return one.value, tag("small", one.more) if one.more else None
