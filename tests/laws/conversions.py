"""Conversions carried out in NumPy, without files: a second executor of copies and requirements, element by element.

A network here is {name: array}; each array stands in a storage of its own unless a test puts it elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import ml_dtypes
import numpy as np

from paramtool import layouts
from paramtool.errors import LayoutError
from paramtool.layouts.layout import Layout, LayoutTensor, stored
from paramtool.layouts.networks import Network
from paramtool.layouts.spec import Spec
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Requirement, Target
from paramtool.model.view import StorageId, View, contiguous
from paramtool.passes.rnn.convert import Converted, convert

NUMPY = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
BITS = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
"""Unsigned integers by the bytes of the numbers whose bits they show."""

NAMES = [layout.name for layout in layouts.all_layouts()]
NO_INNER_BIAS = {"flax.nnx", "flux", "flux.old", "lasagne", "coreml"}
"""Layouts whose GRU has no bias inside r * ( )."""
PEEPHOLES = {"tf1.basic", "tf1.block", "onnx", "onednn", "coreml", "coreml.proto", "lasagne"}
"""Layouts whose LSTM has them."""

Array = np.ndarray[Any, Any]
Buffers = Mapping[StorageId, Array]
"""Storages as vectors of one element type each."""


def window(view: View, buffers: Buffers) -> Array:
    """The elements of a window; writing to it writes to its buffer."""
    buffer = buffers[view.storage]
    assert view.offset + view.extent <= buffer.size, f"{view} reaches behind its storage of {buffer.size} elements"
    strides = [stride * buffer.itemsize for stride in view.strides]
    return np.lib.stride_tricks.as_strided(buffer[view.offset :], view.shape, strides)


def negative(array: Array) -> Array:
    """The same numbers with their sign bits turned over: exact for NaNs, infinities and zeros."""
    bits = BITS[array.dtype.itemsize]
    sign = bits.type(1 << (8 * bits.itemsize - 1))
    return (np.ascontiguousarray(array).view(bits) ^ sign).reshape(array.shape).view(array.dtype)


def total(terms: Iterable[tuple[int, View]], shift: float, buffers: Buffers) -> Array | None:
    """The signed sum of windows and a number, rounded after each step; one term moves its bits; None for no term."""
    parts = [window(view, buffers) if sign > 0 else negative(window(view, buffers)) for sign, view in terms]
    if not parts:
        return None
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found + found.dtype.type(shift) if shift else found


def filled(target: Target, buffers: Buffers) -> Array:
    """What the copies of a target write; AssertionError unless they write each element exactly once."""
    size = int(np.prod(target.shape, dtype=np.int64))
    flat, count = np.empty(size, NUMPY[target.dtype.name]), np.zeros(size, np.int64)
    places: Buffers = {target.name: flat}
    numbers: Buffers = {target.name: np.arange(size)}
    for copy in target.copies:
        assert all(view.shape == copy.destination.shape for _, view in copy.terms), f"{copy}: windows of other shapes"
        value = total(copy.terms, copy.shift, buffers)
        window(copy.destination, places)[...] = flat.dtype.type(copy.shift) if value is None else value
        np.add.at(count, window(copy.destination, numbers).reshape(-1), 1)
    assert (count == 1).all(), f"{target.name}: its elements are written {count.tolist()} times"
    return flat.reshape(target.shape)


def holds(one: Requirement, buffers: Buffers) -> bool:
    """Whether a requirement is met; twins are compared by their bits, everything else as numbers."""
    found, wanted = window(one.view, buffers), total(one.terms, one.shift, buffers)
    if wanted is None:
        return bool((found == found.dtype.type(one.shift)).all())
    if len(one.terms) == 1 and not one.shift:
        return np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(wanted).tobytes()
    return np.array_equal(found, wanted)


@dataclass(frozen=True)
class Held:
    """A network's tensors, and where they stand."""

    layout: Layout
    spec: Spec
    options: Mapping[str, str]
    at: str
    buffers: Buffers
    views: Mapping[str, View]
    """By their names in the checkpoint; tensors that a conversion kept are among them."""

    @cached_property
    def tensors(self) -> list[LayoutTensor]:
        """Its tensors, as the layout lists them."""
        return stored(self.layout, self.layout.form(self.spec, self.options), self.spec, self.options)

    @cached_property
    def network(self) -> Network:
        """The network, with nothing left to be found out."""
        form = self.layout.form(self.spec, self.options)
        names = {tensor.name: full(self.layout, self.at, tensor.name) for tensor in self.tensors}
        return Network(self.at, self.layout, form, self.spec, self.options, names)

    def arrays(self) -> dict[str, Array]:
        """{name in the layout: numbers}; what was kept beside them is left out."""
        names = self.network.tensors
        return {own: np.ascontiguousarray(window(self.views[name], self.buffers)) for own, name in names.items()}

    def bytes(self) -> dict[str, tuple[tuple[int, ...], bytes]]:
        """{name in the layout: (shape, bytes)}."""
        return {name: (array.shape, array.tobytes()) for name, array in self.arrays().items()}

    def without_kept(self) -> Held:
        """The same network, and nothing beside it."""
        names = set(self.network.tensors.values())
        return replace(self, views={name: view for name, view in self.views.items() if name in names})


def full(layout: Layout, at: str, name: str) -> str:
    """The name of a tensor below its module's."""
    return f"{at}{layout.separator}{name}" if at else name


def held(
    arrays: Mapping[str, Array], layout: str, spec: Spec, options: Mapping[str, str] | None = None, at: str = "net"
) -> Held:
    """Arrays by their names in the checkpoint, each in a storage of its own."""
    found = layouts.find(layout)
    buffers = {k: np.ascontiguousarray(array).reshape(-1) for k, array in enumerate(arrays.values())}
    kinds = {name: DTYPES[array.dtype.name] for name, array in arrays.items()}
    views = {name: contiguous(k, kinds[name], array.shape) for k, (name, array) in enumerate(arrays.items())}
    return Held(found, spec, found.chosen(options or {}), at, buffers, views)


def plan_of(source: Held, layout: str, options: Mapping[str, str] | None = None, keep_split: bool = False) -> Converted:
    """The plan of a conversion."""
    found = layouts.find(layout)
    return convert(source.network, source.views, found, options or {}, at=source.at, keep_split=keep_split)


def meets(source: Held, plan: Converted) -> bool:
    """Whether everything that a plan requires holds."""
    return all(holds(one, source.buffers) for one in plan.requires)


def forced(source: Held, plan: Converted) -> Held:
    """The network that a plan writes, with what it keeps, whatever it requires."""
    made = {target.name: filled(target, source.buffers) for target in (*plan.targets, *plan.kept)}
    return held(made, plan.layout.name, plan.spec, plan.options, plan.at)


def carried_out(source: Held, plan: Converted) -> Held:
    """The network that a plan writes, with what it keeps; AssertionError where it requires what does not hold."""
    for one in plan.requires:
        assert holds(one, source.buffers), one.message
    return forced(source, plan)


def move(source: Held, layout: str, options: Mapping[str, str] | None = None, keep_split: bool = False) -> Held:
    """A network in another layout."""
    return carried_out(source, plan_of(source, layout, options, keep_split))


@cache
def can_hold(layout: str, spec: Spec) -> bool:
    """Whether a layout has a form for a network."""
    found = layouts.find(layout)
    try:
        found.form(spec, found.chosen({}))
    except LayoutError:
        return False
    return True


def neutral_layout(spec: Spec) -> str:
    """A layout that holds a network with all its parts apart: torch, and ONNX or oneDNN for what torch lacks."""
    if spec.peephole or spec.reset == "before":
        return "onednn" if spec.projection else "onnx"
    return "torch"


def neutral(spec: Spec, seed: int, inner_bias: bool = True, dtype: str = "float32", bits: bool = False) -> Held:
    """A network of random numbers, or of random bits; the bias inside a GRU's r * ( ) may be zero."""
    random = np.random.default_rng(seed)
    layout = layouts.find(neutral_layout(spec))
    arrays: dict[str, Array] = {}
    for tensor in held({}, layout.name, spec).tensors:
        kind, size = NUMPY[dtype], int(np.prod(tensor.shape))
        found = random.normal(size=size).astype(kind)
        if bits:
            found = random.integers(0, 256, size * kind.itemsize, np.uint8).view(kind)
        found = found.reshape(tensor.shape)
        if tensor.name.startswith("bias_hh") and not inner_bias and spec.kind == "gru":
            found[2 * spec.hidden :] = 0
        arrays[full(layout, "net", tensor.name)] = found
    return held(arrays, layout.name, spec)
