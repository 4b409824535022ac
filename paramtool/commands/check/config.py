"""Reading the configuration of `check`: `paramtool.toml`, or `[tool.paramtool]` of a `pyproject.toml`.

Everything that is not known is an error with its file, line and column, what was found and what was expected.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import date, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.commands.rules import KINDS, Rule
from paramtool.errors import FormatError, NoSuchFileError, UnsafeError, UsageError, nearest
from paramtool.formats import policy as classes
from paramtool.lazy_dataclass import frozen
from paramtool.model.dtype import DTYPES
from paramtool.model.finding import BY_ID, BY_NAME, ERROR, SEVERITIES, FileLine
from paramtool.model.paths import check_name, named_beside
from paramtool.toml_text import Key, Position, parsed, positions

if TYPE_CHECKING:
    from datetime import date

# --- A configuration of `check` as values: what is asked of which checkpoints, and what is allowed until when --------


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


# --- The keys of a configuration: what each may say, and which rules that makes. KEYS is the table of them -----------


KIND_OF = {kind.id: kind for kind in KINDS}


class AskedRule(NamedTuple):
    """A rule, and where it was asked for."""

    rule: Rule
    place: FileLine | None


class ConfigKey(NamedTuple):
    """A key of a configuration."""

    expected: str
    """What its value has to be, in words, with an example."""
    taken: Callable[[Any], Any]
    """The value as it is used, which may be rules; ValueError or UsageError where it is another, TypeError where it is
    of another type."""
    words: str
    """What it asks for."""
    none: Any = None
    """What says in `[[paths]]` that a value further up does not count there, where no flag could; else None."""


def asked_rules(settings: Settings) -> list[AskedRule]:
    """All rules that are asked of a checkpoint, in the order of KEYS."""
    said = [settings.said[key] for key in KEYS if key in settings.said]
    return [
        AskedRule(rule, place)
        for value, place in said
        for rule in (value if isinstance(value, tuple) else ())
        if isinstance(rule, Rule) and settings.severity(rule.kind.rule_id) != "off"
    ]


class PartError(ValueError):
    """What is wrong with one part of a value."""

    def __init__(self, message: str, *part: str | int) -> None:
        super().__init__(message)
        self.part = part
        """Its key, or its position in a list; of a list in a list, both positions."""


MAX_SHOWN = 60
"""Characters that a message shows of a value."""


def shown(value: object) -> str:
    """A value for a message as TOML writes it, cut off where it is long.

    >>> print(shown({"max": [True, 1.5, "it's"]}))
    {max = [true, 1.5, "it's"]}
    """
    if isinstance(value, (dict, list)) and len(value) > MAX_SHOWN:
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    text = _toml(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    text = repr(value) if isinstance(value, str) else str(value)
    return text.lower() if isinstance(value, bool) else text


# --- values ----------------------------------------------------------------------------------------------------------


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


EMPTY = "at least one is needed"
"""What is said of an empty list or table, which would ask for nothing, or allow everything, in silence."""


def strings(value: Any) -> tuple[str, ...]:
    """A list of strings, at least one, of which none is empty."""
    if value == []:
        raise ValueError(EMPTY)
    return _strings(value)


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    for number, one in enumerate(value):
        if not isinstance(one, str) or not one:
            raise PartError(f"{shown(one)} is {'empty' if one == '' else 'no string'}", number)
    return tuple(value)


def _ties(value: Any) -> tuple[Rule, ...]:
    if not isinstance(value, list):
        raise TypeError
    if not value:
        raise ValueError(EMPTY)
    for number, one in enumerate(value):
        if not isinstance(one, list):
            raise PartError(f"{shown(one)} is not a list of names", number)
        for place, name in enumerate(one):
            if not isinstance(name, str) or not name:
                raise PartError(f"{shown(one)} is not a list of names: {shown(name)}", number, place)
        if len(set(one)) < 2:
            raise PartError(f"{shown(one)} names fewer than two tensors", number)
    pairs = [(first, other) for first, *others in value for other in others]
    return tuple(Rule(f"untied:{a}={b}", KIND_OF["untied"], (a, b)) for a, b in pairs)


def _dtypes(value: Any) -> tuple[Rule, ...]:
    if not isinstance(value, dict):
        raise TypeError
    if not value:
        raise ValueError(EMPTY)
    for pattern, dtype in value.items():
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise PartError(
                f"{shown(dtype)} is an unknown dtype{f' ({near})' if (near := meant(dtype, DTYPES)) else ''}", pattern
            )
    return tuple(
        Rule(f"wrong-dtype:{one}={dtype}", KIND_OF["wrong-dtype"], (one, dtype)) for one, dtype in value.items()
    )


def _names(value: Any) -> tuple[Rule, ...]:
    return tuple(Rule(f"missing:{name}", KIND_OF["missing"], name) for name in strings(value))


def meant(word: object, words: Collection[str]) -> str:
    """Which of some words could have been meant; empty where none is alike."""
    near = nearest(str(word)[:MAX_SHOWN], words)
    return f"did you mean {' or '.join(near)}?" if near else ""


def _number(kind: str, sign: str = ">") -> Callable[[Any], tuple[Rule, ...]]:
    """A rule with a number."""

    def taken(value: Any) -> tuple[Rule, ...]:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise TypeError
        return (Rule(f"{kind}{sign}{value}", KIND_OF[kind], KIND_OF[kind].parse(str(value))),)

    return taken


def _switch(kind: str, take: Callable[[Any], Any] = _flag) -> Callable[[Any], Any]:
    """A rule that is on or off, or on for what else the value may be."""

    def taken(value: Any) -> Any:
        asked = value if isinstance(value, bool) else take(value)
        return asked is not False and (Rule(kind, KIND_OF[kind], None if asked is True else asked),)

    return taken


def _classes(value: Any) -> tuple[str, ...]:
    found: list[str] = []
    for number, name in enumerate(_strings(value)):
        try:
            found += classes.checked(name)
        except UsageError as error:
            raise PartError(error.message, number) from None
    return tuple(found)


_TRUE_OR_FALSE = "true or false"
_LIMIT = 'a number of bytes or a share of the files, as in 4096, "1MB" or "1%"'
KEYS: Mapping[str, ConfigKey] = {
    "tied": ConfigKey('lists of names, as in [["lm_head.weight", "wte.weight"]]', _ties,
                      "names that have to share memory", []),
    "dtype": ConfigKey('a table from patterns to dtypes, as in {"*.weight" = "bfloat16"}', _dtypes,
                       "the type of tensors by their names; a pattern has to match one", {}),
    "has": ConfigKey('a list of names, as in ["lm_head.weight"]', _names,
                     "tensors that have to be there", []),
    "max-unused": ConfigKey(_LIMIT, _number("unused-bytes"), "the most bytes that may belong to no tensor"),
    "max-duplicate": ConfigKey(_LIMIT, _number("duplicate-bytes"),
                               "the most bytes that may be stored again; reads the tensors"),
    "no-nan": ConfigKey('true, false, or a list of patterns, as in ["model.*"]', _switch("nan", strings),
                        "whether a NaN or an infinity is a finding; reads the tensors"),
    "unsafe": ConfigKey(_TRUE_OR_FALSE, _switch("unsafe"),
                        "whether an unsafe pickle is a finding; true where nothing else is said"),
    "unknown-class": ConfigKey(_TRUE_OR_FALSE, _switch("unknown-class"),
                               "whether a class that is not known is a finding, even if it only holds data"),
    "allow-class": ConfigKey('a list of classes or patterns, as in ["mylib.config.*"]', _classes,
                             "classes that pickles may name, as `--allow-class` does"),
    "config-ties": ConfigKey(_TRUE_OR_FALSE, _switch("config-ties"),
                             "whether the ties that config.json declares have to hold; reads what it names"),
    "size": ConfigKey('a number of bytes, as in "5GB"', _number("size"), "the most bytes that the files may have"),
    "parameters": ConfigKey('a number or a range, as in 124439808, "100..200" or "..200"',
                            _number("parameters", "="), "how many parameters the model has to have"),
    "changed": ConfigKey(_TRUE_OR_FALSE, _flag,
                         "whether a checkpoint is compared with the lock; true where nothing else is said"),
    "content-only": ConfigKey(_TRUE_OR_FALSE, _flag,
                              "whether only tensors are compared with the lock: no ties, objects and files"),
}  # fmt: skip
"""{key: what it may say}, in the order of the documents."""


def _usual(**said: Any) -> Settings:
    return Settings({key: Setting(KEYS[key].taken(value)) for key, value in said.items()})


ALWAYS = _usual(unsafe=True)
"""What is asked of every checkpoint, unless the configuration says otherwise."""
BARE = _usual(**{"unsafe": True, "config-ties": True, "max-unused": "1%", "max-duplicate": "1%"})
"""What is asked where there is neither a lock nor a configuration."""


# --- Reading the configuration of `check`: `paramtool.toml`, or `[tool.paramtool]` of a `pyproject.toml` -------------


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
