"""`python -m paramtool` in a process of its own, without the start of one: each run is a fork of a warm process.

A run has its own standard streams, environment, folder and signals, and ends as a process ends.  The modules of
paramtool, and those without threads that it imports, are there before it begins: `tests/startup` is about their import.
Over the socket go requests, one at a time, with the three streams beside them; back come process id and exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, NoReturn

from tests.warming import warm_up

ROOMS = ("cli", "commands", "engine", "formats", "guessing", "passes")
LIBRARIES = ("numpy", "ml_dtypes", "blake3", "safetensors.numpy", "rich.table", "rich.progress", "rich.tree")
IMPORTED = "PARAMTOOL_TESTS_IMPORTED"
"""A variable that names a file, for the modules that a run imports besides those that are there."""
REQUEST = 1 << 20
"""Bytes of the largest request: the words and the environment."""


class Warm:
    """The other end: starts the warm process, and asks it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-m", __name__, str(theirs.fileno())]
        one = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=one)
        theirs.close()
        atexit.register(self.end)

    def begin(self, words: list[str], folder: str, environment: dict[str, str], streams: tuple[int, int, int]) -> int:
        """Start a command; its process id."""
        request = json.dumps({"words": words, "folder": folder, "environment": environment}).encode()
        assert len(request) < REQUEST
        socket.send_fds(self._socket, [request], streams)
        return int(self._socket.recv(64))

    def code(self, timeout: float) -> int:
        """The exit code of the command that was started, negative for a signal as in `subprocess`."""
        self._socket.settimeout(timeout)
        return int(self._socket.recv(64))

    def end(self) -> None:
        """The process ends when nobody can ask it."""
        self._socket.close()
        self._process.wait()


def main() -> None:
    """Answer requests until there is none."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    _warm()
    while True:
        request, streams, *_ = socket.recv_fds(asked, REQUEST, 3)
        if not request:
            return
        pid = os.fork()
        if not pid:
            asked.close()
            _run(json.loads(request), streams)
        for stream in streams:
            os.close(stream)
        asked.send(str(pid).encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(OSError):
            asked.send(str(code).encode())


def _warm() -> None:
    """Import what commands import; no thread of a library survives a fork."""
    for name in LIBRARIES:
        importlib.import_module(name)
    for room in ROOMS:
        package = importlib.import_module(f"paramtool.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with suppress(ModuleNotFoundError):  # of a library that is not installed, such as h5py
                importlib.import_module(found.name)
    warm_up()
    gc.collect()
    gc.freeze()
    assert "torch" not in sys.modules and len(os.listdir("/proc/self/task")) == 1


def _run(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """One command, as `python -m paramtool` runs it."""
    from paramtool.__main__ import run

    code = 1
    before = set(sys.modules)
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin = open(0, closefd=False)
        sys.stdout = open(1, "w", closefd=False)
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path[0], sys.argv = os.getcwd(), ["paramtool", *request["words"]]
        run()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does
            atexit._run_exitfuncs()
        for output in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                output.flush()
        if name := request["environment"].get(IMPORTED):
            with open(name, "w", encoding="utf-8") as file:
                json.dump(sorted(set(sys.modules) - before), file)
        os._exit(code)


if __name__ == "__main__":
    main()
