"""Which matrices of a module could be cells of recurrent networks, by their shapes alone.

A cell is two matrices, one for the input and one that is square apart from its gates, and the biases beside them:

    rows       W (gates * hidden, in)   R (gates * hidden, hidden)       torch, MXNet, ONNX, ...
    columns    W (in, gates * hidden)   R (hidden, gates * hidden)       Keras, Flax, ...
    joined     (in + hidden, gates * hidden)                             TensorFlow 1, Haiku

The tables of the layouts show which have tensors of such shapes.  No shape shows the order of the gates.  Names say
which tensors belong together where a module has several cells, and which two cells are the directions of one network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import prod

from paramtool.grouping import grouped
from paramtool.guessing.candidates import Guess
from paramtool.guessing.cells import CellTensors, Fit, candidates, fits, sides
from paramtool.guessing.names import RECURRENT
from paramtool.guessing.vectors import home_of
from paramtool.layouts.spec import GATES
from paramtool.model.view import Shape, Shapes

HIDDEN_SIDE = re.compile(r"hh(?![a-z])|h2h|h_to_h|rec|hid|(?:^|[._/])(?:u|wh|w_h|r)(?![a-z])", re.IGNORECASE)
"""Words for the recurrent matrix, which is multiplied with h."""
PART = re.compile(r"(?:weight|bias|kernel|w|b)(?::0)?", re.IGNORECASE)
"""Last words of names that have no meaning by themselves: the cell is one level up."""
LSTM = re.compile(r"lstm", re.IGNORECASE)
DENSE = re.compile(
    r"dense|linear|fc|proj|head|out|logit|softmax|classif|decode|embed|attn|query|key|value", re.IGNORECASE
)
"""Words of modules that are dense layers."""
MIN_HIDDEN = 2


def by_shapes(shapes: Shapes, asked: bool = False) -> list[Guess]:
    """Cells that are possible by their shapes, whatever their names.

    Square matrices, and cells without biases, count only if a name says that they are recurrent, or if `asked`.
    """
    used: set[str] = set()
    found: list[Guess] = []
    known: dict[tuple[object, ...], list[Fit]] = {}
    nothing: set[_Look] = set()
    inner, outer = _modules(shapes)
    for k, (at, members) in enumerate([*inner.items(), *outer.items()]):
        free = [name for name in members if name not in used]
        # All that decides whether a module has cells: a model of experts has 100,000 modules that look alike.
        last = at[len(home_of(at)) :].lstrip("./")
        own = tuple((name[len(at) :], shapes[name]) for name in free)
        if (look := (bool(RECURRENT.search(at)), "" if last.isdigit() else last, own)) in nothing:
            continue
        cells = _cells(at, free, shapes, asked)
        if not cells:
            nothing.add(look)
        for cell in cells:
            if cell.is_open and k >= len(inner) and not (asked or RECURRENT.search(_inside(at, cell.W))):
                continue  # two equal layers of a perceptron, called up and gate
            used |= {*cell.names}
            key = (cell.kind, cell.W == cell.R, bool(cell.backward), *(shapes[name] for name in cell.names))
            if key not in known:
                known[key] = list(fits(cell, shapes))
            found += candidates(cell, known[key], shapes)
    return found


_Look = tuple[bool, str, tuple[tuple[str, Shape], ...]]


def _inside(at: str, name: str) -> str:
    """A name without the path before its module's own name."""
    return name[len(home_of(at)) :]


def _modules(shapes: Shapes) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """({module: its tensors}, {module one level up: its tensors that are called weight or bias})."""
    inner: dict[str, list[str]] = {}
    outer: dict[str, list[str]] = {}
    for name in shapes:
        home = home_of(name)
        inner.setdefault(home, []).append(name)
        if home and PART.fullmatch(name[len(home) + 1 :]):
            outer.setdefault(home_of(home), []).append(name)
    return inner, outer


def _matrix(shape: Shape) -> tuple[int, int] | None:
    """The two axes of a matrix; in ONNX an axis of length 1 precedes them."""
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    return (shape[0], shape[1]) if len(shape) == 2 else None


def _length(shape: Shape) -> int:
    """The length of a vector, not counting axes of length 1; 0 if it is not a vector."""
    return prod(shape) if sum(size > 1 for size in shape) == 1 else 0


def _cells(at: str, members: Sequence[str], shapes: Shapes, asked: bool) -> list[CellTensors]:
    """The cells of one module, in the order of the file."""
    if sum(len(shapes[name]) > 1 for name in members) < 2 and not asked and not RECURRENT.search(at):
        return []
    hinted = asked or any(RECURRENT.search(_inside(at, name)) for name in members)
    free = list(members)
    found: list[CellTensors] = []
    for kind, gates in GATES.items():
        plain = len(gates) == 1 and not asked  # every square matrix would fit
        for side in (0, 1):
            cells = list(_paired(at, kind, side, free, shapes=shapes, bare=asked or (hinted and not plain)))
            of_gates = len(gates) == 1 and len(cells) > 2  # of one network, each gate with matrices of its own
            for cell in cells:
                if plain and not of_gates and not (hinted and HIDDEN_SIDE.search(_last(cell.R))):
                    continue
                free = [name for name in free if name not in cell.names]
                found += [] if of_gates else [cell]
    if hinted and not found:
        found = list(_joined(at, free, shapes)) if asked or _is_lstm(at, members) else []
    order = {name: k for k, name in enumerate(members)}
    found.sort(key=lambda cell: order[cell.W])
    second = {two.W: replace(one, backward=two.names) for one in found for two in found if sides(one.names, two.names)}
    firsts = {one.W: one for one in second.values()}
    kept = [firsts.get(cell.W, cell) for cell in found if cell.W not in second]
    return [replace(cell, number=number) for number, cell in enumerate(kept, 1)]


def _is_lstm(at: str, members: Sequence[str]) -> bool:
    """Whether a module is called an LSTM and holds exactly one matrix and one bias."""
    last = re.split(r"[./]", at)[-1]
    words = [last, *(name[len(at) :] for name in members)]
    return bool(LSTM.search(last)) and len(members) == 2 and not any(map(DENSE.search, words))


def _paired(at: str, kind: str, side: int, free: Sequence[str], *, shapes: Shapes, bare: bool) -> Iterator[CellTensors]:
    """Cells of two matrices whose gates are rows (side 0) or columns (side 1); `bare` ones need no biases."""
    gates = len(GATES[kind])
    sides = {name: (axes[side], axes[1 - side]) for name in free if (axes := _matrix(shapes[name]))}
    by_wide = grouped((wide, name) for name, (wide, _) in sides.items())
    for wide, found in by_wide.items():
        # The matrices without Keras' biases (2, gates * hidden), which look like matrices, if enough others are
        # left.
        matrices = [name for name in found if shapes[name] != (2, wide)]
        alike = matrices if len(matrices) > 1 else found
        pairs = _pairs(alike, {name: sides[name][1] for name in alike}, wide // gates) if wide % gates == 0 else []
        biases = _biases([name for name in free if name not in alike], shapes, wide, gates, pairs=pairs)
        for k, (w, r, is_open) in enumerate(pairs):
            is_swapped = HIDDEN_SIDE.search(_last(w)) and not (is_open or HIDDEN_SIDE.search(_last(r)))
            if (biases or bare) and wide // gates >= MIN_HIDDEN and not is_swapped:
                mine = biases[k] if biases else ()
                yield CellTensors(at, kind, w, r, mine, sides[w][1], wide // gates, is_open=is_open)


def _pairs(alike: Sequence[str], other: dict[str, int], hidden: int) -> list[tuple[str, str, bool]]:
    """(W, R, whether they could be swapped) of matrices with the same wide axis, in the order of the file."""
    order = {name: k for k, name in enumerate(alike)}
    square = [name for name in alike if other[name] == hidden]
    square.sort(key=lambda name: not HIDDEN_SIDE.search(_last(name)))
    pairs: list[tuple[str, str, bool]] = []
    left = set(alike)
    for r in square:
        free = [name for name in left if name != r]
        if r not in left or not free:
            continue
        mine = _words(r)
        w = min(free, key=lambda one: (other[one] == hidden, bool(HIDDEN_SIDE.search(_last(one))),
                                       len(_words(one) ^ mine), abs(order[one] - order[r]), order[one]))  # fmt: skip
        left -= {w, r}
        if other[w] != hidden:
            pairs.append((w, r, False))
            continue
        first, second = sorted((w, r), key=order.__getitem__)
        says = [bool(HIDDEN_SIDE.search(_last(name))) for name in (first, second)]
        swapped = says == [True, False]
        pairs.append((second, first, False) if swapped else (first, second, says[0] == says[1]))
    return sorted(pairs, key=lambda pair: order[pair[0]])


def _last(name: str) -> str:
    """The words of a name that distinguish the tensors of one cell."""
    home = home_of(name)
    last = name[len(home) :].lstrip("./")
    return _inside(home, name).lstrip("./") if PART.fullmatch(last) else last


def _words(name: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]+|\d+", name.lower()))


def _biases(
    free: Sequence[str], shapes: Shapes, wide: int, gates: int, *, pairs: Sequence[tuple[str, str, bool]]
) -> list[tuple[str, ...]]:  # fmt: skip
    """The biases of each cell, the recurrent one last; empty if they cannot be divided evenly."""
    if not pairs:
        return []
    single = [name for name in free if _length(shapes[name]) == wide]
    double = [name for name in free if _length(shapes[name]) == 2 * wide or shapes[name] == (2, wide)]
    inner = [name for name in free if _length(shapes[name]) == wide // gates] if gates == 3 else []
    if len(single) == len(inner) == len(pairs):
        return [one + two for one, two in zip(_dealt(single, pairs), _dealt(inner, pairs), strict=True)]
    return next((_dealt(found, pairs) for found, each in ((single, 2), (single, 1), (double, 1))
                 if found and len(found) == each * len(pairs)), [])  # fmt: skip


def _dealt(found: Sequence[str], pairs: Sequence[tuple[str, str, bool]]) -> list[tuple[str, ...]]:
    """Biases by the words that tell the matrices of one cell from those of another; else in the order of the file."""
    cells = [_words(w) & _words(r) for w, r, _ in pairs]
    telling = set[str]().union(*cells).difference(set[str].intersection(*cells))
    each = len(found) // len(pairs)
    dealt = [[name for name in found if _words(name) & telling == words & telling] for words in cells]
    if [len(names) for names in dealt] != [each] * len(pairs) or {*chain(*dealt)} != {*found}:
        dealt = [[*found[each * k : each * (k + 1)]] for k in range(len(pairs))]
    return [tuple(sorted(names, key=lambda name: bool(HIDDEN_SIDE.search(_last(name))))) for names in dealt]


def _joined(at: str, free: Sequence[str], shapes: Shapes) -> Iterator[CellTensors]:
    """LSTM cells of one matrix, with the rows of the input above those of h, and a bias."""
    for name in free:
        axes = _matrix(shapes[name])
        hidden, rest = divmod(axes[1], 4) if axes else (0, 0)
        if not axes or rest or not MIN_HIDDEN <= hidden < axes[0]:
            continue
        biases = [other for other in free if _length(shapes[other]) == axes[1]]
        if len(biases) == 1:
            yield CellTensors(at, "lstm", name, name, tuple(biases), axes[0] - hidden, hidden)
