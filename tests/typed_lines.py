"""How a line to be typed looks in what a command prints: the only place of the tests that knows it.

next  paramtool dedup a.pt  would write ...        a cell of a row: commands, and Python that loads an output
hint: paramtool guess a.pt looks at the values     in a hint: up to what no command takes
`paramtool inspect a.pt` lists what is in it       between backquotes
hint: --plain writes ...; -o NAME.pt holds them    what a hint offers for the command that failed: options of it
hint: `dedup --skip-unsupported` leaves ...        an option of another command, which stands before it
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from paramtool.cli.main import cli

PYTHON = ("paramtool.", "torch.", "peft.")
"""What lines of Python begin with."""
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]+(\.[A-Za-z]+)?|\.\.\.|\[.*|NAME\..*|'?<.*|[A-Z]+/[A-Z]+|[A-Z]=[A-Z]|.*\{.*")
"""A word that stands for one of the user: LAYOUT, MODULE, NAME.pt."""
INPUTS = ("FILE", "SRC", "INPUT")
OUTPUTS = ("OUT", "DST", "OUTPUT")
"""Words that stand for the input and for an output: a test has both."""
OPTION = re.compile(r"(?<![\w'\"-])(-o|--[a-z][a-z-]+)")
VALUE = re.compile(r""" ("[^"]*"|'[^']*(?:'"'"'[^']*)*'|[^\s,;:`]*[=./_*\d][^\s,;:`]*)""")
"""What an option takes, where no prose can be meant."""


def commands(out: str, err: str, source: str = "") -> Iterator[list[str]]:
    """The words after `paramtool` of each command that was printed, in order; without those that have placeholders.

    `source` is the command's input, of which a hint says FILE.
    """
    for line in out.splitlines():
        for cell in line.split("  "):
            if cell.startswith("paramtool "):
                yield shlex.split(cell)[1:]
    text = "\n".join((out, err))
    for quoted in re.findall(r"`paramtool ([^`]+)`", text):
        yield from _known(quoted, source)
    for hint in hints(err):
        for part in re.split("; | and ", hint):
            if found := re.search(r"(?:^|: |or )paramtool (\w.*)", part):
                yield from _known(found[1].replace("'s ", " "), source)


def python(out: str) -> Iterator[str]:
    """The lines of Python."""
    for line in out.splitlines():
        for cell in line.split("  ")[1:]:
            if cell.startswith(PYTHON) and cell.endswith(")"):
                yield cell


def hints(err: str) -> list[str]:
    return re.findall(r"^hint: (.*)$", err, re.MULTILINE)


def strange(name: str, err: str) -> Iterator[str]:
    """Options in the hints of a command that neither it has nor a command that is named beside them."""
    for hint in hints(err):
        for part in hint.split("; "):
            said = part.replace("--from (unfuse: --layout)", "--layout" if name == "unfuse" else "--from")
            words = re.findall(r"(?<![\w-])(?:--[a-z][a-z-]+|[a-z0-9]+)", said)
            if {"python", "paddle2onnx", "h5repack"}.isdisjoint(words):
                known = {one for word in (name, *words) for one in options(word)}
                yield from (word for word in words if word.startswith("--") and word not in known)


def offers(words: list[str], err: str) -> Iterator[list[str]]:
    """The commands that the hints of one that failed offer by options alone: with them, or without one.

    Not those with options that take what only the user knows.
    """
    for hint in hints(err):
        names = [*cli.list_commands(click.Context(cli))]
        command = re.compile(rf"(?<![\w-])`?({'|'.join(names)}) $")
        at, several, last = 0, list[list[str]](), words
        while found := OPTION.search(hint, at):
            before = hint[at : found.start()]
            other = command.search(before)
            name = other[1] if other else words[0]
            at, takes = found.end(), options(name).get(found[1])
            value = _value(hint[at:], before) if takes else ""
            part = hint[: found.start()].rpartition("; ")[2]
            if value is None or takes is None or "paramtool" in part or "python " in part:
                several = []
                continue
            if takes:
                at += len(value) + 1
            option = [found[1], *shlex.split(value)]
            if before.endswith("leave out "):
                yield [word for word in words if word != found[1]]
                continue
            several = [*several, option] if before == " " and several else [option]
            if not hint.startswith(f" {found[1]}", at):  # one after another: all of them
                last = _with(last if before.endswith("add ") else _same_for(name, words) if other else words, several)
                yield last
        if found := re.search(r"\bname (?:it|its folder|the f[a-z ]+): ([^\s;,]+)", hint):
            where = re.search(r"^error: (.*?): ", err, re.MULTILINE)
            for one in (where[1] if where else "", words[1]):
                if one in words:
                    yield [found[1] if word == one else word for word in words]
                    break
        if found := re.search(r"([\w., ]+?)(?: ha(?:s|ve) a place for each)?: choose the layout with", hint):
            for layout in re.findall(r"[a-z0-9]+(?:\.[a-z0-9]+)*", found[1].partition("in layout")[2] or found[1]):
                if layout not in ("or", "and"):
                    yield [*words, "--layout" if words[0] == "unfuse" else "--from", layout]


def _value(rest: str, before: str) -> str | None:
    """What an option takes, as it is written at the beginning of what follows it; None for prose and placeholders."""
    if not (found := VALUE.match(rest)) and not (before.endswith("add ") and (found := re.match(" ([^ ]+)", rest))):
        return None
    return None if PLACEHOLDER.fullmatch(found[1].strip("\"'")) else found[1]


def _with(words: list[str], several: list[list[str]]) -> list[str]:
    """A command with options, in place of what it has of those that are given once."""
    made = list(words)
    for option in several:
        if option[0] in made and option[0] == "-o":
            at = made.index("-o")
            made[at : at + 2] = []
        made += option
    return made


def _same_for(name: str, words: list[str]) -> list[str]:
    """Another command with the input and the output of one."""
    return [name, words[1], *(words[words.index("-o") : words.index("-o") + 2] if "-o" in words else [])]


def options(name: str) -> dict[str, bool]:
    """{option of a command: whether it takes a value}."""
    command = cli.get_command(click.Context(cli), name)
    if command is None:
        return {}
    return {
        word: not getattr(one, "is_flag", False) for one in command.params for word in one.opts + one.secondary_opts
    }


def _known(text: str, source: str) -> Iterator[list[str]]:
    """The words of a command up to where prose begins."""
    name, *rest = shlex.split(text)
    command = cli.get_command(click.Context(cli), name)
    if command is None or not rest:  # a name alone is no line
        return
    if source:
        rest = [source if word in INPUTS else "typed.safetensors" if word in OUTPUTS else word for word in rest]
    if any(PLACEHOLDER.fullmatch(word) for word in rest):
        return
    takes = options(name)
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
