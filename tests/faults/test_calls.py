"""Every call fails once: the documented exit code, the old output or the new one whole, nothing left behind."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.commands import CALLED, one_word
from tests.faults.judging import failed
from tests.faults.picking import ERRORS, Judge, complaints, named, nothing_wrong, sample, turn
from tests.faults.serving import FAIL, FAIL_FROM, SHORT, Case, Command, Desk, Ended

WAITS = ("open", "create", "read", "pread", "write", "pwrite", "copy_file_range", "sendfile", "fallocate", "ftruncate",
         "fsync", "lock")  # fmt: skip
"""Calls that POSIX lets end with EINTR."""
MOVES = ("read", "pread", "write", "pwrite", "copy_file_range", "sendfile")
"""Calls that may do less than was asked for."""
STAYS = {"write": "ENOSPC", "pwrite": "ENOSPC", "create": "ENOSPC", "mkdir": "ENOSPC", "fallocate": "ENOSPC",
         "ftruncate": "ENOSPC", "copy_file_range": "ENOSPC", "sendfile": "ENOSPC", "read": "EIO", "pread": "EIO",
         "fsync": "EIO", "unlink": "EACCES", "rmdir": "EACCES", "rename": "EACCES", "exchange": "EACCES",
         "link": "EACCES", "open": "EACCES", "mmap": "EIO", "chmod": "EACCES", "lock": "EIO"}  # fmt: skip
"""Errors that last: a disk that is full stays full."""

commands = pytest.mark.parametrize("command", CALLED, ids=lambda command: command.name)


@pytest.mark.sample(4)
@commands
@pytest.mark.parametrize("error", ERRORS)
def test_a_call_fails(desk: Desk, command: Command, error: str) -> None:
    case = desk.case(command)
    calls = turn(case, case.calls, list(ERRORS).index(error), len(ERRORS))
    nothing_wrong(
        complaints(
            desk,
            case,
            (
                (named(call, error), [(call.at, FAIL, ERRORS[error])], {}, _judge(case))
                for call in sample(case, calls, error)
            ),
        )
    )


@pytest.mark.sample(2)
@commands
def test_a_call_fails_from_then_on(desk: Desk, command: Command) -> None:
    case = desk.case(command)
    calls = [call for call in case.calls if call.name in STAYS]
    nothing_wrong(
        complaints(
            desk,
            case,
            (
                (
                    named(call, f"{STAYS[call.name]} from then on"),
                    [(call.at, FAIL_FROM, ERRORS[STAYS[call.name]])],
                    {},
                    _judge(case),
                )
                for call in sample(case, calls, "stays")
            ),
        )
    )


@pytest.mark.sample(2)
@commands
def test_a_call_that_was_interrupted_is_made_again(desk: Desk, command: Command) -> None:
    case = desk.case(command)
    calls = [call for call in case.calls if call.name in WAITS]
    nothing_wrong(
        complaints(
            desk,
            case,
            (
                (named(call, "EINTR"), [(call.at, FAIL, errno.EINTR)], {}, _judge(case, survived=True))
                for call in sample(case, calls, "EINTR")
            ),
        )
    )


@pytest.mark.sample(4)
@commands
def test_a_call_does_less_than_was_asked_for(desk: Desk, command: Command) -> None:
    case = desk.case(command)
    calls = [call for call in case.calls if call.name in MOVES]
    nothing_wrong(
        complaints(
            desk,
            case,
            (
                (named(call, "one byte"), [(call.at, SHORT, 1)], {}, _judge(case, survived=True))
                for call in sample(case, calls, "one byte")
            ),
        )
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("command", CALLED, ids=one_word)
@pytest.mark.parametrize("error", ("EIO", "EACCES"))
def test_a_look_fails(desk: Desk, command: Command, error: str) -> None:
    """What a name leads to cannot be asked: that may look as if it were not there, but never passes in silence."""
    case = desk.case(command)
    looks = [call for call in desk.looking(case) if call.name == "stat"]

    def judge(ended: Ended, folder: Path) -> Iterator[str]:
        return failed(case, ended, folder, codes=(2, 3, 7))

    nothing_wrong(
        complaints(
            desk,
            case,
            (
                (named(call, error), [(call.at, FAIL, ERRORS[error])], {"looks": True}, judge)
                for call in sample(case, looks, error, many=2)
            ),
        )
    )


def _judge(case: Case, survived: bool = False) -> Judge:
    def judge(ended: Ended, folder: Path) -> Iterator[str]:
        return failed(case, ended, folder, survived=survived)

    return judge
