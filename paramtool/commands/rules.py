"""Rules for checkpoints, each a line of text that names what it finds: `untied:A=B` finds that A and B are not tied.

KINDS is the table of them.  A rule is parsed before anything is read, and judged on what `inspect` knows:

    rule = rules.parse("untied:lm_head.weight=transformer.wte.weight")
    list(rule.findings(paramtool.inspect("model")))         # empty where the rule holds
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from paramtool.commands._rule_names import MAX_QUOTED, absent, advice, quoted
from paramtool.commands._rule_numbers import (
    Share,
    file_nbytes,
    judged_nothing,
    not_finite,
    parse_range,
    too_large,
    wrong_count,
)
from paramtool.commands._rule_ties import MissingTie, alias_sets, elsewhere, is_one_tensor
from paramtool.commands.sizes import parse_size, size
from paramtool.errors import UsageError
from paramtool.lazy_dataclass import dataclass
from paramtool.model.dtype import DTYPES
from paramtool.model.finding import Finding

if TYPE_CHECKING:
    from paramtool.commands.inspect import Inspection

A = TypeVar("A")
Judged = tuple[str, tuple[str, ...]] | tuple[str, tuple[str, ...], str]
"""A message, the tensors that it is about, and what is said of one tensor without its name."""


def _nothing(found: Inspection, asked: object) -> Iterator[str]:
    """Rules of most kinds assume nothing."""
    yield from ()


def _no_patterns(asked: object) -> Sequence[str]:
    """Rules of most kinds judge every tensor, or those that they name."""
    return ()


@dataclass(frozen=True, slots=True)
class Kind(Generic[A]):
    """A row of the table of rules; `A` is what a rule asks for."""

    id: str
    rule_id: str
    """The stable id of what it finds (`model/rule_ids.py`)."""
    form: str
    """What follows the id, in words for it: `:A=B`, `>SIZE`, or nothing."""
    words: str
    """What it finds."""
    parse: Callable[[str], A]
    """What a rule asks for, from what follows the id and the sign after it; UsageError where it is wrong."""
    judge: Callable[[Inspection, A], Iterator[Judged]]
    """The findings; none where the rule holds."""
    assumes: Callable[[Inspection, A], Iterator[str]] = _nothing
    """Of a rule that holds: what the file itself does not show, and who says so."""
    patterns: Callable[[A], Sequence[str]] = _no_patterns
    """Patterns of names that limit which tensors it judges; empty where it judges all."""
    needs_content: bool = False
    """Whether tensors have to be compared for it."""
    needs_config: bool = False
    """Whether a model's config has to be there."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it was written, its kind, and what it asks for."""

    text: str
    kind: Kind[Any]
    asked: Any

    def findings(self, found: Inspection) -> Iterator[Finding]:
        """What it finds; nothing where it holds."""
        for message, names, *what in self.kind.judge(found, self.asked):
            yield Finding(self.text, message, names, what=what[0] if what else "", id=self.kind.rule_id)

    def assumptions(self, found: Inspection) -> Iterator[str]:
        """Where it holds by more than the file shows: what is assumed."""
        return (f"{self.text} holds: {text}" for text in self.kind.assumes(found, self.asked))


def parse(text: str) -> Rule:
    """One rule; UsageError says what is wrong with it, or what rules there are.

    >>> parse("unused-bytes>1MB").asked, parse("untied:a=b").asked
    (1000000, ('a', 'b'))
    """
    for kind in KINDS:
        start = kind.id + kind.form[:1]
        if text.startswith(start) if kind.form else text == start:
            return Rule(text, kind, kind.parse(text[len(start) :]))
    raise UsageError(f"{quoted(text)} is an unknown rule; {_like(text)}the rules are {', '.join(map(_whole, KINDS))}")


def _whole(kind: Kind[Any]) -> str:
    return kind.id + kind.form


def _like(text: str) -> str:
    """The kind that a person could have meant."""
    from difflib import get_close_matches

    start = re.split("[:>=]", text[:MAX_QUOTED])[0]
    found = [kind for kind in KINDS if kind.id in get_close_matches(start, [kind.id for kind in KINDS], 1)]
    return f"did you mean {_whole(found[0])}? Otherwise, " if found else ""


def _none(text: str) -> None:
    """A kind that asks for nothing."""


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _limit(text: str) -> int | Share:
    """A size, or a share of the files: `1%`."""
    found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)%", text, re.ASCII)
    return Share(float(found[1])) if found and float(found[1]) <= 100 else _size(text)


def _name(text: str) -> str:
    if not text:
        raise UsageError("a name is missing after the colon")
    return text


def _pair(text: str) -> tuple[str, str]:
    a, _, b = text.rpartition("=")
    if not a or not b:
        raise UsageError(f"{text!r} is not of the form A=B")
    return a, b


def _pattern_and_dtype(text: str) -> tuple[str, str]:
    pattern, dtype = _pair(text)
    if dtype not in DTYPES:
        raise UsageError(f"{dtype!r} is an unknown dtype; examples: float32, bfloat16, float8_e4m3fn, ...")
    return pattern, dtype


# --- judging ---------------------------------------------------------------------------------------------------------


def _duplicate(found: Inspection, limit: int | Share) -> Iterator[Judged]:
    return _over("duplicate bytes", found.duplicate_nbytes, _of_files(limit, found))


def _unused(found: Inspection, limit: int | Share) -> Iterator[Judged]:
    return _over("unused bytes", found.unused_nbytes, _of_files(limit, found))


def _over(what: str, found: int, limit: int) -> Iterator[Judged]:
    if found > limit:
        yield f"{found} {what} ({size(found)}), more than {size(limit)}", ()


def _of_files(limit: int | Share, found: Inspection) -> int:
    return limit if isinstance(limit, int) else int(file_nbytes(found) * limit.percent / 100)


def _unknown(found: Inspection, asked: None) -> Iterator[Judged]:
    from paramtool.formats.policy import is_allowed

    for unknown in found.checkpoint.unknown:
        if not is_allowed(unknown, found.allow_class):
            yield (
                f"{unknown.path} is {'called' if unknown.called else 'named'} by the file and not known",
                unknown.needed_by,
            )


def _unsafe(found: Inspection, asked: None) -> Iterator[Judged]:
    from paramtool.formats.policy import format_unknown

    for unknown in found.unsafe:
        yield f"{format_unknown(unknown)} is {'called' if unknown.called else 'named'} by the file", unknown.needed_by
    for name, unsafe in found.unsafe_sidecars.items():
        for unknown in unsafe:
            yield f"{format_unknown(unknown)} is {'called' if unknown.called else 'named'} by {name!r}", ()


def _config_ties(found: Inspection, asked: None) -> Iterator[Judged]:
    from paramtool.commands.config_ties import text

    yield from ((text(row), row.apart or row.tie.names) for row in (found.config.broken if found.config else ()))


def _missing(found: Inspection, name: str) -> Iterator[Judged]:
    if name in found.checkpoint.entries:
        return
    yield absent(found, name) + (elsewhere(found, name) or advice(found, [name])), (name,)


def _untied(found: Inspection, names: tuple[str, str]) -> Iterator[Judged]:
    a, b = names
    entries = found.checkpoint.entries
    if lacking := [name for name in names if name not in entries and name not in found.graph.names]:
        tie = MissingTie.of(found, a, b)
        if not tie.holds:
            more = f"{tie.against or elsewhere(found, lacking[0])}{advice(found, lacking)}"
            yield f"{absent(found, lacking[0])}, so it is tied to nothing{more}", names
        return
    of_a, of_b = alias_sets(found, a), alias_sets(found, b)
    if not of_a or not of_b:
        yield (
            f"{quoted(b if of_a else a)} has no bytes in the file, so what it shares memory with cannot be seen",
            names,
        )
    elif of_a != of_b:
        yield f"{quoted(a)} and {quoted(b)} do not share memory", names
    elif not is_one_tensor(found, a, b):
        yield f"{quoted(a)} and {quoted(b)} share a storage but cover different elements", names


def _by_config(found: Inspection, names: tuple[str, str]) -> Iterator[str]:
    """What a rule about a tie assumes of names that the file lacks."""
    lacking = [name for name in names if name not in found.checkpoint.entries and name not in found.graph.names]
    if lacking and (tie := MissingTie.of(found, *names)).holds:
        lacks = " and ".join(map(quoted, dict.fromkeys(lacking)))
        yield f"the file lacks {lacks}, which a model finds by {tie.because}: {quoted(tie.present[0])} is there"


def _dtype(found: Inspection, asked: tuple[str, str]) -> Iterator[Judged]:
    pattern, dtype = asked
    matched = [(name, view) for name, view in found.checkpoint.windows() if fnmatchcase(name, pattern)]
    if not matched and any(fnmatchcase(name, pattern) for name in found.checkpoint.entries):
        yield f"no tensor that matches {quoted(pattern)} has bytes in the file", ()
    elif not matched:
        yield f"no tensor matches {quoted(pattern)}{advice(found, [pattern], fnmatchcase)}", ()
    for name, view in matched:
        if view.dtype.name != dtype:
            what = f"is {view.dtype.name}, not {dtype}"
            yield f"{quoted(name)} {what}", (name,), what


KINDS: tuple[Kind[Any], ...] = (
    Kind("untied", "PT103", ":A=B", "A and B do not share memory; a missing name counts as present if config.json ties "
         "it to a name in the file", _pair, _untied, _by_config),
    Kind("wrong-dtype", "PT208", ":PATTERN=DTYPE", "a tensor whose name matches is not of that dtype, or none matches",
         _pattern_and_dtype, _dtype),
    Kind("missing", "PT202", ":NAME", "the file has no tensor of that name", _name, _missing),
    Kind("unsafe", "PT301", "", "a pickle calls or names what is not known to be data", _none, _unsafe),
    Kind("unknown-class", "PT302", "", "a pickle calls or names what is not known, or a class that only holds data and "
         "was not allowed", _none, _unknown),
    Kind("duplicate-bytes", "PT205", ">SIZE", "more than SIZE bytes are stored more than once", _limit, _duplicate,
         needs_content=True),
    Kind("unused-bytes", "PT204", ">SIZE", "more than SIZE bytes belong to no tensor", _limit, _unused),
    Kind("config-ties", "PT104", "", "a tie that config.json declares has diverged, or shares what it says is untied",
         _none, _config_ties, needs_config=True),
    Kind("size", "PT206", ">SIZE", "the files have more than SIZE bytes", _size, too_large),
    Kind("parameters", "PT207", "=RANGE", "the model has another number of parameters: N, A..B, A.. or ..B",
         parse_range, wrong_count),
    Kind("nan", "PT209", "", "a tensor holds a NaN or an infinity", _none, not_finite, judged_nothing,
         lambda patterns: patterns or ()),
    Kind("not-tied", "PT103", ":A=B", "the older spelling of untied", _pair, _untied, _by_config),
    Kind("dtype", "PT208", ":PATTERN=DTYPE", "the older spelling of wrong-dtype: finds what is not of that dtype",
         _pattern_and_dtype, _dtype),
)  # fmt: skip
"""Every kind of rule, in the order of the documents."""


def judged(rules: Iterable[Rule], found: Inspection) -> list[Finding]:
    """What each rule finds, in their order."""
    return [finding for rule in rules for finding in rule.findings(found)]
