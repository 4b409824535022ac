"""The files in .github, judged by others: actionlint, zizmor, and the schemas of schemastore.org in check-jsonschema.

So are the hooks of pre-commit, by pre-commit.

PARAMTOOL_CI is the Python of an environment with tests/oracles/requirements-ci.txt; `make oracles` makes it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("PARAMTOOL_CI", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="PARAMTOOL_CI names no Python with actionlint; make oracles does")

WORKFLOWS = sorted([*ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("docs/examples/ci/github*.yml")])
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": [one for one in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml") if one.name != "config.yml"],
    "github-issue-config": [ROOT / ".github/ISSUE_TEMPLATE/config.yml"],
    "github-actions": [ROOT / "action.yml"],
    "dependabot": [ROOT / ".github/dependabot.yml"],
    "gitlab-ci": [ROOT / "docs/examples/ci/gitlab.yml"],
}


def judged(tool: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a tool of that environment, in the root; actionlint finds its shellcheck there, too."""
    place = Path(PYTHON).parent
    environment = os.environ | {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}
    words = (place / tool, *words)
    return subprocess.run([*map(str, words)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_actionlint_finds_nothing() -> None:
    """In the workflows of this repository and in those that the pages show: keys, expressions, shell, old actions."""
    done = judged("actionlint", *WORKFLOWS)
    assert done.returncode == 0, done.stdout


def test_actionlint_can_find_something(tmp_path: Path) -> None:
    """The same file with a job that needs one that does not exist."""
    wrong = tmp_path / "tests.yml"
    wrong.write_text((ROOT / ".github/workflows/tests.yml").read_text().replace("needs: quick", "needs: quicker"))
    assert "quicker" in judged("actionlint", wrong).stdout


def test_zizmor_finds_nothing() -> None:
    """Nothing that lets a stranger run code or read a secret: unpinned actions, credentials, inputs in shell lines."""
    done = judged("zizmor", "--offline", "--no-progress", ".github", "action.yml")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("check", "path"),
    [("validate-config", ".pre-commit-config.yaml"), ("validate-config", "docs/examples/ci/pre-commit-config.yaml"),
     ("validate-manifest", ".pre-commit-hooks.yaml")],
)  # fmt: skip
def test_pre_commit_reads_its_files(check: str, path: str) -> None:
    """Those of this repository, that of the pages, and the hooks that other repositories take from here."""
    done = judged("pre-commit", check, path)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_schemas(schema: str) -> None:
    """Each file by the schema of its kind."""
    assert SCHEMAS[schema]
    done = judged("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *SCHEMAS[schema])
    assert done.returncode == 0, done.stdout
