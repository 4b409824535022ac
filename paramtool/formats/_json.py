"""JSON as a strict reader takes it."""

from __future__ import annotations

import json
from typing import Any


def strict(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError where it is none, nests too deep, or has a key twice in one object.

    Of a key that stands twice readers would take different ones.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r:.60} stands twice")
            seen.add(key)
    return found
