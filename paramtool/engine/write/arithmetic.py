"""Calculates what a copy writes: signed sums of windows, times a factor, plus a number, block by block.

Numbers are calculated in their own type, as the program that reads them would.  A single term moves bits: its sign is
flipped as a bit, so that NaNs and zeros survive both conversions.  A cast to another type comes last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

from paramtool.engine.read.blocks import BLOCK_NBYTES, blocks, fastest, spread
from paramtool.engine.read.elements import ELEMENTS, number_type, room
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import same_window
from paramtool.engine.read.threads import CORES, Promise, Threads
from paramtool.engine.write.casting import Counts, cast
from paramtool.errors import LayoutError, PlanError, listed
from paramtool.model.plan import Copy, Requirement, Target
from paramtool.model.tiling import within
from paramtool.model.view import Shape, View

TILE = 1 << 18
"""How many elements are calculated at once: they and their sums stay in a processor's cache."""
ROW = 256
"""Windows of fewer rows and columns than this are read whole, whatever the order of their elements."""

Box = tuple[slice, ...]


def moves_bits(copy: Copy) -> bool:
    """Whether a copy writes unchanged bytes or zeros."""
    return copy.is_plain or (not copy.terms and not copy.shift)


def element_type(copy: Copy) -> str:
    """The NumPy type in which a copy is made: raw elements if only bits move, numbers otherwise."""
    return ELEMENTS[copy.destination.dtype.block_bytes] if moves_bits(copy) else number_type(copy.destination.dtype)


def value(copy: Copy, box: Box, source: Source, counts: Counts | None = None) -> Any:
    """What a copy writes into one box of its destination: an array, or one number for all of it.

    `counts` gets what a cast does to the numbers, and to the products of codes and scales.
    """
    import numpy as np

    if moves_bits(copy):
        return source.array(copy.source)[box] if copy.terms else 0
    if not copy.terms:
        return np.dtype(number_type(copy.destination.dtype)).type(copy.shift)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = found = total(copy.terms, copy.shift, box, source)
        if isinstance(copy.scale, View):
            scales = source.numbers(copy.scale)[box]
            exact = found.astype("f8") * scales.astype("f8") if counts is not None else found
            found = _scaled(found, scales, str(copy.destination.storage))
        elif copy.scale != 1:
            exact = found = found * found.dtype.type(copy.scale)
    if not copy.is_exact and not np.isfinite(found.astype("f8")).all():
        _refuse_overflow(copy, box, source)
    if copy.is_cast:
        made = cast(found, copy.destination.dtype)
        if counts is not None:
            counts.add(str(copy.destination.storage), exact, made)
        return made
    return found


def _scaled(codes: Any, scales: Any, name: str) -> Any:
    """Codes of a quantised weight times their scales, in the scales' type, or float32 where that has one byte.

    PlanError where a product is too large for it.
    """
    import numpy as np

    scales = scales if scales.dtype.itemsize > 1 else scales.astype("f4")
    found = codes.astype(scales.dtype) * scales
    if (np.isinf(found.astype("f4")) & np.isfinite(codes.astype("f4")) & np.isfinite(scales.astype("f4"))).any():
        raise PlanError(f"{name!r}: codes times scales overflow {scales.dtype}")
    return found


def count(targets: Iterable[Target], source: Source, counts: Counts) -> None:
    """Read what is cast, and count what the casts would do; nothing is written."""
    for target in targets:
        for copy in target.copies:
            if copy.is_cast:
                for view in copy.sources:
                    source.prove(view.number)
                for box in boxes(copy):
                    value(copy, box, source, counts)


def computed(target: Target, source: Source) -> Any:
    """A whole target in memory, as an array of its dtype."""
    import numpy as np

    for copy in target.copies:
        for view in copy.sources:
            source.prove(view.number)
    found = np.zeros(target.shape, number_type(target.dtype))
    with Threads() as threads:
        _finished(None, _begun(target, source, 0, found.reshape(-1).view("u1"), threads=threads), None)
    return found


BAND_NBYTES = 80 << 20
"""How many bytes of a transposed target are made in memory at once: where a band has more rows, the source is read in
longer runs.  Of others an eighth, twice."""
THREADS_NBYTES = 4 << 20
"""Fewer bytes are made by one thread: starting more takes longer."""


def bands(target: Target, source: Source, counts: Counts | None = None, *, proves: bool = False) -> Iterator[Any]:
    """The bytes of a target, band by band, as its copies make them; each band is valid until the next one is asked for.

    What `proves` cuts elsewhere: an error at the edge of a band is another one there.
    While the caller has one, the next one is made, but for a transposed target.  They are made in memory.  The file is
    never memory-mapped: on a full disk, writing to a mapping ends the process.
    """
    turned = any(fastest(term) != fastest(copy.destination) for copy in target.copies for _, term in copy.terms)
    size, ahead = (BAND_NBYTES, 0) if turned else (BAND_NBYTES >> 3, 1)
    size = max(min(size, target.nbytes) * 5 // 8, target.dtype.block_bytes) if proves else size
    row = max(1, target.nbytes // max(1, prod(target.shape[:1])))
    size -= size % (row if 8 * row <= size else target.dtype.block_bytes)
    begun: deque[tuple[Any, list[Promise[Counts]]]] = deque()
    second = ahead * min(size, max(0, target.nbytes - size))
    with room(min(size, target.nbytes)) as one, room(second) as other, Threads() as threads:
        for number, low in enumerate(range(0, target.nbytes, size)):
            band = (one, other)[number % 2 * ahead][: target.nbytes - low]
            begun.append((band, _begun(target, source, low, band, threads=threads)))
            if len(begun) > ahead:
                yield _finished(*begun.popleft(), counts)
        while begun:
            yield _finished(*begun.popleft(), counts)


Piece = tuple[Copy, Box, Any]
"""A box of a copy, and where it goes: an array."""


def _begun(target: Target, source: Source, low: int, data: Any, *, threads: Threads) -> list[Promise[Counts]]:
    """Begin to make the bytes of a target from `low` on, as many as fit into `data`; the promises give the losses."""

    def make(piece: Piece) -> Counts:
        copy, box, out = piece
        lost = Counts()
        if copy.terms and moves_bits(copy):
            source.array(copy.source).into(box, out)
        else:
            out[...] = value(copy, box, source, lost)
        return lost

    is_shared = len(data) >= THREADS_NBYTES and source.share(view for copy in target.copies for view in copy.sources)
    promises = []
    for piece in _pieces(target, low, data):
        work = partial(make, piece)
        promises.append(threads.submit(work) if is_shared else Promise(work))
        if not is_shared:
            promises[-1].keep()
    return promises


def _finished(data: Any, promises: Iterable[Promise[Counts]], counts: Counts | None) -> Any:
    """The bytes that were begun, once they are made; `counts` gets what casts lost."""
    for promise in promises:
        lost = promise.result()
        if counts is not None:
            counts.merge(lost)
    return data


def _pieces(target: Target, low: int, data: Any) -> Iterator[Piece]:
    """The boxes that are made one by one, by several threads."""
    import numpy as np

    for copy in target.copies:
        view = copy.destination
        size = view.dtype.block_bytes
        for box in within(view, low, low + len(data)):
            start = view.byte_start + size * sum(at.start * s for at, s in zip(box, view.strides, strict=True)) - low
            shape = tuple(at.stop - at.start for at in box)
            out: Any = np.ndarray(
                shape, element_type(copy), data.data, start, [stride * size for stride in view.strides]
            )
            for part in _rows(copy, shape) if moves_bits(copy) else boxes(copy, shape):
                place = tuple(slice(a.start + p.start, a.start + p.stop) for a, p in zip(box, part, strict=True))
                yield copy, place, out[(*part, ...)]  # an array, even of one element


def _rows(copy: Copy, shape: Shape) -> Iterator[Box]:
    """A box of a copy in parts that are far from each other in its source, so that each is read in long runs."""
    strides = copy.source.strides if copy.terms else copy.destination.strides
    axis = max(range(len(shape)), key=lambda k: (shape[k] > 1, strides[k]), default=0)
    size = shape[axis] if shape else 1
    step = -(-size // (2 * CORES)) if prod(shape) * copy.destination.dtype.block_bytes >= THREADS_NBYTES else size
    for start in range(0, size, step):
        yield tuple(slice(start, min(start + step, size)) if k == axis else slice(0, n) for k, n in enumerate(shape))


def _refuse_overflow(copy: Copy, box: Box, source: Source) -> None:
    """LayoutError if a sum of finite numbers overflows; NaNs and infinities of the source may stay."""
    import numpy as np

    whole = [source.numbers(term)[box].astype("f8") for _, term in copy.terms]
    with np.errstate(over="ignore", invalid="ignore"):
        found = total(copy.terms, copy.shift, box, source).astype("f8")
    if (np.isfinite(sum(whole)) & ~np.isfinite(found)).any():
        raise LayoutError(
            f"{copy.destination.storage!r}: a sum in it overflows {copy.source.dtype.name}",
            hint="convert a float32 copy of the checkpoint",
        )


def total(terms: Sequence[tuple[int, View]], shift: float, box: Box, source: Source) -> Any:
    """The signed sum of a box of several windows, plus a number."""
    import numpy as np

    found: Any = None
    for sign, term in terms:
        part = source.numbers(term)[box]
        part = np.negative(part) if sign < 0 else part
        found = part if found is None else found + part
    if found is not None and shift:
        found = found + found.dtype.type(shift)
    return found


def boxes(copy: Copy, shape: Shape | None = None) -> Iterator[Box]:
    """Boxes that tile a copy, or a part of it with the given shape: rows, or tiles where source and target have
    different fastest axes.
    """
    view = copy.destination
    shape = view.shape if shape is None else shape
    windows = [view, *(term for _, term in copy.terms)]
    return spread([window for window in windows if window.numel > ROW * ROW], shape, TILE)


def prove(requires: Iterable[Requirement], source: Source) -> None:
    """Check a plan's conditions on the source's bytes; LayoutError lists those that do not hold.

    PlanError where only the state of an optimizer breaks some.
    """
    failed = [one for one in requires if not _holds(one, source)]
    if failed:
        lines = list(dict.fromkeys(f"{one.message}{_values(one, source)}" for one in failed))
        hint = "; ".join(dict.fromkeys(one.hint for one in failed if one.hint))
        text = lines[0] if len(lines) == 1 else listed(f"{len(lines)} conditions do not hold:", lines)
        raise (PlanError if all(one.is_of_state for one in failed) else LayoutError)(text, hint)


def _values(one: Requirement, source: Source) -> str:
    """Both values, where a condition is that two numbers are equal, such as the steps of two parameters."""
    views = (one.view, *(term for _, term in one.terms))
    if len(views) != 2 or any(view.numel != 1 for view in views):
        return ""
    found = (source.numbers(view).all().reshape(-1)[0] for view in reversed(views))
    return ": {} and {}".format(*(f"{float(value):g}" if value.dtype.kind in "fui" else value for value in found))


def _holds(one: Requirement, source: Source) -> bool:
    """Whether the condition holds."""
    import numpy as np

    view = one.view
    for window in (view, *(term for _, term in one.terms)):
        source.prove(window.number)
    if len(one.terms) == 1 and not one.shift and one.terms[0][0] == 1 and not one.rounding:
        return same_window(source, view, source, one.terms[0][1], threads=CORES)
    for box in blocks(view.shape, max(1, BLOCK_NBYTES // view.dtype.block_bytes)):
        found = source.numbers(view)[box]
        wanted = total(one.terms, one.shift, box, source) if one.terms else found.dtype.type(one.shift)
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))  # a NaN gives a NaN
        if one.rounding:
            same |= _are_near(found, wanted, one)
        if not same.all():
            return False
    return True


_LAST_PLACE = {"float64": -52, "float32": -23, "float16": -10, "bfloat16": -7}
"""{type: the power of two of a unit in the last place of 1}"""


def _are_near(found: Any, wanted: Any, one: Requirement) -> Any:
    """Which elements differ by no more than the rounding that a condition allows."""
    import numpy as np

    a, b = (np.asarray(side).astype("f8") for side in (found, wanted))
    largest = np.nanmax(np.abs(a), initial=0.0)
    unit = 2.0 ** _LAST_PLACE.get(one.view.dtype.name, -1075)
    return np.abs(a - b) <= one.rounding * unit * largest
