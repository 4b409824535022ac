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
from tests.commands.report_pages import STRANGE, headers_only, split_and_fused, tied, training
from tests.oracles.browser import AXE, BROWSER, DRIVER, Browser, browser, violations

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="needs chromium and chromedriver: apt-get install chromium chromium-driver"
)
FOCUS = "return document.activeElement.getAttribute('aria-label') || document.activeElement.tagName"
CRUMBS = "return document.querySelector('.crumbs').textContent"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as made:
        yield made


PAGES = ("one", "two", "many", "hostile", "training", "fused", "empty")
HOSTILE = "<img src=x onerror=document.title='ran'>.pt"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, each as `NAME.html`; `many` is of 1,000 tensors, `two`, `hostile` and `fused` of two checkpoints."""
    folder = tmp_path_factory.mktemp("pages")
    tied(folder / "tied.pt")
    other = torch.load(folder / "tied.pt")
    other["model"]["emb.weight"][3:9] += 0.5
    other["model"]["head.weight"] = other["model"]["head.weight"].clone()
    other["model"]["h.0.mask"][:, 5:9] += 1
    torch.save(other, folder / "other.pt")
    state = {f"{one}.{one}.weight": torch.full((40, 40), float(k)) for k, one in enumerate(STRANGE)}
    state |= {f"{one} alias": state[f"{one}.{one}.weight"] for one in STRANGE}
    torch.save(state, folder / HOSTILE)
    torch.save({name: one + (one == 3.0) for name, one in state.items()}, folder / "hostile2.pt")
    torch.save({}, folder / "empty.pt")
    for name, paths in (
        ("one", [folder / "tied.pt"]),
        ("two", [folder / "tied.pt", folder / "other.pt"]),
        ("many", [headers_only(folder / "many.safetensors", 1000)]),
        ("hostile", [folder / HOSTILE, folder / "hostile2.pt"]),
        ("training", [training(folder / "training.pt")]),
        ("fused", [*split_and_fused(folder)]),
        ("empty", [folder / "empty.pt"]),
    ):
        paramtool.report(*paths, output=folder / f"{name}.html", equal=name in ("one", "hostile"))
    return folder


def opened(window: Browser, page: Path, width: int = 1280, scheme: str = "light") -> None:
    """Open a page, and make sure that it asks for nothing and says nothing on the console."""
    window.size(width)
    window.prefers(scheme)
    window.console(), window.requests()
    window.open(page)
    assert window.requests() == [page.resolve().as_uri()]
    assert window.console() == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (420, "dark")])
def test_a_page_opens(window: Browser, pages: Path, page: str, width: int, scheme: str) -> None:
    """Without a message, without a request, and without scrolling sideways but inside figures."""
    opened(window, pages / f"{page}.html", width, scheme)
    assert window.run("return document.documentElement.scrollWidth") <= width
    drawn, maps = window.run(
        "return ['.stage > svg[role=group]', '.treemap'].map(one => document.querySelectorAll(one).length)"
    )
    assert drawn == maps > 0 or page == "empty"
    for svg in window.run("return [...document.querySelectorAll('main svg[role=img]')].map(one => one.ariaLabel)"):
        assert svg


@pytest.mark.sample(4)
@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core in build/axe: make build/axe/stamp, with npm")
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (420, "dark")])
def test_axe_finds_nothing(window: Browser, pages: Path, page: str, width: int, scheme: str) -> None:
    """WCAG 2.2 A and AA and the best practices, as axe-core judges them, with all tables open."""
    opened(window, pages / f"{page}.html", width, scheme)
    window.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert violations(window) == []


# Every node that arrow keys and Enter lead to, from the first one: keys are sent as events, one by one.
REACHED = """
    const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    const stage = document.querySelector(".stage"), reached = new Set(), opened = new Set();
    const level = () => [...stage.querySelectorAll("[role=button]")];
    const walk = () => {
        const seen = new Set([document.activeElement.node]), queue = [document.activeElement];
        while (queue.length) {
            const from = queue.pop();
            for (const key of ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"]) {
                from.focus(); press(key);
                const to = document.activeElement;
                if (!seen.has(to.node)) { seen.add(to.node); queue.push(to); }
            }
        }
        return seen;
    };
    const visit = (most) => {
        const nodes = walk(), shown = level().map((one) => one.node);
        for (const node of nodes) reached.add(node);
        const missed = shown.filter((node) => !nodes.has(node)).map((node) => node.name);
        for (const node of shown.filter((one) => one.children.length).slice(0, most)) {
            level().find((one) => one.node === node).focus();
            press("Enter");
            missed.push(...visit(most));
            press("Escape");
            if (document.activeElement.node !== node) missed.push(`back to ${node.name}`);
        }
        return missed;
    };
    level()[0].focus();
    return [visit(arguments[0]), reached.size];
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("width", [1280, 420])
@pytest.mark.parametrize(("page", "most"), [("one", 99), ("training", 99), ("hostile", 99), ("many", 8)])
def test_keys_reach_every_node(window: Browser, pages: Path, page: str, most: int, width: int) -> None:
    """Arrow keys reach everything that is shown, Enter opens every module (of many the first), Escape goes back."""
    opened(window, pages / f"{page}.html", width)
    missed, reached = window.run(REACHED, most)
    assert missed == [] and reached > 10


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_focus_is_seen(window: Browser, pages: Path, scheme: str) -> None:
    """Every stop of the Tab key has an outline, or a line around it, that is not the one it has without the focus."""
    opened(window, pages / "one.html", scheme=scheme)
    look = "const s = getComputedStyle(arguments[0]); return [s.outlineStyle, s.outlineWidth, s.stroke, s.strokeWidth]"
    stops, before = 0, None
    for _ in range(60):
        window.press("Tab")
        active = window.run("return document.activeElement === document.body ? null : document.activeElement")
        if active is None or active == before:
            break
        outline, width, stroke, thick = window.run(look, active)
        assert (outline == "solid" and width == "3px") or (stroke != "none" and thick == "4px")
        stops, before = stops + 1, active
    assert stops > 12


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
        "const one = [...document.querySelectorAll('.stage [role=button]')].find(g => g.node.name.startsWith('ema'));"
        "one.scrollIntoView({block: 'center'});"
        "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + 8]"
    )
    window.click(x, y)
    assert "ema" in window.run(CRUMBS).partition("›")[2]
    window.run("document.querySelector('.crumbs button').click()")
    assert window.run(CRUMBS).startswith("everything ·")


def test_the_field_filters_the_table(window: Browser, pages: Path) -> None:
    opened(window, pages / "one.html")
    shown = window.run(
        "const field = document.querySelector('[data-filtered] input'); field.value = 'RNN';"
        "field.dispatchEvent(new Event('input'));"
        "return [...document.querySelectorAll('[data-filtered] tbody tr')].filter(one => one.checkVisibility()).length"
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
    strange = "return document.querySelectorAll('img, b:not(.findings b, .graph b), iframe, object, embed').length"
    assert window.run(strange) == 0
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


@pytest.mark.sample(3)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["one", "two", "fused"])
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
        const words = "h1, h2, h3, p, dt, dd, small, li, a, td, th, summary, b, em, caption, figcaption, span";
        for (const one of document.querySelectorAll(words)) {
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
