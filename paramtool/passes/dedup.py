"""Deduplication: which bytes are stored, and where every name finds its own.

By storage, the alias graph says it all.  By content, `content.py` says which windows could be equal, the engine reads
them, and `joining.py` moves owners onto others.  Here the graph becomes targets and aliases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from paramtool.errors import PlanError, listed, plural
from paramtool.model.alias import AliasGraph, Member
from paramtool.model.checkpoint import Checkpoint, Entry, NoData, Unreadable, Value, pending
from paramtool.model.plan import Alias, Computed, Plan, Target, resolved, whole
from paramtool.model.view import View


def plan(checkpoint: Checkpoint, graph: AliasGraph, skip_unsupported: bool = False) -> Plan:
    """Store every owner once and record every other name as a window on it.

    `graph` is built without the parts of compounds.  A tensor that cannot be stored as one window is resolved where
    that is exact (conjugated and negated views, once for each window and sign), else refused by name, or left out with
    `skip_unsupported`.
    """
    refused = [reason for name, entry in checkpoint.entries.items() if (reason := _refusal(name, entry.value))]
    if refused and not skip_unsupported:
        count = plural(len(refused), "tensor has", "tensors have")
        raise PlanError(
            listed(f"{checkpoint.files[0].path}: {count} no form in the output:", refused),
            hint="dedup --skip-unsupported leaves them out",
        )
    stored = {owner: whole(owner, view) for owner, view in graph.owners.items() if owner not in graph.derived}
    stored |= {owner: _plain_target(owner, checkpoint.entries[owner]) for owner in graph.pending.values()}
    position = {name: k for k, name in enumerate(checkpoint.entries)}
    first: dict[str, int] = {}
    for name, member in graph.members.items():
        first.setdefault(member.owner, position[name])
    targets = sorted(stored.values(), key=lambda target: position.get(target.name, first.get(target.name, 0)))
    owned = {name: graph.members[name] for name in (*stored, *graph.derived) if name in graph.members}
    aliases = [_alias(member, graph) for name, member in graph.members.items() if name not in owned]
    signs = _first_names(graph.pending)
    aliases += [_twin(name, stored[owner], signs[owner]) for name, owner in graph.pending.items() if name != owner]
    memories = {**{name: member.memory for name, member in owned.items()}, **signs}
    return Plan(
        targets=tuple(targets),
        source=checkpoint.files[0].path,
        aliases=tuple(sorted(aliases, key=lambda one: position[one.name])),
        computed=tuple(
            Computed(name, graph.owners[name].dtype, graph.owners[name].shape, how)
            for name, how in graph.derived.items()
        ),
        order=tuple(n for n in checkpoint.entries if n in stored or n in graph.members or n in graph.pending),
        anonymous=graph.anonymous,
        memories={name: memory for name, memory in memories.items() if memory != name},
        memory_evidence={n: m.memory_evidence for n, m in owned.items() if m.memory_evidence != "storage"},
        trainable=_trainable(checkpoint, checkpoint.entries),
        kinds=_kinds(checkpoint, checkpoint.entries),
        objects=checkpoint.objects,
        metadata=dict(checkpoint.metadata),
        index_metadata=dict(checkpoint.index_metadata),
        modules=checkpoint.modules,
    )


def plain(checkpoint: Checkpoint, names: Collection[str]) -> Plan:
    """Store each of `names` as a tensor of its own, with no alias: what programs without paramtool read.

    PlanError names those that have no plain form.
    """
    refused = [reason for name in names if (reason := _refusal(name, checkpoint.entries[name].value))]
    if refused:
        count = plural(len(refused), "tensor has", "tensors have")
        raise PlanError(listed(f"{checkpoint.files[0].path}: {count} no plain form:", refused))
    stored = tuple(_plain_target(name, checkpoint.entries[name]) for name in names)
    order = tuple(target.name for target in stored)
    return Plan(
        stored,
        source=checkpoint.files[0].path,
        order=order,
        trainable=_trainable(checkpoint, order),
        kinds=_kinds(checkpoint, order),
    )


def _trainable(checkpoint: Checkpoint, names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if checkpoint.entries[name].requires_grad)


def _kinds(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, str]:
    return {name: kind for name in names if (kind := checkpoint.entries[name].kind)}


def _plain_target(name: str, entry: Entry) -> Target:
    if isinstance(entry.value, View):
        return whole(name, entry.value)
    if sign := pending(entry.value):
        return resolved(name, *sign)
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


def _first_names(owners: Mapping[str, str]) -> dict[str, str]:
    """{owner: the first of its names}, which its memory is called by."""
    return {owner: name for name, owner in reversed([*owners.items()])}


def _twin(name: str, owner: Target, memory: str) -> Alias:
    """A pending tensor that is the very tensor which was carried out for another name."""
    return Alias(name, owner.view, memory, "storage", "storage", "same")


def _refusal(name: str, value: Value) -> str:
    """Why a value cannot be stored, or nothing."""
    if isinstance(value, View) or pending(value):
        return ""
    if isinstance(value, NoData):
        return f"{name!r}: {value.why} tensor, the file holds no data for it"
    if isinstance(value, Unreadable):
        return f"{name!r}: needs {value.needs}, which is never run"
    return f"{name!r}: {value.kind} tensor of {', '.join(value.parts)}"
