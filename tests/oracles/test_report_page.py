"""Pages of `report` in a real Chromium: nothing is fetched, modules open by mouse and keys, names run nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import paramtool
from paramtool.commands.report.modules import separator_of, stored, tree
from paramtool.drawing.markup import number
from paramtool.drawing.treemap import boxes
from tests.commands.report_pages import STRANGE, headers_only, tied
from tests.oracles.browser import BROWSER, DRIVER, Browser, browser

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="needs chromium and chromedriver: apt-get install chromium chromium-driver"
)
FOCUS = "return document.activeElement.getAttribute('aria-label') || document.activeElement.tagName"
CRUMBS = "return document.querySelector('.crumbs').textContent"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """one.html, two.html, many.html (1,000 tensors) and hostile.html."""
    folder = tmp_path_factory.mktemp("pages")
    tied(folder / "tied.pt")
    other = torch.load(folder / "tied.pt")
    other["model"]["emb.weight"][3:9] += 0.5
    torch.save(other, folder / "other.pt")
    headers_only(folder / "many.safetensors", 1000)
    state = {f"{one}.{one}.weight": torch.full((40, 40), float(k)) for k, one in enumerate(STRANGE)}
    state |= {f"{one} alias": state[f"{one}.{one}.weight"] for one in STRANGE}
    torch.save(state, folder / "hostile.pt")
    torch.save({name: one + (one == 3.0) for name, one in state.items()}, folder / "hostile2.pt")
    paramtool.report(folder / "tied.pt", output=folder / "one.html", equal=True)
    paramtool.report(folder / "tied.pt", folder / "other.pt", output=folder / "two.html")
    paramtool.report(folder / "many.safetensors", output=folder / "many.html")
    paramtool.report(folder / "hostile.pt", folder / "hostile2.pt", output=folder / "hostile.html", equal=True)
    return folder


def opened(window: Browser, page: Path, width: int = 1280, scheme: str = "light") -> None:
    """Open a page, and make sure that it asks for nothing and says nothing on the console."""
    window.size(width)
    window.prefers(scheme)
    window.console(), window.requests()
    window.open(page)
    assert window.requests() == [page.resolve().as_uri()]
    assert window.console() == []


@pytest.mark.parametrize("page", ["one", "two", "many", "hostile"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (420, "dark")])
def test_a_page_opens(window: Browser, pages: Path, page: str, width: int, scheme: str) -> None:
    """Without a message, without a request, and without scrolling sideways but inside figures."""
    opened(window, pages / f"{page}.html", width, scheme)
    assert window.run("return document.documentElement.scrollWidth") <= width
    assert window.run("return document.querySelectorAll('.stage > svg[role=group]').length") == (
        2 if page in ("two", "hostile") else 1
    )
    for svg in window.run("return [...document.querySelectorAll('main svg[role=img]')].map(one => one.ariaLabel)"):
        assert svg


def test_the_script_lays_out_what_python_lays_out(window: Browser, pages: Path) -> None:
    for name, file in (("one", "tied.pt"), ("many", "many.safetensors")):
        opened(window, pages / f"{name}.html")
        width, height = window.run("const one = document.querySelector('.stage'); "
                                   "return [one.clientWidth, one.firstChild.viewBox.baseVal.height]")  # fmt: skip
        drawn = window.run(
            "return [...document.querySelectorAll('.stage .box')].map("
            "one => ['x', 'y', 'width', 'height'].map(key => +one.getAttribute(key)))"
        )
        found = paramtool.inspect(pages / file, equal=name == "one")
        root = tree(stored(found), separator_of(found.checkpoint.entries))
        expected = [
            [float(number(side)) for side in (one.x, one.y, max(0.5, one.width - 1), max(0.5, one.height - 1))]
            for one in boxes(root, width, height)
        ]
        assert len(drawn) == len(expected) > 5
        assert drawn == [pytest.approx(one, abs=0.011) for one in expected]


def test_keys_open_modules_and_go_back(window: Browser, pages: Path) -> None:
    opened(window, pages / "one.html")
    window.run("document.querySelector('.stage [tabindex=\"0\"]').focus()")
    first = window.run(FOCUS)
    assert first.startswith("model, a module, ")
    window.press("Enter")
    assert "model" in window.run(CRUMBS) and window.run(FOCUS) != first
    inside = window.run(FOCUS)
    moved = set()
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
        window.press(key)
        moved.add(window.run(FOCUS))
    assert moved - {inside}, "arrow keys move"
    assert window.run("return document.querySelectorAll('.stage [tabindex=\"0\"]').length") == 1
    assert window.run("return document.querySelector('.status').textContent").startswith("model: ")
    window.press("Escape")
    assert window.run(FOCUS) == first and window.run(CRUMBS).startswith("everything")
    assert window.console() == []


def test_a_click_opens_a_module_and_a_crumb_goes_back(window: Browser, pages: Path) -> None:
    opened(window, pages / "one.html")
    x, y = window.run(
        "const one = [...document.querySelectorAll('.stage g[role=button]')].find(g => g.node.name === 'ema.emb' || "
        "g.node.name.startsWith('ema')); one.scrollIntoView({block: 'center'});"
        "const box = one.querySelector('rect').getBoundingClientRect(); return [box.x + box.width / 2, box.y + 8]"
    )
    window.click(x, y)
    assert "ema" in window.run(CRUMBS).partition("›")[2]
    window.run("document.querySelector('.crumbs button').click()")
    assert window.run(CRUMBS).startswith("everything ·")


def test_the_field_filters_the_table(window: Browser, pages: Path) -> None:
    opened(window, pages / "one.html")
    shown = window.run(
        "const field = document.querySelector('input[data-filter]'); field.value = 'RNN';"
        "field.dispatchEvent(new Event('input'));"
        "return [...document.querySelectorAll('#all-tensors tbody tr')].filter(one => !one.hidden).length"
    )
    assert shown == 4


def test_names_run_nothing(window: Browser, pages: Path) -> None:
    """No element of a name, at the start and in every opened module; and the policy stops what escaping would miss."""
    opened(window, pages / "hostile.html")
    title = window.run("return document.title")
    window.run(
        "for (const g of document.querySelectorAll('.stage g')) g.dispatchEvent(new Event('click', {bubbles: true}))"
    )
    assert window.run("return document.title") == title != "ran"
    assert window.run("return document.querySelectorAll('img, b:not(.findings b), iframe, object, embed').length") == 0
    scripts = "return [...document.querySelectorAll('script')].filter(one => !one.type).length"
    assert window.run(scripts) == 1 and window.console() == []
    window.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\"><svg/onload=x()>');"
        "const one = document.createElement('script'); one.textContent = 'document.title = \"ran\"';"
        "document.body.append(one)"
    )
    assert window.run("return document.title") == title
    messages = window.console()
    assert messages and all("Content Security Policy" in one for one in messages)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["one", "two"])
def test_the_contrast_of_words(window: Browser, pages: Path, page: str, scheme: str) -> None:
    """Chromium's computed colours of every text outside figures, on the background behind it."""
    opened(window, pages / f"{page}.html", scheme=scheme)
    worst = window.run("""
        const light = (text) => { const [r, g, b] = text.match(/[0-9.]+/g).map((one) => one / 255)
            .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const behind = (one) => { for (; one; one = one.parentElement) {
            const found = getComputedStyle(one).backgroundColor;
            if (found !== "rgba(0, 0, 0, 0)") return found; } return "rgb(255, 255, 255)"; };
        let worst = 21;
        for (const one of document.querySelectorAll("h1, h2, h3, p, dt, dd, small, li, a, td, th, summary")) {
            const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
            worst = Math.min(worst, (a + 0.05) / (b + 0.05));
        }
        return worst;
    """)
    assert worst >= 4.5


def test_it_prints_light_and_whole(window: Browser, pages: Path) -> None:
    opened(window, pages / "two.html", scheme="dark")
    window.prefers("dark", media="print")
    assert window.run("return getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert window.run("return getComputedStyle(document.querySelector('nav.toc')).display") == "none"
    assert window.run("return document.documentElement.scrollWidth <= innerWidth")
    assert window.pdf().startswith(b"%PDF-")
    window.prefers()
