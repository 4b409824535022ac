"""How many examples hypothesis tries: `make test` a third, since it tries the same ones each time; `make hard` all."""

from __future__ import annotations

import os

IS_HARD = bool(os.environ.get("PARAMTOOL_HARD"))
"""Whether everything is tried, instead of a sample."""


def examples(count: int) -> int:
    """How many of `count` examples are tried."""
    return count if IS_HARD else -(-count // 3)
