"""The keys of a configuration: what each may say, and which rules that makes.  KEYS is the table of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

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
