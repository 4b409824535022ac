"""docs/pictures in a real Chromium: words do not meet, stay on the card, are large enough, and follow the scheme."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from tests.oracles.browser import BROWSER, DRIVER, Browser, browser

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="needs chromium and chromedriver: apt-get install chromium chromium-driver"
)
PICTURES = sorted((Path(__file__).resolve().parents[2] / "docs" / "pictures").glob("*.svg"))
PHONE = 386
"""Pixels that a picture has on a page of the site where the window has 420."""
WORDS = """return [...document.querySelectorAll('text')].map(one => {
    const box = one.getBoundingClientRect(), size = parseFloat(getComputedStyle(one).fontSize);
    return [one.textContent, box.left, box.top + size * .2, box.right, box.bottom - size * .2, size];
})"""
"""Each word's box, without the room above and below its letters."""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_words_do_not_meet(window: Browser, path: Path) -> None:
    window.size(600, 1600)
    window.open(path)
    scale, right, bottom = window.run(
        "const box = document.documentElement.getBoundingClientRect();"
        "return [box.width / document.documentElement.viewBox.baseVal.width, box.right, box.bottom]"
    )
    words = window.run(WORDS)
    assert words
    for text, *box, size in words:
        assert box[0] >= 10 and box[2] <= right - 10 and box[3] <= bottom - 5, text
        assert size * PHONE / 480 >= 9.5, f"{text}: too small on a phone"
    assert scale == pytest.approx(1.25)
    for (a, left, top, to, low, _), (b, left2, top2, to2, low2, _) in combinations(words, 2):
        assert to <= left2 or to2 <= left or low <= top2 or low2 <= top, f"{a!r} and {b!r}"


@pytest.mark.sample(4)
@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_follows_the_scheme_of_its_page(window: Browser, path: Path, scheme: str, tmp_path: Path) -> None:
    """Of the page, and not of the system: the site has a switch of its own, and sets `color-scheme`."""
    window.prefers("dark" if scheme == "light" else "light")
    window.size(600)
    page = tmp_path / "page.html"
    page.write_text(f"<body style='color-scheme: {scheme}; margin: 0'><img src='{path.as_uri()}'>")
    window.open(page)
    window.picture(tmp_path / "seen.png")
    from matplotlib.image import imread

    brightness = imread(tmp_path / "seen.png")[20:60, 4:12, :3].mean()  # the card, left of all words
    assert brightness > 0.9 if scheme == "light" else brightness < 0.2
