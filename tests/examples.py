"""How many examples hypothesis tries: `make test` an eighth, as it tries the same ones each time; `make hard` all."""

from __future__ import annotations

import os

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
