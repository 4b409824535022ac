"""Plans for formats that cannot record aliases: each name is stored alone, or linked to a whole tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paramtool.errors import PlanError, leading
from paramtool.grouping import grouped
from paramtool.model.alias import Alias
from paramtool.model.plan import Copy, Plan, Target, whole
from paramtool.model.view import contiguous


def separate(plan: Plan, links: bool = False) -> Plan:
    """The plan with a target for each name.

    With `links` a name that is the whole of another tensor of its alias set stays an alias of it, and no other.
    PlanError for a tensor that is calculated when the file is loaded, and for a view of a tensor that is calculated.
    """
    if plan.derived:
        raise PlanError(f"{plan.source}: {min(plan.derived)!r} is calculated on load, which needs a record")
    stored = {target.name: target for target in plan.targets}
    targets: dict[str, Target] = {}
    names: dict[str, Alias] = {}
    first: dict[tuple[str, str], str] = {}
    """{(owner, alias set): the name that stores it}"""
    for name, one in plan.names.items():
        owner = stored[one.owner]
        is_whole = one.window == owner.view
        if links and is_whole and (one.owner, one.alias_set) in first:
            other = targets[first[one.owner, one.alias_set]].view
            names[name] = one._replace(window=other)
            continue
        if is_whole:
            first[one.owner, one.alias_set] = name
        targets[name] = _alone(one, owner, is_whole)
        names[name] = one._replace(window=targets[name].view)
    return replace(plan, targets=tuple(targets.values()), names=names, anonymous=frozenset())


def _alone(one: Alias, owner: Target, is_whole: bool) -> Target:
    """What stores one name alone."""
    if is_whole:
        return owner.called(one.name)
    if isinstance(one.source.storage, int):
        destination = contiguous(one.name, one.window.dtype, one.window.shape)
        return Target(one.name, one.window.dtype, one.window.shape, (Copy(destination, ((1, one.source),)),))
    copy = owner.copies[0] if len(owner.copies) == 1 else None
    if copy is None or not copy.is_plain or not copy.source.is_contiguous or not copy.destination.is_contiguous:
        raise PlanError(f"{one.name!r}: is a view of {one.owner!r}, which is calculated; it cannot be stored alone")
    base = copy.source
    view = one.window.on(base.storage, one.window.byte_start + base.byte_start)
    return whole(one.name, view)


def parted(plan: Plan, apart: Plan) -> Iterator[str]:
    """Names that share memory in a plan and not in what `separate` made of it, for people."""
    together = grouped((one.alias_set, name) for name, one in plan.names.items())
    for names in together.values():
        if len({apart.names[name].owner for name in names if name in apart.names}) > 1:
            yield leading(names, show=repr, between=" and ")
