"""What `check` writes for others, read by them: pre-commit, junitparser, and cmark-gfm, GitHub's renderer of Markdown.

PARAMTOOL_CI is the Python of an environment with tests/oracles/requirements-ci.txt; `make oracles` makes it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from paramtool.findings import junit, markdown
from paramtool.findings.report import CheckReport, kind, one_line
from paramtool.model.finding import FileLine, Finding
from tests.findings.samples import HOSTILE, many
from tests.findings.test_markdown import OURS, Page, cells, spaces
from tests.hostile.command import quick

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("PARAMTOOL_CI", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="PARAMTOOL_CI names no Python with pre-commit; make oracles does")

RENDERED = """
import json, sys
from cmarkgfm import github_flavored_markdown_to_html
from cmarkgfm.cmark import Options
texts = json.load(sys.stdin)
json.dump([github_flavored_markdown_to_html(text, options=Options.CMARK_OPT_UNSAFE) for text in texts], sys.stdout)
"""
PARSED = """
import json, sys
from junitparser import JUnitXml
found = []
for text in json.load(sys.stdin):
    suites = JUnitXml.fromstring(text.encode())
    cases = [(case.name, [one.message for one in case.result]) for suite in suites for case in suite]
    found.append([suites.tests, suites.failures, suites.errors, suites.skipped, cases])
json.dump(found, sys.stdout)
"""


def reports() -> list[CheckReport]:
    """Each hostile text as path, message and reason; all of them together; many."""
    found = [
        Finding("changed", name, (name,), id="PT201", path=name or "m", allowed=name if k % 3 == 0 else "",
                place=FileLine(name, 3) if k % 2 else None)
        for k, name in enumerate(HOSTILE)
    ]  # fmt: skip
    each = [CheckReport([one], [one.path], {one.path: one.message}) for one in found]
    return [*each, CheckReport(found, list(dict.fromkeys(one.path for one in found))), many(30), CheckReport([], ["a"])]


def asked(code: str, texts: list[str]) -> Any:
    """What the code says of the texts, in that environment."""
    done = subprocess.run([PYTHON, "-c", code], input=json.dumps(texts), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_github_s_markdown_shows_text_and_nothing_else() -> None:
    """With raw HTML and links from bare addresses, as on GitHub."""
    for report, page in zip(
        reports(), asked(RENDERED, ["\n".join(markdown.lines(one)) for one in reports()]), strict=True
    ):
        found = Page("", html=page)
        assert {tag for tag, _ in found.tags} <= OURS and not found.comments
        assert [spaces(text) for text in found.codes] == [spaces(text) for text in cells(report)]


def test_junitparser_reads_each_case() -> None:
    """Its name, its outcome and its message."""
    texts = ["\n".join(junit.lines(report)) for report in reports()]
    for report, (tests, failures, errors, skipped, cases) in zip(reports(), asked(PARSED, texts), strict=True):
        assert tests == len(cases) and errors == len(report.errors)
        assert failures == len({(one.path, kind(one)) for one in report.findings if one.fails})
        assert skipped == len({(one.path, kind(one)) for one in report.findings if one.allowed})
        said = {message for _, results in cases for message in results}
        if len(report.findings) == 1 and report.findings[0].fails:
            assert one_line(report.findings[0].message, junit.MAX_LINE) in said


def test_pre_commit_runs_the_hooks(tmp_path: Path) -> None:
    """From a clone of this repository, installed by pre-commit itself: it passes, fails after the tie is lost."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "PYTHONPATH"))}
    environment |= {"PRE_COMMIT_HOME": str(tmp_path / "home"), "GIT_CONFIG_GLOBAL": os.devnull}

    def run(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )

    clone, own = tmp_path / "paramtool", tmp_path / "own"
    assert run("git", "clone", "--quiet", ROOT, clone, folder=tmp_path).returncode == 0
    head = run("git", "rev-parse", "HEAD", folder=clone).stdout.strip()
    own.mkdir()
    run("git", "init", "--quiet", folder=own)
    hooks = [{"id": "paramtool-check"}, {"id": "paramtool-check-files"}]
    configuration = {"repos": [{"repo": str(clone), "rev": head, "hooks": hooks}]}
    (own / ".pre-commit-config.yaml").write_text(json.dumps(configuration))
    weight = torch.arange(6.0)
    torch.save({"a": weight, "b": weight}, own / "m.pt")
    assert quick("lock", "m.pt", cwd=own).code == 0

    def hooked() -> subprocess.CompletedProcess[str]:
        run("git", "add", "--all", folder=own)
        return run(PYTHON, "-m", "pre_commit", "run", "--verbose", "--color=never", folder=own)

    passed = hooked()
    assert passed.returncode == 0 and passed.stdout.count("Passed") == 2, passed
    torch.save({"a": weight, "b": weight.clone()}, own / "m.pt")
    failed = hooked()
    assert failed.returncode == 1 and failed.stdout.count("Failed") == 2, failed
    assert failed.stdout.count("PT101 tie-lost") == 2 and failed.stdout.count("exit code: 1") == 2
