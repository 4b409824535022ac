"""A name of a class means one thing in all of the package."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLASS = re.compile(r"\s*class (\w+)[(:]")


def test_no_two_classes_have_one_name() -> None:
    """Neither do a public and a private one: `Request` and `_Request` are one word for two ideas."""
    found = defaultdict(set)
    for path in sorted((ROOT / "paramtool").rglob("*.py")):
        for k, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if name := CLASS.match(line):
                found[name[1].lstrip("_")].add(f"{path.relative_to(ROOT)}:{k}")
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
    assert len(found) > 200
