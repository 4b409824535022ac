"""Which name owns a stored tensor that is several names' whole window, once it is known which tensors are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from paramtool.grouping import grouped
from paramtool.model.alias import Alias, AliasGraph, Derived, fills
from paramtool.model.view import View, reshaped

Choice = Callable[[Sequence[str]], str]


def owned(graph: AliasGraph, choice: Choice) -> AliasGraph:
    """The graph with the owners that `choice` picks from names in file order; spans are numbered in file order, too.

    `choice` applies the rule of `--keep`, which is `alias.choose`.

    Names that were moved to an owner may be preferred over it.  Reading the output has to give the same choice.
    """
    # {span: its name when spans are numbered in file order}
    spans = [owner for owner in graph.owners if owner in graph.anonymous]
    # {owner: the name that should own it}, chosen from the names that are all of it, row by row
    covers = grouped(
        (member.owner, name)
        for name, member in graph.names.items()
        if member.window.is_contiguous and fills(member, graph) and _can_own(member, graph)
    )
    new = (
        {owner: owner for owner in graph.owners}
        | {owner: choice(names) for owner, names in covers.items() if owner not in graph.anonymous}
        | dict(zip(sorted(spans, key=_first(graph).__getitem__), spans, strict=True))
    )
    changed = {owner: name for owner, name in new.items() if owner != name}
    if not changed:
        return graph
    moved = {owner: graph.names[name] for owner, name in changed.items() if name in graph.names}
    views = {**graph.owners, **{owner: member.source for owner, member in moved.items()}}
    rank = {name: k for k, name in enumerate(graph.names)}
    first = _first(graph)
    order = sorted(new, key=lambda owner: rank.get(new[owner], first[owner]))
    return replace(
        graph,
        owners={new[owner]: views[owner] for owner in order},
        names={name: _renamed(member, changed, moved) for name, member in graph.names.items()},
        anonymous=frozenset(new[owner] for owner in graph.anonymous),
        derived={new[owner]: _seen(one, views[owner], new) for owner, one in graph.derived.items()},
    )


def _can_own(member: Alias, graph: AliasGraph) -> bool:
    """Whether the owner, if it is calculated, can also be calculated for this name, in its shape."""
    how, window = graph.derived.get(member.owner), member.window
    if how is None:
        return True
    alike = window.dtype == graph.owners[member.owner].dtype
    return alike and (how.window is None or reshaped(how.window, window.shape) is not None)


def _first(graph: AliasGraph) -> dict[str, int]:
    """{owner: the position of the first name that is a view of it}"""
    first: dict[str, int] = {}
    for k, member in enumerate(graph.names.values()):
        first.setdefault(member.owner, k)
    return first


def _renamed(member: Alias, changed: Mapping[str, str], moved: Mapping[str, Alias]) -> Alias:
    """A member whose owner was renamed; its evidence is relative to the alias set of the owner."""
    if member.owner not in changed:
        return member
    window = member.window.on(changed[member.owner], member.window.byte_start)
    if member.owner not in moved:
        return member._replace(window=window)
    own = member.alias_set == moved[member.owner].alias_set
    return member._replace(window=window, evidence=member.set_evidence if own else "content")


def _seen(one: Derived, view: View, new: Mapping[str, str]) -> Derived:
    """How an owner of that shape is calculated, now that the owner it needs may have another name."""
    if one.window is None:
        return one
    window = reshaped(one.window.on(new[str(one.window.storage)], one.window.byte_start), view.shape)
    return replace(one, window=window)
