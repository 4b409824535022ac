"""A configuration of `check` as values: what is asked of which checkpoints, and what is allowed until when."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.lazy_dataclass import frozen
from paramtool.model.finding import BY_ID, FileLine

if TYPE_CHECKING:
    from datetime import date


class Setting(NamedTuple):
    """What a key of the configuration says."""

    value: Any
    """Of the type that the key has in `settings.KEYS`."""
    place: FileLine | None = None
    """Where it says so; None for what holds without a configuration."""


@frozen
class Settings:
    """What is asked: of every checkpoint, or of those that match the patterns of one `[[paths]]`."""

    said: Mapping[str, Setting] = field(default_factory=dict)
    """{key: what it says}"""
    severities: Mapping[str, str] = field(default_factory=dict)
    """{id of a kind of findings: its severity}, where it is not the usual one."""
    patterns: tuple[str, ...] = ()
    place: FileLine | None = None
    """Where its table begins."""

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key."""
        return self.said[key].value if key in self.said else default

    def severity(self, rule_id: str) -> str:
        """The severity of a kind of findings."""
        return self.severities.get(rule_id, BY_ID[rule_id].severity)

    def joined(self, other: Settings) -> Settings:
        """Both; what the other says counts."""
        return Settings({**self.said, **other.said}, {**self.severities, **other.severities}, self.patterns, self.place)


@frozen
class Allowance:
    """One `[[allow]]`: findings that are known, and fail nothing until a day."""

    rule_id: str
    reason: str
    paths: tuple[str, ...] = ()
    """Patterns of checkpoints; empty for all."""
    tensors: tuple[str, ...] = ()
    """Patterns of names: all tensors of a finding have to match one.  Empty for any finding."""
    until: date | None = None
    """The last day on which it holds; None for always."""
    place: FileLine | None = None
    sha256: str = ""
    """The digest of the file that it is for, in hexadecimal; empty for any."""

    def is_expired(self, today: date) -> bool:
        """Whether its last day is over."""
        return self.until is not None and today > self.until

    @property
    def words(self) -> str:
        """What a report says of a finding that it allows."""
        return f'until {self.until.isoformat()}: "{self.reason}"' if self.until else f'"{self.reason}"'


@frozen
class Policy:
    """A whole configuration."""

    path: str = ""
    """The file that it was read from; empty where there is none."""
    settings: Settings = field(default_factory=Settings)
    by_path: tuple[Settings, ...] = ()
    """Each `[[paths]]`, in their order: a later one counts more."""
    allowances: tuple[Allowance, ...] = ()
    files: tuple[str, ...] = ()
    """The paths and patterns that are checked where none is given, relative to the folder of the file."""
    lock: str = ""
    """The lock, relative to the folder of the file."""

    @property
    def folder(self) -> str:
        """What its paths and patterns are relative to."""
        return os.path.dirname(self.path)

    def of(self, path: str) -> Settings:
        """What is asked of one checkpoint."""
        found = self.settings
        for one in self.by_path:
            if self.matches(path, one.patterns):
                found = found.joined(one)
        return found

    def matches(self, path: str, patterns: Sequence[str]) -> bool:
        """Whether a checkpoint matches one of some patterns; a pattern without `/` is of the last part of its path."""
        names = self._names(path)
        return any(
            fnmatchcase(names[-1] if "/" not in pattern else names[0], pattern.removeprefix("./"))
            for pattern in patterns
        )

    def _names(self, path: str) -> tuple[str, str]:
        """The path below the folder of the configuration, with `/`, and its last part."""
        whole = os.path.relpath(os.path.abspath(path), os.path.abspath(self.folder or os.curdir)).replace(os.sep, "/")
        return whole, os.path.basename(os.path.abspath(path))

    def matching(self, rule_id: str, path: str, names: Sequence[str]) -> Iterator[Allowance]:
        """The exceptions for a finding, in their order, also those that have expired."""
        for one in self.allowances:
            if one.rule_id != rule_id or (one.paths and not self.matches(path, one.paths)):
                continue
            if not one.tensors or (names and all(_match(name, one.tensors) for name in names)):
                yield one


def _match(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
