"""An underscore means private: to the module, of a function or a class; to the folder, of a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of everything of paramtool's that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paramtool"):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith("paramtool."))


def private(folder: str, module: str, name: str) -> Iterator[str]:
    """What a module in `folder` must not import: modules that are private to another folder, and private names."""
    parts = [*module.split("."), *([name] if name else [])]
    for k, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            owner = ".".join(parts[:k])
            is_module = ROOT.joinpath(*parts[: k + 1]).with_suffix(".py").is_file()
            if not is_module or not f"{folder}.".startswith(f"{owner}."):
                yield ".".join(parts[: k + 1])


def test_the_rule() -> None:
    assert [*private("paramtool.cli", "paramtool.cli", "_render")] == []
    assert [*private("paramtool.commands.output", "paramtool.commands", "_differences")] == []
    assert [*private("paramtool.commands", "paramtool.formats._installed_reader", "f")] == [
        "paramtool.formats._installed_reader"
    ]
    assert [*private("paramtool.engine.write", "paramtool.engine.write.sink", "_f")] == [
        "paramtool.engine.write.sink._f"
    ]


def test_nothing_private_is_imported() -> None:
    """By modules of other folders; a module's own functions by none at all."""
    wrong = []
    for path in sorted((ROOT / "paramtool").rglob("*.py")):
        folder = ".".join(path.parent.relative_to(ROOT).parts)
        wrong += [(str(path), found) for one in imported(path) for found in private(folder, *one)]
    assert wrong == []
