"""What every pass shares that replaces some tensors of a checkpoint and leaves the others alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from paramtool.errors import plural, some
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import dataclass, frozen
from paramtool.model import alias
from paramtool.model.alias import Alias, AliasGraph
from paramtool.model.checkpoint import DECLARED, Checkpoint, Entries, Entry
from paramtool.model.plan import Plan, Target
from paramtool.model.view import View, contiguous, overlaps
from paramtool.passes.dedup import plan as dedup_pass
from paramtool.passes.dedup.plan import sorted_targets
from paramtool.passes.module_versions import exchanged

# --- Alias sets of new tensors: names that the source ties stay tied, and equal bytes alone tie nothing ---------------
#
# Two networks that share their tensors give pairs of new tensors that are made of the same views.  Each pair is stored
# once.  It is one alias set when loaded only if the source ties the names that the pair is made of.


@frozen
class NewTensors:
    """Tensors of an output that are made together of tensors of the source."""

    at: str
    """Where the old ones are; with a name of the source it says which use of that name is meant."""
    targets: tuple[Target, ...]
    roles: Mapping[str, str]
    """{new name: which of the new tensors it is}, for tensors of one constant."""
    names: tuple[str, ...]
    """The old tensors."""
    are_apart: bool = False
    """Whether each of them is a tensor of its own, even if two are made of the same bytes."""


@dataclass(slots=True)
class StoredOnce:
    """New tensors, each stored once, and which ties of the source were kept or lost."""

    targets: list[Target] = field(default_factory=list)
    names: dict[str, Alias] = field(default_factory=dict)
    """Every new name; it is its own owner unless another tensor is made of the same windows."""
    lost: list[str] = field(default_factory=list)
    """Old names that shared an alias set with others and whose values are now in separate tensors."""


def shared(made: Iterable[NewTensors], whole: AliasGraph) -> StoredOnce:
    """All new tensors; `whole` has the alias sets of the source."""
    found = StoredOnce()
    owners: dict[_MadeTensor, _MadeTensor] = {}
    alias_sets: dict[tuple[str, tuple[str, ...]], str] = {}
    went: dict[tuple[str, str], set[str]] = {}
    made = list(made)
    several = _several(made, whole)
    for one in made:
        # {new tensor: the names that it is made of}; for a tensor of one constant, all names
        read = {target.name: {*target.names} for target in one.targets}
        more = set().union(*read.values()).difference(one.names)
        names = [*one.names, *(name for name in whole.names if name in more)] if more else one.names
        rank = {name: k for k, name in enumerate(names)}
        sources = {target: tuple(sorted(found, key=rank.__getitem__)) or tuple(names) for target, found in read.items()}
        for k, target in enumerate(one.targets):
            made_of = sources[target.name]
            theirs = tuple(whole.names[name].alias_set for name in made_of)
            owner = alias_set = target.name
            if not one.are_apart or not several.isdisjoint(theirs):  # else nothing else is made of the same
                role = str(k) if one.are_apart else one.roles.get(target.name, target.name)
                key = _MadeTensor(target, role, theirs, one.are_apart)
                first = owners.setdefault(key, key)
                owner = first.target.name
                alias_set = owner if first.theirs == theirs else alias_sets.setdefault((owner, theirs), target.name)
            declared = any(whole.names[name].set_evidence in DECLARED for name in made_of)
            why = "declared" if declared else "storage"
            own = target.view
            window = own if owner == target.name else contiguous(owner, target.dtype, target.shape)
            evidence = why if alias_set == owner else "content"
            found.names[target.name] = Alias(target.name, window, alias_set, evidence, why, own)
            if owner == target.name:
                found.targets.append(target)
            for name, memory in zip(made_of, theirs, strict=True):
                if memory in several:
                    went.setdefault((one.at, name), set()).add(alias_set)
            if len(set(theirs)) < len(theirs) and _reads_twice(target):
                uses = Counter(theirs)
                found.lost += (name for name, memory in zip(made_of, theirs, strict=True) if uses[memory] > 1)
    found.lost += _parted(went, whole)
    return found


class _MadeTensor:
    """A new tensor, equal to those that are the same one.

    What decides it is long for a stack of experts, and only looked at again where another tensor has the same hash.
    """

    __slots__ = ("_hash", "is_apart", "role", "target", "theirs")

    def __init__(self, target: Target, role: str, theirs: tuple[str, ...], is_apart: bool) -> None:
        self.target, self.role, self.theirs, self.is_apart = target, role, theirs, is_apart
        self._hash = hash(self._key())

    def _key(self) -> object:
        """Equal for one tensor; zeros are one if they are the same part of tied networks."""
        copies = self.target.copies
        places = ((copy.destination, copy.terms, copy.shift) for copy in copies)
        found = tuple((view.dtype, view.offset, view.shape, view.strides, *rest) for view, *rest in places)
        own = (self.role, self.theirs) if self.is_apart or not any(copy.terms for copy in copies) else None
        return self.target.dtype, self.target.shape, found, own

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _MadeTensor) and self._key() == other._key()


def _several(made: Iterable[NewTensors], whole: AliasGraph) -> set[str]:
    """The alias sets of the source that several of the old names are of, or one name that several networks use."""
    uses = Counter(
        whole.names[name].alias_set
        for one in made
        for name in {*one.names, *(name for target in one.targets for name in target.names)}
    )
    return {memory for memory, count in uses.items() if count > 1}


def _reads_twice(target: Target) -> bool:
    """Whether an element of the source goes to two places in one target."""
    windows = [view for copy in target.copies for _, view in copy.terms]
    if not all(view.is_injective for view in windows):
        return True
    near: dict[object, list[View]] = {}
    for view in sorted(windows, key=lambda view: view.byte_start):
        others = near.setdefault(view.storage, [])
        others[:] = [other for other in others if other.byte_stop > view.byte_start]
        if any(overlaps(view, other) for other in others):
            return True
        others.append(view)
    return False


def _parted(went: Mapping[tuple[str, str], set[str]], whole: AliasGraph) -> Iterator[str]:
    """Names that shared bytes and an alias set, and whose values are now in different alias sets.

    `went` is {(network, name): the alias sets of the new tensors}; two networks may use one name if the file says so.
    """
    by_memory = grouped((whole.names[one[1]].alias_set, one) for one in went)
    for parts in by_memory.values():
        for part in parts:
            others = (other for other in parts if went[other] != went[part])
            if any(_meet(whole.names[part[1]].source, whole.names[other[1]].source) for other in others):
                yield part[1]


def _meet(a: View, b: View) -> bool:
    return a.storage == b.storage and a.byte_start < b.byte_stop and b.byte_start < a.byte_stop


@frozen
class Outcome:
    """What happens to the names of the source in a plan."""

    rest: Checkpoint
    """Everything except what was replaced."""
    untouched: Entries
    """Names that are written unchanged."""
    windows: Entries
    """Old names that are windows on new tensors."""
    made: frozenset[str]
    """New names."""
    warnings: tuple[str, ...]


def replaced(
    checkpoint: Checkpoint,
    new: Sequence[NewTensors],
    gone: Collection[str],
    whole: AliasGraph,
    *,
    kept: Mapping[str, View | str],
    renamed: Mapping[str, str] | None = None,
    placed: Callable[[Iterable[str]], Iterable[str]] = iter,
    shares: tuple[str, str],
    skip_unsupported: bool,
    split_content: bool,
) -> tuple[Plan, Outcome]:
    """The plan that writes new tensors in place of those that are `gone`, and everything else unchanged.

    `whole` has the alias sets of the checkpoint, `kept` are {old name that stays: its view of a new tensor, or the new
    name of the same tensor}, and `renamed` {old name: new name}.  New names are at the place of the first old name that
    they replace, unless `placed` moves them.  `shares` is as of `_lost`.
    """
    renamed = renamed or {}
    rank = {name: k for k, name in enumerate(checkpoint.entries)}
    firsts: dict[str, list[str]] = {}
    made_of: dict[str, list[str]] = {}
    made = shared(new, whole)
    known = dict(made.names)
    for one in new:
        for target in one.targets:
            old = target.names if one.are_apart else [*one.names]
            firsts.setdefault(min(old, key=rank.__getitem__), []).append(target.name)
            for name in old if one.are_apart else ():
                made_of.setdefault(name, []).append(target.name)
            if one.are_apart or target.name in one.roles:
                # A parameter, or one that requires gradients, if everything that it is made of is, or does
                entries = [checkpoint.entries[name] for name in old]
                kind = "parameter" if all(entry.kind == "parameter" for entry in entries) else ""
                trains = all(entry.requires_grad for entry in entries)
                known[target.name] = known[target.name]._replace(requires_grad=trains, kind=kind)
    swapped: dict[str, tuple[str, ...]] = {name: (name,) if name in kept else () for name in gone}
    swapped |= {first: (*those, *swapped[first]) for first, those in firsts.items()}
    swapped |= {old: (name, old) if old in kept else (name,) for old, name in renamed.items() if old != name}
    rest = replace(
        checkpoint,
        entries={
            renamed.get(name, name): _relinked(entry, renamed)
            for name, entry in checkpoint.entries.items()
            if name not in gone
        },
        objects=exchanged(checkpoint.objects, swapped, made_of),
    )
    graph = alias.build(rest, parts=False, split_content=split_content, counts_unused=False)
    base = dedup_pass.plan(rest, graph, skip_unsupported, is_rest=bool(gone))
    for name, view in kept.items():
        if isinstance(view, View):
            known[name] = _window(name, checkpoint.entries[name], view, made.names[str(view.storage)])
        elif view in base.names:
            known[name] = base.names[view]._replace(name=name, evidence="declared", set_evidence="declared")
    new_names = frozenset(name for those in firsts.values() for name in those)
    for first, name in renamed.items():
        firsts.setdefault(first, []).append(name)
    every = {**base.names, **known}
    order = (one for name in checkpoint.entries
             for one in (*firsts.get(name, ()), *((name,) if name in base.names or name in kept else ())))  # fmt: skip
    names = {name: every[name] for name in placed(name for name in order if name in every)}
    plan = replace(base, targets=sorted_targets([*base.targets, *made.targets], names.values()), names=names)
    taken = {name for old, name in renamed.items() if old != name}
    outcome = Outcome(
        rest=rest,
        untouched={name: rest.entries[name] for name in base.order if name not in taken},
        windows={name: entry for name, entry in checkpoint.entries.items() if name in kept},
        made=new_names | (taken & names.keys()),
        warnings=tuple(_lost(gone, made, whole, shares)),
    )
    return plan, outcome


def _relinked(entry: Entry, renamed: Mapping[str, str]) -> Entry:
    link = entry.link
    if link is None or not ({link.alias_set, link.owner} & renamed.keys()):
        return entry
    alias_set, owner = (renamed.get(name, name) for name in (link.alias_set, link.owner))
    return entry._replace(link=replace(link, alias_set=alias_set, owner=owner))


def _window(name: str, entry: Entry, view: View, at: Alias) -> Alias:
    """An old name as a view of a new tensor, which is at `at`."""
    evidence = "declared" if at.alias_set == at.owner else "content"
    kind = entry.kind if entry.kind == "parameter" else ""
    assert isinstance(entry.value, View)
    placed, trains = replace(view, storage=at.owner), bool(entry.requires_grad)
    return Alias(name, placed, at.alias_set, evidence, "declared", entry.value, trains, kind)


def _lost(gone: Collection[str], made: StoredOnce, whole: AliasGraph, shares: tuple[str, str]) -> Iterator[str]:
    """Warnings about ties that break; `shares` says of one name, and of several, that others have their memory."""
    alias_sets = {whole.names[name].alias_set for name in gone if name in whole.names}
    if apart := [n for n, m in whole.names.items() if n not in gone and m.alias_set in alias_sets]:
        names, keep = plural(apart, "other name"), "keeps" if len(apart) == 1 else "keep"
        yield f"{names} {shares[len(apart) > 1]} and {keep} the old bytes, untied: {some(apart, 4)}"
    if untied := list(dict.fromkeys(made.lost)):
        yield f"untied, because they go to different places of the new tensors: {some(untied, 4)}"
