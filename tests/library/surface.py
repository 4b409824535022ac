"""The public surface of the library as text: every name of `paramtool` and `paramtool.torch`, in full.

`python -m tests.library.surface` writes it into public.txt beside this file, and the functions into docs/python.md.
A test compares both, so that a change of what others build on is seen in review.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import paramtool
import paramtool.torch

LIST = Path(__file__).with_name("public.txt")
PAGE = Path(__file__).parents[2] / "docs" / "python.md"
MARK = "<!-- The rest is written by `python -m tests.library.surface`. -->\n"
MODULES: tuple[ModuleType, ...] = (paramtool, paramtool.torch)


def functions() -> Iterator[tuple[str, FunctionType]]:
    """{full name: public function}, in alphabetical order."""
    for module in MODULES:
        for name in sorted(module.__all__):
            if inspect.isfunction(found := getattr(module, name)):
                yield f"{module.__name__}.{name}", found


def lines() -> Iterator[str]:
    """The list."""
    for name, function in functions():
        yield from (f"function {line}" if not n else line for n, line in enumerate(_signature(name, function)))
    for module in MODULES:
        for name in sorted(module.__all__):
            found = getattr(module, name)
            if inspect.isclass(found):
                yield from _class(f"{module.__name__}.{name}", found)
            elif not inspect.isfunction(found):
                yield f"constant {module.__name__}.{name}: {type(found).__name__}"


def _class(name: str, kind: type[Any]) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in kind.__bases__)
    yield f"class {name}({bases})" + (
        f" exit code {kind.exit_code}" if isinstance(getattr(kind, "exit_code", None), int) else ""
    )
    if dataclasses.is_dataclass(kind):
        yield from (f"    {field.name}: {field.type}{_default(field)}" for field in dataclasses.fields(kind))
    elif hasattr(kind, "_fields"):
        defaults = kind._field_defaults
        yield from (
            f"    {field}: {getattr(kind.__annotations__[field], '__forward_arg__', kind.__annotations__[field])}"
            + (f" = {defaults[field]!r}" if field in defaults else "")
            for field in kind._fields
        )
    elif issubclass(kind, Exception) and "__init__" in vars(kind):
        yield f"    __init__{inspect.signature(kind.__init__)}".replace("'", "")
    slots = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for member, value in sorted(vars(kind).items()):
        if member.startswith("_") or member in slots or member in getattr(kind, "_fields", ()):
            continue
        if isinstance(value, property):
            yield f"    property {member}: {inspect.signature(value.fget).return_annotation}"  # type: ignore[arg-type]
        elif inspect.isfunction(value):
            yield f"    {member}{inspect.signature(value)}".replace("'", "")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f" = {field.default!r}"
    return " = ..." if field.default_factory is not dataclasses.MISSING else ""


def text() -> str:
    """All of it."""
    return "".join(f"{line}\n" for line in lines())


def page() -> str:
    """The part of docs/python.md that lists the functions."""
    parts = ["| function | what it does |\n|---|---|\n"]
    for name, function in functions():
        words = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        where = "index" if name.count(".") == 1 else "frameworks"
        parts.append(f"| [`{name}`](api/{where}.md#{name}) | {words} |\n")
    return "".join(parts)


def _signature(name: str, function: FunctionType) -> Iterator[str]:
    """A line for each parameter."""
    signature = inspect.signature(function)
    yield f"{name}("
    keywords = False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not keywords:
            keywords = True
            yield "    *,"
        default = "" if one.default is one.empty else f" = {getattr(one.default, '__name__', repr(one.default))}"
        yield f"    {one.name}: {one.annotation}{default},"
    yield f") -> {signature.return_annotation}"


def pages() -> str:
    """docs/python.md with its list as it is now."""
    return PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK + "\n" + page()


if __name__ == "__main__":
    LIST.write_text(text(), encoding="utf-8")
    PAGE.write_text(pages(), encoding="utf-8")
