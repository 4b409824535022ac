"""CHANGELOG.md: a heading for each version, and in it the sections of Keep a Changelog 1.1.0, in one order."""

from __future__ import annotations

import re
from pathlib import Path

import paramtool

CHANGELOG = Path(__file__).resolve().parents[2] / "CHANGELOG.md"
SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
"""The types of changes of https://keepachangelog.com/en/1.1.0/, in the order in which that page lists them."""


def versions(text: str) -> dict[str, str]:
    """The text under the heading of each version, by the heading."""
    parts = re.split(r"^## (.*)$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def problems(text: str) -> list[str]:
    """What is wrong with the sections of a changelog."""
    found = []
    for version, body in versions(text).items():
        if not re.fullmatch(r"\d+\.\d+\.\d+ \((unreleased|\d{4}-\d\d-\d\d)\)", version):
            found.append(f"heading: {version}")
        before, *rest = re.split(r"^### (.*)$", body, flags=re.M)
        names = rest[::2]
        if [name for name in SECTIONS if name in names] != names:
            found.append(f"{version}: sections {names}")
        if re.search(r"^- ", before, re.M):
            found.append(f"{version}: a line before the first section")
        groups = [part for section in rest[1::2] for part in re.split(r"^#### .*$", section, flags=re.M)[1:]]
        groups += [section for section in rest[1::2] if "\n#### " not in section]
        found += [f"{version}: an empty group" for group in groups if not group.strip().startswith("- ")]
    return found


def test_the_sections() -> None:
    """Each version has a date or is unreleased, and every line is in a section."""
    assert not problems(CHANGELOG.read_text(encoding="utf-8"))


def test_the_newest_version_is_that_of_the_package() -> None:
    """The first heading; a release changes both."""
    newest = next(iter(versions(CHANGELOG.read_text(encoding="utf-8"))))
    assert newest.split()[0] == paramtool.__version__


def test_a_wrong_changelog_is_found() -> None:
    """The first test can fail: in each of these ways."""
    wrong = "## 1.0 (soon)\n\n- x\n\n### Fixed\n\n#### a\n\n#### b\n\n- y\n\n### Added\n\n### News\n\n- z\n"
    assert problems(wrong) == [
        "heading: 1.0 (soon)",
        "1.0 (soon): sections ['Fixed', 'Added', 'News']",
        "1.0 (soon): a line before the first section",
        "1.0 (soon): an empty group",
        "1.0 (soon): an empty group",
    ]
