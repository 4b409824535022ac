"""How a line to be typed looks in what a command prints: the only place of the tests that knows it.

next  paramtool dedup a.pt  would write ...        a cell of a row: commands, and Python that loads an output
hint: paramtool guess a.pt looks at the values     in a hint: up to what no command takes
`paramtool inspect a.pt` lists what is in it       between backquotes
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from paramtool.cli.main import cli

PYTHON = ("paramtool.", "torch.", "peft.")
"""What lines of Python begin with."""
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]+(\.[A-Za-z]+)?|\.\.\.|\[.*|NAME\..*|'?<.*|[A-Z]+/[A-Z]+")
"""A word that stands for one of the user: FILE, OUT, NAME.pt."""


def commands(out: str, err: str) -> Iterator[list[str]]:
    """The words after `paramtool` of each command that was printed, in order; without those that have placeholders."""
    for line in out.splitlines():
        for cell in line.split("  "):
            if cell.startswith("paramtool "):
                yield shlex.split(cell)[1:]
    text = "\n".join((out, err))
    for quoted in re.findall(r"`paramtool ([^`]+)`", text):
        yield from _known(shlex.split(quoted))
    for hint in re.findall(r"^hint: (.*)$", err, re.MULTILINE):
        for part in re.split("; | and ", hint):
            if found := re.search(r"(?:^|: |or )paramtool (\w.*)", part):
                yield from _known(shlex.split(found[1].replace("'s ", " ")))


def python(out: str) -> Iterator[str]:
    """The lines of Python."""
    for line in out.splitlines():
        for cell in line.split("  ")[1:]:
            if cell.startswith(PYTHON) and cell.endswith(")"):
                yield cell


def flags(err: str) -> Iterator[str]:
    """The flags that hints offer for the command that failed, those without a value."""
    for hint in re.findall(r"^hint: (.*)$", err, re.MULTILINE):
        yield from re.findall(r"(?<!\S)(--(?:skip-unsupported|plain|allow-unknown))(?= )", hint)


def _known(words: list[str]) -> Iterator[list[str]]:
    """The words of a command up to where prose begins."""
    name, *rest = words
    command = cli.get_command(click.Context(cli), name)
    if command is None or any(PLACEHOLDER.fullmatch(word) for word in rest):
        return
    takes = {word: not getattr(one, "is_flag", False) for one in command.params for word in one.opts}
    found, wants = [name], False
    paths = 0
    for word in rest:
        if not wants and not word.startswith("-"):
            paths += 1
            if paths > 1 and name not in ("diff", "lock", "check"):
                break
        found.append(word)
        wants = takes.get(word, False)
    yield found
