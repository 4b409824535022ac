"""Networks within a checkpoint: which there are, and the plan that rewrites them and leaves everything else alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from paramtool import layouts
from paramtool.errors import LayoutError, PlanError, UsageError, listed
from paramtool.layouts.layout import Layout
from paramtool.layouts.networks import Network, modules, network
from paramtool.layouts.spec import Facts, merged, parse, text
from paramtool.model import alias, objects
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, Module
from paramtool.model.plan import Alias, Plan, Target
from paramtool.model.view import View, contiguous, reshaped
from paramtool.passes import dedup
from paramtool.passes.relayout import Converted, convert, kept_name


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which networks are asked for."""

    layout: str | None
    """With options; None for what the file says, else torch's names."""
    facts: Facts
    """What the user says of them."""
    at: tuple[str, ...]
    """Modules, or patterns that match one each; empty for all."""


@dataclass(frozen=True, slots=True)
class Found:
    """A network that was found, and why it is taken for one."""

    network: Network
    why: str

    def is_kept(self, name: str) -> bool:
        """Whether a tensor holds what an earlier conversion of this network kept."""
        return name.startswith(kept_name(self.network.at, ""))


def find(checkpoint: Checkpoint, wanted: Wanted) -> list[Found]:
    """The networks that are asked for; LayoutError or UsageError says what was not found, or fits several times."""
    where = checkpoint.files[0].path
    family, options = _family(wanted.layout)
    candidates = _candidates(checkpoint, family, options, wanted)
    if wanted.at:
        chosen = [_match(where, pattern, candidates, checkpoint, family, options) for pattern in wanted.at]
    else:
        chosen = [one for one in candidates if one.layout.telling or one.module]
    if not chosen:
        raise LayoutError(_nothing(where, wanted, candidates), hint=_how_to_say(where, candidates))
    found: dict[tuple[str, ...], Found] = {}
    for one in chosen:
        try:
            made = one.read(checkpoint, wanted.facts)
        except (LayoutError, UsageError) as error:
            raise type(error)(f"{where}: {error}{one.notes(checkpoint)}", error.hint) from None
        found.setdefault(tuple(sorted(made.network.tensors.values())), made)
    return list(found.values())


def _family(layout: str | None) -> tuple[list[Layout], dict[str, str]]:
    """The layouts that are looked for: one and its schemes, or torch's own where nobody says."""
    if layout is None:
        return [layouts.find("torch"), layouts.find("torch.cell")], {}
    name, options = layouts.parse(layout)
    return layouts.family(name), options


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A module that could be a network of a layout."""

    at: str
    layout: Layout
    options: Mapping[str, str]
    module: Module | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)

    def read(self, checkpoint: Checkpoint, facts: Facts) -> Found:
        """The network; LayoutError where it is none."""
        said = parse(self.module.spec) if self.module else {}
        everything = merged(("the file", said), ("--spec", facts))
        options = {**(self.module.options if self.module else {}), **self.options}
        shapes = {name: view.shape for name, view in checkpoint.views().items()}
        _refuse_compounds(self.at, checkpoint)
        tensors = (self.module.tensors if self.module else {}) or self.tensors
        known = {option.name for option in self.layout.options}
        made = network(
            self.layout,
            {k: v for k, v in options.items() if k in known or not self.module},
            self.at,
            shapes,
            everything,
            tensors,
        )
        source = (
            f"the file says so ({self.module.source})" if self.module and self.module.source else "the file says so"
        )
        return Found(made, source if self.module else f"names and shapes of {self.layout.name}")

    def notes(self, checkpoint: Checkpoint) -> str:
        """What the reader noticed about this module, to put behind an error: why it has no tensors, for one."""
        source = self.module.source if self.module else ""
        return "".join(f"; {note}" for note in checkpoint.notes if source and note.startswith(f"{source}: "))


def _refuse_compounds(at: str, checkpoint: Checkpoint) -> None:
    """Quantised networks have no weights that could be moved."""
    for name, entry in checkpoint.entries.items():
        if isinstance(entry.value, Compound) and at and name.startswith(f"{at}."):
            raise LayoutError(
                f"{name!r}: is a {entry.value.kind} tensor; only plain tensors can be converted",
                hint="dequantise the network first",
            )


def _candidates(
    checkpoint: Checkpoint, family: list[Layout], options: Mapping[str, str], wanted: Wanted
) -> list[_Candidate]:
    """What the file says, then what names look like."""
    names = {layout.name: layout for layout in family}
    if wanted.layout is None:
        known = {layout.name: layout for layout in layouts.all_layouts()}
        said = [m for m in checkpoint.modules if m.layout in known]
    else:
        known = names
        said = [m for m in checkpoint.modules if m.layout in known]
    found = [_Candidate(m.at, known[m.layout], options, m) for m in said]
    if wanted.layout is None and found and not wanted.at:
        return found
    claimed = set() if wanted.at else {name for module in said for name in module.tensors.values()}
    shapes = {name: view.shape for name, view in checkpoint.views().items() if name not in claimed}
    taken = {one.at for one in found}
    for layout in family:
        chosen = layout.chosen({k: v for k, v in options.items() if k in {o.name for o in layout.options}})
        mine = {k: v for k, v in options.items() if k in chosen}
        for at in modules(layout, chosen, shapes):
            if at not in taken or not layout.telling:
                found.append(_Candidate(at, layout, mine))
                taken.add(at)
    _refuse_options(family, options)
    return found


def _refuse_options(family: list[Layout], options: Mapping[str, str]) -> None:
    known = {option.name for layout in family for option in layout.options}
    if unknown := options.keys() - known:
        there = ", ".join(sorted(known)) or "none"
        raise UsageError(f"layout {family[0].name} has no option {min(unknown)!r}; its options: {there}")


def _match(
    where: str, pattern: str, candidates: list[_Candidate], checkpoint: Checkpoint, family: list[Layout],
    options: Mapping[str, str],
) -> _Candidate:  # fmt: skip
    """The one candidate that a pattern means."""
    exact = [one for one in candidates if one.at == pattern]
    matched = exact or [one for one in candidates if fnmatchcase(one.at, pattern)]
    ats = list(dict.fromkeys(one.at for one in matched))
    if len(ats) > 1:
        raise UsageError(f"{where}: --at {pattern!r} matches {len(ats)} modules: {', '.join(map(repr, ats[:8]))}")
    if matched:
        return min(matched, key=lambda one: not one.layout.telling)
    if pattern in checkpoint.entries:  # a flat vector under a name of its own
        flat = [layout for layout in family if len({row.name for form in layout.forms for row in form.tensors}) == 1]
        if flat:
            own = flat[0].forms[0].tensors[0].name
            at = pattern.removesuffix(own)[: -len(flat[0].separator)] if pattern.endswith(own) else pattern
            return _Candidate(at, flat[0], options, None, {own: pattern})
    there = ", ".join(dict.fromkeys(repr(one.at) for one in candidates)) or "none"
    raise UsageError(
        f"{where}: --at {pattern!r} matches no module of layout {family[0].name}; found: {there}",
        hint=f"paramtool guess {where} looks at names and shapes",
    )


def _nothing(where: str, wanted: Wanted, candidates: list[_Candidate]) -> str:
    layout = wanted.layout or "torch"
    if candidates:
        ats = ", ".join(dict.fromkeys(repr(one.at) for one in candidates))
        return f"{where}: the names of layout {layout} do not show which modules are recurrent; they could be {ats}"
    return f"{where}: no recurrent network of layout {layout} was found: its names do not occur"


def _how_to_say(where: str, candidates: list[_Candidate]) -> str:
    if candidates:
        return "--at MODULE says which"
    return (
        f"paramtool guess {where} looks for others; --layout or --from says the layout, --at the module or the tensor"
    )


# --- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a plan makes of the names of the source."""

    rest: Checkpoint
    """Everything but the converted networks."""
    untouched: Mapping[str, Entry]
    """What is written as it is."""
    windows: Mapping[str, Entry]
    """Old names that are windows on new tensors."""
    made: frozenset[str]
    """New names."""
    warnings: tuple[str, ...]


def together(
    checkpoint: Checkpoint, converted: Iterable[Converted], keep_names: bool, skip_unsupported: bool = False
) -> tuple[Plan, Outcome]:
    """The plan that writes converted networks in the place of the old ones, and the rest as it is.

    Networks that are one in the source, because they share their memory, are one in the output.
    """
    converted = list(converted)
    consumed = _consumed(checkpoint, converted)
    _refuse_clashes(checkpoint, converted, set() if keep_names else consumed)
    firsts = _firsts(checkpoint, converted, consumed)
    rest = replace(
        checkpoint,
        entries={name: entry for name, entry in checkpoint.entries.items() if name not in consumed},
        objects=objects.swap(checkpoint.objects, _swaps(firsts, consumed, keep_names)),
    )
    base = dedup.plan(rest, alias.build(rest, parts=False), skip_unsupported)
    whole = alias.build(checkpoint, parts=False)
    targets, aliases = _shared(converted, whole)
    if keep_names:
        aliases += _windows(checkpoint, converted, aliases)
    order = list(_order(checkpoint, base, firsts, consumed, keep_names))
    position = {name: k for k, name in enumerate(order)}
    aliases = sorted([*base.aliases, *aliases], key=lambda one: position[one.name])
    plan = replace(
        base,
        targets=_sorted([*base.targets, *targets], aliases, position),
        aliases=tuple(aliases),
        order=tuple(order),
        modules=(*_other_modules(checkpoint, converted), *map(_module, converted)),
        requires=tuple(one for c in converted for one in c.requires),
    )
    return plan, Outcome(
        rest=rest,
        untouched={name: rest.entries[name] for name in base.order},
        windows={name: checkpoint.entries[name] for name in consumed} if keep_names else {},
        made=frozenset(name for new in firsts.values() for name in new),
        warnings=tuple(_warnings(checkpoint, converted, consumed, whole)),
    )


def _new(converted: Converted) -> list[str]:
    """The names that a conversion makes."""
    return [target.name for target in (*converted.targets, *converted.kept)]


def _consumed(checkpoint: Checkpoint, converted: list[Converted]) -> set[str]:
    """The names that conversions take away: tensors of networks, and what was kept for them."""
    found = {name for one in converted for name in one.source.tensors.values()}
    kept = tuple(kept_name(one.source.at, "bias_") for one in converted)
    return found | {name for name in checkpoint.entries if name.startswith(kept)}


def _firsts(checkpoint: Checkpoint, converted: list[Converted], consumed: set[str]) -> dict[str, list[str]]:
    """{the first old name of a network: its new names}."""
    rank = {name: k for k, name in enumerate(checkpoint.entries)}
    firsts: dict[str, list[str]] = {}
    for one in converted:
        first = min(one.source.tensors.values(), key=rank.__getitem__)
        firsts.setdefault(first, []).extend(_new(one))
    return firsts


def _swaps(firsts: Mapping[str, list[str]], consumed: set[str], keep_names: bool) -> dict[str, tuple[str, ...]]:
    """What stands in the tree of objects for each old name."""
    swaps = {name: (name,) if keep_names else () for name in consumed}
    return swaps | {first: (*new, *swaps[first]) for first, new in firsts.items()}


def _refuse_clashes(checkpoint: Checkpoint, converted: list[Converted], gone: set[str]) -> None:
    """A new name that stands for another tensor already is an error before anything is written."""
    taken = checkpoint.entries.keys() - gone
    clashes: list[str] = []
    for one in converted:
        clashes += [name for name in _new(one) if name in taken]
        taken = taken | set(_new(one))
    if clashes:
        lines = [f"{name!r} stands for another tensor already" for name in clashes]
        raise PlanError(
            listed(f"{checkpoint.files[0].path}: {len(clashes)} names of the new layout are taken:", lines),
            hint="--rename MODULE=OTHER puts the new tensors elsewhere",
        )


def _shared(converted: list[Converted], whole: AliasGraph) -> tuple[list[Target], list[Alias]]:
    """Targets, and those that are the same as another because their networks are: names on it.

    They share its memory where the networks do; where the source only stored equal bytes once, they do not.
    """
    seen: dict[object, tuple[str, tuple[str, ...]]] = {}
    targets: list[Target] = []
    aliases: list[Alias] = []
    for one in converted:
        memories = tuple(whole.members[name].memory for name in one.source.tensors.values())
        for target in (*one.targets, *one.kept):
            copies = tuple((replace(copy.destination, storage=0), copy.terms, copy.shift) for copy in target.copies)
            owner, theirs = seen.setdefault((target.dtype, target.shape, copies), (target.name, memories))
            if owner == target.name or not any(copy.terms for copy in target.copies):
                targets.append(target)
                continue
            tied = memories == theirs
            view = contiguous(owner, target.dtype, target.shape)
            memory, evidence = (owner, "storage") if tied else (target.name, "content")
            aliases.append(Alias(target.name, view, memory, evidence, "storage", "same"))
    return targets, aliases


def _windows(checkpoint: Checkpoint, converted: list[Converted], twins: list[Alias]) -> list[Alias]:
    """The old names as windows on the new tensors; PlanError where one is none."""
    owners = {alias.name: str(alias.view.storage) for alias in twins}
    found: list[Alias] = []
    for one in converted:
        views = {t.name: contiguous(owners.get(t.name, t.name), t.dtype, t.shape) for t in one.targets}
        made = Network(one.at, one.layout, one.form, one.spec, one.options, one.tensors)
        back = convert(made, views, one.source.layout, one.source.options, one.source.at)
        by_tensor = dict(zip(back.tensors, back.targets, strict=True))
        for own, name in one.source.tensors.items():
            value = checkpoint.entries[name].value
            assert isinstance(value, View)
            view = _one_window(by_tensor[own], value)
            if view is None:
                raise PlanError(
                    f"{name!r}: is no window on the tensors of layout {one.layout.name}: order or values differ",
                    hint="without --keep-names the old names are left out; dedup a file of both to keep both",
                )
            whole = contiguous(view.storage, view.dtype, by_tensor[own].shape)
            relation = "same" if view == whole else "slice" if view.is_contiguous else "view"
            found.append(Alias(name, view, str(view.storage), "declared", "declared", relation))
    return found


def _one_window(target: Target, wanted: View) -> View | None:
    """The window that a target is a copy of, in the shape that is wanted; None where it is not just one."""
    copies = target.copies
    if len(copies) != 1 or not copies[0].is_plain or not copies[0].destination.is_contiguous:
        return None
    view = reshaped(copies[0].terms[0][1], wanted.shape)
    return view if view is not None and view.dtype == wanted.dtype else None


def _order(
    checkpoint: Checkpoint, base: Plan, firsts: Mapping[str, list[str]], consumed: set[str], keep_names: bool
) -> Iterator[str]:
    """Every name of the output: new ones where the first old one stood."""
    kept = set(base.order) | (consumed if keep_names else set())
    for name in checkpoint.entries:
        yield from firsts.get(name, ())
        if name in kept:
            yield name


def _sorted(targets: list[Target], aliases: Iterable[Alias], position: Mapping[str, int]) -> tuple[Target, ...]:
    """Targets in the order of the names; a span stands where the first name on it does."""
    first: dict[str, int] = {}
    for one in aliases:
        first.setdefault(str(one.view.storage), position[one.name])
    return tuple(sorted(targets, key=lambda target: position.get(target.name, first.get(target.name, 0))))


def _other_modules(checkpoint: Checkpoint, converted: list[Converted]) -> Iterator[Module]:
    """What the file says of networks that stay as they are."""
    gone = {one.source.at for one in converted}
    yield from (module for module in checkpoint.modules if module.at not in gone)


def _module(one: Converted) -> Module:
    """What the output's record says of a network."""
    changes = "; ".join(dict.fromkeys(change.what for change in one.changes))
    source = f"converted from {one.source.layout.name}" + (f": {changes}" if changes else "")
    return Module(one.at, one.layout.name, text(one.spec), {}, dict(one.options), source)


def _warnings(
    checkpoint: Checkpoint, converted: list[Converted], consumed: set[str], whole: AliasGraph
) -> Iterator[str]:
    for one in converted:
        at = repr(one.source.at) if one.source.at else "the network"
        for fact in one.source.assumed:
            option = fact.partition("=")[0]
            other = f"--from {one.source.layout.name}:{option}=..."
            yield f"{at}: assumed {fact}, which no tensor shows; {other} says otherwise"
        if one.spec.kind == "rnn" and not one.spec.activation:
            yield f'{at}: no tensor shows whether its activation is tanh or relu; --spec "activation=..." records it'
    memories = {whole.members[name].memory for name in consumed}
    apart = [n for n, m in whole.members.items() if n not in consumed and m.memory in memories]
    if apart:
        yield (
            f"{len(apart)} other names share memory with converted tensors and keep the old ones, untied: "
            + ", ".join(map(repr, apart[:4]))
        )
    if any(entry.role == "optimizer" for name, entry in checkpoint.entries.items() if name not in consumed):
        yield "the optimizer's state is left as it is: it goes with the old tensors and does not fit the new ones"
