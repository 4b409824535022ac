"""Custom layouts: declared in Python, by an installed package, or in a TOML file.

    @paramtool.register_layout
    def mine() -> Layout:
        return Layout("mine", "my cells", forms=(Form("lstm", "ifgo", (TensorRule(...), ...)),))

    [project.entry-points."paramtool.layouts"]     in the pyproject.toml of a package
    mine = "my_package.layouts:mine"

    paramtool convert model.pt --from mine --to torch --layout-file mine.toml

All three are checked (`check_layout`) before they are registered.  Packages are imported only if a name is asked for
that paramtool does not have, or if all layouts are listed.  A broken package is reported and does not stop others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from paramtool.errors import LayoutError, UsageError
from paramtool.layouts.layout import Layout, built_in, from_table, registered
from paramtool.layouts.proof import check_layout
from paramtool.lazy_dataclass import frozen
from paramtool.plugins import entry_points, refusal
from paramtool.toml_text import parsed

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "paramtool.layouts"
"""The group of entry points: each is a Layout, several of them, or a function without arguments that returns them."""

Declared = TypeVar("Declared", Layout, Callable[[], Layout])

__all__ = ["GROUP", "TypesTable", "check_layout", "from_toml", "installed", "register_layout", "types_from_toml"]


def register_layout(declared: Declared) -> Declared:
    """Register a layout, or the layout that a function returns.  Returns its argument, so it can be a decorator.

    LayoutError if the layout does not tile its tensors, UsageError if another layout has its name.
    """
    made: object = declared() if not isinstance(declared, Layout) and callable(declared) else declared
    if not isinstance(made, Layout):
        raise UsageError(f"register_layout: {made!r} is not a Layout; expected one, or a function that returns one")
    check_layout(made)
    add_checked(made)
    return declared


def add_checked(layout: Layout, where: str = "") -> None:
    """Register a layout that was proved; UsageError, which begins with `where`, if another layout has its name."""
    _refuse_clash(layout, where)
    registered[layout.name] = layout


def _refuse_clash(layout: Layout, where: str = "") -> None:
    """UsageError if another layout has that name; the same layout may be registered twice, as by a notebook's cell."""
    if layout.name in built_in():
        raise UsageError(f"{where}layout {layout.name!r} comes with paramtool; choose another name")
    if registered.get(layout.name, layout) != layout:
        raise UsageError(f"{where}another layout {layout.name!r} is registered; choose another name")


@frozen
class InstalledLayouts:
    """The layouts that installed packages declare."""

    layouts: dict[str, Layout]
    broken: list[tuple[str, LayoutError]]
    """The name of the entry point, and an error that names the package."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The errors of broken packages, one line each."""
        return tuple(error.message for _, error in self.broken)


@lru_cache(maxsize=1)
def installed() -> InstalledLayouts:
    """Import every package that declares layouts; errors of a package are kept, not raised."""
    found = InstalledLayouts({}, [])
    for point in entry_points(GROUP):
        try:
            for layout in _loaded(point):
                _refuse_clash(layout)
                if found.layouts.get(layout.name, layout) != layout:
                    raise UsageError(f"another package has a layout {layout.name!r}")
                found.layouts[layout.name] = layout
        except Exception as error:  # code of others, which may raise anything
            found.broken.append((point.name, LayoutError(refusal(point, error), "other layouts are not affected")))
    return found


def _loaded(point: EntryPoint) -> list[Layout]:
    """The layouts of an entry point, checked; exceptions of the package are passed on."""
    made = point.load()
    if not isinstance(made, Layout) and callable(made):
        made = made()
    several = [made] if isinstance(made, Layout) else list(made) if isinstance(made, Iterable) else [made]
    for layout in several:
        if not isinstance(layout, Layout):
            raise LayoutError(f"returns {layout!r}; expected a Layout, several, or a function that returns them")
        check_layout(layout)
    return several


# --- Layouts in TOML: tables with the fields of `Layout`, `Form`, `TensorRule` and `Option`, read strictly -----------
#
#     [[layout]]
#     name = "mine"
#     [[layout.form]]
#     kind = "lstm"
#     gates = "ifgo"
#     tensors = [ {name = "w_{layer}", content = "W[(gate hidden) in] R[(gate hidden) rec]", along = 1}, ... ]
#
#     [types]
#     dtype = "float16"
#     keep_float32 = ["batchnorm"]
#     rules = {"head.*" = "float32"}
#
# An unknown key and a value of another type are errors; the message says where, and what was expected.  Keys that
# were renamed are still read under their old names, with a FutureWarning.


MAX_TEXT = 1 << 20
"""The largest file, in characters; a layout has about a thousand."""
MAX_TABLES = 64
"""The most layouts of one file, forms or options of a layout, and tensors of a form."""


@frozen
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


@frozen
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
    shapes: dict[tuple[int, int], str] = {}
    for key, keys, needed in (("option", OPTION, ("name", "default")), ("form", FORM, ("kind", "gates", "tensors"))):
        tables = enumerate(said.get(key, ()))
        said[key] = [_taken(one, keys, needed, f"{where}: {key}[{n}]") for n, one in tables]
    for n, form in enumerate(said["form"]):
        form["tensors"] = [
            _taken(one, TENSOR, ("name", "content"), f"{where}: form[{n}]: tensors[{k}]")
            for k, one in enumerate(form["tensors"])
        ]
        shapes.update({(n, k): row.pop("shape") for k, row in enumerate(form["tensors"]) if "shape" in row})
    return from_table({"title": said["name"], "proof": ("tiling",), **said}), shapes
