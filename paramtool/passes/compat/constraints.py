"""Which windows of a file a variant ties, so that they would have to hold one value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Entries
from paramtool.model.view import View, Views, overlaps
from paramtool.passes.compat.wanted import Wanted, covers, plain_window


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
    return View(found.storage, found.dtype, found.offset + shift, inner.shape, inner.strides)
