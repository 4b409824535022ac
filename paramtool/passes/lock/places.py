"""Where each name of an alias set is in what the set shares, so that overlaps are told from full aliases.

A place is counted from a name that covers all others, in its row-major elements: the first one by name.  So it is the
same for every container, whatever strides the covering tensor has there.  Where no name covers the others, places are
counted from the first byte that any of them uses.
"""

from __future__ import annotations

from math import lcm

from paramtool.lockfile.lock import LockedModel, LockedView
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, Views, contiguous, contiguous_strides, overlaps

Place = tuple[int, tuple[int, ...]]
"""A byte, and strides in elements."""


def places(views: Views) -> dict[str, Place]:
    """{name: its place}, of the names of one alias set that are not all of it.

    Views on another storage than the first name's are not compared: a declaration ties them, and no bytes do.

    >>> from paramtool.model.dtype import DTYPES
    >>> a, b = (View(0, DTYPES["float32"], offset, (8,), (1,)) for offset in (0, 4))
    >>> places({"a": a, "b": b}), places({"a": a, "b": a})
    ({'a': (0, (1,)), 'b': (16, (1,))}, {})
    """
    ordered = {name: views[name] for name in sorted(views) if 0 not in views[name].shape}
    first = next(iter(ordered.values()), None)
    if first is None:
        return {}
    here = {name: view for name, view in ordered.items() if view.storage == first.storage}
    distinct = list(dict.fromkeys(here.values()))
    if len(distinct) == 1:
        return {}
    # Views that could cover all others
    most = max(view.nbytes for view in distinct)
    for base in (view for view in distinct if view.nbytes == most and view.is_injective):
        found = {view: _inside(view, base) for view in distinct}
        if None not in found.values():
            whole = 0, contiguous_strides(base.shape)
            made = ((name, found[view], view) for name, view in here.items())
            return {name: at for name, at, view in made if at and (at != whole or view.shape != base.shape)}
    start = min(view.byte_start for view in distinct)
    start -= start % lcm(*(view.dtype.block_bytes for view in distinct))
    return {name: (view.byte_start - start, view.strides) for name, view in here.items()}


def _inside(view: View, base: View) -> Place | None:
    """The place of a view in the row-major elements of another one; None where it is not inside."""
    if base.is_contiguous:
        at = view.byte_start - base.byte_start
        fits = at >= 0 and view.byte_stop <= base.byte_stop and at % view.dtype.block_bytes == 0
        return (at, view.strides) if fits else None
    if view.dtype != base.dtype:
        return None
    steps = contiguous_strides(base.shape)
    axes = sorted(
        ((stride, size, step) for size, stride, step in zip(base.shape, base.strides, steps, strict=True) if size > 1),
        reverse=True,
    )
    found = _index(view.offset - base.offset, axes)
    if found is None:
        return None
    offset, reach = found
    strides = []
    for size, stride in view.axes:
        axis = next((k for k, (step, _, _) in enumerate(axes) if stride and stride % step == 0), None)
        if size == 1 or not stride:
            strides.append(0)
            continue
        if axis is None:
            return None
        reach[axis] += stride // axes[axis][0] * (size - 1)
        strides.append(stride // axes[axis][0] * axes[axis][2])
    if any(last >= size for last, (_, size, _) in zip(reach, axes, strict=True)):
        return None
    made = View(base.storage, view.dtype, offset, view.shape, tuple(strides))
    return made.byte_start, made.strides


def _index(distance: int, axes: list[tuple[int, int, int]]) -> tuple[int, list[int]] | None:
    """The row-major position of an element, and its index on each axis (stride, size, step); None where it is none."""
    position, index = 0, []
    for stride, size, step in axes:
        index.append(max(0, min(distance // stride, size - 1)))
        distance -= index[-1] * stride
        position += index[-1] * step
    return None if distance else (position, index)


def view_of(model: LockedModel, name: str) -> View | None:
    """The view of a locked tensor on what its alias set shares; None where its type is not known here."""
    tensor, at = model.tensors[name], model.views.get(name)
    dtype = DTYPES.get(tensor.dtype)
    try:
        if dtype is None:
            return None
        whole = contiguous("", dtype, tensor.shape)
        return _placed(whole, at) if at is not None else whole
    except ValueError:  # numbers out of range: they are a stranger's
        return None


def _placed(whole: View, at: LockedView) -> View:
    return View("", whole.dtype, 0, whole.shape, at.strides).on("", at.offset)


def meets(model: LockedModel, one: str, other: str) -> bool:
    """Whether two names of an alias set have a byte in common; True where that is not known."""
    if one not in model.views and other not in model.views:
        return True
    a, b = view_of(model, one), view_of(model, other)
    return a is None or b is None or overlaps(a, b)
