"""What a case may do: an audit hook that notes what no command should, and limits on its time and memory."""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CPU_SECONDS = 5
"""A case that needs more is ended by SIGXCPU, wherever it is; `faulthandler` says where."""
SLOW_SECONDS = 2.5
"""A command that needs more is a finding."""
MEMORY_NBYTES = 1 << 30
"""So much address space beyond what the warm process has."""
PEAK_NBYTES = 192 << 20
"""A command whose memory grows by more is a finding: no case has more than a few hundred kilobytes."""
FILE_NBYTES = 64 << 20

NEVER = frozenset((
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile", "pty.spawn",
    "os.kill", "subprocess.Popen", "socket.connect", "socket.bind", "socket.getaddrinfo", "ctypes.dlopen",
    "ctypes.call_function", "pickle.find_class", "urllib.Request", "webbrowser.open", "os.putenv", "os.chown",
    "code.__new__", "os.setxattr", "sys.addaudithook", "shutil.unpack_archive", "builtins.input",
    "builtins.breakpoint",
))  # fmt: skip
PATHS = {
    "os.remove": (0,), "os.rename": (0, 1), "os.link": (0, 1), "os.symlink": (1,), "os.mkdir": (0,), "os.rmdir": (0,),
    "os.truncate": (0,), "os.chmod": (0,), "os.utime": (0,), "shutil.rmtree": (0,),
}  # fmt: skip
"""Events that change files, and which of their arguments are paths."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
LIBRARIES = frozenset((
    "paramtool", "numpy", "ml_dtypes", "blake3", "safetensors", "h5py", "click", "rich", "pygments", "markdown_it",
    "mdurl", "torch", *sys.stdlib_module_names,
))  # fmt: skip


class Watch:
    """Notes of one process; the hook cannot be taken away again, so it is switched on and off."""

    def __init__(self, folder: str) -> None:
        self.seen: list[str] = []
        self._on = False
        self._folder = os.path.realpath(folder) + os.sep
        installed = (sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
        self._may_read = (self._folder, "/proc/self/", "/sys/", "/dev/null", "/usr/", "/etc/localtime",
                          *(os.path.realpath(path) + os.sep for path in installed))  # fmt: skip
        sys.addaudithook(self._hook)

    @contextmanager
    def watching(self) -> Iterator[list[str]]:
        """What is seen meanwhile."""
        self.seen = []
        self._on = True
        try:
            yield self.seen
        finally:
            self._on = False

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event == "open":
            self._opened(*args)
        elif event == "import":
            if str(args[0]).split(".")[0] not in LIBRARIES:
                self.seen.append(f"import {args[0]}")
        elif event in NEVER and not _is_our_own(event, args):
            self.seen.append(f"{event} {str(args)[:100]}")
        elif event == "exec":
            if not os.path.isabs(args[0].co_filename) and "frozen" not in args[0].co_filename and not _importing():
                self.seen.append(f"exec {args[0].co_filename}")
        elif event in PATHS:
            for at in PATHS[event]:
                self._changed(event, args[at])

    def _opened(self, path: object, mode: object, flags: object) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        place = os.path.abspath(os.fsdecode(path))
        if isinstance(flags, int) and flags & WRITES:
            if not place.startswith(self._folder) and place != "/dev/null":
                self.seen.append(f"open for writing {place}")
        elif not (place + os.sep).startswith(self._may_read):
            self.seen.append(f"open {place}")

    def _changed(self, event: str, path: object) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            place = os.path.abspath(os.fsdecode(path))
            if not (place + os.sep).startswith(self._folder):
                self.seen.append(f"{event} {place}")


def _is_our_own(event: str, args: tuple[Any, ...]) -> bool:
    """Whether it is the process that reads HDF5, which is this Python, or a function of the C library."""
    if event == "subprocess.Popen":
        return args[0] == sys.executable and "from paramtool.formats import sandbox; sandbox.keep(" in args[1][-1]
    return event == "ctypes.dlopen" and args == (None,)


def _importing() -> bool:
    """Whether the body of a module is being run, or the standard library makes the methods of a dataclass."""
    frame = sys._getframe(2)
    if frame.f_code.co_filename == dataclasses.__file__:
        return True
    while frame is not None:
        if frame.f_code.co_name == "<module>" and os.path.isabs(frame.f_code.co_filename):
            return frame.f_back is not None and "frozen importlib" in frame.f_back.f_code.co_filename
        frame = frame.f_back  # type: ignore[assignment]
    return False


def address_space() -> int:
    """How much this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def limit_process(log: int) -> None:
    """Limits of a child; where a limit ends it, `log` says where it was."""
    _limit(resource.RLIMIT_AS, address_space() + MEMORY_NBYTES)
    _limit(resource.RLIMIT_FSIZE, FILE_NBYTES)
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    faulthandler.enable(log, all_threads=False)
    faulthandler.register(signal.SIGXCPU, log, all_threads=False, chain=True)


def limit_case() -> None:
    """So many seconds from now."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + CPU_SECONDS)


def _limit(kind: int, soft: int) -> None:
    """A soft limit, within the hard one that somebody may have set before."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def peak() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
