"""Finds the recurrent networks of a checkpoint: by what the file says, and by names and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase

from paramtool import layouts
from paramtool.errors import FormatError, LayoutError, UsageError, plural
from paramtool.layouts.layout import Layout
from paramtool.layouts.names import foreign_names
from paramtool.layouts.networks import Network, arithmetic, modules, named, network, refuse_unsaid, squeezed
from paramtool.layouts.spec import Facts, merged, parse, whole
from paramtool.lazy_dataclass import frozen
from paramtool.model import alias
from paramtool.model.checkpoint import GRAPH, Checkpoint, Compound, Module, NoData, Unreadable
from paramtool.model.objects import TensorRef
from paramtool.model.view import Shapes, View
from paramtool.passes.rnn import beside
from paramtool.passes.rnn.convert import BUFFER, PARTS, fused_networks, kept_off


@frozen
class NetworkRequest:
    """Which networks the user asks for."""

    layout: str | None
    """The layout, with options; None for what the file says, else torch's names."""
    facts: Facts
    """What the user says about them (--spec)."""
    at: tuple[str, ...]
    """Modules, or patterns that each match one module; empty for all."""
    described: bool = False
    """If the file itself describes networks, find only these."""
    ignore: tuple[str, ...] = ()
    """Patterns of names in a network's module that may be ignored although nothing accounts for them."""
    lenient: bool = False
    """Take networks of which a fact that must not be assumed was not given, too: see `Network.lacking`."""


@frozen
class Found:
    """A network that was found."""

    network: Network
    parts: str = ""
    """The layout of the parts that it was fused from, as the file says."""
    shapes: Shapes = field(default_factory=dict)
    """As in `Module.shapes`."""
    ignored: tuple[str, ...] = ()
    """Names in its module that are not converted, on request."""
    doubt: str = ""
    """Why its names prove little, if they are not those of the library that wrote the file."""

    def is_kept(self, name: str) -> bool:
        """Whether a tensor holds what an earlier conversion of this network kept."""
        return kept_off(self.network.at, name) is not None


def find(checkpoint: Checkpoint, wanted: NetworkRequest) -> list[Found]:
    """The networks that the user asks for.

    LayoutError or UsageError says what was not found, what matches several networks, and which tensor in a network's
    module nothing accounts for.
    """
    held = checkpoint.entries
    if unused := [p for p in wanted.ignore if p not in held and not any(fnmatchcase(name, p) for name in held)]:
        raise UsageError(f"{checkpoint.path}: --ignore {unused[0]!r} matches no tensor")
    # A checkpoint without what optimizers keep: that of optax has the names of the parameters, and is no network.
    # Nor are the constants of a graph.
    entries = {name: entry for name, entry in checkpoint.entries.items() if entry.role not in ("optimizer", GRAPH)}
    checkpoint = (
        replace(checkpoint, entries=entries) if entries and len(entries) < len(checkpoint.entries) else checkpoint
    )
    seen = beside.unwrapped(checkpoint)
    found, candidates = _find(seen.checkpoint, wanted)
    networks = [seen.in_file(one.network) for one in found]
    others = [(one.layout, one.at) for one in candidates]
    taken = {name for one in networks for name in (*one.tensors.values(), *one.raw.values())}
    return [
        replace(one, network=made, ignored=tuple(beside.ignored(checkpoint, made, taken, others, ignore=wanted.ignore)))
        for one, made in zip(found, networks, strict=True)
    ]


def described(checkpoint: Checkpoint) -> tuple[list[Network], list[str]]:
    """The networks that a file describes itself, whatever of them it does not say; and why others are not networks."""
    shapes = checkpoint.shapes()
    found: list[Network] = []
    others: list[str] = []
    for module in checkpoint.modules:
        if module.refused:
            others.append(f"{module.at!r} {module.refused}")
            continue
        facts = whole(parse(module.spec))
        try:
            layout = layouts.find(module.layout)
            found.append(network(layout, module.options, module.at, shapes, facts=facts, tensors=module.tensors))
        except (LayoutError, UsageError) as error:
            others.append(error.message)
    return found, others


def _find(checkpoint: Checkpoint, wanted: NetworkRequest) -> tuple[list[Found], list[_PossibleNetwork]]:
    """The networks that the user asks for, and every module that could be a network."""
    where = checkpoint.path
    family, options = _family(wanted.layout)
    candidates = _candidates(checkpoint, family, options, wanted)
    if any(layout.name in beside.WRAPPED for layout in family):
        beside.refuse_wrapped(checkpoint, wanted.at, wanted.ignore)
    if wanted.at:
        chosen = [
            _match(where, pattern, candidates, checkpoint, family=family, options=options) for pattern in wanted.at
        ]
    else:
        chosen = [one for one in candidates if one.layout.names_identify or one.module]
        if wanted.described and wanted.layout is None:
            chosen = [one for one in chosen if one.module] or chosen
        _refuse_halves(where, checkpoint, candidates, wanted)
        if not chosen and any(layout.name == BUFFER for layout in family):
            # Networks whose parts are windows of one buffer in the wanted layout: they are separate tensors already
            buffers = fused_networks(checkpoint, alias.build(checkpoint)).values()
            chosen = [_PossibleNetwork(one.at, layouts.find(PARTS), {}) for one in buffers]
        chosen = (
            chosen
            or _separate(where, checkpoint, family, wanted.described)
            or _vectors(where, checkpoint, family, options, facts=wanted.facts)
        )
    if not chosen:
        raise LayoutError(_nothing(checkpoint, wanted, family, candidates), hint=_how_to_say(checkpoint, candidates))
    found: dict[tuple[str, ...], Found] = {}
    owner: dict[str, _PossibleNetwork] = {}
    for one in chosen:
        try:
            made = one.read(checkpoint, wanted.facts, wanted.lenient)
        except (FormatError, LayoutError, UsageError) as error:
            raise error.located(where, one.notes(checkpoint)) from None
        # LayoutError if two networks would have the same tensor, unless the file itself says so
        for name in made.network.tensors.values():
            other = owner.setdefault(name, one)
            if other.at != one.at and not (other.module and one.module):
                raise LayoutError(
                    f"{where}: {name!r} would be a part of two networks, {other.at!r} and {one.at!r}",
                    hint="choose one with --at",
                )
        at = one.at if one.module else ""  # nodes that use the same tensors are networks of their own
        found.setdefault((at, *sorted(made.network.tensors.values())), made)
    return list(found.values()), candidates


def _refuse_halves(
    where: str, checkpoint: Checkpoint, candidates: list[_PossibleNetwork], wanted: NetworkRequest
) -> None:
    """Beside whole networks, half of another network is an error: it would be skipped without a message."""
    if not candidates or wanted.layout not in (None, PARTS):
        return
    layout, taken = layouts.find(PARTS), {one.at for one in candidates}
    ends = ("weight_ih_l0", "weight_hh_l0")
    described = {name for one in candidates if one.module for name in one.module.tensors.values()}
    for name in checkpoint.entries:
        at = name.rpartition(".")[0]
        if name.endswith(ends) and at not in taken and name not in described:
            lacking = next(end for end in ends if not name.endswith(end))
            if f"{at}.{lacking}".lstrip(".") not in checkpoint.entries:
                message = f"{where}: {name!r} is half of a network of layout {layout.name}: {lacking!r} is missing"
                raise LayoutError(message, hint="--at MODULE converts the others")


def _separate(where: str, checkpoint: Checkpoint, family: list[Layout], unfusing: bool) -> list[_PossibleNetwork]:
    """Networks that are separate tensors already, if a layout of flat vectors is wanted and there is no such vector."""
    layout = layouts.find(PARTS)
    shapes = checkpoint.shapes()
    found = modules(layout, {}, shapes) if _of_one_tensor(family) else []
    vectors = (name for name, view in checkpoint.views().items() if _is_vector(view))
    if not found or not all(named(layout, name) & set(found) for name in vectors):
        return []
    if not unfusing:
        there = ", ".join(repr(at) if at else "the network at the top" for at in found[:8])
        have = "has" if len(found) == 1 else "have"
        raise LayoutError(
            f"{where}: no flat vector of layout {family[0].name}: {there} {have} separate tensors",
            hint=f"use --from {PARTS}, or no --from",
        )
    return [_PossibleNetwork(at, layout, {}) for at in found]


def _vectors(
    where: str, checkpoint: Checkpoint, family: list[Layout], options: Mapping[str, str], *, facts: Facts
) -> list[_PossibleNetwork]:
    """The only tensor that can be the flat vector of a layout, under any name."""
    flat = _of_one_tensor(family)
    lengths = {name: view.numel for name, view in checkpoint.views().items() if _is_vector(view)}
    if not flat or not lengths:
        return []
    found = [_vector(name, flat[0], options, checkpoint) for name in lengths]

    def reads(one: _PossibleNetwork) -> bool:
        try:
            one.read(checkpoint, facts)
        except (FormatError, LayoutError, UsageError):
            return False
        return True

    fit = found if len(found) == 1 else [*filter(reads, found)]
    if len(fit) != 1:
        there = ", ".join(f"{name!r} ({length})" for name, length in list(lengths.items())[:8])
        what = plural(fit, "vector fits", "vectors fit") if fit else "no vector fits"
        counted = f": {words}" if (words := arithmetic(flat[0], options, facts)) else ""
        message = f"{where}: {what} as a network of layout {flat[0].name}{counted}; vectors: {there}"
        raise LayoutError(message, "choose one with --at")
    return fit


def _of_one_tensor(family: list[Layout]) -> list[Layout]:
    """The layouts that store a whole network, or layer, in one tensor."""
    return [layout for layout in family if layout.is_of_one_tensor]


def _is_vector(view: View) -> bool:
    """Whether a tensor has one axis, not counting axes of length 1."""
    return bool(view.shape) and len(squeezed(view.shape)) <= 1


VECTORS = frozenset(
    ("weights", "weight", "flat_weights", "_flat_weights", "flat_weight", "flat", "params", "param", "parameters")
)
"""Names of a network's flat vector inside its module.  The last is MXNet's name, `_flat_weights` is torch's attribute;
the others are names that programs choose."""


def _vector(name: str, layout: Layout, options: Mapping[str, str], checkpoint: Checkpoint) -> _PossibleNetwork:
    """A flat vector as a network of a layout with a single tensor."""
    own = layout.forms[0].tensors[0].name
    words = [word for word in (own, *VECTORS) if name == word or name.endswith((f".{word}", f"/{word}"))]
    if name.endswith(layout.separator + own):
        words.insert(0, own)
    at = name.removesuffix(words[0])[:-1] if words else name
    if isinstance(checkpoint.objects, TensorRef):  # a file that holds only this tensor has no name for it
        at = ""
    return _PossibleNetwork(at, layout, options, None, {own: name})


def _family(layout: str | None) -> tuple[list[Layout], dict[str, str]]:
    """The layouts to search for: the given layout and its variants, or torch's own if none is given."""
    if layout is None:
        return [layouts.find("torch"), layouts.find("torch.cell")], {}
    name, options = layouts.parse(layout)
    return layouts.family(name), options


@frozen
class _PossibleNetwork:
    """A module that could be a network of a layout."""

    at: str
    layout: Layout
    options: Mapping[str, str]
    module: Module | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)

    def read(self, checkpoint: Checkpoint, facts: Facts, lenient: bool = False) -> Found:
        """The network; LayoutError if the module is not a network."""
        if self.module and self.module.refused:
            raise LayoutError(f"{self.at!r}: {self.module.refused}", hint="--at MODULE converts others")
        everything = merged(("the file", self._said()), ("--spec", facts))
        options = {**(self.module.options if self.module else {}), **self.options}
        # LayoutError if the user did not give a fact that the file leaves open.
        module = self.module
        words = [word for word in module.unsure if word.partition("=")[0] not in everything] if module else []
        if words:
            hint = f'add --spec "{words[0]}" if the network uses the default'
            if len(words) > 1:
                choices = " or ".join(f'--spec "{word}"' for word in words)
                hint = f"add {choices}, as the network was trained"
            raise LayoutError(f"{self.at!r}: the file does not say its {words[0].partition('=')[0]}", hint=hint)
        shapes = checkpoint.shapes()
        # LayoutError for quantised tensors and tensors without data, which cannot be converted
        for name, entry in checkpoint.entries.items():
            match entry.value:
                case Compound(kind=kind):
                    what = f"is a {kind} tensor"
                case NoData(why=why):
                    what = f"is a {why} tensor: the file holds no data for it"
                case Unreadable(needs=needs):
                    what = f"cannot be read without calling {needs}, which paramtool never does"
                case _:
                    continue
            if self.at in named(self.layout, name):
                hint = "dequantise the network first; --at MODULE converts others"
                raise LayoutError(f"{name!r}: {what}; expected a plain tensor", hint)
        tensors = (self.module.tensors if self.module else {}) or self.tensors
        if missing := [f"{own!r} is {name!r}" for own, name in tensors.items() if name not in shapes]:
            raise LayoutError(f"{self.at!r}: the file says that {missing[0]}, which is not a plain tensor in it")
        known = {option.name for option in self.layout.options}
        if self.module and (unknown := self.module.options.keys() - known):
            raise FormatError(
                f"{self.at!r}: the file gives the option {min(unknown)!r}, which layout {self.layout.name} lacks",
                hint="give the right options with --from LAYOUT:OPTION=VALUE" if self.layout.options else "",
            )
        made = network(self.layout, options, self.at, shapes, facts=everything, tensors=tensors)
        # Names can look like a network that the file itself describes in a way that no spec can express.
        for other in checkpoint.modules:
            if other.refused and not {*made.tensors.values()}.isdisjoint(other.tensors.values()):
                raise LayoutError(f"{other.at!r}: {other.refused}", hint="--at MODULE converts others")
        if not lenient:
            refuse_unsaid(made)
        if self.module:
            return Found(made, self.module.parts, self.module.shapes)
        is_known = self.layout.name in layouts.built_in()
        return Found(made, doubt=foreign_names(self.layout.name, checkpoint.format) if is_known else "")

    def _said(self) -> Facts:
        """What the file says about the network; FormatError if that is not a spec."""
        if self.module is None:
            return {}
        try:
            return whole(parse(self.module.spec))
        except UsageError as error:
            raise FormatError(
                f"{self.at!r}: the file describes it by an invalid spec: {error.message}", error.hint
            ) from None

    def notes(self, checkpoint: Checkpoint) -> str:
        """The reader's notes about this module, to append to an error, such as why it has no tensors."""
        source = self.module.source if self.module and not self.module.refused else ""
        return "".join(f"; {note}" for note in checkpoint.notes if source and note.startswith(f"{source}: "))


def _candidates(
    checkpoint: Checkpoint, family: list[Layout], options: Mapping[str, str], wanted: NetworkRequest
) -> list[_PossibleNetwork]:
    """The networks that the file describes, then those that names look like."""
    known = {layout.name: layout for layout in (layouts.all_layouts() if wanted.layout is None else family)}
    said = [m for m in checkpoint.modules if m.layout in known]
    found = [_PossibleNetwork(m.at, known[m.layout], options, m) for m in said]
    claimed = set() if wanted.at else set(_described(checkpoint, said, known))
    shapes = {name: () for name in checkpoint.entries if name not in claimed}  # others are reported
    taken = {one.at for one in found}
    for layout in family:
        chosen = layout.chosen({k: v for k, v in options.items() if k in {o.name for o in layout.options}})
        mine = {k: v for k, v in options.items() if k in chosen}
        for at in modules(layout, chosen, shapes):
            if at not in taken or not layout.names_identify:
                found.append(_PossibleNetwork(at, layout, mine))
                taken.add(at)
    accepted = {option.name for layout in family for option in layout.options}
    if unknown := options.keys() - accepted:
        there = ", ".join(sorted(accepted)) or "none"
        raise UsageError(f"layout {family[0].name} has no option {min(unknown)!r}; its options: {there}")
    return found


def _described(checkpoint: Checkpoint, said: list[Module], known: Mapping[str, Layout]) -> Iterator[str]:
    """The names of the networks that the file itself describes."""
    for module in said:
        yield from module.tensors.values()
    following = {(module.layout, module.at) for module in said if not module.tensors}
    for layout in {layout for layout, _ in following}:
        for name in checkpoint.entries:
            if any((layout, at) in following for at in named(known[layout], name)):
                yield name


def _match(
    where: str, pattern: str, candidates: list[_PossibleNetwork], checkpoint: Checkpoint, *, family: list[Layout],
    options: Mapping[str, str],
) -> _PossibleNetwork:  # fmt: skip
    """The only candidate that a pattern matches."""
    exact = [one for one in candidates if one.at == pattern]
    matched = exact or [one for one in candidates if fnmatchcase(one.at, pattern)]
    ats = list(dict.fromkeys(one.at for one in matched))
    if len(ats) > 1:
        raise UsageError(f"{where}: --at {pattern!r} matches {len(ats)} modules: {', '.join(map(repr, ats[:8]))}")
    if matched:
        return min(matched, key=lambda one: (one.module is None, not one.layout.names_identify))
    if pattern in checkpoint.entries and (flat := _of_one_tensor(family)):  # a flat vector under a name of its own
        return _vector(pattern, flat[0], options, checkpoint)
    for layout in family:  # with a part of a network, an error can name what is missing
        if any(pattern in named(layout, name) for name in checkpoint.entries):
            return _PossibleNetwork(pattern, layout, {k: v for k, v in options.items() if k in layout.chosen({})})
    there = ", ".join(dict.fromkeys(repr(one.at) for one in candidates)) or "none"
    raise UsageError(
        f"{where}: --at {pattern!r} matches no module of layout {family[0].name}; found: {there}",
        hint=f"paramtool guess {where} searches by names and shapes",
    )


def _nothing(
    checkpoint: Checkpoint, wanted: NetworkRequest, family: list[Layout], candidates: list[_PossibleNetwork]
) -> str:
    """The error if no network was found: what was searched for, and what the file has instead."""
    where, layout = checkpoint.path, wanted.layout or PARTS
    if candidates:
        ats = ", ".join(dict.fromkeys(repr(one.at) for one in candidates))
        return f"{where}: the names of layout {layout} do not show which modules are recurrent; they could be {ats}"
    parts = dict.fromkeys(at for name in checkpoint.entries for one in family for at in sorted(named(one, name)))
    why = "no module has both its input and its recurrent weights" if parts else "its names do not occur"
    there = [f"{at!r} has some of its names" for at in parts]
    there += [f"the file says that {module.at!r} is of layout {module.layout}" for module in checkpoint.modules]
    there += [f"{n!r} is {e.value.kind}" for n, e in checkpoint.entries.items() if isinstance(e.value, Compound)]
    more = "".join(f"; {text}" for text in there[:3])
    if wanted.layout is None:
        return f"{where}: no recurrent network was found: the file describes none, and {_NOT_TORCH[bool(parts)]}{more}"
    return f"{where}: no recurrent network of layout {layout} was found: {why}{more}"


_NOT_TORCH = {
    False: "it has no names of PyTorch's layers",
    True: "no module has both the input and the recurrent weights of PyTorch's layers",
}
"""Why nothing was found if no layout was given, by whether some of torch's names occur."""


def _how_to_say(checkpoint: Checkpoint, candidates: list[_PossibleNetwork]) -> str:
    where = checkpoint.path
    if candidates:
        return "choose one with --at MODULE"
    shapes = checkpoint.shapes()
    known = [one.name for one in layouts.all_layouts() if one.names_identify and modules(one, one.chosen({}), shapes)]
    if known:
        doubts = "".join(f"; {doubt}" for one in known[:1] if (doubt := foreign_names(one, checkpoint.format)))
        names = " or ".join(known)
        return f"its names occur in layout {names}: choose the layout with --from (unfuse: --layout){doubts}"
    return (
        f"`paramtool guess {where}` searches other layouts; or give the layout with --from (unfuse: --layout) and the "
        "module or tensor with --at"
    )
