"""Which variants of a model can load a checkpoint: decided from names, shapes, dtypes and ties, before anyone loads.

A variant is a mapping of names to `Wanted`: windows on the variant's own memory.  Names whose windows overlap are tied:
they will hold one value, so the checkpoint must not hold two.  Whether it does, only bytes can say; `judge` asks.

    variant                checkpoint
    emb    [10, 4]         emb    [10, 4]      there
    head   emb transposed  head   [4, 10]      there, and tied to emb: Question(is emb's transpose equal to head?)
    out    emb             -                   filled by emb
    norm   [4]             -                   lacks
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from paramtool.model import alias
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import PENDING, Checkpoint, Compound, Entry, NoData, Unreadable, Value
from paramtool.model.dtype import DTYPES, can_hold
from paramtool.model.view import View, contiguous, overlaps


@dataclass(frozen=True, slots=True)
class Wanted:
    """One name that a variant wants."""

    memory: str
    """The first name of its memory: names of one memory whose windows overlap are tied."""
    view: View | None = None
    """Its dtype and shape, and where it lies in the variant's own memory; None where only its name is known."""
    kind: str = ""
    """The kind of a compound tensor, such as `quantized`; empty for a plain one."""


@dataclass(frozen=True, slots=True)
class Through:
    """A name that comes only through the file's record: its bytes are stored under another."""

    name: str
    owner: str
    """The stored tensor."""
    relation: str
    """`same`, `slice`, `transpose`, `view` or `overlap`: how it lies on the owner."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A name that the file lacks and that is filled all the same: the variant ties it to one that is there."""

    name: str
    by: str


@dataclass(frozen=True, slots=True)
class ShapeClash:
    """A name that has one shape in the file and another in the variant."""

    name: str
    found: tuple[int, ...]
    wanted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TypeClash:
    """A name that is of a dtype, or of a kind, in the file that what the variant has cannot hold."""

    name: str
    found: str
    wanted: str


@dataclass(frozen=True, slots=True)
class Apart:
    """Two names that the variant ties and the file holds with different values."""

    name: str
    other: str
    difference: float | None
    """The largest absolute difference of two of their numbers; None where that was not measured."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What keeps a variant from loading a checkpoint, and what it takes along or leaves behind."""

    names: int
    """So many names are wanted."""
    through: tuple[Through, ...] = ()
    filled: tuple[Filled, ...] = ()
    lacks: tuple[str, ...] = ()
    """Names that the file lacks and that nothing fills."""
    shapes: tuple[ShapeClash, ...] = ()
    types: tuple[TypeClash, ...] = ()
    apart: tuple[Apart, ...] = ()
    unused: tuple[str, ...] = ()
    """Names of the file that the variant does not want, and whose memory no wanted name brings in."""
    advice: str = ""
    """What may help where names do not meet."""

    @property
    def loads(self) -> bool:
        """Whether every name of the variant gets its value, and only one."""
        return not (self.lacks or self.shapes or self.types or self.apart)


@dataclass(frozen=True, slots=True)
class Question:
    """Whether two names that the variant ties hold one value in the file."""

    name: str
    other: str
    found: tuple[View, View]
    """Windows on the file's storages that would be one."""
    places: tuple[View, View]
    """Their windows on the variant's memory; where these are equal, each element of one meets that of the other."""


# --- what is wanted ---------------------------------------------------------------------------------------------------


def wanted_by(checkpoint: Checkpoint) -> Mapping[str, Wanted]:
    """What a checkpoint holds, taken as what somebody wants."""
    members = alias.build(checkpoint, parts=False).members
    found = {}
    for name, entry in checkpoint.entries.items():
        if name in members:
            found[name] = Wanted(members[name].memory, members[name].window)
        else:
            found[name] = _without_window(name, entry.value)
    return found


def _without_window(name: str, value: Value) -> Wanted:
    """A name that is no plain window: its dtype and shape where it has one of each, else its kind."""
    match value:
        case NoData(dtype, shape):
            return Wanted(name, contiguous(name, dtype, shape))
        case Compound(kind, parts) if kind in PENDING:
            return Wanted(name, contiguous(name, parts["data"].dtype, parts["data"].shape))
        case Compound(kind):
            return Wanted(name, kind=kind)
    return Wanted(name)


# --- the verdict ------------------------------------------------------------------------------------------------------


def judge(
    wanted: Mapping[str, Wanted], part: Checkpoint, whole: Checkpoint | None = None
) -> tuple[Verdict, tuple[Question, ...]]:
    """What a variant makes of a checkpoint, and what bytes have to be asked; an answer of no is an `Apart`.

    `part` has the names as the variant calls them; `whole` is the checkpoint that it is a part of.
    """
    graph = alias.build(part, parts=False)
    present = {name: entry for name, entry in part.entries.items() if name in wanted}
    shapes, types = _clashes(wanted, present)
    types += tuple(_signs(wanted, present))
    filled = dict(_fillers(wanted, present))
    lacks = tuple(name for name, by in filled.items() if by is None)
    unused = tuple(_unused(part, present, graph))
    verdict = Verdict(
        names=len(wanted),
        through=tuple(_through(present, graph, whole or part)),
        filled=tuple(Filled(name, by) for name, by in filled.items() if by is not None),
        lacks=lacks,
        shapes=shapes,
        types=types,
        unused=unused,
        advice=_advice(wanted, part) if lacks else "",
    )
    fit = present.keys() - {clash.name for clash in shapes} - {clash.name for clash in types}
    return verdict, tuple(_questions(wanted, {n: e for n, e in present.items() if n in fit}))


def _through(present: Mapping[str, Entry], graph: AliasGraph, whole: Checkpoint) -> Iterator[Through]:
    for name, entry in present.items():
        if entry.link and entry.link.owner and isinstance(entry.value, View):
            owner = whole.entries[entry.link.owner].value if entry.link.owner in whole.entries else None
            if isinstance(owner, View):
                window = entry.value.on(entry.link.owner, entry.value.byte_start - owner.byte_start)
                relation = alias.relation(window, owner)
            else:
                relation = "overlap"  # the owner is a span, which is no name
            yield Through(name, entry.link.owner, relation)


def _clashes(
    wanted: Mapping[str, Wanted], present: Mapping[str, Entry]
) -> tuple[tuple[ShapeClash, ...], tuple[TypeClash, ...]]:
    """Names whose shape or type in the file is not what the variant has a place for."""
    shapes: list[ShapeClash] = []
    types: list[TypeClash] = []
    for name, entry in present.items():
        want = wanted[name]
        found = plain_window(entry.value)
        if found is None:
            if want.kind != kind_of(entry.value) or isinstance(entry.value, NoData | Unreadable):
                types.append(TypeClash(name, kind_of(entry.value), _wants(want)))
            continue
        if want.view is None:
            if want.kind:
                types.append(TypeClash(name, found.dtype.name, want.kind))
            continue
        found = as_pairs(found) if want.view.dtype.name == _PAIRS else found
        if found.shape != want.view.shape:
            shapes.append(ShapeClash(name, found.shape, want.view.shape))
        elif not can_hold(want.view.dtype, found.dtype):
            types.append(TypeClash(name, found.dtype.name, want.view.dtype.name))
    return tuple(shapes), tuple(types)


def plain_window(value: Value) -> View | None:
    """The window of a tensor that has a plain form: its own, or the one whose sign is still pending."""
    if isinstance(value, Compound):
        return value.parts["data"] if value.kind in PENDING else None
    return value if isinstance(value, View) else None


def kind_of(value: Value) -> str:
    """What a tensor is that has no plain form."""
    match value:
        case Compound(kind=kind):
            return kind
        case NoData(why=why):
            return f"without data ({why})"
        case Unreadable(needs=needs):
            return f"unreadable (needs {needs})"
    return "plain"


def _wants(want: Wanted) -> str:
    return want.kind or (want.view.dtype.name if want.view else "a plain tensor")


def _signs(wanted: Mapping[str, Wanted], present: Mapping[str, Entry]) -> Iterator[TypeClash]:
    """Names with a pending conjugation or negation that the variant ties to one without: bytes cannot be compared."""
    first: dict[str, str] = {}
    for name, entry in present.items():
        other = first.setdefault(wanted[name].memory, name)
        pending = [kind_of(present[n].value) for n in (other, name) if plain_window(present[n].value) is not None]
        if len(set(pending)) > 1:
            yield TypeClash(name, kind_of(entry.value), f"the same as {other!r}, to which it is tied")


_PAIRS = "float4_e2m1fn_x2"


def as_pairs(view: View) -> View:
    """float4 as torch counts it: two elements in one, along the last axis."""
    if view.dtype.name != "float4_e2m1fn" or not view.shape or view.shape[-1] % 2:
        return view
    shape = (*view.shape[:-1], view.shape[-1] // 2)
    return contiguous(view.storage, DTYPES[_PAIRS], shape, view.byte_start)


def _fillers(wanted: Mapping[str, Wanted], present: Mapping[str, Entry]) -> Iterator[tuple[str, str | None]]:
    """(name that the file lacks, the name that fills all of it, None if none does)."""
    by_memory: dict[str, list[str]] = {}
    for name in present:
        by_memory.setdefault(wanted[name].memory, []).append(name)
    for name, want in wanted.items():
        if name in present or (want.view is not None and not want.view.numel):
            continue
        partners = by_memory.get(want.memory, ())
        yield name, next((n for n in partners if _covers(wanted[n].view, want.view)), None)


def _covers(outer: View | None, inner: View | None) -> bool:
    """Whether filling `outer` fills all of `inner`."""
    if outer is None or inner is None or outer.storage != inner.storage:
        return False
    dense = outer.is_injective and outer.nbytes == outer.byte_stop - outer.byte_start
    return outer == inner or (dense and outer.byte_start <= inner.byte_start and inner.byte_stop <= outer.byte_stop)


def _unused(part: Checkpoint, present: Mapping[str, Entry], graph: AliasGraph) -> Iterator[str]:
    """Names that the variant lacks and that share no memory with one that it takes."""
    taken = {graph.members[name].memory for name in present if name in graph.members}
    for name in part.entries:
        if name not in present and (name not in graph.members or graph.members[name].memory not in taken):
            yield name


def _advice(wanted: Mapping[str, Wanted], part: Checkpoint) -> str:
    """What to do where names differ by a prefix, as DistributedDataParallel and headless models make them."""
    prefix, count = _prefix(wanted, part.entries)
    if prefix:
        return f"{_of(count, wanted)} the prefix {prefix!r} in the file: load_model(..., prefix={prefix!r}) takes those"
    prefix, count = _prefix(part.entries, wanted)
    if prefix:
        return f"{_of(count, part.entries)} the prefix {prefix!r} in the model: load the file into that part of it"
    return ""


def _of(count: int, names: Mapping[str, object]) -> str:
    return "every name has" if count == len(names) else f"{count} of {len(names)} names have"


def _prefix(short: Mapping[str, object], long: Mapping[str, object]) -> tuple[str, int]:
    """What stands before most of some names among others, up to a dot, and before how many; empty if nothing does."""
    if 2 * sum(name in long for name in short) > len(short):
        return "", 0  # most names meet as they are
    for first in islice(short, _TRIED):
        for name in long:
            prefix = name.removesuffix(first)
            if prefix == name or not prefix.endswith("."):
                continue
            count = sum(prefix + n in long for n in short)
            if 2 * count > len(short):
                return prefix, count
    return "", 0


_TRIED = 3
"""So many names are looked for behind a prefix: the first may be one of those that are new."""


# --- ties -------------------------------------------------------------------------------------------------------------


def _questions(wanted: Mapping[str, Wanted], present: Mapping[str, Entry]) -> Iterator[Question]:
    """Every pair of names that the variant ties and the file could hold apart."""
    memories: dict[str, dict[View, list[str]]] = {}
    for name in present:
        view = wanted[name].view
        if view is not None and view.numel:
            memories.setdefault(wanted[name].memory, {}).setdefault(view, []).append(name)
    for windows in memories.values():
        for place, names in windows.items():  # of one window: each with the first
            yield from _asked(present, [(names[0], other) for other in names[1:]], dict.fromkeys(names, place))
        firsts = {names[0]: place for place, names in windows.items()}
        yield from _asked(present, _overlapping(firsts), firsts)


def _overlapping(places: Mapping[str, View]) -> Iterator[tuple[str, str]]:
    """Pairs of names whose different windows share elements: each with the one that covers all, if one does."""
    names = list(places)
    cover = next((n for n in names if all(_covers(places[n], places[m]) for m in names)), None)
    for k, name in enumerate(names):
        for other in names[k + 1 :]:
            if cover in (None, name, other) and overlaps(places[name], places[other]):
                yield name, other


def _asked(
    present: Mapping[str, Entry], pairs: Iterator[tuple[str, str]] | list[tuple[str, str]], places: Mapping[str, View]
) -> Iterator[Question]:
    for name, other in pairs:
        found = [plain_window(present[n].value) for n in (name, other)]
        if found[0] is None or found[1] is None:
            continue
        question = _aligned(Question(name, other, (found[0], found[1]), (places[name], places[other])))
        if not (question.found[0] == question.found[1] and question.places[0] == question.places[1]):
            yield question


def _aligned(question: Question) -> Question:
    """The same question of windows that meet element by element, where one covers the other in plain rows."""
    (a, b), (at_a, at_b) = question.found, question.places
    if part := _inside(a, at_a, at_b):
        return replace(question, found=(part, b), places=(at_b, at_b))
    if part := _inside(b, at_b, at_a):
        return replace(question, found=(a, part), places=(at_a, at_a))
    return question


def _inside(found: View, place: View, inner: View) -> View | None:
    """The window on what fills `place` that fills `inner`; None where no strides say it.

    >>> w = contiguous("file", DTYPES["float32"], (2, 3))
    >>> _inside(w, replace(w, storage="model"), View("model", w.dtype, 0, (3, 2), (1, 3)))
    View(storage='file', dtype=DType(name='float32', block_elements=1, block_bytes=4), offset=0, shape=(3, 2), \
strides=(1, 3))
    """
    if place == inner:
        return found
    shift = inner.offset - place.offset
    if place.dtype != inner.dtype or not (place.is_contiguous and found.is_contiguous):
        return None
    if shift < 0 or shift + inner.extent > place.numel or inner.dtype.block_elements != 1:
        return None
    return View(found.storage, found.dtype, found.offset + shift, inner.shape, inner.strides)
