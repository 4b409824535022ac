"""Running `paramtool` as a person does, and what every refusal must keep to."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Thread
from typing import NamedTuple, NoReturn

from paramtool.cli._streams import shown
from paramtool.cli.main import SIGNALS, main
from paramtool.model import inflating
from tests.hostile.warm import Warm
from tests.patience import PATIENCE


class Ran(NamedTuple):
    """What a run left."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Hostile:
    """A maker that writes an input into a folder and returns what to name on the command line."""

    make: Callable[[Path], Path]
    says: tuple[str, ...] = ()
    """What the message must hold besides the file's name."""
    inspect: int = 3
    dedup: int | None = None
    """None: as `inspect`."""


@cache
def _warm() -> Warm:
    return Warm()


AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "TZ")
"""What the start of a process looks at."""


def command(
    *args: object, cwd: Path, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = PATIENCE
) -> Ran:
    """`python -m paramtool ARGS` in a process of its own: a fork of a warm one, unless `env` changes how it starts."""
    if any(name.startswith(AT_START) for name in env or {}):
        return started(*args, cwd=cwd, env=env, stdin=stdin, timeout=timeout)
    given, out, err = os.pipe(), os.pipe(), os.pipe()
    pid = _warm().begin([*map(str, args)], os.fspath(cwd), {**os.environ, **(env or {})}, (given[0], out[1], err[1]))
    for number in (given[0], out[1], err[1]):
        os.close(number)
    texts: dict[int, str] = {}
    threads = [Thread(target=_all, args=(number, texts)) for number in (out[0], err[0])]
    for thread in threads:
        thread.start()
    with suppress(BrokenPipeError), open(given[1], "w", encoding="utf-8") as file:
        file.write(stdin)
    try:
        code = _warm().code(timeout)
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        _warm().code(PATIENCE)
        raise
    finally:
        for thread in threads:
            thread.join()
    return Ran(code, texts[out[0]], texts[err[0]])


def _all(number: int, texts: dict[int, str]) -> None:
    with open(number, encoding="utf-8") as file:
        texts[number] = file.read()


def started(
    *args: object, cwd: Path, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = PATIENCE
) -> Ran:
    """The same with an interpreter that starts anew, half a second later."""
    done = subprocess.run(
        [sys.executable, "-m", "paramtool", *map(str, args)], cwd=cwd, input=stdin, timeout=timeout,
        capture_output=True, text=True, encoding="utf-8", env={**os.environ, **(env or {})},
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


WRITING = ("paramtool.engine.write.sink", "Sink", "_wrote")
COMPARING = ("paramtool.engine.read.streams", "Stream", "into")
"""Methods that are called when some bytes were written, or read to be compared."""
SUSPEND = """
import importlib, os, signal, sys
module, kind, name = sys.argv[1:4]
kind = getattr(importlib.import_module(module), kind)
kept = getattr(kind, name)
def suspended(*args):
    found = kept(*args)
    setattr(kind, name, kept)
    os.kill(os.getpid(), signal.SIGSTOP)
    return found
setattr(kind, name, suspended)
sys.argv = ["paramtool", *sys.argv[4:]]
from paramtool.cli.main import main
main()
"""


def interrupted(number: int, where: tuple[str, str, str], *args: object, cwd: Path) -> Ran:
    """A signal in the middle of a command, which stops for it when it has called a method: no race with its end."""
    words = [sys.executable, "-c", SUSPEND, *where, *map(str, args)]
    with subprocess.Popen(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        ended = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert ended is not None and ended.si_code == os.CLD_STOPPED, "it was done before it could be interrupted"
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=PATIENCE)
    return Ran(process.returncode, out, err)


def quick(*args: object, cwd: Path, out: io.StringIO | None = None, run: Callable[[], NoReturn] = main) -> Ran:
    """The same in this process, a hundred times sooner; `out` stands for standard output, and its like for errors.

    `run` is the program, `paramtool` if nothing else is said.
    """
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    before = (sys.argv, gc.isenabled(), os.getcwd())
    out = out or io.StringIO()
    err = type(out)()
    sys.argv = ["paramtool", *map(str, args)]
    try:
        os.chdir(cwd)
        with redirect_stdout(out), redirect_stderr(err):
            run()
    except SystemExit as stop:
        return Ran(stop.code if isinstance(stop.code, int) else 0, out.getvalue(), err.getvalue())
    finally:
        os.chdir(before[2])
        sys.argv = before[0]
        for number, handler in handlers.items():
            signal.signal(number, handler)
        inflating.set_limit(None)
        if before[1]:
            gc.enable()
    raise AssertionError("it returned")


def contents(folder: Path) -> dict[str, object]:
    """Everything in a folder, with the bytes of what is small."""
    found: dict[str, object] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            status = os.lstat(path)
            small = stat.S_ISREG(status.st_mode) and status.st_size < 1 << 20 and os.access(path, os.R_OK)
            what: object = Path(path).read_bytes() if small else (status.st_size, status.st_mtime_ns)
            if stat.S_ISDIR(status.st_mode):
                what = "folder"
            elif stat.S_ISLNK(status.st_mode):
                what = os.readlink(path)
            found[os.path.relpath(path, folder)] = what
    return found


MAX_MESSAGE = 16_000
"""A message is for a person, whatever the file holds."""
MAX_LINE = 2_000


def assert_error_document(ran: Ran) -> None:
    """With --json an error is one document, which says what standard error says."""
    found = json.loads(ran.out)
    assert ran.out.isascii() and found.keys() == {"schema", "exit_code", "message", "hint"}, ran
    assert (found["schema"], found["exit_code"]) == ("paramtool.error/1", ran.code), ran
    assert shown(found["message"], lines=True) in ran.err and shown(found["hint"], lines=True) in ran.err, ran


def refused(run: Callable[..., Ran], *args: object, cwd: Path, code: int, says: tuple[str, ...] = ()) -> Ran:
    """Run and check what every refusal keeps to; `code` is its class's, `says` what its message must hold."""
    before = contents(cwd)
    ran = run(*args, cwd=cwd)
    assert ran.code == code, ran
    if "--json" in args:
        assert_error_document(ran)
    else:
        assert ran.out == "", ran
    for word in ("Traceback", "internal error"):
        assert word not in ran.err, ran
    assert ran.err.count("\nerror: ") + ran.err.startswith(("error: ", "Usage: ")) == 1, ran
    assert len(ran.err) < MAX_MESSAGE, len(ran.err)
    assert all(len(line) < MAX_LINE for line in ran.err.splitlines()), ran.err[:3000]
    assert ran.err.replace("\n", "").isprintable(), ran
    for word in says:
        assert word in ran.err, (word, ran)
    assert contents(cwd) == before, "something was left behind, or changed"
    return ran


def check(case: Hostile, folder: Path, run: Callable[..., Ran] = quick) -> None:
    """`inspect` and `dedup` of a hostile input: each exits with its class, says where, and leaves nothing."""
    path = case.make(folder)
    says = (path.name, *case.says)
    output = ("-o", "made.safetensors")
    if case.inspect:
        refused(run, "inspect", path.name, cwd=folder, code=case.inspect, says=says)
    else:
        ran = run("inspect", path.name, cwd=folder)
        assert (ran.code, ran.err) == (0, ""), ran
    code = case.inspect if case.dedup is None else case.dedup
    if code:
        refused(run, "dedup", path.name, *output, cwd=folder, code=code, says=says)
    else:
        ran = run("dedup", path.name, *output, cwd=folder)
        assert ran.code == 0, ran
