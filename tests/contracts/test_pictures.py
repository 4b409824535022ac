"""docs/pictures: what their script draws, with words for who does not see them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from paramtool.drawing.palette import PAGE, TINTS
from tests.drawing.contrast import contrast

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NAMES = sorted(path.stem for path in (DOCS / "pictures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn() -> dict[str, Callable[[], str]]:
    sys.path.insert(0, str(DOCS))
    try:
        from make_pictures import PICTURES
    finally:
        sys.path.remove(str(DOCS))
    return PICTURES


def test_every_picture_has_a_script(drawn: dict[str, Callable[[], str]]) -> None:
    assert sorted(drawn) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_what_its_script_draws(name: str, drawn: dict[str, Callable[[], str]]) -> None:
    """`python docs/make_pictures.py` would change nothing."""
    page = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    assert page == drawn[name](), "run: python docs/make_pictures.py"


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_says_what_it_shows(name: str) -> None:
    """It has a title and a description, and asks for nothing."""
    root = ElementTree.parse(DOCS / "pictures" / f"{name}.svg").getroot()
    assert root.tag == f"{SVG}svg" and root.get("role") == "img" and root.get("aria-labelledby") == "title desc"
    assert all(root.findtext(f"{SVG}{part}[@id='{part}']") for part in ("title", "desc"))
    text = ElementTree.tostring(root, encoding="unicode")
    assert not re.search(r"href|url\(|<script|@import", text)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_on_a_page(name: str) -> None:
    """With words for who does not see it: more than its name."""
    pages = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *DOCS.rglob("*.md")])
    alt = re.findall(rf"!\[([^\]]*)\]\([\w./]*{name}\.svg\)", pages)
    assert alt and all(len(words.split()) > 6 for words in alt)


def test_words_can_be_read_on_every_tint() -> None:
    """WCAG 2.2, 1.4.3: the ink on each tint, and soft words on cards and boxes, in both schemes."""
    for scheme in (0, 1):
        assert all(contrast(PAGE["ink"][scheme], shades[scheme]) >= 4.5 for shades in TINTS.values())
        assert all(contrast(PAGE["soft"][scheme], PAGE[under][scheme]) >= 4.5 for under in ("paper", "panel"))
        assert contrast(PAGE["strong"][scheme], PAGE["panel"][scheme]) >= 3  # 1.4.11: lines


def test_every_ratio_of_the_performance_page_is_drawn() -> None:
    """Those beside other tools, and those at the largest size beside a peer; the wish of a row is drawn as a line."""
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    plots = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "pictures").glob("performance-*.svg"))
    shown = set(re.findall(r">(\d+\.\d\d(?: to \d+\.\d\d)?)<", plots))
    rows = re.findall(r"^\|(.*)\|$", page.partition("<!-- benchmarks -->")[2], re.M)
    cells = [cell.strip() for row in rows for cell in row.split("|")[2:3]]
    ratios = {found[0] for cell in cells if (found := re.match(r"\d+\.\d\d(?: to \d+\.\d\d)?(?= \(|$)", cell))}
    assert len(ratios) > 15 and ratios <= shown
