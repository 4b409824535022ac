"""What was run of each part layout, as `tests/oracles/dialects/prove.py` found it; it writes `proofs.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

from paramtool.package_data import package_data

FILE = "proofs.json"
NONE_RUN = "test: equal to array operations of its own, for sizes that hypothesis draws; no model of it was run"
"""The proof of a layout that no model that transformers has stores or gets."""


def proofs(layout: str) -> tuple[str, ...]:
    """Who ran tensors of a layout, how far off they were, and how far off other layouts were."""
    return tuple(_read().get(layout, (NONE_RUN,)))


@cache
def _read() -> Mapping[str, list[str]]:
    found: Mapping[str, list[str]] = json.loads(package_data("parts", FILE))
    return found
