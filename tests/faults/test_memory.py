"""A request for memory fails, as where a limit is reached: exit code 3 in one line, the old output or the new one whole.

Requests of Python's objects are met by CPython's own `_testcapi.set_nomemory`, once each: Python has no memory left to
say anything in where all fail.  Those of buffers are met by the library of `shim.c`, once, or all from one on.
"""

from __future__ import annotations

import importlib.util
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import IS_HARD
from tests.faults.commands import CALLED, one_word
from tests.faults.judging import BAD_WORDS, leftovers, output_state, touched
from tests.faults.picking import Try, complaints, nothing_wrong
from tests.faults.serving import Case, Command, Desk, Ended, listing

BUFFER = 2048
"""Bytes: what is as large as this is a buffer, or the table of a large dict."""
COUNT = 200 if IS_HARD else 6
HDF5 = (".h5", ".hdf5")
"""Files that h5py begins in this process: where it has no memory, HDF5's own library fails in many ways, and crashes."""
FIRST, LAST = 1, 400_000
"""Numbers of requests of Python that are tried; a command that has fewer ends as usual."""

def starved(case: Case, ended: Ended, folder: Path) -> Iterator[str]:
    """What is wrong after a request failed: somebody may have gone on without, and then all is as usual."""
    after = listing(folder)
    state = output_state(case, after) if case.command.output else ""
    yield from touched(case, after)
    for word in BAD_WORDS:
        if word in ended.err:
            yield f"it says {word!r}"
    if name := next(iter(leftovers(case, after)), ""):
        yield f"it left {name}"
    if state not in ("old", "new", ""):
        yield state
    if ended.code == 0:
        if state == "old":
            yield "exit 0, and the output is old"
    elif ended.code not in (3, 7):
        yield f"exit {ended.code}"
    elif not re.search(r"^error: .*memory", ended.err, re.MULTILINE | re.IGNORECASE):
        yield f"exit {ended.code}, and it does not say why"


def _tries(case: Case, desk: Desk, least: int) -> Iterator[Try]:
    last = LAST
    if least:
        ended, folder = desk.run(case, memory=[1 << 60, least, False])
        shutil.rmtree(folder)
        assert ended.code == 0, ended
        last = int(ended.lines[-1])
    lot = random.Random(f"memory {case.command.name}")
    for _ in range(COUNT):
        at = lot.randint(FIRST, last) if least else int(FIRST * (LAST / FIRST) ** lot.random())
        for stays in (False, True) if least else (False,):
            what = f"request {at} of {least} bytes fails{', and all after it' if stays else ''}"
            yield what, [], {"memory": [at, least, stays]}, lambda ended, folder: starved(case, ended, folder)


@pytest.mark.sample(3)
@pytest.mark.parametrize("command", [one for one in CALLED if not one.output.endswith(HDF5)], ids=one_word)
def test_a_buffer_cannot_be_had(desk: Desk, command: Command) -> None:
    case = desk.case(command)
    nothing_wrong(complaints(desk, case, _tries(case, desk, BUFFER)))


@pytest.mark.skipif(not importlib.util.find_spec("_testcapi"), reason="this Python was built without its own tests")
@pytest.mark.sample(3)
@pytest.mark.parametrize("command", CALLED, ids=one_word)
def test_an_object_cannot_be_made(desk: Desk, command: Command) -> None:
    case = desk.case(command)
    nothing_wrong(complaints(desk, case, _tries(case, desk, 0)))
