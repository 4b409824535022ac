"""Whether a model that does not load a file would load it after `unfuse`, `fuse` or `convert --to DIALECT`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from paramtool.commands.expected import as_made
from paramtool.commands.rearrangement import PartsSource, dialects_of, parts_source
from paramtool.dialects import HUB, NAMES, TABLES
from paramtool.errors import FormatError, LayoutError, PlanError
from paramtool.model.checkpoint import Checkpoint
from paramtool.parts.config_facts import KnownModel
from paramtool.passes.compat.check import RowClash, judge
from paramtool.passes.compat.wanted import Wanted
from paramtool.passes.parts import fuse
from paramtool.passes.parts.dialect_change import dialect_change
from paramtool.passes.parts.rewrite import Rearranged

CONVERT = "convert --to "


def text(line: str) -> str:
    """The hint for people."""
    return f"loads after `{line}`"


def loads_after(part: Checkpoint, wanted: Sequence[Mapping[str, Wanted]]) -> str:
    """The first command that gives a checkpoint everything that one of several lists wants; empty if there is none.

    `unfuse` and `fuse --layout LAYOUT` undo what the checkpoint's record describes.  For `convert --to DIALECT` the
    config.json beside the checkpoint says of which model it is.  Ties are not judged.
    """
    try:
        source = parts_source(part)
        commands = list(_commands(source))
    except (FormatError, LayoutError):
        return ""
    for line, change_of in commands:
        try:
            change = change_of()
            there = {one.name for one in change.made} | part.entries.keys() - {one.name for one in change.read}
            if not any(_may_load(there, one) for one in wanted):
                continue
            made = as_made(part, change).expected
        except (LayoutError, PlanError):
            continue
        if any(one and judge(one, made)[0].loads for one in wanted):
            return line
    return ""


def loads_with_rows(part: Checkpoint, wanted: Sequence[Mapping[str, Wanted]], rows: Sequence[RowClash]) -> str:
    """As of `loads_after`, for a variant that has the names and shapes of some tensors, with rows in another order.

    Only `unfuse`, and the dialect whose rows the variant has, change what is in such tensors.
    """
    try:
        source = parts_source(part)
    except FormatError:
        return ""
    fused = {one.tensor for one in source.record.fused}
    if source.record.dialect in (*TABLES, "") and not any(one.name in fused for one in rows):
        target = next((name for name in TABLES for one in rows if one.wanted.startswith(f"rows of {name} ")), HUB)
        return f"{CONVERT}{target}"
    try:
        made = as_made(part, _undone(source, KnownModel(source.config), "")).expected
    except (LayoutError, PlanError):
        return ""
    return "unfuse" if any(one and judge(one, made)[0].loads for one in wanted) else ""


def _commands(source: PartsSource) -> Iterator[tuple[str, Callable[[], Rearranged]]]:
    """The commands that may help, and what each would do."""
    model, known = KnownModel(source.config), source.record
    if known.fused:
        yield "unfuse", lambda: _undone(source, model, "")
    layouts = {one.layout for one in known.unfused}
    if len(layouts) == 1:
        layout = layouts.pop()
        yield f"fuse --layout {layout}", lambda: _undone(source, model, layout)
    found = dialects_of(source, model)
    if len(found) == 1:  # else `convert` asks which is meant
        for target in (name for name in NAMES if name != found[0]):
            yield f"{CONVERT}{target}", _to_dialect(source, (found[0], target), model)


def _to_dialect(source: PartsSource, ways: tuple[str, str], model: KnownModel) -> Callable[[], Rearranged]:
    known = source.record
    prefix = known.prefix if known.dialect == ways[0] else ""
    return lambda: dialect_change(source.shapes, ways, model, known.added, prefix=prefix).change


def _undone(source: PartsSource, model: KnownModel, layout: str) -> Rearranged:
    """What the record describes as fused taken apart, or what was in a layout fused again."""
    is_fused, shapes = not layout, source.shapes
    again = source.record.fused if is_fused else [one for one in source.record.unfused if one.layout == layout]
    joints = [fuse.recorded(one, shapes, model.packing, is_fused=is_fused) for one in again]
    fused, parts = tuple(one.stored for one in joints), tuple(fuse.parts_of(joints))
    return Rearranged(fused, parts) if is_fused else Rearranged(parts, fused)


def _may_load(there: Collection[str], wanted: Mapping[str, Wanted]) -> bool:
    """Whether each alias set that is wanted has a name."""
    held = {one.alias_set for name, one in wanted.items() if name in there}
    return bool(wanted) and all(one.alias_set in held for one in wanted.values())
