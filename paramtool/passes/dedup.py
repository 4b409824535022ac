"""Deduplication: which bytes are stored, and where every name finds its own.

By storage, the alias graph says it all.  By content, three steps: `candidates` says which windows could be equal
(pure), the engine reads them and answers with classes of names whose bytes are equal, and `join` moves owners
onto others of their class (pure).  `plan` turns the graph into targets and aliases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from paramtool.errors import PlanError, listed
from paramtool.model.alias import AliasGraph, Member, choose, rebase
from paramtool.model.checkpoint import PENDING, Checkpoint, Compound, Entry, NoData, Unreadable, Value
from paramtool.model.plan import Alias, Plan, Target, resolved, whole
from paramtool.model.view import View


class Candidate(NamedTuple):
    """A window that could equal another: the first name that stands for it, and where it is in the source."""

    name: str
    view: View


def candidates(checkpoint: Checkpoint, graph: AliasGraph, min_nbytes: int) -> list[list[Candidate]]:
    """Windows that could hold equal bytes, grouped by role, dtype and shape; groups of two or more.

    A window is a candidate when it is contiguous in what will be stored and has at least `min_nbytes` bytes.
    Content never joins different roles: model, optimizer, EMA and buffers.
    """
    groups: dict[object, dict[View, Candidate]] = {}
    for name, member in graph.members.items():
        window = member.window
        if name not in checkpoint.entries or not window.is_contiguous or window.nbytes < max(min_nbytes, 1):
            continue
        key = (checkpoint.entries[name].role, window.dtype, window.shape)
        groups.setdefault(key, {}).setdefault(window, Candidate(name, member.source))
    return [list(group.values()) for group in groups.values() if len(group) > 1]


def join(graph: AliasGraph, classes: Iterable[Iterable[str]], keep: str) -> AliasGraph:
    """Let every class of equal windows stand on one owner.

    Largest first, so that a window that provides bytes never moves any more.  A window inside a larger tensor is
    stored anyway and therefore provides; otherwise `keep` chooses among the owners.
    """
    dependents: dict[str, list[Member]] = {}
    for member in graph.members.values():
        dependents.setdefault(member.owner, []).append(member)
    position = {name: k for k, name in enumerate(graph.members)}
    moved: dict[str, tuple[str, int]] = {}
    for owners, inner in sorted(_alike(graph, classes), key=lambda one: -graph.owners[one[0][0]].nbytes):
        if inner:
            provider = min(inner, key=lambda member: position[member.name])
        else:
            names = [m.name for o in owners for m in dependents[o] if m.window.is_contiguous and _fills(m, graph)]
            provider = graph.members[graph.members[choose(sorted(names, key=position.__getitem__), keep)].owner]
        target, start = _follow(provider.owner, provider.window.byte_start, moved)
        for owner in owners:
            if owner != target and _fit(dependents[owner], start):
                moved[owner] = (target, start)
    return rebase(graph, {owner: _follow(*place, moved) for owner, place in moved.items()})


def _alike(graph: AliasGraph, classes: Iterable[Iterable[str]]) -> list[tuple[list[str], list[Member]]]:
    """Sets of owners that hold the same bytes, by way of any of their windows, with the inner windows that do.

    Classes are of one shape each; a tensor that is seen in two shapes connects theirs.
    """
    sets: dict[str, tuple[list[str], list[Member]]] = {}
    for names in classes:
        members = [graph.members[name] for name in names]
        whole = [m.owner for m in members if m.owner not in graph.anonymous and _fills(m, graph)]
        inner = [m for m in members if m.owner not in whole]
        if not whole:
            continue
        joined = {id(s): s for owner in whole if (s := sets.get(owner))}
        owners = list(dict.fromkeys([o for s in joined.values() for o in s[0]] + whole))
        made = (owners, [m for s in joined.values() for m in s[1]] + inner)
        sets |= dict.fromkeys(owners, made)
    return list({id(s): s for s in sets.values()}.values())


def _fills(member: Member, graph: AliasGraph) -> bool:
    """Whether a window is the whole of its owner, so that its equal can take the owner's place."""
    return member.window.byte_start == 0 and member.window.nbytes == graph.owners[member.owner].nbytes


def _fit(members: Iterable[Member], start: int) -> bool:
    """Whether every window of an owner falls on whole elements when the owner begins at byte `start`."""
    return all((m.window.byte_start + start) % m.window.dtype.block_bytes == 0 for m in members)


def _follow(owner: str, start: int, moved: Mapping[str, tuple[str, int]]) -> tuple[str, int]:
    """Where a byte of an owner stands now that owners have moved.

    An owner moves once, and only onto one that stays or follows further, so this ends.
    """
    while owner in moved:
        owner, further = moved[owner]
        start += further
    return owner, start


def plan(checkpoint: Checkpoint, graph: AliasGraph, skip_unsupported: bool = False) -> Plan:
    """Store every owner once and record every other name as a window on it.

    `graph` is built without the parts of compounds.  A tensor that cannot be stored as one window is resolved where
    that is exact (conjugated and negated views), else refused by name, or left out with `skip_unsupported`.
    """
    refused = [reason for name, entry in checkpoint.entries.items() if (reason := _refusal(name, entry.value))]
    if refused and not skip_unsupported:
        raise PlanError(
            listed(f"{checkpoint.files[0].path}: {len(refused)} tensors have no form in the output:", refused),
            hint="--skip-unsupported leaves them out",
        )
    stored = {owner: whole(owner, view) for owner, view in graph.owners.items()}
    stored |= {name: _plain_target(name, e) for name, e in checkpoint.entries.items() if _is_resolvable(e.value)}
    position = {name: k for k, name in enumerate(checkpoint.entries)}
    first: dict[str, int] = {}
    for name, member in graph.members.items():
        first.setdefault(member.owner, position[name])
    targets = sorted(stored.values(), key=lambda target: position.get(target.name, first.get(target.name, 0)))
    owned = {name: graph.members[name] for name in stored if name in graph.members}
    return Plan(
        targets=tuple(targets),
        source=checkpoint.files[0].path,
        aliases=tuple(_alias(member, graph) for name, member in graph.members.items() if name not in stored),
        order=tuple(name for name in checkpoint.entries if name in stored or name in graph.members),
        anonymous=graph.anonymous,
        memories={name: member.memory for name, member in owned.items() if member.memory != name},
        memory_evidence={n: m.memory_evidence for n, m in owned.items() if m.memory_evidence != "storage"},
        objects=checkpoint.objects,
        metadata=dict(checkpoint.metadata),
        index_metadata=dict(checkpoint.index_metadata),
        modules=checkpoint.modules,
    )


def plain(checkpoint: Checkpoint, names: Iterable[str]) -> Plan:
    """Store each of `names` as a tensor of its own, with no alias: what programs without paramtool read."""
    stored = tuple(_plain_target(name, checkpoint.entries[name]) for name in names)
    return Plan(targets=stored, source=checkpoint.files[0].path, order=tuple(target.name for target in stored))


def _plain_target(name: str, entry: Entry) -> Target:
    if isinstance(entry.value, View):
        return whole(name, entry.value)
    if isinstance(entry.value, Compound) and entry.value.kind in PENDING:
        return resolved(name, entry.value.kind, entry.value.parts["data"])
    raise PlanError(_refusal(name, entry.value))


def _alias(member: Member, graph: AliasGraph) -> Alias:
    return Alias(
        name=member.name,
        view=member.window,
        memory=member.memory,
        evidence=member.evidence,
        memory_evidence=member.memory_evidence,
        relation=graph.relation(member),
    )


def _refusal(name: str, value: Value) -> str:
    """Why a value cannot be stored, or nothing."""
    if isinstance(value, View) or _is_resolvable(value):
        return ""
    if isinstance(value, NoData):
        return f"{name!r}: {value.why} tensor, the file holds no data for it"
    if isinstance(value, Unreadable):
        return f"{name!r}: needs {value.needs}, which is never run"
    return f"{name!r}: {value.kind} tensor of {', '.join(value.parts)}"


def _is_resolvable(value: Value) -> bool:
    return isinstance(value, Compound) and value.kind in PENDING
