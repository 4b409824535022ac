"""Escaping, in the one place where it is: whatever a name holds, it is text afterwards."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.drawing import palette
from paramtool.drawing.markup import Markup, data, readable, short, tag, written
from paramtool.drawing.palette import HEAT, PAGE, TINTS, contrast
from paramtool.drawing.strips import HeatBin, Segment, heat, ruler, text_bar

STRANGE = st.text(st.characters() | st.sampled_from("<>&\"'/`\u202e\u2066\x1b\x00\ud800"), max_size=60)


@given(STRANGE)
def test_text_is_text_in_elements_and_in_attributes(text: str) -> None:
    """Somebody else's parser reads back what was written, and no more elements."""
    made = ElementTree.fromstring(tag("p", text, title=text))
    assert made.text == (readable(text) or None) and made.get("title") == readable(text)
    assert len(made) == 0 and made.keys() == ["title"]


@given(STRANGE)
def test_what_cannot_be_seen_is_shown(text: str) -> None:
    assert readable(text).isprintable()
    readable(text).encode()


@given(st.recursive(STRANGE, lambda inner: st.lists(inner, max_size=4), max_leaves=8))
def test_data_inside_a_script_stays_there(value: object) -> None:
    """A parser of HTML finds one script with the same value in it."""
    made = data(value)
    assert json.loads(made) == value and made.isascii()

    class Scripts(HTMLParser):
        found: list[tuple[str, str]] = []  # noqa: RUF012 - one parser, used once

        def handle_data(self, text: str) -> None:
            self.found.append((self.lasttag or "", text))

    parser = Scripts()
    parser.found = []
    parser.feed(f'<script type="application/json">{made}</script>')
    parser.close()
    assert "".join(text for _, text in parser.found) == made and parser.lasttag == "script"


def test_markup_is_not_escaped_twice() -> None:
    assert written(tag("b", "<")) == "<b>&lt;</b>" and isinstance(tag("b"), Markup)


@given(STRANGE, st.integers(0, 40))
def test_a_short_text_has_no_more_letters_than_there_is_room_for(text: str, letters: int) -> None:
    made = short(text, letters)
    assert len(made) <= letters and made.isprintable()


# --- colours ---------------------------------------------------------------------------------------------------------

WORDS = ("ink", "soft", "accent", "bad", "warn", "good")


@pytest.mark.parametrize("side", ["light", "dark"])
def test_words_can_be_read(side: str) -> None:
    """WCAG 2.2, 1.4.3: 4.5 for text; on every tint there is the page's ink, on panels all words."""
    paper, panel, ink = (getattr(PAGE[name], side) for name in ("paper", "panel", "ink"))
    for word in WORDS:
        assert min(contrast(getattr(PAGE[word], side), back) for back in (paper, panel)) >= 4.5, word
    for name, shades in TINTS.items():
        assert contrast(ink, getattr(shades, side)) >= 4.5, name
    assert contrast(getattr(PAGE["strong"], side), paper) >= 3  # 1.4.11: lines that mean something


@pytest.mark.parametrize("side", ["light", "dark"])
def test_heat_goes_one_way(side: str) -> None:
    """From nothing to the largest difference: each colour is further from the page than the one before."""
    paper = getattr(PAGE["paper"], side)
    steps = [contrast(getattr(shades, side), paper) for shades in HEAT]
    assert steps == sorted(steps) and len(set(steps)) == len(steps)


def test_the_style_has_both_themes() -> None:
    style = palette.css()
    assert all(f"--{name}:{shades.light};" in style and f"--{name}:{shades.dark};" in style for name, shades in
               {**PAGE, **TINTS}.items())  # fmt: skip
    assert style.index("prefers-color-scheme:dark") < style.index(f"--ink:{PAGE['ink'].dark}")


# --- strips ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 7), min_size=1, max_size=200))
def test_a_strip_of_heat_has_each_bin_once(levels: list[int]) -> None:
    """Neighbours of one colour are one shape; the shapes of all colours together have the strip's length."""
    made = ElementTree.fromstring(heat([HeatBin(level, "") for level in levels], "rows", width=200.0, height=1.0))
    step = 200.0 / len(levels)
    seen = [-1] * len(levels)
    for path in made.iter("path"):
        level = int(path.get("class", "")[1:])
        for run in path.get("d", "").split("z"):
            if run:
                start, _, rest = run[1:].partition(" 0h")
                first, count = round(float(start) / step), round(float(rest.partition("v")[0]) / step)
                assert seen[first : first + count] == [-1] * count
                seen[first : first + count] = [level] * count
    assert seen == levels


def test_a_ruler_is_to_scale_and_shows_what_is_tiny() -> None:
    made = ElementTree.fromstring(
        ruler([Segment(0, 500, "a", "blue"), Segment(500, 501, "b", "red"), Segment(501, 1000, "c", "blank", "unused")],
              1000, "a storage", [(0, "0")])
    )  # fmt: skip
    places = {
        one.findtext("title", "").partition(":")[0]: (float(rect.get("x", 0)), float(rect.get("width", 0)))
        for one in made.iter("g")
        for rect in one.findall("rect")[:1]
    }
    assert places["a"] == (0, 519) and places["b"][1] >= 1 and places["c"][0] == 521.04
    assert any(rect.get("class") == "m-unused" for rect in made.iter("rect"))
    assert made.get("role") == "img" and made.findtext("title") == "a storage"


@given(st.floats(0, 1), st.integers(3, 40))
def test_a_bar_of_text_never_hides_something(share: float, width: int) -> None:
    made = text_bar(share, width)
    assert len(made) == width and ("█" in made) == (share > 0) and ("░" in made) == (share < 1)
