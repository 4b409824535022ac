"""Each target of `make fuzz-guided` has seeds that its reader takes; atheris runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import guided
from tests.patience import PATIENCE


@pytest.mark.parametrize("name", guided.TARGETS)
def test_targets_take_their_seeds(name: str, tmp_path: Path) -> None:
    """A damaged file is no finding; anything that is no error of reading is one."""
    guided.seeds(name, tmp_path)
    seeds = [path.read_bytes() for path in sorted(tmp_path.glob("seed-*"))[:5]]
    assert seeds
    read = guided.target(name, tmp_path)
    for data in seeds:
        for cut in (data, data[:-1], data[: len(data) // 2], b"\0" + data, b""):
            read(cut)


def test_a_short_run_of_atheris(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="`make fuzz-guided` installs it")
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.guided", "safetensors", "-runs=50", f"-artifact_prefix={tmp_path}/"],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(tmp_path.iterdir()) == []
