"""The page of `report`, read by html5lib, which parses as the standard of HTML says; in strict mode, nothing is mended.

What is inside of SVG is HTML's foreign content, and its names are read as such.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramtool
from tests.commands.report_pages import STRANGE, split_and_fused, tied

html5lib = pytest.importorskip("html5lib", reason="html5lib is not installed: pip install --group test")


def parsed(page: Path) -> set[str]:
    """The names of its elements; an error of html5lib where a browser would have to mend the page."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    return {str(one.tag) for one in parser.parse(page.read_text(encoding="utf-8")).iter()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with ties, the same with other numbers, and one whose names would do something."""
    tied(tmp_path / "tied.pt")
    other = torch.load(tmp_path / "tied.pt")
    other["model"]["emb.weight"][3:9] += 0.5
    other["model"]["emb.weight"][0, 0] = float("nan")
    other["model"]["head.weight"] = other["model"]["head.weight"].clone()
    torch.save(other, tmp_path / "other.pt")
    state = {f"{one}.{one}.weight": torch.full((40, 40), float(k)) for k, one in enumerate(STRANGE)}
    torch.save(state | {f"{one} alias": state[f"{one}.{one}.weight"] for one in STRANGE}, tmp_path / "hostile.pt")
    torch.save({name: one + (one == 3.0) for name, one in state.items()}, tmp_path / "hostile2.pt")
    torch.save({}, tmp_path / "empty.pt")
    return tmp_path


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "names", [["tied"], ["empty"], ["hostile"], ["tied", "other"], ["hostile", "hostile2"]], ids=" ".join
)
def test_a_page_is_html(names: list[str], folder: Path) -> None:
    page = folder / "page.html"
    paramtool.report(*(folder / f"{name}.pt" for name in names), output=page)
    assert {"html", "head", "title", "body", "style"} <= parsed(page)


def test_maps_and_rulers_are_html(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    paramtool.report(*split_and_fused(tmp_path), output=page)
    assert any(name.endswith("svg") for name in parsed(page))


def test_the_judge_refuses_what_a_browser_mends(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html><html lang=en><head><title>x</title></head><body><p><div></p></body></html>")
    with pytest.raises(html5lib.html5parser.ParseError):
        parsed(page)
