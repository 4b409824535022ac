"""The report of several deduplicated checkpoints as JSON data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paramtool.commands.dedup_many import Family


def family(found: Family) -> dict[str, Any]:
    """`paramtool dedup --json` of several inputs."""
    data = asdict(found)
    for member in data["members"]:
        del member["wrapper"]  # of the line that loads it
    return {
        "schema": "paramtool.dedup-family/1",
        **data,
        "seconds": round(found.seconds, 3),
    }
