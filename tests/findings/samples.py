"""Findings for tests: any text as a name, a path and a message, and what tries to leave its place."""

from __future__ import annotations

from hypothesis import strategies as st

from paramtool.findings.report import CheckReport
from paramtool.model.finding import ERROR, NOTE, RULE_IDS, WARNING, FileLine, Finding

HOSTILE = (
    "::set-env name=PATH::/tmp", "\n::stop-commands::x", "\r\n::add-mask::a", "a\u2028::error::b", "##[add-mask]secret",
    "x\n##[stop-commands]x", "%0A::warning::b", "%250A", "a::b,c=d", "<script>alert(1)</script>", "</code><img src=x>",
    "`code` | cell |\n| a | b |", "![i](http://e.x/i.png)", "[l](javascript:alert)", "@octocat #1 GH-1", "www.e.x",
    "https://e.x", "a@e.x", "<!-- x", "&lt;b&gt;", "\x1b[31m\x1b]0;t\x07", "\udc80\ud800", "]]>", "\x00\x0b\ufffe",
    "--> ", "\\|`\\`", "~~a~~ **b** _c_", "\u202eabc", "a" * 5000, "{{7*7}}${{ github.token }}$(id)`id`", "", " ",
    "- [ ] a",
)  # fmt: skip
"""Names of tensors that mean something to a terminal, a runner, a page or a table."""
TEXTS = st.sampled_from(HOSTILE) | st.text(max_size=30) | st.tuples(st.sampled_from(HOSTILE), st.text()).map("".join)
PLACES = st.none() | st.builds(FileLine, TEXTS, st.integers(1, 10**6), st.integers(1, 200))


@st.composite
def findings(draw: st.DrawFn) -> Finding:
    """A finding of any kind, with any words."""
    kind = draw(st.sampled_from(RULE_IDS))
    return Finding(
        draw(st.sampled_from([kind.name, f"{kind.name}:{draw(TEXTS)}"])),
        draw(TEXTS),
        tuple(draw(st.lists(TEXTS, max_size=3))),
        id=kind.id,
        severity=draw(st.sampled_from([ERROR, WARNING, NOTE])),
        path=draw(TEXTS),
        place=draw(PLACES),
        allowed=draw(st.just("") | TEXTS),
    )


@st.composite
def reports(draw: st.DrawFn) -> CheckReport:
    """A run with up to 30 findings, so that more than ten of one severity are there, too."""
    found = draw(st.lists(findings(), max_size=30))
    paths = [one.path for one in found] + draw(st.lists(TEXTS, max_size=2))
    return CheckReport(found, list(dict.fromkeys(paths)), draw(st.dictionaries(TEXTS, TEXTS, max_size=2)))


def many(count: int) -> CheckReport:
    """Findings of one kind, each about a tensor with a long name."""
    return CheckReport(
        [
            Finding("changed", f"'layer.{n}.{'w' * 80}': has other numbers", (f"layer.{n}",), id="PT201", path="m.pt",
                    place=FileLine("paramtool.lock", n + 1))
            for n in range(count)
        ],
        ["m.pt"],
    )  # fmt: skip
