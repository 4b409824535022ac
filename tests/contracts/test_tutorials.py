"""The pages of docs/concepts, docs/tutorials and docs/how-to work: every block is run, and prints what is shown.

A block of Python that begins with `# NAME.py` is that file.  In a block `console`, each line behind `$` is run by a
shell, and the lines under it are in its output in that order; `...` stands for any lines,
or for anything in a line.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paramtool.model.diff import LABELS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page for folder in ("concepts", "tutorials", "how-to") for page in (ROOT / "docs" / folder).glob("*.md"))


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of each block of a page."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block, and the lines that it prints."""
    parts = re.split(r"^\$ ", block, flags=re.M)[1:]
    for part in parts:
        line, *printed = part.rstrip("\n").split("\n")
        yield line, [text for text in printed if text]


def prints(found: str, wanted: list[str]) -> bool:
    """Whether the lines are in an output, in their order, with nothing between them but where `...` is."""
    inside = (".*".join(map(re.escape, text.split("..."))) for text in map(_unversioned, wanted))
    pattern = "".join(r"(?:.*\n)*" if text == ".*" else text + r"\n" for text in inside)
    return re.fullmatch(pattern, _unversioned(found)) is not None


def _unversioned(text: str) -> str:
    """Without versions and times, which differ from one machine to the next."""
    return re.sub(r"\b\d+\.\d+\.\d+\b|\b\d+\.\d s\b", "N", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_works_as_it_is_written(page: Path, tmp_path: Path) -> None:
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    ran = 0
    for language, text in blocks(page):
        if language == "python":
            named = re.match(r"# (\w+\.py)\n", text)
            assert named, f"{page.name}: a block of Python without the name of its file"
            (tmp_path / named[1]).write_text(text, encoding="utf-8")
        for line, printed in commands(text) if language == "console" else ():
            done = subprocess.run(
                ["bash", "-c", line], cwd=tmp_path, env=environment, text=True, capture_output=True, check=False
            )
            assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
            assert not printed or prints(done.stdout, printed), f"$ {line}\n{done.stdout}"
            ran += 1
    assert ran


def test_a_page_that_says_something_else_is_found() -> None:
    """The test above can fail."""
    assert prints("a\nb\nc\n", ["a", "...", "c"]) and prints("a\n", ["a"])
    assert not prints("a\nb\n", ["a"]) and not prints("a\n", ["b", "..."])


def test_a_diff_of_each_verdict_is_shown() -> None:
    """The page with an example of each has each, by the words of the rows."""
    page = ROOT / "docs" / "how-to" / "read-a-diff.md"
    shown = {lines.split("  ")[0] for _, text in blocks(page) for _, printed in commands(text) for lines in printed}
    assert shown >= set(LABELS.values())
