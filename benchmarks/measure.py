"""Runs commands in turn and measures time, peak memory and peak anonymous memory.

Only the standard library is imported, so that the peak memory of a child is its own and not that of this process.

    runs = interleaved({"cp": ["cp", a, b], "dedup": [...]}, rounds=5)
    print_table(rows(runs, base="cp"))
"""

from __future__ import annotations

import os
import pty
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
PARAMTOOL = os.path.join(os.path.dirname(sys.executable), "paramtool")
"""The console script of the environment that runs the benchmark."""
Command = Sequence[str]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
"""Modules are compiled once, as in normal use; otherwise the benchmark would measure the compiler."""


@dataclass(frozen=True, slots=True)
class Run:
    """One process, from its start to its end."""

    seconds: float
    peak_nbytes: int
    """The peak resident memory, including pages of files (`ru_maxrss`)."""
    anonymous_nbytes: int
    """The peak resident memory that belongs to no file (`RssAnon`, sampled); 0 if it was not sampled."""
    stdout: str
    processor_seconds: float = 0.0
    """User and system time of the process, without the time it waited for a core."""
    system_seconds: float = 0.0
    """Of these the time of the system."""


def run(command: Command, *, sample: bool = False, terminal: bool = False) -> Run:
    """Run a command to its end; SystemExit with its stderr if it fails.

    `terminal` connects its stdout to a terminal.
    """
    master, slave = pty.openpty() if terminal else os.pipe()
    words: list[bytes] = []
    with tempfile.TemporaryFile() as stderr:
        began = time.perf_counter()
        child = subprocess.Popen(command, stdout=slave, stderr=stderr, stdin=subprocess.DEVNULL, env=ENVIRONMENT)
        os.close(slave)
        reader = threading.Thread(target=_drain, args=(master, words))
        reader.start()
        peaks = [0]
        sampler = threading.Thread(target=_sample_anonymous, args=(child.pid, peaks))
        if sample:
            sampler.start()
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        reader.join()
        if sample:
            sampler.join()
        if child.returncode:
            stderr.seek(0)
            raise SystemExit(f"{' '.join(command)}: exit {child.returncode}\n{stderr.read().decode()}")
    used = usage.ru_utime + usage.ru_stime
    return Run(seconds, usage.ru_maxrss * 1024, peaks[0], b"".join(words).decode(), used, usage.ru_stime)


def _drain(descriptor: int, words: list[bytes]) -> None:
    try:
        while data := os.read(descriptor, 1 << 16):
            words.append(data)
    except OSError:
        pass  # a terminal gives an error after its last writer has closed it
    finally:
        os.close(descriptor)


def _sample_anonymous(pid: int, peaks: list[int]) -> None:
    """Sample the anonymous memory of a process every 5 ms until it ends."""
    while True:
        try:
            with open(f"/proc/{pid}/status") as file:
                found = [int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:")]
        except (FileNotFoundError, ProcessLookupError):
            return
        if not found:
            return  # a zombie has no memory
        peaks[0] = max(peaks[0], *found)
        time.sleep(0.005)


def interleaved(
    commands: Mapping[str, Command],
    rounds: int,
    *,
    before: Callable[[], None] = lambda: None,
    sample: bool = False,
    terminal: Sequence[str] = (),
    warm: bool = True,
) -> dict[str, list[Run]]:
    """Run the commands in turn, A B C A B C ..., after one warm-up round, unless `warm` is False.

    `before` is called before each command; commands in `terminal` get a terminal as stdout.
    """
    found: dict[str, list[Run]] = {label: [] for label in commands}
    for number in range(0 if warm else 1, rounds + 1):
        for label, command in commands.items():
            before()
            result = run(command, sample=sample, terminal=label in terminal)
            if number:
                found[label].append(result)
    return found


def median(runs: Sequence[Run]) -> float:
    """The median time in seconds."""
    return statistics.median(run.seconds for run in runs)


def rows(found: Mapping[str, Sequence[Run]], base: str) -> Iterator[tuple[str, ...]]:
    """(what, median, from - to, ratio round by round, ratio of the best, peak memory, peak anonymous memory).

    Ratios are relative to `base`.  The ratio of the best times is useful if other programs disturb some of the rounds.
    """
    for label, runs in found.items():
        times = [run.seconds for run in runs]
        ratios = [mine.seconds / theirs.seconds for mine, theirs in zip(runs, found[base], strict=True)]
        anonymous = max(run.anonymous_nbytes for run in runs)
        yield (
            label,
            _time(median(runs)),
            f"{_time(min(times))} - {_time(max(times))}",
            f"{statistics.median(ratios):.2f}",
            f"{min(times) / min(run.seconds for run in found[base]):.2f}",
            mb(max(run.peak_nbytes for run in runs)),
            mb(anonymous) if anonymous else "-",
        )


HEADER = ("what", "median", "min - max", "ratio", "of the best", "peak memory", "of it anonymous")


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def mb(nbytes: float) -> str:
    """A size in megabytes of 10^6 bytes."""
    return f"{nbytes / 1e6:.1f} MB" if nbytes < 1e7 else f"{nbytes / 1e6:.0f} MB"


def print_table(title: str, header: Sequence[str], table: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> None:
    """One Markdown table with its title above and its notes below."""
    print(f"\n**{title}**\n")
    for line in (header, ["---"] * len(header), *table):
        print("| " + " | ".join(line) + " |")
    if notes:
        print()
    for note in notes:
        print(f"- {note}")
    sys.stdout.flush()


def verdict(what: str, found: float, bound: float, unit: str = "") -> str:
    """A line that says whether a bound holds."""
    word = "holds" if found <= bound else "DOES NOT HOLD"
    return f"{what}: {found:.2f}{unit}, at most {bound:g}{unit} wanted: {word}"


@contextmanager
def folder() -> Iterator[str]:
    """A temporary folder (in `TMPDIR`), removed at the end."""
    path = tempfile.mkdtemp(prefix="paramtool-bench-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def make(kind: str, path: str, *arguments: object) -> str:
    """Make a checkpoint with `inputs.py` in a separate process; returns its path."""
    run([sys.executable, os.path.join(HERE, "inputs.py"), kind, path, *map(str, arguments)])
    return path


def machine() -> str:
    """The machine on which the figures were measured."""
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, load {load:.1f} when done, Python {sys.version.split()[0]}, {sys.platform}"
