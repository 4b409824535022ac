"""Making names views of other owners: owners move, alias sets stay.

`join` takes classes of equal windows, `settle` slices, transposes, casts and constants.  An owner moves as a whole,
with every name that is a view of it; if one of these could not be expressed as a window, the owner stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from paramtool.grouping import grouped, omit
from paramtool.model.alias import Alias, AliasGraph, Derived, choose, fills
from paramtool.model.match import Content, Match
from paramtool.model.view import View, contiguous, inverse, reshaped, seen_through


@dataclass
class _Moves:
    """Owners that move, each onto a window on another owner."""

    graph: AliasGraph
    places: dict[str, View] = field(default_factory=dict)
    """{owner: the window on another owner that holds its row-major elements}."""
    derived: dict[str, Derived] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.derived |= self.graph.derived
        self._standing: dict[str, list[View]] = {}
        for member in self.graph.names.values():
            self._standing.setdefault(member.owner, []).append(member.window)
        for one in self.derived.values():
            if one.window is not None:
                self._standing.setdefault(str(one.window.storage), []).append(one.window)
        self._came: dict[str, list[str]] = {}

    def seen(self, window: View) -> View | None:
        """A window on an owner, expressed on the owner that now holds its bytes."""
        found: View | None = window
        while found is not None and found.storage in self.places:
            found = seen_through(found, self.places[str(found.storage)])
        return found

    def move(self, owner: str, place: View) -> bool:
        """Make an owner a view of a window; False, and no change, if that is not possible."""
        end = self.seen(place)
        if end is None or end.storage in self.derived or owner in self.places or owner in self.derived:
            return False
        if end.storage == owner or any(seen_through(window, end) is None for window in self._on(owner)):
            return False
        self.places[owner] = place
        self._came.setdefault(str(place.storage), []).append(owner)
        return True

    def _on(self, owner: str) -> Iterator[View]:
        """Every window on an owner, including those of owners that moved onto it."""
        yield from self._standing.get(owner, ())
        for moved in self._came.get(owner, ()):
            place = self.places[moved]
            yield from (w for window in self._on(moved) if (w := seen_through(window, place)) is not None)

    def derive(self, owner: str, how: Derived) -> None:
        """Make an owner calculated, unless it has moved, or the owner that it needs has."""
        needed = any(one.window is not None and one.window.storage == owner for one in self.derived.values())
        if owner not in self.places and owner not in self.derived and not needed:
            self.derived[owner] = how

    def done(self) -> AliasGraph:
        """The graph after all moves; the evidence of everything that moved is `content`."""
        members = {}
        for name, member in self.graph.names.items():
            window = self.seen(member.window)
            assert window is not None
            moved = window.storage != member.window.storage
            members[name] = member._replace(window=window, evidence="content") if moved else member
        derived = {}
        for owner, one in self.derived.items():
            window = one.window and self.seen(one.window)
            derived[owner] = replace(one, window=window)
        owners = omit(self.graph.owners, self.places)
        anonymous = self.graph.anonymous & owners.keys()
        return replace(self.graph, owners=owners, names=members, anonymous=anonymous, derived=derived)


def join(graph: AliasGraph, classes: Iterable[Iterable[str]], keep: str) -> AliasGraph:
    """Make every class of equal windows views of one owner.

    The largest go first, so that a window that others view does not move later.  A window inside a larger tensor is
    stored in any case, so it becomes the owner; otherwise `keep` chooses among the owners.
    """
    dependents = grouped((member.owner, member) for member in graph.names.values())
    position = {name: k for k, name in enumerate(graph.names)}
    moves = _Moves(graph)
    for owners, inner in sorted(_alike(graph, classes), key=lambda one: -graph.owners[one[0][0]].nbytes):
        if inner:
            provider = min(inner, key=lambda member: position[member.name])
        else:
            names = [m.name for o in owners for m in dependents[o] if m.window.is_contiguous and fills(m, graph)]
            provider = graph.names[graph.names[choose(sorted(names, key=position.__getitem__), keep)].owner]
        for owner in owners:
            base = graph.owners[owner]
            start = provider.window.byte_start
            if owner != provider.owner and start % base.dtype.block_bytes == 0:
                moves.move(owner, contiguous(0, base.dtype, base.shape).on(provider.owner, start))
    return moves.done()


def _alike(graph: AliasGraph, classes: Iterable[Iterable[str]]) -> list[tuple[list[str], list[Alias]]]:
    """(owners that hold the same bytes through any of their windows, windows inside other owners that hold them, too).

    Each class has one shape; a tensor with windows of two shapes connects two classes.
    """
    sets: dict[str, tuple[list[str], list[Alias]]] = {}
    for names in classes:
        members = [graph.names[name] for name in names]
        whole = [m.owner for m in members if m.owner not in graph.anonymous and fills(m, graph)]
        inner = [m for m in members if m.owner not in whole]
        if not whole:
            continue
        joined = {id(s): s for owner in whole if (s := sets.get(owner))}
        owners = list(dict.fromkeys([o for s in joined.values() for o in s[0]] + whole))
        made = (owners, [m for s in joined.values() for m in s[1]] + inner)
        sets |= dict.fromkeys(owners, made)
    return list({id(s): s for s in sets.values()}.values())


def settle(graph: AliasGraph, content: Content, casts: bool, constants: bool) -> AliasGraph:
    """Make slices and transposes views of the tensors that hold them; on request, derive casts and constants.

    `graph` is the result of `join` with the classes of equal windows.
    """
    moves = _Moves(graph)
    for match in sorted(content.matches, key=lambda match: match.relation == "cast"):  # casts last
        # The window of a match on the tensor that stores its owner's bytes
        provider = graph.names[match.owner].window
        member, place = (
            graph.names[match.name],
            (seen_through(match.window, provider) if provider.is_contiguous else None),
        )
        if place is None or not fills(member, graph):
            continue
        base = graph.owners[member.owner]
        if match.relation != "cast":
            moves.move(member.owner, place) or _reverse(moves, match)
        elif casts and member.window.dtype == base.dtype:
            seen = moves.seen(place)
            window = seen and reshaped(seen, base.shape)
            if window is not None and window.storage not in moves.derived:
                moves.derive(member.owner, Derived(window, lossless=match.lossless))
    for name, element in content.constants.items() if constants else ():
        member = graph.names[name]
        alike = len(element) == graph.owners[member.owner].dtype.block_bytes
        if alike and fills(member, graph) and member.owner not in graph.anonymous:
            moves.derive(member.owner, Derived(None, element))
    return moves.done()


def _reverse(moves: _Moves, match: Match) -> bool:
    """Make the owner of a match a view of its name, if that name cannot move and has all elements of the owner."""
    member, other = moves.graph.names[match.name], moves.graph.names[match.owner]
    window, shape = match.window, other.window.shape
    back = contiguous(match.name, window.dtype, shape) if window.is_contiguous else inverse(window, shape)
    if back is None or back.numel != window.numel or other.owner in moves.graph.anonymous:
        return False
    if not (other.window.is_contiguous and fills(other, moves.graph)):
        return False
    place = seen_through(back, member.window)
    return place is not None and moves.move(other.owner, place)


# --- Which name owns a stored tensor that is several names' whole window, once it is known which tensors are stored --


def owned(graph: AliasGraph, choice: Callable[[Sequence[str]], str]) -> AliasGraph:
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
