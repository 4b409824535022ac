"""The layouts of fused tensors that nobody named: what the file's own record or its model's family says of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from paramtool.commands.seen_parts import seen_parts
from paramtool.errors import UsageError
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint
from paramtool.passes.parts import layouts_seen
from paramtool.passes.parts.groups import SeenGroup


@dataclass(frozen=True, slots=True)
class KnownLayout:
    """A layout that something says, and where."""

    layout: str
    at: tuple[str, ...]
    """Patterns of the modules, or of the fused tensors' modules."""
    said: Mapping[str, str]
    """{`query_key_value: qkv-per-head`: who says it}"""


def has_fused(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has fused attention, gated MLPs or experts, by names and shapes."""
    found = seen_parts(checkpoint)
    return found is not None and any(group.form == "fused" for group in found.groups)


def known_layouts(checkpoint: Checkpoint, at: Sequence[str], facts: Mapping[str, int]) -> list[KnownLayout]:
    """The layouts of a checkpoint's fused tensors, or of those at patterns.

    LayoutError lists what fits where nothing says the layout, with the fact that would decide; UsageError if there is
    no fused tensor.
    """
    where = checkpoint.files[0].path
    seen = seen_parts(checkpoint, facts)
    groups = [one for one in seen.groups if one.form == "fused" and is_at(one, at)] if seen is not None else []
    if not groups:
        raise UsageError(
            f"{where}: no tensor at {', '.join(at) or 'any module'} has the name of a fused one",
            hint="--layout and --at say what to take apart; `paramtool inspect` shows the groups",
        )
    if unknown := [one for one in groups if not one.layout]:
        raise layouts_seen.refusal(unknown, where)
    found: dict[str, list[SeenGroup]] = {}
    for one in groups:
        found.setdefault(one.layout, []).append(one)
    return [
        KnownLayout(
            layout,
            tuple(pattern for one in ones for pattern in _patterns(one, at)),
            {f"{', '.join(one.names)}: {layout}": one.source for one in ones},
        )
        for layout, ones in found.items()
    ]


def is_at(one: SeenGroup, at: Sequence[str]) -> bool:
    """Whether a group is at one of some patterns, or modules; any group is where there are none."""
    names = (one.first, one.at, *(f"{base}.{name}" for base in (one.first, one.at) for name in one.names))
    return not at or any(fnmatchcase(name, pattern) or _is_inside(pattern, name) for name in names for pattern in at)


def _is_inside(pattern: str, at: str) -> bool:
    """Whether a pattern without wildcards is a module that `at`, with `*` for numbers, describes."""
    return not set(pattern) & set("*?[") and fnmatchcase(pattern, at)


def _patterns(one: SeenGroup, at: Sequence[str]) -> tuple[str, ...]:
    if at:
        return tuple(pattern for pattern in at if is_at(one, [pattern]))
    modules = one.at.replace("[", "[[]")
    return (modules,) if one.kind == "experts" else (f"{modules}.{one.names[0].removesuffix('_weight')}",)
