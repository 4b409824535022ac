"""Every boundary killed: before and after each call, by each signal; the next run cleans up what the dead left."""

from __future__ import annotations

import errno
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from paramtool.cli.main import main
from tests.examples import IS_HARD
from tests.faults.commands import CALLED, SIGNALLED, WRITING
from tests.faults.judging import failed, interrupted, killed, leftovers, output_state
from tests.faults.picking import Try, complaints, named, nothing_wrong, sample
from tests.faults.serving import (
    FAIL,
    SIGNAL_AFTER,
    SIGNAL_BEFORE,
    SIGNAL_FROM,
    SIGNALS,
    Call,
    Case,
    Command,
    Desk,
    Ended,
    Server,
    listing,
)

MOVES = ("rename", "exchange", "link")
"""Calls after which something else stands under a name: here an output could be lost."""
KILLS = 2000
ENGINE, PROGRAM = "paramtool/engine/", "paramtool/cli/"

commands = pytest.mark.parametrize("command", CALLED, ids=lambda command: command.name)
writing = pytest.mark.parametrize("command", SIGNALLED, ids=lambda command: command.name)
WHEN = {"before": SIGNAL_BEFORE, "after": SIGNAL_AFTER}


def _boundaries(case: Case, seed: str) -> Iterator[tuple[Call, str]]:
    """Calls, and whether a signal comes before or after; a sample has all that move an output, and some others.

    In a sample, SIGINT and SIGHUP, which are handled like SIGTERM, come at each move once.
    """
    moves = [call for call in case.calls if IS_HARD or call.name in MOVES]
    lot = random.Random(f"{seed} {case.command.name}")
    if not IS_HARD and seed in ("INT", "HUP"):
        yield from ((call, lot.choice(list(WHEN))) for call in moves)
        return
    yield from ((call, when) for call in moves for when in WHEN)
    if not IS_HARD:
        rest = [call for call in case.calls if call.name not in MOVES]
        yield from ((call, lot.choice(list(WHEN))) for call in sample(case, rest, seed))


@pytest.mark.sample(4)
@commands
@pytest.mark.parametrize("name", [name for name in SIGNALS if name != "KILL"])
def test_a_signal_at_every_call(desk: Desk, command: Command, name: str) -> None:
    case, number = desk.case(command), SIGNALS[name]
    nothing_wrong(
        complaints(
            desk,
            case,
            (
                (
                    named(call, f"SIG{name} {when}"),
                    [(call.at, WHEN[when], number)],
                    {},
                    lambda ended, folder: interrupted(case, ended, folder, number),
                )
                for call, when in _boundaries(case, name)
            ),
        )
    )


@pytest.mark.sample(2)
@writing
def test_killed_at_every_call(desk: Desk, command: Command) -> None:
    case = desk.case(command)
    nothing_wrong(
        complaints(
            desk,
            case,
            (
                (
                    named(call, f"SIGKILL {when}"),
                    [(call.at, WHEN[when], signal.SIGKILL)],
                    {},
                    lambda ended, folder: killed(case, ended, folder, desk),
                )
                for call, when in _boundaries(case, "KILL")
            ),
        )
    )


@pytest.mark.sample(2)
@writing
def test_more_signals_while_it_cleans(desk: Desk, command: Command) -> None:
    """After the first signal one more at every call: nothing is left all the same."""
    case = desk.case(command)
    calls = [call for call in case.calls if any(path.split("/")[0] != "tmp" for path in call.paths)]
    nothing_wrong(
        complaints(
            desk,
            case,
            (
                (
                    named(call, "SIGTERM, and SIGINT at every call after it,"),
                    [(call.at, SIGNAL_AFTER, signal.SIGTERM), (call.at + 1, SIGNAL_FROM, signal.SIGINT)],
                    {},
                    lambda ended, folder: interrupted(case, ended, folder, signal.SIGTERM, signal.SIGINT),
                )
                for call in sample(case, calls, "more")
            ),
        )
    )


@pytest.mark.sample(2)
@writing
def test_a_signal_at_every_line_of_the_engine(desk: Desk, command: Command) -> None:
    """What stands between two calls is no gap either."""
    case = desk.case(command)
    usual, folder = desk.run(case, lines=[0, "", ENGINE])
    shutil.rmtree(folder)
    lines = list(dict.fromkeys(usual.lines))
    assert lines
    if not IS_HARD:
        staging = [line for line in lines if line.startswith("staging")]
        lot = random.Random(f"lines {command.name}")
        lines = sorted({*lot.sample(staging, min(5, len(staging))), *lot.sample(lines, min(5, len(lines)))})
    number = signal.SIGTERM
    nothing_wrong(
        complaints(
            desk,
            case,
            (
                (
                    f"SIGTERM at line {line}, for the first time",
                    [],
                    {"lines": [number, line, ENGINE]},
                    lambda ended, folder: interrupted(case, ended, folder, number),
                )
                for line in lines
            ),
        )
    )


@pytest.mark.parametrize("words", [("inspect", "."), ("inspect", "nothing", "--json")], ids=" ".join)
def test_a_signal_at_every_line_of_the_program(desk: Desk, words: tuple[str, ...]) -> None:
    """Also while an error is said, and when the command is done, until its exit code is known."""
    case = desk.case(Command("program", ("inspect", "."), "", _one_file))
    case = replace(case, command=replace(case.command, words=words))
    usual, folder = desk.run(case, lines=[0, "", PROGRAM])
    shutil.rmtree(folder)
    lines = list(dict.fromkeys(usual.lines))
    source = Path(sys.modules[main.__module__].__file__ or "").read_text().splitlines()
    ends = (
        next(number for number, line in enumerate(source, 1) if word in line) for word in ("program.main(", "exit(")
    )
    first, last = (lines.index(f"main.py:{number}") for number in ends)
    for line in lines[first : last + 1]:
        ended, folder = desk.run(case, lines=[signal.SIGTERM, line, PROGRAM])
        shutil.rmtree(folder)
        assert (ended.code, "Traceback" in ended.err) == (128 + signal.SIGTERM, False), (line, ended)


def _one_file(folder: Path, server: Server) -> None:
    save_file({"w": np.zeros(3, np.float32)}, folder / "model.safetensors")


def _plain(case: Case) -> Call:
    """The call that moves the output to its place with a promise of renameat2."""
    return next(call for call in case.calls if call.name in ("rename", "exchange") and call.paths[0].startswith("."))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "command",
    [one for one in SIGNALLED if one.name not in ("dedup-force", "lock-force")],
    ids=lambda command: command.name,
)  # a file over a file is one plain rename everywhere
def test_where_names_cannot_be_exchanged(desk: Desk, command: Command) -> None:
    """A file system without the flags of renameat2: the same by other calls, each of which is met by signals.

    In a sample, SIGTERM comes on one side of a call that moves nothing, and SIGKILL on the other.
    """
    case = desk.case(command)
    plain = _plain(case)
    rule = (plain.at, FAIL, errno.EINVAL)
    usual, folder = desk.run(case, rule)
    wrong = [f"{command.name}: {line}" for line in failed(case, usual, folder, survived=True)]
    shutil.rmtree(folder)
    calls = [call for call in usual.calls if call.at > plain.at]
    number = signal.SIGTERM

    def tries() -> Iterator[Try]:
        for k, call in enumerate(sample(case, calls, "plain")):
            sides = list(WHEN) if IS_HARD or call.name in MOVES else [("before", "after")[k % 2]]
            for when in sides:
                other = when if len(sides) > 1 else ("after", "before")[k % 2]
                yield (
                    named(call, f"no exchange, SIGTERM {other}"),
                    [rule, (call.at, WHEN[other], number)],
                    {},
                    lambda ended, folder: interrupted(case, ended, folder, number),
                )
                yield (
                    named(call, f"no exchange, SIGKILL {when}"),
                    [rule, (call.at, WHEN[when], signal.SIGKILL)],
                    {},
                    lambda ended, folder: killed(case, ended, folder, desk, gap=True),
                )

    nothing_wrong([*wrong, *complaints(desk, case, tries())])


@pytest.mark.parametrize("name, move", [("dedup-force", "rename"), ("dedup-folder-force", "exchange")])
def test_an_old_output_is_replaced_in_one_call(desk: Desk, name: str, move: str) -> None:
    case = desk.case(next(command for command in WRITING if command.name == name))
    output = case.command.output
    moves = [call for call in case.calls if call.name in ("unlink", "rmdir", *MOVES) and output in call.paths]
    assert [call.name for call in moves] == [move], case.calls


@pytest.mark.parametrize("name", ("dedup-folder-force", "family-force"))
def test_an_old_output_that_was_away_is_put_back(desk: Desk, name: str) -> None:
    """Killed between the two renames that stand for an exchange: a run that only fails puts it back, and says so."""
    case = desk.case(next(command for command in WRITING if command.name == name))
    plain = _plain(case)
    rule = (plain.at, FAIL, errno.EINVAL)
    usual, folder = desk.run(case, rule)
    shutil.rmtree(folder)
    away = next(call for call in usual.calls if call.at > plain.at and call.name == "rename")
    assert away.paths[0] == case.command.output
    ended, folder = desk.run(case, rule, (away.at, SIGNAL_AFTER, signal.SIGKILL))
    assert ended.code == -signal.SIGKILL and not (folder / case.command.output).exists()
    again = desk.server.run([word for word in case.command.words if word != "--force"], folder)
    assert again.code == 7 and "--force" in again.err, again
    assert output_state(case, listing(folder)) == "old"
    assert "put back" in again.err + again.out, again
    assert not leftovers(case, listing(folder))
    shutil.rmtree(folder)


@pytest.mark.skipif(not IS_HARD, reason="make hard: 2,000 kills at any moment")
@writing
def test_killed_at_any_moment(desk: Desk, command: Command) -> None:
    """SIGKILL after a time that nobody chose; what a line of Python leaves half done is met as well."""
    case = desk.case(command)
    lot = random.Random(f"moments {command.name}")
    begun = time.monotonic()
    for _ in range(5):
        _, folder = desk.run(case)
        shutil.rmtree(folder)
    usual = (time.monotonic() - begun) / 5

    def delayed() -> Iterator[Try]:
        for _ in range(-(-KILLS // len(WRITING))):
            seconds = lot.uniform(0, usual * 1.1)
            yield f"SIGKILL after {seconds:.4f} s", [], {"kill_after": seconds}, judge

    def judge(ended: Ended, folder: Path) -> Iterator[str]:
        return killed(case, ended, folder, desk)

    nothing_wrong(complaints(desk, case, delayed()))
