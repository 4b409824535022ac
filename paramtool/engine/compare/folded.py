"""Whether a weight and a bias are those of a layer into which a batch norm was folded.

    weight'  =  weight * gamma / sqrt(variance + epsilon)                     for each output channel
    bias'    =  (bias - mean) * gamma / sqrt(variance + epsilon) + beta

Programs calculate this in the type of the weights.  It is calculated in float64 here, and may be apart by ULPS units in
the last place of the largest number that is added or multiplied.

Source: S. Ioffe and C. Szegedy, "Batch Normalization" (2015), section 3.1; torch.nn.utils.fusion of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from paramtool.engine.compare.changes import number_types
from paramtool.engine.read.elements import Array, number_type
from paramtool.engine.read.source import Source
from paramtool.model.dtype import DType
from paramtool.model.view import Shape, View

ULPS = 8
"""By how many units in the last place the folded numbers may differ."""
EPSILONS = (1e-5, 1e-3, 1e-6, 1e-4, 2e-5)
"""Of PyTorch and MXNet's symbols, Keras, and some models; no tensor says it."""
MAX_NBYTES = 256 << 20
"""Larger weights are not calculated."""
SAMPLES = 32
"""How many elements of a weight are calculated before all are."""


class NormViews(NamedTuple):
    """The tensors of a batch norm; one without gamma multiplies by 1, one without beta adds 0."""

    mean: View
    variance: View
    gamma: View | None = None
    beta: View | None = None

    @property
    def channels(self) -> int:
        """How many channels it has."""
        return self.mean.numel


class ChannelAxis(NamedTuple):
    """Where the output channels of a weight are, and how the folded weight has its axes."""

    axis: int
    order: tuple[int, ...]
    """The axes of the weight, in the order of those of the folded one."""
    groups: int = 1
    """Of a transposed convolution: the channels of its axis are those of one group, and axis 0 has the groups."""

    def channels(self, shape: Shape) -> Array:
        """The channel of each element of a weight, to be broadcast."""
        import numpy as np

        of_groups = shape[self.axis] if self.groups > 1 else 0
        places = np.ogrid[tuple(map(slice, shape))]
        found: Array = places[self.axis] + places[0] // (shape[0] // self.groups) * of_groups
        return found


class Folding(NamedTuple):
    """A batch norm in a weight."""

    norm: int
    """Its number."""
    epsilon: float
    axis: ChannelAxis


class NormFactor(NamedTuple):
    """What a batch norm multiplies each channel by."""

    norm: int
    epsilon: float
    factor: Array


def numbers(source: Source, view: View) -> Array:
    """The numbers of a window as float64."""
    source.prove(int(view.storage))
    found: Array = source.array(view).all().view(number_type(view.dtype)).astype("f8")
    return found


class Folds:
    """Batch norms of one checkpoint, and the weights of two in which they could be."""

    def __init__(self, source: Source, folded: Source, norms: list[NormViews]) -> None:
        """`source` has the norms and the weights before, `folded` the weights after."""
        self.source, self.folded, self.norms = source, folded, norms
        self._samples: dict[tuple[bool, View, tuple[int, ...]], Array] = {}
        self._by_count: dict[int, list[NormFactor]] = {}

    def find(self, weight: View, folded: View) -> Folding | None:
        """Which norm a weight holds, every element compared."""
        if number_types(weight, folded) is None or max(weight.nbytes, folded.nbytes) > MAX_NBYTES:
            return None
        for axis in _axes(weight.shape, folded.shape):
            factors = self._factors(weight.shape[axis.axis] * axis.groups)
            for k in self._sampled(weight, folded, axis, factors) if factors else ():
                one = Folding(factors[k].norm, factors[k].epsilon, axis)
                if self._holds(weight, folded, one, factors[k].factor):
                    return one
        return None

    def _factors(self, count: int) -> list[NormFactor]:
        """The factors of each channel, of every norm of this number of channels and every epsilon."""
        import numpy as np

        if count not in self._by_count:
            self._by_count[count] = []
            for k, norm in enumerate(self.norms):
                if norm.channels != count:
                    continue
                gamma = 1.0 if norm.gamma is None else numbers(self.source, norm.gamma)
                variance = numbers(self.source, norm.variance)
                with np.errstate(all="ignore"):
                    made = [np.reshape(gamma / np.sqrt(variance + epsilon), -1) for epsilon in EPSILONS]
                self._by_count[count] += [NormFactor(k, e, one) for e, one in zip(EPSILONS, made, strict=True)]
        return self._by_count[count]

    def _sampled(self, weight: View, folded: View, axis: ChannelAxis, factors: list[NormFactor]) -> Iterator[int]:
        """The numbers of the factors with which some elements are what the norm makes of them."""
        import numpy as np

        flat = np.unique(np.linspace(0, folded.numel - 1, min(SAMPLES, folded.numel)).astype("i8"))
        there = np.unravel_index(flat, folded.shape)
        here = tuple(there[axis.order.index(k)] for k in range(len(there)))
        mine, theirs = self._at((False, weight, axis.order), here), self._at((True, folded, axis.order), there)
        channels = np.broadcast_to(axis.channels(weight.shape), weight.shape)[here]
        expected = mine * np.stack([one.factor for one in factors])[:, channels]
        near = _near(theirs, expected, np.abs(expected), _shorter(weight, folded))
        yield from np.flatnonzero(near.all(1)).tolist()

    def _at(self, key: tuple[bool, View, tuple[int, ...]], index: tuple[Array, ...]) -> Array:
        """Some elements of a weight before or after, by their indices along each axis."""
        if key not in self._samples:
            is_folded, view, _ = key
            self._samples[key] = numbers(self.folded if is_folded else self.source, view)[index]
        return self._samples[key]

    def _holds(self, weight: View, folded: View, one: Folding, scale: Array) -> bool:
        import numpy as np

        expected = numbers(self.source, weight) * scale[one.axis.channels(weight.shape)]
        expected = expected.transpose(one.axis.order)
        return bool(_near(numbers(self.folded, folded), expected, np.abs(expected), _shorter(weight, folded)).all())

    def is_bias(self, bias: View | None, folded: View, one: Folding) -> bool:
        """Whether a bias of the folded layer is what the norm makes of that of the layer, or of none."""
        import numpy as np

        norm = self.norms[one.norm]
        if folded.numel != norm.channels or number_types(folded, folded) is None:
            return False
        if bias is not None and (bias.numel != norm.channels or number_types(bias, bias) is None):
            return False
        own = 0.0 if bias is None else numbers(self.source, bias).reshape(-1)
        mean = numbers(self.source, norm.mean).reshape(-1)
        beta = np.zeros(1) if norm.beta is None else numbers(self.source, norm.beta).reshape(-1)
        factors = self._factors(norm.channels)
        scale = next(each.factor for each in factors if (each.norm, each.epsilon) == (one.norm, one.epsilon))
        with np.errstate(all="ignore"):
            scaled = (own - mean) * scale
            largest = (np.abs(own) + np.abs(mean)) * np.abs(scale) + np.abs(beta)
        found = numbers(self.folded, folded).reshape(-1)
        return bool(_near(found, scaled + beta, largest, _shorter(norm.mean, folded)).all())


def _axes(shape: Shape, folded: tuple[int, ...]) -> Iterator[ChannelAxis]:
    """Where the channels could be: axis 0 or 1, or the last; a folded weight may have its axes as another library.

    A kernel is `out in *k` in PyTorch and ONNX, and `*k in out` in Keras; a matrix can be transposed.
    """
    count = len(shape)
    if count < 2 or len(folded) != count:
        return
    turned = (count - 1, count - 2, *range(count - 2))
    orders = dict.fromkeys([tuple(range(count)), turned, tuple(turned.index(k) for k in range(count))])
    for order in orders:
        if tuple(shape[k] for k in order) == folded:
            for axis in dict.fromkeys((0, 1, count - 1)):
                yield ChannelAxis(axis, order)
            for groups in range(2, shape[0] + 1):
                if count > 2 and not shape[0] % groups:
                    yield ChannelAxis(1, order, groups)


def _shorter(one: View, other: View) -> DType:
    return min(one.dtype, other.dtype, key=lambda dtype: dtype.block_bytes)


def _near(found: Array, expected: Array, largest: Array, dtype: DType) -> Array:
    """Which numbers are apart by at most ULPS units in the last place of others, in a type."""
    import ml_dtypes
    import numpy as np

    with np.errstate(all="ignore"):
        info: Any = ml_dtypes.finfo(number_type(dtype))  # type: ignore[no-untyped-call]
        unit = np.maximum(largest, float(info.smallest_normal)) * float(info.eps)
        near: Array = np.abs(found - expected) <= ULPS * unit
        return near
