"""Rules for checkpoints, each a line of text that names what it finds: `untied:A=B` finds that A and B are not tied.

KINDS is the table of them.  A rule is parsed before anything is read, and judged on what `inspect` knows:

    rule = rules.parse("untied:lm_head.weight=transformer.wte.weight")
    list(rule.findings(paramtool.inspect("model")))         # empty where the rule holds
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from paramtool.commands.sizes import parse_size, size
from paramtool.errors import UsageError, plural, some
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Compound, Ordered, Unknown
from paramtool.model.dtype import DTYPES
from paramtool.model.finding import Finding
from paramtool.model.view import overlaps

if TYPE_CHECKING:
    from paramtool.commands.inspect import Inspection
    from paramtool.model.config import Config
    from paramtool.passes.config_ties.declared import Declared

# --- Rules about numbers: how large the files are, how many parameters there are, and whether all numbers are finite -


class Share(NamedTuple):
    """A part of all bytes of the files."""

    percent: float


class Range(NamedTuple):
    """Numbers from `least` to `most`, both included; None for no limit."""

    least: int | None
    most: int | None

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.least:,}"
        if self.least is None:
            return f"at most {self.most:,}"
        return f"at least {self.least:,}" if self.most is None else f"{self.least:,} to {self.most:,}"


def parse_range(text: str) -> Range:
    """`N`, `A..B`, `A..` or `..B`; UsageError for anything else.

    >>> parse_range("5"), parse_range("..7")
    (Range(least=5, most=5), Range(least=None, most=7))
    """
    found = re.fullmatch(r"(\d{0,15})(?:(\.\.)(\d{0,15}))?", text, re.ASCII)
    if found is None or not (found[1] or found[3]):
        raise UsageError(f"{text[:60]!r} is not a range of numbers; write 124439808, 100..200, 100.. or ..200")
    least = int(found[1]) if found[1] else None
    most = least if not found[2] else int(found[3]) if found[3] else None
    if least is not None and most is not None and least > most:
        raise UsageError(f"{text!r} is an empty range: {least} is more than {most}")
    return Range(least, most)


def file_nbytes(found: Inspection) -> int:
    """Bytes of all files of the checkpoint."""
    return sum(file.nbytes for file in found.checkpoint.files)


def too_large(found: Inspection, limit: int) -> Iterator[Judged]:
    """A finding where the files are larger than `limit` bytes."""
    nbytes = file_nbytes(found)
    if nbytes > limit:
        files = plural(found.checkpoint.files, "file")
        yield f"{nbytes} bytes in {files} ({size(nbytes)}), more than {size(limit)}", ()


def wrong_count(found: Inspection, wanted: Range) -> Iterator[Judged]:
    """A finding where the number of parameters is not in a range."""
    number = found.parameters
    if (wanted.least is not None and number < wanted.least) or (wanted.most is not None and number > wanted.most):
        yield f"{plural(number, 'parameter')}, expected {wanted}", ()


def not_finite(found: Inspection, patterns: Sequence[str] | None) -> Iterator[Judged]:
    """A finding for each tensor with a NaN or an infinity; every view is read once, for all of its names.

    `patterns` are of names; None for all tensors.
    """
    names = grouped(
        (view, name)
        for name, view in found.checkpoint.windows()
        if patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)
    )
    from paramtool.engine.read.finite import NotFinite, counted, has_nonfinite
    from paramtool.engine.read.source import Source

    if not (views := [view for view in names if has_nonfinite(view.dtype)]):
        return
    with Source(found.checkpoint) as source:
        known = found.numbers()
        for view in views:
            counts: NotFinite = known.get(view) or counted(source, view)
            if counts.total:
                what = f"holds {counts} of {plural(view.numel, 'number')}, the first at {counts.place(view.shape)}"
                yield f"{quoted(names[view][0])} {what}", tuple(names[view]), what


def judged_nothing(found: Inspection, patterns: Sequence[str] | None) -> Iterator[str]:
    """Where no tensor matches the patterns of `not_finite`: that nothing was judged."""
    names = [name for name, _ in found.checkpoint.windows()] if patterns is not None else []
    if patterns and not any(fnmatchcase(name, pattern) for name in names for pattern in patterns):
        yield f"no tensor matches {some(patterns, 4)}, so none was judged"


# --- Names in what rules find: quoted, missing, and what a missing one could have meant -------------------------------


MAX_QUOTED = 200
"""Longer names are cut off in a finding, and no name like them is looked for."""


def quoted(name: str) -> str:
    """A name in quotes, cut off where it is very long."""
    return repr(name) if len(name) <= MAX_QUOTED else f"{name[:MAX_QUOTED]!r}..."


def absent(found: Inspection, name: str) -> str:
    """That a name is not there."""
    where = "the file" if found.section is None else f"section {found.section!r}"
    return f"{quoted(name)} is not in {where}"


def _equal(name: str, wanted: str) -> bool:
    return name == wanted


def advice(found: Inspection, lacking: Iterable[str], matches: Callable[[str, str], bool] = _equal) -> str:
    """What one of the names or patterns that are not there could have meant."""
    from paramtool.passes.select import MAX_LOOKED_UP

    names = [name for name in found.checkpoint.entries if len(name) <= MAX_QUOTED]
    short = (name for name in lacking if len(name) <= MAX_QUOTED) if names else ()
    ordered = Ordered(names)
    looked_up = islice(short, MAX_LOOKED_UP)  # a list of a million names is compared with a million
    return next(filter(None, (_meant(found, name, names, ordered, matches=matches) for name in looked_up)), "")


def _meant(
    found: Inspection, name: str, names: Collection[str], ordered: Ordered, *, matches: Callable[[str, str], bool]
) -> str:
    """What a name could have meant: one in a section, under a prefix, or spelt otherwise."""
    inside = [
        repr(section.name)
        for section in found.checkpoint.sections
        if any(matches(other.removeprefix(section.prefix), name) for other in ordered.under(section.prefix))
    ]
    if inside:
        return f"; section {' and section '.join(inside[:2])} has {quoted(name)}: --only takes a section alone"
    likely = _likely(name, names)
    return f"; did you mean {' or '.join(map(repr, likely))}?" if likely else ""


def _likely(name: str, names: Collection[str]) -> list[str]:
    """At most two names that are longer or shorter by a prefix that ends in a dot, or look alike."""
    from paramtool.passes import select

    if name.strip() in names:
        return [name.strip()]
    if (head := select.head_of([name], names))[1]:
        return [name.removeprefix(head[0])]
    longer = [other for other in names if other.endswith(f".{name}")]
    return longer[:2] or select.alike(name, names)


# --- Rules for checkpoints, each a line of text that names what it finds ---------------------------------------------


A = TypeVar("A")
Judged = tuple[str, tuple[str, ...]] | tuple[str, tuple[str, ...], str]
"""A message, the tensors that it is about, and what is said of one tensor without its name."""


def _nothing(found: Inspection, asked: object) -> Iterator[str]:
    """Rules of most kinds assume nothing."""
    yield from ()


def _no_patterns(asked: object) -> Sequence[str]:
    """Rules of most kinds judge every tensor, or those that they name."""
    return ()


@frozen
class Kind(Generic[A]):
    """A row of the table of rules; `A` is what a rule asks for."""

    id: str
    rule_id: str
    """The stable id of what it finds (`model/finding.py`)."""
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


@frozen
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
    try:
        for kind in KINDS:
            start = kind.id + kind.form[:1]
            if text.startswith(start) if kind.form else text == start:
                return Rule(text, kind, kind.parse(text[len(start) :]))
        raise UsageError(f"is an unknown rule; {_like(text)}the rules are {', '.join(map(_whole, KINDS))}")
    except UsageError as error:
        raise error.located(f"--fail-on {quoted(text)}") from None


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
    return _over("duplicate bytes", found.duplicate_nbytes or 0, _of_files(limit, found))


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
    path = found.checkpoint.path
    yield from unsafe(found.own_unsafe, "the file" if path == found.path else repr(os.path.basename(path)))
    for name, beside in found.unsafe_sidecars.items():
        yield from unsafe(beside, repr(name))


def unsafe(asked: Iterable[Unknown], by: str) -> Iterator[Judged]:
    """What is said of each name that makes a file unsafe."""
    from paramtool.formats.policy import format_unknown

    for unknown in asked:
        yield f"{format_unknown(unknown)} is {'called' if unknown.called else 'named'} by {by}", unknown.needed_by


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


# --- Ties of names that a file lacks, by what a config declares: `save_pretrained` stores one name of each tie -------


@frozen
class MissingTie:
    """What a config says of the tie of two names, of which the file lacks at least one."""

    found: Inspection
    config: Config | None = None
    rows: tuple[Declared, ...] = ()
    """The ties that lead from the one name to the other."""

    @classmethod
    def of(cls, found: Inspection, a: str, b: str) -> MissingTie:
        """By the config that was given, or else the one in the folder or beside the file."""
        from paramtool.commands import config_ties
        from paramtool.passes.config_ties import declared

        config = found.settings or config_ties.config_beside(found.path)
        return cls(found, config, declared.between(config, found.checkpoint, a, b) if config else ())

    @property
    def declared(self) -> bool:
        """Whether the config says that the two are one."""
        return bool(self.rows) and all(row.says for row in self.rows)

    @property
    def present(self) -> list[str]:
        """The names of these ties that the file has."""
        names = dict.fromkeys(name for row in self.rows for name in row.tie.names)
        return [name for name in names if name in self.found.checkpoint.entries]

    @property
    def holds(self) -> bool:
        """Whether the tie is declared, and the file has its tensor, in one alias set."""
        return self.declared and len({alias_sets(self.found, name) for name in self.present} - {()}) == 1

    @property
    def because(self) -> str:
        """Where the config says what it says."""
        row = next((row for row in self.rows if not row.says), self.rows[0])
        return f"{self.config.path if self.config else ''} ({row.because})"

    @property
    def against(self) -> str:
        """Why the config does not make the rule hold, where it is about these names."""
        if not self.rows or not self.present:
            return ""
        if not self.declared:
            return f"; {self.because} does not tie them"
        return f"; {self.because} ties them, and the file stores {' and '.join(map(quoted, self.present[:2]))} apart"


def alias_sets(found: Inspection, name: str) -> tuple[str, ...]:
    """The memory of a tensor, or of each part of a compound; empty for one without bytes."""
    members = found.graph.names
    if name in members:
        return (members[name].alias_set,)
    value = found.checkpoint.entries[name].value
    if not isinstance(value, Compound):
        return ()
    return tuple(f"{part} {members[f'{name}/{part}'].alias_set}" for part in sorted(value.parts))


def is_one_tensor(found: Inspection, a: str, b: str) -> bool:
    """Whether two names of one alias set have the same bytes of it, in whatever order of axes.

    The windows of a flattened RNN share a storage and no byte, and a slice is a part.  Names that a record ties and
    that stand on several storages are one by its word.
    """
    members = found.graph.names
    if a not in members or b not in members or members[a].source.storage != members[b].source.storage:
        return True
    one, other = members[a].source, members[b].source
    places = [(view.byte_start, view.byte_stop, view.numel, view.dtype) for view in (one, other)]
    return places[0] == places[1] and (not one.numel or overlaps(one, other))


def elsewhere(found: Inspection, name: str) -> str:
    """To which name that the file has a config ties one that it lacks, if to any."""
    tie = MissingTie.of(found, name, name)
    others = [other for other in tie.present if other != name] if tie.declared else []
    return f"; {tie.because} ties it to {quoted(others[0])}, which is there" if others else ""
