"""What every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

SAMPLES = Path(__file__).resolve().parents[2] / "shared" / "samples"
"""Real checkpoints of other people; see the README there.  Not a part of the repository."""


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of real checkpoints; the test is skipped where it is not there."""
    if not SAMPLES.is_dir():
        pytest.skip(f"{SAMPLES} is not there")
    return SAMPLES
