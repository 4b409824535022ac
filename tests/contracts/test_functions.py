"""Functions stay short, and say what each argument is where they take more than a few."""

from __future__ import annotations

import ast
import statistics
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2] / "paramtool"
LONGEST = 60
MEDIAN, NINTH_DECILE = 8, 20
"""Lines from `def` to the last; what they were when this was written."""
POSITIONAL = 4
BY_OTHERS = {
    "formats/torch/globals.py": "called with what a pickle holds, as torch's own functions are",
    "formats/torch/_check.py": "the same",
    "model/view.py": "the five fields of a window, in the order in which torch and NumPy have them",
}
"""Files with functions of more positional parameters, and why."""


class Function(NamedTuple):
    """A function, its length in lines, and its positional parameters without self and cls."""

    file: str
    name: str
    length: int
    positional: int


@cache
def functions() -> list[Function]:
    """All of the package."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args) if arg.arg not in ("self", "cls")]
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                found.append(Function(str(path.relative_to(ROOT)), node.name, length, len(names)))
    return found


def test_lengths() -> None:
    lengths = sorted(function.length for function in functions())
    assert [function for function in functions() if function.length > LONGEST] == []
    assert statistics.median(lengths) <= MEDIAN and lengths[9 * len(lengths) // 10] <= NINTH_DECILE


def test_positional_parameters() -> None:
    many = [function for function in functions() if function.positional > POSITIONAL]
    assert [function for function in many if function.file not in BY_OTHERS] == []
    assert {function.file for function in many} == BY_OTHERS.keys()
