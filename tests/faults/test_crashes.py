"""The machine stops after each call: what was not flushed may be lost, and an output is old or new all the same.

The order of writes, flushes and renames is recorded by the library of `shim.c`.  A run is killed after each call that
changes anything.  Every file that was written and not flushed after that then loses all that was written, or half of
it, or its bytes become zeros, as file systems leave it.  Names change in their order, and each change is whole, as the
journals of ext4, XFS and btrfs promise; so what is lost of them is a state of an earlier call.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.examples import IS_HARD
from tests.faults.commands import WRITING
from tests.faults.judging import output_state
from tests.faults.picking import complaints, named, nothing_wrong
from tests.faults.serving import SIGNAL_AFTER, Call, Case, Command, Desk, Ended, listing

WRITES = ("write", "pwrite", "ftruncate", "fallocate", "copy_file_range", "sendfile", "clone", "create")
"""Calls that change the bytes of the last file they name."""
NAMES = ("rename", "exchange", "link", "symlink", "unlink", "mkdir", "rmdir")
"""Calls that change names."""
LOSSES: dict[str, Callable[[bytes], bytes]] = {
    "all": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
}
"""What is left of bytes that were not flushed."""


def _moved(names: set[str], one: str, other: str) -> set[str]:
    """Names after `one`, a file or a folder, got the name `other`."""
    return {
        other + name[len(one) :] if name == one or name.startswith(f"{one}{os.sep}") else name
        for name in names
        if not (name == other or name.startswith(f"{other}{os.sep}"))
    }


def _name(path: str) -> str:
    """A path of a call, from the case's folder, which itself is `.`."""
    return "." if os.path.isabs(path) else os.path.normpath(path.removesuffix(" (deleted)"))


def unflushed(calls: Iterable[Call]) -> tuple[set[str], set[str]]:
    """Files that were written after they were flushed last, and folders whose names changed after that.

    >>> unflushed([Call(1, "create", False, (".x",)), Call(2, "write", False, (".x",)),
    ...            Call(3, "rename", False, (".x", "x"))])
    ({'x'}, {'.'})
    """
    files: set[str] = set()
    folders: set[str] = set()
    for call in calls:
        paths = [_name(path) for path in call.paths]
        if call.name in WRITES:
            files.add(paths[-1])
        elif call.name == "fsync":
            files.discard(paths[0])
            folders.discard(paths[0])
        elif call.name == "rename":
            files = _moved(files, *paths)
        elif call.name == "exchange":
            files = _moved(_moved(_moved(files, paths[0], "\0"), paths[1], paths[0]), "\0", paths[1])
        elif call.name == "link" and paths[0] in files:
            files.add(paths[1])
        if call.name in NAMES and call.name not in ("unlink", "rmdir"):
            folders |= {os.path.dirname(path) or "." for path in paths}
    return files, folders


def crashed(case: Case, ended: Ended, folder: Path, desk: Desk, *, again: bool) -> Iterator[str]:
    """Whether the output is old or new after any loss, and the command can be run again."""
    assert ended.code == -signal.SIGKILL, ended
    lost = [name for name in sorted(unflushed(ended.calls)[0]) if (folder / name).is_file()]
    for loss, left in LOSSES.items():
        place = desk.fresh(folder)
        for name in lost:
            (place / name).write_bytes(left((place / name).read_bytes()))
        state = output_state(case, listing(place))
        if state not in ("old", "new"):
            yield f"{loss} of {', '.join(lost)} is lost: {state}"
        if again and state == "old":
            ran = desk.server.run(case.command.words, place)
            if ran.code != 0 or output_state(case, listing(place)) != "new":
                yield f"{loss} of {', '.join(lost)} is lost, run again: exit {ran.code}: {ran.err.strip()}"
        shutil.rmtree(place)


@pytest.mark.sample(4)
@pytest.mark.parametrize("command", WRITING, ids=lambda command: command.name)
def test_the_machine_stops_after_every_call(desk: Desk, command: Command) -> None:
    case = desk.case(command)
    calls = [call for call in case.calls if call.name in (*WRITES, *NAMES, "fsync")]
    assert any(call.name in NAMES for call in calls)
    if not IS_HARD:  # of calls of one kind on one file that follow each other, the last
        calls = [a for a, b in zip(calls, [*calls[1:], None], strict=True) if b is None or a[1::2] != b[1::2]]
    nothing_wrong(
        complaints(
            desk,
            case,
            (
                (
                    named(call, "the machine stops"),
                    [(call.at, SIGNAL_AFTER, signal.SIGKILL)],
                    {},
                    lambda ended, folder: crashed(case, ended, folder, desk, again=IS_HARD),
                )
                for call in calls
            ),
        )
    )


@pytest.mark.parametrize("command", WRITING, ids=lambda command: command.name)
@pytest.mark.sample(12)
def test_exit_0_is_on_the_disk(desk: Desk, command: Command) -> None:
    """Every byte of the output was flushed after it was written, and its folder after the output got its name."""
    case = desk.case(command)
    files, folders = unflushed(case.calls)
    mine = (command.output, f"{command.output}{os.sep}")
    assert {name for name in files if name == mine[0] or name.startswith(mine[1])} == set()
    assert {name for name in folders if name in (".", mine[0]) or name.startswith(mine[1])} == set()
