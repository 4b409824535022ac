"""The package only gets lighter: tokens and files of each room, and circles of imports, beside a committed table.

The table (`weight.txt`) may fall.  A commit that lets a row rise changes the table, and its message says why.
`python -m tests.contracts.test_weight` writes the table anew.

What is counted are tokens of Python outside comments, docstrings and line ends, so that neither long lines nor terse
ones win anything.  An f-string is one token on every version of Python; a string of more than 200 characters counts
its words, so that code cannot move into texts.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2] / "paramtool"
TABLE = Path(__file__).with_name("weight.txt")
NO_WEIGHT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip
FSTRING_START, FSTRING_END = getattr(tokenize, "FSTRING_START", -1), getattr(tokenize, "FSTRING_END", -1)
"""Tokens that only Python 3.12 and later have: before, an f-string is one string."""
LONG = 200
MOST_DATA_NBYTES = 700_000


def weight(source: str) -> int:
    """The tokens of a module that count.

    >>> weight('"A docstring."' + chr(10) + "x = f(1)  # a comment")
    6
    """
    lines = source.splitlines()
    docs = {
        (node.lineno, len(lines[node.lineno - 1].encode()[: node.col_offset].decode()))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    counted = nested = 0
    is_doc = False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in NO_WEIGHT:
            continue
        if token.type == FSTRING_START:
            counted += not nested
            nested += 1
        elif token.type == FSTRING_END:
            nested -= 1
        elif not nested:
            is_doc = token.type == tokenize.STRING and (is_doc or token.start in docs)  # some are of several literals
            is_long = token.type == tokenize.STRING and len(token.string) > LONG
            counted += 0 if is_doc else len(token.string.split()) if is_long else 1
    return counted


def weights() -> dict[str, tuple[int, int]]:
    """{room: (tokens, files)}; the modules beside the rooms are `.`."""
    tokens, files = Counter[str](), Counter[str]()
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0] if path.parent != ROOT else "."
        tokens[room] += weight(path.read_text(encoding="utf-8"))
        files[room] += 1
    return {room: (tokens[room], files[room]) for room in sorted(tokens)}


def imports() -> dict[str, set[str]]:
    """{module: modules of the package that it imports}, late ones too, those for types alone not."""
    modules = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[module] = {own if own in modules else of for of, own in _imported(tree) if of in modules} - {module}
    return found


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, what it is if the name that is taken from it is a module, too)"""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    if isinstance(node, ast.Import):
        yield from ((alias.name, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from ((node.module, f"{node.module}.{alias.name}") for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from _imported(child)


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Modules that import each other, by whatever ways, as sets.

    >>> circles({"a": {"b"}, "b": {"a"}, "c": {"a"}}) == [{"a", "b"}]
    True
    """
    reached = {module: _reached(graph, module) for module in graph}
    sets = {frozenset(m for m in reached[module] if module in reached[m]) for module in graph}
    return [set(one) for one in sets if one]


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        if (module := waiting.pop()) not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen


def table() -> str:
    """What was measured, as it is committed: a room a line, its tokens, its files."""
    rows = weights()
    rows["all"] = (sum(tokens for tokens, _ in rows.values()), sum(files for _, files in rows.values()))
    lines = [f"{room:10s} {tokens:8d} {files:4d}" for room, (tokens, files) in rows.items()]
    return "\n".join([*lines, f"circles    {len(circles(imports())):8d}", ""])


def test_nothing_rises() -> None:
    committed = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines()]
    allowed = {room: [int(number) for number in numbers] for room, *numbers in committed}
    measured = {room: [int(number) for number in numbers] for room, *numbers in map(str.split, table().splitlines())}
    risen = {
        room: f"{numbers}, and {allowed.get(room)} in {TABLE.name}"
        for room, numbers in measured.items()
        if room not in allowed or any(now > before for now, before in zip(numbers, allowed[room], strict=True))
    }
    assert risen == {}


def test_tables_stay_small() -> None:
    """Code that moves into tables of data is lighter only while these are."""
    assert sum(path.stat().st_size for path in ROOT.rglob("*.json")) <= MOST_DATA_NBYTES


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
