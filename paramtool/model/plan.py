"""A plan: what an output will hold, as plain data, before any byte moves.

    targets   Target("w", float32, (2, 3), copies=(Copy(view of "w", terms=((+1, view of storage 0),)),))
    names     {"w": Alias("w", view of "w", ...), "tied": Alias("tied", view of "w", ...)}
    metadata  strings for the output

Passes make plans, formats lay them out, the engine carries them out; `check` proves a plan without running it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from math import prod

from paramtool.errors import PlanError
from paramtool.lazy_dataclass import frozen
from paramtool.model.alias import Alias, Derived, DerivedName, relation
from paramtool.model.checkpoint import Checkpoint, Module
from paramtool.model.display import Displayed
from paramtool.model.dtype import DType
from paramtool.model.inflating import Budget
from paramtool.model.objects import EMPTY, Node
from paramtool.model.storage import Storage, is_made, nbytes_of
from paramtool.model.tiling import are_disjoint
from paramtool.model.view import Shape, View, contiguous


@frozen
class Copy:
    """Fill one view of a target with the signed sum of views of the source, plus a number, times `scale`.

    A single term of the target's dtype with sign +1 and no shift copies bytes unchanged.  Without terms the shift is
    written, which is mostly zero.  Anything else is arithmetic, in the type of the terms; where the target has another
    type, the result is cast to it, rounded to nearest even.
    """

    destination: View
    terms: tuple[tuple[int, View], ...]
    shift: float = 0.0
    names: tuple[str, ...] = field(default=(), compare=False)
    """The tensors of a converted network that the terms come from.  A view does not say: tensors can share it."""
    scale: float | View = 1.0
    """1 except for what an optimizer keeps for a parameter that becomes several, and for codes of quantised weights:
    these are multiplied with a view of the source of the same shape, in the type of its numbers."""

    @property
    def source(self) -> View:
        """The view of the source that its first term is; IndexError where it has none."""
        return self.terms[0][1]

    @property
    def sources(self) -> tuple[View, ...]:
        """The views of the source that it reads."""
        views = tuple(view for _, view in self.terms)
        return (*views, self.scale) if isinstance(self.scale, View) else views

    @property
    def is_plain(self) -> bool:
        """Whether bytes are copied unchanged."""
        return self.is_exact and self.terms[0][0] == 1 and self.source.dtype == self.destination.dtype

    @property
    def is_exact(self) -> bool:
        """Whether converting back gives the same bytes: one term alone (a sign only flips a bit)."""
        return len(self.terms) == 1 and not self.shift and self.scale == 1

    @property
    def is_cast(self) -> bool:
        """Whether what is calculated is cast to another type."""
        return bool(self.terms) and self.source.dtype != self.destination.dtype


@frozen
class Requirement:
    """A condition on the source's bytes, checked before the first byte is written; a pure pass cannot check it.

    The view must equal the signed sum of `terms` plus `shift`.  Without terms it must be zero; with one term the two
    views must be equal.
    """

    view: View
    terms: tuple[tuple[int, View], ...]
    shift: float
    message: str
    """The error text if the condition does not hold: where, found and expected."""
    hint: str = ""
    rounding: int = 0
    """By how many units in the last place of the largest element the two sides may differ."""
    is_of_state: bool = False
    """Whether it is about what an optimizer keeps: the weights alone could be written."""


@frozen
class Target:
    """A tensor that will be stored, row by row."""

    name: str
    dtype: DType
    shape: Shape
    copies: tuple[Copy, ...]

    @property
    def view(self) -> View:
        """The whole tensor as a view of itself."""
        return contiguous(self.name, self.dtype, self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the output."""
        return self.dtype.nbytes(prod(self.shape))

    @property
    def names(self) -> list[str]:
        """The tensors of a converted network that it is made of, each once."""
        return list(dict.fromkeys(name for copy in self.copies for name in copy.names))

    def cast(self, dtype: DType) -> Target:
        """The same, its copies cast to another type."""
        return self.called(self.name, dtype)

    def called(self, name: str, dtype: DType | None = None) -> Target:
        """The same under another name, its copies cast to another type if one is given."""
        places = (replace(one.destination, storage=name, dtype=dtype or one.destination.dtype) for one in self.copies)
        copies = (replace(one, destination=place) for one, place in zip(self.copies, places, strict=True))
        return replace(self, name=name, dtype=dtype or self.dtype, copies=tuple(copies))


def whole(name: str, view: View) -> Target:
    """A whole view, stored row by row."""
    destination = contiguous(name, view.dtype, view.shape)
    return Target(name, view.dtype, view.shape, (Copy(destination, ((1, view),)),))


def resolved(name: str, kind: str, view: View) -> Target:
    """Carry out a pending conjugation or negation by signs on the real and the imaginary parts."""
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


@frozen(repr=False)
class Plan(Displayed):
    """The contents of an output."""

    targets: tuple[Target, ...]
    """The stored tensors of the output, each with the copies that fill it."""
    source: str = ""
    """The file or folder that it was made from, for messages."""
    names: Mapping[str, Alias] = field(default_factory=dict)
    """Every name that a reader will see, in the order of the source, as a view of a target or a derived name."""
    derived: Mapping[str, Derived] = field(default_factory=dict)
    """{name: how it is calculated} for names that are not stored, in order; other names may be views of them."""
    anonymous: frozenset[str] = frozenset()
    """Targets that are spans and not the name of a tensor; several names are views of each."""
    inline: Mapping[str, bytes] = field(default_factory=dict)
    """{name: bytes} of arrays that a torch file holds inside its pickle, in the order of the tree."""
    objects: Node = EMPTY
    """The tree of everything that is not a tensor."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The output's own strings."""
    index_metadata: Mapping[str, object] = field(default_factory=dict)
    """Metadata for the index, where the output has one."""
    modules: tuple[Module, ...] = ()
    """What is known about the recurrent networks in it, for its record."""
    requires: tuple[Requirement, ...] = ()
    """What the bytes must show before anything is written, such as zeros in a place that is left out."""
    is_bare: bool = False
    """Whether safetensors gets no `format` in its metadata, as the file had none that is restored."""

    _members = "source+ names=names.__len__ targets=targets.__len__ nbytes derived=derived.keys aliases(name owner)"

    @property
    def nbytes(self) -> int:
        """Tensor bytes in the output."""
        return sum(target.nbytes for target in self.targets)

    @property
    def order(self) -> tuple[str, ...]:
        """Every name, in the order of the source."""
        return tuple(self.names)

    @property
    def aliases(self) -> tuple[Alias, ...]:
        """The names whose bytes are stored under another name or as a span."""
        return tuple(one for one in self.names.values() if not one.is_owner)

    def derived_names(self) -> Iterator[DerivedName]:
        """The derived names, as documents have them."""
        return (DerivedName(self.names[name], how) for name, how in self.derived.items())

    def dtypes(self) -> dict[str, str]:
        """{name: its dtype}, of every name and of spans."""
        stored = {target.name: target.dtype.name for target in self.targets}
        return stored | {name: one.window.dtype.name for name, one in self.names.items()}

    def relations(self) -> dict[str, str]:
        """{alias: how its view relates to its owner}, for people: `overlap` on a span, else see `alias.relation`."""
        aliases = self.aliases
        owners = {one.owner for one in aliases}
        wholes = {target.name: target.view for target in self.targets if target.name in owners}
        wholes |= {name: self.names[name].window for name in self.derived}
        return {
            one.name: "overlap" if one.owner in self.anonymous else relation(one.window, wholes[one.owner])
            for one in aliases
        }

    def unmarked(self) -> Plan:
        """The plan without facts that only torch files hold: which tensors are parameters and require gradients."""
        plain = {name: one._replace(requires_grad=False, kind="") for name, one in self.names.items()}
        return replace(self, names=plain)


def check(plan: Plan, names: Iterable[str], storages: Mapping[int, Storage]) -> None:
    """Prove a plan before any byte moves; PlanError names the first condition that fails.

    Shapes agree, every target is tiled exactly once, every source view lies in its storage, and every one of
    `names` is a target or an alias.
    """
    targets = {target.name: target for target in plan.targets}
    if len(targets) != len(plan.targets):
        raise PlanError("a target is planned twice")
    for target in plan.targets:
        if not _are_runs(target):
            _check_tiling(target)
        for copy in target.copies:
            for view in copy.sources:
                there = nbytes_of(storages, view.storage)
                if there is None or view.byte_stop > there or view.shape != copy.destination.shape:
                    raise PlanError(f"{target.name!r}: a source window does not fit")
    for name, how in plan.derived.items():
        owner = how.window and targets.get(str(how.window.storage))
        if how.window and (owner is None or how.window.byte_stop > owner.nbytes):
            raise PlanError(f"{name!r}: its source window is not inside {how.window.storage!r}")
    for name, one in plan.names.items():
        place = targets[one.owner].nbytes if one.owner in targets else -1
        place = plan.names[one.owner].window.nbytes if one.owner in plan.derived else place
        if one.window.byte_stop > place:
            raise PlanError(f"{name!r}: its window is not inside {one.owner!r}")
    missing = set(names) - targets.keys() - plan.names.keys()
    if missing:
        raise PlanError(f"{min(missing)!r} would be lost")


def check_made(targets: Iterable[Target], checkpoint: Checkpoint) -> None:
    """UnsafeError if targets would inflate, calculate or repeat more bytes than is allowed; reads nothing.

    What they have beyond the storages that they are made of is repeated: by a stride of 0, under several names, or
    where nothing stands for zeros.
    """
    targets = list(targets)
    held = {int(view.storage) for target in targets for copy in target.copies for view in copy.sources}
    storages = [checkpoint.storages[number] for number in held]
    made = sum(storage.nbytes for storage in storages if is_made(storage.backing))
    more = sum(target.nbytes for target in targets) - sum(storage.nbytes for storage in storages)
    budget = Budget(sum(file.nbytes for file in checkpoint.files))
    budget.spend(checkpoint.path, made + max(0, more))


def _check_tiling(target: Target) -> None:
    if sum(copy.destination.nbytes for copy in target.copies) != target.nbytes:
        raise PlanError(f"{target.name!r}: its copies do not fill it")
    for copy in target.copies:
        if copy.destination.byte_stop > target.nbytes:
            raise PlanError(f"{target.name!r}: a copy reaches outside it")
        if len(target.copies) > 1 and not copy.destination.is_injective:
            raise PlanError(f"{target.name!r}: a copy writes an element twice")
    if len(target.copies) > 1 and not are_disjoint(copy.destination for copy in target.copies):
        raise PlanError(f"{target.name!r}: two copies write the same element")


def _are_runs(target: Target) -> bool:
    """Whether the copies are runs, one behind the other from the target's first byte to its last."""
    stop = 0
    for copy in target.copies:
        here = copy.destination
        if here.byte_start != stop or not here.is_contiguous:
            return False
        stop = here.byte_stop
    return stop == target.nbytes
