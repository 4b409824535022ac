"""A plugin: marks tests by their folder, and writes down which claims of README.md a run proved.

What it writes is `build/claims.json`; `python docs/claims.py record build/claims.json` takes it over.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"oracles": ("oracle",), "faults": ("hardening",), "fuzz": ("hardening",), "hostile": ("hardening",)}
"""The marks of every test in a folder of tests."""
RANK = ["passed", "skipped", "failed"]


def claims_module() -> ModuleType:
    """docs/claims.py."""
    spec = importlib.util.spec_from_file_location("claims", ROOT / "docs" / "claims.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["claims"] = module
    spec.loader.exec_module(module)
    return module


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`-m oracle` and `-m hardening` choose by folder; other tests have the mark themselves."""
    for item in items:
        parts = item.path.parts
        folder = parts[parts.index("tests") + 1] if "tests" in parts[:-1] else ""
        for mark in FOLDERS.get(folder, ()):
            item.add_marker(mark)


class Recording:
    """The worst outcome of each test function; in a run of several processes, only the first writes it down."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The outcome of a set-up, a test or a tear-down."""
        name = report.nodeid.partition("[")[0]
        self.results[name] = max(self.results.get(name, "passed"), report.outcome, key=RANK.index)

    def pytest_sessionfinish(self) -> None:
        """What was proved."""
        found = claims_module().passed(self.results, ROOT / ".venv-oracles")
        if found:
            path = ROOT / "build" / "claims.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Workers do not write."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recording())
