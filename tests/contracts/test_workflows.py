""".github: every action is a commit, the Pythons of pyproject.toml are tested, and each target of make exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned(path: Path) -> None:
    """By a whole commit with the version beside it: a tag can be moved to other code."""
    for line in re.findall(r"uses: (.*)", path.read_text(encoding="utf-8")):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_target_exists(path: Path) -> None:
    """What a workflow makes, the Makefile has."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"\bmake ([a-z-]+)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.M)] == []


def test_hooks_run_what_make_check_runs() -> None:
    """The hooks of .pre-commit-config.yaml are the programs of `make check`, from the same environment."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    check = re.search(r"^check: .*\n((?:\t.*\n)+)", makefile, re.M)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    words = [one.split()[:1] for one in re.findall(r"entry: \.venv/bin/(.*)", hooks)]
    assert check and words == [one.split()[:1] for one in re.findall(r"\$\(BIN\)/(.*)", check[1])]


def test_each_python_is_tested() -> None:
    """The versions that pyproject.toml names are those of both matrices."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    matrices = re.findall(r"python: \[(.*)\]", (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    assert named and [re.findall(r"3\.\d+", matrix) for matrix in matrices] == [named, named]
    assert f'requires-python = ">={named[0]}"' in project
