"""The blocks of code of a page, and what its comments say of them.

A comment of HTML directly above a block says how it is run:

    <!-- files made by: NAME -->         in a new folder, with what the function NAME of tests/site/setups.py makes
    <!-- exits with: 1 -->               the exit code of its last command, where it is not 0
    <!-- not run: REASON -->             nothing runs it
    <!-- tested by: tests/... -->        another test runs it
    <!-- below tested by: tests/... -->  another test runs it and everything under it
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^(?P<above>(?:<!--[^\n]*-->\n)*)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.M | re.S)
COMMENT = re.compile(r"<!-- ([\w ]+?)(?:: (.*?))? -->")
COMMAND = re.compile(r"^(?:\$ |(?:paramtool|python3?|pip|make|git|uv|uvx) [\w./-])", re.M)
"""A line that somebody could type."""


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: Path
    line: int
    language: str
    text: str
    said: dict[str, str]
    """{what a comment above the block says: its value}."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run_here(self) -> bool:
        """Whether it is a program or has commands, and nothing else is said of it."""
        return self.language in ("python", "console") and not self.said.keys() & {"not run", "tested by"}

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """(command, the lines that it prints) of a block of the language `console`."""
        for part in re.split(r"^\$ ", self.text, flags=re.M)[1:]:
            line, *printed = re.sub(r"\\\n *", "", part).rstrip("\n").split("\n")
            yield line, [text for text in printed if text]


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        said = {key: value or "" for key, value in COMMENT.findall(match["above"])}
        below = re.findall(r"^<!-- below tested by: (.*?) -->$", text[: match.start("language")], re.M)
        if below:
            said["tested by"] = below[-1]
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(page, line, match["language"], match["text"], said))
    return found
