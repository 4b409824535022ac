"""The alias graph: which names share bytes, and which alias set each name belongs to.

Two independent facts about every name:

  *where its bytes are*         an owner, and a view of what the owner stores
  *which alias set it is in*    names of one alias set share memory when they are loaded, and train as one tensor

Alias sets come from storages (the source file shares the bytes) or from a declaration (an alias record).  Content can
move a name to another owner and never to another alias set: equal is not tied.

    a, b on storage 0; c, d on storage 1; the storages hold equal bytes
        owner a     a b c d        one stored tensor
        alias sets  {a, b} {c, d}  two when loaded

Disjoint views of one storage are not aliases.  They are a fused block, such as the weights of an RNN that cuDNN
keeps in one buffer, and are described as such.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import field, replace
from math import lcm
from typing import NamedTuple

from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint, Entries, Entry, Link, NoData, pending
from paramtool.model.display import Displayed
from paramtool.model.dtype import DTYPES
from paramtool.model.storage import Assembled, Cast, Constant, Ranges, Storage, nbytes_of
from paramtool.model.view import StorageId, View, Views, contiguous, overlaps, reshaped

SPAN_PREFIX = "paramtool.span/"
"""The prefix of the names of stored spans that do not belong to a single tensor."""

_MANY_WINDOWS = 512
"""If more different views than this have overlapping spans, they count as one alias set; pairs are not compared."""


class Alias(NamedTuple):
    """One name: the stored tensor that holds its bytes, its view of it, and the alias set it belongs to.

    The graph, the plan, the record and the reports all use it.  A pass that moves a name makes a new one.
    """

    name: str
    """The name, as the file has it."""
    window: View
    """Its view of the owner; `window.storage` is the owner's name."""
    alias_set: str
    """The first name, in file order, of the names that share memory with it when loaded."""
    evidence: str
    """Why its bytes may be the owner's: `storage`, one of DECLARED, or `content`."""
    set_evidence: str
    """Why it belongs to its alias set: `storage` or one of DECLARED; never `content`."""
    source: View
    """Its view of the storage of the file that it was read from, or of the tensor that it is made of."""
    requires_grad: bool = False
    """Whether the file says that it requires gradients."""
    kind: str = ""
    """As in `Entry`."""
    role: str = ""
    """As in `Entry`; empty for a tensor that a pass made."""

    @property
    def owner(self) -> str:
        """The name under which its bytes are stored: its own, where it owns them."""
        return self.window.storage  # type: ignore[return-value]  # a name, in every window on what is stored

    @property
    def is_owner(self) -> bool:
        """Whether its bytes are stored under its own name."""
        return self.window.storage == self.name


@frozen
class FusedPart:
    """One of the disjoint views of a storage, in bytes."""

    name: str
    byte_start: int
    byte_stop: int


@frozen
class FusedBlock:
    """Disjoint views of one storage, in the order of their bytes."""

    storage: int
    nbytes: int
    parts: tuple[tuple[str, int, int], ...]
    """(name, byte_start, byte_stop) of each view."""
    gaps: tuple[tuple[int, int], ...]
    """(byte_start, byte_stop) of each gap before and between the views."""
    tail: int
    """Bytes after the last view; cuDNN leaves them for biases that a network does not have."""

    def spans(self) -> Iterator[FusedPart]:
        """The parts, as documents have them."""
        return (FusedPart(*part) for part in self.parts)


@frozen
class Derived:
    """How the elements of an owner are derived without storing them: by casting another owner, or from one value."""

    window: View | None
    """A view of another owner, with that owner's dtype and this owner's shape; None for a constant."""
    element: bytes = b""
    """The element that a constant repeats."""
    lossless: bool = True
    """Whether casting back gives the bytes of the other owner."""


@frozen
class DerivedName:
    """A name that is calculated when a file is loaded."""

    alias: Alias
    how: Derived
    _members = (
        "name=alias.name dtype=alias.window.dtype.name shape=alias.window.shape nbytes=alias.window.nbytes constant? "
        "cast_of=how.window.storage?"
    )

    @property
    def constant(self) -> bytes | None:
        """Its one element, where it is calculated from that."""
        return self.how.element if self.how.window is None else None


@frozen
class GroupMember:
    """A name that uses the bytes of an owner."""

    alias: Alias
    relation: str
    """`same`, `slice`, `transpose`, `view`, or `overlap` on a span."""
    _members = (
        "name=alias.name relation evidence=alias.evidence memory=alias.alias_set memory_evidence=alias.set_evidence "
        "dtype=alias.window.dtype.name shape=alias.window.shape strides=alias.window.strides "
        "offset=alias.window.offset"
    )


@frozen
class AliasGroup:
    """The names that use the bytes of one owner."""

    owner: str
    members: Iterator[GroupMember]
    anonymous: bool
    """Whether the owner is a span of bytes that no name covers."""
    nbytes: int


@frozen(repr=False)
class AliasGraph(Displayed):
    """The owners, and where every name's bytes are."""

    owners: Views
    """{owner: its view of the source}, in file order; each is stored row by row."""
    names: Mapping[str, Alias]
    """{name: Alias}, in file order; the name of a stored tensor is its own owner."""
    anonymous: frozenset[str]
    """Owners that are spans and not the name of a tensor."""
    fused: tuple[FusedBlock, ...]
    """Storages that hold several tensors without a byte in common."""
    unused: Mapping[int, int]
    """{storage: how many of its bytes no name uses}, where there are any."""
    derived: Mapping[str, Derived] = field(default_factory=dict)
    """Owners that need not be stored."""
    pending: Mapping[str, str] = field(default_factory=dict)
    """{conjugated or negated tensor: the owner of the copy in which that is carried out}; one copy for each view and
    sign."""

    _members = "names=names.__len__ owners=owners.__len__ stored_nbytes unused+ groups=shared_groups fused"

    @property
    def stored_nbytes(self) -> int:
        """Bytes of the owners that have to be stored."""
        return sum(view.nbytes for owner, view in self.owners.items() if owner not in self.derived)

    def groups(self) -> Iterator[tuple[str, tuple[Alias, ...]]]:
        """(owner, its members), for owners that have more than one name or are anonymous spans."""
        shared = {member.owner for name, member in self.names.items() if member.owner != name}
        by_owner = grouped((owner, member) for member in self.names.values() if (owner := member.owner) in shared)
        yield from ((owner, tuple(members)) for owner, members in by_owner.items())

    def shared_groups(self) -> Iterator[AliasGroup]:
        """The same, as documents have them."""
        for owner, aliases in self.groups():
            members = (GroupMember(one, self.relation(one)) for one in aliases)
            yield AliasGroup(owner, members, owner in self.anonymous, self.owners[owner].nbytes)

    def relation(self, member: Alias) -> str:
        """How a name's view relates to its owner; see the function `relation`."""
        if member.owner in self.anonymous:
            return "overlap"
        return relation(member.window, self.owners[member.owner])


def relation(window: View, owner: View) -> str:
    """A label for people: `same`, `slice`, `transpose` or `view`, from the geometry alone.

    >>> w = contiguous(0, DTYPES["float32"], (2, 3))
    >>> relation(View("w", DTYPES["float32"], 0, (3, 2), (1, 3)), w)
    'transpose'
    """
    whole = contiguous(window.storage, owner.dtype, owner.shape)
    if window == whole:
        return "same"
    if window.dtype != whole.dtype:
        return "view"
    if window.offset == 0 and sorted(window.axes) == sorted(whole.axes):
        return "transpose"
    strides = {stride for size, stride in window.axes if size > 1}
    return "slice" if window.numel < whole.numel and strides <= {*whole.strides, 1} else "view"


def build(
    checkpoint: Checkpoint, keep: str = "first", parts: bool = True, *, split_content: bool = False,
    counts_unused: bool = True,
) -> AliasGraph:  # fmt: skip
    """The alias graph of a checkpoint, by storage and by the file's own record.

    `keep` says which name owns the bytes that several names share: `first` or `last` in file order, or an fnmatch
    pattern.  `parts` includes the views of compound tensors, as `name/part`.  `split_content` gives each recorded
    alias set stored owners of its own, for formats in which all names of the same bytes are tied.
    Without `counts_unused` the graph's `unused` is empty: it takes as long as the rest.
    """
    links = {name: entry.link for name, entry in checkpoint.entries.items() if entry.link}
    shared = _shared_storages(checkpoint)
    may_meet = (window for window in _windows(checkpoint, parts) if _may_meet(window[1], shared))
    places = _places(may_meet, checkpoint, links, keep, split_content=split_content)
    owners: dict[str, View] = {}
    members: dict[str, Alias] = {}
    for name, view in _windows(checkpoint, parts):
        member = places.members.get(name) or _alone(name, view, checkpoint.entries.get(name, _PART))
        members[name] = member
        owner = member.owner
        if owner == name or owner in places.spans:
            owners.setdefault(owner, places.spans.get(owner, view))
    derived = {} if split_content else dict(_derived(checkpoint.storages, owners))
    free = unused(checkpoint, shared) if counts_unused else {}
    signs = _pending(checkpoint, keep)
    return AliasGraph(owners, members, frozenset(places.spans), places.fused, free, derived, signs)


def _windows(checkpoint: Checkpoint, parts: bool) -> Iterator[tuple[str, View]]:
    """The views of a checkpoint, those of compound tensors with `parts`."""
    return (window for window in checkpoint.windows() if parts or window[0] in checkpoint.entries)


def _shared_storages(checkpoint: Checkpoint) -> set[StorageId]:
    """Storages with more than one view."""
    seen: set[StorageId] = set()
    shared: set[StorageId] = set()
    for _, view in checkpoint.windows():
        (shared if view.storage in seen else seen).add(view.storage)
    return shared


def _may_meet(view: View, shared: Container[StorageId]) -> bool:
    """Whether a view has to be compared with others, or contains an element twice."""
    return view.storage in shared or not (view.is_contiguous or view.is_injective)


def _alone(name: str, view: View, entry: Entry) -> Alias:
    """A name whose storage has no other view: it owns its bytes."""
    why = entry.link.evidence if entry.link else "storage"
    own = contiguous(name, view.dtype, view.shape)
    return Alias(name, own, name, why, why, view, bool(entry.requires_grad), entry.kind, entry.role)


_PART = Entry(NoData(DTYPES["uint8"], ()), role="")
"""The entry of a part of a compound tensor, apart from its view."""


@frozen
class _SpanIndex:
    """The places of names whose views could overlap."""

    members: Mapping[str, Alias]
    spans: Views
    """Owners that are not the name of a tensor."""
    fused: tuple[FusedBlock, ...]


def _places(
    windows: Iterable[tuple[str, View]],
    checkpoint: Checkpoint,
    links: Mapping[str, Link],
    keep: str,
    *,
    split_content: bool,
) -> _SpanIndex:
    """The places of views that could overlap, in file order; see `build`."""
    order: dict[str, int] = {}
    by_storage: dict[tuple[StorageId, str], Windows] = {}
    for name, view in windows:
        order[name] = len(order)
        alias_set = links[name].alias_set if split_content and name in links else ""
        by_storage.setdefault((view.storage, alias_set), []).append((name, view))
    everything: list[Windows] = []
    fused = []
    for (storage, _), together in by_storage.items():
        components = list(_components(together))
        everything += components
        if sum(0 not in component[0][1].shape for component in components) > 1:
            fused.append(_fused_block(checkpoint.storages[int(storage)], components))
    names = _span_names(checkpoint.entries)
    entries = checkpoint.entries
    members: dict[str, Alias] = {}
    spans: dict[str, View] = {}
    for component in sorted(everything, key=lambda c: order[c[0][0]]):  # spans are numbered in file order
        owner, view, placed = _place(component, keep, names)
        if owner not in order:
            spans[owner] = view
        members.update((m.name, m) for m in _remember(placed, owner, entries))
    return _SpanIndex(members, spans, tuple(fused))


def _pending(checkpoint: Checkpoint, keep: str) -> dict[str, str]:
    """{pending tensor: the pending tensor with the same view and sign that owns the result}, in file order."""
    alike = grouped((sign, name) for name, entry in checkpoint.entries.items() if (sign := pending(entry.value)))
    if not alike:
        return {}
    owners = {sign: choose(names, keep) for sign, names in alike.items()}
    return {name: owners[s] for name, entry in checkpoint.entries.items() if (s := pending(entry.value))}


def parted(checkpoint: Checkpoint) -> dict[str, str]:
    """{pending tensor: a name that shares its bytes but not its sign}; once carried out, the two no longer share.

    That name is the first plain tensor of the alias set, or the first name if there is none.
    """
    signs = {f"{name}/data": sign for name, entry in checkpoint.entries.items() if (sign := pending(entry.value))}
    members = build(checkpoint).names.values() if signs else ()
    alias_sets = grouped((member.alias_set, member.name) for member in members)
    found = {}
    for names in alias_sets.values():
        base = next((name for name in names if name not in signs), names[0])
        apart = [name for name in names if name in signs and signs[name] != signs.get(base)]
        label = base.removesuffix("/data") if base in signs else base
        found.update({name.removesuffix("/data"): label for name in apart})
    return found


def with_declared(checkpoint: Checkpoint, names: Mapping[str, str], behind: str, evidence: str = "declared") -> Entries:
    """The entries of a checkpoint, with more names inserted after `behind`, each tied to the name that has its data."""
    views = checkpoint.views()
    storages = {views[holder].storage for holder in names.values()}
    beside = {name: checkpoint.entries[name] for name, view in views.items() if view.storage in storages}
    graph = build(replace(checkpoint, entries=beside), parts=False, counts_unused=False)
    alias_set = {holder: graph.names[holder].alias_set for holder in names.values()}
    linked = {m.name: Link(m.alias_set, "storage") for m in graph.names.values() if m.alias_set in alias_set.values()}
    entries: dict[str, Entry] = {}
    for name, entry in checkpoint.entries.items():
        entries[name] = entry._replace(link=entry.link or linked[name]) if name in linked else entry
        if name == behind:
            for new, holder in names.items():
                link = Link(alias_set[holder], evidence)
                entries[new] = checkpoint.entries[holder]._replace(link=link)
    return entries


def _derived(storages: Mapping[int, Storage], owners: Views) -> Iterator[tuple[str, Derived]]:
    """Owners that the file itself derives from others; where those are missing, they are stored like any tensor."""
    if isinstance(storages, Ranges):
        return
    if not any(isinstance(storage.backing, (Constant, Cast)) for storage in storages.values()):
        return
    bases = grouped((view.storage, (name, view)) for name, view in owners.items())
    for name, view in owners.items():
        backing = storages[int(view.storage)].backing
        if isinstance(backing, Constant):
            if len(backing.element) == view.dtype.block_bytes:
                yield name, Derived(None, backing.element)
        elif isinstance(backing, Cast):
            places = (_place_on(backing.view, owner, base) for owner, base in bases.get(backing.view.storage, ()))
            window = next((place for place in places if place is not None), None)
            window = window and reshaped(window, view.shape)
            if window is not None and view.is_contiguous and view.dtype == backing.dtype:
                yield name, Derived(window, lossless=backing.lossless)


def _place_on(view: View, owner: str, base: View) -> View | None:
    """A view of the owner's storage as a view of the owner; None where it is not inside the owner."""
    if not base.is_contiguous:
        return None
    if view.byte_start < base.byte_start or view.byte_stop > base.byte_stop:
        return None
    return view.on(owner, view.byte_start - base.byte_start)


def fills(member: Alias, graph: AliasGraph) -> bool:
    """Whether a view is all of its owner, so that an equal tensor can replace the owner."""
    return member.window.byte_start == 0 and member.window.nbytes == graph.owners[member.owner].nbytes


def unused(checkpoint: Checkpoint, shared: Container[StorageId] | None = None) -> dict[int, int]:
    """{storage: how many of its bytes no view uses}, in the order of the storages; parts of compounds count.

    `shared` has the storages with more than one view, where these are known.
    """
    shared = _shared_storages(checkpoint) if shared is None else shared
    used: dict[StorageId, int] = {}
    several: dict[StorageId, list[View]] = {}
    for _, view in checkpoint.windows():
        if view.storage in shared:
            several.setdefault(view.storage, []).append(view)
        else:
            used[view.storage] = min(view.nbytes, view.byte_stop - view.byte_start)
    used.update((storage, _used_nbytes(views)) for storage, views in several.items())
    _add_parts(used, checkpoint.storages)
    sizes = ((id_, nbytes_of(checkpoint.storages, id_) or 0) for id_ in checkpoint.storages)
    rest = ((id_, nbytes - used.get(id_, 0)) for id_, nbytes in sizes)
    return {id_: nbytes for id_, nbytes in rest if nbytes > 0}


def _add_parts(used: dict[StorageId, int], storages: Mapping[int, Storage]) -> None:
    """Count the parts of assembled tensors as used."""
    if isinstance(storages, Ranges):
        return
    backings = (storages[int(one)].backing for one in list(used))
    parts = {part.there for backing in backings if isinstance(backing, Assembled) for part in backing.parts}
    for view in parts:
        used[view.storage] = used.get(view.storage, 0) + view.nbytes


def choose(names: Iterable[str], keep: str) -> str:
    """Which of some names, in file order, is the owner: the first, the last, or the first that matches a pattern.

    >>> choose(["enc.w", "dec.w"], "dec.*"), choose(["enc.w", "dec.w"], "x*")
    ('dec.w', 'enc.w')
    """
    names = list(names)
    if keep == "last":
        return names[-1]
    if keep == "first":
        return names[0]
    from fnmatch import fnmatchcase

    return next((name for name in names if fnmatchcase(name, keep)), names[0])


def _span_names(taken: Container[str]) -> Iterator[str]:
    number = 0
    while True:
        if (name := f"{SPAN_PREFIX}{number}") not in taken:
            yield name
        number += 1


Windows = list[tuple[str, View]]


def _components(windows: Windows) -> Iterator[Windows]:
    """Split the views of one storage into sets of names that share bytes, each in file order.

    A sweep over the spans with a running maximum finds clusters that could overlap; `overlaps` decides inside each.
    """
    if len(windows) == 1:
        yield windows
        return
    rank = {name: k for k, (name, _) in enumerate(windows)}
    cluster: Windows = []
    reach = -1
    for name, view in sorted(windows, key=lambda window: window[1].byte_start):
        if 0 in view.shape:
            yield [(name, view)]
            continue
        if cluster and view.byte_start >= reach:
            yield from _split_cluster(cluster, rank)
            cluster = []
        cluster.append((name, view))
        reach = max(reach, view.byte_stop)
    if cluster:
        yield from _split_cluster(cluster, rank)


def _split_cluster(cluster: Windows, rank: Mapping[str, int]) -> Iterator[Windows]:
    """Split views with overlapping spans into sets that share bytes."""
    cluster.sort(key=lambda window: rank[window[0]])
    start = min(view.byte_start for _, view in cluster)
    stop = max(view.byte_stop for _, view in cluster)
    distinct = list(dict.fromkeys(view for _, view in cluster))
    dense = [view for view in distinct if view.is_contiguous]  # these overlap exactly where their spans do
    covered = any(view.byte_start == start and view.byte_stop == stop for view in dense)
    if len(dense) == len(distinct) or len(distinct) == 1 or covered or len(distinct) > _MANY_WINDOWS:
        yield cluster
        return
    label = dict(zip(distinct, _labels(distinct), strict=True))
    sets = grouped((label[view], (name, view)) for name, view in cluster)
    yield from sets.values()


def _labels(views: list[View]) -> list[int]:
    """A number for each view: the same number where a chain of common bytes links views."""
    numbers: dict[object, int] = {}
    geometry = [numbers.setdefault((view.dtype, view.shape, view.strides), len(numbers)) for view in views]
    starts = [view.byte_start for view in views]
    label = list(range(len(views)))
    alike = [[k] for k in label]
    known: dict[tuple[int, int, int], bool] = {}  # of one geometry, distance alone decides overlap
    for k, view in enumerate(views):
        mine, start = geometry[k], starts[k]
        for j in range(k):
            if label[j] == label[k]:
                continue
            pair = mine, geometry[j], starts[j] - start
            if pair not in known:
                known[pair] = overlaps(view, views[j])
            if known[pair]:
                old, new = label[k], label[j]
                for one in alike[old]:
                    label[one] = new
                alike[new] += alike[old]
    return label


def _place(component: Windows, keep: str, spans: Iterator[str]) -> tuple[str, View, list[tuple[str, View, View]]]:
    """Choose what to store for one component: (owner, its source view, [(name, source, view of the owner)])."""
    views = {view for _, view in component}
    if len(views) == 1:
        view = component[0][1]
        if view.is_contiguous or view.is_injective:
            owner = choose([name for name, _ in component], keep)
            window = contiguous(owner, view.dtype, view.shape)
            return owner, view, [(name, view, window) for name, _ in component]
    start = min(view.byte_start for view in views)
    stop = max(view.byte_stop for view in views)
    covers = [
        name
        for name, view in component
        if view.is_contiguous
        and (view.byte_start, view.byte_stop) == (start, stop)
        and all((other.byte_start - start) % other.dtype.block_bytes == 0 for other in views)
    ]
    if covers:
        owner = choose(covers, keep)
        base = dict(component)[owner]
    else:
        owner, base = next(spans), _span(views, start, stop)
    placed = [(name, view, view.on(owner, view.byte_start - base.byte_start)) for name, view in component]
    return owner, base, placed


def _span(views: Iterable[View], start: int, stop: int) -> View:
    """The dense view over all views: in their common dtype, else in bytes from a start that is aligned for each."""
    dtypes = {view.dtype for view in views}
    storage = next(iter(views)).storage
    if len(dtypes) == 1:
        dtype = dtypes.pop()
        blocks = (stop - start) // dtype.block_bytes
        offset = start // dtype.block_bytes * dtype.block_elements
        return contiguous(storage, dtype, (blocks * dtype.block_elements,), offset)
    start -= start % lcm(*(dtype.block_bytes for dtype in dtypes))
    return contiguous(storage, DTYPES["uint8"], (stop - start,), start)


def _remember(placed: list[tuple[str, View, View]], owner: str, entries: Entries) -> Iterator[Alias]:
    """Give each name of a component its alias set and the evidence for its place.

    Without a record a component is one set.  With one, the names of each recorded set stay together; the bytes of an
    anonymous span belong to the first set that is not there for its content alone.
    """
    known = {name: entries.get(name, _PART) for name, _, _ in placed}
    marks = {name: entry.link.alias_set if entry.link else "" for name, entry in known.items()}
    first: dict[str, str] = {}
    for name, mark in marks.items():
        first.setdefault(mark, name)
    own = (mark for name, mark in marks.items() if not ((link := known[name].link) and link.by_content))
    native = marks.get(owner) or next(own, next(iter(marks.values())))
    for name, source, window in placed:
        entry = known[name]
        why = entry.link.evidence if entry.link else "storage"
        evidence = why if marks[name] == native else "content"
        trains, alias_set = bool(entry.requires_grad), first[marks[name]]
        yield Alias(name, window, alias_set, evidence, why, source, trains, entry.kind, entry.role)


def _used_nbytes(views: list[View]) -> int:
    """Bytes of one storage that its views use: for each stretch at most its length, and at most what they hold."""
    used = start = reach = held = 0
    for view in sorted(set(views), key=lambda view: view.byte_start):
        if view.byte_start >= reach:
            used += min(reach - start, held)
            start, held = view.byte_start, 0
        held += min(view.nbytes, view.byte_stop - view.byte_start)
        reach = max(reach, view.byte_stop)
    return used + min(reach - start, held)


def _fused_block(storage: Storage, components: list[Windows]) -> FusedBlock:
    parts = []
    for component in components:
        start, stop = min(v.byte_start for _, v in component), max(v.byte_stop for _, v in component)
        names = [name for name, view in component if (view.byte_start, view.byte_stop) == (start, stop)]
        if stop > start:
            parts.append((start, stop, (names or [component[0][0]])[0]))
    parts.sort()
    gaps = []
    reach = 0
    for start, _, stop in sorted((v.byte_start, n, v.byte_stop) for c in components for n, v in c if v.numel):
        if start > reach:
            gaps.append((reach, start))
        reach = max(reach, stop)
    return FusedBlock(
        storage.id,
        storage.nbytes,
        tuple((name, start, stop) for start, stop, name in parts),
        tuple(gaps),
        storage.nbytes - reach,
    )
