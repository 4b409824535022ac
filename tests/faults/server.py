"""A warm process that runs one command after the other, each in a fork of its own that meets what was asked for.

Started with the library of `shim.c` loaded before libc; reads requests from standard input, one JSON document a line,
and answers each on standard output.  `serving.py` is the other end.

    {"run": [words], "folder": cwd and watched, "rules": [[at, action, argument], ...], "looks": false, "user": null}
    {"run": ..., "kill_after": seconds}           SIGKILL, unless it is done before
    {"run": ..., "lines": [signal, line, room]}   a signal at a line of Python instead, the first time that it is run
    {"run": ..., "memory": [at, least, stays]}    a request for memory that fails, by Python's or C's functions
    {"resume": pid}      go on with one that stopped
    {"warm": [words], "folder": cwd}   import what the command needs
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from tests.warming import warm_up

PATIENCE = 120.0
"""Seconds for one run of a small command, on any machine."""
DEATH_OF_PARENT = 1
LOG, OUT, ERR, LINES = FILES = ("log", "out", "err", "lines")


def main() -> None:
    """Answer requests until there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(DEATH_OF_PARENT, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from paramtool.cli.main import main

    running: dict[int, dict[str, int]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "warm" in request:
            answer = _warm(request, libc, main)
        else:
            if "run" in request:
                pid, files = _begin(request, libc, main)
                running[pid] = files
            else:
                pid = request["resume"]
                os.kill(pid, signal.SIGCONT)
            if "kill_after" in request:
                signal.sigtimedwait({signal.SIGCHLD}, request["kill_after"])
                os.kill(pid, signal.SIGKILL)  # it is still there, if only as what nobody has waited for
            answer = _wait(pid, running[pid])
            if not answer["stopped"]:
                for file in running.pop(pid).values():
                    os.close(file)
        print(json.dumps(answer), file=answers, flush=True)


def _warm(request: dict[str, Any], libc: ctypes.CDLL, command: Callable[[], object]) -> dict[str, Any]:
    """Import what a command imports, as a fork of this process found: no thread of a library is ever started here."""
    modules = os.memfd_create("modules")
    request = {**request, "run": request["warm"], "rules": [], "watched": False, "modules": modules}
    pid, files = _begin(request, libc, command)
    answer = _wait(pid, files)
    for name in os.pread(modules, 1 << 24, 0).decode().split():
        with suppress(ImportError):
            importlib.import_module(name)
    warm_up()
    os.close(modules)
    for file in files.values():
        os.close(file)
    gc.collect()
    gc.freeze()  # pages that are shared with a fork stay shared
    assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1, "a thread does not survive a fork"
    return answer


def _begin(request: dict[str, Any], libc: ctypes.CDLL, command: Callable[[], object]) -> tuple[int, dict[str, int]]:
    files = {name: os.memfd_create(name) for name in FILES}
    pid = os.fork()
    if not pid:
        _run(request, files, libc, command)
    return pid, files


def _run(request: dict[str, Any], files: dict[str, int], libc: ctypes.CDLL, command: Callable[[], object]) -> NoReturn:
    """One command, as `python -m paramtool` runs it: its exit code, or what a traceback gives."""
    code = 1
    try:
        libc.prctl(DEATH_OF_PARENT, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.dup2(files[OUT], 1)
        os.dup2(files[ERR], 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.argv = ["paramtool", *request["run"]]
        folder = request["folder"]
        os.chdir(folder)
        os.umask(request.get("umask", 0o022))
        os.environ["TMPDIR"] = os.path.join(folder, "tmp")
        if user := request.get("user"):
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        for which, (at, action, argument) in enumerate(request["rules"]):
            libc.fault_rule(which, ctypes.c_long(at), action, ctypes.c_long(argument))
        if lines := request.get("lines"):
            sys.settrace(_signal_at(*lines, files[LINES]))
        if request.get("watched", True):
            libc.fault_arm(os.fsencode(folder), files[LOG], int(request.get("looks", False)))
        if memory := request.get("memory"):
            _fail_memory(libc, *memory)
        command()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        if request.get("memory"):
            _remember(libc, files[LINES])
        sys.settrace(None)
        atexit._run_exitfuncs()
        libc.fault_disarm()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        if "modules" in request:
            os.write(request["modules"], "\n".join(sorted(sys.modules)).encode())
        os._exit(code)


def _fail_memory(libc: ctypes.CDLL, at: int, least: int, stays: bool) -> None:
    """The request number `at` for `least` bytes or more fails, and with `stays` all after it; 0 bytes are Python's own.

    Python's own functions serve every object, and everything that is smaller than a page.
    """
    if least:
        libc.fault_memory(ctypes.c_long(at), ctypes.c_size_t(least), int(stays))
    else:
        import _testcapi

        _testcapi.set_nomemory(at, 0 if stays else at + 1)


def _remember(libc: ctypes.CDLL, log: int) -> None:
    """There is memory again; how many requests there were is written down."""
    counted = libc.fault_memory_counted()
    libc.fault_memory(ctypes.c_long(0), ctypes.c_size_t(0), 0)
    with suppress(ImportError):
        importlib.import_module("_testcapi").remove_mem_hooks()
    os.write(log, str(counted).encode())


def _signal_at(number: int, at: str, room: str, log: int) -> Callable[..., Any]:
    """A trace function: a signal comes at a line, as in `staging.py:93`, of a file with `room` in its name.

    With no line it only writes down which lines are run.  How often others are run before depends on threads.
    """

    def traced(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if event == "call":
            return traced if room in frame.f_code.co_filename else None
        if event == "line":
            line = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            if not at:
                os.write(log, f"{line}\n".encode())
            elif line == at:
                sys.settrace(None)
                signal.raise_signal(number)
        return traced

    return traced


def _wait(pid: int, files: dict[str, int]) -> dict[str, Any]:
    """Wait until a run ends or stops."""
    end = time.monotonic() + PATIENCE
    while True:
        done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if done:
            break
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"pid": pid, "stopped": False, "code": "hang", **_texts(files)}
        signal.sigtimedwait({signal.SIGCHLD}, 1.0)
    if os.WIFSTOPPED(status):
        return {"pid": pid, "stopped": True, "code": None, **_texts(files)}
    return {"pid": pid, "stopped": False, "code": os.waitstatus_to_exitcode(status), **_texts(files)}


def _texts(files: dict[str, int]) -> dict[str, str]:
    return {name: os.pread(file, 1 << 24, 0).decode(errors="replace") for name, file in files.items()}


if __name__ == "__main__":
    main()
