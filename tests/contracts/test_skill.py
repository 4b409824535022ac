"""The file for coding agents says what the help says."""

from __future__ import annotations

import sys
from pathlib import Path

from paramtool.cli.main import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_skill_is_made_from_the_help() -> None:
    """`python docs/make_skill.py` would change nothing."""
    sys.path.insert(0, str(DOCS))
    try:
        from make_skill import PAGE, document
    finally:
        sys.path.remove(str(DOCS))
    text = document()
    assert Path(PAGE).read_text(encoding="utf-8") == text, "run: python docs/make_skill.py"
    assert all(f"paramtool {name} " in text or f"paramtool {name}\n" in text for name in COMMANDS)
