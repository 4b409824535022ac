"""Every text that a user can see, in one file: a change of words is seen in review.

    python -m tests.golden.texts        writes tests/golden/texts.txt anew

The help of every command comes first, as it is printed at 100 columns.  Then follow, by module, the strings in the code
that hold a phrase: errors, hints, warnings, rows of reports.  What an f-string fills in is shown as its expression.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

from paramtool.cli._options import ALL
from paramtool.cli.main import cli

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("texts.txt")
TABLE = "config_keys.py"
"""A table that a script makes, in one string."""
PHRASE = re.compile(r"[A-Za-z]{2,}.* \S*[a-z]{2,}", re.DOTALL)
"""Two words; a name, a pattern, a format string is none."""


def help_texts() -> Iterator[str]:
    """What `paramtool --help` and `paramtool help COMMAND --all` print."""
    settings = {**cli.context_settings, "terminal_width": 100, "max_content_width": 100}
    context = click.Context(cli, info_name="paramtool", **settings)
    yield f"$ paramtool --help\n{cli.get_help(context)}"
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        inner = click.Context(command, context, info_name=name, **settings)
        inner.meta[ALL] = True
        yield f"$ paramtool help {name} --all\n{command.get_help(inner)}"


def _template(node: ast.JoinedStr) -> str:
    """An f-string with its expressions in braces."""
    parts = []
    for value in node.values:
        if isinstance(value, ast.FormattedValue):
            parts.append("{" + ast.unparse(value.value) + "}")
        else:
            assert isinstance(value, ast.Constant)
            parts.append(str(value.value))
    return "".join(parts)


def phrases(source: str) -> Iterator[str]:
    """The strings of a module that hold a phrase, in their order, without docstrings."""
    found: list[tuple[int, int, str]] = []
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            continue
        if isinstance(node, ast.JoinedStr):
            text = _template(node)
        elif isinstance(node, ast.Constant):
            text = node.value if isinstance(node.value, str) else ""
        else:
            waiting.extend(ast.iter_child_nodes(node))
            continue
        if PHRASE.search(text):
            assert isinstance(node, ast.expr)
            found.append((node.lineno, node.col_offset, text))
    return (text for _, _, text in sorted(found))


def texts() -> str:
    """The golden file."""
    pieces = list(help_texts())
    for path in sorted((ROOT / "paramtool").rglob("*.py")):
        lines = [text.replace("\\", "\\\\").replace("\n", "\\n") for text in phrases(path.read_text(encoding="utf-8"))]
        if lines:
            pieces.append("\n".join([f"# {path.relative_to(ROOT)}", *lines]))
    return "\n\n".join(pieces) + "\n"


if __name__ == "__main__":
    GOLDEN.write_text(texts(), encoding="utf-8")
