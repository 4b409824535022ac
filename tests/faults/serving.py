"""The near end of `server.py`: builds the library, starts the process, and runs commands that meet faults in it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FAIL, FAIL_FROM, SHORT, SIGNAL_BEFORE, SIGNAL_AFTER, SIGNAL_FROM = range(1, 7)
"""What is done at a call, as in shim.c."""
LOOKING = ("stat", "fstat")
"""Calls that are counted only where it is asked for."""


def missing() -> str:
    """Why faults cannot be made here; empty where they can."""
    if sys.platform != "linux":
        return "a library is loaded before libc on Linux only"
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return "there is no C compiler"
    if platform.libc_ver()[0] != "glibc":
        return "the library is written for glibc"
    return ""


def build(folder: Path) -> Path:
    """The library of shim.c."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    library = folder / "shim.so"
    flags = ("-std=gnu11", "-O1", "-fPIC", "-shared")
    subprocess.run([compiler, *flags, "-o", str(library), str(HERE / "shim.c"), "-ldl"], check=True)
    return library


class Call(NamedTuple):
    """A call that touched the case's folder."""

    at: int
    name: str
    hit: bool
    paths: tuple[str, ...]
    """From the case's folder; a file without a name ends in `(deleted)`."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run left."""

    code: int | str | None
    """As a shell says it, but negative for a signal's number; None where it stopped and waits."""
    out: str
    err: str
    calls: list[Call]
    pid: int = 0
    lines: tuple[str, ...] = ()
    """`file:line` of what was run, where it was asked for."""

    @property
    def hit(self) -> Call | None:
        """The call that met the fault."""
        return next((call for call in self.calls if call.hit), None)


class Server:
    """The warm process.  A context manager."""

    def __init__(self, library: Path) -> None:
        self.library = library
        self._warm: set[str] = set()

    def __enter__(self) -> Server:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PARAMTOOL_")}
        environment |= {
            "LD_PRELOAD": str(self.library), "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200",
            "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        environment.pop("PYTHONWARNINGS", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server"], cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        return self

    def __exit__(self, *rest: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, request: dict[str, Any], folder: Path) -> Ended:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the server died"
        answer = json.loads(line)
        code = answer["code"]
        calls = list(_calls(answer["log"], folder))
        return Ended(code, answer["out"], answer["err"], calls, answer["pid"], tuple(answer["lines"].split()))

    def warm(self, words: Sequence[str], folder: Path) -> Ended:
        """Run a command once, in a folder of its own, so that everything it imports is there for the next ones."""
        return self._ask({"warm": list(words), "folder": str(folder)}, folder)

    def run(self, words: Sequence[str], folder: Path, *rules: tuple[int, int, int], **more: Any) -> Ended:
        """Run a command in a folder; each of the rules is a call's number, what is done there, and its argument."""
        return self._ask({"run": list(words), "folder": str(folder), "rules": rules, **more}, folder)

    def resume(self, ended: Ended, folder: Path) -> Ended:
        """Go on with a run that was stopped by SIGSTOP."""
        return self._ask({"resume": ended.pid}, folder)


def _calls(log: str, folder: Path) -> Iterator[Call]:
    prefix = f"{folder}/"
    for line in log.splitlines():
        at, name, hit, *paths = line.split("\t")
        yield Call(int(at), name, bool(hit), tuple(path.removeprefix(prefix) for path in paths if path))


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands under a name: enough to see whether anybody touched it."""

    kind: int
    mode: int
    content: str
    links: int = field(compare=False)
    inode: int = field(compare=False)
    modified: int = field(compare=False)


Listing = dict[str, Entry]


def listing(folder: Path) -> Listing:
    """Everything below a folder, and the folder itself as `.`."""
    found = {".": _entry(str(folder))}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            found[os.path.relpath(path, folder)] = _entry(path)
    return found


def _entry(path: str) -> Entry:
    status = os.lstat(path)
    content = ""
    if stat.S_ISREG(status.st_mode):
        with open(path, "rb") as file:
            content = hashlib.blake2b(file.read()).hexdigest()
    elif stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    return Entry(
        stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), content,
        status.st_nlink, status.st_ino, status.st_mtime_ns,
    )  # fmt: skip


def part(found: Listing, name: str) -> Listing:
    """What a listing says of one name and of everything below it."""
    return {path: entry for path, entry in found.items() if path == name or path.startswith(f"{name}/")}


@dataclass(frozen=True)
class Command:
    """A command line, and what it finds in its folder."""

    name: str
    words: tuple[str, ...]
    output: str
    """What it writes; empty for a command that only reads."""
    make: Callable[[Path, Server], None]
    """Writes the inputs, and an old output where the command replaces one."""
    spools: bool = False
    """Whether it keeps decoded bytes in TMPDIR."""


@dataclass(frozen=True)
class Case:
    """A command in its folder, and what it does there where nothing fails."""

    command: Command
    seed: Path
    before: Listing
    after: Listing
    usual: Ended

    @property
    def calls(self) -> list[Call]:
        """The calls of a run where nothing fails."""
        return self.usual.calls

    @property
    def old(self) -> Listing:
        """What stands at the output's place before."""
        return part(self.before, self.command.output)

    @property
    def new(self) -> Listing:
        """What stands there afterwards."""
        return part(self.after, self.command.output)


class Desk:
    """Where cases are run: each in a fresh copy of its command's folder."""

    def __init__(self, server: Server, room: Path) -> None:
        self.server = server
        self.room = room
        self._cases: dict[str, Case] = {}
        self._looking: dict[str, list[Call]] = {}
        self._count = 0

    def case(self, command: Command) -> Case:
        """A command with its usual run, made once."""
        if command.name not in self._cases:
            seed = self.room / f"seed-{command.name}"
            (seed / "tmp").mkdir(parents=True)
            command.make(seed, self.server)
            folder = self.fresh(seed)
            ended = self.server.warm(command.words, folder)
            assert ended.code == 0, (command.words, ended)
            shutil.rmtree(folder)
            folder = self.fresh(seed)
            before = listing(folder)
            usual = self.server.run(command.words, folder)
            assert usual.code == 0, usual
            self._cases[command.name] = Case(command, seed, before, listing(folder), usual)
            shutil.rmtree(folder)
        return self._cases[command.name]

    def looking(self, case: Case) -> list[Call]:
        """The calls of a run where nothing fails, those that only look included."""
        if case.command.name not in self._looking:
            ended, folder = self.run(case, looks=True)
            shutil.rmtree(folder)
            assert ended.code == 0, ended
            self._looking[case.command.name] = ended.calls
        return self._looking[case.command.name]

    def fresh(self, seed: Path) -> Path:
        """A copy of a folder, with its times and modes."""
        self._count += 1
        folder = self.room / f"case{self._count}"
        shutil.copytree(seed, folder, symlinks=True)
        return folder

    def run(self, case: Case, *rules: tuple[int, int, int], **more: Any) -> tuple[Ended, Path]:
        """Run a case's command in a fresh copy of its folder; the folder is the caller's to remove."""
        folder = self.fresh(case.seed)
        return self.server.run(case.command.words, folder, *rules, **more), folder


def exit_code(ended: Ended) -> int:
    """As a shell says it."""
    assert isinstance(ended.code, int), ended.code
    return ended.code if ended.code >= 0 else 128 - ended.code


SIGNALS = {"TERM": signal.SIGTERM, "INT": signal.SIGINT, "HUP": signal.SIGHUP, "KILL": signal.SIGKILL}
