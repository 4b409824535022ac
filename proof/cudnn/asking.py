"""Asks a libcudnn in a separate process, without a GPU.

The library gets a handle of zeros there (see `library`).  If a version reads the handle, that process crashes and this
one reports it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import NoReturn

from paramtool.errors import FormatError, UsageError
from paramtool.lazy_dataclass import dataclass
from proof.cudnn import grid
from proof.cudnn.answers import Answer, Unsupported, as_json, from_json
from proof.cudnn.grid import Case

MAIN = (
    "import sys; sys.path.insert(0, sys.argv[3]); "
    "from proof.cudnn.asking import answer_all; answer_all(sys.argv[1], sys.argv[2] == 'quick')"
)
"""Run with `-I`, so that nothing in the current folder is imported."""
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder of the package, so that the other process imports the same one."""
PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
MAX_SAID_NBYTES = 1 << 24
MAX_WORDS = 400
"""How many of the last characters of a failed process's output are shown."""


@dataclass(slots=True)
class AskedLibrary:
    """A library that is being asked: its version, and its answers in the order of the grid."""

    version: str
    answers: Iterator[tuple[Case, Answer | Unsupported]]


def ask(path: str, quick: bool) -> AskedLibrary:
    """Ask the library at `path` about the whole grid; UsageError if it is not a libcudnn.

    FormatError if the process ends before the last answer.
    """
    if not os.path.isfile(path):
        raise UsageError(f"{path!r} is not a file", hint="the library is called libcudnn.so.9 or libcudnn.so.8")
    place = os.path.realpath(path)  # the library searches its other parts beside itself
    lines = _lines([sys.executable, "-I", "-c", MAIN, place, "quick" if quick else "full", ROOT], path)
    try:
        version = str(json.loads(next(lines))["version"])
    except StopIteration:
        raise FormatError(f"{path}: the process that asked it ended without an answer") from None
    return AskedLibrary(version, _answers(path, quick, lines))


def _answers(path: str, quick: bool, lines: Iterator[str]) -> Iterator[tuple[Case, Answer | Unsupported]]:
    for case in grid.asked(quick):
        line = next(lines, None)
        if line is None:
            raise FormatError(f"{path}: the answers end before {case}")
        yield case, from_json(json.loads(line))
    for _ in lines:
        raise FormatError(f"{path}: has more answers than questions")


def _lines(command: list[str], path: str) -> Iterator[str]:
    """The lines that a process prints; FormatError with its last words if it fails."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,  # a pipe could be full
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, stdin=subprocess.DEVNULL, text=True, errors="replace",
            env=environment,
        ) as child,
    ):  # fmt: skip
        assert child.stdout is not None
        try:
            yield from (line for line in child.stdout if line.endswith("\n"))  # an incomplete line is not an answer
        except BaseException:
            child.kill()  # it may hang in a library where no other signal works
            raise
        code = child.wait()
        said.seek(0)
        words = said.read()
        if code == USAGE:
            raise UsageError(f"{path}: {words.strip().splitlines()[-1][-MAX_WORDS:]}")
        if code:
            raise FormatError(
                f"{path}: could not be asked: the process that asked it ended with {_ended(code)}",
                hint=f"it said: {words.strip()[-MAX_WORDS:]}" if words.strip() else NO_WORD,
            )


NO_WORD = "the library may be damaged, lack another library that it needs, or not accept a handle of zeros"
USAGE = 2
"""The exit code of `answer_all` if the file is not a libcudnn."""
FAILED = 1
"""The exit code if the library fails in a way that is not an answer."""


def _ended(code: int) -> str:
    names = {number.value: number.name for number in signal.Signals}
    return names.get(-code, f"signal {-code}") if code < 0 else f"exit code {code}"


def answer_all(path: str, quick: bool) -> None:
    """In the separate process: print the version, then one answer per line."""
    import ctypes

    from proof.cudnn.library import CudnnError, Library

    _bounded()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # the library's own output is not an answer
        try:
            library = Library(ctypes.CDLL(path), blank=True)
        except (OSError, CudnnError) as error:
            _end(f"cannot be loaded as a libcudnn: {error}", USAGE)
        out.write(json.dumps({"version": library.version}) + "\n")
        try:
            for case in grid.asked(quick):
                out.write(json.dumps(as_json(library.answer(case)), separators=(",", ":")) + "\n")
        except CudnnError as error:
            _end(str(error), FAILED)
        library.close()


def _bounded() -> None:
    """End together with the process that asks, and limit the library's output so that it cannot fill the disk."""
    import ctypes
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_SAID_NBYTES, MAX_SAID_NBYTES))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _end(words: str, code: int) -> NoReturn:
    """Send a message to the process that asks, and exit."""
    print(words, file=sys.stderr)  # noqa: T201 - the process that asks prints it
    sys.exit(code)
