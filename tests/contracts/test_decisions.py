"""docs/decisions: a file for each, short and in one form, and in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILES = sorted((DOCS / "decisions").glob("0*.md"))
FORM = re.compile(
    r"# (?P<number>\d+)\. (?P<title>[^\n]+)\n\nSubject: \[[^\n]+\]\(index\.md#(?P<subject>[\w-]+)\)\.\n\n"
    r"## Context\n\n(?P<context>.+?)\n\n## Decision\n\n(?P<decision>.+?)\n\n## Consequences\n\n(?P<consequences>.+)\n",
    re.S,
)


def test_they_are_numbered() -> None:
    """From 1, without a gap; a file is called by its number."""
    assert [int(path.name[:4]) for path in FILES] == list(range(1, len(FILES) + 1))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[:4])
def test_a_decision_says_why_what_and_what_follows(path: Path) -> None:
    """In at most 50 lines, under its number."""
    text = path.read_text(encoding="utf-8")
    found = FORM.fullmatch(text)
    assert found and int(found["number"]) == int(path.name[:4])
    assert len(text.splitlines()) <= 50 and "\n## " not in found["consequences"]


def test_the_index_has_all_of_them() -> None:
    """Under their subjects, in order, by their titles; at most twenty, those that guide a change."""
    found = [FORM.fullmatch(path.read_text(encoding="utf-8")) for path in FILES]
    titles = [(one["title"], path.name) for one, path in zip(found, FILES, strict=True) if one]
    index = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")
    assert [(title, name) for title, name in re.findall(r"^- \[\d+\. (.+)\]\((0.+\.md)\)$", index, re.M)] == titles
    assert len(titles) <= 20
    for one, path in zip(found, FILES, strict=True):
        subject = index[: index.index(f"]({path.name})")].rpartition("\n## ")[2].partition("\n")[0]
        assert one and one["subject"] == subject.lower().replace(" ", "-")
