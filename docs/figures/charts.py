"""Plots: ratios to a peer as bars, several tools on one axis, and times that grow; all axes are logarithmic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor, log2, log10
from typing import NamedTuple

from figures.canvas import LEFT, RIGHT, box, line, paragraph, path, picture, text, wrapped
from paramtool.drawing.markup import Markup, joined, number

LETTERS, SMALL = 60, 62
"""Letters of a line of words; SMALL of one of small words."""


class Ratio(NamedTuple):
    """A time as a multiple of the peer's, or from the least to the greatest of some."""

    what: str
    peer: str
    low: float
    high: float


class Mark(NamedTuple):
    """One tool's time, as a multiple."""

    tool: str
    value: float


class Line(NamedTuple):
    """One reader: (how many, seconds)."""

    name: str
    points: tuple[tuple[float, float], ...]


class _Axis(NamedTuple):
    """A logarithmic axis across the card, from 2**low to 2**high."""

    low: int
    high: int

    def x(self, value: float) -> float:
        """Where a value is."""
        return LEFT + (log2(value) - self.low) / (self.high - self.low) * (RIGHT - LEFT)


def _axis(values: Sequence[float]) -> _Axis:
    return _Axis(min(-1, floor(log2(min(values)))), max(1, ceil(log2(max(values)))))


def _numbers(axis: _Axis, y: float) -> Iterator[Markup]:
    """The powers of 2 on an axis."""
    for power in _powers(axis):
        words = f"{2**power}×" if power >= 0 else f"1/{2**-power}×"
        anchor = "start" if power == axis.low else "end" if power == axis.high else "middle"
        yield text(axis.x(2.0**power), y, words, "t f-soft", anchor)


def _powers(axis: _Axis) -> Iterator[int]:
    """Those that have a line."""
    step = 1 if axis.high - axis.low <= 7 else 2
    for power in range(axis.low, axis.high + 1):
        if power % step and power:
            continue
        yield power


def _grid(axis: _Axis, top: float, bottom: float) -> Iterator[Markup]:
    """Lines at powers of 2; that of 1 is strong."""
    for power in _powers(axis):
        x = axis.x(2.0**power)
        yield line(x, top, x, bottom, "n k-strong" if power == 0 else "n k-line", 1.5 if power == 0 else 1)


def ratios(title: str, rows: Sequence[Ratio], machine: str) -> str:
    """Bars from 1 to each ratio: to the left, and green, where it is less time than the peer's."""
    axis = _axis([value for row in rows for value in (row.low, row.high)])
    top = 96.0
    y = top
    bars: list[Markup] = []
    for row in rows:
        words = wrapped(row.what.split(), LETTERS, " ")
        for one in words:
            y += 17
            bars.append(text(LEFT, y, one))
        y += 16
        bars.append(text(LEFT, y, f"beside {row.peer}", "t f-soft"))
        bars += [joined(_grid(axis, y + 7, y + 29)), joined(_bar(axis, y + 11, row))]
        y += 42
    parts = [
        text(LEFT, 34, title, "h"),
        text(LEFT, 54, "Time as a multiple of the peer's.  Shorter is left of 1×.", "f-soft"),
        joined(_numbers(axis, top - 8)),
        *bars,
        paragraph(LEFT, y + 12, notes := wrapped(machine.split(), SMALL, " "), "t f-soft"),
    ]
    said = "; ".join(f"{row.what}, beside {row.peer}: {_number(row)}" for row in rows)
    return picture(title, f"Time as a multiple of the peer's.  {said}.  {machine}.", y + 13 + 17 * len(notes), parts)


def _number(row: Ratio) -> str:
    return f"{row.low:.2f}" if row.low == row.high else f"{row.low:.2f} to {row.high:.2f}"


def _bar(axis: _Axis, y: float, row: Ratio) -> Iterator[Markup]:
    """From 1 to a ratio; of several, a line goes on to the farther one."""
    near, far = sorted((row.low, row.high), key=lambda value: abs(log2(value)))
    one, x, end = axis.x(1), axis.x(near), axis.x(far)
    yield box(min(one, x), y, max(1.5, abs(x - one)), 14, "green" if row.high < 1 else "orange", "strong", 0)
    if far != near:
        yield line(x, y + 7, end, y + 7, "n k-strong", 2)
        yield line(end, y + 2, end, y + 12, "n k-strong", 2)
    words = _number(row)
    width = 8 * len(words) + 6
    is_left = end < one
    if (end - width < LEFT) if is_left else (end + width > RIGHT):
        yield text(one + (8 if is_left else -8), y + 11.5, words, "m b", "start" if is_left else "end")
    else:
        yield text(end + (-6 if is_left else 6), y + 11.5, words, "m b", "end" if is_left else "start")


SHAPES = (
    ("blue", "M-6 -6h12v12h-12z"), ("grey", "M0 -7l7 7l-7 7l-7 -7z"), ("orange", "M-7 6l7 -13l7 13z"),
    ("purple", "M-7 -6l7 13l7 -13z"),
)  # fmt: skip
"""(tint, outline) of each tool's mark."""


def marks(title: str, rows: Sequence[tuple[str, list[Mark], float]], tools: Sequence[str], machine: str) -> str:
    """Each row an axis with a mark for each tool, and a dashed line at what is wanted of the first tool."""
    axis = _axis([one.value for _, found, _ in rows for one in found])
    top = 146.0
    y = top
    parts = [text(LEFT, 34, title, "h"),
             text(LEFT, 54, "Time as a multiple of blake3's, on one thread.", "f-soft")]  # fmt: skip
    for k, tool in enumerate(tools):
        x, at = LEFT + 230 * (k % 2), 80 + 24 * (k // 2)
        parts += [_mark(k, x + 7, at), text(x + 22, at + 4.5, tool)]
    body: list[Markup] = []
    for what, found, wanted in rows:
        body += [joined(_grid(axis, y + 29, y + 51)), text(LEFT, y + 20, what),
                 line(LEFT, y + 40, RIGHT, y + 40, "n k-strong", 1),
                 line(axis.x(wanted), y + 29, axis.x(wanted), y + 51, "n k-ink d", 1.5)]  # fmt: skip
        body += [_mark(tools.index(one.tool), axis.x(one.value), y + 40) for one in reversed(found)]
        body.append(text(axis.x(found[0].value), y + 63, f"{found[0].value:.2f}", "m b", "middle"))
        y += 66
    parts += [joined(_numbers(axis, top - 6)), *body,
              paragraph(LEFT, y + 26, ("Dashed: the limit that was set for diff.", machine), "t f-soft")]  # fmt: skip
    said = "; ".join(f"{what}: {', '.join(f'{one.tool} {one.value}' for one in found)}" for what, found, _ in rows)
    return picture(title, f"Time as a multiple of blake3's.  {said}.  {machine}.", y + 60, parts)


def _mark(k: int, x: float, y: float) -> Markup:
    """The mark of a tool."""
    tint, outline = SHAPES[k]
    _, _, rest = outline.partition("M")
    dx, _, more = rest.partition(" ")
    dy = more[: next(i for i, letter in enumerate(more) if letter.isalpha())]
    moved = f"M{number(x + float(dx))} {number(y + float(dy))}{more[len(dy) :]}"
    return path(moved, f"f-{tint} k-ink", 1.2)


COLOURS = ("blue", "orange", "green", "purple", "red")
HIGH = 260.0
NAMES = 150.0
"""Units that the names at the ends of lines take."""


def growth(title: str, lines: Sequence[Line], unit: str, machine: str) -> str:
    """Seconds by how many, both logarithmic; each line has its name at its end."""
    counts = sorted({count for one in lines for count, _ in one.points})
    seconds = [value for one in lines for _, value in one.points]
    low, high = log10(min(seconds)) - 0.15, log10(max(seconds)) + 0.1
    left, right, top = LEFT + 44.0, RIGHT - NAMES, 74.0

    def x(count: float) -> float:
        return left + (log10(count) - log10(counts[0])) / (log10(counts[-1]) - log10(counts[0])) * (right - left)

    def y(value: float) -> float:
        return top + HIGH * (high - log10(value)) / (high - low)

    parts = [
        text(LEFT, 34, title, "h"),
        text(LEFT, 54, "Seconds of processor time; both axes are logarithmic.", "f-soft"),
    ]
    for power in range(ceil(low), floor(high) + 1):
        at = y(10.0**power)
        parts += [
            line(left, at, right, at, "n k-line", 1),
            text(left - 8, at + 4, f"{10.0**power:g} s", "t f-soft", "end"),
        ]
    for count in counts:
        parts += [line(x(count), top, x(count), top + HIGH, "n k-line", 1),
                  text(x(count), top + HIGH + 18, f"{count:,.0f}", "t f-soft", "middle")]  # fmt: skip
    parts.append(text((left + right) / 2, top + HIGH + 38, unit, "t f-soft", "middle"))
    ends = _apart(sorted((y(one.points[-1][1]), k) for k, one in enumerate(lines)))
    for k, one in enumerate(lines):
        parts.append(joined(_grown(k, one, [(x(count), y(value)) for count, value in one.points], ends[k])))
    parts.append(text(LEFT, top + HIGH + 64, machine, "t f-soft"))
    said = "; ".join(
        f"{one.name}: {', '.join(f'{value:g} s for {count:,.0f}' for count, value in one.points)}" for one in lines
    )
    return picture(title, f"{said}.  {machine}.", top + HIGH + 82, parts)


def _grown(k: int, one: Line, places: list[tuple[float, float]], label: float) -> Iterator[Markup]:
    """A line, its points, and its name."""
    d = "L".join(f"{number(x)} {number(y)}" for x, y in places)
    (x, y) = places[-1]
    yield path(f"M{d}", "n k-strong", 2)
    yield line(x, y, x + 16, label - 4, "n k-strong", 0.8)
    yield from (box(a - 4.5, b - 4.5, 9, 9, COLOURS[k], "ink", 4.5) for a, b in places)
    yield text(x + 20, label, one.name, "t")


def _apart(ends: Sequence[tuple[float, int]], least: float = 16) -> dict[int, float]:
    """Where the name of each line is: near its end, and not on another one."""
    found: dict[int, float] = {}
    last = -1e9
    for at, k in ends:
        last = max(at + 4, last + least)
        found[k] = last
    return found
