"""Which variants of a model can load a checkpoint: decided from names, shapes, dtypes and ties, before anyone loads.

A variant is a mapping of names to `Wanted`: an alias set of the variant, and a window on it.  Names whose windows
overlap are tied: they will hold one value, so the checkpoint must not hold two.  Only the bytes show whether it does;
`judge` returns these questions.

    variant                checkpoint
    emb    [10, 4]         emb    [10, 4]      there
    head   emb transposed  head   [4, 10]      there, and tied to emb: Question(is emb's transpose equal to head?)
    out    emb             -                   filled by emb
    norm   [4]             -                   missing
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from paramtool.errors import ParamtoolError
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model import alias, quantised
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import BY_CONFIG, Checkpoint, Entries, NoData, Unreadable
from paramtool.model.dtype import can_hold
from paramtool.model.storage import Cast, Constant
from paramtool.model.view import View, Views, overlaps
from paramtool.passes import select
from paramtool.passes.compat.wanted import PAIRS, Wanted, as_pairs, covers, kind_of, plain_window
from paramtool.passes.config_ties.declared import tied_advice
from paramtool.passes.select import compiled


@frozen
class Through:
    """A name that only the file's alias record provides: its bytes are stored under another name."""

    name: str
    owner: str
    """The stored tensor; empty for a constant, which is stored as its value."""
    relation: str
    """Its relation to the owner: `same`, `slice`, `transpose`, `view`, `overlap`; calculated: `cast`, `constant`."""


@frozen
class Filled:
    """A name that the file lacks but that gets a value: the variant ties it to a name that the file has."""

    name: str
    by: str


@frozen
class ShapeClash:
    """A name that has one shape in the file and another in the variant."""

    name: str
    found: tuple[int, ...]
    wanted: tuple[int, ...]


@frozen
class TypeClash:
    """A name whose dtype or kind in the file does not fit the dtype or kind that the variant has."""

    name: str
    found: str
    wanted: str


@frozen
class RowClash:
    """A name with the variant's shape whose rows follow each other otherwise, by what the file says of them."""

    name: str
    found: str
    """What the file says: `qkv by its record`, `rows of vllm by its record`."""
    wanted: str


@frozen
class Apart:
    """Two names that the variant ties and that have different values in the file."""

    name: str
    other: str
    difference: float | None
    """The largest absolute difference of their elements; None where it was not measured."""

    @property
    def shown(self) -> float | str | None:
        """The difference as JSON has it, which has no infinity."""
        return self.difference if self.difference is None or isfinite(self.difference) else "infinity"


@frozen
class Verdict:
    """What keeps a variant from loading a checkpoint, and which names are filled or unused."""

    names: int
    """How many names the variant wants."""
    through: tuple[Through, ...] = ()
    filled: tuple[Filled, ...] = ()
    lacks: tuple[str, ...] = ()
    """Names that the file lacks and that nothing fills."""
    shapes: tuple[ShapeClash, ...] = ()
    types: tuple[TypeClash, ...] = ()
    rows: tuple[RowClash, ...] = ()
    """Where the file, or the variant, is a file whose record says what its rows are, or the variant is a class of
    transformers."""
    apart: tuple[Apart, ...] = ()
    unused: tuple[str, ...] = ()
    """Names of the file that the variant does not want and that are in no alias set of a wanted name."""
    advice: str = ""
    """A hint where names are missing, or an empty string."""
    error: ParamtoolError | None = None
    """Why one of several was not judged: its file cannot be read, or is unsafe."""

    @property
    def loads(self) -> bool:
        """Whether every name of the variant gets exactly one value."""
        return not (self.error or self.lacks or self.shapes or self.types or self.rows or self.apart)


def judge(
    wanted: Mapping[str, Wanted], part: Checkpoint, whole: Checkpoint | None = None
) -> tuple[Verdict, tuple[TieQuestion, ...]]:
    """Whether a variant can load a checkpoint, without reading bytes, and the questions that bytes have to decide.

    A question whose answer is no becomes an `Apart`.  `part` has the names as the variant calls them; `whole` is the
    checkpoint that it is a part of.
    """
    graph = alias.build(part, parts=False)
    present = {name: entry for name, entry in part.entries.items() if name in wanted}
    shapes, types = _clashes(wanted, present, quantised.packed(part.entries))
    types += tuple(_signs(wanted, present))
    filled = dict(_fillers(wanted, present))
    lacks = tuple(name for name, by in filled.items() if by is None)
    unused = tuple(_unused(part, present, graph))
    verdict = Verdict(
        names=len(wanted),
        through=tuple(_through(present, whole or part)),
        filled=tuple(Filled(name, by) for name, by in filled.items() if by is not None),
        lacks=lacks,
        shapes=shapes,
        types=types,
        unused=unused,
        advice=_advice(lacks, part, wanted),
    )
    fit = present.keys() - {clash.name for clash in shapes} - {clash.name for clash in types}
    return verdict, tuple(questions(wanted, {n: e for n, e in present.items() if n in fit}))


def _through(present: Entries, whole: Checkpoint) -> Iterator[Through]:
    for name, entry in present.items():
        if (link := entry.link) is None or not isinstance(entry.value, View):
            continue
        owner = link.alias_set if link.evidence == BY_CONFIG and name != link.alias_set else link.owner
        if owner or link.position >= 0:
            yield Through(name, owner, _relation(entry.value, owner, whole))


def _relation(view: View, owner: str, whole: Checkpoint) -> str:
    """How a name relates to its owner: calculated, by geometry, or as a window on an anonymous span."""
    storage = whole.storage_of(view)
    match storage.backing:
        case Cast():
            return "cast"
        case Constant():
            return "constant"
    stored = whole.entries[owner].value if owner in whole.entries else None
    if isinstance(stored, View) and stored.storage == view.storage:
        return alias.relation(view.on(owner, view.byte_start - stored.byte_start), stored)
    return "same" if view.is_contiguous and view.nbytes == storage.nbytes else "overlap"


def _clashes(
    wanted: Mapping[str, Wanted], present: Entries, packed: Collection[str]
) -> tuple[tuple[ShapeClash, ...], tuple[TypeClash, ...]]:
    """Names whose shape or type does not fit the variant; `packed` weights need their scales."""
    shapes: list[ShapeClash] = []
    types: list[TypeClash] = []
    for name, entry in present.items():
        want, found, view = wanted[name], plain_window(entry.value), wanted[name].view
        if found is None:
            kind = kind_of(entry.value)
            if want.kind != kind or isinstance(entry.value, NoData | Unreadable):
                wants = want.kind or (view.dtype.name if view else "a plain tensor")
                types.append(TypeClash(name, kind, wants))
            continue
        if view is None:
            types += [TypeClash(name, found.dtype.name, want.kind)] * bool(want.kind)
            continue
        found = as_pairs(found) if view.dtype.name == PAIRS else found
        if found.shape != view.shape and (found.shape, view.shape) != ((1,), ()):  # torch takes [1] for []
            shapes.append(ShapeClash(name, found.shape, view.shape))
        elif not can_hold(view.dtype, found.dtype):
            types.append(TypeClash(name, found.dtype.name, view.dtype.name))
        elif name in packed and view.dtype != found.dtype:
            types.append(TypeClash(name, f"{found.dtype.name}, quantised, with scales beside it", view.dtype.name))
    return tuple(shapes), tuple(types)


def _signs(wanted: Mapping[str, Wanted], present: Entries) -> Iterator[TypeClash]:
    """Names with a pending conjugation or negation that the variant ties to a name without: bytes do not compare."""
    first: dict[str, str] = {}
    for name, entry in present.items():
        other = first.setdefault(wanted[name].alias_set, name)
        pending = [kind_of(present[n].value) for n in (other, name) if plain_window(present[n].value) is not None]
        if len(set(pending)) > 1:
            yield TypeClash(name, kind_of(entry.value), f"the same as {other!r}, to which it is tied")


def _fillers(wanted: Mapping[str, Wanted], present: Entries) -> Iterator[tuple[str, str | None]]:
    """(name that the file lacks, the name that fills all of it, None if none does)."""
    by_alias_set = grouped((wanted[name].alias_set, name) for name in present)
    for name, want in wanted.items():
        if name in present or (want.view is not None and not want.view.numel):
            continue
        partners = by_alias_set.get(want.alias_set, ())
        yield name, next((n for n in partners if covers(wanted[n].view, want.view)), None)


def _unused(part: Checkpoint, present: Entries, graph: AliasGraph) -> Iterator[str]:
    """Weights that the variant lacks and that share no alias set with a weight that it takes."""
    taken = {graph.names[name].alias_set for name in present if name in graph.names}
    for name, entry in part.entries.items():
        if entry.role == "other":
            continue
        if name not in present and (name not in graph.names or graph.names[name].alias_set not in taken):
            yield name


def _advice(lacks: Sequence[str], part: Checkpoint, wanted: Mapping[str, Wanted]) -> str:
    """What to do if most names differ by a prefix, as with DistributedDataParallel and models without a head."""
    new = compiled(part.entries, wanted) if lacks else {}
    if count := sum(name in new.values() for name in lacks):
        rule = "_orig_mod.*=*" if all(name.startswith("_orig_mod.") for name in new) else "*._orig_mod.*=*.*"
        what = f"{_of(count, lacks)} another name in the file, by '_orig_mod.' of torch.compile"
        return f"{what}: load_model finds them, and export --all-names --rename {rule!r} takes it off"
    prefix, count = select.prefix_before(lacks, part.entries)
    if 2 * count > len(lacks) and _fit_under(prefix, lacks, part, wanted):
        return f"{_of(count, lacks)} the prefix {prefix!r} in the file: load_model(..., prefix={prefix!r}) strips it"
    head, count = select.head_of(lacks, part.entries)
    if 2 * count > len(lacks):
        return f"{_of(count, lacks)} the prefix {head!r} only in the model: load the file into that part of it"
    return tied_advice(lacks)


def _fit_under(prefix: str, lacks: Sequence[str], part: Checkpoint, wanted: Mapping[str, Wanted]) -> bool:
    """Whether the tensors with a prefix have the shapes that the variant wants of the names without it."""
    for name in lacks:
        entry, view = part.entries.get(prefix + name), wanted[name].view
        if entry is not None and view is not None and isinstance(entry.value, View) and entry.value.shape != view.shape:
            return False
    return True


def _of(count: int, lacks: Sequence[str]) -> str:
    have = "has" if count == 1 else "have"
    if count == len(lacks):
        return "the missing name has" if count == 1 else "all missing names have"
    return f"{count} of {len(lacks)} missing names {have}"


# --- Which windows of a file a variant ties, so that they would have to hold one value --------------------------------


@frozen
class TieQuestion:
    """Whether two names that the variant ties hold one value in the file."""

    name: str
    other: str
    found: tuple[View, View]
    """Their windows on the file's storages."""
    places: tuple[View, View]
    """Their windows on the variant's alias set; where these are equal, elements at equal indices are tied."""


def questions(wanted: Mapping[str, Wanted], present: Entries) -> Iterator[TieQuestion]:
    """Every pair of names that the variant ties and that could have different values in the file."""
    alias_sets: dict[str, dict[View, list[str]]] = {}
    for name in present:
        view = wanted[name].view
        if view is not None and view.numel:
            alias_sets.setdefault(wanted[name].alias_set, {}).setdefault(view, []).append(name)
    for windows in alias_sets.values():
        for place, names in windows.items():  # of one window: each with the first
            yield from _asked(present, [(names[0], other) for other in names[1:]], dict.fromkeys(names, place))
        firsts = {names[0]: place for place, names in windows.items()}
        yield from _asked(present, _overlapping(firsts), firsts)


def _overlapping(places: Views) -> Iterator[tuple[str, str]]:
    """Pairs of names with different windows that share elements; if one window covers all, each name with that one."""
    names = list(places)
    cover = next((n for n in names if all(covers(places[n], places[m]) for m in names)), None)
    for k, name in enumerate(names):
        for other in names[k + 1 :]:
            if cover in (None, name, other) and overlaps(places[name], places[other]):
                yield name, other


def _asked(present: Entries, pairs: Iterable[tuple[str, str]], places: Views) -> Iterator[TieQuestion]:
    for name, other in pairs:
        found = [plain_window(present[n].value) for n in (name, other)]
        if found[0] is None or found[1] is None:
            continue
        question = _aligned(TieQuestion(name, other, (found[0], found[1]), (places[name], places[other])))
        if not (question.found[0] == question.found[1] and question.places[0] == question.places[1]):
            yield question


def _aligned(question: TieQuestion) -> TieQuestion:
    """The same question for windows that compare element by element, where one contains the other as a view."""
    (a, b), (at_a, at_b) = question.found, question.places
    if part := _inside(a, at_a, at_b):
        return replace(question, found=(part, b), places=(at_b, at_b))
    if part := _inside(b, at_b, at_a):
        return replace(question, found=(a, part), places=(at_a, at_a))
    return question


def _inside(found: View, place: View, inner: View) -> View | None:
    """The part of `found`, which fills `place`, that fills `inner`; None where no strides can express it.

    >>> from paramtool.model.dtype import DTYPES
    >>> from paramtool.model.view import contiguous
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
    return found.with_axes(inner.shape, inner.strides, found.offset + shift)
