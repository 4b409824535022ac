"""Changes that have a known reason: sums of biases, a number that is added to a bias, a norm that is stored less 1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from paramtool.commands.diff.settled import Settled, may_be_cast
from paramtool.commands.diff.tables import Proposal, of_networks
from paramtool.engine.compare.casts import cast_raw, is_rounding
from paramtool.engine.compare.changes import (
    WindowPair,
    are_one,
    number_types,
    rounded,
    shift_between,
    shift_of,
)
from paramtool.engine.compare.sides import Sides, is_number
from paramtool.engine.read.elements import Array, number_type
from paramtool.engine.read.source import Source
from paramtool.engine.write.verify import same_targets
from paramtool.errors import LayoutError
from paramtool.grouping import paired
from paramtool.layouts.networks import Network
from paramtool.layouts.spec import Cell
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.conventions import CONVENTIONS, COUNTERS
from paramtool.model.diff import CHANGED, LED_BACK
from paramtool.model.dtype import DType
from paramtool.model.plan import Target
from paramtool.model.view import Shape, View, Views
from paramtool.passes.rnn.find import Found

MAX_CALCULATED_NBYTES = 256 << 20
"""The largest tensor that is calculated to be compared."""
NORM = re.compile(r"(^|[._])(.*norm.*|ln|ln_?[0-9a-z]*|rms.*|scale|gamma)([._]|$)", re.IGNORECASE)
"""Names of norms, as a word of a tensor's name."""


class Explained(NamedTuple):
    """A tensor of the second checkpoint that holds other numbers for a known reason."""

    olds: tuple[str, ...]
    name: str
    how: str
    layout: str = ""


def calculated(one: Proposal, made_of: Source, there: View, source: Source) -> str:
    """What explains that a tensor is what arithmetic makes of others, in words; "" where it is not."""
    why = reason(one.target)
    if not why:
        return ""
    if is_calculated(one.target, made_of, there, source):
        return f"explained by {why}, {one.how}"
    if one.target.dtype == there.dtype or not may_be_cast(one.target.view, there):
        return ""
    types = f"{one.target.dtype.name} and cast to {there.dtype.name}"
    if is_calculated(one.target.cast(there.dtype), made_of, there, source):
        return f"explained by {why}, calculated in {types}, {one.how}"
    if _is_sum_of_casts(one.target, made_of, there, source):
        return f"explained by {why}, of {types} first, {one.how}"
    return ""


def _is_sum_of_casts(target: Target, made_of: Source, there: View, source: Source) -> bool:
    """Whether a tensor is the sum of others that were cast to its type first, in that type."""
    import numpy as np

    if target.nbytes > MAX_CALCULATED_NBYTES or there.shape != target.shape or not there.is_contiguous:
        return False
    kind = np.dtype(number_type(there.dtype))
    made = source.array(there).all().view(kind).reshape(-1)
    for copy in target.copies:
        here, total = copy.destination, kind.type(copy.shift)
        with np.errstate(all="ignore"):
            for sign, term in copy.terms:
                made_of.prove(term.number)
                part = cast_raw(made_of.array(term).all(), term.dtype, there.dtype)
                total = total + (np.negative(part) if sign < 0 else part)
        steps = [stride * kind.itemsize for stride in here.strides]
        window = np.lib.stride_tricks.as_strided(made[here.offset :], here.shape, steps)
        if np.broadcast_to(total, here.shape).tobytes() != window.tobytes():
            return False
    return True


def is_calculated(target: Target, made_of: Source, there: View, source: Source) -> bool:
    """Whether a tensor is what arithmetic makes of others: the sum of two biases, a bias and its forget bias."""
    is_alike = (there.shape, there.dtype) == (target.shape, target.dtype)
    if not is_alike or all(copy.is_plain for copy in target.copies):
        return False
    try:
        return same_targets((source, made_of), [(there, target)])[0]
    except LayoutError:  # a sum that overflows
        return False


def without_zeros(target: Target, made_of: Source) -> Target:
    """The same target, each of whose sums lacks what is zero: the sum of a bias and of zeros is this bias."""
    copies = []
    for copy in target.copies:
        terms = copy.terms
        if len(terms) > 1:
            terms = tuple(term for term in terms if not is_number(made_of, term[1], 0.0)) or terms[:1]
        copies.append(replace(copy, terms=terms))
    return replace(target, copies=tuple(copies))


def reason(target: Target) -> str:
    """What arithmetic a target needs, in words; "" where only bits move."""
    if all(len(copy.terms) <= 1 and not copy.shift for copy in target.copies):
        return ""
    summed = any(len(copy.terms) > 1 for copy in target.copies)
    return "sums of biases" if summed else "a number that is added (a forget bias)"


def read_back(
    checkpoints: tuple[Checkpoint, Checkpoint], networks: tuple[Sequence[Found], Sequence[Found]],
    left: tuple[Views, Views], sides: Sides,
) -> Iterator[Explained]:  # fmt: skip
    """Tensors of the second that arithmetic makes those of the first of: A has the sums of B's biases."""
    (a, b), (mine, theirs) = checkpoints, networks
    for proposed in of_networks(b, a, (theirs, mine)):
        for proposal in proposed:
            short = without_zeros(proposal.target, sides.b.source)
            one = proposal._replace(target=short) if reason(short) else proposal
            name = one.target.name
            news = [new for new in one.target.names if new in left[1] and _is_read(left[1][new], one.target)]
            why = reason(one.target)
            if not news or not why or name not in left[0]:
                continue
            if is_calculated(one.target, sides.b.source, left[0][name], sides.a.source):
                for new in news:
                    yield Explained((name,), new, f"explained by {why} in A, {one.how} (B -> A)", one.layout)


def _is_read(view: View, target: Target) -> bool:
    """Whether a target is made of a tensor: zeros of a sum are left out, and their tensor is still named."""
    terms = (term for copy in target.copies for _, term in copy.terms)
    return any(term.storage == view.storage and view.byte_start <= term.byte_start < view.byte_stop for term in terms)


def norms(pairs: Iterable[tuple[str, str]], left: tuple[Views, Views], sides: Sides) -> Iterator[Explained]:
    """Vectors of pairs of names, each of which is the other plus or minus 1."""
    for old, new in pairs:
        a, b = left[0][old], left[1][new]
        if len(a.shape) > 1 or a.shape != b.shape:
            continue
        shift = shift_between(sides.a.source, a, sides.b.source, b)
        if shift:
            what = "a zero-centred norm" if NORM.search(new) or NORM.search(old) else "a number that is added"
            sign = "+" if shift > 0 else "-"
            yield Explained((old,), new, f"explained by {what}: {sign} 1")


# --- Biases of a network that both have in one layout: sums that are kept, or a forget bias more ---------------------


BIASES = {"bW", "bR"}


def kept_sums(state: Settled) -> Iterator[Explained]:
    """Biases without a verdict of networks whose other tensors have one."""
    for mine in (one.network for one in state.networks[0]):
        for theirs in (one.network for one in state.networks[1]):
            if not _are_alike(mine, theirs):
                continue
            names = [(mine.tensors[own], theirs.tensors[own]) for own in mine.tensors]
            left = [
                (old, new)
                for old, new in names
                if old in state.left_a and new in state.left_b and state.a[old].shape == state.b[new].shape
            ]
            rest = [(state.found.get(new), old) for old, new in names if (old, new) not in left]
            if not left or not all(one and one.kind in LED_BACK and one.a == (old,) for one, old in rest):
                continue
            if why := _why(state, mine, theirs, {old for old, _ in left}):
                yield from (Explained((old,), new, f"{why}, {mine.layout.name}", mine.layout.name) for old, new in left)


def _are_alike(mine: Network, theirs: Network) -> bool:
    """Whether two networks have one layout and one spec; and none of their tensors is read from elsewhere."""
    return (
        (mine.layout.name, mine.options, mine.spec) == (theirs.layout.name, theirs.options, theirs.spec)
        and mine.tensors.keys() == theirs.tensors.keys()
        and not mine.raw
        and not theirs.raw
    )


def _why(state: Settled, mine: Network, theirs: Network, left: set[str]) -> str:
    """What explains that two networks differ in their biases, in words; "" where nothing does."""
    own = {name for tensor, name in mine.tensors.items() if name in left}
    if any(not tensor.row.kinds() <= BIASES for tensor in mine.stored() if mine.tensors[tensor.name] in own):
        return ""
    a, b = _biases(mine, state.a, state.sides.a.source), _biases(theirs, state.b, state.sides.b.source)
    found = set[int]()
    for cell, numbers in a.items():
        is_split = mine.spec.kind == "gru" and cell.gate == "n" and mine.spec.reset != "before"  # they are not summed
        shifts = _of_gate(numbers, b.get(cell, []), is_forget=cell.gate == "f", is_split=is_split)
        if shifts is None:
            return ""
        found |= shifts
    shifts = found - {0}
    if len(shifts) > 1:
        return ""
    parts = ["sums of biases, which are the same"] if 0 in found else []
    parts += [f"a number that is added (a forget bias): {shift:+d}".replace("+", "+ ").replace("-", "- ")
              for shift in shifts]  # fmt: skip
    return f"explained by {', and '.join(parts)}" if parts else ""


def _biases(network: Network, views: Views, source: Source) -> dict[Cell, list[tuple[DType, Array]]]:
    """{gate of a layer and direction: its biases in their type}"""
    found: dict[Cell, list[tuple[DType, Array]]] = {}
    for _, place in network.places(views):
        cells = [cell for _, cell in place.terms if cell.kind in BIASES]
        if cells:
            source.prove(place.view.number)
            numbers = source.numbers(place.view).all().reshape(-1)
            found.setdefault(cells[0]._replace(kind=""), []).append((place.view.dtype, numbers))
    return found


def _of_gate(
    a: list[tuple[DType, Array]], b: list[tuple[DType, Array]], *, is_forget: bool, is_split: bool
) -> set[int] | None:
    """What explains that the biases of a gate differ, if they do: 0 for a sum that is kept, 1 or -1 that is added.

    None where nothing does.
    """
    dtypes = {dtype for dtype, _ in (*a, *b)}
    if len(a) != len(b) or len(dtypes) != 1 or not (dtype := next(iter(dtypes))).is_floating:
        return None
    other = [(x, y) for (_, x), (_, y) in zip(a, b, strict=True) if x.tobytes() != y.tobytes()]
    if not other:
        return set()
    if is_split:
        return None
    x, y = _sum(a), _sum(b)
    if are_one(x, y, dtype):
        return {0}
    if not is_forget:
        return None
    if len(other) == 1:  # one bias alone has its own rounding
        x, y = (one.astype("f8") for one in other[0])
    ways = ((x, y), (rounded(x, dtype), y), (x, rounded(y, dtype)))  # the sum may have been rounded before
    shift = next((shift for p, q in ways if (shift := shift_of(p, q, dtype, dtype))), 0)
    return {shift, *([0] if len(other) > 1 else [])} if shift else None


def _sum(parts: list[tuple[DType, Array]]) -> Array:
    import numpy as np

    found: Array = np.sum([one.astype("f8") for _, one in parts], axis=0)
    return found


# --- A change with a reason: batch norms that an exporter folded into the layers before them --------------------------
#
# The names of an export need not be those of the model: norms are proposed by the tensors that they leave over, and
# weights by their shapes.  Numbers judge.


MAX_PAIRS = 1 << 16
"""The most pairs of weights of one shape that are tried."""
BATCH_NORM = "batchnorm"


class NamedNorm(NamedTuple):
    """A batch norm by the names of its tensors: {part: name}."""

    at: str
    parts: Mapping[str, str]
    counters: tuple[str, ...] = ()
    """What only counts, and is folded into nothing."""

    def names(self, *parts: str) -> list[str]:
        """The names of those of some parts that it has."""
        return [self.parts[part] for part in parts if part in self.parts]


class Folded(NamedTuple):
    """A layer and its batch norm in one checkpoint, and the layer that holds both in the other one."""

    norm: NamedNorm
    epsilon: float
    weight: str
    new_weight: str
    bias: str = ""
    new_bias: str = ""


def folds(state: Settled) -> None:
    """Weights and biases that hold a batch norm of the other checkpoint."""
    for is_back in (False, True):
        for one in list(_found(state, is_back=is_back)) if state.left_a and state.left_b else ():
            norm, epsilon = one.norm, f"epsilon {one.epsilon:g}"
            of_weight = [one.weight, *norm.names("scale", "variance"), *norm.counters]
            of_bias = [*filter(None, [one.bias]), *norm.names("shift", "mean")] if one.new_bias else []
            if is_back:  # the first checkpoint has the folded layer
                how = f"explained by a batch norm that A folded into {one.new_weight!r}, {epsilon}"
                for old, name in (*product([one.new_weight], of_weight), *product([one.new_bias], of_bias)):
                    view = state.b[name]
                    state.settle(CHANGED, [old], name, how=how, dtypes=("", view.dtype.name), shapes=(None, view.shape))
                continue
            how = f"explained by a folded batch norm: {norm.at!r}, {epsilon}"
            pair = WindowPair(state.a[one.weight], state.b[one.new_weight])
            (change,) = state.sides.changes([[pair]]) if pair.a.shape == pair.b.shape else (None,)
            state.settle(CHANGED, of_weight, one.new_weight, how=how, change=change)
            if of_bias:
                state.settle(CHANGED, [*of_bias, *norm.names("scale", "variance")], one.new_bias, how=how)


def _found(state: Settled, *, is_back: bool) -> Iterator[Folded]:
    """The layers of one checkpoint that are layers and norms in the other; each norm once."""
    sides = [(state.checkpoints[k], (state.left_a, state.left_b)[k]) for k in (0, 1)]
    (plain, left), (_, other) = sides[::-1] if is_back else sides
    sources = state.sides.sources
    norms = list(_norms(plain, left))
    if not norms:
        return
    search = Folds(
        *(sources[::-1] if is_back else sources),
        [{part: left[name] for part, name in one.parts.items()} for one in norms],
    )
    free = dict.fromkeys(name for name in other if is_rounding(other[name].dtype))
    taken: set[int | str] = set()
    for weight, new in _pairs(left, other):
        if new not in free or weight in taken:
            continue
        one = search.find(left[weight], other[new])
        if one is None or one.norm in taken:
            continue
        taken |= {one.norm, weight}
        del free[new]
        # The biases, by their numbers: that of the folded layer is looked for beside its weight first
        stem, new_stem = (name.removesuffix("weight").removesuffix("kernel") for name in (weight, new))
        own = left.get(f"{stem}bias")
        fitting = [name for name in free if other[name].numel == search.norms[one.norm]["mean"].numel]
        order = sorted(fitting, key=lambda name: not name.startswith(new_stem))
        new_bias = next((name for name in order if search.is_bias(own, other[name], one)), "")
        free.pop(new_bias, None)
        yield Folded(norms[one.norm], one.epsilon, weight, new, f"{stem}bias" if own and new_bias else "", new_bias)


def _pairs(left: Views, other: Views) -> Iterator[tuple[str, str]]:
    """Weights of one number of elements, those of one name first; only as many as a model has layers of one shape."""
    sizes = [
        ((v.numel, name) for name, v in views.items() if len(v.shape) > 1 and v.numel and is_rounding(v.dtype))
        for views in (left, other)
    ]
    for mine, theirs in paired(*sizes):
        if len(mine) * len(theirs) <= MAX_PAIRS:
            yield from ((name, name) for name in mine if name in theirs)
            yield from ((name, new) for name in mine for new in theirs if name != new)


def _norms(checkpoint: Checkpoint, left: Views) -> Iterator[NamedNorm]:
    """The batch norms of a checkpoint whose statistics are left, by what its file says, or by their names."""
    said: dict[str, dict[str, str]] = {}
    for name, part in checkpoint.parts.items():
        if part.kind == BATCH_NORM and name in left:
            said.setdefault(part.layer, {})[part.part] = name
    found = {layer: parts for layer, parts in said.items() if {"mean", "variance"} <= parts.keys()}
    known = {name for parts in found.values() for name in parts.values()}
    for layer, parts in found.items():
        yield NamedNorm(layer, parts)
    for rows in _NAMES:
        means = [name for name in left if name not in known and _last(name) == rows["mean"]]
        for name in means:
            at = name[: len(name) - len(rows["mean"])]
            parts = {part: f"{at}{own}" for part, own in rows.items() if f"{at}{own}" in left}
            if "variance" in parts:
                known |= {*parts.values()}
                counters = tuple(f"{at}{one}" for one in COUNTERS if f"{at}{one}" in left)
                yield NamedNorm(at.rstrip("./"), parts, counters)


_EVERY = [{part: name for name, (part, _) in one.tensors.items()} for one in CONVENTIONS if one.kind == BATCH_NORM]
_NAMES = [one for one in _EVERY if {"mean", "variance"} <= one.keys()]
"""{part of a batch norm: its name}, as libraries call them."""


def _last(name: str) -> str:
    return name.replace("/", ".").rpartition(".")[2]


# --- Whether a weight and a bias are those of a layer into which a batch norm was folded ------------------------------
#
#     weight'  =  weight * gamma / sqrt(variance + epsilon)                     for each output channel
#     bias'    =  (bias - mean) * gamma / sqrt(variance + epsilon) + beta
#
# Programs calculate this in the type of the weights.  It is calculated in float64 here, and may be apart by ULPS units
# in the last place of the largest number that is added or multiplied.
#
# Source: S. Ioffe and C. Szegedy, "Batch Normalization" (2015), section 3.1; torch.nn.utils.fusion of torch 2.13.


ULPS = 8
"""By how many units in the last place the folded numbers may differ."""
EPSILONS = (1e-5, 1e-3, 1e-6, 1e-4, 2e-5)
"""Of PyTorch and MXNet's symbols, Keras, and some models; no tensor says it."""
MAX_NBYTES = 256 << 20
"""Larger weights are not calculated."""
SAMPLES = 32
"""How many elements of a weight are calculated before all are."""


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


class NormFactor(NamedTuple):
    """What a batch norm multiplies each channel by."""

    norm: int
    """Its number."""
    epsilon: float
    factor: Array


def numbers(source: Source, view: View) -> Array:
    """The numbers of a window as float64."""
    source.prove(view.number)
    found: Array = source.numbers(view).all().astype("f8")
    return found


class Folds:
    """Batch norms of one checkpoint, and the weights of two in which they could be."""

    def __init__(self, source: Source, folded: Source, norms: list[Views]) -> None:
        """`source` has the norms and the weights before, `folded` the weights after."""
        self.source, self.folded, self.norms = source, folded, norms
        self._samples: dict[tuple[bool, View, tuple[int, ...]], Array] = {}
        self._by_count: dict[int, list[NormFactor]] = {}

    def find(self, weight: View, folded: View) -> NormFactor | None:
        """Which norm a weight holds, every element compared."""
        import numpy as np

        if number_types(weight, folded) is None or max(weight.nbytes, folded.nbytes) > MAX_NBYTES:
            return None
        for axis in _axes(weight.shape, folded.shape):
            factors = self._factors(weight.shape[axis.axis] * axis.groups)
            for k in self._sampled(weight, folded, axis, factors) if factors else ():
                scale = factors[k].factor[axis.channels(weight.shape)]
                expected = (numbers(self.source, weight) * scale).transpose(axis.order)
                found = numbers(self.folded, folded)
                if _near(found, expected, np.abs(expected), _shorter(weight, folded)).all():
                    return factors[k]
        return None

    def _factors(self, count: int) -> list[NormFactor]:
        """The factors of each channel, of every norm of this number of channels and every epsilon."""
        import numpy as np

        if count not in self._by_count:
            self._by_count[count] = []
            for k, norm in enumerate(self.norms):
                if norm["mean"].numel != count:
                    continue
                gamma = numbers(self.source, norm["scale"]) if "scale" in norm else 1.0
                variance = numbers(self.source, norm["variance"])
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

    def is_bias(self, bias: View | None, folded: View, one: NormFactor) -> bool:
        """Whether a bias of the folded layer is what the norm makes of that of the layer, or of none."""
        import numpy as np

        norm = self.norms[one.norm]
        if any(one.numel != norm["mean"].numel or number_types(one, one) is None for one in (folded, bias or folded)):
            return False
        own = 0.0 if bias is None else numbers(self.source, bias).reshape(-1)
        mean = numbers(self.source, norm["mean"]).reshape(-1)
        beta = numbers(self.source, norm["shift"]).reshape(-1) if "shift" in norm else np.zeros(1)
        scale = one.factor
        with np.errstate(all="ignore"):
            scaled = (own - mean) * scale
            largest = (np.abs(own) + np.abs(mean)) * np.abs(scale) + np.abs(beta)
        found = numbers(self.folded, folded).reshape(-1)
        return bool(_near(found, scaled + beta, largest, _shorter(norm["mean"], folded)).all())


def _axes(shape: Shape, folded: Shape) -> Iterator[ChannelAxis]:
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
