"""`unfuse` without a layout: each fused tensor has that of its family, or of a name that one class alone has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from paramtool.commands.seen_parts import seen_parts
from paramtool.errors import LayoutError
from paramtool.model.checkpoint import Checkpoint
from paramtool.parts.facts import KINDS, Facts
from paramtool.parts.layout import find_part_layout
from paramtool.passes.parts.fused_names import joined

if TYPE_CHECKING:
    from paramtool.passes.parts.find import FusedGroup
    from paramtool.passes.parts.fuse import Joint, KnownParts
    from paramtool.passes.parts.seen_groups import SeenGroup


class SeenApart(NamedTuple):
    """Fused tensors that are taken apart, and who says their layouts."""

    joints: list[Joint]
    said: Mapping[str, str]
    """{layout: who says it}"""


def is_possible(checkpoint: Checkpoint, spec: str) -> bool:
    """Whether a checkpoint has fused parts, and `--spec` does not speak of a recurrent network."""
    words = spec.split()
    if words and words[0].lower().lstrip("-").replace("_", "-") not in KINDS:
        return False
    found = seen_parts(checkpoint)
    return found is not None and any(group.form == "fused" for group in found.groups)


def unfused(checkpoint: Checkpoint, at: Sequence[str], spec: Facts, known: KnownParts) -> SeenApart:
    """The fused tensors whose layouts are known; LayoutError lists what fits the others, and what would decide."""
    from paramtool.passes.parts import find, fuse
    from paramtool.passes.parts.layouts_seen import refusal

    where = checkpoint.path
    seen = seen_parts(checkpoint, spec.sizes)
    groups = [group for group in seen.groups if group.form == "fused" and _is_at(group, at)] if seen else []
    if not groups:
        said = f" at {', '.join(at)}" if at else ""
        raise LayoutError(
            f"{where}: no fused tensor is known{said}", hint="--layout LAYOUT --at 'PATTERN' says what a tensor holds"
        )
    if unknown := [group for group in groups if not group.layout]:
        raise refusal(unknown, where)
    joints: list[Joint] = []
    who: dict[str, str] = {}
    for group in groups:
        layout = find_part_layout(group.layout)
        if layout is None:
            raise LayoutError(f"{where}: its record has layout {group.layout!r}, which is not known")
        patterns = [group.at if len(group.names) > 1 else joined(group.at, name) for name in map(_child, group.names)]
        found = [one for one in find.fused(known.shapes, layout, patterns, where) if _is_of(one, group, at)]
        who.setdefault(layout.name, group.source)
        joints += fuse.unfused(found, layout, known)
    return SeenApart(joints, who)


def _is_at(group: SeenGroup, at: Sequence[str]) -> bool:
    """Whether `--at` may mean one of the modules."""
    from paramtool.passes.parts.groups import NUMBER

    return not at or any(
        fnmatchcase(one, NUMBER.sub("*", pattern)) or fnmatchcase(one, pattern)
        for pattern in at
        for one in (group.at, group.first, *(joined(group.at, name) for name in group.names))
    )


def _is_of(one: FusedGroup, group: SeenGroup, at: Sequence[str]) -> bool:
    """Whether a group that patterns found is one of those that were seen, and is at `--at`."""
    from paramtool.passes.parts.groups import NUMBER

    names = [one.at, *(joined(one.at, name) for name in one.names)]
    chosen = not at or any(fnmatchcase(name, pattern) for pattern in at for name in names)
    return chosen and NUMBER.sub("*", one.at) == group.at and one.names == tuple(map(_child, group.names))


def _child(name: str) -> str:
    """What `find` calls a tensor: `in_proj` has `_weight` behind it."""
    return name.removesuffix("_weight")
