"""A plan with other types: which tensor is cast to what, by rule, and what stays.

Names that share memory get one type; a rule that would give them two is refused.  Names that share bytes only because
these are equal are stored apart where their types differ.

The codes of quantised weights have no meaning in another type, and what belongs to them keeps its own unless a pattern
names it (`model/quantised.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field, replace
from difflib import get_close_matches
from shlex import quote

from paramtool.errors import PlanError, UsageError, listed, plural, some
from paramtool.grouping import grouped, omit
from paramtool.lazy_dataclass import frozen
from paramtool.model import quantised
from paramtool.model.alias import Alias
from paramtool.model.checkpoint import Entries
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.plan import Plan, Target, whole
from paramtool.parts.schemes import Packing
from paramtool.passes.objects_differ import without
from paramtool.passes.types import dequantise, kinds
from paramtool.passes.types.kinds import TypeRules

WIDE = ("float16", "bfloat16", "float32", "float64")
"""Types that a rule without a pattern casts: floats of one byte mostly belong to scales."""
WHOLE_NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
KEPT = DTYPES["float32"]
MANY = 6
"""The most names that are listed."""


@frozen
class Typed:
    """A plan with the types that were asked for."""

    plan: Plan
    casts: Mapping[str, str]
    """{stored tensor: the type that it has in the source}"""
    names: Mapping[str, str]
    """{every name on them: the type that it has in the source}"""
    kept: Mapping[str, str]
    """{tensor: why it is float32 in the output}"""
    exact: frozenset[str]
    """Stored tensors whose cast must lose nothing."""
    dequantised: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """{weight that was FP8 codes: the names that went with them, its scales first}"""
    left: tuple[str, ...] = ()
    """What a rule does not touch, for people."""
    warnings: tuple[str, ...] = ()


def apply(plan: Plan, entries: Entries, rules: TypeRules, packing: Packing | None = None) -> Typed:
    """A plan with tensors cast as the rules say; `entries` are those of the source.

    With `packing`, what a config says of them, quantised weights are dequantised, and have the type of their scales if
    no rule gives another.  UsageError for a rule that matches nothing or contradicts another, and where nothing is
    quantised; PlanError where names that share memory would get two types, or a tensor cannot be cast or dequantised.
    """
    asked = _TypeRequest(plan, entries, rules, packing)
    plan = asked.plan
    wanted = asked.dtypes(plan)
    kept = asked.codes.keys() - asked.scaled.keys()
    kept |= {name for name in asked.beside & wanted.keys() if asked.views[name].dtype.name in WHOLE_NUMBERS}
    if wrong := sorted(name for name in kept if wanted[name] != asked.views[name].dtype):
        raise PlanError(
            f"{plan.source}: {some(wrong, MANY)}: the codes of quantised weights mean nothing in another type without "
            "their scales",
            hint="a pattern that does not match them leaves them as they are; convert --dequantise gives the weights "
            "that FP8 codes and their scales stand for",
        )
    plan = _apart(_stored(plan, wanted), wanted)
    names: dict[str, Alias] = dict(plan.names)
    on = grouped((one.owner, name) for name, one in names.items())
    targets: list[Target] = []
    casts: dict[str, str] = {}
    for target in plan.targets:
        members = on.get(target.name, [])
        moved = [name for name in members if name in asked.scaled or wanted[name] != names[name].window.dtype]
        if not moved:
            targets.append(target)
            continue
        dtype = wanted[moved[0]]
        # PlanError where a window has another type than what it is a window on, as reinterpreted bytes have.
        terms = [term for copy in target.copies for _, term in copy.terms]
        odd = [name for name in members if plan.names[name].window.dtype != target.dtype]
        if odd or any(term.dtype != target.dtype for term in terms):
            raise PlanError(
                f"{plan.source}: {some(odd or members, MANY)}: other types share these bytes, so they cannot be cast "
                f"to {dtype.name}",
                hint="a rule --dtype NAME=DTYPE with the type that they have leaves them as they are",
            )
        by_type = grouped((wanted[name], name) for name in members)
        if len(by_type) > 1:  # names that share memory
            lines = [f"{some(held, MANY)}: {one.name}" for one, held in by_type.items()]
            (one, first), second, *_ = by_type.items()
            raise PlanError(
                listed(f"{plan.source}: names that share memory would have different types:", lines),
                hint=f"give both one: --dtype {quote(f'{second[1][0]}={one.name}')}"
                + (f", or --keep-float32 {quote(first[0])}" if KEPT in by_type else ""),
            )
        casts[target.name] = target.dtype.name
        is_scaled = not asked.scaled.keys().isdisjoint(members)
        targets.append(asked.dequantised(target, members, dtype) if is_scaled else target.cast(dtype))
        for name in members:
            names[name] = names[name]._replace(window=replace(names[name].window, dtype=dtype))
    return Typed(
        replace(plan, targets=tuple(targets), names=names),
        casts,
        {name: casts[one.owner] for name, one in names.items() if one.owner in casts},
        asked.kept,
        frozenset(name for name, before in casts.items() if before in WHOLE_NUMBERS),
        {name: one.beside for name, one in asked.scaled.items()},
        tuple(asked.left({name for name, one in names.items() if one.owner in casts})),
        tuple(asked.warnings(casts, names)),
    )


class _TypeRequest:
    """What the rules say of each name."""

    def __init__(self, plan: Plan, entries: Entries, rules: TypeRules, packing: Packing | None = None) -> None:
        self.rules = rules
        self.entries = entries
        there = {name: entry for name, entry in entries.items() if name in plan.names}
        self.codes = quantised.groups(there)
        """{codes of a quantised weight: what belongs to them}"""
        if packing is not None and not self.codes:
            raise UsageError(f"{plan.source}: has no quantised weights", hint="leave out --dequantise")
        self.scaled = {} if packing is None else dequantise.scaled(there, packing, self.codes)
        """{codes: they and their scales}, of those that become weights."""
        self.plan = _lacking(plan, {name for one in self.scaled.values() for name in one.beside})
        self.views = {name: one.window for name, one in self.plan.names.items()}
        self.beside = quantised.parts(self.codes) - self.codes.keys()
        self.kept, self.absent = kinds.kept(self.views, entries, rules)
        self.kept = {name: why for name, why in self.kept.items() if self._may(name)}
        for rule in rules.rules:
            hit = [name for name in self.views if rule.pattern and rule.matches(name)]
            if rule.pattern and not any(self._may(name) or rule.pattern == name for name in hit):
                raise _matches_nothing(str(rule), rule.pattern, hit, self.views)
            if rule.pattern in self.kept and rule.dtype != KEPT:
                raise UsageError(
                    f"dtype {str(rule)!r}: {self.kept[rule.pattern]}, and --keep-float32 keeps that in float32",
                    hint="leave one of the two out",
                )

    def _role(self, name: str) -> str:
        return self.entries[name].role if name in self.entries else "model"

    def _may(self, name: str) -> bool:
        """Whether a pattern with wildcards casts a tensor."""
        return self.views[name].dtype.is_floating and self._role(name) != "other"

    def dtypes(self, plan: Plan) -> dict[str, DType]:
        """The type of each name; an optimizer's name for a tensor of the model has the model's type."""
        found = {name: self.dtype(name) for name in plan.names}
        of_owner: dict[str, DType] = {}
        for name, one in plan.names.items():
            if not self._is_unasked(name):
                of_owner.setdefault(one.owner, found[name])
        for name, one in plan.names.items():
            if self._is_unasked(name):
                found[name] = of_owner.get(one.owner, found[name])
        return found

    def _is_unasked(self, name: str) -> bool:
        """Whether no rule says anything of a name of an optimizer."""
        if self._role(name) != "optimizer" or name in self.kept or not self._may(name):
            return False
        return not any(rule.pattern and rule.matches(name) for rule in self.rules.rules)

    def dtype(self, name: str) -> DType:
        """The type that the rules give a name."""
        there = self.scaled[name].dtype if name in self.scaled else self.views[name].dtype
        if name in self.kept:
            return KEPT
        for rule in reversed(self.rules.rules):
            if rule.pattern and rule.matches(name):
                if name in self.beside and rule.pattern != name and not quantised.is_beside(rule.pattern):
                    continue
                if self._may(name):
                    return rule.dtype
                if rule.pattern == name:
                    return self._one(name, rule.dtype)
        is_plain = there.name in WIDE and self._role(name) not in ("optimizer", "other")
        is_plain = is_plain and name not in self.beside and (name not in self.codes or name in self.scaled)
        return self.rules.default or there if is_plain else there

    def dequantised(self, target: Target, members: list[str], dtype: DType) -> Target:
        """The weight that codes and their scales stand for."""
        scales = {self.scaled[name].scales if name in self.scaled else None for name in members}
        (first, *_) = (self.scaled[name] for name in members if name in self.scaled)
        if dtype == target.dtype:
            raise UsageError(f"{members[0]!r}: --dequantise makes it no {dtype.name}", hint="give it another --dtype")
        if len(scales) > 1 or any(self.views[name] != target.view for name in members):
            raise PlanError(
                f"{self.plan.source}: {some(members, MANY)}: share codes, and not all that belongs to them",
                hint="without --dequantise they stay as they are",
            )
        return first.target(target.name, dtype)

    def _one(self, name: str, dtype: DType) -> DType:
        """The type for a tensor that is not of floating point numbers and is named in full."""
        there = self.views[name].dtype
        if self._role(name) == "other" or there.name not in WHOLE_NUMBERS:
            what = "a NumPy array among the file's objects" if self._role(name) == "other" else there.name
            raise PlanError(f"{name!r}: is {what}, which cannot be cast to {dtype.name}", hint="leave out the rule")
        return dtype

    def left(self, cast: Collection[str]) -> Iterator[str]:
        """What a rule without a pattern does not touch; `cast` are the names that are cast."""
        named = [rule for rule in self.rules.rules if rule.pattern]
        kept = [name for name in self.views if name in self.beside and name not in cast and name not in self.kept]
        kept = [name for name in kept if self.views[name].dtype.name in WIDE]
        if self.rules.default is None:
            kept = [name for name in kept if any(rule.matches(name) for rule in named)]
        if kept:
            yield f"{plural(len(kept), 'scale')} of quantised weights: {some(kept, MANY)}"
        if self.rules.default is None:
            return
        rest = [
            name
            for name in self.views
            if not (name in self.kept or name in cast or name in kept or any(rule.matches(name) for rule in named))
        ]
        groups: dict[str, Callable[[str], bool]] = {
            "of the optimizer": lambda n: self._role(n) == "optimizer",
            "NumPy arrays among the objects": lambda n: self._role(n) == "other",
            "of integers or other types": lambda n: not self.views[n].dtype.is_floating,
            "floats of less than two bytes": lambda n: self.views[n].dtype.name not in WIDE,
        }
        for what, fits in groups.items():
            found = [name for name in rest if fits(name)]
            rest = [name for name in rest if not fits(name)]
            if found:
                yield f"{plural(len(found), 'tensor')} {what}: {some(found, MANY)}"

    def warnings(self, casts: Mapping[str, str], names: Mapping[str, Alias]) -> Iterator[str]:
        """What a person may not have meant."""
        for word in self.absent:
            yield f"--keep-float32 {word}: there is no such module"
        narrow = [
            name
            for name in kinds.batchnorm(self.views, self.entries)
            if names[name].owner in casts and names[name].window.dtype.block_bytes < KEPT.block_bytes
        ]
        if narrow:
            yield (
                f"rounded with the rest: {plural(len(narrow), 'tensor')} of modules with running statistics: "
                f"{some(narrow, MANY)}; --keep-float32 batchnorm keeps them in float32"
            )
        if not casts:
            yield "nothing is cast: each tensor has the type that was asked for already, or keeps its own"


def _matches_nothing(rule: str, pattern: str, hit: list[str], names: Mapping[str, object]) -> UsageError:
    if hit:
        why = f"matches {plural(len(hit), 'tensor')}, none of them of floating point numbers"
        return UsageError(
            f"dtype {rule!r}: {why}: {some(hit, MANY)}", hint="name a tensor of integers in full to cast it"
        )
    near = get_close_matches(pattern, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else "* and ? are wildcards"
    return UsageError(f"dtype {rule!r}: matches none of {plural(len(names), 'tensor')}", hint=hint)


def _lacking(plan: Plan, gone: Collection[str]) -> Plan:
    """The plan without some names, and without what is stored for these alone."""
    if not gone:
        return plan
    names = omit(plan.names, gone)
    kept = {one.owner for one in names.values()}
    return replace(
        plan,
        targets=tuple(target for target in plan.targets if target.name in kept or target.name not in plan.names),
        names=names,
        derived={name: how for name, how in plan.derived.items() if name in names},
        objects=without(plan.objects, gone),
    )


def _stored(plan: Plan, wanted: Mapping[str, DType]) -> Plan:
    """The plan with derived tensors stored where they, or what they are derived from, are cast."""
    moved = {one.owner for name, one in plan.names.items() if wanted[name] != one.window.dtype}
    derived = {
        owner: how
        for owner, how in plan.derived.items()
        if owner in moved or (how.window is not None and how.window.storage in moved)
    }
    if not derived:
        return plan
    more = tuple(whole(owner, plan.names[owner].source) for owner in derived)
    rest = omit(plan.derived, derived)
    return replace(plan, targets=plan.targets + more, derived=rest)


def _apart(plan: Plan, wanted: Mapping[str, DType]) -> Plan:
    """The plan with names that share bytes only because these are equal stored apart where their types differ."""
    on = grouped((one.owner, name) for name, one in plan.names.items())
    names = dict(plan.names)
    targets: list[Target] = []
    for target in plan.targets:
        targets.append(target)
        members = on.get(target.name, [])
        stays = wanted.get(target.name)
        if stays is None:
            continue
        by_type = grouped((wanted[name], name) for name in members)
        for dtype, moving in by_type.items():
            sets = {names[name].alias_set for name in moving}
            rest = {names[name].alias_set for name in members if name not in moving}
            first = next((name for name in moving if names[name].window == target.view), None)
            if dtype == stays or sets & rest or first is None:
                continue
            targets.append(target.called(first))
            for name in moving:
                one = names[name]
                evidence = one.set_evidence if one.alias_set == names[first].alias_set else "content"
                names[name] = one._replace(window=replace(one.window, storage=first), evidence=evidence)
    return replace(plan, targets=tuple(targets), names=names)
