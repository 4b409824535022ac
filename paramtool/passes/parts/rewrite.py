"""A checkpoint with its parts in other tensors, or under other names: the plan that leaves everything else alone."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from math import prod
from typing import NamedTuple

from paramtool.errors import LayoutError, PlanError, listed, plural
from paramtool.grouping import connected, grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model import alias
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint, Module
from paramtool.model.optimizer import Move, SlotKind, SlotTargets
from paramtool.model.parts import PartsRecord
from paramtool.model.plan import Plan, Requirement, Target
from paramtool.model.view import View, Views
from paramtool.parts.pieces import Stored
from paramtool.passes import objects_differ
from paramtool.passes.parts import copies
from paramtool.passes.rewriting import NewTensors, Outcome, replaced

# --- What rearranging does to the tensors of a source: which only get another name, and which are made of which ------


@frozen
class Rearranged:
    """The tensors of a source and those of an output that hold the same parts."""

    read: tuple[Stored, ...]
    """Tensors of the source; others stay as they are."""
    made: tuple[Stored, ...]
    """Tensors of the output."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """{name of the source, or one that is restored: its rank in the first order}; others follow what they are of."""


HandedOver = list[Rearranged]
"""A change that is taken out once (`pop`), so that its pieces are freed when the new tensors are planned."""


@frozen
class SortedTensors:
    """What becomes of the tensors of a source."""

    renamed: Mapping[str, str]
    """{old name: new name} of tensors that only get another name."""
    made: tuple[Stored, ...]
    """New tensors."""
    read: Mapping[str, Stored]
    """{old name: tensor} of those that they are made of."""


def sorted_out(change: Rearranged) -> SortedTensors:
    """Which tensors get another name only, and which are made."""
    uses = Counter(chain.from_iterable(tensor.parts for tensor in change.made))
    read = [(tensor, tensor.parts) for tensor in change.read]
    holders = Counter(chain.from_iterable(parts for _, parts in read))
    alone = {parts[0]: tensor for tensor, parts in read if len(parts) == 1 and uses[parts[0]] == 1 == holders[parts[0]]}
    renamed: dict[str, str] = {}
    made = []
    for tensor in change.made:
        parts = tensor.parts
        source = alone.get(parts[0]) if len(parts) == 1 else None
        if (
            source is not None
            and source.name not in renamed
            and (source.shape == tensor.shape and source.pieces[0] == tensor.pieces[0])
        ):
            renamed[source.name] = tensor.name
        else:
            made.append(tensor)
    return SortedTensors(renamed, tuple(made), {one.name: one for one in change.read if one.name not in renamed})


def renames(change: Rearranged) -> Mapping[str, str]:
    """{old name: new name} of tensors that stay what they are, also of those that keep their names."""
    return sorted_out(change).renamed


def check_nothing_lost(where: str, change: Rearranged) -> None:
    """LayoutError if tensors of the source hold what no new tensor does."""
    there, wanted = _counts(change.read), _counts(change.made)
    lost = [part for part, count in there.items() if wanted.get(part, 0) < count]
    if lost:
        raise LayoutError(
            listed(f"{where}: would lose {plural(len(lost), 'part')}:", [repr(part) for part in lost]),
            hint="no tensor of the new layout has a place for them",
        )


def _counts(tensors: Iterable[Stored]) -> dict[str, int]:
    """{part: how many of its elements tensors hold}; what is held twice counts once."""
    found: dict[str, int] = {}
    for part, _, shape in dict.fromkeys(chain.from_iterable(tensor.boxes for tensor in tensors)):
        found[part] = found.get(part, 0) + prod(shape)
    return found


def rewritten(
    checkpoint: Checkpoint,
    change: Rearranged | HandedOver,
    *,
    keep_names: bool = False,
    skip_unsupported: bool = False,
    split_content: bool = False,
) -> tuple[Plan, Outcome]:
    """The plan that writes new tensors in place of the old ones, and everything else unchanged.

    LayoutError where a part is lacking, would be lost or has another type than its neighbours; PlanError where a new
    name is taken.  `keep_names` records old names as views of new tensors.
    """
    where = checkpoint.path
    change = change.pop() if isinstance(change, list) else change
    check_nothing_lost(where, change)
    checkpoint = _without_repeats(checkpoint, change)
    found, positions = sorted_out(change), change.positions
    del change
    # PlanError if two tensors of the output would have one name
    gone = set(found.renamed) | (set() if keep_names else set(found.read))
    taken = {name: "is another tensor" for name in checkpoint.entries if name not in gone}
    clashes = []
    for name in (*found.renamed.values(), *(one.name for one in found.made)):
        if name in taken:
            clashes.append(f"{name!r} {taken[name]}")
        taken[name] = "would be the name of two tensors"
    if clashes:
        raise PlanError(
            listed(f"{where}: {plural(len(clashes), 'new name')} cannot be given:", clashes),
            hint="--rename gives other names, or `export --rename` renames the tensors in the way first",
        )
    new, requires = _new_tensors(checkpoint, found)
    renamed, read = found.renamed, frozenset(found.read)
    again = {old: name for old, name in renamed.items() if old != name}
    kept: dict[str, View | str] = {**dict(_windows(checkpoint, found)), **again} if keep_names else {}
    del found  # the pieces, of which a model has many
    whole = alias.build(checkpoint, parts=False, counts_unused=False)
    plan, outcome = replaced(
        replace(checkpoint, modules=_outside(checkpoint.modules, again.keys() | read)),
        [*_groups(new, whole)],
        read,
        whole,
        kept=kept,
        renamed=renamed,
        placed=lambda names: in_first_order(names, positions),
        shares=("shared memory with old tensors",) * 2,
        skip_unsupported=skip_unsupported,
        split_content=split_content,
    )
    return replace(plan, requires=requires), outcome


def new_targets(checkpoint: Checkpoint, change: Rearranged) -> list[Target]:
    """Each tensor that is made of others, for itself, also where two are made of the same; errors as of `rewritten`."""
    return _new_tensors(checkpoint, sorted_out(change))[0]


def _new_tensors(checkpoint: Checkpoint, found: SortedTensors) -> tuple[list[Target], tuple[Requirement, ...]]:
    """The new tensors, and what of the source has to be equal for them."""
    held = copies.sources(checkpoint.path, tuple(found.read.values()), checkpoint.views())
    return [copies.target(one, held) for one in found.made], tuple(copies.requirements(held))


def moves(where: str, change: Rearranged) -> tuple[Move, ...]:
    """How new tensors are made of old ones, for what an optimizer keeps for them; errors as of `rewritten`."""
    check_nothing_lost(where, change)
    found = sorted_out(change)
    return tuple(_move(where, old, new) for old, new in _connected(found))


def _connected(found: SortedTensors) -> Iterator[tuple[list[Stored], list[Stored]]]:
    """Old tensors and the new ones that hold the same parts, as few as possible together."""
    read = list(found.read.values())
    holders = grouped((part, k) for k, tensor in enumerate(read) for part in tensor.parts)
    uses = [sorted({k for part in one.parts for k in holders.get(part, ())}) for one in found.made]
    root = connected(len(read), ((k, used[0]) for used in uses for k in used[1:]))
    made = grouped((root[used[0]], one) for one, used in zip(found.made, uses, strict=True) if used)
    old = grouped((root[k], tensor) for k, tensor in enumerate(read))
    for k, new in made.items():
        yield old[k], new


def _move(where: str, old: list[Stored], new: list[Stored]) -> Move:
    def through(views: Views, kind: SlotKind) -> SlotTargets:
        held = copies.sources(where, old, views)
        return SlotTargets(tuple(copies.target(one, held) for one in new), tuple(copies.requirements(held)))

    names, made = (tuple(one.name for one in tensors) for tensors in (old, new))
    same = grouped(((one.shape, one.pieces), one.name) for one in old)  # the same parts in the same places
    twins = tuple(tuple(each) for each in same.values() if len(each) > 1)
    return Move(names, made, through, twins=twins)


def _without_repeats(checkpoint: Checkpoint, change: Rearranged) -> Checkpoint:
    """A checkpoint without the tensors that are made, where they are views of those that they are made of.

    So are files that `keep_names` wrote, both ways: parts in a fused tensor, and the fused tensor around its parts.
    """
    read = {one.name for one in change.read}
    there = [made for made in change.made if made.name in checkpoint.entries and made.name not in read]
    by_part = grouped((part, tensor) for tensor in (change.read if there else ()) for part in set(tensor.parts))
    gone = set()
    for made in there:
        old = {one.name: one for part in made.parts for one in by_part.get(part, ())}
        if old and all(_is_view(checkpoint, made, one) or _is_view(checkpoint, one, made) for one in old.values()):
            gone.add(made.name)
    return objects_differ.lacking(checkpoint, gone)


def _is_view(checkpoint: Checkpoint, small: Stored, large: Stored) -> bool:
    """Whether one tensor of a checkpoint is that window on another which its parts are."""
    mine, other = checkpoint.entries[small.name].value, checkpoint.entries[large.name].value
    if not isinstance(mine, View) or not isinstance(other, View) or not other.is_contiguous:
        return False
    if mine.shape != small.shape or other.shape != large.shape or mine.storage != other.storage:
        return False
    window = copies.window(small, large, mine)
    return window is not None and window.on(other.storage, other.byte_start + window.byte_start) == mine


def _groups(new: Sequence[Target], whole: AliasGraph) -> Iterator[NewTensors]:
    """New tensors that are made of the same old ones, together."""
    first: dict[str, int] = {}
    reads = [target.names for target in new]
    uses = ((k, first.setdefault(name, k)) for k, names in enumerate(reads) for name in names)
    together = grouped((root, k) for k, root in enumerate(connected(len(new), uses)))
    rank = {name: k for k, name in enumerate(whole.names)}
    for members in together.values():
        old = sorted({name for k in members for name in reads[k]}, key=rank.__getitem__)
        yield NewTensors(old[0], tuple(new[k] for k in members), {}, tuple(old), are_apart=True)


def _outside(modules: tuple[Module, ...], changed: Iterable[str]) -> tuple[Module, ...]:
    """The modules that have none of some tensors."""
    if not modules:
        return ()
    around = {name[:k] for name in changed for k, letter in enumerate(f"{name}.") if letter == "."}
    return tuple(one for one in modules if one.at not in around and not (around and not one.at))


def _windows(checkpoint: Checkpoint, found: SortedTensors) -> Iterator[tuple[str, View]]:
    """The old names with their views of new tensors; PlanError if one is not a view of any."""
    by_part = {part: tensor for tensor in reversed(found.made) for part in tensor.parts}
    for name, old in found.read.items():
        entry = checkpoint.entries[name]
        assert isinstance(entry.value, View)
        view = copies.window(old, by_part[old.parts[0]], entry.value)
        if view is None:
            raise PlanError(
                f"{checkpoint.path}: {name!r} is not a view of the new tensors: its elements are not at equal "
                "distances there, and the layout keeps no name for it",
                hint="without --keep-names the record still says how to take the output apart (`unfuse`); "
                "layouts in which each part is one run, such as qkv, gate-up and experts, keep all names",
            )
        yield name, view


# --- The order of a file's tensors before it was rearranged, from its record of parts --------------------------------
#
# A file keeps the order of its names through any number of `fuse` and `unfuse`: each record of a tensor says where the
# tensors that it replaced stood, in the order that the file had before the first of them.  Through conversions between
# dialects it is kept by the tensors of transformers 4 that all are made of: the record says the first order of these.


def first_order(names: Iterable[str], record: PartsRecord) -> dict[str, int]:
    """{name: its rank in the first order}, for the names of a file and for those that its record can restore.

    A tensor that was fused has the rank of its first part, and parts have the rank of the tensor that was taken apart.
    """
    present = dict.fromkeys(names)
    places: dict[str, int] = {}
    undone = list(_undone(present, record))
    for one in undone:
        for name in one.there:
            present.pop(name, None)
        present |= dict.fromkeys(one.before)
        places |= zip(one.before, one.positions, strict=True)
    ranks = {name: k for k, name in enumerate(_placed(present, places))}
    for one in reversed(undone):
        rank = min(ranks[name] for name in one.before)
        for name in one.there:
            ranks.setdefault(name, rank)
    return ranks


def in_first_order(names: Iterable[str], ranks: Mapping[str, int]) -> list[str]:
    """Names by their ranks; one without a rank stays behind the name in front of it."""
    found: list[tuple[int, str]] = []
    for name in dict.fromkeys(names):
        found.append((ranks.get(name, found[-1][0] if found else -1), name))
    return [name for _, name in sorted(found, key=lambda pair: pair[0])]


def of_parts(
    held: Iterable[Stored], hub: Iterable[str], ranks: Mapping[str, int], known: Sequence[int]
) -> tuple[int, ...]:
    """The rank of each tensor of transformers 4, in the order of its names; `known` if it is of as many.

    `held` are the file's tensors, and `ranks` the order of their names.  Parts of one tensor follow each other.
    """
    names = sorted(hub)
    if len(known) == len(names):
        return tuple(known)
    places: dict[str, tuple[int, int]] = {}
    for tensor in held:
        rank = ranks.get(tensor.name, len(ranks))
        for k, part in enumerate(tensor.parts):
            place = (rank, k)
            if places.setdefault(part, place) > place:
                places[part] = place
    found = {name: rank for rank, name in enumerate(sorted(names, key=places.__getitem__))}
    return tuple(found[name] for name in names)


def of_made(made: Iterable[Stored], hub: Iterable[str], order: Sequence[int]) -> dict[str, int]:
    """{new tensor: the rank of the first tensor of transformers 4 that it is made of}; none without an order."""
    if not order:
        return {}
    ranks = dict(zip(sorted(hub), order, strict=True))
    found = {
        one.name: min((ranks[piece.part] for piece in one.pieces if piece.part in ranks), default=-1) for one in made
    }
    return {name: rank for name, rank in found.items() if rank >= 0}


class _OrderStep(NamedTuple):
    """One tensor that was fused or taken apart."""

    there: tuple[str, ...]
    """The names that it left."""
    before: tuple[str, ...]
    """The names that it replaced."""
    positions: tuple[int, ...]
    """Those of `before`."""


def _undone(names: Iterable[str], record: PartsRecord) -> Iterator[_OrderStep]:
    """The steps whose tensors a file has, or has when others are undone, each once."""
    steps = [_OrderStep((one.tensor,), one.names, one.positions) for one in record.fused]
    steps += [_OrderStep(one.names, (one.tensor,), one.positions) for one in record.unfused]
    steps = [one for one in steps if one.there and one.before and len(one.before) == len(one.positions)]
    users = grouped((name, k) for k, one in enumerate(steps) for name in one.there)
    present = set(names)
    lacking = [set(one.there) - present for one in steps]
    ready = deque(k for k, lack in enumerate(lacking) if not lack)
    done = set()
    while ready:
        k = ready.popleft()
        if lacking[k] or k in done:
            continue
        done.add(k)
        yield (one := steps[k])
        for name in one.there:
            for user in users[name]:
                lacking[user].add(name)
        for name in one.before:
            for user in users.get(name, ()):
                lacking[user].discard(name)
                if not lacking[user]:
                    ready.append(user)


def _placed(names: Iterable[str], places: Mapping[str, int]) -> Iterator[str]:
    """Names in their order, those that have a place at it, as far as the others leave room."""
    present = dict.fromkeys(names)
    waiting = sorted((name for name in places if name in present), key=places.__getitem__, reverse=True)
    count = 0
    for name in (name for name in present if name not in places):
        while waiting and places[waiting[-1]] <= count:
            yield waiting.pop()
            count += 1
        yield name
        count += 1
    yield from reversed(waiting)
