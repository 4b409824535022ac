"""Rules of `inspect --fail-on`: each is one line of text and finds what does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

import click

from paramtool.cli._text import parse_size, size
from paramtool.formats._policy import is_allowed, told
from paramtool.jobs import Inspection
from paramtool.model.dtype import DTYPES

Check = Callable[[Inspection], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it was written, and what checks it."""

    text: str
    check: Check
    needs_content: bool = False
    """Whether tensors have to be compared for it."""
    needs_config: bool = False
    """Whether a model's config is needed for it."""


def parse(text: str) -> Rule:
    """One rule; click.BadParameter says what rules there are."""
    try:
        if text.startswith("duplicate-bytes>"):
            limit = parse_size(text.removeprefix("duplicate-bytes>"))
            return Rule(text, lambda found: _over("duplicate bytes", found.duplicate_nbytes, limit), True)
        if text.startswith("unused-bytes>"):
            limit = parse_size(text.removeprefix("unused-bytes>"))
            return Rule(text, lambda found: _over("unused bytes", found.unused_nbytes, limit))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if text == "unsafe":
        return Rule(text, _unsafe)
    if text == "unknown-class":
        return Rule(text, _unknown)
    if text == "config-ties":
        return Rule(text, _config_ties, needs_config=True)
    kind, _, rest = text.partition(":")
    left, equals, right = rest.rpartition("=")
    if kind == "missing" and rest:
        return Rule(text, lambda found: _missing(found, rest))
    if kind == "not-tied" and equals and left and right:
        return Rule(text, lambda found: _not_tied(found, left, right))
    if kind == "dtype" and equals and left and right:
        if right not in DTYPES:
            raise click.BadParameter(f"{right!r} is no dtype; they are called float32, bfloat16, float8_e4m3fn, ...")
        return Rule(text, lambda found: _dtype(found, left, right))
    raise click.BadParameter(
        f"{text!r} is no rule; the rules are duplicate-bytes>SIZE, unused-bytes>SIZE, unsafe, unknown-class, "
        "not-tied:A=B, "
        "dtype:PATTERN=DTYPE, missing:NAME, config-ties"
    )


def _over(what: str, found: int, limit: int) -> Iterator[str]:
    if found > limit:
        yield f"{found} {what} ({size(found)}), more than {size(limit)}"


def _unknown(found: Inspection) -> Iterator[str]:
    for unknown in found.checkpoint.unknown:
        if not is_allowed(unknown, found.allow_class):
            yield f"{unknown.path} is {'called' if unknown.called else 'named'} by the file and not known"


def _unsafe(found: Inspection) -> Iterator[str]:
    for unknown in found.unsafe:
        yield f"{told(unknown)} is {'called' if unknown.called else 'named'} by the file"
    for name, unsafe in found.unsafe_sidecars.items():
        for unknown in unsafe:
            yield f"{told(unknown)} is {'called' if unknown.called else 'named'} by {name!r}"


def _config_ties(found: Inspection) -> Iterator[str]:
    from paramtool.jobs.declaring import text

    yield from (text(row) for row in (found.config.broken if found.config else ()))


def _missing(found: Inspection, name: str) -> Iterator[str]:
    if name not in found.checkpoint.entries:
        yield f"{name!r} is not in the file"


def _not_tied(found: Inspection, a: str, b: str) -> Iterator[str]:
    members = found.graph.members
    lacking = [name for name in (a, b) if name not in members]
    if lacking:
        yield f"{lacking[0]!r} is not in the file, so it is tied to nothing"
    elif members[a].memory != members[b].memory:
        yield f"{a!r} and {b!r} do not share memory"


def _dtype(found: Inspection, pattern: str, dtype: str) -> Iterator[str]:
    matched = [(name, view) for name, view in found.checkpoint.windows() if fnmatchcase(name, pattern)]
    if not matched:
        yield f"no tensor matches {pattern!r}"
    for name, view in matched:
        if view.dtype.name != dtype:
            yield f"{name!r} is {view.dtype.name}, not {dtype}"
