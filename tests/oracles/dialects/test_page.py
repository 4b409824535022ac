"""docs/proofs-dialects.md: it has every family and every key, nothing is wrong, and a wrong verdict would show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracles.dialects import _page, families, prove, systems
from tests.oracles.dialects.models import NAMES

PAGE = Path(__file__).parents[3] / "docs/proofs-dialects.md"
FAMILY = {
    "family": "GPT-2", "what": "unfuse qkv", "judge": "our equations", "error": 1e-7, "wrong": {"qvk": 0.5},
    "holds": True, "source": "paramtool", "bytes": "ok", "refused": "ok",
}  # fmt: skip
KEY = {"key": "mixtral", "experts": True, "class": "M", "changed": 4, "verdicts": {"odd": "ok", "square": "ok"}}


def rows(head: str) -> dict[str, list[list[str]]]:
    """{first cell: its lines} of the table whose first column is called so."""
    text = PAGE.read_text(encoding="utf-8")
    lines = text[text.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    found: dict[str, list[list[str]]] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found.setdefault(cells[0].strip("`"), []).append(cells)
    return found


def test_every_family_is_there() -> None:
    found = rows("family")
    assert found.keys() >= {*NAMES}
    said = " ".join(cells[1] for lines in found.values() for cells in lines)
    assert all(f"--to {system.dialect} " in said for system in systems.SYSTEMS)


def test_every_key_is_there() -> None:
    """All that the table of the version that it speaks of has; and all of experts are built."""
    found = rows("key")
    assert len([key for key in found if found[key][0][2] == "yes"]) >= 58
    if f"transformers {prove.transformers.__version__}" in PAGE.read_text(encoding="utf-8"):
        assert found.keys() >= families.converted().keys()


def test_nothing_is_wrong() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "WRONG" not in text and "nan" not in text
    assert all(float(cells[5]) < prove.proofs.BOUND for lines in rows("family").values() for cells in lines)


@pytest.mark.parametrize(
    "line",
    [
        {**FAMILY, "bytes": "WRONG: Wrong: x"},
        {**FAMILY, "refused": "WRONG: AssertionError: not refused"},
        {**FAMILY, "holds": False},
        {**KEY, "verdicts": {"odd": "ok", "square": "WRONG: Wrong: x"}},
    ],
)
def test_a_wrong_verdict_is_seen(line: prove.Line) -> None:
    assert prove.is_wrong(line) and not prove.is_wrong(FAMILY) and not prove.is_wrong(KEY)


def test_the_tables() -> None:
    not_built = {**KEY, "key": "x|y", "why": "ValueError: no"}
    result = {"versions": "torch 1", "mxnet": False, "families": [FAMILY], "keys": [KEY, not_built]}
    text = _page.page(result)
    assert "| GPT-2 | unfuse qkv | paramtool | ok | our equations | 1.0e-07 | 1 | 0.50 | ok |" in text
    assert "| `mixtral` | M | yes | 4 | ok | ok |" in text
    assert "1 of 2 were built" in text and "| `x\\|y` | ValueError: no |" in text
