"""A plugin: how much of paramtool the tests run, with PARAMTOOL_COVERAGE=1 as `make test` sets it.

coverage.py measures.  From Python 3.12 on, the interpreter reports each line once (sys.monitoring), which costs little,
and every test counts.  Older Pythons call a function for each line, which more than doubles the time of a test: there,
only the imports and, of the tests of ROOMS that are not marked as slow, the first case of each count, and the line that
is printed says so.

Not seen in either case: processes that tests start, such as commands in processes of their own, faults and fuzzing, and
the reader of HDF5.  The figure is a lower bound.
"""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "build" / "coverage"
ROOMS = ("commands", "dialects", "drawing", "golden", "lockfile", "model")
"""Folders of tests that count where tracing is slow: each runs whole commands in its process."""
IS_CHEAP = sys.version_info >= (3, 12)
FLOOR = 75
"""A run of all tests fails under this percentage: clearly less than what it is."""
ALL = 10_000
"""A run of fewer tests is of a part, and has no floor."""


def made() -> Any:
    """The measurement of this process, of lines of the package."""
    import coverage

    if IS_CHEAP:
        os.environ.setdefault("COVERAGE_CORE", "sysmon")
    found = coverage.Coverage(
        data_file=str(DATA / "data"), data_suffix=True, source=[str(ROOT / "paramtool")], config_file=False
    )
    found.set_option("run:disable_warnings", ["trace-changed", "no-data-collected", "module-not-measured"])
    return found


def import_all() -> None:
    """Every module of the package, as collecting the tests does, but for those of libraries that are not there."""
    import paramtool

    for found in pkgutil.walk_packages(paramtool.__path__, "paramtool."):
        if found.name not in ("paramtool.__main__", "paramtool.mxnet"):
            with suppress(ImportError):
                importlib.import_module(found.name)


def _room(path: Path) -> str:
    """The folder in tests/ that has a test."""
    parts = path.parts
    return parts[parts.index("tests") + 1] if "tests" in parts[:-1] else ""


class Covering:
    """Measures in one process; the first of several adds up."""

    def __init__(self) -> None:
        self.found = made()
        self.found.start()
        self.runs = True
        self.failed = False
        self.first: set[str] = set()

    def turn(self, on: bool) -> None:
        """Measure from here on, or do not."""
        if on != self.runs:
            (self.found.start if on else self.found.stop)()
            self.runs = on

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """What tests import besides paramtool, such as torch and transformers, is not traced where that is slow.

        Nor is anything imported in a process that only distributes the tests.
        """
        if not IS_CHEAP:
            self.turn(False)
            if session.config.getoption("dist", "no") != "no":
                return
            with suppress(ImportError):
                importlib.import_module("torch")
            self.turn(True)
            import_all()
            self.turn(False)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The first case of each test, the same in every process; what is slow without being traced has none.

        Other cases mostly run the same lines again.
        """
        named: dict[str, str] = {}
        for item in session.items:
            if _room(item.path) in ROOMS and item.get_closest_marker("slow") is None:
                named.setdefault(item.nodeid.partition("[")[0], item.nodeid)
        self.first = set(named.values())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Measure the test, or do not."""
        self.turn(IS_CHEAP or item.nodeid in self.first)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Each process saves what it saw; those of others are there before the first one ends."""
        self.turn(False)
        self.found.save()
        if not hasattr(session.config, "workerinput"):
            self.found.combine([str(DATA)], keep=False)
            self.found.save()
            text = io.StringIO()
            self.total = self.found.report(file=text, skip_covered=True, show_missing=True, ignore_errors=True)
            (DATA / "report.txt").write_text(text.getvalue(), encoding="utf-8")
            self.failed = session.testscollected >= ALL and self.total < FLOOR
            if self.failed:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The figure."""
        of = (
            "all tests"
            if IS_CHEAP
            else f"first cases of the tests of {', '.join(ROOMS)} that are not slow (Python 3.12 counts all)"
        )
        line = f"coverage: {self.total:.1f} % of paramtool's lines, by {of}, without processes that tests start"
        terminalreporter.write_line(f"{line}; build/coverage/report.txt")
        if self.failed:
            terminalreporter.write_line(f"coverage: less than {FLOOR} %, which is an error", red=True)


def _started() -> Covering | None:
    """What measures this process, if anything does; before the first import of the package."""
    if not os.environ.get("PARAMTOOL_COVERAGE"):
        return None
    assert "paramtool" not in sys.modules, "this plugin comes before the first import of the package"
    DATA.mkdir(parents=True, exist_ok=True)
    return Covering()


COVERING = _started()
