"""What terminals show is what the committed files say: `python -m tests.golden.terminal` writes them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramtool.cli._render import width
from tests.cli.test_commands import on_a_terminal
from tests.golden.terminal import COLUMNS, FOLDER, GROUPS, place, shown

LONG = ("error: ", "hint: ", "next ", "export ", "load it ", "candidate ", "file ", "$ paramtool", "Error: ")
"""Lines that people copy, and errors: a terminal continues them on its next line."""


@pytest.mark.sample(2)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("group", GROUPS)
def test_terminals_show_what_the_files_say(group: str, columns: int, tmp_path: Path) -> None:
    """Word by word."""
    kept = (FOLDER / f"{group}-{columns}.txt").read_text(encoding="utf-8")
    assert shown(columns, GROUPS[group], place(tmp_path)).splitlines() == kept.splitlines()


@pytest.mark.parametrize("columns", COLUMNS)
def test_no_line_of_a_table_is_wider_than_the_terminal(columns: int) -> None:
    """Only what people copy may be."""
    lines = (FOLDER / f"reports-{columns}.txt").read_text(encoding="utf-8").splitlines()
    wide = [line for line in lines if width(line) > columns and not line.startswith(LONG)]
    assert wide == [] and not any("…" in line for line in lines)


def test_a_real_terminal_shows_the_same(tmp_path: Path) -> None:
    """A pseudo-terminal of 80 columns, in a process of its own."""
    ran = on_a_terminal("inspect", "tied.pt", cwd=place(tmp_path), columns=80, env={"NO_COLOR": "1"})
    kept = (FOLDER / "reports-80.txt").read_text(encoding="utf-8")
    assert ran.out.replace("\r\n", "\n") in kept and ran.out.count("\n") > 10
