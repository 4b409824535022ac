"""What is kept for new parameters: each slot of the old ones through the same map, or why it cannot follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import cast

from paramtool.errors import LayoutError, some
from paramtool.grouping import grouped
from paramtool.model import objects
from paramtool.model.objects import Leaf, Node
from paramtool.model.optimizer import (
    Move,
    Slot,
)
from paramtool.model.plan import Copy, Requirement, Target, whole
from paramtool.model.view import View, contiguous
from paramtool.passes.optimizer import copies
from paramtool.passes.optimizer.moving import SHOWN, Concerned, EntryKey, Moving, NewEntry
from paramtool.passes.optimizer.slots import BLOCK, OF_ONE_SHAPE, last_part, power_of

_UNTIE = "--untied-state copy, split, zero or one says what they get"
_TIE = "--tied-state first or second says whose is kept"
_CODES, _BLOCKS = ("qmap1", "qmap2"), ("state1", "state2", "absmax1", "absmax2")
"""What bitsandbytes keeps: the values of all codes, the same for every tensor; codes, and scales of blocks of them."""


class Joining(Moving):
    """The entries that new parameters get."""

    def concerned(self) -> Iterator[Concerned]:
        """The moves of parameters that have entries, each with the entries of its old ones; tied ones once."""
        seen: dict[EntryKey, frozenset[EntryKey]] = {}
        self.check_other_names()
        for move in self.moves:
            keys = {name: self.by_view.get(self.weights[name]) for name in move.old if name in self.weights}
            every = tuple(dict.fromkeys(key for key in keys.values() if key is not None))
            if not every:
                continue
            self.choose(keys, move)
            there = tuple(dict.fromkeys(key for key in keys.values() if key is not None))
            if lacking := [name for name, key in keys.items() if key is None]:
                has = self.names[there[0]]
                raise self.refusal(f"{has!r} has an entry, and {some(lacking, SHOWN)} beside it has none")
            before = {seen[key] for key in every if key in seen}
            if before == {frozenset(every)}:
                continue
            if before:
                raise self.refusal(f"{self.names[there[0]]!r} becomes a part of several parameters")
            seen |= dict.fromkeys(every, frozenset(every))
            held = {name: key for name, key in keys.items() if key is not None}
            yield Concerned(there, move, held, tuple(key for key in every if key not in there))

    def choose(self, keys: dict[str, EntryKey | None], move: Move) -> None:
        """Give parameters that become one the entry of one of them: of the only one, or of that of the choice."""
        for names in move.twins:
            found = [*dict.fromkeys(key for name in names if (key := keys.get(name)) is not None)]
            if not found:
                continue
            chosen = found[-1] if self.choice.tied == "second" else found[0]
            for name in names:
                if keys.get(name) is None or self.choice.tied:
                    keys[name] = chosen

    def check_other_names(self) -> None:
        """PlanError where a parameter is joined or split under one of its names, and stays what it is under another."""
        read = {name for move in self.moves for name in move.old}
        made = {name for move in self.moves for name in move.new}
        views = {
            self.weights[name]: name for name in read if name in self.weights and self.weights[name] in self.by_view
        }
        for name, view in self.weights.items():
            if view in views and name not in read and name not in made and name.startswith(self.prefix):
                raise self.refusal(f"{views[view]!r} changes, and its other name {name!r} keeps what it was")

    def joined(self, one: Concerned) -> Iterator[tuple[EntryKey, tuple[NewEntry, ...]]]:
        """{old entry: the new entries at its place}; all are at the place of the first one in its group."""
        keys, move = one.keys, one.move
        self.hint = _TIE if move.twins and not self.choice.tied else ""
        self.check_groups(keys)
        weights = self.through(move, {name: self.weights[name] for name in move.old}, Slot("", "weight"))
        shares, without = self.untied(_alike(weights.targets))
        self.made_by |= dict.fromkeys(shares, one)
        if self.is_flat and (one.gone or len(shares) > len(_alike(weights.targets)) or weights.changes):
            raise self.refusal("L-BFGS keeps products of vectors over all parameters, which tied or summed ones change")
        slots = self.slots(one, shares)
        entries = tuple(
            NewEntry(name, () if name in without else tuple((key, made[name]) for key, made in slots))
            for name in shares
        )
        self.hint = ""
        first = min(keys, key=[*self.entries].index)
        yield first, entries
        yield from ((key, ()) for key in (*keys, *one.gone) if key != first)

    def untied(self, alike: Sequence[Sequence[str]]) -> tuple[dict[str, int], frozenset[str]]:
        """{new parameter: how many share its state}, and those that start without any; `alike` are made of the same."""
        choice = self.choice.untied
        if self.state.form == copies.FORM:
            choice = "one" if choice == "one" else "copy"
        shares, without = {}, []
        for names in alike:
            if len(names) > 1 and not choice:
                told = " and ".join(map(repr, names[:SHOWN]))
                raise self.refusal(f"{told} become separate parameters, and it keeps one state for them", _UNTIE)
            for k, name in enumerate(names if choice != "one" else names[:1]):
                shares[name] = len(names) if choice == "split" else 1
                without += [name] if k and choice == "zero" else []
        return shares, frozenset(without)

    def check_groups(self, keys: tuple[EntryKey, ...]) -> None:
        """PlanError where the old parameters have different settings, or only some of them have state."""
        first = self.entries[keys[0]]
        for key in keys[1:]:
            other = self.entries[key]
            if other.group != first.group:
                groups = f"groups {first.group} and {other.group}{self.difference(first.group, other.group)}"
                raise self.refusal(f"{self.pair(keys[0], key)} become one, and are in {groups}")
            mine, theirs = ({slot.key for slot in one.slots} for one in (first, other))
            if mine != theirs:
                kept = f"{', '.join(sorted(mine)) or 'nothing'} and {', '.join(sorted(theirs)) or 'nothing'}"
                raise self.refusal(f"{self.pair(keys[0], key)} become one, and it keeps {kept} for them")

    def difference(self, one: int, other: int) -> str:
        """The first setting in which two groups differ."""
        mine, theirs = (self.state.groups[k].settings for k in (one, other))
        if isinstance(mine, objects.Mapping) and isinstance(theirs, objects.Mapping):
            others = dict(theirs.items)
            for key, value in mine.items:
                found = others.get(key)
                if found != value and isinstance(value, Leaf) and isinstance(found, Leaf):
                    return f" ({objects.word(key)} {value.value!r} and {found.value!r})"
        return ""

    def slots(self, one: Concerned, shares: Mapping[str, int]) -> list[tuple[str, Mapping[str, Target | Node]]]:
        """[(slot, {new parameter: what is kept for it})]"""
        kept = [slot for slot in self.entries[one.keys[0]].slots if slot.kind != "derived"]
        return [(slot.key, self.slot(slot.key, one, shares)) for slot in kept]

    def slot(self, called: str, one: Concerned, shares: Mapping[str, int]) -> Mapping[str, Target | Node]:
        """One slot of the new parameters; `shares` are by how many the state of each is shared."""
        keys, move, new = one.keys, one.move, [*shares]
        held = {key: next(slot for slot in self.entries[key].slots if slot.key == called) for key in keys}
        first = held[keys[0]]
        if {slot.kind for slot in held.values()} != {first.kind}:
            raise self.refusal(f"{called!r} is not kept in one way for {some([self.names[key] for key in keys], 4)}")
        if first.kind == "scalar" or called.endswith(_CODES) or not any(slot.tensor for slot in held.values()):
            return self.scalar(held, new)
        if first.kind == "blockwise" and last_part(called) in _BLOCKS:
            return self.quantised(called, one, shares)
        if first.kind not in OF_ONE_SHAPE:
            raise self.refusal(f"{_why(first)}, and {self.names[keys[0]]!r} is joined, split or rearranged")
        views = {name: self.view(held[one.held[name]]) for name in move.old}
        done = self.through(move, views, first)
        self.done.requires += (self.required(one, called) for one in done.requires)
        self.done.warnings += (f"{self.state.at or 'the optimizer'}: {text}" for text in done.changes)
        power = power_of(called, first.kind)
        return {
            target.name: _scaled(target, shares[target.name] ** -power) for target in done.targets if target.name in new
        }

    def quantised(self, called: str, one: Concerned, shares: Mapping[str, int]) -> Mapping[str, Target | Node]:
        """Moments that are quantised in blocks, or the scales of these blocks."""
        if any(share > 1 for share in shares.values()):
            raise self.refusal(
                f"{called!r} is quantised, and a part of it is no share (--untied-state copy and zero are)"
            )
        moments = moments_of(called) or called
        states = {name: self.view(self.slot_of(key, moments)) for name, key in one.held.items()}
        made = self.through(one.move, states, Slot(moments, "weight")).targets
        targets = [target for target in made if target.name in shares]
        try:
            if moments == called:
                check_blocks(targets, states)
                return {target.name: target for target in targets}
            scales = {name: self.view(self.slot_of(key, called)) for name, key in one.held.items()}
            return {target.name: target for target in block_scales(targets, states, scales)}
        except LayoutError as error:
            raise self.refusal(f"{called!r}: {error.message}") from None

    def scalar(self, held: Mapping[EntryKey, Slot], new: Sequence[str]) -> Mapping[str, Target | Node]:
        """One number or value for all parts, which must agree."""
        (key, first), *others = held.items()
        for other, slot in others:
            if bool(slot.tensor) != bool(first.tensor) or slot.value != first.value:
                found = f"{first.key} {_shown(first)} for {self.names[key]!r} and {_shown(slot)} for"
                raise self.refusal(f"{found} {self.names[other]!r}; expected one for the parts of {new[0]!r}")
            if slot.tensor:
                self.equal(slot, first, f"{first.key} differs for {self.pair(key, other)}, parts of {new[0]!r}")
        if not first.tensor:
            return dict.fromkeys(new, first.value or Leaf(None))
        return {name: whole(name, self.view(first)) for name in new}

    def equal(self, slot: Slot, first: Slot, message: str) -> None:
        """Require that two values are equal."""
        mine, other = self.view(slot), self.view(first)
        if (mine.shape, mine.dtype) != (other.shape, other.dtype):
            raise self.refusal(message)
        self.done.requires.append(self.required(Requirement(mine, ((1, other),), 0.0, message), first.key))


def _why(slot: Slot) -> str:
    """Why a slot does not follow parameters that are joined or split."""
    what = {
        "factored": "keeps statistics of rows and columns", "blockwise": "is quantised in blocks of elements",
        "global": "is of all parameters together",
    }.get(slot.kind, "is not known")  # fmt: skip
    return f"{slot.key!r} {what}"


def _shown(slot: Slot) -> str:
    if slot.tensor:
        return "a tensor"
    return str(slot.value.value) if isinstance(slot.value, Leaf) else "an object"


def _alike(targets: Iterable[Target]) -> list[list[str]]:
    """The new parameters, those together that are made of the same."""

    def made_of(target: Target) -> object:
        copies = tuple((replace(copy.destination, storage=""), copy.terms, copy.shift) for copy in target.copies)
        return (target.shape, copies) if any(copy.terms for copy in target.copies) else target.name

    return list(grouped((made_of(target), target.name) for target in targets).values())


def _scaled(target: Target, factor: float) -> Target:
    """A target times a factor."""
    if factor == 1:
        return target
    copies = ((copy, cast(float, copy.scale)) for copy in target.copies)
    return replace(target, copies=tuple(replace(copy, scale=scale * factor) for copy, scale in copies))


# --- Moments that bitsandbytes quantises in blocks of 256 elements, each with a scale: moved where no block is cut ---
#
# A block is 256 elements of the flattened tensor.  A run of elements moves exactly if it begins with a block in the
# old tensor and in the new one, and holds whole blocks; the last block of a tensor may be shorter.  The scales of the
# blocks (`absmax1`, `absmax2`) move with them.  Source: bitsandbytes 0.50 (optim/optimizer.py,
# `Optimizer2State.init_state`).


def check_blocks(targets: Sequence[Target], states: Mapping[str, View]) -> None:
    """LayoutError where a map of quantised moments cuts a block, or changes values."""
    for target in targets:
        for copy in target.copies:
            _run(copy, target, states)


def block_scales(
    targets: Sequence[Target], states: Mapping[str, View], absmax: Mapping[str, View]
) -> tuple[Target, ...]:
    """The scales of moved blocks; `targets` are of the moments, and `states` and `absmax` are the old ones."""
    return tuple(_block_scales(target, states, absmax) for target in targets)


def _block_scales(target: Target, states: Mapping[str, View], absmax: Mapping[str, View]) -> Target:
    dtype = next(iter(absmax.values())).dtype
    whole = contiguous(target.name, dtype, (_count(target.shape),))
    copies = []
    for copy in target.copies:
        name, (shape, there, here) = _run(copy, target, states)
        held = absmax[name]
        term = replace(held, offset=held.offset + there[0], shape=shape, strides=there[1])
        destination = replace(whole, offset=here[0], shape=shape, strides=here[1])
        copies.append(Copy(destination, ((1, term),)))
    return Target(target.name, dtype, whole.shape, tuple(copies))


_Place = tuple[int, tuple[int, ...]]
"""An offset and strides, in blocks."""


def _run(copy: Copy, target: Target, states: Mapping[str, View]) -> tuple[str, tuple[tuple[int, ...], _Place, _Place]]:
    """The old tensor of a copy, and the shape and the places of its blocks there and in the new tensor."""
    if not copy.is_plain:
        raise LayoutError(f"{target.name!r} would be calculated, and quantised moments only move")
    term = copy.terms[0][1]
    found = [(name, view) for name, view in states.items() if view.storage == term.storage]
    if len(found) != 1 or not found[0][1].is_contiguous:
        raise LayoutError(f"{target.name!r} is made of tensors that are not stored row by row")
    name, old = found[0]
    there = replace(term, offset=term.offset - old.offset)
    length = _contiguous_run(copy.destination, there)
    outer = copy.destination.shape[: len(copy.destination.shape) - length[0]]
    numel = length[1]
    ends = (there.offset + numel == old.numel, copy.destination.offset + numel == prod(target.shape))
    is_last = prod(outer) == 1 and all(ends)
    places = [_in_blocks(view, len(outer)) for view in (there, copy.destination)]
    if None in places or (numel % BLOCK and not is_last):
        raise LayoutError(f"blocks of {BLOCK} elements of {name!r} would be cut")
    shape = (*outer, -(-numel // BLOCK))
    return name, (shape, *(place for place in places if place is not None))  # type: ignore[return-value]


def _contiguous_run(*views: View) -> tuple[int, int]:
    """How many of the last axes are one run in each view, and its length."""
    count, length = 0, 1
    for axis in range(len(views[0].shape) - 1, -1, -1):
        size = views[0].shape[axis]
        if size > 1 and any(view.strides[axis] != length for view in views):
            break
        count, length = count + 1, length * size
    return count, length


def _in_blocks(view: View, outer: int) -> _Place | None:
    """Where the runs of a view begin, in blocks; None where one begins inside of a block."""
    pairs = list(zip(view.shape[:outer], view.strides[:outer], strict=True))
    if view.offset % BLOCK or any(stride % BLOCK for size, stride in pairs if size > 1):
        return None
    return view.offset // BLOCK, (*(stride // BLOCK for _, stride in pairs), 1)


def _count(shape: Sequence[int]) -> int:
    return -(-prod(shape) // BLOCK)


def moments_of(called: str) -> str:
    """The slot of the moments that a slot of scales belongs to; empty for any other slot.

    >>> moments_of("q.absmax2"), moments_of("q.qmap1")
    ('q.state2', '')
    """
    before, _, last = called.rpartition("absmax")
    return f"{before}state{last}" if last in ("1", "2") else ""
