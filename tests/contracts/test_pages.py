"""README.md and docs: short, linked, and in the words of the glossary; tests/site runs their examples."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from paramtool.cli.main import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SITE = sorted(DOCS.rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *SITE]
FOR_CONTRIBUTORS = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
WORDS = (
    "alias record",
    "alias set",
    "cell",
    "checkpoint",
    "content digest",
    "dialect",
    "evidence",
    "family",
    "finding",
    "fused tensor",
    "layout",
    "lock file",
    "owner",
    "part",
    "plan",
    "role",
    "rule",
    "saver",
    "section",
    "shard",
    "sidecar file",
    "spec",
    "storage",
    "tie",
    "variant",
    "verdict",
    "view",
)
EVERYWHERE = ("dedup.md", "terminal.md")
"""Guides that have flags of every command, or of every command that reads a checkpoint."""
FLAGS = {
    "convert": ("recurrent-networks.md", "types.md"), "fuse": ("recurrent-networks.md",),
    "unfuse": ("recurrent-networks.md",), "layouts": ("recurrent-networks.md",),
    "guess": ("guess.md", "recurrent-networks.md"),
}  # fmt: skip
"""The guides that have the flags of a command, besides those above; by default the page of its name."""


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", read(path), flags=re.M | re.S)


def anchors(path: Path) -> set[str]:
    """What a link to a heading may say, as GitHub makes it, and to what is documented from its docstring."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(path), re.M):
        plain = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading.lower())
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(next(text for n in range(1000) if (text := name if n == 0 else f"{name}-{n}") not in found))
    return found | set(re.findall(r"^::: (\S+)$", read(path), re.M))


def unresolved(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(page))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    return missing


@pytest.mark.sample(56)
@pytest.mark.parametrize("page", [*PAGES, *FOR_CONTRIBUTORS], ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link has its file, and every anchor its heading."""
    assert not unresolved(page)


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    """The test above can fail: a file and a heading that do not exist."""
    (tmp_path / "a.md").write_text("# A b\n## A b\n[x](b.md) [y](#a-b-1) [z](#no) [w](a.md#a-b) [v](https://a.b)\n")
    assert unresolved(tmp_path / "a.md") == ["b.md", "#no"]


def test_every_page_is_reached_from_the_readme() -> None:
    """By links alone."""
    seen, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in seen or not page.exists():
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)\s#]+\.md)[)#]", prose(page))
        queue += [(page.parent / link).resolve() for link in links if ":" not in link]
    assert not {*PAGES, *FOR_CONTRIBUTORS} - seen


def test_every_page_is_on_the_site() -> None:
    """In the navigation of mkdocs.yml, once; `make docs` proves the links.  Decisions are in their index."""
    listed = re.findall(r"^ +- (?:Home: )?([\w/-]+\.md)$", read(ROOT / "mkdocs.yml"), re.M)
    shown = [page.relative_to(DOCS).as_posix() for page in SITE if not page.match("decisions/0*.md")]
    assert sorted(listed) == sorted(shown)


def test_the_readme_is_short() -> None:
    """At most 150 lines: the problem, a picture, an install line, three commands, and how to try it."""
    text = read(ROOT / "README.md")
    assert len(text.splitlines()) <= 150
    order = ["# paramtool", "![", "pip install", "$ paramtool inspect", "$ paramtool dedup", "$ paramtool variants"]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    assert "On a machine with Python 3.10 or later and nothing else" in text
    assert "\n$ make demo " in text and "\n$ make test " in text


def test_the_glossary_has_every_word() -> None:
    """In alphabetical order, each with a few sentences and an example; the README names those of its list."""
    sections = re.split(r"^## ", read(DOCS / "glossary.md"), flags=re.M)[1:]
    found = {section.partition("\n")[0]: section.partition("\n")[2] for section in sections}
    assert tuple(found) == WORDS
    for word, text in found.items():
        assert re.search(r"Example:\s", text) and 2 <= len(re.findall(r"\.(?:\s|$)", text)) <= 12, word
    row = next(line for line in read(ROOT / "README.md").splitlines() if "docs/glossary.md" in line)
    assert all(
        word in row
        for word in ("storage", "view", "alias set", "owner", "evidence", "layout", "section", "sidecar file")
    )


@pytest.mark.parametrize("of", COMMANDS)
def test_every_flag_is_on_a_guide_to_its_command(of: str) -> None:
    """By its whole name, in backticks or in a line to type."""
    text = " ".join(read(DOCS / name) for name in (*EVERYWHERE, *FLAGS.get(of, (f"{of}.md",))))
    command = cli.get_command(click.Context(cli), of)
    assert command is not None
    flags = [flag for found in command.params for flag in found.opts if flag.startswith("--")]
    assert not [flag for flag in flags if flag != "--help" and not re.search(rf"{flag}(?![\w-])", text)]


RIDDLES = (
    r"\bwindows?\b", r"\bstands? (?:on|for itself|beside|in the way)\b", r"\b(?:is|are|be) had\b", r"\bso many\b",
    r"\bturned round\b", r"\bnobody's\b", r"\bby halves\b", r"\btaken off\b", r"\bstarting up\b", r"\bassumed aloud\b",
    r"\bcome(?:s)? along\b", r"\bgo on where\b", r"\blikewise\b", r"\bside files?\b",
)  # fmt: skip
"""Words that the glossary or plain English replaces."""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_words_are_those_of_the_glossary(page: Path) -> None:
    """Outside of code: a view is no "window", a sidecar file no "side file", and no sentence is a riddle.

    The glossary says that a sidecar file is also called side file; systems called Windows may be named.
    """
    text = re.sub(r"`[^`]*`|\*[\w ]+\*|\bWindows\b", "", prose(page))
    found = [match for riddle in RIDDLES for match in re.findall(riddle, text, re.I)]
    assert not found
