"""The summary, rendered by markdown-it with HTML allowed: strangers' words are text in `code`, and nothing else."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given

from paramtool.findings import markdown
from paramtool.findings.report import CheckReport, kind, one_line
from paramtool.model.finding import Finding
from tests.findings.samples import HOSTILE, many, reports

OURS = {"h3", "p", "table", "thead", "tbody", "tr", "th", "td", "code", "strong", "br"}


class Page(HTMLParser):
    """Tags with their attributes, and the texts in `code`; neighbours are one."""

    def __init__(self, text: str, html: str | None = None) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.inside: list[str] = []
        self.codes: list[str] = []
        self.is_after_code = False
        self.outside = ""
        self.comments: list[str] = []
        self.feed(rendered(text) if html is None else html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))
        self.inside.append(tag)
        if tag == "code" and not self.is_after_code:
            self.codes.append("")
        self.is_after_code = False

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass
        self.is_after_code = tag == "code"

    def handle_data(self, data: str) -> None:
        self.is_after_code = False
        if "code" in self.inside:
            self.codes[-1] += data
        else:
            self.outside += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def rendered(text: str) -> str:
    """By markdown-it: tables and struck text as on GitHub, and raw HTML as it is."""
    from markdown_it import MarkdownIt

    return str(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text))


def cells(report: CheckReport) -> list[str]:
    """What has to be in `code`, in order."""
    found = [text for pair in report.errors.items() for text in pair]
    for one in report.failing_first:
        place = f"{one.place.path}:{one.place.line}" if one.place else ""
        found += [kind(one), one.path, place, one.message, one.allowed]
    return [one_line(text, markdown.MAX_CELL) for text in found if text]


def spaces(text: str) -> str:
    """As a browser shows it."""
    return " ".join(text.split())


@given(reports())
def test_strangers_words_are_code(report: CheckReport) -> None:
    """All of them come back, outside of them are our words alone, and no tag has an attribute."""
    page = Page("\n".join(markdown.lines(report)))
    assert {tag for tag, _ in page.tags} <= OURS
    assert all(not [key for key, _ in attrs if key != "style"] for _, attrs in page.tags) and not page.comments
    assert [spaces(text) for text in page.codes] == [spaces(text) for text in cells(report)]
    rows = len(report.findings) + len(report.errors)
    assert sum(tag == "tr" for tag, _ in page.tags) == (rows + 1 if rows else 0)
    assert page.outside.translate(dict.fromkeys(map(ord, "█▒░"))).isascii()
    assert not set("@#:<>`|") & set(page.outside)


def test_the_summary_is_bounded() -> None:
    """Ten thousand findings, and a thousand with the longest names: fewer bytes than GitHub takes."""
    hostile = [Finding("changed", "|" * 10**5, id="PT201", path="/" * 10**5) for _ in range(1000)]
    for report in (many(10_000), CheckReport(hostile, ["/" * 10**5])):
        text = "\n".join(markdown.lines(report))
        assert len(text.encode()) < 1_000_000
        shown = text.count("PT201")
        assert 100 < shown <= markdown.MAX_ROWS
        assert f"Not shown: {len(report.findings) - shown} more." in text


@pytest.mark.parametrize("name", [name for name in HOSTILE if any(c in name for c in "<`![*@|~")])
def test_the_samples_would_be_seen(name: str) -> None:
    """The reader of pages above can find something: escaped as HTML alone, most names are more than text."""
    page = Page(f"| | |\n|---|---|\n| {markdown.code(name)} | |")
    assert {tag for tag, _ in page.tags} <= OURS and len(page.codes) == 1


def test_a_tag_is_found() -> None:
    """And so is a link, if it is not escaped."""
    page = Page("| a |\n|---|\n| <img src=x> [l](http://e.x) |")
    assert {"img", "a"} <= {tag for tag, _ in page.tags}


def test_a_bar_of_the_files_that_pass() -> None:
    """Three of four: one has an error, a warning fails none, and what is allowed fails none."""
    found = [
        Finding("missing:a", "not there", path="a", id="PT202"),
        Finding("unused-bytes>1", "2 bytes", path="b", severity="warning"),
        Finding("missing:c", "not there", path="c", allowed="until 2030-01-01"),
    ]
    text = "\n".join(markdown.lines(CheckReport(found, ["a", "b", "c", "d"])))
    assert "███████████████░░░░░ 3 of 4 pass, 1 fails" in text
    broken = CheckReport(found[:1], ["a", "b", "c", "d"], {"d": "no such file"})
    assert "▒▒▒▒▒ 2 of 4 pass, 1 fails, 1 not checked" in "\n".join(markdown.lines(broken))
    assert "pass" not in "\n".join(markdown.lines(CheckReport(found[:1], ["a"])))
