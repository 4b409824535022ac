"""Work is bounded: the worst files that we know cost time and memory in proportion to their bytes, and no more.

Steps are lines of this program that run, and functions of others that it calls; what C code does without them shows in
the memory that it takes, and in the seconds of the long test (PARAMTOOL_HARD=1).
"""

from __future__ import annotations

import gc
import math
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from paramtool.commands import inspect as inspect_command
from paramtool.errors import ParamtoolError
from paramtool.formats import scan
from paramtool.formats.pickle import values as pickle_values
from paramtool.formats.torch import names as torch_names
from paramtool.formats.zip import directory as zip_directory
from tests.examples import IS_HARD
from tests.hostile.worst import WORST
from tests.patience import PATIENCE

EXPONENT = 1.2
"""Four times as many bytes may cost 4 ** 1.2 = 5.3 times as much."""
SMALL = 2048 if IS_HARD else 512
FEW_STEPS, FEW_NBYTES = 10_000, 150_000
"""Below these the growth says nothing: what is imported, and made once."""
NBYTES_PER_BYTE = 700
"""Of memory, for each byte of the file."""
FREE_NBYTES = 3 << 20


class Cost(NamedTuple):
    """What describing a file took."""

    size: int
    steps: float
    nbytes: float


@pytest.fixture
def low_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What any file may cost, however small it is, is made small, so that it hides nothing in small files."""
    monkeypatch.setattr(torch_names, "MIN_PLACES", 1000)
    monkeypatch.setattr(torch_names, "MIN_TENSORS", 500)
    monkeypatch.setattr(torch_names, "MIN_CHARACTERS", 10_000)
    monkeypatch.setattr(zip_directory, "MIN_INFLATED_NBYTES", 10_000)
    monkeypatch.setattr(scan, "MIN_WORK_NBYTES", 10_000)
    monkeypatch.setattr(pickle_values, "MIN_DEFLATED_OBJECTS", 1000)


def described(path: Path) -> None:
    """The work: whether the file is taken or refused does not matter here."""
    with suppress(ParamtoolError):
        inspect_command.inspect(path)


def steps(work: Callable[[], object]) -> int:
    """Lines of paramtool that run, and calls of all functions."""
    count = 0

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return line if "paramtool" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def peak(work: Callable[[], object]) -> int:
    """The most bytes of memory that Python objects took at one time."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def made(key: str, folder: Path, n: int) -> tuple[Path, int]:
    """One of the worst files, and how many bytes it has with those beside it."""
    place = folder / f"{n}"
    place.mkdir()
    path = WORST[key](place, n)
    return path, sum(file.stat().st_size for file in place.iterdir())


def cost(key: str, folder: Path, n: int) -> Cost:
    """What describing one of the worst files takes."""
    path, size = made(key, folder, n)
    if n == SMALL:
        described(path)  # what is imported for it, and compiled
    nbytes = peak(lambda: described(path)) if IS_HARD or n > SMALL else 0
    return Cost(size, steps(lambda: described(path)), nbytes)


def exponent(less: float, more: float, growth: float) -> float:
    """How a cost grows with the size; 1 is linear."""
    return math.log(max(more, 1) / max(less, 1)) / math.log(growth)


@pytest.mark.usefixtures("low_floors")
@pytest.mark.sample(8)
@pytest.mark.parametrize("key", WORST, ids=lambda key: key.replace(": ", "-"))
def test_work_grows_as_the_file_does(key: str, tmp_path: Path) -> None:
    """Steps, and in `make hard` memory, at n and at 4 n; and memory for each byte.

    Where a limit is met between the two, and what was read is looked through for what it calls, the next ones count.
    """
    found = cost(key, tmp_path, SMALL), cost(key, tmp_path, 4 * SMALL)
    if grows(*found):
        found = found[1], cost(key, tmp_path, 16 * SMALL)
    assert not grows(*found), found
    assert all(one.nbytes < FREE_NBYTES + NBYTES_PER_BYTE * one.size for one in found), found


def grows(small: Cost, large: Cost) -> bool:
    """Whether a file of four times as many bytes costs more than that."""
    steps_grow = large.steps > FEW_STEPS and exponent(small.steps, large.steps, 4) > EXPONENT
    is_much = small.nbytes > 0 and large.nbytes > FEW_NBYTES
    return steps_grow or (is_much and exponent(small.nbytes, large.nbytes, 4) > EXPONENT)


def quadratic(n: int) -> Iterator[int]:
    """What must be seen."""
    for k in range(n):
        yield sum(1 for _ in range(k))


def test_what_is_quadratic_is_seen() -> None:
    """The instrument itself: loops without calls, calls of other code, and memory."""

    def lines(n: int) -> None:
        from paramtool.formats.torch import names as torch_names

        torch_names.names_of([(f"{k}",) for k in range(n)] + [("x" * n,)] * n)

    def loop(n: int) -> None:
        for _ in quadratic(n):
            pass

    assert exponent(steps(lambda: loop(50)), steps(lambda: loop(200)), 4) > 1.7
    assert exponent(steps(lambda: lines(200)), steps(lambda: lines(800)), 4) < EXPONENT
    assert exponent(peak(lambda: lines(500)), peak(lambda: lines(2000)), 4) > 1.7


BOMBS = ("doubled", "doubled_tensors", "long_prefix_wide", "deep_keys")
AT_MOST_NBYTES = 350 << 20
"""Of address space, an interpreter and what it imports included."""


@pytest.mark.sample(2)
@pytest.mark.parametrize("key", BOMBS)
def test_the_smallest_bombs_take_little(key: str, tmp_path: Path) -> None:
    """What any file may cost, however small it is: one of two kilobytes, in a process with little memory."""
    path, size = made(f"torch: {key}", tmp_path, 1000)
    assert size < 4000
    ran = small(path)
    assert ran.returncode in (0, 4) and "out of memory" not in ran.stderr, ran


def small(path: Path, nbytes: int = AT_MOST_NBYTES) -> subprocess.CompletedProcess[str]:
    """`inspect` in a process with little memory."""
    return subprocess.run(
        [sys.executable, "-m", "paramtool", "inspect", str(path)], capture_output=True, text=True, timeout=PATIENCE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes)),
    )  # fmt: skip


def test_files_that_once_took_gigabytes(findings: Path) -> None:
    """59 kB that inflate to 60 MB, 12,000 keys that are NaN, and a constant of 8 GB."""
    ran = small(findings / "places.pt")
    assert ran.returncode == 4 and "it is a decompression bomb" in ran.stderr, ran
    assert small(findings / "nan_keys.pt").returncode == 0
    assert small(findings / "constant.safetensors").returncode == 0
    found = inspect_command.inspect(findings / "nan_keys.pt")
    assert len(found.checkpoint.entries) == 12_000


@pytest.mark.slow
def test_the_same_bomb_without_compression(tmp_path: Path) -> None:
    """900 kB took 1.2 GB, and a third of it a third."""
    count = 900_000 if IS_HARD else 300_000
    path, size = made("torch: doubled", tmp_path, count)
    ran = small(path)
    assert size > count and ran.returncode == 4 and "it is a bomb" in ran.stderr, ran


@pytest.mark.slow
@pytest.mark.parametrize("mega", [240, 270, 300, 320] if IS_HARD else [300])
def test_too_little_memory_is_said_in_a_line(mega: int, tmp_path: Path) -> None:
    """What the command held is released before its end is described; CPython itself gives up in several ways."""
    path, _ = made("torch: doubled", tmp_path, 900_000)
    ran = small(path, mega << 20)
    assert (ran.returncode, ran.stderr.count("\n")) in ((3, 2), (4, 2)) and "error: " in ran.stderr, ran


@pytest.mark.skipif(not IS_HARD, reason="make hard")
@pytest.mark.parametrize("key", WORST)
def test_seconds_grow_as_the_file_does(key: str, tmp_path: Path) -> None:
    """Processor time at 128 and 512 kB, with room for noise: it sees what C code does without being told."""
    seconds: list[float] = []
    sizes: list[int] = []
    for n in (1 << 17, 1 << 19):
        path, size = made(key, tmp_path, n)
        described(path)
        gc.collect()
        before = time.process_time()
        described(path)
        seconds.append(time.process_time() - before)
        sizes.append(size)
    assert seconds[1] < 30, seconds
    if sizes[1] > 2 * sizes[0] and seconds[1] > 0.5:
        assert exponent(seconds[0], seconds[1], sizes[1] / sizes[0]) < 1.4, (seconds, sizes)
