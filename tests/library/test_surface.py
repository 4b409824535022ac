"""The public surface is a list that reviewers see; keywords, options and flags are the same."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

import paramtool
from paramtool.cli.main import cli
from paramtool.commands.output.options import WriteOptions
from paramtool.commands.relayout_options import RelayoutOptions
from paramtool.errors import UsageError
from tests.library import surface

WRITE = "python -m tests.library.surface writes it anew"


def test_the_list_is_the_surface() -> None:
    assert surface.LIST.read_text(encoding="utf-8") == surface.text(), WRITE


def test_the_page_lists_every_function() -> None:
    page = surface.PAGE.read_text(encoding="utf-8")
    assert page == surface.pages(), WRITE
    assert all(f"| [`{name}`](" in page for name, _ in surface.functions())
    for kind in (one for one in vars(paramtool.errors).values() if inspect.isclass(one)):
        assert (
            not issubclass(kind, paramtool.ParamtoolError)
            or f"`{kind.__name__}`" in page
            or kind.__mro__[1] is Exception
        )


@pytest.mark.parametrize("name", [name for name, _ in surface.functions()])
def test_every_parameter_has_a_name_and_a_type(name: str) -> None:
    function = dict(surface.functions())[name]
    assert inspect.getdoc(function), name
    signature = inspect.signature(function)
    assert signature.return_annotation not in ("Any", signature.empty)
    for one in signature.parameters.values():
        assert one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL), f"{name}: **{one.name} hides its keywords"
        assert one.annotation not in ("Any", one.empty), f"{name}: {one.name} has no type"


# --- options ------------------------------------------------------------------------------------------------------

OF_CONVERT = dict.fromkeys(
    (
        "as_is",
        "dtype",
        "keep_float32",
        "allow_overflow",
        "dequantise",
        "into",
        "map",
        "flatten",
        "partial",
        "untie",
        "tie",
    ),
    "",
)
OPTIONS: dict[str, tuple[type[WriteOptions], dict[str, str]]] = {
    "dedup": (paramtool.DedupOptions, {}),
    "dedup_each": (paramtool.DedupOptions, {"ties": "", "weights": "", "format": ""}),
    "dedup_family": (paramtool.DedupOptions, {"ties": "", "format": ""}),
    "export": (paramtool.ExportOptions, {}),
    "export_each": (paramtool.ExportOptions, {"like_only": "", "ties": "", "weights": "", "format": ""}),
    "convert": (RelayoutOptions, {"described": "", "as_is": ""}),
    "fuse": (RelayoutOptions, {"described": "", "target": "layout", **OF_CONVERT}),
    "unfuse": (RelayoutOptions, {"described": "", "source": "layout", "keep_names": "", **OF_CONVERT}),
}
"""{function: its options, and those of them that it has no keyword for, or one of another name}."""


@pytest.mark.parametrize("name", OPTIONS)
def test_keywords_are_the_options(name: str) -> None:
    """Names, types and defaults: a field that is added to one has to be added to the other."""
    kind, others = OPTIONS[name]
    parameters = inspect.signature(getattr(paramtool, name)).parameters
    for field in dataclasses.fields(kind):
        if field.name in others:
            assert field.name not in parameters
            assert not others[field.name] or others[field.name] in parameters
            continue
        found = parameters[field.name]
        assert found.kind is found.KEYWORD_ONLY
        assert (found.annotation, found.default) == (field.type, field.default), field.name


def test_options_are_given_one_way(tmp_path: Any) -> None:
    options = paramtool.DedupOptions(keep="last")
    with pytest.raises(UsageError, match="force is given beside options"):
        paramtool.dedup(tmp_path / "m.pt", None, options, force=True)
    with pytest.raises(FileNotFoundError):
        paramtool.dedup(tmp_path / "m.pt", None, options)
    with pytest.raises(FileNotFoundError):
        paramtool.dedup(tmp_path / "m.pt", None, options, keep="last")


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda at: paramtool.dedup(at, allow_class="a.B"), "allow_class"),
        (lambda at: paramtool.fuse(at, layout="cudnn", at="enc"), "at"),
        (lambda at: paramtool.export(at, at, all_names=True, rename="a=b"), "rename"),
        (lambda at: paramtool.convert(at, at, target="torch", layout_file="x.toml"), "layout_file"),
    ],
)
def test_a_string_in_place_of_a_list_is_refused(call: Callable[[Any], object], word: str, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match=rf"{word} is .*; expected a list\nhint: {word}=\["):
        call(tmp_path / "m.pt")


# --- flags --------------------------------------------------------------------------------------------------------

FUNCTIONS = {
    "inspect": ["inspect"],
    "variants": ["variants"],
    "dedup": ["dedup"],
    "export": ["export"],
    "convert": ["convert"],
    "fuse": ["fuse"],
    "unfuse": ["unfuse"],
    "guess": ["guess"],
    "check": ["check"],
    "lock": ["lock"],
    "diff": ["diff"],
    "report": ["report"],
    "verify": ["verify"],
}
WITHOUT_FUNCTION = {"layouts", "help"}
DISPLAY = {"json", "quiet", "verbose", "tensors", "wide", "tree", "depth", "color", "toml", "help", "version"}
"""Flags that say how something is shown, in any command."""
RENAMED = {
    ("convert", "from"): "source",
    ("convert", "to"): "target",
    ("fuse", "from"): "source",
    ("unfuse", "to"): "target",
    ("verify", "from"): "source",
}
OTHER_FUNCTION = {"dedup": "dedup_each", "export": "export_each", "verify": "verify_each"}
"""What `--each` is; convert, fuse and unfuse have none in Python."""
WITHOUT_FLAG = {
    "dedup": {"options", "progress"},
    "export": {"options", "progress"},
    "inspect": {"equal", "min_equal_bytes", "progress"},
    "check": {"progress", "today"},
    **{
        command: {"progress"}
        for command in ("variants", "convert", "fuse", "unfuse", "guess", "lock", "diff", "verify", "report")
    },
}
VERDICT = {
    "check": {"format", "output", "force"},
    "diff": {"stat", "rows", "exit-code", "strict", "find-base"},
}
"""Flags about what is printed and the exit code, methods of what is returned in Python; and another function."""
DEFAULTS_ALIKE = (None, "", (), False)
"""What a flag that was not given is, in click and in Python."""


def flags(command: str) -> Iterator[tuple[str, click.Option, click.Context]]:
    """(flag without dashes, option), of a command."""
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    context = click.Context(found)
    for one in found.params:
        if isinstance(one, click.Option):
            yield max(one.opts, key=len).removeprefix("--"), one, context


def keyword(command: str, flag: str) -> str:
    """The keyword of a flag, by the rule of docs/python.md."""
    name = RENAMED.get((command, flag), flag.removeprefix("no-"))
    return name.replace("-", "_")


def test_every_command_is_here() -> None:
    assert FUNCTIONS.keys() | WITHOUT_FUNCTION >= set(cli.list_commands(click.Context(cli)))


@pytest.mark.parametrize("command", FUNCTIONS)
def test_a_flag_and_its_keyword_have_one_name_and_one_default(command: str) -> None:
    parameters = inspect.signature(getattr(paramtool, command)).parameters
    seen = set()
    for flag, option, context in flags(command):
        if flag in DISPLAY | VERDICT.get(command, set()):
            continue
        if flag == "each":
            assert OTHER_FUNCTION.get(command, "dedup_each") in paramtool.__all__
            continue
        name = keyword(command, flag)
        assert name in parameters, f"{command} --{flag} has no keyword {name}"
        seen.add(name)
        default, expected = option.get_default(context), parameters[name].default
        if flag.startswith("no-"):
            assert option.is_flag and expected is True and not default
        elif option.required:
            assert expected is inspect.Parameter.empty
        elif option.name == "max_inflated" or default in DEFAULTS_ALIKE or "UNSET" in repr(default):
            assert expected in (*DEFAULTS_ALIKE, inspect.Parameter.empty), f"{command} --{flag}: {expected!r}"
        else:
            assert default == expected, f"{command} --{flag}: {default!r} is {expected!r} in Python"
    positional = [one.name for one in parameters.values() if one.kind is not one.KEYWORD_ONLY][:1]
    files = {"verify": {"output"}, "diff": {"a", "b"}, "report": {"path", "other"}}.get(command, set(positional))
    assert parameters.keys() - seen - files == WITHOUT_FLAG[command]


def test_the_page_names_the_exceptions() -> None:
    page = surface.PAGE.read_text(encoding="utf-8").partition("## Functions")[0]
    for word in (
        "source",
        "target",
        *OTHER_FUNCTION.values(),
        "dedup_family",
        "progress",
        "options",
        "min_equal_bytes",
    ):
        assert re.search(rf"`{word}`", page), word
