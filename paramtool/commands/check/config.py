"""Reading the configuration of `check`: `paramtool.toml`, or `[tool.paramtool]` of a `pyproject.toml`.

Everything that is not known is an error with its file, line and column, what was found and what was expected.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime
from typing import Any

from paramtool.commands.check.policy import Allowance, Policy, Setting, Settings
from paramtool.commands.check.settings import ALWAYS, KEYS, MAX_SHOWN, PartError, meant, shown, strings
from paramtool.errors import FormatError, NoSuchFileError, UnsafeError, UsageError
from paramtool.model.finding import BY_ID, BY_NAME, ERROR, SEVERITIES, FileLine
from paramtool.model.paths import check_name, named_beside
from paramtool.toml_text import Key, Position, parsed, positions

FILE, PYPROJECT = "paramtool.toml", "pyproject.toml"
MAX_TEXT = 1 << 20
"""The largest file, in characters."""
TOP = ("files", "lock", "severity", "allow", "paths")
"""The keys of a file that are not of `settings.KEYS`."""
ALLOW = ("rule", "path", "tensors", "sha256", "reason", "until")


def found(folder: str = "") -> str:
    """The configuration of a folder: its paramtool.toml, or its pyproject.toml with `[tool.paramtool]`; else empty.

    UsageError where the pyproject.toml cannot be parsed.
    """
    own = os.path.join(folder, FILE)
    if os.path.lexists(own):
        return own
    project = os.path.join(folder, PYPROJECT)
    return project if os.path.isfile(project) and "paramtool" in _tools(project) else ""


def _tools(path: str) -> Mapping[str, Any]:
    """The tables `[tool.*]` of a pyproject.toml; UsageError where it is not valid: ours may be there."""
    try:
        tool = parsed(_text(path), path, MAX_TEXT).get("tool", {})
    except UsageError as error:
        error.hint = "check looks for [tool.paramtool] in it; --config FILE reads the rules from another file"
        raise
    return tool if isinstance(tool, dict) else {}


def read(path: str, *, is_found: bool = False) -> Policy:
    """The configuration in a file; UsageError with file, line and column of what it cannot say.

    One that was `found`, and may be a stranger's, names only what is in its own folder and those below.
    """
    text = _text(path)
    tables: Any = parsed(text, path, MAX_TEXT)
    where = _PolicyReader(path, positions(text), is_found)
    above: Key = ()
    if os.path.basename(path) == PYPROJECT:
        above = ("tool", "paramtool")
        tables = tables.get("tool", {}).get("paramtool") if isinstance(tables.get("tool"), dict) else None
        if tables is None:
            raise UsageError("has no table [tool.paramtool]").at(path)
    return where.policy(where.table(tables, above, "[tool.paramtool]"), above)


def _text(path: str) -> str:
    """The text of a file; UsageError where it cannot be read, is no plain file, too large, or not UTF-8."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UsageError("is not a file; expected a configuration in TOML").at(path)
        with open(path, "rb") as file:
            data = file.read(4 * MAX_TEXT + 1)
        return data.decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        raise NoSuchFileError(path, "cannot be read: No such file or directory") from None
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            line = error.object.count(b"\n", 0, error.start) + 1
            raise UsageError(f"is not UTF-8 text: byte {error.start} is invalid").at(path, line) from None
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"cannot be read: {getattr(error, 'strerror', None) or error}").at(path) from None


class _PolicyReader:
    """Tables of one file, with the places of their keys."""

    def __init__(self, path: str, places: Mapping[Key, Position], is_found: bool = False) -> None:
        self.path = path
        self.places = places
        self.is_found = is_found

    def place(self, key: Key) -> FileLine:
        """Where a key is, or the nearest table around it."""
        while key and key not in self.places:
            key = key[:-1]
        return FileLine(self.path, *self.places.get(key, (1, 1)))

    def refuse(self, key: Key, text: str, hint: str = "") -> UsageError:
        """The error of a place."""
        return UsageError(text, hint).at(*self.place(key))

    def taken(self, key: Key, value: Any, expected: str, make: Callable[[Any], Any]) -> Any:
        """A value as it is used; UsageError where it is not what is expected."""
        try:
            return make(value)
        except TypeError:
            text = f"{_name(key)} is {shown(value)}; expected {expected}"
        except PartError as error:
            raise self.refuse((*key, *error.part), f"{_name(key)}: {error}; expected {expected}") from None
        except ValueError as error:  # a UsageError is one
            said = error.message if isinstance(error, UsageError) else str(error)
            what = "" if said.startswith(shown(value)) else f" is {shown(value)}"
            text = f"{_name(key)}{what}: {said}; expected {expected}"
        raise self.refuse(key, text) from None

    def table(self, value: Any, key: Key, expected: str) -> Mapping[str, Any]:
        """A table."""
        if not isinstance(value, dict):
            raise self.refuse(key, f"{_name(key)} is {shown(value)}; expected a table, {expected}")
        return value

    def tables(self, value: Any, key: Key) -> Iterator[tuple[Key, Mapping[str, Any]]]:
        """Each of an array of tables, with its key."""
        if not isinstance(value, list):
            raise self.refuse(key, f"{_name(key)} is {shown(value)}; expected tables, [[{key[-1]}]]")
        for number, one in enumerate(value):
            yield (*key, number), self.table(one, (*key, number), f"[[{key[-1]}]]")

    def unknown(self, table: Mapping[str, Any], above: Key, keys: Collection[str], what: str = "key") -> None:
        """UsageError for the first key that a table cannot have."""
        for key in table:
            if key not in keys:
                text = f"unknown {what} {key[:MAX_SHOWN]!r}; expected one of {', '.join(keys)}"
                raise self.refuse((*above, key), text, meant(key, keys))

    def policy(self, table: Mapping[str, Any], above: Key) -> Policy:
        """The whole file."""
        if "tool" in table and not above:
            hint = f"[tool.paramtool] is for {PYPROJECT}; here its keys stand at the top"
            raise self.refuse(("tool",), "unknown key 'tool'", hint)
        self.unknown(table, above, (*KEYS, *TOP))
        files = self.optional((*above, "files"), table, FILES, ())
        lock = self.optional((*above, "lock"), table, LOCK, "")
        for key, name in [("files", name) for name in files] + ([("lock", lock)] if lock else []):
            self.inside((*above, key), name)
        settings = self.settings(table, above)
        by_path: list[Settings] = []
        for one in self.tables(table.get("paths", []), (*above, "paths")):
            by_path.append(self.by_path(*one, {key for known in (settings, *by_path) for key in known.said}))
        return Policy(
            self.path,
            ALWAYS.joined(settings),
            tuple(by_path),
            tuple(self.allowance(*one) for one in self.tables(table.get("allow", []), (*above, "allow"))),
            files,
            lock,
        )

    def inside(self, key: Key, name: str) -> None:
        """UsageError where a configuration that was found leads out of its folder."""
        try:
            if (path := os.path.normpath(check_name(_name(key), name))) != os.curdir:
                named_beside(_name(key), path, folders=True, portable=False)
            folder = os.path.realpath(os.path.dirname(self.path)).rstrip(os.sep) + os.sep
            if key[-1] == "lock" and not os.path.join(os.path.realpath(folder + path), "").startswith(folder):
                raise UnsafeError(f"{_name(key)}: is a link out of its folder: {name!r:.200}")
        except FormatError as error:
            raise self.refuse(key, error.message) from None
        except UnsafeError as error:
            if self.is_found:
                hint = "name the configuration, if it is trusted: --config"
                raise self.refuse(key, error.message, hint) from None

    def optional(self, key: Key, table: Mapping[str, Any], value: Value, default: Any) -> Any:
        """The value of the last part of a key in a table, or the default."""
        return self.taken(key, table[str(key[-1])], *value) if key[-1] in table else default

    def settings(self, table: Mapping[str, Any], above: Key, over: Collection[str] = ()) -> Settings:
        """The rules and severities of a table; `over` are keys of tables before it, which an empty value overrides."""
        said = {
            key: Setting(
                table[key] if key in over and one.none is not None and table[key] == one.none
                else self.taken((*above, key), table[key], one.expected, one.taken),
                self.place((*above, key)),
            )
            for key, one in KEYS.items()
            if key in table
        }  # fmt: skip
        key = (*above, "severity")
        severities = self.table(table.get("severity", {}), key, 'as in severity = {unused-bytes = "error"}')
        found: dict[str, str] = {}
        for name, value in severities.items():
            rule_id, severity = self.severity((*key, name), value)
            if rule_id in found:
                other = next(one for one in severities if self.rule_id((*key, one), one) == rule_id)
                raise self.refuse((*key, name), f"{shown(name)} is {shown(other)} once more; write one of the two")
            found[rule_id] = severity
            if rule_id == BY_NAME["unsafe"].id:
                said["severity"] = Setting(severity == ERROR, self.place((*key, name)))
        return Settings(said, found)

    def severity(self, key: Key, value: Any) -> tuple[str, str]:
        """(id, severity) of one row of `severity`."""
        rule_id = self.rule_id(key, key[-1])
        if value not in SEVERITIES:
            text = f"{_name(key)} is {shown(value)}; expected one of {', '.join(SEVERITIES)}"
            raise self.refuse(key, text, meant(value, SEVERITIES))
        return rule_id, value

    def rule_id(self, key: Key, word: object) -> str:
        """The id of a kind of findings, by its id or name."""
        known = BY_ID.get(str(word)) or BY_NAME.get(str(word))
        if known is None or not isinstance(word, str):
            hint = meant(word, (*BY_NAME, *BY_ID)) or "docs/check.md lists the ids and names"
            raise self.refuse(key, f"{shown(word)} is no kind of finding; expected an id or a name, as PT204", hint)
        return known.id

    def by_path(self, key: Key, table: Mapping[str, Any], over: Collection[str]) -> Settings:
        """One `[[paths]]`; `over` are the keys that the tables before it have."""
        self.unknown(table, key, ("match", "severity", *KEYS))
        if "match" not in table:
            raise self.refuse(key, 'match is missing; expected a list of patterns, as in match = ["models/*"]')
        patterns = self.taken((*key, "match"), table["match"], 'a list of patterns, as in ["models/*"]', strings)
        return replace(self.settings(table, key, over), patterns=patterns, place=self.place(key))

    def allowance(self, key: Key, table: Mapping[str, Any]) -> Allowance:
        """One `[[allow]]`."""
        self.unknown(table, key, ALLOW)
        for needed in ("rule", "reason"):
            if needed not in table:
                raise self.refuse(key, f'{needed} is missing; expected {needed} = "..." in [[allow]]')
        return Allowance(
            self.rule_id((*key, "rule"), table["rule"]),
            self.taken((*key, "reason"), table["reason"], "a string that says why", string),
            self.optional((*key, "path"), table, PATTERNS, ()),
            self.optional((*key, "tensors"), table, PATTERNS, ()),
            self.optional((*key, "until"), table, DAY, None),
            self.place(key),
            self.optional((*key, "sha256"), table, DIGEST, ""),
        )


def _name(key: Key) -> str:
    """A key as it is written, cut off where it is long."""
    return ".".join(str(one)[:MAX_SHOWN] for one in key if not isinstance(one, int)) or "the file"


def string(value: Any) -> str:
    """A string that is not empty."""
    if not isinstance(value, str):
        raise TypeError
    if not value.strip():
        raise ValueError("it is empty")
    if "\0" in value:
        raise ValueError("no path and no pattern has a NUL")
    return value


def one_or_more(value: Any) -> tuple[str, ...]:
    """A string, or a list of strings."""
    return (string(value),) if isinstance(value, str) else strings(value)


def day(value: Any) -> date:
    """A date, as one of TOML or as a string."""
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise TypeError from None
    if not isinstance(value, date) or isinstance(value, datetime):
        raise TypeError
    return value


Value = tuple[str, Callable[[Any], Any]]
"""What a value has to be, in words, and the function that takes it."""
FILES: Value = ('a list of paths or patterns, as in ["models/*.pt"]', lambda value: tuple(map(string, strings(value))))
LOCK: Value = ('a path, as in "paramtool.lock"', string)
PATTERNS: Value = ('a pattern or a list of patterns, as in ["models/*"]', one_or_more)
DIGEST: Value = ("the sha256 of a file, in hexadecimal", string)
DAY: Value = ("a date, as in 2027-01-31", day)
