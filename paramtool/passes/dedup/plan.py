"""Deduplication: which bytes are stored, and where the bytes of every name are.

By storage, the alias graph has the answer.  By content, `candidates.py` lists which windows could be equal, the engine
compares them, and `placement.py` makes owners views of others.  This module turns the graph into targets and aliases.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from shlex import quote

from paramtool.errors import PlanError, listed, plural
from paramtool.model.alias import Alias, AliasGraph
from paramtool.model.checkpoint import SHARDED, Checkpoint, Entry, NoData, Unreadable, Value, pending
from paramtool.model.plan import Plan, Target, resolved, whole
from paramtool.model.view import View, contiguous
from paramtool.passes.compat.wanted import kind_of, plain_window
from paramtool.passes.select import keeps_weights


def plan(checkpoint: Checkpoint, graph: AliasGraph, skip_unsupported: bool = False, *, is_rest: bool = False) -> Plan:
    """Store every owner once and record every other name as a window on it.

    `graph` is built without the parts of compounds.  A tensor that is not one window is resolved if that is exact
    (conjugated and negated views, once for each window and sign).  Otherwise PlanError lists it, or it is left out with
    `skip_unsupported`.  `is_rest` where other tensors of the same model are written beside these.
    """
    refused = [reason for name, entry in checkpoint.entries.items() if (reason := _refusal(name, entry.value))]
    if refused and not skip_unsupported:
        path, count = checkpoint.path, plural(refused, "tensor")
        kept = {name for name, entry in checkpoint.entries.items() if not _refusal(name, entry.value)}
        hint = "`convert --skip-unsupported` leaves them out" if is_rest or keeps_weights(checkpoint, kept) else ""
        raise PlanError(
            listed(f"{path}: {count} cannot be stored in the output:", refused), hint=ranks_hint(checkpoint) or hint
        )
    stored = {owner: whole(owner, view) for owner, view in graph.owners.items() if owner not in graph.derived}
    stored |= {owner: _plain_target(owner, checkpoint.entries[owner]) for owner in graph.pending.values()}
    known = {**graph.names, **dict(_carried_out(checkpoint, graph))}
    names = {name: known[name] for name in checkpoint.entries if name in known}
    return Plan(
        targets=sorted_targets(stored.values(), names.values()),
        source=checkpoint.path,
        names=names,
        derived=graph.derived,
        anonymous=graph.anonymous,
        objects=checkpoint.objects,
        metadata=dict(checkpoint.metadata),
        index_metadata=dict(checkpoint.index_metadata),
        modules=checkpoint.modules,
    )


def sorted_targets(targets: Iterable[Target], names: Iterable[Alias]) -> tuple[Target, ...]:
    """Targets in the order of the names; a span has the place of the first name on it."""
    position: dict[str, int] = {}
    first: dict[str, int] = {}
    for k, one in enumerate(names):
        position[one.name] = k
        first.setdefault(one.owner, k)
    return tuple(sorted(targets, key=lambda target: position.get(target.name, first.get(target.name, 0))))


def ranks_hint(checkpoint: Checkpoint) -> str:
    """What to name in place of the file of one rank; empty where a checkpoint holds whole tensors alone."""
    if any(SHARDED in getattr(entry.value, "facts", ()) for entry in checkpoint.entries.values()):
        folder = os.path.dirname(checkpoint.path) or os.curdir
        return f"name the folder with the files of all ranks: {quote(folder)}"
    return ""


def _carried_out(checkpoint: Checkpoint, graph: AliasGraph) -> Iterator[tuple[str, Alias]]:
    """The names of conjugated and negated tensors, each with the copy in which its sign is carried out."""
    first: dict[str, str] = {}
    for name, owner in graph.pending.items():
        yield name, _made(name, checkpoint.entries[name], owner, first.setdefault(owner, name))


def _made(name: str, entry: Entry, owner: str, alias_set: str) -> Alias:
    """A name that is all of a tensor that the output stores."""
    view = plain_window(entry.value)
    assert view is not None
    window = contiguous(owner, view.dtype, view.shape)
    trains = bool(entry.requires_grad)
    return Alias(name, window, alias_set, "storage", "storage", view, trains, entry.kind, entry.role)


def plain(checkpoint: Checkpoint, names: Collection[str]) -> Plan:
    """Store each of `names` as a tensor of its own, without aliases, for programs without paramtool.

    PlanError lists the names that cannot be stored as plain tensors.
    """
    refused = [reason for name in names if (reason := _refusal(name, checkpoint.entries[name].value))]
    if refused:
        count = plural(refused, "tensor")
        head = f"{checkpoint.path}: {count} cannot be stored as plain tensors:"
        raise PlanError(listed(head, refused), hint=ranks_hint(checkpoint))
    entries = {name: checkpoint.entries[name] for name in names}
    return Plan(
        tuple(_plain_target(name, entry) for name, entry in entries.items()),
        source=checkpoint.path,
        names={name: _made(name, entry, name, name) for name, entry in entries.items()},
    )


def _plain_target(name: str, entry: Entry) -> Target:
    if isinstance(entry.value, View):
        return whole(name, entry.value)
    if sign := pending(entry.value):
        return resolved(name, *sign)
    raise PlanError(_refusal(name, entry.value))


def _refusal(name: str, value: Value) -> str:
    """Why a value cannot be stored; an empty string if it can."""
    if isinstance(value, View) or pending(value):
        return ""
    if isinstance(value, NoData):
        return f"{name!r}: {value.why} tensor, the file holds no data for it"
    if isinstance(value, Unreadable):
        return f"{name!r}: cannot be read without running {value.needs}, which paramtool never does"
    more = "" if SHARDED in value.facts else f" tensor of {', '.join(value.parts)}"
    return f"{name!r}: {kind_of(value)}{more}"
