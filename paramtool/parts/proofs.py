"""What was run of each part layout, as `tests/oracles/dialects/prove.py` found it; it writes `proofs.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache

FILE = os.path.join(os.path.dirname(__file__), "proofs.json")
NONE_RUN = "test: equal to array operations of its own, for sizes that hypothesis draws; no model of it was run"
"""The proof of a layout that no model that transformers has stores or gets."""


def proofs(layout: str) -> tuple[str, ...]:
    """Who ran tensors of a layout, how far off they were, and how far off other layouts were."""
    return tuple(_read().get(layout, (NONE_RUN,)))


@cache
def _read() -> Mapping[str, list[str]]:
    with open(FILE, encoding="utf-8") as file:
        found: Mapping[str, list[str]] = json.load(file)
    return found
