"""benchmarks/gpu_fused.py and its parts, which are no package, and results for them that nobody measured."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = str(ROOT / "benchmarks")
sys.path.insert(0, BENCHMARKS)  # its scripts are run from a tree where nothing is installed, and so are no package
try:
    import gpu_fused
    import gpu_fused_measure
    import gpu_fused_results
    import gpu_fused_run
    from gpu_fused_results import Cell
finally:
    sys.path.remove(BENCHMARKS)

MODULES = (gpu_fused, gpu_fused_measure, gpu_fused_results, gpu_fused_run)
SMALL = ["--device", "cpu", "--hidden", "4,8,4", "--layers", "1", "--sequence", "1,3", "--seconds-per-cell", "0.01"]
FOUR = [*SMALL, "--kinds", "lstm", "--dtypes", "float32"]
"""Four configurations."""


def cell(kind: str = "lstm", **changes: Any) -> Cell:
    """A small configuration in float64."""
    return Cell(**{"kind": kind, "dtype": "float64", "hidden": 6, "layers": 2, "sequence": 5, "batch": 3} | changes)


def asked(*words: str) -> argparse.Namespace:
    """A small grid, with more flags."""
    return gpu_fused.parsed(gpu_fused.parser(None), [*SMALL, *words])


def made_up(separate: dict[int, float], **settings: Any) -> dict[str, Any]:
    """A result with one configuration for each {sequence: time of separate over that of fused}."""
    result = gpu_fused_measure.started(asked("--kinds", "lstm", "--dtypes", "float32", "--hidden", "4"))
    result["settings"] |= {"sequence": sorted(separate), **settings}
    result["not_measured"] = []
    for sequence, times in separate.items():
        factors = {"fused": 1.0, "separate": times, "concatenated": 2.0}
        figures = {name: dict.fromkeys(gpu_fused_results.MODES, _figures(factor)) for name, factor in factors.items()}
        point = asdict(cell(dtype="float32", hidden=4, layers=1, sequence=sequence))
        result["cells"].append(point | {"rounds": 3, "parameters_nbytes": 9, "variants": figures})
    return result


def _figures(factor: float) -> dict[str, Any]:
    return {"median_seconds": factor, "quartiles_seconds": [factor, factor], "peak_nbytes": None}


def earlier(folder: Path) -> Path:
    """A result in a file."""
    path = folder / "earlier.json"
    path.write_text(json.dumps(made_up({1: 1.5, 8: 1.0})))
    return path


def figures(one: Cell, *_: object) -> dict[str, Any]:
    """Instead of measuring."""
    return made_up({one.sequence: 1.5})["cells"][0] | asdict(one)


def measure_by(monkeypatch: pytest.MonkeyPatch, function: Callable[..., dict[str, Any]]) -> None:
    """Let something else measure."""
    monkeypatch.setattr(gpu_fused_measure, "_measured_or_failed", function)


def script(words: Sequence[str], stdout: Any, before: str = "") -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    text = f"import runpy, sys; sys.path.insert(0, {BENCHMARKS!r}); sys.path.insert(1, {str(ROOT)!r})\n{before}\n"
    text += f"sys.argv[1:] = {list(words)!r}\nrunpy.run_path({BENCHMARKS + '/gpu_fused.py'!r}, run_name='__main__')"
    command = [sys.executable, "-c", text]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
