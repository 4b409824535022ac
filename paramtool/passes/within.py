"""Networks within a checkpoint: which there are, and the plan that rewrites them and leaves everything else alone."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from paramtool import layouts
from paramtool.errors import FormatError, LayoutError, PlanError, UsageError, listed
from paramtool.layouts.layout import Layout
from paramtool.layouts.networks import Network, modules, named, network
from paramtool.layouts.spec import Facts, merged, parse, text
from paramtool.model import alias, objects
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, Module, NoData, Unreadable
from paramtool.model.plan import Alias, Plan, Target
from paramtool.model.view import View, contiguous, reshaped
from paramtool.passes import dedup
from paramtool.passes.relayout import Converted, convert, kept_name
from paramtool.passes.ties import Shared, shared


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
        return name.startswith(kept_name(self.network.at, "bias_"))


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
        raise LayoutError(_nothing(checkpoint, wanted, candidates), hint=_how_to_say(where, candidates))
    found: dict[tuple[str, ...], Found] = {}
    for one in chosen:
        try:
            made = one.read(checkpoint, wanted.facts)
        except (FormatError, LayoutError, UsageError) as error:
            raise type(error)(f"{where}: {error}{one.notes(checkpoint)}", error.hint) from None
        found.setdefault(tuple(sorted(made.network.tensors.values())), made)
    _refuse_shared(where, list(found.values()))
    return list(found.values())


def _refuse_shared(where: str, found: list[Found]) -> None:
    """A tensor is a part of one network."""
    owner: dict[str, str] = {}
    for one in found:
        for name in one.network.tensors.values():
            if owner.setdefault(name, one.network.at) != one.network.at:
                both = f"{owner[name]!r} and {one.network.at!r}"
                raise LayoutError(f"{where}: {name!r} would be a part of two networks, {both}", "--at says which")


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
        everything = merged(("the file", self._said()), ("--spec", facts))
        options = {**(self.module.options if self.module else {}), **self.options}
        shapes = {name: view.shape for name, view in checkpoint.views().items()}
        _refuse_others(self.at, self.layout, checkpoint)
        tensors = (self.module.tensors if self.module else {}) or self.tensors
        if missing := [f"{own!r} is {name!r}" for own, name in tensors.items() if name not in shapes]:
            raise LayoutError(f"{self.at!r}: the file says that {missing[0]}, which is no plain tensor in it")
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

    def _said(self) -> Facts:
        """What the file says of it; FormatError where that is no spec."""
        if self.module is None:
            return {}
        try:
            return parse(self.module.spec)
        except UsageError as error:
            raise FormatError(f"{self.at!r}: what the file says of it is no spec: {error}", error.hint) from None

    def notes(self, checkpoint: Checkpoint) -> str:
        """What the reader noticed about this module, to put behind an error: why it has no tensors, for one."""
        source = self.module.source if self.module else ""
        return "".join(f"; {note}" for note in checkpoint.notes if source and note.startswith(f"{source}: "))


def _refuse_others(at: str, layout: Layout, checkpoint: Checkpoint) -> None:
    """Quantised tensors, and those without data, cannot be moved."""
    for name, entry in checkpoint.entries.items():
        match entry.value:
            case Compound(kind=kind):
                what = f"is a {kind} tensor"
            case NoData(why=why):
                what = f"is a {why} tensor: the file holds no data for it"
            case Unreadable(needs=needs):
                what = f"needs {needs}, which is never called"
            case _:
                continue
        if at in named(layout, name):
            hint = "dequantise the network first; --at MODULE converts others"
            raise LayoutError(f"{name!r}: {what}; expected a plain tensor", hint)


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
    claimed = set() if wanted.at else {name for module in said for name in module.tensors.values()}
    shapes = {name: () for name in checkpoint.entries if name not in claimed}  # what is no plain tensor is told of
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
        return min(matched, key=lambda one: (one.module is None, not one.layout.telling))
    if pattern in checkpoint.entries:  # a flat vector under a name of its own
        flat = [layout for layout in family if len({row.name for form in layout.forms for row in form.tensors}) == 1]
        if flat:
            own = flat[0].forms[0].tensors[0].name
            at = pattern.removesuffix(own)[: -len(flat[0].separator)] if pattern.endswith(own) else pattern
            return _Candidate(at, flat[0], options, None, {own: pattern})
    for layout in family:  # a part of a network is there: what is missing can be said
        if any(pattern in named(layout, name) for name in checkpoint.entries):
            return _Candidate(pattern, layout, {k: v for k, v in options.items() if k in layout.chosen({})})
    there = ", ".join(dict.fromkeys(repr(one.at) for one in candidates)) or "none"
    raise UsageError(
        f"{where}: --at {pattern!r} matches no module of layout {family[0].name}; found: {there}",
        hint=f"paramtool guess {where} looks at names and shapes",
    )


def _nothing(checkpoint: Checkpoint, wanted: Wanted, candidates: list[_Candidate]) -> str:
    where, layout = checkpoint.files[0].path, wanted.layout or "torch"
    if candidates:
        ats = ", ".join(dict.fromkeys(repr(one.at) for one in candidates))
        return f"{where}: the names of layout {layout} do not show which modules are recurrent; they could be {ats}"
    said = dict.fromkeys(f"{module.at!r} is {module.layout}" for module in checkpoint.modules[:4])
    more = f"; the file says that {', '.join(said)}" if said else ""
    return f"{where}: no recurrent network of layout {layout} was found: its names do not occur{more}"


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
    everything = list(converted)
    converted = [one for one in everything if not _is_there(checkpoint, one)]
    whole = alias.build(checkpoint, parts=False)
    old = {name for one in converted for name in one.source.tensors.values()}
    consumed = old | _kept(checkpoint, converted) | _replaced(converted, whole)
    _refuse_clashes(checkpoint, converted, consumed - old if keep_names else consumed)
    windows = {name: entry for name, entry in checkpoint.entries.items() if keep_names and name in old}
    firsts = _firsts(checkpoint, converted)
    rest = replace(
        checkpoint,
        entries={name: entry for name, entry in checkpoint.entries.items() if name not in consumed},
        objects=objects.swap(checkpoint.objects, _swaps(firsts, consumed, windows)),
    )
    base = dedup.plan(rest, alias.build(rest, parts=False), skip_unsupported)
    made = shared(converted, whole)
    order = list(_order(checkpoint, base, firsts, windows))
    position = {name: k for k, name in enumerate(order)}
    new = [*made.aliases, *(_windows(checkpoint, converted, made) if keep_names else ())]
    aliases = sorted([*base.aliases, *new], key=lambda one: position[one.name])
    where = checkpoint.files[0].path
    plan = replace(
        base,
        targets=_sorted([*base.targets, *made.targets], aliases, position),
        aliases=tuple(aliases),
        order=tuple(order),
        modules=(*_other_modules(checkpoint, everything), *map(_module, everything)),
        requires=tuple(replace(one, message=f"{where}: {one.message}") for c in everything for one in c.requires),
    )
    return plan, Outcome(
        rest=rest,
        untouched={name: rest.entries[name] for name in base.order},
        windows=windows,
        made=frozenset(name for new in firsts.values() for name in new),
        warnings=(
            *_assumptions(everything),
            *(f"{_where(one)}: is in layout {one.layout.name} already" for one in everything if one not in converted),
            *_lost(checkpoint, consumed, made, whole),
        ),
    )


def _is_there(checkpoint: Checkpoint, one: Converted) -> bool:
    """Whether a network has its new layout already, under the names that it shall have: it stays as it is."""
    if one.kept or one.tensors != one.source.tensors or _kept(checkpoint, [one]):
        return False
    views = {target: view for target in one.targets if (view := checkpoint.views().get(target.name))}
    if any((target.shape, target.dtype) != (view.shape, view.dtype) for target, view in views.items()):
        return False
    if (one.layout.name, one.options) == (one.source.layout.name, one.source.options):
        return True
    return all(_one_window(target, view) == view for target, view in views.items())


def _replaced(converted: list[Converted], whole: AliasGraph) -> set[str]:
    """Names that stand for new tensors already: windows on a fused one, as `--keep-names` records them."""
    found: set[str] = set()
    for one in converted:
        memories = {whole.members[name].memory for name in one.source.tensors.values()}
        for target in one.targets:
            member = whole.members.get(target.name)
            if member and member.memory in memories and _one_window(target, member.source) == member.source:
                found.add(target.name)
    return found


def _new(converted: Converted) -> list[str]:
    """The names that a conversion makes."""
    return [target.name for target in (*converted.targets, *converted.kept)]


def _kept(checkpoint: Checkpoint, converted: list[Converted]) -> set[str]:
    """What earlier conversions kept for these networks."""
    kept = tuple(kept_name(one.source.at, "bias_") for one in converted)
    return {name for name in checkpoint.entries if name.startswith(kept)}


def _firsts(checkpoint: Checkpoint, converted: list[Converted]) -> dict[str, list[str]]:
    """{the first old name of a network: its new names}."""
    rank = {name: k for k, name in enumerate(checkpoint.entries)}
    firsts: dict[str, list[str]] = {}
    for one in converted:
        first = min(one.source.tensors.values(), key=rank.__getitem__)
        firsts.setdefault(first, []).extend(_new(one))
    return firsts


def _swaps(firsts: Mapping[str, list[str]], consumed: set[str], windows: Container[str]) -> dict[str, tuple[str, ...]]:
    """What stands in the tree of objects for each old name."""
    swaps = {name: (name,) if name in windows else () for name in consumed}
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


def _windows(checkpoint: Checkpoint, converted: list[Converted], new: Shared) -> Iterator[Alias]:
    """The old names as windows on the new tensors; PlanError where one is none."""
    for one in converted:
        views = {t.name: contiguous(t.name, t.dtype, t.shape) for t in one.targets}
        made = Network(one.at, one.layout, one.form, one.spec, one.options, one.tensors)
        back = convert(made, views, one.source.layout, one.source.options, one.source.at)
        by_tensor = dict(zip(back.tensors, back.targets, strict=True))
        for own, name in one.source.tensors.items():
            value = checkpoint.entries[name].value
            assert isinstance(value, View)
            view = _one_window(by_tensor[own], value)
            if view is None:
                raise PlanError(
                    f"{checkpoint.files[0].path}: {name!r} is no window on the tensors of layout {one.layout.name}: order or values differ",
                    hint="without --keep-names the old names are left out; dedup a file of both to keep both",
                )
            whole = contiguous(view.storage, view.dtype, by_tensor[own].shape)
            relation = "same" if view == whole else "slice" if view.is_contiguous else "view"
            at = new.placed[str(view.storage)]
            evidence = "declared" if at.memory == at.owner else "content"
            yield Alias(name, replace(view, storage=at.owner), at.memory, evidence, "declared", relation)


def _one_window(target: Target, wanted: View) -> View | None:
    """The window that a target is a copy of, in the shape that is wanted; None where it is not just one."""
    copies = target.copies
    if len(copies) != 1 or not copies[0].is_plain or not copies[0].destination.is_contiguous:
        return None
    view = reshaped(copies[0].terms[0][1], wanted.shape)
    return view if view is not None and view.dtype == wanted.dtype else None


def _order(
    checkpoint: Checkpoint, base: Plan, firsts: Mapping[str, list[str]], windows: Mapping[str, Entry]
) -> Iterator[str]:
    """Every name of the output: new ones where the first old one stood."""
    kept = {*base.order, *windows}
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
    unseen = [fact for fact in (*one.layout.unsaid, *one.layout.must_say) if one.spec.kind != "rnn"]
    return Module(one.at, one.layout.name, text(one.spec, unseen), {}, dict(one.options), source)


def _where(one: Converted) -> str:
    return repr(one.source.at) if one.source.at else "the network"


def _assumptions(converted: list[Converted]) -> Iterator[str]:
    """What was taken for granted."""
    for one in converted:
        for fact, other in one.source.assumed:
            yield f"{_where(one)}: assumed {fact}, which no tensor shows; {other} says otherwise"
        if one.spec.kind == "rnn" and not one.spec.activation:
            unsure = "no tensor shows whether its activation is tanh or relu"
            yield f'{_where(one)}: {unsure}; --spec "activation=..." records it'


def _lost(checkpoint: Checkpoint, consumed: set[str], made: Shared, whole: AliasGraph) -> Iterator[str]:
    """What was one and is not any more."""
    memories = {whole.members[name].memory for name in consumed if name in whole.members}
    apart = [n for n, m in whole.members.items() if n not in consumed and m.memory in memories]
    if apart:
        yield (
            f"{len(apart)} other names share memory with converted tensors and keep the old ones, untied: "
            + ", ".join(map(repr, apart[:4]))
        )
    if lost := list(dict.fromkeys(made.lost)):
        yield (
            f"{len(lost)} names that share memory go to different places of the new tensors, untied: "
            + ", ".join(map(repr, lost[:4]))
        )
    if any(entry.role == "optimizer" for name, entry in checkpoint.entries.items() if name not in consumed):
        yield "the optimizer's state is left as it is: it goes with the old tensors and does not fit the new ones"
