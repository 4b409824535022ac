"""How transformers 5 turns the names of files into the names of a model, and back.

A rule has patterns for names in a file (sources) and patterns for names in the model (targets).  Both are read in both
directions, so a pattern that is searched for is a regular expression, and the one that is put in its place is the plain
text that a regular expression of that direction stands for: `(layers\\.\\d+)\\.ln_1\\.` becomes `\\1.ln_1.`.  Facts of
transformers 5.23.0, core_model_loading.py: what a pattern becomes in its other direction, lines 775-819; what a name
matches, lines 945-1007; in which order rules apply, lines 1525-1600 and 1881-1945.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from paramtool.lazy_dataclass import frozen

Operation = tuple[Any, ...]
"""The name of an operation of transformers and its parameters, in the order of its class."""


OTHER_WAY = {"pair": "unpair", "unpair": "pair"}


@frozen
class NameRule:
    """One rule of a table."""

    kind: str
    """`rename`, `convert`, `group` (all names or none), `offset` (an index shifts), `prefix`, `pair` (two blocks of a
    file are one layer) and its other direction, `unpair`."""
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    operations: tuple[Operation, ...] = ()
    """Of `convert`, from file to model; of `prefix`, what is added or removed, and below what."""
    offset: int = 0
    """What is added to an index; of `pair`, 0 for the first block and 1 for the second."""
    key: str = ""
    """The class or model type that the table has the rule under."""
    scope: str | None = None
    """The path of the module that it is for, below `base`; None where it is for all names."""
    base: str = ""
    """The prefix of the base model, which files of a base model lack."""
    config: Mapping[str, Any] | None = None
    """The part of config.json that the module is made of."""

    def back(self) -> NameRule:
        """The rule from the model to the file, without operations."""
        if self.kind == "prefix":
            add, remove, under = self.operations[0]
            made = _prefix(remove, add, under, self.key)
            return replace(made, scope=self.scope, base=self.base, config=self.config)
        pairs = list(zip(self.targets, self.sources, strict=False))
        if self.kind == "group":  # the first of them decides; it is the first in the order of names (line 1140)
            pairs.sort()
            return replace(self, sources=tuple(one for one, _ in pairs), targets=tuple(two for _, two in pairs))
        if self.kind in OTHER_WAY:
            return replace(self, kind=OTHER_WAY[self.kind], sources=self.targets, targets=self.sources)
        return replace(self, sources=self.targets, targets=self.sources, offset=-self.offset)


def from_table(row: Mapping[str, Any] | tuple[str, str], key: str) -> NameRule:
    """A rule of the generated table: its members, or one name and another that takes its place."""
    if not isinstance(row, Mapping):
        old, new = row
        return NameRule("rename", (old,), (new,), key=key)
    if row["kind"] == "prefix":
        return _prefix(row.get("add"), row.get("remove"), row.get("under", ""), key)
    operations = tuple(tuple(one) for one in row.get("operations", ()))
    patterns = (tuple(row["sources"]), tuple(row["targets"]))
    return NameRule(row["kind"], *patterns, operations=operations, offset=row.get("offset", 0), key=key)


def _prefix(add: str | None, remove: str | None, under: str, key: str) -> NameRule:
    """A prefix that names in a file lack or have, below another prefix (PrefixChange, line 1184)."""
    head = f"{under}." if under else ""
    operations = ((add, remove, under),)
    if add is not None:
        source, target = rf"^{re.escape(head)}(?!{re.escape(add)}\.)(.+)", rf"{head}{add}.\1"
    else:
        source, target = rf"^{re.escape(head)}{re.escape(remove or '')}\.(.+)", rf"{head}\1"
    return NameRule("prefix", (source,), (target,), operations, key=key)


_GROUP = re.compile(r"\(.+?\)")
_WILD = "*."
_EXPERTS = ".experts."
_ANY = "9876543210"
"""The number of an expert that no model has and no rule names."""


class Renamed(NamedTuple):
    """A name after one rule, or after all rules of a direction."""

    name: str
    way: RuleWay | None
    """The converter that took it, if one did."""
    which: int
    """The pattern that matched, counted from 0."""
    number: str
    """What the `*` of the pattern stands for: the number of an expert or of a shard."""
    changed: bool
    """Whether any rule matched."""


class RuleWay:
    """A rule in one direction: what to search for, and what to put in its place."""

    def __init__(self, rule: NameRule) -> None:
        self.rule = rule
        plain = [_plain(target) for target in rule.targets]
        groups = [group for _, group in plain if group]
        self.targets = tuple(text for text, _ in plain)
        """What is put in the place of a match, with `\\1` for a captured group."""
        paired = len(rule.sources) == len(rule.targets)
        self.sources = tuple(
            _searched(source, groups, paired and rule.targets[k].startswith("^"))
            for k, source in enumerate(rule.sources)
        )
        self._needs = tuple(_needed(source) for source in self.sources)
        self._stems = tuple(_stem(need) for need in self._needs)
        base = f"{rule.base}." if rule.base else ""
        scope = f"{rule.scope}." if rule.scope else ""
        self._heads = (base + scope, scope) if rule.scope is not None else ("",)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """All sources at once; the longest first, as a name can match several."""
        order = sorted(range(len(self.sources)), key=lambda k: -len(self.sources[k]))
        branches = []
        for k in order:
            pattern = self.sources[k].replace(_WILD, rf"(?P<w{k}>.*)\.", 1).replace(_WILD, r".*\.")
            if re.search(r"[a-zA-Z0-9]$", pattern):  # `weight` is not the beginning of `weight_scale`
                pattern += r"(?!\w)"
            branches.append(f"(?P<g{k}>{pattern})")
        return re.compile("|".join(branches))

    def may_match(self, stem: str) -> bool:
        """Whether a name can match that is `stem` without its digits."""
        return any(need in stem for need in self._stems)

    def match(self, name: str) -> Renamed | None:
        """The name that this way gives, with the first target of several; None where nothing matches."""
        if not any(need in name for need in self._needs):
            return None
        for head in self._heads:
            if name.startswith(head):
                break
        else:
            return None
        rest = name[len(head) :]
        found = self._pattern.search(rest)
        if found is None:
            return None
        index = next(k for k in range(len(self.sources)) if found.group(f"g{k}") is not None)
        if self.rule.kind == "pair" and int(self._captured(found, index)) % 2 != self.rule.offset:
            return None
        number = found.group(f"w{index}") if _WILD in self.sources[index] else ""
        new = head + rest.replace(found.group(0), self._replacement(found, index), 1)
        return Renamed(new, self, index, number, True)

    def _replacement(self, found: re.Match[str], index: int) -> str:
        target = self.targets[index if self.rule.kind == "group" else 0]
        if r"\1" not in target:
            return target
        captured = self._captured(found, index)
        if self.rule.kind == "offset":
            captured = str(int(captured) + self.rule.offset)
        elif self.rule.kind == "pair":
            captured = str(int(captured) // 2)
        elif self.rule.kind == "unpair":
            captured = str(2 * int(captured) + self.rule.offset)
        return target.replace(r"\1", captured)

    def _captured(self, found: re.Match[str], index: int) -> str:
        """What the first group of a pattern has found."""
        return found.group(self._pattern.groupindex[f"g{index}"] + 1) or ""


_NO_DIGITS = str.maketrans("", "", "0123456789")


def _stem(name: str) -> str:
    """A name without its digits: most names of a model are the same without them.

    >>> _stem("layers.10.experts.3.w1.weight")
    'layers..experts..w.weight'
    """
    return name.translate(_NO_DIGITS)


def _plain(pattern: str) -> tuple[str, str]:
    """(the text that a pattern stands for, its first capturing group): without `^` and what only looks around."""
    text = _without_looks(pattern.removeprefix("^"))
    found = _GROUP.search(text)
    group = found.group(0) if found else ""
    if group:
        text = text.replace(group, r"\1", 1)
    return text.replace(r"\.", "."), group


def _without_looks(pattern: str) -> str:
    """A pattern without `(?!...)`, `(?<!...)` and `(?:...)`."""
    while (start := pattern.find("(?")) >= 0:
        depth, end = 0, start
        for end in range(start, len(pattern)):
            depth += {"(": 1, ")": -1}.get(pattern[end], 0)
            if depth == 0:
                break
        pattern = pattern[:start] + pattern[end + 1 :]
    return pattern


def _searched(source: str, groups: Sequence[str], at_start: bool) -> str:
    """A source as a regular expression: a `\\1` is the group that the other side captures."""
    if r"\1" in source and groups:
        source = source.replace(r"\1", groups[0], 1)
    return f"^{source}" if at_start and not source.startswith("^") else source


def _needed(pattern: str) -> str:
    """The longest text that every match of a pattern has in it, so that most names need no search."""
    text = re.sub(r"\[.*?\]", " ", _without_looks(pattern))
    text = re.sub(r"\(.*\)", " ", text)
    text = re.sub(r"\\[a-zA-Z0-9]", " ", text)
    if "|" in text:
        return ""
    text = re.sub(r".[*?+{]", " ", text.replace(r"\.", "\0"))
    return max((run.replace("\0", ".") for run in re.split(r"[^\w\0]+", text)), key=len, default="")


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts `layers.2` before `layers.10`: numbers between dots, and at the end of a word, as numbers."""
    key = []
    for part in name.split("."):
        if part.isdigit():
            key.append((0, int(part), ""))
            continue
        word = part.rstrip("0123456789")
        key += [(1, 0, word), (0, int(part[len(word) :]) if len(word) < len(part) else -1, "")]
    return key


class Renaming:
    """All rules of a model in one direction: renamings in their order, and at most one converter."""

    def __init__(self, rules: Iterable[NameRule], *, back: bool = False) -> None:
        ordered = list(rules)
        self.back = back
        if back:  # those of parts first, and their last one first
            ordered = [rule.back() for rule in reversed(ordered)]
        ways = [RuleWay(rule) for rule in ordered]
        self.renamings = [way for way in ways if way.rule.kind != "convert"]
        self.converters = [way for way in ways if way.rule.kind == "convert"]
        self._near: dict[str, bool] = {}
        self._far: dict[str, tuple[RuleWay, ...]] = {}
        self._groups = any(way.rule.kind == "group" for way in ways)

    def of(self, names: Iterable[str]) -> dict[str, Renamed]:
        """{name: what becomes of it}.

        Forwards, a converter takes names that all renamings have been at; backwards, it is the first, and what it makes
        is renamed afterwards (`renamed`).
        """
        active: set[int] = set()
        ordered = sorted(names, key=natural) if self._groups else names
        lists: dict[tuple[str, str], Renamed | None] = {}
        return {name: self._listed(name, lists, active) for name in ordered}

    def _listed(self, name: str, lists: dict[tuple[str, str], Renamed | None], active: set[int]) -> Renamed:
        """What becomes of a name, asked once for all experts of a list: there can be 100,000."""
        before, found, behind = name.rpartition(_EXPERTS)
        number, dot, behind = behind.partition(".")
        if not found or not dot or not number.isdecimal():
            return self._one(name, active)
        key = (before, behind)
        if key not in lists:
            one = self._one(f"{before}{found}{_ANY}.{behind}", active)
            lists[key] = one if one.number == _ANY and _ANY not in one.name else None
        of_list = lists[key]
        return (
            self._one(name, active)
            if of_list is None
            else Renamed(of_list.name, of_list.way, of_list.which, number, True)
        )

    def renamed(self, names: Iterable[str]) -> dict[str, str]:
        """{name: what the renamings alone make of it}."""
        active: set[int] = set()
        ordered = sorted(names, key=natural) if self._groups else names
        return {name: self._by_renamings(name, active)[0] for name in ordered}

    def _one(self, name: str, active: set[int]) -> Renamed:
        changed = False
        new = name
        if not self.back:
            new, changed = self._by_renamings(name, active)
        stem = _stem(new)
        if stem not in self._far:
            self._far[stem] = tuple(way for way in self.converters if way.may_match(stem))
        for way in self._far[stem]:
            if found := way.match(new):
                return found
        if self.back:
            new, changed = self._by_renamings(name, active)
        return Renamed(new, None, 0, "", changed)

    def _by_renamings(self, name: str, active: set[int]) -> tuple[str, bool]:
        changed = False
        stem = _stem(name)
        if stem not in self._near:
            self._near[stem] = any(way.may_match(stem) for way in self.renamings)
        if not self._near[stem]:
            return name, False
        for k, way in enumerate(self.renamings):
            found = way.match(name)
            if found is None:
                continue
            if way.rule.kind == "group":  # the others only after the first was seen
                if found.which and k not in active:
                    continue
                active.add(k)
            name, changed = found.name, True
        return name, changed
