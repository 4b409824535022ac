"""docs/api has every public name once, and each of them is documented, with every field."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import paramtool
import paramtool.torch

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
LISTED = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.M)]
OTHERS = ("keras", "mxnet", "flax")
"""Modules whose frameworks may not be installed: their `__all__` is read from the source."""


def public() -> list[str]:
    """Every public name; what two frameworks have in common is listed for the first."""
    modules: tuple[ModuleType, ...] = (paramtool, paramtool.torch)
    found = [f"{one.__name__}.{name}" for one in modules for name in one.__all__ if not name.startswith("__")]
    for other in OTHERS:
        source = (ROOT / "paramtool" / f"{other}.py").read_text(encoding="utf-8")
        names = next(
            ast.literal_eval(one.value)
            for one in ast.parse(source).body
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"
        )
        found += [f"paramtool.{other}.{name}" for name in names]
    return [name for name in found if name != "paramtool.mxnet.LoadedInto"]


def test_every_public_name_is_on_a_page() -> None:
    assert sorted(LISTED) == sorted(public())


CLASSES = [
    found
    for module in (paramtool, paramtool.torch)
    for name in module.__all__
    if inspect.isclass(found := getattr(module, name))
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind: type[object]) -> None:
    """A string below each public field, and in each public method; the class itself has one, too."""
    assert kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(")
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    for one, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.target.id[0] != "_":
            assert isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant), one.target.id
        elif isinstance(one, ast.FunctionDef) and one.name[0] != "_":
            assert ast.get_docstring(one), one.name


@pytest.mark.parametrize("name", [name for name in LISTED if name.split(".")[1] not in OTHERS])
def test_a_docstring_is_markdown(name: str) -> None:
    """No table of spaces, which would be one paragraph."""
    module, _, last = name.rpartition(".")
    text = inspect.getdoc(getattr(paramtool.torch if module == "paramtool.torch" else paramtool, last)) or ""
    assert text and not re.search(r"^\w+(?:, \w+)* {3,}\S", text, re.M)
