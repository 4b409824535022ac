"""Makes mutants of modules of the core, one at a time, and records which test fails for each.

    python -m tests.mutants                     every mutant that `record.json` has no answer for
    python -m tests.mutants --only survived     those again that no test saw
    python -m tests.mutants --check             the recorded mutants again; exit 1 if one that a test killed survives

A mutant is one change of one expression: a comparison, a sign, a bound, a number, a truth value or a branch turned
round.  It is written into a copy of the package, and the tests of its module run against that copy until one fails.
A mutant is named by its function and what was changed, not by its line, so that it is found again after code moved.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("record.json")
EACH = 6
"""How many mutants of a module are tried."""
SECONDS = 600
"""A mutant for which tests run longer than this has made something endless, which is seen, too."""
TESTS = {
    "model/view.py": "tests/model tests/laws/test_windows.py tests/laws/test_alias.py tests/laws/test_reshaped.py",
    "model/alias.py": "tests/laws/test_alias.py tests/laws/test_dedup.py tests/passes/test_dedup_plan.py",
    "model/tiling.py": "tests/model/test_tiling.py tests/model/test_plan.py tests/laws/test_assembled.py",
    "model/plan.py": "tests/model tests/passes/test_dedup_plan.py tests/laws/test_dedup.py",
    "engine/read/elements.py": "tests/laws/test_elements.py tests/engine tests/laws/test_assembled.py",
    "engine/read/pairs.py": "tests/engine/test_pairs.py tests/laws/test_content_windows.py tests/laws/test_verify.py",
    "engine/write/arithmetic.py": "tests/engine tests/laws/test_linear.py tests/laws/test_moving.py",
    "engine/compare/equal.py": "tests/laws/test_content.py tests/laws/test_content_windows.py tests/laws/test_dedup.py",
    "passes/separate.py": "tests/laws/test_plain_formats.py tests/contracts/test_writers.py tests/laws/test_family.py",
    "formats/zip/directory.py": "tests/formats/test_zip.py tests/formats/test_zip_splice.py",
}
"""{module: the tests that are its own}"""
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip


def changes(tree: ast.Module) -> Iterator[tuple[str, ast.Module]]:
    """Every mutant of a module: what was changed, and the changed module."""
    seen: Counter[str] = Counter()
    for path, node in _walk(tree, ""):
        for what, changed in _changed(node):
            name = f"{path}: {what}"
            seen[name] += 1
            yield name + (f" ({seen[name]})" if seen[name] > 1 else ""), _replaced(tree, node, changed)


def _walk(node: ast.AST, path: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        inside = path
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            inside = f"{path}.{child.name}".lstrip(".")
        if isinstance(child, ast.expr) and path:
            yield path, child
        if not isinstance(child, ast.arg) and not _is_annotation(node, child):
            yield from _walk(child, inside)


def _is_annotation(node: ast.AST, child: ast.AST) -> bool:
    return child in (getattr(node, "annotation", None), getattr(node, "returns", None))


def _changed(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """An expression with one thing in it turned round, and what that says."""
    before = ast.unparse(node)
    if len(before) > 100:
        return
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
        found: ast.expr = ast.Compare(node.left, [SWAPPED[type(node.ops[0])]()], node.comparators)  # type: ignore[list-item]
    elif isinstance(node, ast.BoolOp):
        found = ast.BoolOp(SWAPPED[type(node.op)](), node.values)  # type: ignore[arg-type]
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        found = ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)  # type: ignore[arg-type]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        found = node.operand
    elif isinstance(node, ast.IfExp):
        found = ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        found = ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    else:
        return
    yield f"`{before}` -> `{ast.unparse(ast.fix_missing_locations(found))}`", found


def _replaced(tree: ast.Module, node: ast.AST, changed: ast.expr) -> ast.Module:
    class Swap(ast.NodeTransformer):
        def visit(self, at: ast.AST) -> ast.AST:
            return copy.deepcopy(changed) if at is node else super().visit(at)

    kept = {id(one): one for one in ast.walk(tree)}
    assert id(node) in kept
    found: ast.Module = copy.deepcopy(tree, {id(node): node})
    return ast.fix_missing_locations(Swap().visit(found))


def killed_by(module: str, mutant: ast.Module, tree: Path) -> str:
    """The first test that fails with a mutant in its place in a copy of the tree; empty where none does."""
    place = tree / "paramtool" / module
    before = place.read_text()
    place.write_text(ast.unparse(mutant))
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        *TESTS[module].split(),
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "(endless)"
    finally:
        place.write_text(before)
    if done.returncode == 0:
        return ""
    lines = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0] if lines else "(cannot be imported)"


def main() -> int:
    """Run what was asked for, and write the record after each mutant."""
    arguments = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    arguments.add_argument("--only", choices=("new", "survived"), default="new")
    arguments.add_argument("--check", action="store_true")
    asked = arguments.parse_args()
    record: dict[str, dict[str, str]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    lost = 0
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place, "tree")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("__pycache__", ".*", "build", "dist"), symlinks=True)
        if (shared := ROOT.parent / "shared").exists():
            tree.with_name("shared").symlink_to(shared.resolve())
        for module in TESTS:
            known = record.setdefault(module, {})
            every = dict(changes(ast.parse((ROOT / "paramtool" / module).read_text())))
            drawn = Random(module).sample(sorted(every), min(EACH, len(every)))
            names = [name for name in known if name in every] if asked.check else drawn
            for name in names:
                before = known.get(name)
                if not asked.check and (before if asked.only == "survived" else before is not None):
                    continue
                found = killed_by(module, every[name], tree)
                print(f"{module}: {name}: {found or 'survives'}", flush=True)
                lost += asked.check and bool(before) and not found
                if not asked.check:
                    known[name] = found
                    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
