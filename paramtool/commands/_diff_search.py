"""Maps that no table has: the rows of tensors found in the rows of others, and the same map for what is beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from paramtool.commands._diff_beside import NamedRun
from paramtool.engine.compare.rows import RowIndex, forms
from paramtool.engine.compare.sides import Sides
from paramtool.model.dtype import DType
from paramtool.model.rowmap import RowMap, RowRun, words
from paramtool.model.view import View
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


class Search:
    """The rows of tensors of the first checkpoint, and what of the second is made of them."""

    def __init__(self, a: Views, b: Views, sides: Sides, memory: int) -> None:
        self.b, self.sides = b, sides
        self.names = list(a)
        self.a = a
        self.missed: list[str] = []
        """Tensors of the first that did not fit into memory."""
        self._index = RowIndex(memory)
        wanted = {view.dtype for view in b.values()}
        first: dict[View, str] = {}
        for number, name in enumerate(self.names):
            if first.setdefault(a[name], name) == name:  # other names of one tensor are no other places
                self._add(number, a[name], wanted)

    def _add(self, number: int, view: View, wanted: set[DType]) -> None:
        form = next(forms(view), None)
        if form is None or form.is_transposed:
            return
        others = [one for one in wanted if one != view.dtype and _is_number(view) and _is_number_type(one)]
        ways: list[DType | None] = [None, *others]
        for dtype in ways:
            if not self._index.add(number, self.sides.a.source, form, dtype):
                self.missed.append(self.names[number])
                return

    def found(self) -> Iterator[FoundMap]:
        """Each tensor of the second that is made of rows of the first."""
        for name, view in self.b.items():
            if (one := self._of(name, view)) is not None:
                yield one

    def _of(self, name: str, view: View) -> FoundMap | None:
        for form in forms(view):
            for sign, dtype in self._ways(view):
                made = self._index.find(self.sides.b.source, form, sign=sign, dtype=dtype)
                if made is not None and self._is_of(made, dtype):
                    return self._described(name, view, made, (form.is_transposed, sign < 0, form.view.shape[1]))
        return None

    def _is_of(self, made: RowMap, dtype: DType | None) -> bool:
        """Whether rows cast to a type were found in tensors of this type: two casts can round to the same numbers."""
        return dtype is None or all(self.a[self.names[run.tensor]].dtype == dtype for run in made.runs)

    def _ways(self, view: View) -> Iterator[tuple[int, DType | None]]:
        """(sign, the type that rows are cast to) of what is tried: plain, negated, rounded to a type of the first."""
        yield 1, None
        if _is_number(view):
            yield -1, None
            for dtype in dict.fromkeys(one.dtype for one in self.a.values()):
                if dtype != view.dtype and _is_number_type(dtype):
                    yield 1, dtype

    def _described(self, name: str, view: View, made: RowMap, how: tuple[bool, bool, int]) -> FoundMap:
        is_transposed, is_negated, width = how
        olds = tuple(dict.fromkeys(self.names[one.tensor] for one in made.runs))
        known = short(olds)
        text = words(made.runs, [known.get(one, one) for one in self.names])
        text = f"transposed: {text}" if is_transposed else text
        text = f"negated: {text}" if is_negated else text
        used: dict[str, list[View]] = {}
        for one in made.runs:
            old = self.names[one.tensor]
            used.setdefault(old, []).append(_rows(self.a[old], one.start, one.length, width))
        is_cast = any(self.a[old].dtype != view.dtype for old in olds)
        plain = not (is_transposed or is_negated or is_cast)
        return FoundMap(name, olds, text, made.is_unique, used, is_cast, made.runs, plain)

    def named(self, one: FoundMap) -> list[NamedRun]:
        """The rows of a map by the names of tensors; nothing for columns, negated or cast rows."""
        runs = one.runs if one.is_plain else ()
        return [NamedRun(self.names[run.tensor], run.start, run.length, run.to) for run in runs]


def _rows(view: View, start: int, count: int, width: int) -> View:
    return View(view.storage, view.dtype, view.offset + start * width, (count, width), (width, 1))


def _is_number(view: View) -> bool:
    return _is_number_type(view.dtype)


def _is_number_type(dtype: object) -> bool:
    return str(getattr(dtype, "name", "")).startswith(CALCULATED)
