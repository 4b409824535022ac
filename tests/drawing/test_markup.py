"""Escaping, in the one place where it is: whatever a name holds, it is text afterwards."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.drawing import palette
from paramtool.drawing.markup import MAX_NAME, Markup, data, readable, short, tag, written
from paramtool.drawing.palette import HEAT, PAGE, TINTS
from paramtool.drawing.strips import Ribbon, Segment, heat, ribbons, ruler, stacked, text_strip
from tests.drawing.contrast import contrast

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


def test_only_strangers_words_lose_their_middle() -> None:
    """A long path of a figure stays whole; a long name as an attribute does not."""
    long = "M0 0h1" * 4 * MAX_NAME
    assert tag("path", d=Markup(long)) == f'<path d="{long}"/>' and len(tag("path", d=long)) < len(long)


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


@given(st.integers(1, 40).flatmap(lambda wide: st.lists(st.lists(st.integers(0, 7), min_size=wide, max_size=wide),
                                                         min_size=1, max_size=40)))  # fmt: skip
def test_heat_has_each_cell_once(rows: list[list[int]]) -> None:
    """Neighbours of one colour are one shape; all shapes together are all cells, each in its colour."""
    made = ElementTree.fromstring(heat(rows, "cells"))
    assert made.get("viewBox") == f"0 0 {len(rows[0])} {len(rows)}"
    nothing = made.find("rect")
    seen = [[-1 if nothing is None else 0] * len(rows[0]) for _ in rows]
    for path in made.iter("path"):
        level = int(path.get("class", "")[1:])
        for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", path.get("d", "")):
            for column in range(int(x), int(x) + int(width)):
                assert seen[int(y)][column] <= 0
                seen[int(y)][column] = level
        assert re.fullmatch(r"(M\d+ \d+h(\d+)v1h-\2z)+", path.get("d", ""))
    assert seen == rows


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.data())
def test_ribbons_lead_lines_to_their_place(above: list[int], data: st.DataObject) -> None:
    """Upper ends tile the tensors above, lower ends the one below, to scale, whatever the order."""
    order = data.draw(st.permutations(range(len(above))))
    found, to = [], 0
    for k in order:
        found.append(Ribbon((k, 0), (0, to), above[k], "blue", "up", "down", f"{k}"))
        to += above[k]
    made = ElementTree.fromstring(ribbons(above, [to], found, "a map"))
    below = 0.0
    for k, one in zip(order, made.findall("g"), strict=True):
        upper, lower = ((float(rect.get("x", 0)), float(rect.get("width", 0))) for rect in one.findall("rect"))
        assert one.findtext("title") == f"{k}"
        assert lower == (pytest.approx(below, abs=0.02), pytest.approx(1040 * above[k] / to, abs=0.02))
        frame = made.findall("rect")[k]
        assert upper == (float(frame.get("x", 0)), pytest.approx(float(frame.get("width", 0)), abs=0.02))
        below += lower[1]


def test_a_ruler_is_to_scale_and_shows_what_is_tiny() -> None:
    made = ElementTree.fromstring(
        ruler([Segment(0, 500, "a", "blue"), Segment(500, 501, "b", "red"), Segment(501, 1000, "c", "blank", "unused")],
              1000, "a storage")
    )  # fmt: skip
    places = {
        one.findtext("title", "").partition(":")[0]: (float(rect.get("x", 0)), float(rect.get("width", 0)))
        for one in made.iter("g")
        for rect in one.findall("rect")[:1]
    }
    assert places["a"] == (0, 519) and places["b"][1] >= 1 and places["c"][0] == 521.04
    assert any(rect.get("class") == "m-unused" for rect in made.iter("rect"))
    assert made.get("role") == "img" and made.findtext("title") == "a storage"


@given(st.tuples(*[st.integers(0, 10**6)] * 3), st.integers(3, 40))
def test_a_strip_of_text_never_hides_something(sizes: tuple[int, int, int], width: int) -> None:
    """Each part is there, in order, and none is further from its share than the others force it to be."""
    tints = ("green", "blank", "red")
    made = text_strip(stacked((tint, size, tint, "", "") for tint, size in zip(tints, sizes, strict=True)), width)
    assert len(made) == (width if any(sizes) else 0) and made == "".join(sorted(made, key="█▒░".index))
    for shade, size in zip("█▒░", sizes, strict=True):
        assert (shade in made) == (size > 0)
        assert not size or abs(made.count(shade) - size * width / sum(sizes)) <= 2
