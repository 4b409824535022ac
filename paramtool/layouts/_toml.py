"""Layouts in TOML: tables with the fields of `Layout`, `Form`, `TensorRule` and `Option`, read strictly.

    [[layout]]
    name = "mine"
    [[layout.form]]
    kind = "lstm"
    gates = "ifgo"
    tensors = [ {name = "w_{layer}", content = "W[(gate hidden) in] R[(gate hidden) rec]", along = 1}, ... ]

A key that nobody knows and a value of another type are errors that say where, and what was expected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paramtool.errors import LayoutError, UsageError
from paramtool.layouts.layout import Form, Layout, Option, TensorRule
from paramtool.layouts.proof import check_layout

MAX_TEXT = 1 << 20
"""Characters of a file; a layout has about a thousand."""
MAX_TABLES = 64
"""Layouts of one file, forms and options of a layout, tensors of a form."""


@dataclass(frozen=True, slots=True)
class _Sort:
    """What the value of a key must be."""

    expected: str
    fits: Callable[[Any], bool]
    made: Callable[[Any], Any] = lambda value: value


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_TABLES and all(isinstance(item, str) for item in value)


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_TABLES and all(isinstance(item, dict) for item in value)


TEXT = _Sort("a text", lambda value: isinstance(value, str))
FLAG = _Sort("true or false", lambda value: isinstance(value, bool))
NUMBER = _Sort("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool))
TEXTS = _Sort("a list of texts", _are_texts, tuple)
PAIR = _Sort('two texts, as in ["", "_reverse"]', lambda value: _are_texts(value) and len(value) == 2, tuple)
CHOICES = _Sort(
    'a table of texts, as in {forget_bias = "1.0"}',
    lambda value: isinstance(value, dict) and all(isinstance(item, str) for item in value.values()),
    dict,
)
TABLES = _Sort(f"at most {MAX_TABLES} tables", _are_tables)

Keys = Mapping[str, _Sort]
FILE: Keys = {"layout": TABLES}
LAYOUT: Keys = {
    "name": TEXT, "title": TEXT, "separator": TEXT, "directions": PAIR, "max_directions": NUMBER, "source": TEXT,
    "note": TEXT, "names_identify": FLAG, "option": TABLES, "form": TABLES,
}  # fmt: skip
OPTION: Keys = {"name": TEXT, "default": TEXT, "what": TEXT}
FORM: Keys = {
    "kind": TEXT, "gates": TEXT, "reset": TEXT, "activations": TEXTS, "expresses": TEXTS, "when": CHOICES,
    "tensors": TABLES,
}  # fmt: skip
TENSOR: Keys = {
    "name": TEXT, "content": TEXT, "along": NUMBER, "labels": TEXT, "optional": FLAG, "directions": PAIR,
    "unless": TEXT, "shape": TEXT,
}  # fmt: skip


def from_toml(text: str, where: str) -> list[Layout]:
    """The layouts of a file, each proved; `where` is the file's name, for messages.

    UsageError where the file is no TOML or has a key or a value that no layout has, LayoutError where a layout is none.
    They are not registered yet.
    """
    found: list[Layout] = []
    file = _taken(_parsed(text, where), FILE, ("layout",), where)
    for n, table in enumerate(file["layout"]):
        layout, shapes = _layout(table, f"{where}: layout[{n}]")
        if layout.name in (other.name for other in found):
            raise UsageError(f"{where}: layout {layout.name!r} is there twice")
        try:
            check_layout(layout, shapes)
        except LayoutError as error:
            raise LayoutError(f"{where}: {error.message}", error.hint) from None
        found.append(layout)
    return found


def _parsed(text: str, where: str) -> dict[str, Any]:
    """The tables of a TOML text; UsageError where it is none."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    if len(text) > MAX_TEXT:
        raise UsageError(f"{where}: has {len(text)} characters; a file of layouts has at most {MAX_TEXT}")
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError is one; numbers of thousands of digits raise another
        raise UsageError(f"{where}: is no TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{where}: is nested too deeply") from None


def _taken(table: Mapping[str, Any], keys: Keys, needed: tuple[str, ...], where: str) -> dict[str, Any]:
    """The values of a table in the types of a layout; UsageError names the key that is unknown, wrong or missing."""
    from difflib import get_close_matches

    taken: dict[str, Any] = {}
    for key, value in table.items():
        if key not in keys:
            near = get_close_matches(key, keys, 1)
            hint = f"do you mean {near[0]}?" if near else ""
            raise UsageError(f"{where}: {key!r} is no key here; expected some of {', '.join(keys)}", hint)
        if not keys[key].fits(value):
            raise UsageError(f"{where}: {key} is {_shown(value)}; expected {keys[key].expected}")
        taken[key] = keys[key].made(value)
    for key in needed:
        if key not in taken:
            raise UsageError(f"{where}: {key} is missing; expected {keys[key].expected}")
    return taken


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _layout(table: Mapping[str, Any], where: str) -> tuple[Layout, dict[tuple[int, int], str]]:
    """One layout, and the shapes that it states, by form and row."""
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
    """One form, and the shapes of its rows that are stated."""
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
