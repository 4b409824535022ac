"""Passes are pure, and so are their tests: each has some of its own, which import neither torch nor NumPy."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PASSES = sorted(path for path in (ROOT / "paramtool" / "passes").rglob("*.py") if path.name != "__init__.py")
TESTS = sorted((ROOT / "tests" / "passes").rglob("*.py"))
HEAVY = {"torch", "numpy", "safetensors", "paramtool"}
"""`import paramtool` alone is the whole library: files are read there."""


@cache
def imported(path: Path) -> set[str]:
    """Modules that a file imports, with what it takes from each."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {str(node.module)} - {"paramtool"}  # of which a room is taken, such as `layouts`
    return found


@pytest.mark.parametrize("path", PASSES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_pass_has_tests_of_its_own(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    assert [test for test in TESTS if module in imported(test)]


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_they_need_no_tensors(path: Path) -> None:
    assert not imported(path) & HEAVY
