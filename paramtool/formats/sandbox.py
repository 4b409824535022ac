"""Work on hostile files in a separate process: with limits, and stopped as soon as the answer is not needed any more.

A library that is written in C may loop, crash or use all memory on a damaged file, and Python's signal handlers do not
run meanwhile.  So such work is done in separate processes:

    this process    asks and reads the answer, and trusts it no more than the file
    the keeper      a Python process that has imported the library.  It forks a worker for each question, and kills the
                    worker when this process closes its end or dies.  It never reads a file
    a worker        a fork of the keeper: sets its limits, does the work, answers, exits

Questions are JSON.  Answers are frames: a kind (`DATA`, `REFUSED`, `END`), a length, bytes.  Nothing is pickled.
On systems without fork or without passing of open files (Windows) this process does the work, without limits.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, BinaryIO, NoReturn

from paramtool.errors import FormatError, plural
from paramtool.lazy_dataclass import frozen

WorkerTask = Callable[..., Iterable[bytes]]
"""Does the work on an open file with the arguments of a question; ValueError and OSError say what is wrong with the
file."""
FRAME = struct.Struct("<cQ")
LENGTH = struct.Struct("<Q")
DATA, REFUSED, END = b"d", b"r", b"."
PIECE_NBYTES = 1 << 20
"""The most bytes of an answer that are read at once."""
MAX_SAID = 2000
"""The most bytes of a worker's error message."""
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder of the package: the keeper imports the same one."""
MAIN = "import sys; sys.path[:] = {path!r}; from paramtool.formats import sandbox; sandbox.keep({number}, {module!r})"
"""The keeper's program.  It searches the same paths for modules as this process, but never the current folder."""
HAS_FORK = hasattr(os, "fork") and hasattr(socket, "send_fds")
PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


@frozen
class WorkerLimits:
    """The resources of a worker: processor time, which does not depend on the load of the machine, and memory."""

    cpu_seconds: int
    memory: int
    """Bytes beyond those that it has at its start."""


@frozen
class Question:
    """A question about a file."""

    module: str
    """The module with the function that does the work; it imports the library, and only the keeper imports it."""
    function: str
    arguments: dict[str, Any]
    """JSON data."""
    limits: WorkerLimits
    refusal: str = "cannot be read"
    """The beginning of the error message, before the worker's reason."""


def ask(file: BinaryIO, where: str, question: Question) -> Iterator[bytes]:
    """The answer about an open file, piece by piece; FormatError if the worker refuses or is killed.

    If the caller stops reading, because of a signal or an error, the worker is killed.
    """
    if not HAS_FORK or not sys.executable:
        yield from _here(file, where, question)
        return
    try:
        answer, status = _keeper(question.module).ask(file, question)
    except OSError as error:
        raise FormatError(f"{where}: cannot start the process that reads it: {error.strerror}") from None
    with answer, open(status, "rb") as ending:
        if (yield from _frames(answer, where, question)):
            return
        answer.close()
        told = ending.read()
        if not told.isdigit():  # the keeper itself is gone
            hint = f"{os.path.basename(sys.executable)} -c 'import {question.module}' may show why"
            raise FormatError(f"{where}: the process that reads such files failed to start, or was killed", hint)
        raise FormatError(f"{where}: {_cause(int(told), question.limits)}", HINT)


HINT = "download the file again; it is damaged, or was made to do this"


def _here(file: BinaryIO, where: str, question: Question) -> Iterator[bytes]:
    work: WorkerTask = getattr(import_module(question.module), question.function)
    try:
        yield from work(file, **question.arguments)
    except REFUSALS as error:
        raise FormatError(f"{where}: {question.refusal}: {_words(error)}", HINT) from None


REFUSALS = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
"""Exceptions that libraries raise for a damaged file."""


def _words(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "reading it takes more memory than a valid file of its size would"
    text = getattr(error, "strerror", None) or str(error.args[0] if error.args else "") or type(error).__name__
    return text.replace("\n", " ")[:300]


def _frames(answer: socket.socket, where: str, question: Question) -> Generator[bytes, None, bool]:
    """The data of an answer; returns whether the answer is complete."""
    while len(head := _exactly(answer, FRAME.size)) == FRAME.size:
        kind, nbytes = FRAME.unpack(head)
        if kind == END:
            return True
        if kind == REFUSED:
            said = _exactly(answer, min(nbytes, MAX_SAID)).decode("utf-8", "replace")
            raise FormatError(f"{where}: {question.refusal}: {said}", HINT)
        while nbytes:
            piece = _piece(answer, nbytes)
            if not piece:
                return False
            nbytes -= len(piece)
            yield piece
    return False


def _exactly(channel: socket.socket, nbytes: int) -> bytes:
    """Bytes of a channel; fewer if it ends before."""
    found = bytearray()
    while len(found) < nbytes and (piece := _piece(channel, nbytes - len(found))):
        found += piece
    return bytes(found)


def _piece(channel: socket.socket, nbytes: int) -> bytes:
    """The next bytes of a channel; none if the other side has exited."""
    try:
        return channel.recv(min(nbytes, PIECE_NBYTES))
    except ConnectionError:
        return b""


def _cause(status: int, limits: WorkerLimits) -> str:
    """Why a worker exited without an answer, in words; `status` is the status of `waitpid`."""
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGXCPU:
        most = plural(limits.cpu_seconds, "second")
        return f"reading it takes more than {most} of processor time; a valid file takes less"
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"the library that reads it was killed by {names.get(-code, f'signal {-code}')}"
    return "the process that reads it exited without an answer"


# --- the keeper, from this process --------------------------------------------------------------------------------


class Keeper:
    """A running keeper, for the questions of one module."""

    def __init__(self, module: str) -> None:
        self.owner = os.getpid()
        self.channel, theirs = socket.socketpair()
        path = list(dict.fromkeys([*(one for one in sys.path if one not in ("", os.getcwd())), ROOT]))
        program = MAIN.format(path=path, number=theirs.fileno(), module=module)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", *(["-B"] if sys.dont_write_bytecode else []), "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **ONE_THREAD},
                start_new_session=True,  # Ctrl-C goes to this process, which then ends the keeper
            )

    def ask(self, file: BinaryIO, question: Question) -> tuple[socket.socket, int]:
        """Send a question; returns the channel of the answer, and a file that says how the worker exited."""
        limits = question.limits
        asked = [question.function, question.arguments, limits.cpu_seconds, limits.memory]
        text = json.dumps(asked).encode()
        ours, theirs = socket.socketpair()
        ending, told = os.pipe()
        try:
            with theirs, open(told, "wb"):
                socket.send_fds(self.channel, [b"?"], [file.fileno(), theirs.fileno(), told])
            ours.sendall(LENGTH.pack(len(text)) + text)
        except BaseException:
            ours.close()
            os.close(ending)
            raise
        return ours, ending

    def close(self) -> None:
        """End the keeper and its workers."""
        self.channel.close()
        if self.owner == os.getpid():
            self.process.wait()


ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""NumPy would start a thread for each core, and a process with threads must not fork."""
_keepers: dict[str, Keeper] = {}
_lock = threading.Lock()


def _keeper(module: str) -> Keeper:
    """The keeper for a module; it is started if there is none, if it has died, or if this process is a fork."""
    with _lock:
        found = _keepers.get(module)
        if found is not None and (found.owner != os.getpid() or found.process.poll() is not None):
            found.channel.close()
            found = None
        if found is None:
            found = _keepers[module] = Keeper(module)
        return found


@atexit.register
def close() -> None:
    """End all keepers; the next question starts a new one."""
    with _lock:
        while _keepers:
            _keepers.popitem()[1].close()


# --- in the keeper ------------------------------------------------------------------------------------------------


def keep(number: int, module: str) -> NoReturn:
    """Start a worker for each question that arrives on an open socket; exit when the asking process does."""
    import gc
    import select

    gc.disable()  # a worker is short-lived
    channel = socket.socket(fileno=number)
    works = import_module(module)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    workers: dict[int, tuple[int, int]] = {}  # {our end of a pipe that a worker holds: (its process, status file)}
    asking: dict[int, int] = {}  # {status file: process}
    while True:
        ready = poll.poll()[0][0]  # one at a time: handling one may close, and so reuse, the numbers of others
        if ready == channel.fileno():
            message, files, _, _ = socket.recv_fds(channel, 1, 3)
            if not message:
                for process, _ in workers.values():
                    os.kill(process, signal.SIGKILL)
                os._exit(0)
            file, answer, told = files
            alive, held = os.pipe()
            process = os.fork()
            if not process:
                for used in (channel.fileno(), alive, told, *workers, *(other for _, other in workers.values())):
                    os.close(used)
                _work(works, file, answer)
            for used in (file, answer, held):
                os.close(used)
            poll.register(alive, 0)  # reports when the worker exits
            poll.register(told, 0)  # reports when nobody reads the answer any more
            workers[alive] = process, told
            asking[told] = process
        elif ready in asking:
            os.kill(asking.pop(ready), signal.SIGKILL)
            poll.unregister(ready)
        else:
            process, told = workers.pop(ready)
            poll.unregister(ready)
            os.close(ready)
            if asking.pop(told, None):
                poll.unregister(told)
            _, status = os.waitpid(process, 0)
            with suppress(OSError):
                os.write(told, str(status).encode())
            os.close(told)


def _work(works: Any, number: int, answer: int) -> NoReturn:
    """In a worker: do the work, and exit."""
    code = 1
    try:
        # Kill this worker when the keeper is killed (Linux only; elsewhere its time runs out)
        if sys.platform == "linux":
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        channel = socket.socket(fileno=answer)
        (nbytes,) = LENGTH.unpack(_exactly(channel, LENGTH.size))
        function, arguments, cpu_seconds, memory = json.loads(_exactly(channel, nbytes))
        work: WorkerTask = getattr(works, function)
        with open(number, "rb") as file:
            _limit(cpu_seconds, memory)
            try:
                for data in work(file, **arguments):
                    channel.sendall(FRAME.pack(DATA, len(data)))
                    channel.sendall(data)
                channel.sendall(FRAME.pack(END, 0))
            except REFUSALS as error:
                said = _words(error).encode("utf-8", "replace")[:MAX_SAID]
                channel.sendall(FRAME.pack(REFUSED, len(said)) + said)
        code = 0
    finally:
        os._exit(code)


def _limit(cpu_seconds: int, memory: int) -> None:
    """Set the limits of the worker; none is raised beyond the user's limits."""
    import resource

    def lower(kind: int, most: int) -> None:
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))

    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_FSIZE, 0)
    lower(resource.RLIMIT_CPU, cpu_seconds)  # SIGXCPU
    with suppress(OSError):  # no /proc
        with open("/proc/self/statm", encoding="ascii") as text:
            pages = int(text.read().split()[0])
        lower(resource.RLIMIT_AS, pages * resource.getpagesize() + memory)
