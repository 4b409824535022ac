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

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from functools import lru_cache
from itertools import product
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, TypeVar

from paramtool.errors import LayoutError, UsageError, plural
from paramtool.layouts import pattern
from paramtool.layouts.layout import (
    CAN_BE_SAID,
    Form,
    Layout,
    LayoutTensor,
    TensorRule,
    built_in,
    check_tiling,
    from_table,
    refusals,
    registered,
    stored,
)
from paramtool.layouts.networks import network
from paramtool.layouts.spec import GATES, KINDS, WORDS, Cell, Spec
from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shape
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
KINDS_OF_MODULES = _ValueType(
    'a table of lists of strings, as in {actnorm = ["*.actnorm.*"]}',
    lambda value: isinstance(value, dict) and len(value) <= MAX_TABLES and all(map(_are_strings, value.values())),
    lambda value: {name: tuple(patterns) for name, patterns in value.items()},
)
FILE: Keys = {"layout": TABLES, "types": TABLE}
TYPES: Keys = {"dtype": STRING, "keep_float32": STRINGS, "rules": RULES, "kinds": KINDS_OF_MODULES}
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


# --- Check that a layout is valid: every cell of a network has a place, and the places tile their tensors -------------
#
# paramtool's tests check the layouts that come with it; custom layouts are checked here, when they are registered.
# First the entries of the table are checked (templates, patterns, gates), then small networks of every sort that it can
# hold: no two tensors have one name, tensors have no gaps and overlaps, no cell is lost, and names read back as they
# were written.


HIDDEN, PROJECTION, INPUT = 3, 2, 4
"""Sizes of the networks that are tried: all different, so that an axis of a wrong length is noticed."""
MANY_LAYERS = 12
"""Enough layers to find names that collide from ten on: `w{layer}{dir}` with directions "" and "1" has two `w11`."""
MAX_CONTENT = 2000
"""The longest pattern, in characters; the longest that comes with paramtool has about 300."""
MAX_NUMBER = 64
"""The largest number that a pattern may give as the length of an axis."""
MAX_SWITCHES = 4
"""The most options of one form that switch blocks on and off."""

Shapes = Mapping[tuple[int, int], str]
"""Shapes that an author declares beside the patterns: {(number of the form, number of its row): shape}."""


def check_layout(layout: Layout, shapes: Shapes | None = None) -> None:
    """Check a layout; LayoutError names it, and the element that is missing or doubled, or the cell without a place.

    `shapes` may declare the shapes of tensors, such as `in + rec (gate hidden)`; they are compared with the blocks.

    >>> rows = (TensorRule("w{layer}", "W[hidden in]"), TensorRule("r", "R[hidden rec]"))
    >>> check_layout(Layout("mine", "", (Form("rnn", "h", rows),), max_directions=1))
    Traceback (most recent call last):
    ...
    paramtool.errors.LayoutError: layout mine: recurrent weights of gate h (layer 1) has no place (in ...)
    """
    try:
        # Check the name, the separator, the directions and the options.
        if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", layout.name):
            raise LayoutError(
                f"invalid name {layout.name!r}; expected words of letters, digits, - and _, joined by dots"
            )
        if len(layout.separator) != 1 or not layout.separator.isprintable():
            raise LayoutError(f"separator {layout.separator!r}; expected one character")
        _check_directions(layout.directions)
        if layout.max_directions not in (1, 2):
            raise LayoutError(f"max_directions {layout.max_directions}; expected 1 or 2")
        if not layout.forms:
            raise LayoutError("it has no form")
        for name, count in Counter(option.name for option in layout.options).items():
            if count > 1 or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name in KINDS:
                raise LayoutError(f"option {name!r} " + ("is defined twice" if count > 1 else "is not a valid name"))
        for n, form in enumerate(layout.forms):
            _check_form(layout, form)
            said = {form.tensors[k].name: text for (m, k), text in (shapes or {}).items() if m == n}
            _check_networks(layout, form, said)
            # Check that either every gate has a place for a bias, on one of its two sides, or none;
            # the same for peepholes.
            for kinds, gates in ((("bW", "bR"), GATES[form.kind]), (("peep",), "ifo" if form.kind == "lstm" else "")):
                there = [gate for gate in gates if any(form.has_place(Cell(kind, gate=gate)) for kind in kinds)]
                for gate in gates:
                    if there and gate not in there:
                        raise LayoutError(f"its {form.kind} has no place for the {WORDS[kinds[0]]} of gate {gate}")
    except (LayoutError, UsageError) as error:
        start = f"layout {layout.name}: "
        message = error.message
        raise LayoutError(message if message.startswith(start) else start + message, error.hint) from None


# --- the entries of the table -----------------------------------------------------------------------------------


def _check_directions(directions: Sequence[str]) -> None:
    if len(directions) != 2 or directions[0] == directions[1]:
        raise LayoutError(f"directions {list(directions)}; expected two different strings")


def _check_form(layout: Layout, form: Form) -> None:
    """Check the facts of a form, then its rows."""
    if form.kind not in GATES:
        raise LayoutError(f"a form of {form.kind!r}; expected lstm, gru or rnn")
    _check_gates(form.gates, form, "gates")
    if (form.reset in ("after", "before")) != (form.kind == "gru") or (form.reset and form.kind != "gru"):
        raise LayoutError(f"a {form.kind} with reset={form.reset!r}; a gru has after or before, other kinds none")
    if not form.activations or (unknown := set(form.activations) - {"tanh", "relu"}):
        raise LayoutError(f"activations {list(form.activations)}; expected tanh, relu or both")
    if unknown := set(form.expresses) - set(CAN_BE_SAID):
        raise LayoutError(f"expresses {min(unknown)!r}; expected some of {', '.join(CAN_BE_SAID)}")
    options = {option.name: option.default for option in layout.options}
    if unknown := form.when.keys() - options.keys():
        raise LayoutError(f"a form depends on the option {min(unknown)!r}, which the layout does not have")
    for row in form.tensors:
        try:
            # Check the template of the names, the labels and the pattern.
            name = row.name
            bare = re.sub(r"\[([^\[\]]*)\]", r"\1", name)
            words = re.findall(r"\{(layer|dir|cell|gate)\}", bare)
            if not bare or re.search(r"[{}\[\]]", re.sub(r"\{(layer|dir|cell|gate)\}", "", bare)):
                raise LayoutError(
                    "its name cannot be parsed; expected text with {layer}, {dir}, {cell}, {gate} and [...]"
                )
            if len(set(words)) < len(words) or ("cell" in words and {"layer", "dir"} & set(words)):
                raise LayoutError("its name counts something twice; {cell} counts layers and directions together")
            for part in re.findall(r"\[([^\[\]]*)\]", name):
                if "{layer}" not in part and "{dir}" not in part:
                    raise LayoutError(f"[{part}] would never be written: it has neither {{layer}} nor {{dir}}")
            for word in row.labels.split():
                if not re.fullmatch(r"[a-z]=\S*", word):
                    raise LayoutError(f"labels {row.labels!r}: {word!r}; expected GATE=TEXT, as in i=_i")
            _check_gates("".join(word[0] for word in row.labels.split()) or form.gates, form, "labels")
            if row.directions is not None:
                _check_directions(row.directions)
            if row.unless and row.unless not in KINDS:
                raise LayoutError(f"unless {row.unless!r}; expected one of {', '.join(KINDS)}")
            if len(row.content) > MAX_CONTENT or not row.content.isascii():
                raise LayoutError(f"its pattern is not ASCII text of at most {MAX_CONTENT} characters")
            items = pattern.parse(row.content)
            counted = set(re.findall(r"\{(\w+)\}", row.name))
            _check_repeats(items, frozenset(counted | ({"layer", "dir"} if "cell" in counted else set())))
            for block in pattern.blocks(items):
                _check_block(block, row, form, options)
        except (LayoutError, UsageError) as error:
            raise LayoutError(f"tensor {row.name!r}: {error.message}", error.hint) from None
    if len(_switches(form)) > MAX_SWITCHES:
        raise LayoutError(f"{len(_switches(form))} options switch blocks of one form; expected at most {MAX_SWITCHES}")
    for kind in ("W", "R"):
        if kind not in form.kinds():
            raise LayoutError(f"its {form.kind} has no place for the {WORDS[kind]}")


def _check_gates(gates: str, form: Form, what: str) -> None:
    if not gates or (unknown := set(gates) - set(GATES[form.kind])):
        found = repr(min(unknown)) if gates else "nothing"
        known = GATES[form.kind]
        raise LayoutError(f"{what} {gates!r}: {found} is not a gate of a {form.kind}; expected some of {known}")


def _check_repeats(items: pattern.Items, around: frozenset[str]) -> None:
    """Check that no axis is counted twice: by the name, by surrounding braces, or by a block."""
    for item in items:
        if isinstance(item, pattern.Repeated):
            own = list(item.axes)
            inner = item.items
        else:
            own = [word for word in item.words if not word.isdigit()]
            inner = ()
        if isinstance(item, pattern.Repeated) and not own:
            raise LayoutError("braces without an axis; expected {layer dir: ...}")
        twice = [axis for axis in own if axis in around or own.count(axis) > 1]
        if twice:
            raise LayoutError(f"the axis {twice[0]} is counted twice: by the name, by braces, or by a block")
        _check_repeats(inner, around | set(own))


def _check_block(block: pattern.Block, row: TensorRule, form: Form, options: Mapping[str, str]) -> None:
    if not 0 <= row.along < len(block.axes):
        raise LayoutError(f"along {row.along}; a block has {plural(len(block.axes), 'axis', 'axes')}")
    for word in filter(str.isdigit, block.words):
        if not 1 <= int(word) <= MAX_NUMBER:
            raise LayoutError(f"an axis of length {word[:20]}; expected 1 to {MAX_NUMBER}")
    if block.gates:
        _check_gates(block.gates, form, "a block's gates")
    if block.always[1:] and block.always[1:] not in options:
        raise LayoutError(f"{block.always} refers to an option that the layout does not have")
    axes = {" ".join(sorted(KINDS[kind].split())) for kind in block.kinds}
    if len(axes) > 1:
        raise LayoutError(f"the cells {'+'.join(sorted(block.kinds))} have different axes: {', '.join(sorted(axes))}")
    for _, word in block.shift:
        try:
            number = float(options.get(word, word))
        except ValueError:
            raise LayoutError(f"{word!r} is neither a kind of cell nor an option; kinds: {', '.join(KINDS)}") from None
        if not isfinite(number):
            raise LayoutError(f"{word} is {number}; expected a finite number")


# --- networks of every sort -------------------------------------------------------------------------------------


def grid(form: Form) -> Iterator[Spec]:
    """Small networks of a form's kind: 1 to 3 layers, directions, biases, projection, input equal to hidden or not."""
    kinds = form.kinds()
    biases = (True, False) if {"bW", "bR"} & kinds else (False,)
    peepholes = (False, True) if "peep" in kinds else (False,)
    initial = (False, True) if {"h0", "c0"} & kinds else (False,)
    projections = (0, PROJECTION) if "P" in kinds and form.kind == "lstm" else (0,)
    activation = form.activations[0] if form.kind == "rnn" else ""
    for layers, both, bias, projection in product((1, 2, 3), (False, True), biases, projections):
        width = (projection or HIDDEN) * (2 if both else 1)
        for size, peephole, state in product(dict.fromkeys((INPUT, HIDDEN, width)), peepholes, initial):
            if peephole and form.kind != "lstm":
                continue
            yield Spec(
                form.kind, size, HIDDEN, layers, both, projection, bias, form.reset, activation,
                peephole=peephole, initial_state=state,
            )  # fmt: skip


def _switches(form: Form) -> list[str]:
    """The options that switch blocks of a form on and off."""
    return sorted({block.always[1:] for block in form.blocks()} - {""})


def choices(layout: Layout, form: Form) -> Iterator[dict[str, str]]:
    """Every combination of options for which a form is used: its `when`, and each switch on and off."""
    switches = [name for name in _switches(form) if name not in form.when]
    for values in product(("yes", "no"), repeat=len(switches)):
        yield layout.chosen({**form.when, **dict(zip(switches, values, strict=True))})


def _check_networks(layout: Layout, form: Form, shapes: Mapping[str, str]) -> None:
    tried = False
    for spec, options in product(grid(form), list(choices(layout, form))):
        if list(refusals(layout, form, spec)) or (
            _keeps_layers_together(form) and not all(spec.sizes(layer) == spec.sizes(0) for layer in range(spec.layers))
        ):
            continue
        tried = True
        try:
            tensors = stored(layout, form, spec, options)
            _check_names(tensors)
            # Check that the shapes that the author declares match the blocks.
            for tensor in tensors:
                if tensor.row.name not in shapes:
                    continue
                text = shapes[tensor.row.name]
                said, found = declared(text, tensor), tensor.shape
                if len(said) != len(found):
                    raise LayoutError(
                        f"{tensor.name!r}: its shape {text!r} has {plural(len(said), 'axis', 'axes')}, "
                        f"its blocks have {len(found)}"
                    )
                for axis, (wanted, there) in enumerate(zip(said, found, strict=True)):
                    if wanted != there:
                        where = [min(wanted, there) if k == axis else 0 for k in range(len(said))]
                        what = "is missing" if there < wanted else "is outside its shape"
                        raise LayoutError(
                            f"element {where} of {tensor.name!r} {what}: its shape {text!r} is {list(said)}, "
                            f"its blocks give {list(found)}"
                        )
            check_tiling(layout, form, spec, options)
            _check_cells(tensors, spec)
            _check_reading(layout, tensors, spec, options)
        except (LayoutError, UsageError) as error:
            raise type(error)(f"{error.message} (in {spec})", error.hint) from None
    if not tried:
        raise LayoutError(f"its {form.kind} cannot hold any network that was tried")
    many = Spec(form.kind, HIDDEN, HIDDEN, MANY_LAYERS, layout.max_directions > 1, reset=form.reset)
    if not _keeps_layers_together(form) and not list(refusals(layout, form, many)):
        _check_names(stored(layout, form, many, next(choices(layout, form))))


def _keeps_layers_together(form: Form) -> bool:
    """Whether one tensor holds the input weights of all layers, with layer as an axis, so that all have one width."""
    return any({"layer", "in"} <= {*block.words} for block in form.blocks())


def _check_names(tensors: list[LayoutTensor]) -> None:
    """Check that no two tensors of one network have the same name."""
    for name, count in Counter(tensor.name for tensor in tensors).items():
        if count > 1:
            hint = "a template lacks {layer}, {dir} or {gate}, or two templates are equal"
            raise LayoutError(f"{count} tensors are called {name!r}", hint)


def declared(text: str, tensor: LayoutTensor) -> Shape:
    """The sizes of a shape such as `in + rec (gate hidden)`: products of words, and sums of consecutive blocks.

    `gate` counts the gates that the tensor's cells have, not those that a pattern names.
    """
    kinds = [kind for piece in tensor.pieces for kind in sorted(piece.block.kinds)]
    gates = max((len(tensor.spec.gates_of(kind)) for kind in kinds), default=0) or 1
    lengths = {**tensor.pieces[0].lengths, "gate": gates}
    axes = re.findall(r"(?:\([^()]*\)|[^\s()+]+)(?:\s*\+\s*(?:\([^()]*\)|[^\s()+]+))*", text)
    if re.sub(r"[\s()+\w]", "", text) or not text.isascii() or len(text) > MAX_CONTENT:
        raise LayoutError(f"the shape {text[:80]!r} cannot be parsed; expected words as in (gate hidden) in")
    return tuple(sum(_product(part, text, lengths) for part in axis.split("+")) for axis in axes)


def _product(part: str, text: str, lengths: Mapping[str, int]) -> int:
    words = part.replace("(", " ").replace(")", " ").split()
    for word in words:
        if word not in lengths and not (word.isdigit() and int(word[:9]) <= MAX_NUMBER):
            known = ", ".join(sorted(lengths))
            raise LayoutError(f"the shape {text!r}: {word[:20]!r} is not an axis; expected {known}")
    return prod(pattern.length(word, lengths) for word in words)


def _check_cells(tensors: list[LayoutTensor], spec: Spec) -> None:
    """Check that every place is for a cell that the network has; an LSTM has no peephole of the candidate, say."""
    cells = set(spec.cells())
    for tensor in tensors:
        for place in tensor.places():
            for _, cell in place.terms:
                if cell not in cells:
                    raise LayoutError(f"{tensor.name!r} has a place for the {cell}, which no {spec.kind} has")


def _check_reading(layout: Layout, tensors: list[LayoutTensor], spec: Spec, options: Mapping[str, str]) -> None:
    """Check that the names and shapes that are written for a network read back as that network, given its facts."""
    shapes = {f"at{layout.separator}{tensor.name}": tensor.shape for tensor in tensors}
    facts = {field.name: getattr(spec, field.name) for field in fields(Spec)}
    try:
        found = network(layout, options, "at", shapes, facts=facts)
    except (LayoutError, UsageError) as error:
        raise LayoutError(f"a network that it writes cannot be read back: {error.message}") from None
    for tensor in tensors:
        name = f"at{layout.separator}{tensor.name}"
        if found.tensors.get(tensor.name) != name:
            raise LayoutError(f"the name {tensor.name!r} reads back as another tensor")
