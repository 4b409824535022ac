"""`benchmarks/scale.py` writes its sections into docs/performance.md and keeps those of other scripts."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module; it finds its neighbours as it does when it is run."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("scale", "measure"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import scale as module  # type: ignore[import-not-found]

    assert isinstance(module, ModuleType)
    return module


def test_other_figures_stay(scale: ModuleType) -> None:
    """A new section takes the place of the old one; the others and the last section are as they were."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    case = scale.CASES[0]
    made = scale.merged(page, {case.name: f"## {case.title}\n\nnew\n"})
    assert f"## {case.title}\n\nnew\n\n## " in made
    assert made.partition(scale.BESIDE)[1:] == page.partition(scale.BESIDE)[1:] != ("", "")
    titles = [line for line in page.splitlines() if line.startswith("## ")]
    assert [line for line in made.splitlines() if line.startswith("## ")] == titles
    assert scale.merged(made, {case.name: f"## {case.title}\n\nnew\n"}) == made


def test_a_page_without_other_figures_gets_none(scale: ModuleType) -> None:
    case = scale.CASES[0]
    assert scale.BESIDE not in scale.merged("", {case.name: f"## {case.title}\n"})


def test_the_page_has_the_marks_of_the_benchmarks() -> None:
    """The tables of `make bench` are between them, and the README leads to the page."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    table, closed, _ = page.partition("<!-- benchmarks -->")[2].partition("<!-- /benchmarks -->")
    assert closed and table.count("\n| ") >= 10
    assert "(docs/performance.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
