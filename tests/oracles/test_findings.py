"""Findings as other people's programs read them: a Markdown renderer, and the schema of SARIF.

`make oracles` fetches the schema (npm's @microsoft/jest-sarif) into build/sarif.
"""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from markdown_it import MarkdownIt

from paramtool.findings import markdown, sarif
from paramtool.model.finding import Finding
from tests.findings.test_forms import HOSTILE, LISTS

SCHEMAS = sorted((Path(__file__).parents[2] / "build" / "sarif").glob("package/lib/schemas/sarif-2.1.0*.json"))


class Tags(HTMLParser):
    """The tags of a page, and the text of its code spans."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.code: list[str] = []
        self.inside = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        self.inside = tag == "code"
        self.code += [""] if self.inside else []

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.code[-1] += data


@given(LISTS)
def test_no_tag_link_or_image_comes_from_a_name(findings: list[Finding]) -> None:
    page = Tags(MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(markdown.text(findings, [])))
    assert page.tags <= {"h3", "p", "ul", "li", "strong", "code"}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_shown_whole(name: str) -> None:
    finding = Finding("changed", f"{name} changed", (name,), id="PT201", path="m.pt")
    page = Tags(MarkdownIt("commonmark").render(markdown.text([finding], ["m.pt"])))
    assert f"{markdown.printable(name)} changed" in page.code


@pytest.mark.skipif(not SCHEMAS, reason="make oracles fetches the schema of SARIF")
@given(LISTS)
def test_sarif_is_valid_by_its_schema(findings: list[Finding]) -> None:
    schema = json.loads(SCHEMAS[0].read_text(encoding="utf-8"))
    jsonschema.Draft4Validator(schema).validate(json.loads(sarif.text(findings, ["a", "b c"], "1.0")))
