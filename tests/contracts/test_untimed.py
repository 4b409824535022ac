"""`make test` gives the same verdicts on a busy machine as on an idle one."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).parents[1]
CLOCKS = {"time", "monotonic", "monotonic_ns", "time_ns"}
CPU_CLOCKS = {"process_time", "process_time_ns", "thread_time", "perf_counter", "perf_counter_ns"}
DURATIONS = {"timeout", "deadline"}
WORDS = [*DURATIONS, *CPU_CLOCKS, *(f".{name}" for name in CLOCKS)]
LIMITED = {"fuzz/replay.py", "fuzz/runner.py", "hostile/test_bounded_work.py"}
"""Limits of processor time are what these are about: the fuzzer's for a case, and what `make hard` alone compares."""


def test_the_profile_is_in_force() -> None:
    """No law has a deadline, whatever else its settings say."""
    assert settings.get_current_profile_name() == "untimed"
    for found in (settings(), settings(max_examples=7), settings.default):
        assert found is not None and found.deadline is None and HealthCheck.too_slow in found.suppress_health_check


@settings(max_examples=2)
@given(st.booleans())
def test_a_slow_law_holds(said: bool) -> None:
    """Longer than the 200 ms that hypothesis allows by itself."""
    time.sleep(0.25)
    assert isinstance(said, bool)


def clocks(path: Path) -> Iterator[str]:
    """Times that a test compares, and limits shorter than `PATIENCE`."""
    text = path.read_text()
    if not any(word in text for word in WORDS):  # most files: what cannot be in the tree is not looked for there
        return
    for node in ast.walk(ast.parse(text)):
        is_limit = isinstance(node, ast.keyword) and node.arg in DURATIONS and isinstance(node.value, ast.Constant)
        if is_limit and node.value.value is not None:
            yield f"{path.name}:{node.value.lineno}: {node.arg}={node.value.value}"
        if isinstance(node, ast.Attribute) and node.attr in CPU_CLOCKS:
            yield f"{path.name}:{node.lineno}: {node.attr}"
        if isinstance(node, ast.Assert):
            calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
            if any(isinstance(call, ast.Attribute) and call.attr in CLOCKS for call in calls):
                yield f"{path.name}:{node.lineno}: asserts a time"


def test_no_test_measures_time() -> None:
    """Work is counted in calls (tests/patience.py), and other processes are waited for with patience."""
    paths = [path for path in sorted(TESTS.rglob("*.py")) if str(path.relative_to(TESTS)) not in LIMITED]
    assert Path(__file__) in paths
    assert [found for path in paths for found in clocks(path)] == []


def test_what_is_looked_for_is_found(tmp_path: Path) -> None:
    """The check can fail."""
    code = "assert time.monotonic() - began < 10\nrun(timeout=8)\n@settings(deadline=500)\ndef f(): ...\n"
    (tmp_path / "x.py").write_text(code)
    assert len(list(clocks(tmp_path / "x.py"))) == 3
