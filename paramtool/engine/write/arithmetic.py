"""Calculates what a copy writes: signed sums of windows, times a factor, plus a number, block by block.

Numbers are calculated in their own type, as the program that reads them would.  A single term moves bits: its sign is
flipped as a bit, so that NaNs and zeros survive both conversions.  A cast to another type comes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from paramtool.engine.read.blocks import BLOCK_NBYTES, blocks
from paramtool.engine.read.elements import ELEMENTS, number_type
from paramtool.engine.read.source import Source
from paramtool.engine.write.casting import Counts, cast
from paramtool.errors import LayoutError, PlanError, listed
from paramtool.model.plan import Copy, Requirement, Target
from paramtool.model.tiling import within
from paramtool.model.view import View

TILE = 1 << 20
"""How many elements of a transposed copy are made at once."""
ROW = 256
"""The fewest elements of such a copy that are written in one run if the source has long rows."""

Box = tuple[slice, ...]


def moves_bits(copy: Copy) -> bool:
    """Whether a copy writes unchanged bytes or zeros."""
    return copy.is_plain or (not copy.terms and not copy.shift)


def element_type(copy: Copy) -> str:
    """The NumPy type in which a copy is made: raw elements if only bits move, numbers otherwise."""
    return ELEMENTS[copy.destination.dtype.block_bytes] if moves_bits(copy) else number_type(copy.destination.dtype)


def value(copy: Copy, box: Box, source: Source, counts: Counts | None = None) -> Any:
    """What a copy writes into one box of its destination: an array, or one number for all of it.

    `counts` gets what a cast does to the numbers.
    """
    import numpy as np

    if moves_bits(copy):
        return source.array(copy.terms[0][1])[box] if copy.terms else 0
    if not copy.terms:
        return np.dtype(number_type(copy.destination.dtype)).type(copy.shift)
    with np.errstate(over="ignore", invalid="ignore"):
        found = total(copy.terms, copy.shift, box, source)
        if isinstance(copy.scale, View):
            scales = source.array(copy.scale).view(number_type(copy.scale.dtype))[box]
            found = _scaled(found, scales, str(copy.destination.storage))
        elif copy.scale != 1:
            found = found * found.dtype.type(copy.scale)
    if not copy.is_exact and not np.isfinite(found.astype("f8")).all():
        _refuse_overflow(copy, box, source)
    if copy.is_cast:
        made = cast(found, copy.destination.dtype)
        if counts is not None:
            counts.add(str(copy.destination.storage), found, made)
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
                    source.prove(int(view.storage))
                for box in boxes(copy):
                    value(copy, box, source, counts)


def computed(target: Target, source: Source) -> Any:
    """A whole target in memory, as an array of its dtype."""
    import numpy as np

    for copy in target.copies:
        for view in copy.sources:
            source.prove(int(view.storage))
    found = np.zeros(target.shape, number_type(target.dtype))
    _fill(target, source, 0, found.reshape(-1).view("u1"))
    return found


BAND_NBYTES = 32 << 20
"""How many bytes of a target that is not a run of the source are made in memory at once."""


def bands(target: Target, source: Source, counts: Counts | None = None) -> Iterator[Any]:
    """The bytes of a target, band by band, as its copies make them; each band is valid until the next one is asked for.

    They are made in memory.  The file is never memory-mapped: on a full disk, writing to a mapping ends the process.
    """
    import numpy as np

    size = BAND_NBYTES - BAND_NBYTES % target.dtype.block_bytes
    room = np.empty(min(size, target.nbytes), "u1")
    for low in range(0, target.nbytes, size):
        band = room[: target.nbytes - low]
        _fill(target, source, low, band, counts=counts)
        yield band


def _fill(target: Target, source: Source, low: int, data: Any, *, counts: Counts | None = None) -> None:
    """Make the bytes of a target from `low` on, as many as fit into `data`."""
    import numpy as np

    for copy in target.copies:
        view = copy.destination
        size = view.dtype.block_bytes
        for box in within(view, low, low + len(data)):
            start = view.byte_start + size * sum(at.start * s for at, s in zip(box, view.strides, strict=True)) - low
            shape = [at.stop - at.start for at in box]
            out = np.ndarray(shape, element_type(copy), data.data, start, [stride * size for stride in view.strides])
            for part in boxes(copy, tuple(shape)):
                place = tuple(slice(a.start + p.start, a.start + p.stop) for a, p in zip(box, part, strict=True))
                out[part] = value(copy, place, source, counts)


def _refuse_overflow(copy: Copy, box: Box, source: Source) -> None:
    """LayoutError if a sum of finite numbers overflows; NaNs and infinities of the source may stay."""
    import numpy as np

    whole = [source.array(term).view(number_type(term.dtype))[box].astype("f8") for _, term in copy.terms]
    with np.errstate(over="ignore", invalid="ignore"):
        found = total(copy.terms, copy.shift, box, source).astype("f8")
    if (np.isfinite(sum(whole)) & ~np.isfinite(found)).any():
        raise LayoutError(
            f"{copy.destination.storage!r}: a sum in it overflows {copy.terms[0][1].dtype.name}",
            hint="convert a float32 copy of the checkpoint",
        )


def total(terms: Sequence[tuple[int, View]], shift: float, box: Box, source: Source) -> Any:
    """The signed sum of a box of several windows, plus a number."""
    import numpy as np

    found: Any = None
    for sign, term in terms:
        part = source.array(term).view(number_type(term.dtype))[box]
        part = np.negative(part) if sign < 0 else part
        found = part if found is None else found + part
    if found is not None and shift:
        found = found + found.dtype.type(shift)
    return found


def boxes(copy: Copy, shape: tuple[int, ...] | None = None) -> Iterable[Box]:
    """Boxes that tile a copy, or a part of it with the given shape.

    If source and target have the same fastest axis, the boxes are rows.  If one is transposed, they are tiles, long
    along the source's fastest axis, and at least ROW elements long along the target's.
    """
    view = copy.destination
    shape = view.shape if shape is None else shape
    size = view.dtype.block_bytes
    windows = [view, *(term for _, term in copy.terms)]
    fastest = list(dict.fromkeys(_fastest(window) for window in windows if window.numel > ROW * ROW))
    if len(shape) < 2 or len(fastest) < 2:
        yield from blocks(shape, max(1, BLOCK_NBYTES // size))
        return
    # Tiles of the two axes that are fastest in source and target; the other axes go one by one.
    steps = [1] * len(shape)
    here, there = fastest[:2]
    steps[there] = min(shape[there], TILE // min(shape[here], ROW))
    steps[here] = TILE // steps[there]
    grid = [range(0, size, step) for size, step in zip(shape, steps, strict=True)]
    for corner in product(*grid):
        yield tuple(slice(k, min(k + s, n)) for k, s, n in zip(corner, steps, shape, strict=True))


def _fastest(view: View) -> int:
    """The axis along which neighbours are nearest."""
    steps = [(stride, -k) for k, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True)) if size > 1]
    return -min(steps)[1] if steps else 0


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
    found = (source.array(view).view(number_type(view.dtype)).all().reshape(-1)[0] for view in reversed(views))
    return ": {} and {}".format(*(f"{float(value):g}" if value.dtype.kind in "fui" else value for value in found))


def _holds(one: Requirement, source: Source) -> bool:
    """Whether the condition holds."""
    import numpy as np

    view = one.view
    for window in (view, *(term for _, term in one.terms)):
        source.prove(int(window.storage))
    exact = len(one.terms) == 1 and not one.shift and one.terms[0][0] == 1 and not one.rounding
    kind = ELEMENTS[view.dtype.block_bytes] if exact else number_type(view.dtype)
    for box in blocks(view.shape, max(1, BLOCK_NBYTES // view.dtype.block_bytes)):
        found = source.array(view).view(kind)[box]
        if exact:
            wanted = source.array(one.terms[0][1])[box]
        else:
            wanted = total(one.terms, one.shift, box, source) if one.terms else found.dtype.type(one.shift)
        same = found == wanted
        if not exact:
            same |= np.isnan(found) & np.isnan(wanted)  # a NaN gives a NaN
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
