"""A program that uses every public function passes mypy --strict, and runs."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import paramtool
from paramtool.layouts.layout import registered
from tests.library import sample, surface

SAMPLE = Path(sample.__file__)
WRONG = {
    'paramtool.dedup("m.pt", kep="last")': "call-arg",
    'paramtool.dedup("m.pt", keep=3)': "arg-type",
    'paramtool.dedupe("m.pt")': "attr-defined",
    'paramtool.export("m.pt", "o.safetensors", all_name=True)': "call-arg",
    'paramtool.fuse("m.pt")': "call-arg",
    'paramtool.inspect("m.pt", fail_on=[1])': "list-item",
    'paramtool.read("m.pt").entriez': "attr-defined",
    'paramtool.convert("m.pt", "o.pt", target="torch", described=True)': "call-arg",
    'paramtool.torch.save_model("model", "m.pt", forced=True)': "call-arg",
}
"""{a line with a mistake: the code of mypy's error}."""


def used() -> Iterator[str]:
    """The names of paramtool that the sample uses, in full."""
    for node in ast.walk(ast.parse(SAMPLE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("paramtool."):
            yield ast.unparse(node)


def test_the_sample_uses_every_public_function() -> None:
    assert {name for name, _ in surface.functions()} <= set(used())


def test_the_sample_runs(tmp_path: Path) -> None:
    try:
        sample.main(tmp_path)
    finally:
        registered.pop("sample", None)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_type_checkers_know_every_keyword(tmp_path: Path) -> None:
    """The sample is right, and each wrong line is found; torch and NumPy are not looked into, which takes a minute."""
    lines = ["import paramtool", "import paramtool.torch", *WRONG]
    (tmp_path / "wrong.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = True\nfollow_imports = silent\npython_version = 3.11\ndisallow_subclassing_any = False\n"
        "warn_unused_ignores = False\n"
        + "".join(f"[mypy-{name}.*]\nfollow_imports = skip\nfollow_imports_for_stubs = True\n"
                  for name in ("torch", "numpy", "transformers", "ml_dtypes", "h5py", "safetensors", "click", "rich"))
    )  # fmt: skip
    where = os.environ | {"MYPYPATH": str(Path(paramtool.__file__).parents[1])}
    (tmp_path / "sample.py").write_text(SAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "sample.py", "wrong.py"],
        capture_output=True, text=True, cwd=tmp_path, env=where,
    )  # fmt: skip
    found = ran.stdout.splitlines()
    assert [line for line in found if line.startswith("sample.py") and "error:" in line] == [], ran.stdout + ran.stderr
    for number, (line, code) in enumerate(WRONG.items(), 3):
        assert any(text.startswith(f"wrong.py:{number}: error:") and code in text for text in found), (
            f"{line}\n{ran.stdout}"
        )
