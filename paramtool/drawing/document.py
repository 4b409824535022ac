"""A page of sections: one file that needs no network, and whose policy allows none.

The policy names the page's one script and one style by their digests, so nothing else runs, even if a stranger's words
were written without an escape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from paramtool.drawing import palette
from paramtool.drawing.markup import EMPTY, Markup, breakable, joined, readable, tag, written
from paramtool.drawing.treemap import TreemapNode, as_data, picture
from paramtool.errors import plural

BEGINS = '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
"""How every page begins."""
MADE_BY = "Made by paramtool from "
"""In the foot of every page."""


class PageSection(NamedTuple):
    """A chapter of a page."""

    id: str
    title: str
    body: Markup


NAME, NUMBER, WORDS = "name", "n", None
"""What a column of a table has."""
MAX_ROWS = 2000
"""Rows of a table."""


def page(title: str, head: Markup, sections: Sequence[PageSection], foot: Markup) -> str:
    """The whole page; `head` is below its title."""
    style, script = palette.css() + _file("page.css"), _file("page.js")
    contents = joined(tag("li", tag("a", one.title, href=f"#{one.id}")) for one in sections)
    name = readable(title)
    body = joined((
        tag("a", "To the contents", href="#main", class_="skip"),
        _patterns(),
        tag("header", head, tag("nav", tag("ul", contents), class_="toc", aria_label="Sections")),
        tag("main", joined(map(_section, sections)), id="main", tabindex="-1"),
        tag("footer", foot),
        Markup(f"<script>{script}</script>"),
    ))  # fmt: skip
    return (
        f"{BEGINS}{tag('meta', http_equiv='Content-Security-Policy', content=_policy(style, script))}\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        '<meta name="referrer" content="no-referrer"/>\n'
        f"{tag('title', name)}\n<style>{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _file(name: str) -> str:
    """What is inlined, also where the package is in a zip."""
    from pkgutil import get_data

    return (get_data("paramtool.drawing", name) or b"").decode()


def _policy(style: str, script: str) -> str:
    """Nothing is fetched from anywhere, and only this script and this style count (CSP 3, hash-source)."""
    from base64 import b64encode
    from hashlib import sha256

    one, other = (b64encode(sha256(text.encode()).digest()).decode() for text in (script, style))
    return (
        f"default-src 'none'; script-src 'sha256-{one}'; style-src 'sha256-{other}'; base-uri 'none'; "
        "form-action 'none'"
    )


def _section(one: PageSection) -> Markup:
    heading = f"{one.id}-title"
    return tag("section", tag("h2", one.title, id=heading), one.body, id=one.id, aria_labelledby=heading)


def _patterns() -> Markup:
    """The patterns of shared, equal and unused bytes, which figures refer to."""
    line, dot = tag("path", d="M-2 2l4 -4M0 8l8 -8M6 10l4 -4", class_="p-line"), tag("circle", cx=3, cy=3, r=1.3,
                                                                                   class_="p-dot")  # fmt: skip
    cross = joined((line, tag("path", d="M-2 6l4 4M0 0l8 8M6 -2l4 4", class_="p-line")))
    return tag(
        "svg",
        tag("defs", *(
            tag("pattern", inner, id=f"p-{name}", width=size, height=size, patternUnits="userSpaceOnUse")
            for name, inner, size in (("shared", line, 8), ("equal", dot, 6), ("unused", cross, 8))
        )),
        width=0, height=0, aria_hidden="true", class_="hidden",
    )  # fmt: skip


def treemap(root: TreemapNode, label: str) -> Markup:
    """A treemap whose modules open."""
    return tag(
        "div", tag("div", class_="crumbs", role="group", aria_label="Opened modules"),
        tag("div", picture(root, f"{label}: {root.words}"), class_="stage"),
        tag("p", class_="about"), tag("p", class_="status hidden", role="status"),
        Markup(f'<script type="application/json">{as_data(root)}</script>'), class_="treemap", data_map=label,
    )  # fmt: skip


def figure(picture: Markup, caption: str, *below: Markup) -> Markup:
    """A figure with what is said of it above."""
    return tag("figure", tag("figcaption", caption), picture, *below)


def table(columns: Mapping[str, str | None], rows: Iterable[Sequence[str]], caption: str, more: str = "") -> Markup:
    """A table of the first rows; where there are others, its caption says so, and `more`."""
    made = list(rows)
    cut = f"; the first {MAX_ROWS:,} of {len(made):,}{more}" if len(made) > MAX_ROWS else ""
    heads = (tag("th", one, scope="col", class_=kind if kind == NUMBER else None) for one, kind in columns.items())
    body = joined(tag("tr", *map(_cell, columns.values(), row)) for row in made[:MAX_ROWS])
    return tag("table", tag("caption", f"{caption}{cut}"), tag("thead", tag("tr", *heads)), tag("tbody", body))


def _cell(kind: str | None, text: str) -> Markup:
    return tag("td", breakable(text) if kind == NAME else text, class_=kind)


def as_table(columns: Mapping[str, str | None], rows: Iterable[Sequence[str]], caption: str, more: str = "") -> Markup:
    """What a figure shows as a table, when somebody asks for it."""
    return folded("The same as a table", table(columns, rows, caption, more))


def figures(lead: str, drawn: Iterable[Markup], hidden: int, what: str, *below: Markup) -> Markup:
    """What is said of some figures, these, how many more there are, and what is below."""
    more = f"{plural(hidden, f'more {what}')} not drawn." if hidden > 0 else ""
    return joined((paragraph(lead, "lead"), *drawn, paragraph(more), *below))


def folded(summary: str, *body: Markup, is_open: bool = False) -> Markup:
    """What is shown when somebody asks for it."""
    scroll = tag("div", *body, class_="scroll", tabindex="0", role="group", aria_label=readable(summary, 80))
    return tag("details", tag("summary", summary), scroll, open=is_open)


def searched(what: str, body: Markup) -> Markup:
    """A folded table with a field that leaves only the rows that have a text; the field is shown where scripts run."""
    field = tag("input", type="search", autocomplete="off")
    label = tag("label", tag("span", what), field, tag("span", role="status"))
    return tag("div", tag("div", label, class_="filter", hidden=True), body, data_filtered=True)


def paragraph(text: str, class_: str | None = None) -> Markup:
    """A paragraph, if there is a text."""
    return tag("p", text, class_=class_) if text else EMPTY


def code(text: str) -> Markup:
    """A name, or a command."""
    return tag("code", written(text))
