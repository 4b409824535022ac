"""Guessing what recurrent networks a checkpoint holds, where neither the file nor the user says.

Attention, gated MLPs and experts are found as `inspect` finds them (`seen_parts`), with the lines to type.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from paramtool import formats, layouts
from paramtool.commands.progress import Path, Progress, silent
from paramtool.commands.seen_parts import fused_place, seen_at
from paramtool.errors import LayoutError, ParamtoolError, UsageError, leading
from paramtool.formats.judging import judging
from paramtool.grouping import grouped
from paramtool.guessing import candidates, vectors
from paramtool.guessing.candidates import Guess, flat, spec_of
from paramtool.guessing.cells import as_toml
from paramtool.guessing.names import by_names
from paramtool.guessing.sets import by_shapes
from paramtool.layouts import pattern
from paramtool.layouts.layout import LayoutTensor, stored
from paramtool.layouts.names import flat_layout, foreign_names, homes
from paramtool.layouts.networks import network, to_be_said
from paramtool.layouts.spec import Facts, merged, parse, whole
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint, Module
from paramtool.model.config import reading
from paramtool.model.display import Displayed
from paramtool.model.view import Shape, Shapes, View
from paramtool.parts import families
from paramtool.parts.facts import KINDS, from_spec
from paramtool.passes.parts.seen_groups import SeenGroup
from paramtool.passes.rnn import beside
from paramtool.passes.rnn import convert as relayout_pass
from paramtool.passes.rnn.find import NetworkRequest, find

if TYPE_CHECKING:
    from paramtool.commands.progress import Path
    from paramtool.commands.rearrangement import Rearrangement
    from paramtool.commands.relayout_options import RelayoutOptions
    from paramtool.formats.folder.weight_names import Weights
    from paramtool.guessing.values import CandidateRegion, Sketch, Survey
    from paramtool.passes.parts.groups import SeenParts

SAID = 100.0
"""The score of what the file says."""
FLOATS = ("float16", "bfloat16", "float32", "float64")
"""Types that weights have."""
MAX_LOOK = 200
"""The most candidates of one place that are judged by values, the most plausible first."""
MAX_LOOK_NBYTES = 1 << 30
"""Tensors with more bytes are not read."""


@frozen
class Considered:
    """A place that was looked at."""

    at: str
    """The module or the tensor, as written for `--at`."""
    what: str
    """`vector` or `module`."""
    tensors: tuple[str, ...]
    """The names of its tensors."""
    fits: int
    """How many networks fit; more than are listed, where there are many."""
    listed: int
    """How many of these are among the candidates."""
    looked: bool
    """Whether values were read."""
    decide: tuple[str, ...] = ()
    """What has to be known before one of its networks can be taken; empty where one fits and nothing is assumed."""
    is_refused: bool = False
    """Whether `decide` says why no line can take it."""
    _members = "at what tensors fits looked decide"


class GuessedPlace(NamedTuple):
    """A place with its candidates."""

    place: Considered
    candidates: tuple[Guess, ...]


@frozen
class LayoutGuess:
    """A layout that a fused tensor could have."""

    layout: str
    spec: str
    """As `--spec` takes it, with `...` for facts that nobody said; empty if none are needed."""
    sure: str
    """`said`, or `possible`."""
    reasons: tuple[str, ...]


@frozen
class FusedGuess:
    """A fused tensor of attention, a gated MLP or experts, with the layouts that it could have."""

    group: SeenGroup
    candidates: list[LayoutGuess]
    _members = "at=group.at modules=group.modules kind=group.kind names=group.names decide=group.decides candidates"


class Refusal(NamedTuple):
    """A module of parts, and why no line can fuse them or take them apart."""

    at: str
    why: str


@frozen(repr=False)
class Guessed(Displayed):
    """What the networks of a checkpoint could be."""

    path: str
    """The checkpoint, as it was given."""
    checkpoint: Checkpoint
    """The checkpoint, described."""
    candidates: tuple[Guess, ...]
    """Place by place, the best first."""
    considered: tuple[Considered, ...]
    """In the order of the candidates."""
    commands: tuple[str, ...] = ()
    """Lines to type where nothing is left to decide, each of them tried: one for all networks, where one can."""
    parts: SeenParts | None = None
    """Attention, gated MLPs and experts, as `inspect` finds them; None if there are none."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """{module of parts: why no line can fuse them or take them apart}"""
    at: str | None = None
    """The module or the tensor that was asked about; None for all."""

    _facts = "`candidates`"

    @property
    def fused(self) -> tuple[SeenGroup, ...]:
        """Fused tensors of attention, gated MLPs and experts; `fused_guesses` lists the layouts of each."""
        groups = self.parts.groups if self.parts is not None else ()
        return tuple(one for one in groups if one.form == "fused")

    def fused_guesses(self) -> list[FusedGuess]:
        """The same, each with its candidates."""
        return [FusedGuess(one, part_layouts(one)) for one in self.fused]

    def refusals(self) -> list[Refusal]:
        """`refused`, one by one."""
        return [Refusal(*one) for one in self.refused.items()]

    def places(self) -> Iterator[GuessedPlace]:
        """Each place with its candidates."""
        start = 0
        for place in self.considered:
            yield GuessedPlace(place, self.candidates[start : start + place.listed])
            start += place.listed

    def toml(self, layout: str) -> str:
        """A file for `--layout-file` that gives cells with names of their own the gates of `layout`."""
        own = [one for one in self.candidates if one.cell and one.layout == layout]
        if not own:
            there = ", ".join(dict.fromkeys(one.layout for one in self.candidates if one.cell)) or "none"
            raise UsageError(f"{self.path}: no candidate with names of its own has layout {layout!r}; there: {there}")
        if len({one.at for one in own}) > 1:
            raise UsageError(f"{self.path}: several modules have names of their own; --at MODULE says which")
        return as_toml(own)

    _schema = "guess/2"
    _members = (
        "path format=checkpoint.format at commands places(*place candidates) parts? fused=fused_guesses+ "
        "refused=refusals+(at why)"
    )


@reading
@judging("path")
def guess(
    path: Path,
    at: str | None = None,
    limit: int = 20,
    *,
    spec: str = "",
    values: bool = True,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> Guessed:
    """Candidates for what the file does not say: flat vectors and sets of matrices, each with its reasons.

    `at` is a tensor or a module; without it, all model tensors.  At most `limit` candidates of each place are kept, of
    those that agree with `spec`.  With `values`, tensors of places where several fit are read, and that changes the
    order: it decides nothing.  A line to type is given where one candidate is left, nothing is assumed, and the line
    was tried.  UsageError where there is no such tensor and no such module; UnsafeError, `allow_class` and
    `allow_unknown` as of `read`.
    """
    if limit < 1:
        raise UsageError(f"--limit is {limit}; expected 1 or more")
    checkpoint = formats.read(path, allow_class=allow_class, allow_unknown=allow_unknown)
    is_of_parts = spec.split()[:1] in ([kind] for kind in KINDS)
    on = TriedOn(path, checkpoint, spec, values, allow_class, allow_unknown)
    parts = seen_at(checkpoint, at, from_spec(spec)[1].sizes if is_of_parts else {})
    # The weights as commands that write open them, when the first of the lines needs them.

    @cache
    def weights() -> Weights:
        from paramtool.commands.opening import opened

        return opened(on.path, None, silent, on)

    of_parts = PartsTries(on if is_of_parts else replace(on, spec=""), weights).all(parts, at)
    if is_of_parts or (at is not None and parts is not None):
        return Guessed(os.fspath(path), checkpoint, (), (), of_parts.lines, parts, of_parts.refused, at)
    facts = parse(spec)
    seen = beside.unwrapped(checkpoint).checkpoint  # weights from before weight dropout stand where they are read
    places = _ranked(seen, _places(seen, at, facts), values, progress)
    places = [(replace(place, decide=_decide(found, checkpoint.format)), found) for place, found in places]
    decided = [found[0] for place, found in places if found and not place.decide]
    tried = Tries(on).all(decided)
    places = [(_refused(place, found, tried.refused), found) for place, found in places]
    places += [(place, []) for place in _computed(seen, at)]
    kept = [one for _, found in places for one in found[:limit]]
    considered = [replace(place, listed=min(limit, place.fits)) for place, _ in places]
    lines = (*tried.lines, *of_parts.lines)
    return Guessed(os.fspath(path), checkpoint, tuple(kept), tuple(considered), lines, parts, of_parts.refused, at)


def _decide(found: Sequence[Guess], format: str) -> tuple[str, ...]:
    """What would decide which network a place is; nothing where one candidate is left that assumes nothing."""
    facts = candidates.deciding(found)
    if found:
        facts += found[0].unshown
        doubt = "" if found[0].cell or found[0].sure == "said" else foreign_names(found[0].layout, format)
        facts += [doubt] if doubt else []
    if len(found) == 1 and not found[0].tensors:
        facts.append("where its tensors are: the file describes the network, but not its tensors")
    return tuple(dict.fromkeys(facts))


def _refused(place: Considered, found: Sequence[Guess], refused: Mapping[str, str]) -> Considered:
    """A place that no line gives says why."""
    if place.decide or not found or found[0].at not in refused:
        return place
    return replace(place, decide=(f"unfuse refuses it: {_one_line(refused[found[0].at])}",), is_refused=True)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _computed(checkpoint: Checkpoint, at: str | None) -> Iterator[Considered]:
    """Modules whose weights are not stored, but what a wrapper computes them from."""
    for (module, own), names in beside.wrapped(checkpoint).items():
        if at in (None, module):
            error = beside.computed(checkpoint, module, own, names)
            text = _one_line(f"{error.message}; {error.hint}")
            yield Considered(module, "module", tuple(names), 0, 0, False, (text,), is_refused=True)


Places = list[tuple[Considered, list[Guess]]]


def _places(checkpoint: Checkpoint, at: str | None, facts: Facts) -> Places:
    """Candidates by place: what the file says, then names, then shapes, then vectors, as far as they agree."""
    refused = {name for one in checkpoint.modules if one.refused for name in one.tensors.values()}
    refused.update(name for names in beside.wrapped(checkpoint).values() for name in names)
    views = {name: view for name, view in _views(checkpoint, at).items() if name not in refused}
    shapes = {name: view.shape for name, view in views.items()}
    asked = at is not None
    described = [one for one in checkpoint.modules if not one.refused]
    modules = [one for one in described if at is None or one.at == at or set(one.tensors.values()) & {*shapes}]
    everything = checkpoint.shapes()
    at_home = homes(checkpoint.format)
    said = [_said(module, everything, facts) for module in modules]
    found = said + by_names(_without(shapes, said, views), asked, at_home, facts)
    found += by_shapes(_without(shapes, found, views), asked)
    places = grouped(((one.at, *sorted(one.tensors.values())), one) for one in candidates.narrowed(found, facts))
    made = [(Considered(key[0], "module", key[1:], len(ones), 0, False), ones) for key, ones in places.items()]
    made.sort(key=lambda place: not place[0].tensors)  # what cannot be typed comes after what can
    rest = _without(shapes, found, views)
    for name in vectors.vectors(rest, everything, asked and at in shapes):
        hints = vectors.hints(name, everything, flat_layout(checkpoint.format))
        fit = candidates.narrowed(flat(shapes[name][0], hints), facts)
        ones = [replace(one, tensors=_own(one.layout, name), unshown=_other_orders(one, at_home)) for one in fit]
        made.append((Considered(name, "vector", (name,), len(ones), 0, False), ones))
    return made


def _views(checkpoint: Checkpoint, at: str | None) -> dict[str, View]:
    """The tensors that are looked at: those of the model, or of what was asked for."""
    views = {name: view for name, view in checkpoint.views().items() if view.dtype.name in FLOATS}
    if at is None:
        return {name: view for name, view in views.items() if checkpoint.entries[name].role == "model"}
    if at in checkpoint.entries:
        if at not in views or len(views[at].shape) != 1:
            raise UsageError(
                f"{checkpoint.path}: {at!r} is not a one-dimensional tensor of floats, as a flat network is",
                hint="--at takes a vector, or the module of several tensors",
            )
        return {at: views[at]}
    inside = {name: view for name, view in views.items() if not at or re.match(r"[./_:]", name[len(at) :])}
    inside = {name: view for name, view in inside.items() if name.startswith(at)}
    if not inside and not any(module.at == at for module in checkpoint.modules):
        from difflib import get_close_matches

        homes = list(dict.fromkeys(word for name in views for word in (name, vectors.home_of(name)) if word))
        near = ", ".join(map(repr, get_close_matches(at, homes, 3, 0.5)))
        raise UsageError(
            f"{checkpoint.path}: there is no tensor {at!r}, and no module",
            hint=f"do you mean {near}?" if near else "`inspect --tensors` lists the names",
        )
    return inside


def _without(
    shapes: Shapes, found: Sequence[Guess], views: dict[str, View]
) -> dict[str, Shape]:  # fmt: skip
    """The tensors that belong to no candidate yet, by name or as another name of the same window."""
    names = {name for one in found for name in one.tensors.values()}
    windows = {views[name] for name in names if name in views}
    return {name: shape for name, shape in shapes.items() if name not in names and views[name] not in windows}


def _other_orders(one: Guess, homes: Sequence[str]) -> tuple[str, ...]:
    """Whose order of gates a vector of cuDNN's length could have, where the file may be of any library."""
    if homes or not one.layout.startswith("cudnn") or spec_of(one.spec).kind == "rnn" or one.layout.endswith("input"):
        return ()
    return ("i f g o and r z n (cudnn) or i f o g and z r n (miopen): whose GPU wrote the vector says which",)


def _said(module: Module, shapes: Shapes, facts: Facts) -> Guess:
    """What the file says of a network, with what its shapes add."""
    by_shape = module.source == "names and shapes"
    reasons = [f"from {module.source or 'the record in the file'}: {module.spec or module.layout}"]
    spec, tensors = module.spec, dict(module.tensors)
    unshown: list[str] = []
    try:
        layout = layouts.find(module.layout)
        options = {option.name for option in layout.options}
        mine = {key: value for key, value in module.options.items() if key in options}
        told = merged(("the file", whole(parse(module.spec))), ("--spec", facts))
        read = network(layout, mine, module.at, shapes, facts=told, tensors=module.tensors)
        spec, tensors = str(read.spec), dict(read.tensors)
        unshown = [candidates.unshown(fact, how) for fact, how in (*read.assumed, *to_be_said(read))]
        if module.unsure and (fact := module.unsure[0].partition("=")[0]) not in told:
            unshown.append(candidates.unshown(" or ".join(module.unsure), f'--spec "{fact}=..."'))
    except (LayoutError, UsageError) as error:
        reasons.append(f"it cannot be read as it is: {error.message}")
    return Guess(
        at=module.at,
        layout=module.layout,
        spec=spec,
        reasons=tuple(reasons),
        sure="names and shapes" if by_shape else "said",
        score=SAID,
        tensors=tensors,
        unshown=tuple(dict.fromkeys(unshown)),
    )


def _own(layout: str, name: str) -> dict[str, str]:
    """{the layout's name: the tensor} of a layout of one vector, or of TensorRT's two."""
    rows = layouts.find(layouts.parse(layout)[0]).forms[0].tensors
    if len(rows) == 1:
        return {rows[0].name: name}
    return {row.name: f"{name.removesuffix('weights')}{row.name}" for row in rows}


# --- values -----------------------------------------------------------------------------------------------------------


def _ranked(checkpoint: Checkpoint, places: Places, values: bool, progress: Progress) -> Places:
    """Each place with its candidates in order; values are read where more than one fits."""
    views = checkpoint.views()
    open_ = [
        k for k, (place, found) in enumerate(places)
        if values and len(found) > 1 and 0 < sum(views[name].nbytes for name in place.tensors) <= MAX_LOOK_NBYTES
    ]  # fmt: skip
    ranked = list(places)
    if open_:
        from paramtool.engine.read.source import Source

        total = sum(views[name].nbytes for k in open_ for name in places[k][0].tensors)
        with Source(checkpoint) as source, progress("look", total) as advance:
            for k in open_:
                place, found = places[k]
                # The candidates with what the values add to their scores; how sure they are stays as it is
                from paramtool.guessing.values import judge, survey

                first = sorted(found, key=lambda one: -one.score)
                sketches = [_sketch(one) for one in first[:MAX_LOOK]]
                cuts: dict[str, set[int]] = {}
                for sketch in sketches:
                    for region in sketch.regions:
                        cuts.setdefault(region.tensor, set()).update((region.start, region.stop))
                surveys: dict[str, Survey] = {
                    name: survey(source, views[name], sorted(inner), advance) for name, inner in cuts.items()
                }  # fmt: skip
                judged = [
                    replace(one, score=round(one.score + worth, 3), reasons=(*one.reasons, *reasons))
                    for one, (worth, reasons) in zip(first, judge(sketches, surveys), strict=False)
                ]
                ranked[k] = replace(place, looked=True), (judged + first[MAX_LOOK:])
    return [(place, sorted(found, key=lambda one: -one.score)) for place, found in ranked]


def _sketch(one: Guess) -> Sketch:
    """Where a candidate has its parts."""
    from paramtool.guessing.values import Sketch

    name, options = layouts.parse(one.layout)
    layout = layouts.find(name)
    spec = spec_of(one.spec)
    chosen = layout.chosen(options)
    form = layout.form(spec, chosen)
    tensors = [tensor for tensor in stored(layout, form, spec, chosen) if tensor.name in one.tensors]
    return Sketch(spec.hidden, tuple(r for tensor in tensors for r in _regions(tensor, one.tensors[tensor.name])))


def _regions(tensor: LayoutTensor, name: str) -> Iterator[CandidateRegion]:
    """The parts of one tensor: block by block of a vector, as a whole otherwise."""
    from paramtool.guessing.values import CandidateRegion

    if sum(size > 1 for size in tensor.shape) > 1:
        kinds = {kind for piece in tensor.pieces for kind in piece.block.kinds}
        size = prod(tensor.shape)
        if len(kinds) == 1 or kinds <= {"bW", "bR"}:
            yield CandidateRegion(name, 0, size, _kind(kinds))
        return
    for piece in tensor.pieces:
        size = prod(pattern.extent(piece.block, piece.lengths))
        cell = int(piece.binding.get("layer", 0)) * tensor.spec.directions + int(piece.binding.get("dir", 0))
        kinds = set(piece.block.kinds)
        if not kinds & set(tensor.spec.kinds()):
            yield CandidateRegion(name, piece.start, piece.start + size, "room", cell)
            continue
        gates = (piece.block.gates or tensor.form.gates) if kinds <= {"bW", "bR"} else " "
        each = size // len(gates)
        for k, gate in enumerate(gates):
            start = piece.start + k * each
            yield CandidateRegion(name, start, start + each, _kind(kinds), cell, gate.strip())


def _kind(kinds: set[str]) -> str:
    return "bias" if kinds <= {"bW", "bR"} else min(kinds)


# --- The layouts that a fused tensor of attention, a gated MLP or experts could have -------------------------------
#
# A shape leaves several.  The families that use the tensor's name, and the layout that each has for it, put them in
# order; nothing here decides.


MOST_FAMILIES = 4
"""The most families that a reason names."""


def part_layouts(group: SeenGroup) -> list[LayoutGuess]:
    """The candidates of a group of fused tensors, the most usual for its name first; one where something says it.

    >>> one = SeenGroup("h.*.attn", 1, "qkv", "fused", ("Wqkv",), layout="qkv", source="config.json (mpt)")
    >>> part_layouts(one)[0].reasons
    ('config.json (mpt) says so',)
    """
    if group.layout:
        return [LayoutGuess(group.layout, "", "said", (f"{group.source} says so",))]
    users = {fit.layout: list(_users(group, fit.layout)) for fit in group.fits}
    ordered = sorted(group.fits, key=lambda fit: -len(users[fit.layout]))
    return [
        LayoutGuess(
            fit.layout,
            f"{group.kind} {' '.join(f'{fact}=...' for fact in fit.needs)}" if fit.needs else "",
            "possible",
            (fit.why, *_named(group, users[fit.layout])),
        )
        for fit in ordered
    ]


def _users(group: SeenGroup, layout: str) -> Iterator[str]:
    """The model types that have a layout under the group's name."""
    key = families.EXPERTS if group.kind == "experts" else group.names[0]
    yield from (name for name, row in families.rows().items() if layout in row.get(key, ()))


def _named(group: SeenGroup, users: list[str]) -> Iterator[str]:
    if users:
        yield f"{', '.join(group.names)} of {leading(users, MOST_FAMILIES)}"


# --- The lines to type, each of them tried ---------------------------------------------------------------------------


@frozen
class TriedOn:
    """A checkpoint on which lines are tried, without writing anything, and what the user says of it."""

    path: Path
    checkpoint: Checkpoint
    spec: str
    """What the user says of all networks, or of all groups of parts."""
    values: bool
    """Whether bytes may be read for what a line requires of them."""
    allow_class: Sequence[str] = ()
    allow_unknown: bool = False

    @property
    def flags(self) -> list[str]:
        """The flags for what the file's pickles may hold, as they are typed."""
        allowed = [f"--allow-class {shlex.quote(name)}" for name in self.allow_class]
        return allowed + ["--allow-unknown"] * self.allow_unknown


class TypedCall(NamedTuple):
    """A call of `fuse`, `unfuse` or `convert`."""

    command: str
    layout: str = ""
    target: str = ""
    at: tuple[str, ...] = ()
    spec: str = ""
    where: str = ""
    """The module of the first group that it is for."""

    def text(self, path: str, allowed: Sequence[str] = (), output: str = "") -> str:
        """As it is typed; `allowed` are flags for what the file's pickles may hold."""
        words = [f"paramtool {self.command}", typed(path)]
        words += [f"--layout {self.layout}"] if self.layout else []
        words += [f"--to {self.target}"] if self.target else []
        words += [f"-o {typed(output)}"] if output else []
        words += [f"--at{'=' if one.startswith('-') else ' '}{shlex.quote(one)}" for one in self.at]
        return " ".join([*words, *([f'--spec "{self.spec}"'] if self.spec else []), *allowed])

    def options(self, on: TriedOn) -> RelayoutOptions:
        """The same, as the library takes it."""
        from paramtool.commands.relayout_options import RelayoutOptions

        is_back = self.command == "unfuse"
        return RelayoutOptions(
            source=(self.layout if is_back else "") or None,
            target=self.target or ("" if is_back else self.layout) or None,
            described=is_back,
            spec=self.spec,
            at=self.at,
            dry_run=True,
            force=True,
            allow_class=on.allow_class,
            allow_unknown=on.allow_unknown,
        )


class Tried(NamedTuple):
    """What came of trying."""

    lines: tuple[str, ...] = ()
    """Those that work."""
    refused: Mapping[str, str] = {}
    """{module: why there is no line for it}"""


def typed(path: str) -> str:
    """A path as it is typed, and not mistaken for a flag."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


# Of attention, gated MLPs and experts: fused tensors whose layout something says are taken apart; parts that are apart
# are fused; a model under the names of a dialect is converted to another.


@frozen
class PartsTries:
    """The lines for groups of parts of a checkpoint, each of them tried."""

    on: TriedOn
    weights: Callable[[], Weights]
    """The weights of the checkpoint, as those commands open them."""

    def all(self, seen: SeenParts | None, at: str | None) -> Tried:
        """The lines for these groups; `at` is where the user looks."""
        if seen is None:
            return Tried()
        lines: list[str] = []
        refused: dict[str, str] = {}
        if at is None and seen.dialect and not self.on.spec:
            lines += self._converted(seen.dialect)
        for call in self._calls(seen, at):
            if why := self._refused(call):
                refused[call.where] = f"{call.command} refuses it: {why}"
            else:
                lines.append(call.text(os.fspath(self.on.path), self.on.flags))
        return Tried(tuple(lines), refused)

    def _calls(self, seen: SeenParts, at: str | None) -> Iterator[TypedCall]:
        """One for all fused tensors, if it works, else one for each group; one for all parts of a kind.

        Parts are fused to the layout that has the name of their kind: the one that most families store.
        """
        spec = self.on.spec
        fused = [one for one in seen.groups if one.form == "fused"]
        every = TypedCall("unfuse", spec=spec)
        if at is None and fused and all(one.layout for one in fused) and not self._refused(every):
            yield every
        else:
            for one in fused:
                if one.layout:
                    yield TypedCall("unfuse", one.layout, "", (fused_place(one),), spec, one.at)
        apart = grouped((one.kind, one) for one in seen.groups if one.form != "fused")
        for layout, groups in apart.items():
            chosen = tuple(dict.fromkeys(one.at for one in groups)) if at is not None else ()
            yield TypedCall("fuse", layout, "", chosen, spec, groups[0].at)

    def _converted(self, dialect: str) -> Iterator[str]:
        """The line for another dialect, if there is a config and something changes."""
        from paramtool import dialects
        from paramtool.commands.output.destination import default_output

        target = dialects.MEMORY if dialect == dialects.HUB else dialects.HUB
        call = TypedCall("convert", target=target)
        try:
            done = self._tried(call)
        except ParamtoolError:
            return
        if done is not None and not done.is_nothing:
            is_folder = self.on.checkpoint.format.startswith("sharded")
            output = default_output(self.on.path, is_folder, target)
            yield call.text(os.fspath(self.on.path), self.on.flags, output)

    def _refused(self, call: TypedCall) -> str:
        """Why a call does not work; empty if it does."""
        try:
            return "" if self._tried(call) is not None else "it takes a recurrent network"
        except ParamtoolError as error:
            return _one_line(error.message)

    def _tried(self, call: TypedCall) -> Rearrangement | None:
        """What a call does, without writing it; None for recurrent networks."""
        from paramtool.commands.rearrange import rearrangement
        from paramtool.commands.relayout import relayouted

        options = call.options(self.on)
        if not self.on.values:
            return rearrangement(self.on.checkpoint, options)
        word = call.target or f"{call.command}d"
        return relayouted(self.on.path, None, self.weights(), options, word=word).rearranged


# Of recurrent networks: one line for all of them, and only where it was tried.


TARGETS = ("", "onnx")
"""What unfuse writes: torch's layout where it can hold the networks, else that of ONNX, which lacks the least."""


@frozen
class Tries:
    """The lines for networks of a checkpoint, each of them tried."""

    on: TriedOn

    def all(self, found: Sequence[Guess]) -> Tried:
        """The fewest lines that give all of these networks."""
        if not found:
            return Tried()
        line, _ = self.one(found)
        lines = [line] if line else []
        refused: dict[str, str] = {}
        if not line:
            alone = [(one, *self.one([one])) for one in found]
            refused = {one.at: why for one, line, why in alone if line is None}
            groups = grouped(((one.layout, line.target), (one, line)) for one, line, _ in alone if line)
            for group in groups.values():
                together, _ = self.one([one for one, _ in group])
                lines += [together] if together else [line for _, line in group]
        return Tried(tuple(one.text(os.fspath(self.on.path), self.on.flags) for one in lines), refused)

    def one(self, found: Sequence[Guess]) -> tuple[TypedCall | None, str]:
        """A line that gives just these networks, the shortest; else what the last one was refused with."""
        why = ""
        for line in self._lines(found):
            try:
                self._prove(line, found)
            except ParamtoolError as error:
                why = why or error.message
            else:
                return line, ""
        return None, why

    def _lines(self, found: Sequence[Guess]) -> Iterator[TypedCall]:
        names = list(dict.fromkeys(one.layout for one in found))
        family = names[0].split(".")[0]
        sources = [*names] if len(names) == 1 else []
        if len(names) > 1 and all(name.split(".")[0] == family for name in names) and family in layouts.built_in():
            sources = [family]
        said = all(one.sure == "said" for one in found)
        ats = tuple(dict.fromkeys(one.at for one in found))
        whole = found[0].spec if len(found) == 1 else ""
        for target in TARGETS:
            for source in ["", *sources] if said else [*sources, ""]:
                yield TypedCall("unfuse", source, target, (), self.on.spec)
                yield TypedCall("unfuse", source, target, ats, self.on.spec)
            for source in sources if whole else ():
                yield TypedCall("unfuse", source, target, ats, whole)

    def _prove(self, line: TypedCall, found: Sequence[Guess]) -> None:
        """LayoutError or another error where the line does not give these networks, or cannot be carried out."""
        request = NetworkRequest(line.layout or None, parse(line.spec), line.at, described=True)
        got = find(self.on.checkpoint, request)
        wanted = {frozenset(one.tensors.values()): one for one in found}
        for one in got:
            network = one.network
            mine = wanted.pop(frozenset(network.raw.get(name, name) for name in network.tensors.values()), None)
            if mine is None or mine.spec != str(network.spec):
                raise LayoutError(f"it takes {network.at!r} for {network.layout.name} {network.spec}")
            if network.layout.name not in (mine.layout.partition(":")[0], *mine.alike):
                raise LayoutError(f"it takes {network.at!r} for {network.layout.name}")
        if wanted:
            raise LayoutError(f"it leaves out {next(iter(wanted.values())).at!r}")
        target, options = layouts.parse(line.target or "torch")
        views = self.on.checkpoint.views()
        for one in got:
            name, chosen = (target, options) if line.target or not one.parts else layouts.parse(one.parts)
            relayout_pass.convert(one.network, views, layouts.find(name), chosen, at=one.network.at)
        if self.on.values:  # all but the writing
            from paramtool.commands.relayout import relayout

            relayout(self.on.path, options=line.options(self.on))
