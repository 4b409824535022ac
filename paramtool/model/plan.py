"""A plan: what an output will hold, as plain data, before any byte moves.

    Target("w", float32, (2, 3), copies=(Copy(window on "w", terms=((+1, window on storage 0),)),))
    aliases   every other name, as a window on a target
    metadata  texts for the output

Passes make plans, formats lay them out, the engine carries them out; `check` proves one without running it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from paramtool.errors import PlanError
from paramtool.model.alias import Derived
from paramtool.model.checkpoint import Module
from paramtool.model.dtype import DType
from paramtool.model.objects import EMPTY, Node
from paramtool.model.storage import Storage
from paramtool.model.view import View, contiguous, overlaps


@dataclass(frozen=True, slots=True)
class Copy:
    """Fill one window of a target with the signed sum of windows of the source, plus a number.

    One term of the target's dtype with sign +1 and no shift moves bytes untouched; no term at all writes the shift,
    which is mostly zero; anything else is arithmetic.
    """

    destination: View
    terms: tuple[tuple[int, View], ...]
    shift: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether bytes move untouched."""
        return self.is_exact and self.terms[0][0] == 1 and self.terms[0][1].dtype == self.destination.dtype

    @property
    def is_exact(self) -> bool:
        """Whether the way back gives the same bytes: one term and no shift; a sign is a bit."""
        return len(self.terms) == 1 and not self.shift


@dataclass(frozen=True, slots=True)
class Requirement:
    """What must hold of the source's bytes before the first byte is written; a pure pass cannot see it.

    The window equals the signed sum of `terms` plus `shift`: no terms for a window that must be zero, one for twins.
    """

    view: View
    terms: tuple[tuple[int, View], ...]
    shift: float
    message: str
    """What is wrong where it does not hold; where, found and expected."""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor that will be stored, row by row."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    copies: tuple[Copy, ...]

    @property
    def view(self) -> View:
        """The whole tensor as a window on itself."""
        return contiguous(self.name, self.dtype, self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the output."""
        return self.dtype.nbytes(prod(self.shape))


def whole(name: str, view: View) -> Target:
    """A whole window, stored row by row."""
    destination = contiguous(name, view.dtype, view.shape)
    return Target(name, view.dtype, view.shape, (Copy(destination, ((1, view),)),))


def resolved(name: str, kind: str, view: View) -> Target:
    """Carry out a pending conjugation or negation: signs on the real and the imaginary parts."""
    target = whole(name, view)
    part = view.dtype.component
    if part is None:
        return replace(target, copies=(Copy(target.view, ((-1, view),)),))
    real = -1 if "neg" in kind else 1
    signs = (real, -real if "conj" in kind else real)
    copies = []
    for k, sign in enumerate(signs):
        source, destination = (
            View(v.storage, part, 2 * v.offset + k, v.shape, tuple(2 * stride for stride in v.strides))
            for v in (view, target.view)
        )
        copies.append(Copy(destination, ((sign, source),)))
    return replace(target, copies=tuple(copies))


@dataclass(frozen=True, slots=True)
class Alias:
    """A name that is a window on a target."""

    name: str
    view: View
    """On the target, which is `view.storage`."""
    memory: str
    """The first name of the memory it belongs to when loaded."""
    evidence: str
    """Why its bytes may stand in the target: `storage`, `declared` or `content`."""
    memory_evidence: str
    """Why it belongs to its memory: `storage` or `declared`."""
    relation: str
    """`same`, `slice`, `transpose`, `view` or `overlap`; a label for people."""
    constant: bool = False
    """Whether all its elements have one value, as far as that was looked at."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A name whose elements are not stored but had from a target by a cast, or from one element."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    how: Derived
    """Its window is on a target and has that target's dtype."""

    @property
    def nbytes(self) -> int:
        """Bytes that it would need if it were stored."""
        return self.dtype.nbytes(prod(self.shape))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write.  `order` is every name that a reader will see, in the order of the source."""

    targets: tuple[Target, ...]
    source: str = ""
    """What it was made from, for messages."""
    aliases: tuple[Alias, ...] = ()
    computed: tuple[Computed, ...] = ()
    """Names that are not stored; aliases may be windows on them too."""
    order: tuple[str, ...] = ()
    anonymous: frozenset[str] = frozenset()
    """Targets that are no tensor's name: spans that several names look into."""
    memories: Mapping[str, str] = field(default_factory=dict)
    """Target name -> the first name of its memory, where that is another name."""
    memory_evidence: Mapping[str, str] = field(default_factory=dict)
    """Target name -> `declared`, where its memory is not known by storage."""
    trainable: frozenset[str] = frozenset()
    """Names of tensors that ask for gradients, for formats that say so."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """{name: `Entry.kind`}, of tensors that are more than plain ones to torch."""
    inline: Mapping[str, bytes] = field(default_factory=dict)
    """{name: bytes} of arrays that a torch file holds inside its pickle, in the order that the tree says."""
    objects: Node = EMPTY
    metadata: Mapping[str, str] = field(default_factory=dict)
    index_metadata: Mapping[str, object] = field(default_factory=dict)
    """For the index, where the output has one."""
    modules: tuple[Module, ...] = ()
    """What is known of the recurrent networks in it, for its record."""
    requires: tuple[Requirement, ...] = ()

    @property
    def nbytes(self) -> int:
        """Tensor bytes in the output."""
        return sum(target.nbytes for target in self.targets)

    def sources(self) -> set[int]:
        """The storages of the source that are read for it."""
        return {int(v.storage) for target in self.targets for copy in target.copies for _, v in copy.terms}


def check(plan: Plan, names: Iterable[str], storages: Mapping[int, Storage]) -> None:
    """Prove a plan before any byte moves; PlanError names the first thing that does not hold.

    Shapes agree, every target is tiled exactly once, every source window lies in its storage, and every one of
    `names` is a target or an alias.
    """
    targets = {target.name: target for target in plan.targets}
    if len(targets) != len(plan.targets):
        raise PlanError("a target is planned twice")
    for target in plan.targets:
        _check_target(target, storages)
    computed = {one.name: one for one in plan.computed}
    for one in plan.computed:
        owner = one.how.window and targets.get(str(one.how.window.storage))
        if one.how.window and (owner is None or one.how.window.byte_stop > owner.nbytes):
            raise PlanError(f"{one.name!r}: what it is calculated from is not in {one.how.window.storage!r}")
    for alias in plan.aliases:
        place = targets.get(str(alias.view.storage)) or computed.get(str(alias.view.storage))
        if place is None or alias.view.byte_stop > place.nbytes:
            raise PlanError(f"{alias.name!r}: its window does not lie in {alias.view.storage!r}")
    missing = set(names) - targets.keys() - computed.keys() - {alias.name for alias in plan.aliases}
    if missing:
        raise PlanError(f"{min(missing)!r} would be lost")


def _check_target(target: Target, storages: Mapping[int, Storage]) -> None:
    if sum(copy.destination.nbytes for copy in target.copies) != target.nbytes:
        raise PlanError(f"{target.name!r}: its copies do not fill it")
    many = len(target.copies) > _MANY_COPIES
    if many and (wrong := _marked_twice(target)):
        raise PlanError(f"{target.name!r}: {wrong}")
    for k, copy in enumerate(target.copies):
        if copy.destination.byte_stop > target.nbytes:
            raise PlanError(f"{target.name!r}: a copy reaches outside it")
        if len(target.copies) > 1 and not copy.destination.is_injective:
            raise PlanError(f"{target.name!r}: a copy writes an element twice")
        if not many and any(overlaps(copy.destination, other.destination) for other in target.copies[:k]):
            raise PlanError(f"{target.name!r}: two copies write the same element")
        for _, view in copy.terms:
            storage = storages.get(view.storage) if isinstance(view.storage, int) else None
            if storage is None or view.byte_stop > storage.nbytes or view.shape != copy.destination.shape:
                raise PlanError(f"{target.name!r}: a source window does not fit")


_MANY_COPIES = 64
"""More copies than this are proved disjoint by marking elements, not pair by pair."""


def _marked_twice(target: Target) -> str:
    """What is wrong with the tiling of a target, by marking every element; empty where nothing is."""
    marks = bytearray(prod(target.shape))
    for copy in target.copies:
        view = copy.destination
        if view.dtype != target.dtype or view.offset + view.extent > len(marks):
            return "a copy reaches outside it"
        size, stride = (view.shape[-1], view.strides[-1]) if view.shape else (1, 1)
        for start in _starts(view):
            row = slice(start, start + (size - 1) * stride + 1, stride or 1)
            if any(marks[row]):
                return "two copies write the same element"
            marks[row] = b"\1" * len(range(*row.indices(len(marks))))
    return "" if all(marks) else "its copies do not fill it"


def _starts(view: View) -> list[int]:
    """Where each row along the last axis begins."""
    found = [view.offset] if view.numel else []
    for size, stride in zip(view.shape[:-1], view.strides[:-1], strict=True):
        found = [base + k * stride for base in found for k in range(size)]
    return found
