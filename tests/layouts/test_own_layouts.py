"""Layouts of one's own: what is taken, what is refused, and where layouts come from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import paramtool
from paramtool import layouts
from paramtool.commands.layouts import register_files
from paramtool.errors import LayoutError, ParamtoolError, UsageError
from paramtool.layouts import own
from paramtool.layouts.layout import Form, Layout, Option, TensorRule
from paramtool.layouts.own import check_layout, grid
from tests.examples import examples
from tests.hostile.command import command

ROWS = (
    TensorRule("w{layer}{dir}", "W[(gate hidden) in] R[(gate hidden) rec]", along=1),
    TensorRule("b{layer}{dir}", "bW[(gate hidden)] bR[(gate hidden)]"),
)
MINE = Layout("mine", "for tests", (Form("lstm", "ifgo", ROWS),))


def with_rows(*rows: TensorRule, gates: str = "ifgo", **said: Any) -> Layout:
    """MINE with other tensors."""
    return replace(MINE, forms=(Form("lstm", gates, rows),), **said)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is registered, and packages are looked up anew."""
    layouts.registered.clear()
    own.installed.cache_clear()
    yield
    own.installed.cache_clear()


# --- the proof ----------------------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", sorted(layouts.built_in()))
def test_every_built_in_layout_is_proved(name: str) -> None:
    """What is asked of other people's layouts holds for ours."""
    check_layout(layouts.built_in()[name])


def test_the_grid_has_networks_of_every_sort() -> None:
    """One to three layers, both directions, biases or none, inputs as wide as h or not, projections and peepholes."""
    rows = (*ROWS, TensorRule("p{layer}{dir}", "P[proj hidden]"), TensorRule("q{layer}{dir}", "peep.ifo[gate hidden]"))
    specs = list(grid(Form("lstm", "ifgo", rows)))
    assert len(specs) == len(set(specs))
    for name in ("layers", "bidirectional", "bias", "projection", "peephole"):
        assert len({getattr(spec, name) for spec in specs}) == (3 if name == "layers" else 2), name
    assert {spec.input == spec.hidden for spec in specs} == {True, False}
    assert {spec.peephole for spec in grid(MINE.forms[0])} == {False}


WRONG: dict[str, tuple[Layout, str]] = {
    "a gate without a place": (
        with_rows(*ROWS, gates="ifg"),
        "input weights of gate o (layer 0) has no place (in lstm input=4 hidden=3)",
    ),
    "a gate twice": (with_rows(*ROWS, gates="iffo"), "element [3, 0] of 'w0' is doubled (in lstm input=4 hidden=3)"),
    "a gate twice in a block": (
        with_rows(
            TensorRule("w{layer}{dir}", "W.iffgo[(gate hidden) in]"),
            TensorRule("r{layer}{dir}", "R[(gate hidden) rec]"),
        ),
        "element [3, 0] of 'w0' is doubled (in lstm input=4 hidden=3 bias=no)",
    ),
    "a gap": (
        with_rows(ROWS[0], TensorRule("b{layer}{dir}", "bW+bR[(gate 2 hidden)]")),
        "element [3] of 'b0' is missing (in lstm input=4 hidden=3)",
    ),
    "a cell twice in a tensor": (
        with_rows(ROWS[0], TensorRule("b{layer}{dir}", "bW[(gate hidden)] bW[(gate hidden)]")),
        "input bias of gate i (layer 0) is stored twice in 'b0' (in lstm input=4 hidden=3)",
    ),
    "no name for the second layer": (
        with_rows(replace(ROWS[0], name="w{dir}"), ROWS[1]),
        "input weights of gate i (layer 1) has no place (in lstm input=4 hidden=3 layers=2)",
    ),
    "no name for the reverse direction": (
        with_rows(replace(ROWS[0], name="w{layer}"), ROWS[1]),
        "input weights of gate i (layer 0, reverse) has no place (in lstm input=4 hidden=3 bidirectional)",
    ),
    "one name twice": (
        with_rows(ROWS[0], replace(ROWS[1], name="w{layer}{dir}")),
        "2 tensors are called 'w0' (in lstm input=4 hidden=3)",
    ),
    "two gates of one name": (
        with_rows(ROWS[0], TensorRule("b{layer}{dir}{gate}", "bW+bR[hidden]", labels="i=_a f=_a g=_g o=_o")),
        "2 tensors are called 'b0_a' (in lstm input=4 hidden=3)",
    ),
    "blocks of other widths": (
        with_rows(TensorRule("w{layer}{dir}", "W[(gate hidden) in] R[(gate hidden) rec]"), ROWS[1]),
        "the blocks of 'w0' do not fit together: [(12, 4), (12, 3)] (in lstm input=4 hidden=3)",
    ),
    "axes of another cell": (
        with_rows(TensorRule("w{layer}{dir}", "W[(gate rec) in]"), TensorRule("r{layer}{dir}", "R[(gate hidden) rec]")),
        "a block of W has the axes ['in', 'rec']; expected ['hidden', 'in'] (in lstm input=4 hidden=3 bias=no)",
    ),
    "a sum of unlike cells": (
        with_rows(ROWS[0], TensorRule("b{layer}{dir}", "bW+P[(gate hidden)]")),
        "tensor 'b{layer}{dir}': the cells P+bW have different axes: hidden, hidden proj",
    ),
    "a peephole that no network has": (
        with_rows(*ROWS, TensorRule("p{layer}{dir}", "peep[(gate hidden)]")),
        "'p0' has a place for the peephole of gate g (layer 0), which no lstm has (in lstm input=4 hidden=3 peephole)",
    ),
    "no recurrent weights": (
        with_rows(TensorRule("w{layer}{dir}", "W[(gate hidden) in]")),
        "its lstm has no place for the recurrent weights",
    ),
    "an axis counted twice": (
        with_rows(TensorRule("w{layer}{dir}{gate}", "W[(gate hidden) in]"), ROWS[1]),
        "tensor 'w{layer}{dir}{gate}': the axis gate is counted twice: by the name, by braces, or by a block",
    ),
    "braces within braces": (
        with_rows(TensorRule("w", "{layer: {layer: W[(gate hidden in)]}}")),
        "tensor 'w': the axis layer is counted twice: by the name, by braces, or by a block",
    ),
    "a huge axis": (
        with_rows(TensorRule("w{layer}{dir}", "W[(gate hidden) in 99999999999]")),
        "tensor 'w{layer}{dir}': an axis of length 99999999999; expected 1 to 64",
    ),
    "an unknown gate": (
        with_rows(*ROWS, gates="ifgx"),
        "gates 'ifgx': 'x' is not a gate of a lstm; expected some of ifgo",
    ),
    "an unknown field of a name": (
        with_rows(replace(ROWS[0], name="w{layer!r:>999999999}")),
        "tensor 'w{layer!r:>999999999}': its name cannot be parsed; "
        "expected text with {layer}, {dir}, {cell}, {gate} and [...]",
    ),
    "a part that never stands": (
        with_rows(replace(ROWS[0], name="w[x]{layer}{dir}")),
        "tensor 'w[x]{layer}{dir}': [x] would never be written: it has neither {layer} nor {dir}",
    ),
    "an unknown word": (
        with_rows(ROWS[0], TensorRule("b{layer}{dir}", "bV[(gate hidden)]")),
        "tensor 'b{layer}{dir}': 'bV' is neither a kind of cell nor an option; kinds: W, R, bW, bR, P, peep, h0, c0",
    ),
    "an option that is no number": (
        with_rows(ROWS[0], TensorRule("b{layer}{dir}", "bW-fb[(gate hidden)]"), options=(Option("fb", "inf", ""),)),
        "tensor 'b{layer}{dir}': fb is inf; expected a finite number",
    ),
    "a switch that is no option": (
        with_rows(ROWS[0], TensorRule("b{layer}{dir}", "bW!tail[(gate hidden)]")),
        "tensor 'b{layer}{dir}': !tail refers to an option that the layout does not have",
    ),
    "directions that look alike": (
        with_rows(*ROWS, directions=("", "")),
        "directions ['', '']; expected two different strings",
    ),
    "a separator of two": (with_rows(*ROWS, separator="::"), "separator '::'; expected one character"),
    "a gru that keeps the reset gate to itself": (
        replace(MINE, forms=(Form("gru", "rzn", ROWS),)),
        "a gru with reset=''; a gru has after or before, other kinds none",
    ),
    "no form": (replace(MINE, forms=()), "it has no form"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_layout_is_refused(what: str) -> None:
    """The message names the layout, and the element, the cell or the word that is wrong."""
    layout, message = WRONG[what]
    with pytest.raises(LayoutError) as caught:
        check_layout(layout)
    assert caught.value.message == f"layout mine: {message}"


def test_names_that_mean_two_things_are_refused() -> None:
    """Layer 1 forward and layer 0 reverse may not be written alike; no tensor is lost to another's name."""
    with pytest.raises(LayoutError, match=r"cannot be read back|are called"):
        check_layout(with_rows(*ROWS, directions=("", "1")))


def test_an_option_that_switches_blocks_is_tried_both_ways() -> None:
    """A hole that is there with `tail=yes` alone is found, though the default is no."""
    rows = (ROWS[0], TensorRule("b{layer}{dir}", "bW!tail[(gate 2 hidden)]", optional=True))
    right = TensorRule("b{layer}{dir}", "bW!tail[(gate hidden)]")
    option = Option("tail", "no", "whether biases stand")
    check_layout(with_rows(ROWS[0], right, options=(option,)))
    with pytest.raises(LayoutError, match=r"element \[3\] of 'b0' is missing"):
        check_layout(with_rows(*rows, options=(option,)))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("(gate hidden) in + rec", ""),
        ("(4 hidden) (in + rec)", ""),
        ("(gate hidden) in", "element [0, 4] of 'w0' is outside its shape: its shape '(gate hidden) in' is [12, 4]"),
        ("(5 hidden) in + rec", "element [12, 0] of 'w0' is missing: its shape '(5 hidden) in + rec' is [15, 7]"),
        ("(gate hidden)", "'w0': its shape '(gate hidden)' has 1 axis, its blocks have 2"),
        ("(gate hidden) inn", "'inn' is not an axis"),
        ("(gate hidden) in - rec", "cannot be parsed"),
        ("", "has 0 axes"),
    ],
)
def test_a_stated_shape_is_compared_with_the_blocks(shape: str, message: str) -> None:
    """A shape that differs is refused with the element that is missing or outside."""
    if not message:
        return check_layout(MINE, {(0, 0): shape})
    with pytest.raises(LayoutError) as caught:
        check_layout(MINE, {(0, 0): shape})
    assert message in str(caught.value)
    return None


# --- registration -------------------------------------------------------------------------------------------------


def test_a_layout_is_registered_and_found() -> None:
    """By its name, among all, and in its family."""
    assert paramtool.register_layout(MINE) is MINE
    assert layouts.find("mine") is MINE
    assert MINE in list(layouts.all_layouts())
    scheme = replace(MINE, name="mine.flat")
    paramtool.register_layout(scheme)
    assert layouts.family("mine") == [MINE, scheme]


def test_a_function_is_decorated_and_stays_itself() -> None:
    """The layout that it returns is taken."""

    @paramtool.register_layout
    def mine() -> Layout:
        return MINE

    assert mine() is MINE
    assert layouts.find("mine") is MINE


def test_a_name_that_is_taken_is_refused() -> None:
    """By paramtool or by another layout; the same layout may come again."""
    with pytest.raises(UsageError, match="'torch' comes with paramtool"):
        paramtool.register_layout(replace(MINE, name="torch"))
    paramtool.register_layout(MINE)
    paramtool.register_layout(replace(MINE))
    with pytest.raises(UsageError, match="another layout 'mine' is registered"):
        paramtool.register_layout(replace(MINE, title="else"))
    assert layouts.find("mine") == MINE


@pytest.mark.parametrize("name", ["mine", "torch"])
def test_a_file_with_a_name_that_is_taken_is_named(name: str, tmp_path: Path) -> None:
    """As of every other error of a file."""
    paramtool.register_layout(MINE)
    path = tmp_path / "my.toml"
    path.write_text(TOML.replace('"mine"', f'"{name}"'))
    with pytest.raises(UsageError, match=rf"my\.toml: .*layout '{name}' "):
        register_files([path])


def test_a_wrong_layout_is_not_registered() -> None:
    """It is refused when it is declared, not when it is used."""
    with pytest.raises(LayoutError):
        paramtool.register_layout(with_rows(*ROWS, gates="ifg"))
    with pytest.raises(UsageError, match="there is no layout 'mine'"):
        layouts.find("mine")


def test_what_is_no_layout_is_refused() -> None:
    """Neither a text nor a function that returns one."""
    for wrong in ("mine", lambda: "mine"):
        with pytest.raises(UsageError, match="'mine' is not a Layout"):
            paramtool.register_layout(wrong)  # type: ignore[type-var]


# --- packages -----------------------------------------------------------------------------------------------------


def package(folder: Path, name: str, points: dict[str, str], code: str) -> None:
    """A distribution as an installer leaves it: a module, and metadata with entry points."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{point} = {value}\n" for point, value in points.items())
    (info / "entry_points.txt").write_text(f"[paramtool.layouts]\n{lines}")


CODE = """
from paramtool.layouts.layout import Form, Layout, TensorRule
rows = (TensorRule("w{layer}{dir}", "W[(gate hidden) in]"), TensorRule("r{layer}{dir}", "R[(gate hidden) rec]"))
one = Layout("NAME", "of a package", (Form("lstm", "GATES", rows),))
def made():
    return one
several = [one, Layout("NAME.two", "", one.forms)]
"""


def code(name: str, gates: str = "ifgo") -> str:
    return CODE.replace("NAME", name).replace("GATES", gates)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages on the path; what is imported from it is forgotten."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("pkg_"):
            del sys.modules[name]


@pytest.mark.parametrize("value", ["one", "made", "several"])
def test_a_package_declares_layouts(value: str, packages: Path) -> None:
    """As a layout, as a function, as a list."""
    package(packages, "pkg_good", {"theirs": f"pkg_good:{value}"}, code("theirs"))
    assert layouts.find("theirs").title == "of a package"
    assert len(layouts.family("theirs")) == (2 if value == "several" else 1)
    assert own.installed().warnings == ()


def test_packages_are_not_imported_for_a_built_in_layout(packages: Path) -> None:
    """A name that paramtool has, or its family, needs nobody else's code; a list of all does."""
    package(packages, "pkg_lazy", {"theirs": "pkg_lazy:one"}, code("theirs"))
    layouts.find("torch")
    layouts.family("mxnet")
    assert "pkg_lazy" not in sys.modules
    assert "theirs" in [layout.name for layout in layouts.all_layouts()]
    assert "pkg_lazy" in sys.modules


BROKEN = {
    "raises": ("raise RuntimeError('boom')", "RuntimeError: boom"),
    "lacks the object": ("x = 1", "AttributeError: module 'pkg_bad' has no attribute 'one'"),
    "imports what is not there": ("import pkg_missing", "ModuleNotFoundError: No module named 'pkg_missing'"),
    "is no layout": ("one = 5", "returns 5; expected a Layout, several, or a function that returns them"),
    "loses a gate": (code("bad", "ifg"), "layout bad: input weights of gate o (layer 0) has no place"),
    "takes a name of ours": (code("torch"), "layout 'torch' comes with paramtool"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_package_is_named_and_stops_nothing(what: str, packages: Path) -> None:
    """Its own name is a LayoutError, all other layouts are there, and a warning says which package it is."""
    text, reason = BROKEN[what]
    package(packages, "pkg_bad", {"bad": "pkg_bad:one"}, text)
    package(packages, "pkg_good", {"theirs": "pkg_good:one"}, code("theirs"))
    names = [layout.name for layout in layouts.all_layouts()]
    assert {"torch", "theirs"} <= set(names)
    assert len(names) == len(set(names))
    (warning,) = own.installed().warnings
    assert warning.startswith("package pkg_bad 1.0, entry point bad = pkg_bad:one: ")
    assert reason in warning
    with pytest.raises(LayoutError) as caught:
        layouts.find("bad")
    assert caught.value.message == warning
    assert layouts.find("torch") is layouts.built_in()["torch"]


def test_an_unknown_name_tells_of_broken_packages(packages: Path) -> None:
    """The layout that is looked for may be one of theirs."""
    package(packages, "pkg_bad", {"bad": "pkg_bad:one"}, "raise RuntimeError('boom')")
    with pytest.raises(UsageError, match="there is no layout 'tortch'") as caught:
        layouts.find("tortch")
    assert "torch" in caught.value.hint
    assert "pkg_bad 1.0" in caught.value.hint


def test_two_packages_of_one_name(packages: Path) -> None:
    """The first is taken, the second is told of."""
    package(packages, "pkg_a", {"theirs": "pkg_a:one"}, code("theirs"))
    package(packages, "pkg_b", {"theirs": "pkg_b:one"}, code("theirs", "gifo"))
    assert layouts.find("theirs").forms[0].gates == "ifgo"
    (warning,) = own.installed().warnings
    assert warning.endswith("another package has a layout 'theirs'")


# --- TOML ---------------------------------------------------------------------------------------------------------

TOML = """
[[layout]]
name = "mine"
[[layout.option]]
name = "fb"
default = "1.0"
[[layout.form]]
kind = "lstm"
gates = "ifgo"
tensors = [
  {name = "w{layer}{dir}", content = "W[(gate hidden) in]"},
  {name = "r{layer}{dir}", content = "R[(gate hidden) rec]"},
]
"""
FORM = "form = [{kind = 'lstm', gates = 'ifgo', tensors = []}]"


def test_a_file_holds_several_layouts_with_every_field() -> None:
    """What the keys say is what the layouts have."""
    text = """\
[[layout]]
name = "a"
title = "A"
separator = "/"
directions = ["fw", "bw"]
max_directions = 1
names_identify = false
source = "s"
note = "n"
[[layout.option]]
name = "fb"
default = "1.0"
what = "the forget bias"
[[layout.form]]
kind = "rnn"
gates = "h"
activations = ["relu"]
expresses = ["clip"]
when = {fb = "1.0"}
tensors = [{name = "[l{layer}.]w", content = "W[hidden in] R[hidden rec]", along = 1, labels = "h=", optional = true, \
            directions = ["f", "b"], unless = "peep", shape = "hidden in + rec"}]
[[layout]]
name = "b"
[[layout.form]]
kind = "gru"
gates = "zrn"
reset = "before"
tensors = [{name = "w{cell}", content = "W[in (gate hidden)] R[rec (gate hidden)]"}]
"""
    row = TensorRule("[l{layer}.]w", "W[hidden in] R[hidden rec]", 1, "h=", True, ("f", "b"), "peep")
    form = Form("rnn", "h", (row,), "", {"fb": "1.0"}, ("relu",), frozenset({"clip"}))
    option = Option("fb", "1.0", "the forget bias")
    first = Layout("a", "A", (form,), "/", ("fw", "bw"), 1, (option,), "s", ("tiling",), False, note="n")
    row = TensorRule("w{cell}", "W[in (gate hidden)] R[rec (gate hidden)]")
    second = Layout("b", "b", (Form("gru", "zrn", (row,), "before"),), proof=("tiling",))
    assert own.from_toml(text, "my.toml") == [first, second]


STRICT = {
    "no TOML": ("layout = ", "is not valid TOML: "),
    "nothing": ("", "layout is missing; expected at most 64 tables"),
    "an unknown key": ("[[block]]", "unknown key 'block'; expected one of layout"),
    "one table": ("[layout]\nname = 'm'", "layout is {'name': 'm'}; expected at most 64 tables"),
    "no name": ("[[layout]]\ntitle = 'm'", "layout[0]: name is missing; expected a string"),
    "no form": ("[[layout]]\nname = 'm'", "layout[0]: form is missing; expected at most 64 tables"),
    "a number for a text": ("[[layout]]\nname = 1", "layout[0]: name is 1; expected a string"),
    "a number for a flag": (
        f"[[layout]]\nname = 'm'\nnames_identify = 1\n{FORM}",
        "layout[0]: names_identify is 1; expected true or false",
    ),
    "a flag for a number": (
        f"[[layout]]\nname = 'm'\nmax_directions = true\n{FORM}",
        "layout[0]: max_directions is True; expected a whole number",
    ),
    "three directions": (
        f"[[layout]]\nname = 'm'\ndirections = ['a', 'b', 'c']\n{FORM}",
        "layout[0]: directions is ['a', 'b', 'c']; expected two strings, as in [\"\", \"_reverse\"]",
    ),
    "an unknown key of a tensor": (
        TOML.replace("content =", "contents =", 1),
        "layout[0] 'mine': form[0]: tensors[0]: unknown key 'contents'; "
        "expected one of name, content, along, labels, optional, directions, unless, shape",
    ),
    "an option without a default": (
        TOML.replace('default = "1.0"', ""),
        "layout[0] 'mine': option[0]: default is missing; expected a string",
    ),
    "a number in when": (
        TOML.replace('kind = "lstm"', 'kind = "lstm"\nwhen = {fb = 1.0}'),
        "layout[0] 'mine': form[0]: when is {'fb': 1.0}; expected a table of strings, as in {forget_bias = \"1.0\"}",
    ),
    "a layout twice": (TOML + TOML, "layout 'mine' is defined twice"),
    "nested too deeply": ("a = " + "[" * 5000, "is nested too deeply"),
    "a number of thousands of digits": ("a = 1" + "0" * 5000, "is not valid TOML: "),
    "a text of a million letters": (
        "#" * (1 << 20) + "#",
        "has 1048577 characters; such a file has at most 1048576",
    ),
}


@pytest.mark.parametrize("what", STRICT)
def test_a_file_that_says_something_else_is_refused(what: str) -> None:
    """The message names the file, the table, the key and what was expected."""
    text, message = STRICT[what]
    with pytest.raises(UsageError) as caught:
        own.from_toml(text, "my.toml")
    place = ":1:10" if "TOML" in message and "layout" in text else ""
    assert str(caught.value).startswith(f"my.toml{place}: {message}")


OLD = """
[[layout]]
name = "mine"
telling = false
[[layout.form]]
kind = "lstm"
gates = "ifgo"
says = ["clip"]
tensors = [{name = "w{layer}{dir}", content = "W[(gate hidden) in] R[(gate hidden) rec]", along = 1}]
"""


def test_keys_under_their_old_names_are_read_with_a_warning() -> None:
    """A file from before the keys were renamed gives the same layout, and each old key is named with its new name."""
    with pytest.warns(FutureWarning) as caught:
        (found,) = own.from_toml(OLD, "my.toml")
    assert [str(warning.message) for warning in caught] == [
        "my.toml: layout[0]: the key 'telling' was renamed: write 'names_identify'",
        "my.toml: layout[0] 'mine': form[0]: the key 'says' was renamed: write 'expresses'",
    ]
    new = OLD.replace("telling", "names_identify").replace("says", "expresses")
    assert own.from_toml(new, "my.toml") == [found]
    assert (found.names_identify, found.forms[0].expresses) == (False, {"clip"})


def test_a_command_prints_the_warning_of_an_old_key(tmp_path: Path) -> None:
    """On standard error, in one line, as the warnings of commands are; the layout is used."""
    (tmp_path / "my.toml").write_text(OLD)
    done = command("layouts", "mine", "--layout-file", "my.toml", cwd=tmp_path)
    assert done.code == 0
    assert done.err.splitlines() == [
        "warning: my.toml: layout[0]: the key 'telling' was renamed: write 'names_identify'",
        "warning: my.toml: layout[0] 'mine': form[0]: the key 'says' was renamed: write 'expresses'",
    ]


@pytest.mark.parametrize(("old", "new"), [("telling = false", "names_identify"), ('says = ["clip"]', "expresses")])
def test_a_key_under_both_names_is_refused(old: str, new: str) -> None:
    """Nobody knows which of the two was meant, whichever comes first."""
    name, _, value = old.partition(" = ")
    alone = OLD.replace("telling = false\n", "") if name == "says" else OLD.replace('says = ["clip"]\n', "")
    for both in (f"{old}\n{new} = {value}", f"{new} = {value}\n{old}"):
        with pytest.raises(UsageError, match=f"has '{name}' and '{new}', which are one key"):
            own.from_toml(alone.replace(old, both), "my.toml")


def test_a_layout_of_a_file_is_proved() -> None:
    """The message names the file too."""
    assert [layout.name for layout in own.from_toml(TOML, "my.toml")] == ["mine"]
    with pytest.raises(LayoutError, match=r"^my.toml: layout mine: input weights of gate o \(layer 0\) has no place"):
        own.from_toml(TOML.replace("ifgo", "ifg"), "my.toml")


def toml(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'
    return repr(value)


LETTERS = st.characters(exclude_categories=["Cs"])
WORDS = st.sampled_from([
    "W", "R", "bW", "bR", "P", "0", "-W", "bW+bR", "W.if", "R~", "bW!", "bW!fb", "[", "]", "(", ")", "{layer:", "{ :",
    "{dir gate:", "}", "gate", "hidden", "in", "rec", "2", "²", "{layer}", "{dir}", "{cell}", "{gate}", "[{layer}.]",
    "{", "a", "=", " ", "  ",
])  # fmt: skip
PHRASES = st.sampled_from([
    "lstm", "gru", "rnn", "ifgo", "iffo", "rzn", "h", "after", "tanh", "clip", "i=a f=b", "W[(gate hidden) in]",
    "R[(gate hidden) rec]", "w{layer}{dir}", "r{layer}{dir}", "mine", "torch", "/", "fb", "1.0",
])  # fmt: skip
TEXTS = st.one_of(st.text(LETTERS, max_size=8), st.lists(WORDS, max_size=12).map("".join), PHRASES)
SCALARS = st.one_of(TEXTS, st.integers(-3, 1 << 70), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def tables(
    keys: dict[str, st.SearchStrategy[Any]], needed: dict[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[Any]:
    """Tables with the right keys, most of them with values of the right type."""
    return st.fixed_dictionaries(needed, optional=keys)


PAIRS = st.lists(TEXTS, min_size=2, max_size=2)
TENSORS = tables(
    {"along": st.integers(-1, 3), "labels": TEXTS, "optional": st.booleans(), "directions": PAIRS, "unless": TEXTS,
     "shape": TEXTS, "other": VALUES}, {"name": TEXTS, "content": TEXTS},
)  # fmt: skip
FORMS = tables(
    {"reset": TEXTS, "activations": st.lists(TEXTS, max_size=2), "expresses": st.lists(TEXTS, max_size=2),
     "when": st.dictionaries(TEXTS, TEXTS, max_size=1)},
    {"kind": st.sampled_from(["lstm", "gru", "rnn"]), "gates": st.sampled_from(["ifgo", "rzn", "h", "ifog", "if", ""]),
     "tensors": st.lists(TENSORS, min_size=1, max_size=3)},
)  # fmt: skip
LAYOUTS = tables(
    {"separator": TEXTS, "directions": PAIRS, "max_directions": st.integers(0, 3), "names_identify": st.booleans(),
     "option": st.lists(tables({"what": TEXTS}, {"name": TEXTS, "default": TEXTS}), max_size=2), "title": VALUES},
    {"name": st.just("mine"), "form": st.lists(FORMS, min_size=1, max_size=2)},
)  # fmt: skip


@settings(
    max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    st.one_of(
        st.fixed_dictionaries({"layout": st.lists(LAYOUTS, min_size=1, max_size=2)}),
        st.dictionaries(TEXTS, VALUES, max_size=3),
    )
)
def test_whatever_a_file_says_it_is_taken_or_refused(table: dict[str, Any]) -> None:
    """No value leads to anything but layouts or an error of paramtool's."""
    text = "\n".join(f"{toml(key)} = {toml(value)}" for key, value in table.items())
    try:
        found = own.from_toml(text, "my.toml")
    except ParamtoolError as error:
        assert str(error).startswith("my.toml: ")
    else:
        assert all(isinstance(layout, Layout) for layout in found)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(WORDS, max_size=14).map("".join), st.lists(WORDS, max_size=4).map("".join))
def test_whatever_a_pattern_says_it_is_taken_or_refused(content: str, name: str) -> None:
    """The same of patterns and templates, made of their own words."""
    rows = (*ROWS, TensorRule(f"x{name}", content, optional=True))
    try:
        check_layout(with_rows(*rows, options=(Option("fb", "1.0", ""),)))
    except LayoutError as error:
        assert str(error).startswith("layout mine: ")
