"""What `check` writes for others, read by them: pre-commit, junitparser, and cmark-gfm, GitHub's renderer of Markdown.

PARAMTOOL_CI is the Python of an environment with tests/oracles/requirements-ci.txt; `make oracles` makes it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

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


class Hooked:
    """A repository of git with the hooks of a clone of this one, which pre-commit itself installs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "own"
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "PYTHONPATH"))
        }
        self.environment |= {"PRE_COMMIT_HOME": str(folder / "home"), "GIT_CONFIG_GLOBAL": os.devnull}
        clone = folder / "paramtool"
        self.folder.mkdir()
        assert self.run("git", "clone", "--quiet", ROOT, clone).returncode == 0
        head = self.run("git", "-C", clone, "rev-parse", "HEAD").stdout.strip()
        self.run("git", "init", "--quiet")
        hooks = [{"id": "paramtool-check"}, {"id": "paramtool-check-files"}]
        configuration = {"repos": [{"repo": str(clone), "rev": head, "hooks": hooks}]}
        (self.folder / ".pre-commit-config.yaml").write_text(json.dumps(configuration))

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """A program in the repository."""
        return subprocess.run(
            [*map(str, words)], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )

    def hooked(self) -> subprocess.CompletedProcess[str]:
        """What pre-commit says to a commit of everything."""
        self.run("git", "add", "--all")
        return self.run(PYTHON, "-m", "pre_commit", "run", "--verbose", "--color=never")

    def commit(self) -> None:
        """A commit without hooks."""
        self.run("git", "add", "--all")
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        assert self.run("git", *names, "commit", "--quiet", "--no-verify", "--message=x").returncode == 0


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Hooked:
    return Hooked(tmp_path_factory.mktemp("hooks"))


def test_pre_commit_runs_the_hooks(hooked: Hooked) -> None:
    """They pass, and fail after the tie is lost."""
    own, weight = hooked.folder, torch.arange(6.0)
    torch.save({"a": weight, "b": weight}, own / "m.pt")
    assert quick("lock", "m.pt", "--force", cwd=own).code == 0
    passed = hooked.hooked()
    assert passed.returncode == 0 and passed.stdout.count("Passed") == 2, passed
    torch.save({"a": weight, "b": weight.clone()}, own / "m.pt")
    failed = hooked.hooked()
    assert failed.returncode == 1 and failed.stdout.count("Failed") == 2, failed
    assert failed.stdout.count("PT101 tie-lost") == 2 and failed.stdout.count("exit code: 1") == 2
    (own / "m.pt").unlink()
    hooked.commit()


def test_pre_commit_passes_the_shards_of_a_model(hooked: Hooked) -> None:
    """As transformers writes them, beside what its Trainer adds; an unsafe pickle and a changed shard are refused."""
    from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

    own = hooked.folder
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, vocab_size=99,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(own / "models" / "m", max_shard_size="40KB")
    shards = sorted((own / "models" / "m").glob("*.safetensors"))
    assert len(shards) > 2
    torch.save(TrainingArguments(output_dir=str(own / "out")), own / "models" / "m" / "training_args.bin")
    assert quick("lock", "models/m", "--force", cwd=own).code == 0
    passed = hooked.hooked()
    assert passed.returncode == 0 and passed.stdout.count("Passed") == 2, passed
    assert "note  models/m: checked as one model" in passed.stdout
    hooked.commit()
    with torch.no_grad():
        model.model.norm.weight += 1
    model.save_pretrained(own / "models" / "m", max_shard_size="40KB")
    failed = hooked.hooked()
    assert failed.returncode == 1 and failed.stdout.count("PT201 changed: 'model.norm.weight'") == 2, failed
    assert "PT202" not in failed.stdout
    hooked.run("git", "checkout", "--quiet", "HEAD", "--", "models")
    (own / "models" / "pytorch_model.bin").write_bytes(b"\x80\x02cos\nsystem\nX\x01\0\0\0x\x85R.")
    failed = hooked.hooked()
    assert failed.returncode == 1 and "pytorch_model.bin" in failed.stdout and "os.system" in failed.stdout, failed


class Action:
    """The steps of action.yml as a runner of GitHub runs them: from a checkout, with the defaults of the inputs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.summary = folder / "work", folder / "summary.md"
        checkout = folder / "checkout"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
        action = yaml.safe_load((checkout / "action.yml").read_text(encoding="utf-8"))
        self.steps = {step["name"]: step for step in action["runs"]["steps"]}
        self.defaults = {name: one["default"] for name, one in action["inputs"].items()}
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "INPUT_", "VIRTUAL"))}
        self.environment = kept | {
            "PATH": f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(checkout),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_WORKSPACE": str(self.folder),
            "RUNNER_TEMP": str(folder),
        }
        self.folder.mkdir()

    def run(self, name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        """A step, with some inputs."""
        step, given = self.steps[name], {**self.defaults, **inputs}

        def filled(text: str) -> str:
            return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: given[found[1]], text)

        script = self.folder.parent / "step.sh"
        script.write_text(step["run"], encoding="utf-8")
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.folder / filled(step.get("working-directory", ".")),
            env=self.environment | {key: filled(value) for key, value in step.get("env", {}).items()},
            capture_output=True, text=True, check=False,
        )  # fmt: skip


def test_the_action_installs_itself_and_checks(tmp_path: Path) -> None:
    """In an empty environment, from a checkout: it passes, and says in annotations what it finds."""
    action = Action(tmp_path)
    installed = action.run("Install paramtool")
    assert installed.returncode == 0 and (tmp_path / "paramtool" / "bin" / "paramtool").exists(), installed
    weight, own = torch.arange(6.0), action.folder
    torch.save({"a": weight, "b": weight}, own / "m.pt")
    assert quick("lock", "m.pt", cwd=own).code == 0
    passed = action.run("Check")
    assert passed.returncode == 0 and "::error" not in passed.stdout, passed
    torch.save({"a": weight, "b": weight.clone()}, own / "m.pt")
    failed = action.run("Check", paths="m.pt\n", output="found.sarif")
    assert failed.returncode == 1, failed
    (line,) = (line for line in failed.stdout.splitlines() if line.startswith("::error "))
    assert "PT101 tie-lost" in line and "file=paramtool.lock" in line, line
    assert "PT101" in action.summary.read_text(encoding="utf-8")
    assert json.loads((own / "found.sarif").read_text())["runs"][0]["results"][0]["ruleId"] == "PT101"
    (own / "m.pt").write_bytes(b"nothing")
    assert action.run("Check").returncode == 3
