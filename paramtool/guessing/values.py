"""Ranks candidates by the values of their tensors, which proves nothing.

A vector is read once, in blocks.  Sums between all the positions where any candidate cuts it are kept; the mean and the
spread of every region of every candidate are differences of these.  Then the questions for each candidate are:

    is the largest value 1/sqrt(hidden)?               how PyTorch initialises an LSTM, a GRU, an RNN
    are its biases zero, and nothing else?             how most libraries initialise
    are the forget gate's biases near 1?               a common initial value, often kept in training
    do its regions differ in spread where it has them?
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log, sqrt

from paramtool.engine.read.elements import number_type
from paramtool.engine.read.source import Source
from paramtool.lazy_dataclass import frozen
from paramtool.model.view import View

FLOATS = {"float16": 5e-3, "bfloat16": 5e-3, "float32": 1e-4, "float64": 1e-4}
"""{dtype whose values are read: how much rounding may raise the largest value}."""
BOUND, ZERO, FORGET, SPREAD, ROOM = 5.0, 3.0, 4.0, 3.0, -2.0
"""The score of each answer; a word in a name has 4."""
MAX_GAIN = 3.0
"""The limit for one element, in nats: a region of zeros would otherwise outweigh everything else."""


@frozen
class CandidateRegion:
    """Elements of one tensor, row by row, that are one part of a candidate's network."""

    tensor: str
    start: int
    stop: int
    kind: str
    """`W`, `R`, `P`, `bias`, or `room` for unused space."""
    cell: int = 0
    """The number of the layer and direction."""
    gate: str = ""
    """The gate of a bias."""


@frozen
class Sketch:
    """A candidate as its regions."""

    hidden: int
    regions: tuple[CandidateRegion, ...]


@frozen
class Stats:
    """Sums over a region."""

    count: int
    total: float
    squares: float
    zeros: int

    @property
    def variance(self) -> float:
        """The variance of the values."""
        return max(0.0, self.squares / self.count - (self.total / self.count) ** 2)

    def __add__(self, other: Stats) -> Stats:
        return Stats(
            self.count + other.count, self.total + other.total, self.squares + other.squares, self.zeros + other.zeros
        )


@frozen
class Survey:
    """Sums of a tensor up to each cut."""

    cuts: Sequence[int]
    totals: Sequence[float]
    squares: Sequence[float]
    zeros: Sequence[int]
    largest: float
    rounding: float
    is_finite: bool

    def between(self, start: int, stop: int) -> Stats:
        """The sums over the elements from one cut to another."""
        a, b = bisect_left(self.cuts, start), bisect_left(self.cuts, stop)
        return Stats(
            stop - start, self.totals[b] - self.totals[a], self.squares[b] - self.squares[a],
            self.zeros[b] - self.zeros[a],
        )  # fmt: skip


def survey(source: Source, view: View, inner: Sequence[int], advance: Callable[[int], None]) -> Survey:
    """Read a tensor once; `inner` are the cuts between its ends."""
    import numpy as np

    kind = np.dtype(number_type(view.dtype))
    cuts = sorted({0, view.numel, *inner})
    sums = np.zeros((3, len(cuts) - 1))
    edges = np.array(cuts)
    largest, is_finite, at, left = 0.0, True, 0, b""
    with np.errstate(all="ignore"):
        for block in source.row_major(view):
            advance(len(block))
            data = left + bytes(block)
            whole = len(data) - len(data) % kind.itemsize
            left = data[whole:]
            values = np.frombuffer(data[:whole], kind).astype("f8")
            if not values.size:
                continue
            first, stop = np.searchsorted(edges, [at, at + values.size], "right") - 1
            stop += int(edges[stop] < at + values.size)
            starts = np.maximum(edges[first:stop] - at, 0)
            for row, numbers in enumerate((values, values * values, values == 0)):
                sums[row, first:stop] += np.add.reduceat(numbers.astype("f8"), starts)
            largest = max(largest, float(np.abs(values).max()))
            is_finite = is_finite and bool(np.isfinite(values).all())
            at += values.size
        running = np.concatenate([np.zeros((3, 1)), np.cumsum(sums, 1)], 1)
    return Survey(
        cuts, running[0].tolist(), running[1].tolist(), running[2].astype(int).tolist(), largest,
        FLOATS[view.dtype.name], is_finite and bool(np.isfinite(running).all()),
    )  # fmt: skip


Mark = tuple[float, str]


def judge(sketches: Sequence[Sketch], surveys: Mapping[str, Survey]) -> list[tuple[float, tuple[str, ...]]]:
    """For each candidate of one place: (what the values add to its score, the reasons)."""
    marks = [[*_marks(sketch, surveys)] if _is_readable(sketch, surveys) else [] for sketch in sketches]
    gains = [_gain(sketch, surveys) if _is_readable(sketch, surveys) else 0.0 for sketch in sketches]
    best = max(gains, default=0.0)
    count = sum(surveys[name].cuts[-1] for name in surveys)
    if len(sketches) > 1 and best > 20 + count / 1000:
        for mark, gain in zip(marks, gains, strict=True):
            near = "the spread of values changes where its weights and biases meet" if gain > 0.97 * best else ""
            mark.append((SPREAD * max(0.0, gain / best), near))
    return [(sum(worth for worth, _ in mark), tuple(text for _, text in mark if text)) for mark in marks]


def _is_readable(sketch: Sketch, surveys: Mapping[str, Survey]) -> bool:
    names = {region.tensor for region in sketch.regions}
    return bool(names) and all(name in surveys and surveys[name].is_finite for name in names)


def _sum(regions: Sequence[CandidateRegion], surveys: Mapping[str, Survey]) -> Stats:
    found = Stats(0, 0.0, 0.0, 0)
    for region in regions:
        found += surveys[region.tensor].between(region.start, region.stop)
    return found


def _marks(sketch: Sketch, surveys: Mapping[str, Survey]) -> Iterator[Mark]:
    # torch.nn.RNNBase.reset_parameters: uniform between -1/sqrt(hidden) and 1/sqrt(hidden), biases too.
    used = [surveys[name] for name in {region.tensor for region in sketch.regions}]
    count = sum(region.stop - region.start for region in sketch.regions)
    ratio = max(one.largest for one in used) * sqrt(sketch.hidden)
    below = min(0.05, max(0.002, 20 / count))
    if 1 - below <= ratio <= 1 + max(one.rounding for one in used):
        yield BOUND, f"its largest value is 1/sqrt({sketch.hidden}), as PyTorch initialises"
    yield from _zeros(sketch, surveys)
    # Compare the gates of a bias by their means: summed over both biases, averaged over cells
    gated = [region for region in sketch.regions if region.kind == "bias" and region.gate]
    forget = [region for region in gated if region.gate == "f"]
    if not forget:
        return
    cells = len({region.cell for region in forget}) * sketch.hidden
    mean = _sum(forget, surveys).total / cells
    others = _sum([region for region in gated if region.gate != "f"], surveys).total / (3 * cells)
    if 0.7 <= mean <= 1.6 and abs(others) < 0.35:
        yield FORGET, f"the forget gate's biases are {mean:.2f} on average, the others {others:.2f}"


def _zeros(sketch: Sketch, surveys: Mapping[str, Survey]) -> Iterator[Mark]:
    room = _sum([region for region in sketch.regions if region.kind == "room"], surveys)
    if room.count:
        yield (ZERO, "its unused space is all zeros") if room.zeros == room.count else (ROOM, "")
        return
    biases = _sum([region for region in sketch.regions if region.kind == "bias"], surveys)
    rest = _sum([region for region in sketch.regions if region.kind != "bias"], surveys)
    if biases.count and biases.zeros == biases.count:
        if rest.zeros <= biases.count / 100:
            yield ZERO, "all its biases are zero, and nothing else is"
        elif rest.zeros < rest.count / 2:
            yield ZERO / 3, "all its biases are zero"


def _gain(sketch: Sketch, surveys: Mapping[str, Survey]) -> float:
    """How much better regions with a spread of their own describe the values than a single spread does.

    The result is in nats, minus the cost of describing each region.
    """
    parts: dict[tuple[str, int], Stats] = {}
    for region in sketch.regions:
        found = surveys[region.tensor].between(region.start, region.stop)
        key = (region.kind, region.cell)
        parts[key] = parts[key] + found if key in parts else found
    whole = Stats(0, 0.0, 0.0, 0)
    for part in parts.values():
        whole += part
    if not whole.variance:
        return 0.0
    floor = whole.variance * 1e-9
    gains = (p.count * min(MAX_GAIN, log(whole.variance / max(p.variance, floor)) / 2) for p in parts.values())
    return sum(gains) - len(parts) * log(whole.count)
