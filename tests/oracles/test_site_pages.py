"""Every page of the site in a real Chromium, at the widths of a phone and of a laptop, in light and in dark.

`make site` builds the site and runs this; PARAMTOOL_SITE is the folder of the built site.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import pytest

from tests.oracles.browser import AXE, BROWSER, DRIVER, Browser, browser, violations

SITE = Path(os.environ.get("PARAMTOOL_SITE", "")).resolve() if os.environ.get("PARAMTOOL_SITE") else None
PAGES = sorted(path.parent.relative_to(SITE).as_posix() for path in SITE.rglob("index.html")) if SITE else []
WIDTHS = (390, 1280)
SCHEMES = {"light": "default", "dark": "slate"}
"""What the system prefers, and the theme's name of it."""
THEME = {
    "aria-dialog-name": "the search of the theme is a dialog without a name",
    "landmark-unique": "the script of the theme puts a <nav> at every block of code",
    "scrollable-region-focusable": "the browser itself lets keys scroll code and tables that are too wide",
}
"""Rules of axe-core that the elements of mkdocs-material break on every page, and no style sheet can mend."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (BROWSER and DRIVER), reason="needs chromium and chromedriver: apt-get install chromium chromium-driver"
    ),
    pytest.mark.skipif(not SITE, reason="needs the built site in PARAMTOOL_SITE: make site"),
]

SEEN = """
    const visible = (one) => one.checkVisibility() && one.getBoundingClientRect().width > 0;
    const images = [...document.querySelectorAll("article img")];
    const wide = document.documentElement.scrollWidth > innerWidth;
    return {
        scheme: document.body.dataset.mdColorScheme,
        titles: [...document.querySelectorAll("h1")].filter(visible).length,
        wide: !wide ? [] : [...document.querySelectorAll("article *")]
            .filter((one) => one.getBoundingClientRect().right > innerWidth).map((one) => one.outerHTML.slice(0, 200)),
        scrolls: wide,
        empty: images.filter((one) => !one.complete || !one.naturalWidth || !one.clientWidth).map((one) => one.src),
        silent: images.filter((one) => one.alt.trim().length < 10).map((one) => one.src),
        cut: images.filter((one) => one.getBoundingClientRect().right > innerWidth).map((one) => one.src),
    };
"""
LINKS = """
    const here = [...document.querySelectorAll("a[href]")].map((one) => new URL(one.href));
    return {
        ids: [...document.querySelectorAll("[id], a[name]")].map((one) => one.id || one.name),
        links: here.filter((one) => one.origin === location.origin).map((one) => one.pathname + one.hash),
    };
"""


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the browser says what it did not get."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the site is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as made:
        clear = "try { localStorage.clear() } catch {}"  # of a scheme that was chosen
        made.devtools("Page.addScriptToEvaluateOnNewDocument", source=clear)
        yield made


def opened(window: Browser, address: str, page: str, width: int, scheme: str) -> None:
    """Open a page; it writes nothing to the console, and fetches nothing from elsewhere."""
    window.size(width)
    window.prefers(scheme)
    window.console(), window.requests()
    window.go(f"{address}/{page}/" if page != "." else f"{address}/")
    asked = window.requests()
    assert asked and [one for one in asked if not one.startswith((address, "data:", "blob:"))] == []
    assert window.console() == []


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_page_is_whole(window: Browser, address: str, page: str, scheme: str) -> None:
    """One title, pictures that are there and described, and no scrolling sideways but inside code and tables."""
    opened(window, address, page, WIDTHS[1], scheme)
    for width in WIDTHS:
        window.size(width)
        seen = window.run(SEEN)
        assert seen == {
            "scheme": SCHEMES[scheme], "titles": 1, "wide": [], "scrolls": False, "empty": [], "silent": [], "cut": [],
        }, width  # fmt: skip
    assert window.console() == []


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core in build/axe: make build/axe/stamp, with npm")
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing(window: Browser, address: str, page: str, width: int, scheme: str) -> None:
    """WCAG 2.2 A and AA and the best practices, as axe-core judges them, but for the theme's own elements."""
    opened(window, address, page, width, scheme)
    assert [one for one in violations(window) if one.partition(":")[0] not in THEME] == []


def test_links_lead_somewhere(window: Browser, address: str) -> None:
    """Every link to a page of the site, and every anchor, as the browser resolves them."""
    assert SITE
    found = {}
    for page in PAGES:
        opened(window, address, page, WIDTHS[1], "light")
        found["/" if page == "." else f"/{page}/"] = window.run(LINKS)
    ids = {path: set(one["ids"]) for path, one in found.items()}
    broken = set()
    for path, one in found.items():
        for link in one["links"]:
            to, _, anchor = unquote(link).partition("#")
            there = to in ids or (SITE / to.lstrip("/")).is_file()
            if not there or (anchor and anchor not in ids.get(to, ())):
                broken.add((path, link))
    assert len(ids) > 50 and not broken


FOUND = """
    const [words, done] = arguments, field = document.querySelector(".md-search__input");
    const look = () => {
        const found = [...document.querySelectorAll(".md-search-result__link")].map((one) => one.pathname);
        if (found.length) done(found); else setTimeout(look, 50);
    };
    field.focus();
    field.value = words;
    field.dispatchEvent(new Event("keyup", {bubbles: true}));
    field.dispatchEvent(new Event("input", {bubbles: true}));
    look();
"""


def test_the_switch_of_the_scheme(window: Browser, address: str) -> None:
    """The page and its pictures follow the system, until the button is pressed."""
    opened(window, address, "concepts/views-and-storages", 1280, "light")
    looks = (
        "return [document.body.dataset.mdColorScheme,"
        " getComputedStyle(document.querySelector('article img')).colorScheme]"
    )
    assert window.run(looks) == ["default", "light"]
    for title, wanted in (("Light", ["default", "light"]), ("Dark", ["slate", "dark"])):
        window.run("document.querySelector(`label[title=${arguments[0]}]`).click()", title)
        assert window.run(looks) == wanted


def test_the_search(window: Browser, address: str) -> None:
    """Words of a page lead to it."""
    opened(window, address, ".", 1280, "light")
    assert "/how-to/missing-head/" in window.wait(FOUND, "lm_head missing")
    assert window.console() == []
