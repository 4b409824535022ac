"""The memory of `diff`: bounded by --memory, however large the two files are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

TOLD = """
import atexit, sys
from paramtool.cli.main import main

def told():
    with open("/proc/self/status") as file:
        print(next(line.split()[1] for line in file if line.startswith("VmHWM:")), file=sys.stderr)

atexit.register(told)
main()
"""
"""A run that prints its peak in kB: `ru_maxrss` of a child is never less than that of the process that forked it."""
ALLOWANCE = 16 << 20
"""For what --memory does not count: Python's own objects, and the map that is found."""


def peak(*words: object) -> tuple[str, int]:
    """What a run prints, and its peak resident memory in bytes."""
    done = subprocess.run([sys.executable, "-c", TOLD, *map(str, words)], capture_output=True, text=True, check=True)
    return done.stdout, int(done.stderr.split()[-1]) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc/self/status of Linux")
def test_memory_is_bounded(tmp_path: Path) -> None:
    """Two files of 150 MB, one tensor of 100 MB among theirs, all of whose rows are in another order."""
    large = np.random.default_rng(0).random((24576, 1024), "f4")
    a = {"large": large} | {f"{k}": large[:4096] + np.float32(k + 1) for k in range(3)}
    save_file(a, tmp_path / "a.safetensors")
    save_file({f"x.{name}": np.ascontiguousarray(one[::-1]) for name, one in a.items()}, tmp_path / "b.safetensors")
    assert sum((tmp_path / f"{name}.safetensors").stat().st_size for name in "ab") > 300_000_000
    for name in "cd":
        save_file({"w": large[:4, :4].copy()}, tmp_path / f"{name}.safetensors")
    _, least = peak("diff", "--stat", tmp_path / "c.safetensors", tmp_path / "d.safetensors")
    text, most = peak("diff", "--stat", "--memory", "64MiB", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert text.startswith("verdict  same weights in another layout\n")
    assert most - least < (64 << 20) + ALLOWANCE
