"""The keys of a configuration: what each may say, and which rules that makes.  KEYS is the table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from paramtool.commands._rule_numbers import Range, parse_range
from paramtool.commands.check.policy import Setting, Settings
from paramtool.commands.rules import KINDS, Rule
from paramtool.errors import UsageError, nearest
from paramtool.formats import policy as classes
from paramtool.model.dtype import DTYPES
from paramtool.model.finding import FileLine

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
    """The value as it is used; ValueError or UsageError where it is another, TypeError where it is of another type."""
    rules: Callable[[Any], Iterator[Rule]]
    """The rules that it makes."""
    words: str
    """What it asks for."""
    none: Any = None
    """What says in `[[paths]]` that a value further up does not count there, where no flag could; else None."""


def asked_rules(settings: Settings) -> list[AskedRule]:
    """All rules that are asked of a checkpoint, in the order of KEYS."""
    return [
        AskedRule(rule, settings.said[key].place)
        for key in KEYS
        if key in settings.said
        for rule in KEYS[key].rules(settings.said[key].value)
        if settings.severity(rule.kind.rule_id) != "off"
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


def _ties(value: Any) -> tuple[tuple[str, ...], ...]:
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
    return tuple(map(tuple, value))


def _dtypes(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise TypeError
    if not value:
        raise ValueError(EMPTY)
    for pattern, dtype in value.items():
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise PartError(f"{shown(dtype)} is an unknown dtype{_nearest(str(dtype)[:MAX_SHOWN])}", pattern)
    return dict(value)


def _nearest(word: str) -> str:
    found = nearest(word, DTYPES)
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def _limit(value: Any) -> tuple[str, Any]:
    """(as it was written, as the rule takes it)"""
    text = _size_text(value)
    return text, KIND_OF["unused-bytes"].parse(text)


def _size(value: Any) -> tuple[str, int]:
    text = _size_text(value)
    return text, KIND_OF["size"].parse(text)


def _size_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError
    return str(value)


def _range(value: Any) -> tuple[str, Range]:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError
    return str(value), parse_range(str(value))


def _patterns_or_flag(value: Any) -> tuple[str, ...] | bool:
    return value if isinstance(value, bool) else strings(value)


def _classes(value: Any) -> tuple[str, ...]:
    found: list[str] = []
    for number, name in enumerate(_strings(value)):
        try:
            found += classes.checked(name)
        except UsageError as error:
            raise PartError(error.message, number) from None
    return tuple(found)


# --- rules -----------------------------------------------------------------------------------------------------------


def _of_ties(groups: tuple[tuple[str, ...], ...]) -> Iterator[Rule]:
    for first, *others in groups:
        yield from (Rule(f"untied:{first}={other}", KIND_OF["untied"], (first, other)) for other in others)


def _of_dtypes(dtypes: Mapping[str, str]) -> Iterator[Rule]:
    for pattern, dtype in dtypes.items():
        yield Rule(f"wrong-dtype:{pattern}={dtype}", KIND_OF["wrong-dtype"], (pattern, dtype))


def _of_names(names: tuple[str, ...]) -> Iterator[Rule]:
    return (Rule(f"missing:{name}", KIND_OF["missing"], name) for name in names)


def _over(kind: str, sign: str = ">") -> Callable[[tuple[str, Any]], Iterator[Rule]]:
    """A rule with a number."""

    def made(value: tuple[str, Any]) -> Iterator[Rule]:
        yield Rule(f"{kind}{sign}{value[0]}", KIND_OF[kind], value[1])

    return made


def _switched(kind: str) -> Callable[[Any], Iterator[Rule]]:
    """A rule that is on or off, or on for some patterns."""

    def made(value: Any) -> Iterator[Rule]:
        if value is not False:
            yield Rule(kind, KIND_OF[kind], None if value is True else value)

    return made


def _no_rule(value: Any) -> Iterator[Rule]:
    """What is not judged by a rule: it changes how another one judges."""
    yield from ()


_TRUE_OR_FALSE = "true or false"
_LIMIT = 'a number of bytes or a share of the files, as in 4096, "1MB" or "1%"'
KEYS: Mapping[str, ConfigKey] = {
    "tied": ConfigKey('lists of names, as in [["lm_head.weight", "wte.weight"]]', _ties, _of_ties,
                      "names that have to share memory", []),
    "dtype": ConfigKey('a table from patterns to dtypes, as in {"*.weight" = "bfloat16"}', _dtypes, _of_dtypes,
                       "the type of tensors by their names; a pattern has to match one", {}),
    "has": ConfigKey('a list of names, as in ["lm_head.weight"]', strings, _of_names,
                     "tensors that have to be there", []),
    "max-unused": ConfigKey(_LIMIT, _limit, _over("unused-bytes"), "the most bytes that may belong to no tensor"),
    "max-duplicate": ConfigKey(_LIMIT, _limit, _over("duplicate-bytes"),
                               "the most bytes that may be stored again; reads the tensors"),
    "no-nan": ConfigKey('true, false, or a list of patterns, as in ["model.*"]', _patterns_or_flag, _switched("nan"),
                        "whether a NaN or an infinity is a finding; reads the tensors"),
    "unsafe": ConfigKey(_TRUE_OR_FALSE, _flag, _switched("unsafe"),
                        "whether an unsafe pickle is a finding; true where nothing else is said"),
    "unknown-class": ConfigKey(_TRUE_OR_FALSE, _flag, _switched("unknown-class"),
                               "whether a class that is not known is a finding, even if it only holds data"),
    "allow-class": ConfigKey('a list of classes or patterns, as in ["mylib.config.*"]', _classes, _no_rule,
                             "classes that pickles may name, as `--allow-class` does"),
    "config-ties": ConfigKey(_TRUE_OR_FALSE, _flag, _switched("config-ties"),
                             "whether the ties that config.json declares have to hold; reads what it names"),
    "size": ConfigKey('a number of bytes, as in "5GB"', _size, _over("size"), "the most bytes that the files may have"),
    "parameters": ConfigKey('a number or a range, as in 124439808, "100..200" or "..200"', _range,
                            _over("parameters", "="), "how many parameters the model has to have"),
    "changed": ConfigKey(_TRUE_OR_FALSE, _flag, _no_rule,
                         "whether a checkpoint is compared with the lock; true where nothing else is said"),
    "content-only": ConfigKey(_TRUE_OR_FALSE, _flag, _no_rule,
                              "whether only tensors are compared with the lock: no ties, objects and files"),
}  # fmt: skip
"""{key: what it may say}, in the order of the documents."""

ALWAYS = Settings({"unsafe": Setting(True)})
"""What is asked of every checkpoint, unless the configuration says otherwise."""
BARE = Settings(
    {
        "unsafe": Setting(True),
        "config-ties": Setting(True),
        "max-unused": Setting(_limit("1%")),
        "max-duplicate": Setting(_limit("1%")),
    }
)
"""What is asked where there is neither a lock nor a configuration."""
