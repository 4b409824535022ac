"""docs/commands.md says what the command line says: every command, option, example and exit code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import pytest

from paramtool.cli.main import COMMANDS, cli

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "commands.md").read_text(encoding="utf-8")


def section(name: str) -> str:
    """The part of the page about a command."""
    return re.split(r"^## ", PAGE.partition(f"\n## {name}\n")[2], flags=re.M)[0]


def test_the_page_is_made_from_the_command_line() -> None:
    """`python docs/make_commands.py` would change nothing."""
    sys.path.insert(0, str(DOCS))
    try:
        from make_commands import document
    finally:
        sys.path.remove(str(DOCS))
    assert document() == PAGE, "run: python docs/make_commands.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_has_its_row(name: str) -> None:
    """With words, in the section of the command or among the options of every command."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    text = section(name) + section("Options of every command")
    for option in (one for one in command.params if isinstance(one, click.Option) and not one.hidden):
        for spelling in option.opts:
            assert re.search(rf"^\| .*`{spelling}[` ].* \| \S.* \|$", text, re.M), spelling


@pytest.mark.parametrize("name", COMMANDS)
def test_each_exit_code_has_its_row(name: str) -> None:
    """Those that --help lists, and no code that docs/exit-codes.md lacks."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.epilog is not None
    told = re.findall(r"(?:: |, |; )(\d) ", command.epilog[command.epilog.index("Exit codes") :])
    assert re.findall(r"^\| (\d+) \| \S.* \|$", section(name), re.M) == told and told
    known = (DOCS / "exit-codes.md").read_text(encoding="utf-8")
    assert all(re.search(rf"^\| {code} \|", known, re.M) for code in told)
