"""Work in a process of its own: what loops, crashes or takes all memory there is an error here, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

import paramtool
from paramtool.errors import FormatError
from paramtool.formats import sandbox
from tests.examples import IS_HARD
from tests.hostile.command import Hostile, check, quick
from tests.hostile.makers_hdf5 import endless
from tests.patience import PATIENCE

WORKS = "tests.hostile.works"
needs_fork = pytest.mark.skipif(not sandbox.HAS_FORK, reason="this system has no fork")
needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="/proc is not there")


def asked(function: str, path: Path, seconds: int = 1, memory: int = 1 << 28, **arguments: object) -> Iterator[bytes]:
    """The answer of a work about a file."""
    limits = sandbox.WorkerLimits(seconds, memory)
    with path.open("rb") as file:
        question = sandbox.Question(WORKS, function, dict(arguments), limits, "is unsound")
        yield from sandbox.ask(file, "FILE", question)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small file."""
    (tmp_path / "f").write_bytes(bytes(range(100)))
    return tmp_path / "f"


def below(process: int) -> list[int]:
    """All processes that a process started, and those that they started."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        state, parent = text.rpartition(")")[2].split()[:2]
        if state != "Z":
            parents[int(name)] = int(parent)
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def alive(processes: list[int]) -> list[int]:
    """Those of some processes that still run."""
    return [one for one in processes if os.path.exists(f"/proc/{one}") and _state(one) != "Z"]


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def until(holds: object, what: str) -> None:
    """Wait for something that has to come."""
    end = time.monotonic() + PATIENCE
    while not holds():  # type: ignore[operator]
        if time.monotonic() > end:
            pytest.fail(what)
        time.sleep(0.02)


class TestAnswers:
    """What comes back."""

    def test_bytes(self, path: Path) -> None:
        """Whole and in order, also where they are many."""
        assert b"".join(asked("content", path, pieces=1000)) == path.read_bytes() * 1000

    @pytest.mark.parametrize("fork", [pytest.param(True, marks=needs_fork), False])
    def test_a_refusal(self, path: Path, fork: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """One line of words, whatever the library says; the same without a process."""
        monkeypatch.setattr(sandbox, "HAS_FORK", fork)
        with pytest.raises(FormatError, match="FILE: is unsound: byte 7 is odd") as caught:
            list(asked("refuse", path))
        assert len(str(caught.value)) < 500
        assert b"".join(asked("content", path)) == path.read_bytes()

    @pytest.mark.sample(2)
    @needs_fork
    @pytest.mark.parametrize(
        ("function", "words"),
        [
            ("loop", "more than 1 second of processor time"),
            ("loop_behind_a_byte", "more than 1 second of processor time"),
            ("crash", "killed by SIGSEGV"),
            ("hog", "more memory"),
            ("vanish", "without an answer"),
            ("write", "SIGXFSZ|File too large|temporary"),
        ],
    )
    def test_what_ends_a_worker_is_an_error_of_the_file(self, path: Path, function: str, words: str) -> None:
        """Exit code 3 with the cause; the next question is answered."""
        with pytest.raises(FormatError, match=words):
            list(asked(function, path))
        assert b"".join(asked("content", path)) == path.read_bytes()

    @needs_fork
    def test_what_is_said_before_the_end_is_not_all(self, path: Path) -> None:
        """A piece arrives, and the end does not: an error, not a short answer."""
        pieces = asked("vanish", path)
        assert next(pieces) == b"half"
        with pytest.raises(FormatError):
            next(pieces)


@needs_fork
@needs_proc
class TestProcesses:
    """Who runs, and until when."""

    def test_one_keeper_stays_and_nothing_grows(self, path: Path) -> None:
        """A hundred questions: the same keeper, no worker left, no open file more."""
        list(asked("content", path))
        keeper, files = sandbox._keepers[WORKS].process.pid, len(os.listdir("/proc/self/fd"))
        for _ in range(100):
            list(asked("content", path))
        assert sandbox._keepers[WORKS].process.pid == keeper
        until(lambda: not below(keeper), "a worker is left")
        assert len(os.listdir("/proc/self/fd")) == files

    def test_who_stops_listening_ends_the_worker(self, path: Path) -> None:
        """As a signal or an error does."""
        list(asked("content", path))
        keeper = sandbox._keepers[WORKS].process.pid
        until(lambda: not below(keeper), "the first worker is left")
        pieces = asked("loop_behind_a_byte", path, seconds=3600)
        assert next(pieces) == b"x"
        assert below(keeper)
        pieces.close()  # type: ignore[attr-defined]
        until(lambda: not below(keeper), "the worker is left")

    def test_questions_at_once(self, path: Path) -> None:
        """Two answers are read side by side; one that is endless holds no other up."""
        endless_ = asked("loop_behind_a_byte", path, seconds=3600)
        assert next(endless_) == b"x"
        one, other = asked("content", path, pieces=3), asked("content", path, pieces=3)
        assert [next(one), next(other)] == [path.read_bytes()] * 2
        assert len(list(one)) == len(list(other)) == 2
        endless_.close()  # type: ignore[attr-defined]

    def test_a_keeper_that_is_gone_is_started_again(self, path: Path) -> None:
        """Whatever ended it."""
        list(asked("content", path))
        keeper = sandbox._keepers[WORKS].process
        os.kill(keeper.pid, signal.SIGKILL)
        until(lambda: keeper.poll() is not None, "it does not end")
        assert b"".join(asked("content", path)) == path.read_bytes()

    def test_a_library_that_cannot_be_imported_there(self, path: Path) -> None:
        """It is no fault of the file: the message says so, and what shows why."""
        with path.open("rb") as file, pytest.raises(FormatError, match="failed to start") as caught:
            list(
                sandbox.ask(
                    file, "FILE", sandbox.Question("tests.no_such_module", "f", {}, sandbox.WorkerLimits(1, 1 << 20))
                )
            )
        assert "import tests.no_such_module" in caught.value.hint

    def test_close(self, path: Path) -> None:
        """Ends all of them, and waits."""
        list(asked("content", path))
        keepers = [keeper.process.pid for keeper in sandbox._keepers.values()]
        processes = [*keepers, *(one for keeper in keepers for one in below(keeper))]
        sandbox.close()
        assert not alive(processes)

    def test_no_module_of_the_current_folder_is_imported(self, tmp_path: Path) -> None:
        """A file called like a module, beside the checkpoint, is not run."""
        path = tmp_path / "m.h5"
        with h5py.File(path, "w") as file:
            file["w"] = np.arange(3, dtype="f4")
        for name in ("h5py", "numpy", "json", "socket", "select"):
            (tmp_path / f"{name}.py").write_text("import os\nopen('run', 'w').close()\nos._exit(9)\n")
        script = "import sys; sys.path.remove(''); import paramtool; print(list(paramtool.read('m.h5').entries))"
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout == "['w']\n", done
        assert not (tmp_path / "run").exists()

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
    def test_a_signal_ends_a_command_that_reads_an_endless_file(self, number: int, tmp_path: Path) -> None:
        """At once, with its exit code; no process, no file is left."""
        path = endless(tmp_path)
        os.truncate(path, 1 << 30)  # the limit of time is minutes now
        with subprocess.Popen(
            [sys.executable, "-m", "paramtool", "inspect", path.name], cwd=tmp_path, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        ) as process:  # fmt: skip
            until(lambda: len(below(process.pid)) == 2, "it never reads")
            processes = below(process.pid)
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out, err) == (-9 if number == signal.SIGKILL else 128 + number, "", "")
        until(lambda: not alive(processes), "a process is left")
        assert os.listdir(tmp_path) == [path.name]


@pytest.fixture
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file may take a second, and two in `make hard` as everywhere."""
    limits = sandbox.WorkerLimits
    if not IS_HARD:
        monkeypatch.setattr(sandbox, "WorkerLimits", lambda seconds, nbytes: limits(1, nbytes))


@needs_fork
@pytest.mark.usefixtures("one_second")
def test_an_endless_file_is_refused(tmp_path: Path) -> None:
    """A heap of strings that has no end: libhdf5 loops over it, and no signal ends that."""
    check(Hostile(endless, ("processor time",)), tmp_path)


@needs_fork
@pytest.mark.usefixtures("one_second")
@pytest.mark.parametrize("name", ["hang1.h5", "hang2.h5"])
def test_files_that_hung_are_refused(name: str, findings: Path, tmp_path: Path) -> None:
    """As found by changing a few bytes of a Keras file."""
    (tmp_path / name).write_bytes((findings / name).read_bytes())
    ran = quick("inspect", name, cwd=tmp_path)
    assert (ran.code, "processor time" in ran.err) == (3, True), ran


def test_the_time_grows_with_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A small file has two seconds, one of many small objects what a slow machine takes, one of 10 GB no less."""
    from paramtool.formats.hdf5 import datasets
    from paramtool.model.storage import ByteRange

    limits: list[sandbox.WorkerLimits] = []

    def ask(file: object, where: str, question: sandbox.Question) -> Iterator[bytes]:
        limits.append(question.limits)
        return iter([b'{"address": 1, "links": [], "strings": {}}\n'])

    monkeypatch.setattr(sandbox, "ask", ask)
    for nbytes in (1000, 250_000, 30_000_000, 10 << 30):
        with open(os.devnull, "rb") as file:
            datasets.read(file, ByteRange("m.h5", 0, nbytes), ())
            list(datasets.elements(file, ByteRange("m.h5", 0, 10 << 30), "w", nbytes))
    assert [one.cpu_seconds for one in limits[::2]] == [2, 2, 116, 513]
    assert [
        one.cpu_seconds > 2 + nbytes / 5e6 for one, nbytes in zip(limits[1::2], (1e3, 25e4, 3e7, 1e10), strict=True)
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"", b"[]", b"{", b"7", b'{"address": -1, "links": [], "strings": {}}', b'{"address": 1}',
        b'{"address": 1, "links": [["a"]], "strings": {}}', b'{"address": 1, "links": 7, "strings": {}}',
        b'{"address": 1, "links": [], "strings": {"a": [1]}}', b'{"address": 1, "layout": "compact"}',
        b'{"address": 1.5, "links": [], "strings": {}}', b"[" * 100_000, b"\xff",
    ],
)  # fmt: skip
def test_an_answer_is_believed_no_more_than_the_file(
    line: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker that hostile data took over can say anything: what is no description is a damaged file."""
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        file["w"] = np.arange(3, dtype="f4")
    monkeypatch.setattr(sandbox, "ask", lambda *_: iter([line + b"\n"]))
    with pytest.raises(FormatError, match=r"m\.h5"):
        paramtool.read(path)
