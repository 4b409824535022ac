"""docs/ci.md and docs/examples/ci: the page shows the files, the files work, and the shell lines obey no input."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from paramtool.commands.check import config
from paramtool.formats import table
from tests.hostile.command import quick

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "ci"
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
HOSTILE = [
    "$(touch injected)", "`touch injected`", '"; touch injected; "', "'; touch injected; '", "x && touch injected",
    "-h", "--json", "*", "~", "${HOME}", "a b", "\\", "!!", "--lock=x", "$INPUT_LOCK", "${{ 1 }}", "x\ttouch injected",
]  # fmt: skip


BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]
"""How the runner starts a step of `shell: bash` (docs.github.com, "Workflow syntax for GitHub Actions")."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def document(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "path", sorted([*EXAMPLES.glob("*.y*ml"), *EXAMPLES.glob("*.toml")]), ids=lambda path: path.name
)
def test_the_page_shows_the_file(path: Path) -> None:
    assert path.read_text(encoding="utf-8") in blocks("yaml" if path.suffix in (".yml", ".yaml") else "toml")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_a_policy_is_read(path: Path) -> None:
    """And asks for something."""
    assert config.read(str(path)).settings.said


def strings(part: Any) -> Iterator[tuple[str, str]]:
    """(key, value) of every string below a mapping."""
    if isinstance(part, dict):
        for key, value in part.items():
            if isinstance(value, str):
                yield key, value
            yield from strings(value)
    elif isinstance(part, list):
        for one in part:
            yield from strings(one)
            if isinstance(one, str):
                yield "", one


@pytest.mark.parametrize("name", ["action.yml", ".pre-commit-hooks.yaml", *(
    f"docs/examples/ci/{path.name}" for path in sorted(EXAMPLES.glob("*.y*ml")))])  # fmt: skip
def test_no_line_of_a_shell_has_an_expression(name: str) -> None:
    """`${{ }}` is replaced before the shell reads the line, so no input may be there."""
    for key, value in strings(document(name)):
        if key in ("run", "entry", ""):
            assert "${{" not in value


@pytest.mark.parametrize("name", ["github-run.yml", "gitlab.yml"])
def test_the_lines_of_a_workflow_run(name: str, tmp_path: Path) -> None:
    """On a model that is as its lock says, and on one that is not: exit codes 0 and 1, and the report exists."""
    lines = [value for _, text in strings(document(f"docs/examples/ci/{name}")) for value in text.splitlines()]
    (line,) = [one for one in lines if one.startswith("paramtool ")]
    (tmp_path / "models").mkdir()
    model = tmp_path / "models" / "m.pt"
    torch.save({"w": torch.ones(3)}, model)
    assert quick("lock", "models/m.pt", cwd=tmp_path).code == 0
    ran = quick(*shlex.split(line)[1:], cwd=tmp_path)
    assert ran.code == 0, ran
    torch.save({"w": torch.zeros(3)}, model)
    for report in tmp_path.glob("*.xml"):
        report.unlink()
    ran = quick(*shlex.split(line)[1:], cwd=tmp_path)
    assert ran.code == 1 and "PT201 changed" in ran.out, ran
    reports = {value for key, value in strings(document(f"docs/examples/ci/{name}")) if key == "junit"}
    assert {path.name for path in tmp_path.glob("*.xml")} == reports


def step(name: str) -> str:
    (found,) = [one["run"] for one in document("action.yml")["runs"]["steps"] if one["name"] == name]
    return str(found)


def bash(script: str, folder: Path, tool: str, **inputs: str) -> subprocess.CompletedProcess[str]:
    """A step of the action, with `tool` as the program that was installed."""
    place = folder / "temp" / "paramtool" / "bin" / "paramtool"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(tool)
    place.chmod(0o755)
    given = {"PATHS": "", "LOCK": "", "CONFIG": "", "OUTPUT": ""} | inputs
    environment = {f"INPUT_{key}": value for key, value in given.items()}
    return subprocess.run(
        [*BASH, script], cwd=folder, text=True, capture_output=True,
        env={**os.environ, "RUNNER_TEMP": str(folder / "temp"), **environment}, check=False,
    )  # fmt: skip


REAL = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m paramtool "$@"\n'
ECHO = f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c 'import sys; print(sys.argv[1:])' \"$@\"\n"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_input_is_one_argument(hostile: str, tmp_path: Path) -> None:
    """Whatever it has for a shell, and even where it looks like a flag."""
    ran = bash(step("Check"), tmp_path, ECHO, PATHS=f"{hostile}\n\nb", LOCK=hostile, CONFIG=hostile, OUTPUT=hostile)
    inputs = [f"--{name}={hostile}" for name in ("lock", "config", "output")]
    assert ran.stdout.strip() == repr(["check", *inputs, "--force", "--", hostile, "b"]), ran
    assert os.listdir(tmp_path) == ["temp"]


def test_the_action_checks(tmp_path: Path) -> None:
    """With the real program: patterns, a lock, SARIF, and the exit code."""
    torch.save({"w": torch.ones(3)}, tmp_path / "m 1.pt")
    assert quick("lock", "m 1.pt", "-o", "my.lock", cwd=tmp_path).code == 0
    inputs = {"PATHS": "*.pt\n", "LOCK": "my.lock", "OUTPUT": "out.sarif"}
    assert bash(step("Check"), tmp_path, REAL, **inputs).returncode == 0
    torch.save({"w": torch.zeros(3)}, tmp_path / "m 1.pt")
    ran = bash(step("Check"), tmp_path, REAL, **inputs)
    assert ran.returncode == 1 and "PT201 changed" in ran.stdout and (tmp_path / "out.sarif").exists(), ran


def test_the_action_installs_itself(tmp_path: Path) -> None:
    """In an environment of its own, from the folder of the action: with a `python3` that only says what it is asked."""
    said = tmp_path / "said"
    fake = f'#!/bin/sh\nprintf "%s|" "$@" >> {said}\nmkdir -p "$3/bin" && cp "$0" "$3/bin/python"\n'
    (tmp_path / "python3").write_text(fake)
    (tmp_path / "python3").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(
        [*BASH, step("Install paramtool")], cwd=tmp_path, check=True,
        env={"PATH": path, "RUNNER_TEMP": f"{tmp_path}/a b", "GITHUB_ACTION_PATH": "/c d"},
    )  # fmt: skip
    words = said.read_text().split("|")
    assert words[:3] == ["-m", "venv", f"{tmp_path}/a b/paramtool"] and words[3:6] == ["-m", "pip", "install"]
    assert "/c d" in words


def test_inputs_of_the_action_are_those_of_its_step() -> None:
    """Each is in the environment of the step, and on the page."""
    action = document("action.yml")
    check = action["runs"]["steps"][-1]
    used = set(re.findall(r"inputs\.([\w-]+)", " ".join([*check["env"].values(), check["working-directory"]])))
    assert used == set(action["inputs"])
    assert all(f"`{name}`" in PAGE for name in used)


@pytest.mark.parametrize("suffix", table.SUFFIXES)
def test_the_hooks_look_at_every_format(suffix: str) -> None:
    """A commit of any file that paramtool reads starts both hooks."""
    for hook in document(".pre-commit-hooks.yaml"):
        assert re.search(hook["files"], f"a/b{suffix}"), hook["id"]


def test_what_else_the_hooks_look_at() -> None:
    """The lock and the configuration are no checkpoints: only the first hook looks at them."""
    all_files, of_commit = (re.compile(hook["files"]) for hook in document(".pre-commit-hooks.yaml"))
    for name in ("paramtool.lock", "a/paramtool.toml", "pyproject.toml", "model/config.json", "m/__0_0.distcp",
                 "m/.metadata", "variables.data-00000-of-00001"):  # fmt: skip
        assert all_files.search(name) and not of_commit.search(name)
    for name in ("model.safetensors.index.json", "m/pytorch_model.bin.index.json", "model.safetensors.index.fp16.json"):
        assert all_files.search(name) and of_commit.search(name)
    for name in ("README.md", "tokenizer.json", "a.index.html", "bin", "safetensors"):
        assert not all_files.search(name) and not of_commit.search(name)


def same(text: str) -> list[str]:
    """Lines without what differs from run to run: digests, times."""
    text = re.sub(r"b3:[0-9a-f]{64}|b3:\.\.\.", "b3:...", text)
    return [line.rstrip() for line in re.sub(r"in \d+\.\d s$", "in 0.0 s", text, flags=re.M).strip().splitlines()]


def test_the_demo_prints_what_the_page_shows(tmp_path: Path) -> None:
    """Three commits: the tie's line, the annotation, the SARIF, and the same weights in another layout."""
    out = StringIO()
    with redirect_stdout(out):
        runpy.run_path(str(EXAMPLES / "demo.py"))["main"](tmp_path / "repository")
    (shown,) = re.findall(r"<!-- demo -->\n<!-- .*? -->\n```console\n(.*?)```\n<!-- /demo -->", PAGE, re.S)
    assert same(out.getvalue()) == same(shown)
    commits = subprocess.run(
        ["git", "log", "--format=%s", "--reverse"],
        cwd=tmp_path / "repository",
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(commits.stdout.splitlines()) == 3
    for words in ("PT101 tie-lost", "::error file=paramtool.lock,line=", "PT101 error paramtool.lock:",
                  "same weights in another layout"):  # fmt: skip
        assert words in shown


def test_the_demo_writes_only_into_a_new_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(SystemExit, match="is not empty"):
        runpy.run_path(str(EXAMPLES / "demo.py"))["main"](tmp_path)
    assert os.listdir(tmp_path) == ["mine"]
