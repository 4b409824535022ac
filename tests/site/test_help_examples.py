"""Every example of `paramtool COMMAND --help` runs; docs/commands.md and the skill show the same lines."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from paramtool.cli.main import COMMANDS, cli
from tests.hostile.command import quick
from tests.site.blocks import DOCS
from tests.site.environment import ENVIRONMENT
from tests.site.forking import Forking, asks_transformers
from tests.site.help_setups import SETUPS


def examples(name: str) -> list[str]:
    """The lines that the help of a command shows."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.help
    return re.findall(r"^ *\$ (.*)$", command.help, re.M)


def words(line: str, folder: Path) -> Iterator[str]:
    """What a shell passes to the program."""
    for word in shlex.split(line):
        found = sorted(path.relative_to(folder).as_posix() for path in folder.glob(word)) if word[0] != "/" else []
        is_pattern = "*" in word and f"'{word}'" not in line
        yield from found if is_pattern and found else [word]


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", SETUPS)
def test_the_examples_of_the_help_run(name: str, tmp_path: Path, forking: Forking) -> None:
    """One after the other in one folder; an output whose name two of them give is removed between them."""
    folder = tmp_path / "here"
    folder.mkdir()
    ran = forking.set_up(f"help_setups.SETUPS[{name!r}]", tmp_path, folder)
    assert ran.code == 0, ran.err
    if (folder / "make.py").exists():
        assert forking.run(["python", "make.py"], folder, ENVIRONMENT).code == 0
    assert examples(name)
    for line in examples(name):
        said = [*words(line, folder)]
        shown = forking.run(said, folder, ENVIRONMENT) if asks_transformers(said) else quick(*said[1:], cwd=folder)
        assert shown.code == 0, (line, shown)
        shutil.rmtree(folder / "OUTFOLDER", ignore_errors=True)


def test_every_command_has_its_examples_run() -> None:
    assert {*COMMANDS} == {*SETUPS}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_has_the_examples(name: str) -> None:
    """docs/commands.md has each line, in the section of the command."""
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", page.partition(f"\n## {name}\n")[2], flags=re.M)[0]
    assert all(f"\n{line}\n" in section for line in examples(name))
