"""What the commands of a page, and those that make its files, have in their environment."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "80", "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "ann@example.com",
    "GIT_COMMITTER_NAME": "Ann", "GIT_COMMITTER_EMAIL": "ann@example.com",
}  # fmt: skip
