"""Choosing a part of a checkpoint: one section of it, or the names that a model wants."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from paramtool.errors import UsageError
from paramtool.model.checkpoint import Checkpoint, Module
from paramtool.model.objects import Opaque, map_tensors, subtree, tensor_names, walk
from paramtool.model.storage import Cast


def section(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """One section alone, its prefix stripped from every name; UsageError where there is none of that name."""
    found = next((s for s in checkpoint.sections if s.name == name), None)
    if found is None:
        known = ", ".join(repr(s.name) for s in checkpoint.sections) or "none"
        raise UsageError(f"{checkpoint.files[0].path}: no section {name!r}; its sections: {known}")
    cut = len(found.prefix)
    inside = subtree(checkpoint.objects, found.name)
    names = set(tensor_names(inside))
    entries = {name[cut:]: entry for name, entry in checkpoint.entries.items() if name in names}
    chosen = replace(checkpoint, entries=entries, sections=())
    used = {int(view.storage) for _, view in chosen.windows()}
    backings = [checkpoint.storages[number].backing for number in used]
    used |= {int(backing.view.storage) for backing in backings if isinstance(backing, Cast)}
    classes = {node.path for node in walk(inside) if isinstance(node, Opaque)}
    unknown = tuple(
        replace(u, needed_by=tuple(n[cut:] for n in u.needed_by if n in names))
        for u in checkpoint.unknown
        if u.path in classes or not names.isdisjoint(u.needed_by)
    )
    return replace(
        chosen,
        modules=tuple(m for m in map(_cut(found.prefix), checkpoint.modules) if m is not None),
        storages={id_: storage for id_, storage in checkpoint.storages.items() if id_ in used},
        objects=map_tensors(inside, lambda name: name[cut:]),
        unknown=unknown,
    )


def _cut(prefix: str) -> Callable[[Module], Module | None]:
    """What a section makes of a module's names: they lose their prefix; None for a module of another section."""

    def cut(module: Module) -> Module | None:
        names = (module.at, *module.tensors.values())
        if not all(f"{name}.".startswith(prefix) for name in names):
            return None
        tensors = {own: name.removeprefix(prefix) for own, name in module.tensors.items()}
        return replace(module, at=module.at.removeprefix(prefix.rstrip(".")).lstrip("."), tensors=tensors)

    return cut


def for_names(checkpoint: Checkpoint, wanted: Collection[str], name: str | None = None) -> Checkpoint:
    """The part of a checkpoint whose names a model wants: the section `name`, or what `section_for` finds."""
    chosen = section_for(checkpoint, wanted) if name is None else name
    return checkpoint if chosen is None else section(checkpoint, chosen)


def section_for(checkpoint: Checkpoint, wanted: Collection[str]) -> str | None:
    """The section that holds the most of `wanted`, or None where the whole does.

    A draw between sections is a UsageError that lists them.
    """
    scores = {part.name: sum(part.prefix + n in checkpoint.entries for n in wanted) for part in checkpoint.sections}
    whole = sum(n in checkpoint.entries for n in wanted)
    best = max(scores.values(), default=0)
    if whole >= best:
        return None
    winners = [part for part, score in scores.items() if score == best]
    if len(winners) > 1:
        raise UsageError(
            f"{checkpoint.files[0].path}: {len(winners)} sections hold the names that are wanted: "
            + ", ".join(repr(winner) for winner in winners),
            hint="name one of them: section=... in Python, --only on the command line",
        )
    return winners[0]
