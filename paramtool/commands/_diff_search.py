"""Maps that no table has: the rows of tensors found in the rows of others, and the same map for what is beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from paramtool.commands._diff_beside import NamedRun
from paramtool.commands.progress import Advance
from paramtool.engine.compare.row_proof import Claim, RowForm, RowWay, is_proved
from paramtool.engine.compare.rows import RowIndex, forms
from paramtool.engine.compare.sides import Sides, WindowPair
from paramtool.engine.read.source import Source
from paramtool.model.diff import LineMove, LinePlace
from paramtool.model.rowmap import RowMap, RowRun, covered, words
from paramtool.model.view import View
from paramtool.passes.diff.moves import MAX_MOVES
from paramtool.passes.diff.names import short

Views = Mapping[str, View]
CALCULATED = ("float", "bfloat")
"""What the names of types begin with that may be negated, or cast."""


class FoundMap(NamedTuple):
    """A tensor of the second checkpoint whose rows are those of tensors of the first."""

    name: str
    olds: tuple[str, ...]
    how: str
    is_unique: bool
    used: Mapping[str, Sequence[View]]
    """{name in the first: the windows on it that are read}"""
    is_cast: bool = False
    runs: tuple[RowRun, ...] = ()
    is_plain: bool = True
    """Whether rows are rows, neither columns nor negated."""
    is_transposed: bool = False
    """Whether they are columns of the second."""


class Search:
    """The rows of tensors of the first checkpoint, and what of the second is made of them."""

    def __init__(self, a: Views, b: Views, sides: Sides, memory: int) -> None:
        self.a, self.b, self.sides = a, b, sides
        self.names = list(a)
        self.missed: list[str] = []
        """Tensors of the first that did not fit into memory."""
        self._memory = memory
        self._index = RowIndex(memory)
        self._ways = {name: list(self._ways_of(view)) for name, view in b.items()}
        self._sources = list(self._added())
        self._looked = [name for name, ways in self._ways.items() if self._sources and ways]

    @property
    def nbytes(self) -> int:
        """How many bytes are looked at, of both."""
        return sum(way.form.view.nbytes for _, way in self._sources) + sum(self.b[name].nbytes for name in self._looked)

    def _added(self) -> Iterator[tuple[int, RowWay]]:
        """Rows of the first that some of the second can be equal to, as many as fit into memory."""
        wanted = {way.kind for ways in self._ways.values() for way in ways}
        types = dict.fromkeys(view.dtype for view in self.b.values())
        first: dict[View, str] = {}
        for number, name in enumerate(self.names):
            view = self.a[name]
            form = next(forms(view), None)
            if first.setdefault(view, name) != name or form is None or form.is_transposed or not view.is_contiguous:
                continue  # other names of one tensor are no other places
            others = [one for one in types if one != view.dtype and _is_number(view) and _is_number_type(one)]
            every = [way for dtype in (None, *others) if (way := RowWay(form, 1, dtype)).kind in wanted]
            if not self._index.has_room(len(every) * form.view.shape[0]):
                self.missed.append(name)
                continue
            yield from ((number, way) for way in every)

    def _ways_of(self, view: View) -> Iterator[RowWay]:
        """How rows of the second are tried: plain, negated, rounded to a type of the first; then its columns."""
        for form in forms(view):
            yield RowWay(form)
            if _is_number(view):
                yield RowWay(form, -1)
                for dtype in dict.fromkeys(one.dtype for one in self.a.values()):
                    if dtype != view.dtype and _is_number_type(dtype):
                        yield RowWay(form, 1, dtype)

    def found(self, advance: Advance) -> Iterator[FoundMap]:
        """Each tensor of the second that is made of rows of the first, every byte compared."""
        hashes = self._index.hashes
        hashed = self.sides.a.map(
            lambda source, way: hashes.of(source, way.form.view, dtype=way.dtype),
            [(way, [way.form.view]) for _, way in self._sources],
        )
        for (number, way), rows in zip(self._sources, hashed, strict=True):
            self._index.add(number, way, rows)
            advance(way.form.view.nbytes)
        self._index.sort()
        views = [way.form.view for _, way in self._sources]
        encoded = next((view for view in views if not self.sides.a.is_plain([view])), None)
        some = encoded or next(iter(views), None)  # what is encoded is read by one thread
        tasks = [(name, [WindowPair(some, self.b[name])]) for name in self._looked if some is not None]
        for name, one in zip(self._looked, self.sides.map(self._of, tasks), strict=True):
            advance(self.b[name].nbytes)
            if one is not None:
                yield self._described(name, self.b[name], *one)

    def _of(self, a_source: Source, b_source: Source, name: str) -> tuple[RowMap, RowWay] | None:
        for way in self._ways[name]:
            made = self._index.find(a_source, b_source, way)
            if made is not None and self._is_of(made, way):
                return made, way
        return None

    def _is_of(self, made: RowMap, way: RowWay) -> bool:
        """Whether rows cast to a type were found in tensors of this type: two casts can round to the same numbers."""
        return way.dtype is None or all(self.a[self.names[run.tensor]].dtype == way.dtype for run in made.runs)

    def _described(self, name: str, view: View, made: RowMap, way: RowWay) -> FoundMap:
        is_transposed, is_negated, width = way.form.is_transposed, way.sign < 0, way.form.view.shape[1]
        olds = tuple(dict.fromkeys(self.names[one.tensor] for one in made.runs))
        known = short(olds)
        text = words(made.runs, [known.get(one, one) for one in self.names])
        text = f"transposed: {text}" if is_transposed else text
        text = f"negated: {text}" if is_negated else text
        used: dict[str, list[View]] = {}
        for tensor, start, count in covered(made.runs):
            old = self.names[tensor]
            used.setdefault(old, []).append(_rows(self.a[old], start, count, width))
        is_cast = any(self.a[old].dtype != view.dtype for old in olds)
        plain = not (is_transposed or is_negated or is_cast)
        return FoundMap(name, olds, text, made.is_unique, used, is_cast, made.runs, plain, is_transposed)

    def named(self, one: FoundMap) -> list[NamedRun]:
        """The rows of a map by the names of tensors; nothing for columns, negated or cast rows."""
        runs = one.runs if one.is_plain else ()
        return [NamedRun(self.names[run.tensor], run.start, run.length, run.to) for run in runs]

    def moves(self, one: FoundMap) -> tuple[LineMove, ...]:
        """The same as moves; none where there are more than MAX_MOVES."""
        if len(one.runs) > MAX_MOVES:
            return ()
        total = sum(run.length for run in one.runs)
        width = self.b[one.name].numel // total
        return tuple(
            LineMove(
                self.names[run.tensor],
                run.length,
                LinePlace(run.start, self.a[self.names[run.tensor]].numel // width),
                LinePlace(run.to, total, one.is_transposed),
            )
            for run in one.runs
        )

    def beside(self, one: FoundMap, left_b: Views) -> Iterator[tuple[str, list[str]]]:
        """(tensor of the second, those of the first) of what stands beside a matrix, proved by the same map of rows.

        A bias has an element for each row, and a scale or a factor of LoRA rows of its own width.
        """
        stem = one.name.removesuffix(".weight")
        if stem == one.name or not one.is_plain:
            return
        for name, view in list(left_b.items()):
            if name == one.name or not name.startswith(f"{stem}.") or not view.shape or not view.is_contiguous:
                continue
            ends = {old: f"{old.removesuffix('.weight')}{name[len(stem) :]}" for old in one.olds}
            claim = self._claim(one, view, ends)
            if claim is None:
                continue
            pairs = [WindowPair(old, view) for old in claim.olds.values()]
            if all(self.sides.map(is_proved, [(claim, pairs)])):
                yield name, list(ends.values())

    def _claim(self, one: FoundMap, view: View, ends: Mapping[str, str]) -> Claim | None:
        """That a tensor is made by the map of another one; None where shapes or types say no."""
        rows = sum(run.length for run in one.runs)
        if rows != view.shape[0] or not view.numel or view.dtype.block_elements != 1:
            return None
        width = view.numel // rows
        olds: dict[int, View] = {}
        for number in {run.tensor for run in one.runs}:
            old = self.a.get(ends[self.names[number]])
            if old is None or not old.is_contiguous or not old.shape or old.dtype != view.dtype:
                return None
            if old.numel != old.shape[0] * width:
                return None
            olds[number] = _rows(old, 0, old.shape[0], width)
        if any(run.start + run.length > olds[run.tensor].shape[0] for run in one.runs):
            return None
        return Claim(RowWay(RowForm(_rows(view, 0, rows, width))), olds, one.runs, self._memory)


def _rows(view: View, start: int, count: int, width: int) -> View:
    return View(view.storage, view.dtype, view.offset + start * width, (count, width), (width, 1))


def _is_number(view: View) -> bool:
    return _is_number_type(view.dtype)


def _is_number_type(dtype: object) -> bool:
    return str(getattr(dtype, "name", "")).startswith(CALCULATED)
