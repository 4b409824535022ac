"""One warm process, children that run batches of cases, and what becomes of a case that takes its child along."""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import pickle
import pkgutil
import select
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import paramtool
from paramtool.cli import _failures
from paramtool.cli.main import main
from tests.fuzz import judges, watch
from tests.fuzz.cases import ORIGINAL, Case, Command
from tests.fuzz.judges import Finding, Run
from tests.fuzz.mutators.pickles import CANARY
from tests.hostile.command import contents
from tests.warming import warm_up

BATCH = 250
"""Cases that one child runs."""
REFUSED_AGAIN = 8
"""Of the files that `inspect` refuses, every so many-th is given to the next command, too."""
SILENCE = 60.0
"""A child that says nothing for so many seconds is ended."""
Make = Callable[[int], Case]


@dataclass
class Result:
    """What a case came to."""

    number: int
    format: str
    name: str
    codes: list[str]
    findings: list[Finding]
    seconds: float
    case: Case | None = None
    """Where there are findings: to make it again could hang, as h5py does in files that it mutated before."""


@dataclass
class Total:
    """What a run came to."""

    cases: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    found: dict[str, tuple[int, Finding, int]] = field(default_factory=dict)
    """{key: (how often, the first, its case)}"""
    seconds: float = 0.0

    def add(self, result: Result) -> None:
        """Count one more."""
        self.cases[result.format] += 1
        self.codes.update(f"{result.format} {code}" for code in result.codes)
        for finding in result.findings:
            many, first, number = self.found.get(finding.key, (0, finding, result.number))
            self.found[finding.key] = (many + 1, first, number)


def warm() -> None:
    """Import everything that a command could, and the canary that none may touch: children only fork."""
    for module in pkgutil.walk_packages(paramtool.__path__, "paramtool."):
        if module.name not in ("paramtool.__main__", "paramtool.keras", "paramtool.mxnet"):  # not of the command
            importlib.import_module(module.name)
    sys.modules["transformers"] = None  # type: ignore[assignment]  # takes seconds to import in each child: not installed
    canary = ModuleType(CANARY)
    canary.__file__ = CANARY
    sys.modules[CANARY] = canary
    os.environ["PARAMTOOL_DEBUG"] = "1"
    warm_up()
    importlib.import_module("numpy.ma")  # NumPy does, where it needs it
    gc.collect()
    gc.freeze()


class _Fired(BaseException):
    """The canary was called."""


def _fire(*args: object, **named: object) -> None:
    raise _Fired


def run_command(command: Command, folder: Path, watched: watch.Watch) -> Run:
    """A command in this process, as the command line runs it, with its exceptions."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["paramtool", *command]
    code, error = None, None
    peak, start = watch.peak(), time.process_time()
    watch.limit_case()
    with warnings.catch_warnings(record=True) as warned, watched.watching() as seen:
        warnings.simplefilter("always")
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        except BaseException as caught:
            error = caught
    _failures.caught.clear()
    gc.enable()
    texts = tuple(f"{item.category.__name__}: {item.message}" for item in warned)
    return Run(command, code, out.getvalue(), err.getvalue(), error, texts, time.process_time() - start,
               watch.peak() - peak, tuple(dict.fromkeys(seen)))  # fmt: skip


def is_judged(command: Command) -> bool:
    """Whether what a command wrote has the names and the values of its input."""
    if command[0] == "convert":
        return "--to" not in command and command[command.index("-o") + 1].endswith((".safetensors", ".pt", ".npz"))
    return command[0] == "dedup"


def run_case(case: Case, number: int, folder: Path, watched: watch.Watch) -> Result:
    """All commands of a case in a fresh folder, and what the judges say."""
    started = time.monotonic()
    place = folder / "case"
    shutil.rmtree(place, ignore_errors=True)
    (folder / "begun").write_bytes(pickle.dumps((number, case)))
    for inside, files in (("in", case.files), (ORIGINAL, case.original)):
        for name, data in files.items():
            path = place / inside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    (place / "out").mkdir(parents=True)
    (place / "tmp").mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(place / "tmp")
    (place / "in").mkdir(exist_ok=True)
    os.chdir(place / "in")
    sys.modules[CANARY].__dict__.update(fire=_fire, Kind=_fire)
    findings: list[Finding] = []
    codes = []
    before = contents(place)
    for command in case.commands:
        run = run_command(command, place, watched)
        after = contents(place)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        findings += judges.judge_run(run, case, changed)
        findings += judges.judge_work(run, watch.SLOW_SECONDS, watch.PEAK_NBYTES)
        codes.append(f"{command[0]} {'exception' if run.code is None else run.code}")
        if is_judged(command) and run.code == 0 and not findings:
            watch.limit_case()
            with (
                watched.watching() as seen
            ):  # torch.load of what was written imports what it names, and calls nothing else
                findings += judges.judge_output(case, Path(case.main), Path(command[command.index("-o") + 1]))
            called = [what for what in seen if what.split(" ")[0] in watch.NEVER - {"pickle.find_class"}]
            findings += [Finding("executed", judges.plain(what), what) for what in called]
        before = after
        if run.code and (command[0] == "lock" or (run.code in (3, 4) and number % REFUSED_AGAIN)):
            break
    if case.commands[0][0] == "inspect" and codes[0].endswith(" 3") and {*codes[1:]} & {"dedup 0", "lock 0"}:
        findings.append(Finding("disagree", f"inspect refuses what {codes[1].split()[0]} takes"))
    if findings:
        (folder / "begun").rename(folder / f"found-{number}")
    return Result(number, case.format, case.name, codes, findings, time.monotonic() - started)


def _child(numbers: Iterable[int], make: Make, say: int, log: int, folder: Path) -> None:
    """Run cases, and say of each when it begins and how it ended."""
    os.setpgid(0, 0)
    watched = watch.Watch(str(folder))
    watch.limit_process(log)
    for count, number in enumerate(numbers):
        os.write(say, json.dumps({"begun": number}).encode() + b"\n")
        try:
            watch.limit_case()  # h5py mutates as well, and can hang in what it mutated before
            result = asdict(run_case(make(number), number, folder, watched))
        except BaseException as error:
            finding = Finding("fuzzer", f"{type(error).__name__} in {judges.origin(error)}", repr(error)[:500])
            import traceback

            finding = Finding("fuzzer", judges.origin(error) + plain_tail(error), traceback.format_exc()[-3000:])
            result = asdict(Result(number, "?", "?", [], [finding], 0.0))
        os.write(say, json.dumps({"done": result}).encode() + b"\n")
        if count % 20 == 19:
            gc.collect()


def plain_tail(error: BaseException) -> str:
    """The place that raised it."""
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    return f" at {os.path.basename(last.filename)}:{last.name}"


def batch(numbers: list[int], make: Make) -> Iterator[Result]:
    """Results of some cases, run in one child and, where one takes it along, in the next."""
    left = list(numbers)
    while left:
        begun: int | None = None
        with (
            tempfile.TemporaryDirectory(dir=memory(), ignore_cleanup_errors=True) as place,
            tempfile.TemporaryFile() as log,
        ):
            for message in _listen(left, make, Path(place), log.fileno()):
                if "begun" in message:
                    begun = message["begun"]
                else:
                    done = message["done"]
                    done["findings"] = [Finding(**item) for item in done["findings"]]
                    left.remove(done["number"])
                    begun = None
                    result = Result(**done)
                    result.case = _kept(Path(place, f"found-{result.number}"), result.number)
                    yield result
            log.seek(0)
            where = log.read(4000).decode(errors="replace")
            if left:
                number = left[0] if begun is None else begun
                left.remove(number)
                yield _died(number, _kept(Path(place, "begun"), number), where)


def _kept(path: Path, number: int) -> Case | None:
    """The case that a child kept, if it is of that number."""
    try:
        last, case = pickle.loads(path.read_bytes())
    except (OSError, EOFError):
        return None
    return case if last == number else None


def _died(number: int, case: Case | None, where: str) -> Result:
    """A case whose child was ended by a limit, by a signal, or for saying nothing."""
    if case is None:
        return Result(number, "?", "?", ["unmade"], [Finding("fuzzer", "a mutator died", where[:2000], False)], 0.0)
    lines = [line.strip() for line in where.splitlines() if "File" in line]
    if lines and f"{os.sep}judges.py" in lines[0]:  # a damaged file ends the other library, where paramtool went on
        return Result(number, case.format, case.name, ["judge died"], [], 0.0, case)
    ours = next((line for line in lines if "paramtool" in line and "tests" not in line), lines[0] if lines else "")
    what = (where.splitlines() or ["killed"])[0][:60]
    ours = ours.rpartition(os.sep + "paramtool" + os.sep)[2].replace('"', "").replace(", line", " line")
    finding = Finding("died", f"{case.format}: {what}: {judges.plain(ours)}", where[:2000])
    return Result(number, case.format, case.name, ["died"], [finding], 0.0, case)


def _listen(numbers: list[int], make: Make, folder: Path, log: int) -> Iterator[dict[str, Any]]:
    """Messages of a child; ends when it has ended, which it is made to do after a long silence."""
    hear, say = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(hear)
            _child(numbers, make, say, log, folder)
            code = 0
        finally:
            os._exit(code)
    os.close(say)
    text = b""
    try:
        while select.select([hear], [], [], SILENCE)[0] and (data := os.read(hear, 1 << 16)):
            *lines, text = (text + data).split(b"\n")
            yield from map(json.loads, lines)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(hear)


def memory() -> str | None:
    """A folder in memory where there is one: nothing here is to be kept."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run(numbers: Iterable[int], make: Make, on_result: Callable[[Result], bool]) -> None:
    """Run cases in order until there are none, or `on_result` says that it is enough."""
    waiting: list[int] = []
    for number in numbers:
        waiting.append(number)
        if len(waiting) == BATCH:
            for result in batch(waiting, make):
                if not on_result(result):
                    return
            waiting = []
    for result in batch(waiting, make):
        if not on_result(result):
            return
