"""docs/layouts.md is what the tables say."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_document_is_made_from_the_tables() -> None:
    """`python docs/make_layouts.py` would change nothing."""
    sys.path.insert(0, str(DOCS))
    try:
        from make_layouts import document
    finally:
        sys.path.remove(str(DOCS))
    assert (DOCS / "layouts.md").read_text() == document(), "run: python docs/make_layouts.py"
