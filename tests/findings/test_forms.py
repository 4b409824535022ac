"""Findings in every form: what a stranger's name says is shown, and never obeyed."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as Xml

from hypothesis import given
from hypothesis import strategies as st

from paramtool.findings import github, junit, markdown, sarif
from paramtool.findings.words import printable
from paramtool.model.finding import ERROR, NOTE, WARNING, FileLine, Finding
from paramtool.model.rule_ids import RULE_IDS

HOSTILE = [
    "::set-env name=PATH::/evil", "\n::error::x", "##[set-env name=a]b", "a\x1b[31mb", "</testcase>", "<script>", "a|b",
    "`", "``` ", "[x](http://evil)", "![x](http://evil)", "@everyone", "%0A::error::x", "\udc80", "\x00", "a\r\nb",
    "\ufffe", "  ::stop-commands::token", "\u202e", "]]>", "&amp;", "<!--", "a@b.com", "www.evil.com", "{0}",
]  # fmt: skip
TEXTS = (
    st.text(max_size=20)
    | st.sampled_from(HOSTILE)
    | st.tuples(st.sampled_from(HOSTILE), st.text(max_size=5)).map("".join)
)
SEVERITIES = st.sampled_from([ERROR, WARNING, NOTE])
FINDINGS = st.builds(
    Finding, rule=TEXTS, message=TEXTS, names=st.lists(TEXTS, max_size=2).map(tuple),
    id=st.sampled_from(["", *(one.id for one in RULE_IDS)]), severity=SEVERITIES, path=TEXTS,
    place=st.none() | st.builds(FileLine, TEXTS, st.integers(1, 9), st.integers(1, 9)), allowed=st.just("") | TEXTS,
)  # fmt: skip
LISTS = st.lists(FINDINGS, max_size=5)


@given(LISTS, st.lists(TEXTS, max_size=3))
def test_github_runs_no_command_but_annotations(findings: list[Finding], paths: list[str]) -> None:
    """As the runner reads lines: a command begins with `::`, blanks aside; the older form has `##[` anywhere."""
    for line in re.split(r"\r\n|\r|\n", github.text(findings, paths)):
        if line.lstrip().startswith("::"):
            assert re.match(r"::(error|warning|notice) [^:]*::", line)
            assert set(re.findall(r"(?:^::\w+ |,)(\w+)=", line.split("::", 2)[1].join(["::", "::"]))) <= {
                "file", "line", "col", "title",
            }  # fmt: skip
        else:
            assert "##[" not in line


@given(FINDINGS)
def test_github_says_what_was_found(finding: Finding) -> None:
    """The runner undoes the escapes: the message is there, with what cannot be printed as escapes."""
    text = github.text([finding], [finding.path])
    undone = text.replace("%0D", "\r").replace("%0A", "\n").replace("%3A", ":").replace("%2C", ",").replace("%25", "%")
    assert printable(finding.message).replace("##[", "##\u200b[") in undone or printable(finding.message) in undone


def test_github_shows_ten_of_a_kind() -> None:
    many = [Finding("r", str(k), severity=WARNING) for k in range(10_000)]
    lines = github.text(many, ["a"]).splitlines()
    assert sum(line.startswith("::warning") for line in lines) == github.SHOWN
    assert "9991 more" in lines[-2]


@given(LISTS, st.lists(TEXTS, max_size=3))
def test_junit_is_xml_with_every_path(findings: list[Finding], paths: list[str]) -> None:
    root = Xml.fromstring(junit.text(findings, paths))
    suites = [suite.get("name") for suite in root]
    assert len(suites) == len({*paths, *(one.path for one in findings)})
    failures = [failure.text or "" for failure in root.iter("failure")]
    for one in findings:
        if one.fails:
            assert any(junit.clean(printable(one.message)) in text for text in failures)
    assert int(root.get("failures", "")) == len(failures)
    assert bool(failures) == any(one.fails for one in findings)


@given(LISTS, st.lists(TEXTS, max_size=3))
def test_sarif_has_each_finding_at_its_line(findings: list[Finding], paths: list[str]) -> None:
    """The schema is asked in tests/oracles."""
    document = json.loads(sarif.text(findings, paths, "1.0"))
    (run,) = document["runs"]
    assert len(run["results"]) == len(findings)
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert not re.search(r"(?<!\\)\[[^\]]*\]\(", result["message"]["text"])
    suppressed = sum("suppressions" in result for result in run["results"])
    assert suppressed == sum(bool(one.allowed) for one in findings)


def test_sarif_keeps_the_severest() -> None:
    many = [Finding("r", str(k), severity=NOTE) for k in range(sarif.MAX_RESULTS)] + [Finding("bad", "x", id="PT101")]
    run = sarif.document(many, ["a"], "1")["runs"][0]
    assert len(run["results"]) == sarif.MAX_RESULTS
    assert run["results"][0]["ruleId"] == "PT101"
    said = [one["message"]["text"] for one in run["invocations"][0]["toolExecutionNotifications"]]
    assert len(said) == 2 and said[0].startswith("1 finding of 25001 left out")


def test_a_fingerprint_stays_while_numbers_change() -> None:
    first, second = (Finding("changed", f"{k} of 9 elements", ("w",), id="PT201", path="a") for k in (1, 2))
    other = Finding("changed", "1 of 9 elements", ("v",), id="PT201", path="a")
    prints = [
        one["partialFingerprints"] for one in sarif.document([first, second, other], [], "1")["runs"][0]["results"]
    ]
    assert prints[0] == prints[1] != prints[2]


@given(LISTS, st.lists(TEXTS, max_size=3))
def test_markdown_has_strangers_words_in_code_spans_only(findings: list[Finding], paths: list[str]) -> None:
    """Without its code spans, the text has our words only; a renderer is asked in tests/oracles."""
    text = markdown.text(findings, paths)
    bare = re.sub(r"(?s)(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)", "", text)
    assert re.fullmatch(r"[\w ,#:*()\n.\-]*", bare, re.ASCII), bare


def test_markdown_ends_before_the_limit() -> None:
    many = [Finding("changed", "x" * 500, id="PT201", path="a") for _ in range(10_000)]
    text = markdown.text(many, ["a"])
    assert len(text.encode()) < 1 << 20
    shown = text.count("- **error**")
    assert f"and {10_000 - shown} more findings" in text
