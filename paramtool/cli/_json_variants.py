"""Variants as JSON data; the schema is docs/schema/variants-1.json."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paramtool.commands.variants import Variant
    from paramtool.passes.compat.check import Apart


def variants(path: str, found: Sequence[Variant]) -> dict[str, Any]:
    """`paramtool variants --json`."""
    return {"schema": "paramtool.variants/1", "path": path, "variants": [_variant(one) for one in found]}


def _variant(one: Variant) -> dict[str, Any]:
    return {
        "against": one.against,
        "kind": one.kind,
        "section": one.section,
        "verdict": one.verdict,
        "names": one.names,
        "through": [{"name": t.name, "owner": t.owner, "relation": t.relation} for t in one.through],
        "filled": [{"name": f.name, "by": f.by} for f in one.filled],
        "lacks": list(one.lacks),
        "shapes": [{"name": c.name, "found": list(c.found), "wanted": list(c.wanted)} for c in one.shapes],
        "types": [{"name": c.name, "found": c.found, "wanted": c.wanted} for c in one.types],
        "apart": [_apart(one) for one in one.apart],
        "unused": list(one.unused),
        "advice": one.advice,
    }


def _apart(one: Apart) -> dict[str, Any]:
    """Infinity is no number of JSON: where one is infinite or NaN and the other is not, the difference is a text."""
    number = one.difference
    shown = number if number is None or isfinite(number) else "infinity"
    return {"name": one.name, "other": one.other, "difference": shown}
