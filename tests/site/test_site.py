"""Every block of the site and of README.md is run as it is written, and prints what is shown.

A block that begins with `# NAME.SUFFIX` is that file.  Another block of Python is run, with `before.py` of its set-up
before it.  In a block `console`, each line behind `$` is run, and the lines under it are what it prints; `...` stands
for any lines, or for anything in a line.  Versions and times may differ.  Blocks of a page share a folder, up to the
next `files made by` (tests/site/blocks.py).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from paramtool.cli.main import cli
from paramtool.model.diff import LABELS
from tests.hostile.command import command
from tests.site import setups
from tests.site.blocks import COMMAND, DOCS, PAGES, ROOT, Block, blocks
from tests.site.environment import ENVIRONMENT
from tests.site.forking import Forking, Ran, asks_transformers

BLOCKS = {page: blocks(page) for page in PAGES}
RUN = [page for page in PAGES if any(block.is_run_here for block in BLOCKS[page])]


def unversioned(text: str) -> str:
    """Without versions and times, which differ from one machine to the next, and spaces at the ends of lines."""
    text = re.sub(r"\b\d+\.\d+\.\d+(?:\+\w+)?\b|\b\d+\.\d s\b", "N", text)
    return re.sub(r" +$", "", text, flags=re.M)


def prints(found: str, wanted: list[str]) -> bool:
    """Whether the lines are an output, but for what `...` stands for."""
    pattern = ""
    for line in unversioned("\n".join(wanted)).split("\n"):
        inside = ".*".join(map(re.escape, line.split("...")))
        pattern += r"(?:.*\n)*" if line == "..." else rf"{inside}\n"
    lines = [line for line in unversioned(found).split("\n") if line]
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


class Reader:
    """Somebody who follows a page, in a folder."""

    def __init__(self, forking: Forking, folder: Path) -> None:
        self.forking, self.top, self.folder = forking, folder, folder
        self.enter(folder)

    def enter(self, folder: Path) -> None:
        """Go into a new folder, which has the fixtures as a checkout has them."""
        folder.mkdir(exist_ok=True)
        for name in ("fixtures", "docs"):
            (folder / name).symlink_to(ROOT / name)
        self.folder = folder

    def run(self, line: str) -> Ran:
        """A command: programs and `paramtool` from processes that fork, others by a shell."""
        simple = re.fullmatch(r"([^|&;<>$*~\\]*?)(?: > ([\w.-]+))?", line)
        words = shlex.split(simple[1], comments=True) if simple else []
        if words[:1] in (["paramtool"], ["python"]):
            return self.written(self.forked(words), simple[2] if simple else None)
        path = f"{self.top}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env={**os.environ, **ENVIRONMENT, "PATH": path},
            stdin=subprocess.DEVNULL, text=True, capture_output=True, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    def forked(self, words: list[str]) -> Ran:
        """Without the start of an interpreter; `variants` and commands that ask transformers need torch."""
        if words[:2] == ["paramtool", "variants"] or words[0] == "python" or asks_transformers(words):
            return self.forking.run(words, self.folder, ENVIRONMENT)
        env = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONPATH"}
        return Ran(*command(*words[1:], cwd=self.folder, env=env))

    def written(self, ran: Ran, name: str | None) -> Ran:
        """With the output in a file, as `> NAME` asks."""
        if name is None:
            return ran
        (self.folder / name).write_text(ran.out, encoding="utf-8")
        return ran._replace(out="")

    def follow(self, block: Block) -> None:
        """Do what a block says."""
        if name := block.said.get("files made by"):
            self.enter(self.top / f"{name}-{block.line}")
            ran = self.forking.set_up(f"setups.{name}", self.top, self.folder)
            assert ran.code == 0, f"{block}\n{ran.err}"
            if (self.folder / "make.py").exists():
                self.python("make.py", block)
        named = re.match(r"# ([\w./-]+)\n", block.text)
        if named:
            (self.folder / named[1]).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            before = self.folder / "before.py"
            text = (before.read_text(encoding="utf-8") if before.exists() else "") + block.text
            (self.folder / "block.py").write_text(text, encoding="utf-8")
            self.python("block.py", block)
        elif block.language == "console":
            self.type(block)

    def python(self, name: str, block: Block) -> None:
        """Run a program of a block."""
        ran = self.run(f"python {name}")
        assert ran.code == 0, f"{block}\n{ran.err}"

    def type(self, block: Block) -> None:
        """Run the commands of a block, and compare what they print."""
        commands = [*block.commands()]
        assert commands, f"{block}: no line begins with `$ `"
        for number, (line, printed) in enumerate(commands, 1):
            ran = self.run(line)
            code = int(block.said.get("exits with", 0)) if number == len(commands) else 0
            assert ran.code == code, f"{block}\n$ {line}\n{ran.out}{ran.err}"
            seen = (ran.out, ran.out + ran.err, ran.err + ran.out)
            assert not printed or any(prints(text, printed) for text in seen), f"{block}\n$ {line}\n{ran.out}{ran.err}"


@pytest.mark.sample(12)
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_works_as_it_is_written(page: Path, forking: Forking, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    reader = Reader(forking, tmp_path / "page")
    for block in BLOCKS[page]:
        if not block.said.keys() & {"not run", "tested by"}:
            reader.follow(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    """And a test that a comment names runs blocks of that page."""
    for block in BLOCKS[page]:
        if block.language in ("", "text", "bash", "sh", "shell") and "tested by" not in block.said:
            assert not COMMAND.search(block.text), f"{block}: only blocks of the language `console` are run"
        said = {"files made by", "exits with", "not run", "tested by", "demo"}
        assert block.said.keys() <= said, f"{block}: {block.said}"
        if "not run" in block.said:
            assert len(block.said["not run"].split()) > 3, f"{block}: say why it is not run"
        elif test := block.said.get("tested by"):
            assert page.name in (ROOT / test).read_text(encoding="utf-8"), f"{block}: {test} does not name the page"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_in_a_sentence_have_flags_that_exist(page: Path) -> None:
    """`paramtool COMMAND --flag` in a sentence or a table."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for line in re.findall(r"`paramtool ([a-z][a-z-]* [^`]*)`", prose):
        name, *words = line.replace("\n", " ").split()
        found = cli.get_command(click.Context(cli), name)
        assert found is not None, line
        known = {flag for one in found.params for flag in one.opts} | {"--help"}
        assert {word.partition("=")[0].strip("[]") for word in words if word.startswith("--")} <= known, line


def test_every_setup_is_used() -> None:
    made = {name for name, one in vars(setups).items() if getattr(one, "__module__", "") == setups.__name__}
    used = {block.said.get("files made by", "") for found in BLOCKS.values() for block in found} - {""}
    assert {name for name in made if not name.startswith("_") and name.islower()} == used


def test_a_page_that_says_something_else_is_found() -> None:
    """The test above can fail."""
    assert prints("a\nb\nc\n", ["a", "...", "c"]) and prints("a\n", ["a"])
    assert not prints("a\nb\n", ["a"]) and not prints("a\n", ["b", "..."])
    assert prints("in 1.3 s, b3:12ab\n", ["in 4.0 s, b3:..."]) and not prints("a b\n", ["a ...c"])


def test_a_diff_of_each_verdict_is_shown() -> None:
    """The page with an example of each has each, by the words of the rows."""
    found = BLOCKS[DOCS / "how-to" / "read-a-diff.md"]
    shown = {line.split("  ")[0] for block in found for _, printed in block.commands() for line in printed}
    assert shown >= set(LABELS.values())
