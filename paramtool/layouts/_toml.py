"""Layouts in TOML: tables with the fields of `Layout`, `Form`, `TensorRule` and `Option`, read strictly.

    [[layout]]
    name = "mine"
    [[layout.form]]
    kind = "lstm"
    gates = "ifgo"
    tensors = [ {name = "w_{layer}", content = "W[(gate hidden) in] R[(gate hidden) rec]", along = 1}, ... ]

    [types]
    dtype = "float16"
    keep_float32 = ["batchnorm"]
    rules = {"head.*" = "float32"}

An unknown key and a value of another type are errors; the message says where, and what was expected.  Keys that were
renamed are still read under their old names, with a FutureWarning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from paramtool.errors import LayoutError, UsageError
from paramtool.layouts.layout import Form, Layout, Option, TensorRule
from paramtool.layouts.proof import check_layout
from paramtool.lazy_dataclass import dataclass
from paramtool.toml_text import parsed

MAX_TEXT = 1 << 20
"""The largest file, in characters; a layout has about a thousand."""
MAX_TABLES = 64
"""The most layouts of one file, forms or options of a layout, and tensors of a form."""


@dataclass(frozen=True, slots=True)
class _ValueType:
    """The type that the value of a key must have."""

    expected: str
    fits: Callable[[Any], bool]
    made: Callable[[Any], Any] = lambda value: value


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_TABLES and all(isinstance(item, str) for item in value)


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_TABLES and all(isinstance(item, dict) for item in value)


STRING = _ValueType("a string", lambda value: isinstance(value, str))
FLAG = _ValueType("true or false", lambda value: isinstance(value, bool))
NUMBER = _ValueType("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool))
STRINGS = _ValueType("a list of strings", _are_strings, tuple)
PAIR = _ValueType('two strings, as in ["", "_reverse"]', lambda value: _are_strings(value) and len(value) == 2, tuple)
CHOICES = _ValueType(
    'a table of strings, as in {forget_bias = "1.0"}',
    lambda value: isinstance(value, dict) and all(isinstance(item, str) for item in value.values()),
    dict,
)
TABLES = _ValueType(f"at most {MAX_TABLES} tables", _are_tables)

Keys = Mapping[str, _ValueType]
TABLE = _ValueType("a table", lambda value: isinstance(value, dict))
RULES = _ValueType(
    'a table of strings, as in {"head.*" = "float32"}',
    lambda value: (
        isinstance(value, dict) and len(value) <= MAX_TABLES and all(isinstance(v, str) for v in value.values())
    ),
)
KINDS = _ValueType(
    'a table of lists of strings, as in {actnorm = ["*.actnorm.*"]}',
    lambda value: isinstance(value, dict) and len(value) <= MAX_TABLES and all(map(_are_strings, value.values())),
    lambda value: {name: tuple(patterns) for name, patterns in value.items()},
)
FILE: Keys = {"layout": TABLES, "types": TABLE}
TYPES: Keys = {"dtype": STRING, "keep_float32": STRINGS, "rules": RULES, "kinds": KINDS}
LAYOUT: Keys = {
    "name": STRING, "title": STRING, "separator": STRING, "directions": PAIR, "max_directions": NUMBER,
    "source": STRING, "note": STRING, "names_identify": FLAG, "option": TABLES, "form": TABLES,
}  # fmt: skip
OPTION: Keys = {"name": STRING, "default": STRING, "what": STRING}
FORM: Keys = {
    "kind": STRING, "gates": STRING, "reset": STRING, "activations": STRINGS, "expresses": STRINGS, "when": CHOICES,
    "tensors": TABLES,
}  # fmt: skip
TENSOR: Keys = {
    "name": STRING, "content": STRING, "along": NUMBER, "labels": STRING, "optional": FLAG, "directions": PAIR,
    "unless": STRING, "shape": STRING,
}  # fmt: skip

OLD_KEYS = {"telling": "names_identify", "says": "expresses"}
"""{a key as it was called before: its name today}."""


def from_toml(text: str, where: str) -> list[Layout]:
    """The layouts of a file, each proved; `where` is the file's name, for messages.

    The layouts are not registered yet.  UsageError where the file is not TOML, or has a key or a value that no layout
    has; LayoutError where a layout does not tile its tensors.  A key under its old name is a FutureWarning.
    """
    found: list[Layout] = []
    file = _file(text, where)
    for n, table in enumerate(file.get("layout", ())):
        layout, shapes = _layout(table, f"{where}: layout[{n}]")
        if layout.name in (other.name for other in found):
            raise UsageError(f"{where}: layout {layout.name!r} is defined twice")
        try:
            check_layout(layout, shapes)
        except LayoutError as error:
            raise LayoutError(f"{where}: {error.message}", error.hint) from None
        found.append(layout)
    return found


@dataclass(frozen=True, slots=True)
class TypesTable:
    """The table `[types]` of a file."""

    dtype: tuple[str, ...] = ()
    """`float16` and `PATTERN=float32`, as `--dtype` takes them."""
    keep_float32: tuple[str, ...] = ()
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """{a kind of modules of one's own: patterns of its tensors}"""


def types_from_toml(text: str, where: str) -> TypesTable | None:
    """The rules for types of a file; None where it has none.  UsageError as of `from_toml`."""
    file = _file(text, where)
    if "types" not in file:
        return None
    said = _taken(file["types"], TYPES, (), f"{where}: types")
    rules = [f"{pattern}={dtype}" for pattern, dtype in said.get("rules", {}).items()]
    return TypesTable(
        (*([said["dtype"]] if "dtype" in said else []), *rules), said.get("keep_float32", ()), said.get("kinds", {})
    )


def _file(text: str, where: str) -> dict[str, Any]:
    """The tables of a file, which has layouts, or types, or both."""
    tables = parsed(text, where, MAX_TEXT)
    return _taken(tables, FILE, () if "types" in tables else ("layout",), where)


def _taken(table: Mapping[str, Any], keys: Keys, needed: tuple[str, ...], where: str) -> dict[str, Any]:
    """The values of a table, converted to a layout's types; UsageError for a key that is unknown, wrong or missing."""
    from difflib import get_close_matches

    taken: dict[str, Any] = {}
    for key, value in _with_new_names(table, keys, where).items():
        if key not in keys:
            near = get_close_matches(key, keys, 1)
            hint = f"did you mean {near[0]}?" if near else ""
            raise UsageError(f"{where}: unknown key {key!r}; expected one of {', '.join(keys)}", hint)
        if not keys[key].fits(value):
            raise UsageError(f"{where}: {key} is {_shown(value)}; expected {keys[key].expected}")
        taken[key] = keys[key].made(value)
    for key in needed:
        if key not in taken:
            raise UsageError(f"{where}: {key} is missing; expected {keys[key].expected}")
    return taken


def _with_new_names(table: Mapping[str, Any], keys: Keys, where: str) -> dict[str, Any]:
    """The table with today's name for each old key, and a FutureWarning for each; UsageError where both are there."""
    import warnings

    found: dict[str, Any] = {}
    for key, value in table.items():
        name = OLD_KEYS.get(key, key)
        if name == key or name not in keys:
            found[key] = value
            continue
        if name in table:
            message = f"{where}: has {key!r} and {name!r}, which are one key"
            raise UsageError(message, hint=f"remove {key}: it is the old name")
        warnings.warn(f"{where}: the key {key!r} was renamed: write {name!r}", FutureWarning, stacklevel=2)
        found[name] = value
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _layout(table: Mapping[str, Any], where: str) -> tuple[Layout, dict[tuple[int, int], str]]:
    """One layout, and the shapes that it declares, by form and row."""
    said = _taken(table, LAYOUT, ("name", "form"), where)
    where = f"{where} {said['name']!r}"
    options = tuple(
        Option(**{"what": "", **_taken(one, OPTION, ("name", "default"), f"{where}: option[{n}]")})
        for n, one in enumerate(said.pop("option", ()))
    )
    forms: list[Form] = []
    shapes: dict[tuple[int, int], str] = {}
    for n, one in enumerate(said.pop("form")):
        form, stated = _form(one, f"{where}: form[{n}]")
        forms.append(form)
        shapes.update({(n, k): text for k, text in stated.items()})
    said = {"title": said["name"], "proof": ("tiling",), **said, "forms": tuple(forms), "options": options}
    return Layout(**said), shapes


def _form(table: Mapping[str, Any], where: str) -> tuple[Form, dict[int, str]]:
    """One form, and the declared shapes of its rows."""
    said = _taken(table, FORM, ("kind", "gates", "tensors"), where)
    rows: list[TensorRule] = []
    shapes: dict[int, str] = {}
    for k, one in enumerate(said.pop("tensors")):
        row = _taken(one, TENSOR, ("name", "content"), f"{where}: tensors[{k}]")
        if "shape" in row:
            shapes[k] = row.pop("shape")
        rows.append(TensorRule(**row))
    expresses = frozenset(said.pop("expresses", ()))
    return Form(**{**said, "expresses": expresses, "tensors": tuple(rows)}), shapes
