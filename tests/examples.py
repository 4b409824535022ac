"""What tests take as examples, and how many: of hypothesis' `make test` an eighth, `make hard` all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

IS_HARD = bool(os.environ.get("PARAMTOOL_HARD"))
"""Whether everything is tried, instead of a sample."""

IS_EVERY_MODEL = bool(os.environ.get("PARAMTOOL_EVERY_MODEL"))
"""Whether it is `make oracles` that runs."""
IS_WHOLE = IS_HARD or IS_EVERY_MODEL
"""Whether every case of every test runs."""


FEWEST = 10
"""Each law is tried with at least this many, or all that it asks for."""


def examples(count: int) -> int:
    """How many of `count` examples are tried."""
    return count if IS_HARD else max(min(count, FEWEST), -(-count // 8))


def shared(*parts: str) -> Path:
    """A file of other people's that is not a part of the repository: of `samples` or `findings`; skips without it."""
    path = Path(__file__).parents[2].joinpath("shared", *parts)
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path
