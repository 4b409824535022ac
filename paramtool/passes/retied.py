"""Names that shall be tensors of their own, and tensors that shall be one: `convert --untie` and `--tie`.

    --untie lm_head.weight                    was another name of the embedding, and becomes a tensor of its own
    --tie lm_head.weight=wte.weight           its bytes have to be those of wte.weight, and it becomes a name of it

Equal bytes alone tie nothing: somebody says that two tensors are one, and the bytes must not contradict it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paramtool.errors import LayoutError, UsageError
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Link
from paramtool.model.optimizer import Move, SlotKind, SlotTargets
from paramtool.model.plan import Requirement, whole
from paramtool.model.view import View, Views

_LISTS = "`inspect --tensors` lists the names"


@frozen
class Retied:
    """What becomes of the ties of a checkpoint."""

    untied: Mapping[str, str]
    """{name that becomes a tensor of its own: the first of the names that it was tied to}"""
    tied: Mapping[str, str]
    """{name that becomes a name of another tensor: that tensor's name}"""
    moves: tuple[Move, ...]
    """The parameters that become two, and one, for what an optimizer keeps for them."""
    requires: tuple[Requirement, ...]
    """That the bytes of tied tensors are equal."""


def retied(checkpoint: Checkpoint, untie: Sequence[str], tie: Mapping[str, str]) -> Retied:
    """What `untie` and `tie` do; `tie` is {name: the other name}.

    UsageError for names that are not there, are not tied, or are tied already; LayoutError for tensors of two shapes or
    types.
    """
    if not untie and not tie:
        return Retied({}, {}, (), ())
    where, views = checkpoint.path, checkpoint.views()
    for name in (*untie, *tie, *tie.values()):
        if name not in views:
            raise UsageError(f"{where}: has no tensor {name!r}", hint=_LISTS)
    if both := {*untie} & {*tie, *tie.values()}:
        raise UsageError(f"{min(both)!r} shall be tied (--tie) and untied (--untie)")
    sets = _alias_sets(checkpoint)
    untied, apart = {}, []
    for name in dict.fromkeys(untie):
        others = [one for one in sets[name] if one != name and one not in untie and views[one] == views[name]]
        if not others:
            raise UsageError(f"{where}: --untie {name}: no other name has the same tensor", hint=_LISTS)
        untied[name] = others[0]
    for first in dict.fromkeys(untied.values()):
        own = tuple(name for name, other in untied.items() if other == first)
        same = tuple(one for one in sets[first] if views[one] == views[first])
        apart.append(_apart(same, (first, *own)))
    groups = [*_groups(where, tie, sets)]
    together = [_together(where, names, views) for names in groups]
    return Retied(
        untied, tie, (*apart, *(move for move, _ in together)), tuple(one for _, found in together for one in found)
    )


def applied(checkpoint: Checkpoint, found: Retied) -> Checkpoint:
    """The checkpoint with these ties; an untied name has a storage of its own, with the same bytes of the file."""
    entries, storages = dict(checkpoint.entries), dict(checkpoint.storages)
    for name in found.untied:
        view = entries[name].value
        assert isinstance(view, View)
        number = max(storages) + 1
        storages[number] = storages[view.number]._replace(id=number)
        entries[name] = entries[name]._replace(value=replace(view, storage=number), link=Link(name, "storage"))
    for name, other in found.tied.items():
        held = entries[other]
        first = held.link.alias_set if held.link is not None else other
        entries[other] = held._replace(link=held.link or Link(other, "storage"))
        entries[name] = entries[name]._replace(value=held.value, link=Link(first, "declared"))
    return replace(checkpoint, entries=entries, storages=storages if found.untied else checkpoint.storages)


def _alias_sets(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """{name: all names of its alias set}, in the order of the file."""
    graph = alias.build(checkpoint, parts=False)
    sets = grouped((one.alias_set, name) for name, one in graph.names.items())
    return {name: names for names in sets.values() for name in names}


def _apart(old: tuple[str, ...], new: tuple[str, ...]) -> Move:
    """One parameter that becomes several."""

    def through(views: Views, kind: SlotKind) -> SlotTargets:
        return SlotTargets(tuple(whole(name, views[old[0]]) for name in new))

    return Move(old, new, through)


def _groups(where: str, tie: Mapping[str, str], sets: Mapping[str, list[str]]) -> Iterator[tuple[str, ...]]:
    """The first names of tensors that become one, each tensor once."""
    grouped: dict[str, dict[str, None]] = {}
    for name, other in tie.items():
        if other in tie:
            raise UsageError(f"--tie {name}={other}: {other!r} shall be a name of {tie[other]!r}; name that one")
        if other in sets[name]:
            raise UsageError(f"{where}: --tie {name}={other}: they are one tensor already")
        if len(sets[name]) > 1:
            raise UsageError(f"{where}: --tie {name}={other}: {name!r} is tied to {sets[name][0]!r} or others")
        grouped.setdefault(other, {})[name] = None
    rank = {name: k for k, name in enumerate(sets)}
    for other, names in grouped.items():
        yield tuple(sorted((other, *names), key=rank.__getitem__))


def _together(where: str, names: tuple[str, ...], views: Views) -> tuple[Move, tuple[Requirement, ...]]:
    """Several parameters that become one."""
    first = views[names[0]]
    for name in names[1:]:
        if (views[name].shape, views[name].dtype) != (first.shape, first.dtype):
            found = f"{views[name].dtype.name} {list(views[name].shape)}"
            raise LayoutError(f"{where}: {name!r} is {found}; {names[0]!r} is {first.dtype.name} {list(first.shape)}")

    def through(held: Views, kind: SlotKind) -> SlotTargets:
        return SlotTargets((whole(names[0], held[names[0]]),), tuple(_equal(names, held)))

    requires = tuple(replace(one, message=f"{where}: {one.message}") for one in _equal(names, views))
    return Move(names, names[:1], through, twins=(names,)), requires


def _equal(names: tuple[str, ...], views: Views) -> Iterator[Requirement]:
    first = views[names[0]]
    for name in names[1:]:
        if views[name] != first:
            text = f"{name!r} and {names[0]!r} shall be tied, and have different values"
            yield Requirement(views[name], ((1, first),), 0.0, text, "different tensors stay apart")
