"""How two checkpoints differ, and by which map they are the same weights where they only are in other places."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf

from paramtool.commands._differences import gradients_apart, object_differences
from paramtool.commands._value_facts import of_adapters, of_models
from paramtool.commands.config_ties import as_stored, denied
from paramtool.commands.diff import explained
from paramtool.commands.diff.compounds import compounds, other_scales
from paramtool.commands.diff.explained import folds, kept_sums
from paramtool.commands.diff.lines import by_lines
from paramtool.commands.diff.parts import MadeByTables
from paramtool.commands.diff.recorded import recorded
from paramtool.commands.diff.rest import Rest, without_bytes
from paramtool.commands.diff.settled import Settled
from paramtool.commands.diff.ties import LostTie, ties
from paramtool.commands.diff.whole_tensors import (
    by_content,
    by_later_renames,
    casts,
    casts_by_name,
    casts_by_renames,
    reshaped,
    stored_once,
    taken,
    taken_as_casts,
    tiny,
)
from paramtool.commands.opening import Allowed, opened
from paramtool.commands.progress import MEMORY_NBYTES, Advance, Path, Progress, silent
from paramtool.commands.sections import section_of, training_state
from paramtool.dialects import NAMES as DIALECTS
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.sides import Sides
from paramtool.errors import UsageError, plural, some
from paramtool.formats import OTHER_FORM
from paramtool.formats.folder.weight_names import Weights
from paramtool.formats.judging import judging
from paramtool.formats.object_tree import is_flat
from paramtool.formats.table import holds
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import GRAPH, Checkpoint
from paramtool.model.config import reading
from paramtool.model.diff import (
    ADDED,
    CAST,
    CHANGED,
    DEQUANTISED,
    LAYOUT,
    LED_BACK,
    RECORD,
    REMOVED,
    RENAMED,
    ROUNDED,
    SAME,
    SAME_BYTES,
    UNDECIDED,
    WORDS,
    TensorDiff,
    counts,
)
from paramtool.model.display import Displayed
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View
from paramtool.passes.diff.names import (
    exchanged,
    layer_place,
    number_words,
    numberless,
    numbers,
    renumbered,
    without_number_words,
)
from paramtool.passes.module_versions import ATTRIBUTE, other_versions, version_differences, without_versions
from paramtool.passes.nesting import nesting_differences


@dataclass(frozen=True, slots=True, repr=False)
class Diffed(Displayed):
    """How two checkpoints differ."""

    a: str
    """The first checkpoint, as it was given."""
    b: str
    """The second checkpoint, as it was given."""
    tensors: tuple[TensorDiff, ...]
    """A verdict for each tensor of both."""
    ties: tuple[str, ...] = ()
    """Names that share memory in one of them and not in the other, or that share other elements."""
    objects: tuple[str, ...] = ()
    """Differences in what is not a tensor."""
    metadata: tuple[str, ...] = ()
    """Differences in the files' own strings."""
    doubts: tuple[str, ...] = ()
    """Why the values of what is the same by its bytes are undecided."""
    notes: tuple[str, ...] = ()
    """What was assumed or not compared."""
    nbytes_read: int = 0
    """Bytes that were read."""
    seconds: float = 0.0
    """How long it took, in seconds."""
    atol: float = 0.0
    """How far apart the numbers of both may be, beside `rtol`, to be close."""
    rtol: float = 0.0
    """The same, relative to the numbers of the second."""

    _facts = "`is_same` and `is_close`, or `judge(strict=...)`"

    @property
    def is_same(self) -> bool:
        """Whether they are the same weights, whatever `atol` and `rtol` allow."""
        return self.is_close and not self.counts().keys() & {ROUNDED, CHANGED}

    @property
    def is_close(self) -> bool:
        """Whether no number is further than `atol + rtol * |b|`, as numpy.allclose, and all else is the same."""
        return self.judge()

    def counts(self) -> Mapping[str, int]:
        """{verdict: how many tensors}."""
        return counts(self.tensors)

    @property
    def verdict(self) -> str:
        """What two checkpoints are to each other, in a few words."""
        kinds, begin = set(self.counts()), "same weights "
        if self.is_close and not self.is_same:
            said = (f"{name} {value:g}" for name, value in (("atol", self.atol), ("rtol", self.rtol)) if value)
            begin, kinds = f"equal within {' and '.join(said)}, ", set()
        if kinds & {CHANGED, ADDED} or (REMOVED in kinds and UNDECIDED not in kinds):
            return "different weights"
        if UNDECIDED in kinds or self.doubts:  # what only A has may be what is undecided
            of_bytes = all(one.how.startswith(SAME_BYTES) for one in self.tensors if one.kind in (UNDECIDED, REMOVED))
            return "same bytes, undecided values" if of_bytes and not kinds & {CAST, ROUNDED} else "undecided"
        more = [text for text, holds in self._said() if holds]
        is_untied = any(one.kind == RENAMED and not (one.a and one.b) for one in self.tensors)
        others = [", tied otherwise"] if self.ties or is_untied else []
        others += [", other objects"] if self.objects else []
        return "".join([f"{begin}{', '.join(more)}".rstrip(", "), *others])

    def _said(self) -> Iterator[tuple[str, bool]]:
        """What is not alike about the same weights, and whether it is so; a cast can have another name or map, too."""
        kinds = {one.kind for one in self.tensors}
        casts = [one for one in self.tensors if one.kind in (CAST, ROUNDED)]
        renamed = any(one.kind == RENAMED and one.a and one.b for one in self.tensors)
        yield "under other names", renamed or any(one.a != one.b and not one.how for one in casts)
        yield "in another layout", LAYOUT in kinds or any(one.how for one in casts)
        exact, rounded = (sum(one.kind == kind for one in casts) for kind in (CAST, ROUNDED))
        both = f"in another type ({plural(exact, 'tensor')} without loss, {rounded} rounded)"
        yield both, bool(exact and rounded)
        yield "dequantised", DEQUANTISED in kinds
        yield "in another type, without loss", bool(exact and not rounded)
        yield "rounded to another type", bool(rounded and not exact)

    def judge(self, *, strict: bool = False, atol: float | None = None) -> bool:
        """Whether they are the same weights, or close, as `--exit-code` asks; `atol` replaces the one of `diff`."""
        atol = self.atol if atol is None else atol
        kinds = {SAME} if strict else {SAME, RENAMED, LAYOUT, CAST, DEQUANTISED, GRAPH}
        for one in self.tensors:
            is_near = one.change is not None and (atol or one.change.beyond is not None) and one.change.is_close(atol)
            if one.kind not in kinds and not (one.kind in (ROUNDED, CHANGED) and is_near):
                return False
        return not (self.ties or self.objects or self.doubts or (strict and self.metadata))

    def _picture(self) -> str:
        """The tensors by verdict."""
        from paramtool.commands.report.differences import TINTS
        from paramtool.drawing.notebook import small_bar
        from paramtool.drawing.strips import stacked

        many = counts(self.tensors)
        parts = stacked((WORDS[kind], count, TINTS[kind], "", plural(count, "tensor")) for kind, count in many.items())
        return small_bar(parts, "tensors by verdict") if parts else ""

    _schema = "diff/1"
    _members = (
        "a b verdict same=is_same close=is_close atol rtol counts ties objects metadata tensors doubts notes "
        "nbytes_read"
    )


@reading
@judging("a", "b")
def diff(
    a: Path,
    b: Path,
    *,
    only: str | None = None,
    atol: float = 0.0,
    rtol: float = 0.0,
    memory: int = MEMORY_NBYTES,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> Diffed:
    """How checkpoint `b` differs from `a`: tensors by name and by content, ties, objects and metadata.

    A tensor that differs is looked for under other names, in other layouts and dialects, and as a cast; every verdict
    is proved by comparing all bytes.  `is_close` and the verdict accept numbers that are no further apart than
    `atol + rtol * |b|`, as numpy.allclose, whose defaults are not 0.  `only` compares one section of both; `memory` is
    in bytes.  Errors, `allow_class` and `allow_unknown` as of `read`; UsageError where a tolerance is none.
    """
    for name, number in (("atol", atol), ("rtol", rtol)):
        if not 0 <= number < inf:
            raise UsageError(f"--{name} is {number:g}; expected a finite number, which is 0 or more")
    began = time.monotonic()
    allowed = Allowed(allow_class, allow_unknown)
    found = [opened(path, None, progress, allowed) for path in (a, b)]
    first, second = (one.checkpoint for one in found)
    first, second = (
        as_stored(one, other.entries.keys() | denied(other)) for one, other in ((first, second), (second, first))
    )
    if only is not None:
        first, second = section_of(first, only), section_of(second, only)
    with Sides(first, second, memory, rtol) as sides:
        work = Comparing(first, second, sides, memory)
        tensors = work.all(progress)
        nbytes = sides.nbytes_read
    tied, without_room = ties(
        first, second, tensors, (os.fspath(a), os.fspath(b)), made=work.sources, copied=work.copied
    )
    renames = [(one.b[0], one.a[0]) for one in tensors if len(one.a) == 1 == len(one.b)]
    is_renamed = any(one.a != one.b for one in tensors)
    configs = [of_models(first, second), of_adapters(first, second, (a, b), is_renamed)]
    versions = other_versions(first.objects, second.objects, renames)
    first, second = work.as_made
    has_keys = _says_nesting(first, second) and _says_nesting(second, first)
    plain = (replace(one, objects=without_versions(one.objects)) if has_keys else one for one in (second, first))
    objects = object_differences(*plain, tensors=False)
    if has_keys:
        objects.differences += version_differences(second.objects, first.objects)
        objects.differences += [*nesting_differences(second.objects, first.objects, tuple(objects.differences))]
    metadata = [text for text in objects.differences if text.startswith("metadata ")]
    return Diffed(
        os.fspath(a),
        os.fspath(b),
        tensors,
        (*tied, *work.untied),
        tuple(_of_sides(text) for text in objects.differences if text not in metadata),
        tuple(map(_of_sides, metadata)),
        tuple(doubts(tensors, work.otherwise, versions, configs)),
        (
            *map(_of_sides, (*objects.notes, *gradients_apart(second, first))),
            *_said_of((first.left_out, second.left_out)),
            *_forms(*found),
            *_said_of([one.told for one in found]),
            *_not_compared([training_state(path, one.checkpoint) for path, one in zip((a, b), found, strict=True)]),
            *_without_room(without_room),
        ),
        nbytes,
        time.monotonic() - began,
        atol,
        rtol,
    )


def _says_nesting(checkpoint: Checkpoint, other: Checkpoint) -> bool:
    """Whether the keys of its tensors are those that a program gave them, as far as the other one can have them.

    Other formats than torch's, DCP and those with an alias record have only names, or make keys of them.  DCP turns
    numbers into text, so it is compared with DCP alone.  A record has the keys that names do not say.
    """
    if checkpoint.format.startswith("torch"):
        return True
    has_room = holds(checkpoint.format).record or checkpoint.format == other.format == "dcp"
    return has_room and not is_flat(checkpoint.objects, tuple(checkpoint.entries))


def _forms(*sides: Weights) -> Iterator[str]:
    for side, one in zip("AB", sides, strict=True):
        if one.forms:
            yield f"{side}: not compared: {some(one.forms, 3)}, which {OTHER_FORM}"


def _not_compared(states: Sequence[str]) -> Iterator[str]:
    """What the folders hold beside weights; one sentence where both hold the same."""
    return _said_of(
        [[f"not compared: {state}; compare the files by their own paths"] if state else [] for state in states]
    )


def _said_of(sides: Sequence[Sequence[str]]) -> Iterator[str]:
    """What is said of each of the two; what is said of both is one sentence."""
    for text in dict.fromkeys(chain.from_iterable(sides)):
        yield f"{' and '.join(side for side, said in zip('AB', sides, strict=True) if text in said)}: {text}"


def _of_sides(text: str) -> str:
    """A difference as `verify` words it, of A and B."""
    for word, side in (("the source", "A"), ("the output", "B")):
        text = text.replace(word, side)
    return text


# --- Doubts: the same numbers, and yet a model that takes names as they are may compute something else ---------------


_TURNED = re.compile(r"transposed|negated|backwards|axes \([0-9, ]+\)")
"""What `how` says of maps that are the same for all rows."""
KERNELS = ("kernel", "vars/0")
"""How the names of kernels end that Flax and Keras store, in one order of axes for all layers of a type."""
_IN_SEQUENCE = re.compile(r"(?<![^.])[0-9]+\.[^.]+$")
"""The numbers of torch's Sequential: its layers can be of any type."""
SHOWN = 3
"""How many names a doubt shows."""


def doubts(
    tensors: Sequence[TensorDiff], otherwise: Mapping[str, str], versions: Sequence[str], configs: Sequence[str]
) -> Iterator[str]:
    """Why the values of the same numbers are undecided, in sentences; `--exit-code` judges them as other weights.

    `otherwise` are tensors of recurrent networks with the map of a layout that does not make them, `versions` modules
    of other versions, `configs` how the configs of both say other things of norms and of factors.
    """
    yield from filter(None, configs)
    led = [one for one in tensors if one.b and one.a and one.kind in LED_BACK and one.kind != SAME and not one.layout]
    layouts = [one.b[0] for one in led if one.b[0] in otherwise]  # with exchanged gates, or of another matrix
    for names, one, many, what in (
        (_moved_in_place(tensors), "tensor has its", "tensors have their",
         "numbers in other places under the same name and shape, by a map that gives all bytes of B"),
        (_unlike_others(tensors), "tensor is", "tensors are", "the same by another map than those of other layers"),
        (layouts, "tensor of a recurrent network is", "tensors of recurrent networks are",
         f"the same by another map than that of the layouts ({otherwise[layouts[0]] if layouts else ''})"),
        (_unlike_parts(tensors), "part of a fused tensor is", "parts of fused tensors are",
         "the same by other rows than those of its layout"),
        (_exchanged(tensors), "tensor is", "tensors are",
         "in the place of another one, by the rename that the other tensors show"),
        (_calculated_with(tensors), "number of the graph differs", "numbers of the graph differ", ""),
        (versions, "module has", "modules have", f"another version ({ATTRIBUTE!r}), by which torch reads its tensors"),
    ):  # fmt: skip
        if names:
            told = f"{plural(len(names), one, many)} {what}".rstrip()
            yield f"{told}; a model that reads these names as they are may compute something else: {some(names, SHOWN)}"


def _without_room(lost: Sequence[LostTie]) -> Iterator[str]:
    """Ties of tensors that one tensor of the other side holds."""
    for side, other in (("A", "B"), ("B", "A")):
        names = [f"{one.olds[0]} = {one.olds[1]}" if one.olds else f"{one.other} = {one.name}"
                 for one in lost if one.where == side]  # fmt: skip
        if names:
            yield (
                f"{plural(len(names), f'tie of {side} is', f'ties of {side} are')} not in {other}, which has the"
                f" numbers of both in one tensor and no room for a tie (--strict refuses them): {some(names, SHOWN)}"
            )


def _moved_in_place(tensors: Sequence[TensorDiff]) -> list[str]:
    """Tensors whose numbers moved under one name and shape, by no dialect: to a loader, that is another model."""
    moved = (one for one in tensors if one.kind in (LAYOUT, CAST, ROUNDED) and one.how and one.layout not in DIALECTS)
    return [one.b[0] for one in moved if one.b and one.a == one.b and one.shapes[0] == one.shapes[1]]


def _unlike_others(tensors: Sequence[TensorDiff]) -> list[str]:
    """Tensors of few layers that are the same by another map than those of the other layers: one of them is wrong."""
    layers: dict[object, dict[str, list[str]]] = {}
    for one in tensors:
        if one.a and one.b and one.kind in LED_BACK and one.layout != RECORD:
            name = one.b[0]
            if number_words(name) and not _IN_SEQUENCE.search(name):
                by_map = layers.setdefault(without_number_words(name), {})
                by_map.setdefault((one.layout or "rows") if one.how else "", []).append(name)
            olds = () if name.endswith(KERNELS) else tuple(map(layer_place, one.a))
            axes = sum(size > 1 for size in one.shapes[1] or ())
            by_map = layers.setdefault((layer_place(name), olds, axes), {})
            # what is the same in the maps of all layers: the layout, or the order of axes; empty for none
            word = one.layout or (" ".join(_TURNED.findall(one.how)) or "rows" if one.how else "")
            by_map.setdefault(word, []).append(name)
    found: dict[str, None] = {}
    for by_map in layers.values():
        most = max(map(len, by_map.values()))
        usual = [word for word, own in by_map.items() if len(own) == most]
        found |= {name: None for word, own in by_map.items() if [word] != usual for name in own}
    return [*found]


def _unlike_parts(tensors: Sequence[TensorDiff]) -> list[str]:
    """Tensors with rows of a fused tensor of which a layout explains others: they are exchanged parts of it."""
    of = grouped((one.a[0], one) for one in tensors if one.kind == LAYOUT and one.how and one.b and len(one.a) == 1)
    return [one.b[0] for parts in of.values() if any(one.layout for one in parts) for one in parts if not one.layout]


def _calculated_with(tensors: Sequence[TensorDiff]) -> list[str]:
    """Floating point of two graphs under one name that differs, and is no weight: a scale, a limit."""
    return [
        one.b[0]
        for one in tensors
        if one.kind == GRAPH and one.change and one.change.largest and DTYPES[one.dtypes[1]].is_inexact
    ]


def _exchanged(tensors: Sequence[TensorDiff]) -> list[str]:
    """Tensors under new names that are in each other's places, by the rename that the other tensors show."""
    found: Mapping[str, TensorDiff] = {
        one.b[0]: one
        for one in tensors
        if one.a and one.b and one.kind in LED_BACK and one.is_unique and one.layout != RECORD
    }
    if all(one.kind == SAME for one in found.values()):
        return []

    def is_alike(x: str, y: str) -> bool:
        return (found[x].dtypes[1], found[x].shapes[1]) == (found[y].dtypes[1], found[y].shapes[1])

    return [*exchanged([(one.a[0], new) for new, one in found.items()], is_alike)]


# --- The comparison of two open checkpoints: each step settles some tensors, and leaves the others to the next -------


class Comparing(Settled):
    """The comparison of two open checkpoints: each step settles some tensors, and leaves the others to the next."""

    def all(self, progress: Progress) -> tuple[TensorDiff, ...]:
        """Every verdict, in the order of the second checkpoint; then what only the first has."""
        made, rest = MadeByTables(self), Rest(self)
        with progress("diff", sum(view.nbytes for view in self.b.values())) as advance:
            self._by_name(advance)
        for step in (taken, by_content, casts_by_name, taken_as_casts, casts):
            if self.left_b:
                step(self)
        if self.left_b or self.left_a:
            made.by_tables()
        elif any(one.kind == RENAMED for one in self.found.values()):
            made.look_at_networks()
        if self.left_b:
            made.by_parts()
        if self.left_a or self.left_b or self.taken or any(one.kind not in LED_BACK for one in self.found.values()):
            self.as_made = recorded(self)
        by_squeezed, by_rows = partial(by_content, is_squeezed=True), partial(by_lines, progress=progress)
        for step in (reshaped, by_squeezed, by_rows, by_later_renames, casts_by_renames):
            if self.left_b:
                step(self)
        if self.left_b:
            self._by_reasons()
            made.constants()
            folds(self)
            tiny(self)
        self.cut_with_others()
        stored_once(self)
        if self.left_b:
            changed_layers(self)
        self.left_b |= self.taken
        rest.settle()
        made.strays()
        without_bytes(self)
        self._compounds()
        order = [*self.b, *(name for name in self.found if name not in self.b)]
        return (*(self.found[name] for name in order if name in self.found), *self.gone)

    def _by_name(self, advance: Advance) -> None:
        """Tensors of one name, type and shape that hold the same bytes."""
        pairs = {
            name: WindowPair(old, self.b[name])
            for name, old in self.a.items()
            if name in self.b and (old.dtype, old.shape) == (self.b[name].dtype, self.b[name].shape)
        }
        same = self.sides.same(pairs.values(), advance)
        for name, pair in pairs.items():
            if same[pair]:
                self.settle(SAME, [name], name)

    def _by_reasons(self) -> None:
        """Tensors whose numbers changed for a reason that both show: norms stored less 1, sums that A holds."""
        pairs = list(self._pairs_by_name())
        left = self.left_a, self.left_b
        for one in [*explained.norms(pairs, left, self.sides),
                    *explained.read_back(self.checkpoints, self.networks, left, self.sides),
                    *kept_sums(self)]:  # fmt: skip
            if one.name not in self.left_b:
                continue
            change = None
            if self.a[one.olds[0]].shape == self.b[one.name].shape and len(one.olds) == 1:
                (change,) = self.sides.changes([[WindowPair(self.a[one.olds[0]], self.b[one.name])]])
            self.settle(CHANGED, one.olds, one.name, how=one.how, layout=one.layout, change=change)

    def _pairs_by_name(self) -> Iterator[tuple[str, str]]:
        """(tensor of the first, tensor of the second) without verdicts, of one name or of a name that others show."""
        renames = self.renames()
        for name in self.left_a:
            new = next((one for one in (name, *renames.of(name)) if one in self.left_b), None)
            if new is not None:
                yield name, new

    def _compounds(self) -> None:
        """What no byte shows: facts of compounds, entries of headers, and signs that only one has."""
        for one in list(compounds(self)):
            if one.b:
                known = self.found.get(one.b[0])
                self.found[one.b[0]] = known if known is not None and known.kind not in LED_BACK else one
            else:
                self.gone.append(one)
        for one in other_scales(*self.checkpoints, [*self.found.values()]):
            self.found[one.b[0]] = one


# --- Tensors that changed, by the map that the same tensor of another layer shows ------------------------------------
#
# proved    q_proj, k_proj and v_proj of layers 0, 1 and 3  ->  qkv of layers 0, 1 and 3
# changed   those of layer 2 -> qkv of layer 2, by the same windows: how many elements differ, and how far


MAX_TRIED = 8
"""Twins that are tried for a tensor."""


def changed_layers(state: Settled) -> None:
    """Settle what is left and has a proved twin: of the same types and shapes, under the same names but for numbers."""
    proved = grouped(
        (numberless(name), state.found[name]) for name in state.pairs if state.found[name].kind in LED_BACK
    )
    for twins in proved.values():
        if any(numbers(old) != numbers(one.b[0]) for one in twins for old in one.a):  # 0, 2, 4 as 0, 1, 2
            twins.clear()
    found: dict[str, tuple[TensorDiff, list[WindowPair], dict[str, str]]] = {}
    for name, view in state.left_b.items():
        for one in proved.get(numberless(name), ())[:MAX_TRIED]:
            olds = {old: renumbered(old, numbers(name)) for old in one.a if numbers(old) == numbers(one.b[0])}
            if len(olds) < len(one.a) or not _are_alike(state, olds, one.b[0], view):
                continue
            windows = [(state.a[old], state.a[other]) for old, other in olds.items()]
            found[name] = (
                one,
                [  # the same windows on the tensors of the other layer
                    WindowPair(_on(pair.a, *here), _on(pair.b, state.b[one.b[0]], view))
                    for pair in state.pairs[one.b[0]]
                    for here in [both for both in windows if _holds(both[0], pair.a)][:1]
                ],
                olds,
            )
            break
    changes = state.sides.changes([pairs for _, pairs, _ in found.values()])
    for (name, (one, pairs, olds)), change in zip(found.items(), changes, strict=True):
        for other in olds.values():
            state.use(other, [pair.a for pair in pairs if _holds(state.a[other], pair.a)])
        if not change.elements:  # constants, which the map of the other layers proves
            state.settle(one.kind, olds.values(), name, how=f"{one.how}, as {one.b[0]!r}", layout=one.layout)
            continue
        how = f"{one.how}, as {one.b[0]!r}, but for other numbers"
        change = change._replace(rows=(), row_count=0)  # those of the windows are no rows of the whole
        state.settle(CHANGED, olds.values(), name, how=how, layout=one.layout, change=change)


def _are_alike(state: Settled, olds: dict[str, str], proved: str, view: View) -> bool:
    """Whether the tensors of two layers have the same types and shapes, and those of the first are not all used."""
    if not all(other in state.left_a or (other in state.a and state.unread(other)) for other in olds.values()):
        return False
    pairs = [(state.b[proved], view), *((state.a[old], state.a[other]) for old, other in olds.items())]
    return all((one.dtype, one.shape, one.strides) == (other.dtype, other.shape, other.strides) for one, other in pairs)


def _holds(whole: View, window: View) -> bool:
    return (
        whole.storage == window.storage
        and whole.byte_start <= window.byte_start
        and window.byte_stop <= whole.byte_stop
    )


def _on(window: View, whole: View, other: View) -> View:
    """A window on one tensor as that on another one of the same strides."""
    return replace(window, storage=other.storage, offset=window.offset - whole.offset + other.offset)
