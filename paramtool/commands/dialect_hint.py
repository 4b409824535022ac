"""Whether a model that does not load a file would load it in another dialect: its names, and the shapes it wants."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from paramtool import dialects
from paramtool.commands import rearrange
from paramtool.commands._rearranged_again import as_made
from paramtool.dialects import NAMES
from paramtool.errors import FormatError, LayoutError, PlanError
from paramtool.model.checkpoint import Checkpoint
from paramtool.parts.facts import NONE
from paramtool.passes.compat.check import judge
from paramtool.passes.compat.wanted import Wanted


def text(target: str) -> str:
    """The hint for people."""
    return f"loads after `convert --to {target}`"


def convert_to(part: Checkpoint, wanted: Sequence[Mapping[str, Wanted]]) -> str:
    """The first dialect in which a checkpoint has everything that one of several lists wants; empty if there is none.

    The config.json beside the checkpoint says of which model it is, as for `convert`.  Ties are not judged.
    """
    try:
        config = rearrange.config_beside(part.files[0].path)
        known = rearrange.record_of(part)
        shapes, facts = rearrange.shapes_of(part), rearrange.facts_of(config, NONE, {})
        found = [known.dialect] if known.dialect else dialects.recognised(shapes, config, facts) if config else []
    except (FormatError, LayoutError):
        return ""
    if len(found) != 1:  # `convert` asks which is meant
        return ""
    for target in (name for name in NAMES if name != found[0]):
        try:
            change = rearrange.dialect_change(shapes, (found[0], target), config, facts).change
            there = {one.name for one in change.made}
            if not any(_may_load(there, one) for one in wanted):
                continue
            made = as_made(part, change).expected
        except (LayoutError, PlanError):
            continue
        if any(one and judge(one, made)[0].loads for one in wanted):
            return target
    return ""


def _may_load(there: Collection[str], wanted: Mapping[str, Wanted]) -> bool:
    """Whether each alias set that is wanted has a name."""
    held = {one.alias_set for name, one in wanted.items() if name in there}
    return bool(wanted) and all(one.alias_set in held for one in wanted.values())
