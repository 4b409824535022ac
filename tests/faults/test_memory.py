"""A request for memory fails, as where a limit is reached: exit code 3, and the old output or the new one whole.

Requests of Python's objects are met by CPython's own `_testcapi.set_nomemory`, once each: Python has no memory left to
say anything in where all fail.  Those of buffers are met by the library of `shim.c`, once, or all from one on.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from paramtool.engine.write import staging
from paramtool.errors import internal
from tests.examples import IS_HARD
from tests.faults.commands import CALLED, one_word
from tests.faults.judging import BAD_WORDS, TEMPORARY, leftovers, output_state, touched
from tests.faults.picking import Try, complaints, nothing_wrong
from tests.faults.serving import Case, Command, Desk, Ended, listing
from tests.hostile.command import quick
from tests.patience import PATIENCE

BUFFER = 2048
"""Bytes: what is as large as this is a buffer, or the table of a large dict."""
COUNT = 200 if IS_HARD else 6
HDF5 = (".h5", ".hdf5")
"""Files that h5py begins in this process: without memory, HDF5's own library fails in many ways, and crashes."""
FIRST, LAST = 100, 400_000
"""Numbers of requests of Python that are tried: before, its streams are not ready; after, most commands have ended."""


def starved(case: Case, stays: bool, ended: Ended, folder: Path) -> Iterator[str]:
    """What is wrong after a request failed: somebody may have gone on without, and then all is as usual.

    To list a folder needs a buffer: where there is none any more, a folder in the making stays for the next run, as
    after a kill; and so it is where a library written in Rust ends the process.  `ast.literal_eval`, which reads
    NumPy's headers, says of one that is nested too deep what it says where there is no memory.
    """
    after = listing(folder)
    state = output_state(case, after) if case.command.output else ""
    is_killed = ended.code == -signal.SIGABRT and "memory allocation of" in ended.err
    yield from touched(case, after)
    for word in BAD_WORDS:
        if word in ended.err:
            yield f"it says {word!r}"
    for name in leftovers(case, after):
        if not ((stays or is_killed) and TEMPORARY.fullmatch(name)):
            yield f"it left {name}"
    if state not in ("old", "new", ""):
        yield state
    if ended.code == 0:
        if state == "old":
            yield "exit 0, and the output is old"
    elif not is_killed and ended.code not in (3, 7):
        yield f"exit {ended.code}"
    elif not re.search(r"^error: .*memory|^memory allocation of|the header is ", ended.err, re.MULTILINE):
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
        at = lot.randint(1, last) if least else int(FIRST * (LAST / FIRST) ** lot.random())
        for stays in (False, True) if least else (False,):
            what = f"request {at} of {least} bytes fails{', and all after it' if stays else ''}"
            yield what, [], {"memory": [at, least, stays]}, partial(starved, case, stays)


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


class _Starving:
    """zlib where it cannot have its window: what Python says then (Z_MEM_ERROR)."""

    eof, unconsumed_tail = False, b""

    def decompress(self, data: bytes, most: int) -> bytes:
        raise zlib.error("Error -4 while decompressing data")


@pytest.mark.parametrize("at", range(1, 7))
def test_zlib_has_no_memory(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a file is inflated: that is no damage of the file, and nothing of it passes unseen."""
    np.savez_compressed(tmp_path / "a.npz", w=np.arange(9.0))
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}, 2))
    (tmp_path / "a.gz").write_bytes(gzip.compress(pickle.dumps({}, 2)))
    made, make = count(1), zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", lambda *said: _Starving() if next(made) == at else make(*said))
    for words in (("dedup", "a.npz", "-o", "a.safetensors"), ("inspect", "a.pt"), ("inspect", "a.gz")):
        made = count(1)
        ran = quick(*words, cwd=tmp_path)
        starved_here = next(made) > at
        assert not starved_here or (ran.code == 3 and ran.err.startswith("error: out of memory")), ran
        assert starved_here or at > 1


IGNORED = """
import sys, _testcapi
from paramtool.cli import main

class Program:
    name = "paramtool"
    def main(self, **said):
        def generator():
            yield
        for n in range(20):
            one = generator()
            next(one)
            _testcapi.set_nomemory(n, n + 1)
            try:
                del one
            except MemoryError:
                pass
            finally:
                _testcapi.remove_mem_hooks()
            one = None
        return 1

exits, tried = sys.exit, []
def starve(code):
    tried.append(code)
    if len(tried) == 1:
        raise MemoryError
    exits(code)
sys.exit = starve
main.main(Program())
"""


@pytest.mark.skipif(not importlib.util.find_spec("_testcapi"), reason="this Python was built without its own tests")
def test_a_lock_that_python_cannot_make_is_memory() -> None:
    """As `open` says it where that fails (_buffered_init of Modules/_io/bufferedio.c)."""
    assert internal(RuntimeError("can't allocate read lock")).exit_code == 3
    assert internal(RuntimeError("another")).exit_code == 70


def test_nothing_is_said_of_a_generator_that_ends_without_memory() -> None:
    """Its frame is freed all the same; and the code of a command that has ended stays."""
    done = subprocess.run([sys.executable, "-c", IGNORED], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_name_that_cannot_be_kept_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory ends after a temporary file was made, where the run would remember it."""

    def starve(name: str, is_folder: bool) -> int | None:
        os.close(created(name, is_folder) or 0)
        raise MemoryError

    created = staging.create
    np.savez(tmp_path / "a.npz", w=np.arange(9.0))
    monkeypatch.setattr(staging, "create", starve)
    ran = quick("dedup", "a.npz", "-o", "a.safetensors", cwd=tmp_path)
    assert ran.code == 3 and ran.err.startswith("error: out of memory"), ran
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("step", ["private", "_locked", "is_still"])
def test_what_is_begun_without_memory_is_removed(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the making of a temporary file and the lock on it."""

    def starve(*args: object) -> None:
        raise MemoryError

    np.savez(tmp_path / "a.npz", w=np.arange(9.0))
    monkeypatch.setattr(staging, step, starve)
    ran = quick("dedup", "a.npz", "-o", "a.safetensors", cwd=tmp_path)
    assert ran.code == 3 and ran.err.startswith("error: out of memory"), ran
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
