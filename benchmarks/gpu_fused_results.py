"""Results of gpu_fused.py: the grid of configurations, and reading, printing and drawing results.  Needs no torch."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NoReturn

from measure import print_table

from paramtool.errors import MAX_LISTED, UsageError
from paramtool.layouts.spec import Spec

# --- grid ------------------------------------------------------------------------------------------------

VARIANTS = ("fused", "separate", "concatenated")
MODES = {"forward": "forward", "forward_backward": "forward+backward"}
"""Inference without a graph; and training, with gradients of the input and of every parameter."""
GATES = {"lstm": 4, "gru": 3}
TOLERANCE = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-9}
"""How far outputs of variants may differ."""
FEWEST_ROUNDS, MOST_ROUNDS = 3, 200
AXES = ("hidden", "layers", "sequence")
LARGEST = 1 << 20
"""The largest number on an axis, and the largest batch."""
MOST_VALUES = 32
"""The most values on an axis: more would make the picture too large."""
GRID: dict[str, list[Any]] = {
    "kinds": ["lstm", "gru"],
    "dtypes": ["float32", "float16"],
    "hidden": [128, 256, 512, 1024, 2048],
    "layers": [1, 2, 4],
    "sequence": [1, 8, 64, 512],
}
QUICK = GRID | {"hidden": [128, 512], "layers": [1, 2], "sequence": [1, 64]}
ASSUMED_RATE = {
    "cuda": {"float16": 6e13, "float32": 2e13, "float64": 1e13},
    "cpu": dict.fromkeys(TOLERANCE, 3e10) | {"float16": 5e9},
}
"""Operations per second, and below it seconds for a step of a layer: estimates to plan the time, not measurements."""
ASSUMED_STEP = 2e-5
ASSUMED_START = 0.1
"""Seconds to make and prove the variants of a configuration."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A configuration; the input is as wide as the hidden state."""

    kind: str
    dtype: str
    hidden: int
    layers: int
    sequence: int
    batch: int

    def __str__(self) -> str:
        return f"{self.kind} {self.dtype}, hidden {self.hidden}, layers {self.layers}, sequence {self.sequence}"

    @property
    def spec(self) -> Spec:
        """The network."""
        more = {"reset": "after"} if self.kind == "gru" else {}
        return Spec(self.kind, self.hidden, self.hidden, layers=self.layers, **more)

    @property
    def operations(self) -> int:
        """Multiplications and additions of a forward pass; a backward pass has twice as many.

        >>> Cell("lstm", "float32", 10, 1, 3, 2).operations == 2 * 3 * 2 * 8 * 10 * 10
        True
        """
        return 2 * self.sequence * self.batch * self.layers * 2 * GATES[self.kind] * self.hidden**2


def cells(settings: dict[str, Any]) -> list[Cell]:
    """The grid."""
    return [Cell(*point, settings["batch"]) for point in product(*(settings[name] for name in GRID))]


def spread(plan: Sequence[Cell]) -> list[Cell]:
    """The same cells in an order whose every prefix covers the grid evenly: steps of about the golden section.

    >>> spread(list(range(10)))
    [0, 7, 4, 1, 8, 5, 2, 9, 6, 3]
    """
    count = len(plan)
    step = round(count * 0.618)
    while math.gcd(step, count) != 1:
        step += 1
    return [plan[number * step % count] for number in range(count)]


def predicted(cell: Cell, device: str, seconds: float) -> float:
    """An estimate of the seconds that a configuration takes, including rounds that are not counted."""
    forward = cell.operations / ASSUMED_RATE[device][cell.dtype] + cell.sequence * cell.layers * ASSUMED_STEP
    one = len(VARIANTS) * (1 + 3) * forward  # forward, and forward+backward
    rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(seconds / one)))
    return ASSUMED_START + (3 + rounds) * one  # the proof, warming up, the memory


# --- report ----------------------------------------------------------------------------------------------

SCHEMA = "paramtool.gpu-fused/1"
PAYS = 1.05
"""Fusing pays off if torch's packing at each call takes at least this many times as long."""
ON_A_CPU = "measured on a CPU, to test the script: these figures say nothing about cuDNN"
HEADER = (
    "kind", "dtype", "hidden", "layers", "sequence",
    "forward: fused, ms (quartiles)", "separate / fused", "concatenated / fused",
    "forward+backward: fused, ms (quartiles)", "separate / fused", "concatenated / fused",
    "peak memory of forward: fused, separate, concatenated, MB", "of forward+backward, MB",
)  # fmt: skip
Result = dict[str, Any]


def ratio(cell: Result, variant: str, mode: str) -> float:
    """How many times as long as the fused variant it takes."""
    median: float = cell["variants"][variant][mode]["median_seconds"]
    return median / cell["variants"]["fused"][mode]["median_seconds"]


def where_it_does_not_pay(result: Result) -> Iterator[str]:
    """A sentence for each kind, type and mode."""
    settings = result["settings"]
    for kind in settings["kinds"]:
        for dtype in settings["dtypes"]:
            cells = [cell for cell in result["cells"] if (cell["kind"], cell["dtype"]) == (kind, dtype)]
            for mode, words in MODES.items():
                yield f"{kind} {dtype}, {words}: {_sentence(cells, mode)}"


def _sentence(cells: Sequence[Result], mode: str) -> str:
    if not cells:
        return "not measured"
    ratios = [ratio(cell, "separate", mode) for cell in cells]
    poor = [cell for cell, found in zip(cells, ratios, strict=True) if found < PAYS]
    if not poor:
        return f"fusing pays in all of {len(cells)}: packing takes at least {min(ratios):.3f} times as long"
    grouped: dict[tuple[int, int], list[str]] = {}
    for cell in poor:
        part = f"{cell['sequence']} ({ratio(cell, 'separate', mode):.3f})"
        grouped.setdefault((cell["hidden"], cell["layers"]), []).append(part)
    where = "; ".join(
        f"hidden {hidden}, layers {layers}, sequence {', '.join(parts)}"
        for (hidden, layers), parts in sorted(grouped.items())
    )
    return f"fusing does not pay in {len(poor)} of {len(cells)} (packing takes less than {PAYS} times as long): {where}"


def rows(result: Result) -> Iterator[tuple[str, ...]]:
    """A row for each configuration."""
    for cell in result["cells"]:
        times = [text for mode in MODES for text in _times(cell, mode)]
        where = (str(cell[key]) for key in ("kind", "dtype", "hidden", "layers", "sequence"))
        yield (*where, *times, *(_memory(cell, mode) for mode in MODES))


def _times(cell: Result, mode: str) -> tuple[str, ...]:
    fused = cell["variants"]["fused"][mode]
    first, third = (_ms(seconds) for seconds in fused["quartiles_seconds"])
    ratios = (f"{ratio(cell, variant, mode):.2f}" for variant in ("separate", "concatenated"))
    return f"{_ms(fused['median_seconds'])} ({first} - {third})", *ratios


def _ms(seconds: float) -> str:
    """
    >>> _ms(0.00123456), _ms(0.123456)
    ('1.235', '123.5')
    """
    return f"{seconds * 1e3:.4g}"


def _memory(cell: Result, mode: str) -> str:
    sizes = (cell["variants"][name][mode]["peak_nbytes"] for name in VARIANTS)
    return ", ".join("-" if size is None else f"{size / 1e6:.1f}" for size in sizes)


def machine_row(machine: dict[str, str]) -> str:
    """The machine in one line.

    >>> machine_row({"device": "D", "torch": "2", "cuda": "", "python": "3"})
    'D, torch 2, python 3'
    """
    return ", ".join(f"{key} {value}" if key != "device" else value for key, value in machine.items() if value)


def print_report(result: Result) -> None:
    """Print the whole report to stdout."""
    settings = result["settings"]
    notes = [
        f"{result['date']}: {machine_row(result['machine'])}",
        f"batch {settings['batch']}, input as wide as the hidden state, TF32 off",
        "medians of calls that each start on an idle device; forward is inference, forward+backward is training with "
        "gradients of the input and of every parameter",
        "peak memory: of that variant alone, with its parameters, without its input",
        *([ON_A_CPU] if result["device"] == "cpu" else []),
    ]
    where = " (on a CPU)" if result["device"] == "cpu" else ""
    title = "an RNN with one fused buffer, with separate parameters that torch packs at each call, with concatenation"
    print_table(f"{title}{where}", HEADER, list(rows(result)), notes)
    _print_list(f"where fusing does not pay{where}", list(where_it_does_not_pay(result)))
    missing = sorted(result["not_measured"], key=lambda cell: not cell["failed"])
    _print_list(f"not measured: {len(missing)}", list(_first(missing)))


def _first(missing: Sequence[Result]) -> Iterator[str]:
    """A line for each of the first configurations, failures before others, and a line with the count of the rest."""
    for cell in missing[:MAX_LISTED]:
        yield f"{_named(cell)}: {cell['reason']}"
    if (more := len(missing) - MAX_LISTED) > 0:
        yield f"and {more} more; the file of -o lists all"


def _named(cell: Result) -> str:
    return (
        f"{cell['kind']} {cell['dtype']}, hidden {cell['hidden']}, layers {cell['layers']}, sequence {cell['sequence']}"
    )


def _print_list(title: str, lines: Sequence[str]) -> None:
    print(f"\n**{title}**\n")
    for line in lines:
        print(f"- {line}", flush=True)


# --- read ------------------------------------------------------------------------------------------------

MOST_BYTES = 64 << 20
LONGEST = 1000
Check = Callable[[Any, str], None]


class Damaged(Exception):
    """A member of a result is invalid."""


def read(path: str) -> Result:
    """Read an earlier result; UsageError if the file is not a result or is damaged."""
    try:
        found = json.loads(_bytes(path), parse_constant=_constant)
    except Damaged as error:
        raise UsageError(f"{path}: is damaged: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not a {SCHEMA} document: invalid JSON: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UsageError(f"{path}: is not a {SCHEMA} document")
    try:
        RESULT(found, "")
    except Damaged as error:
        raise UsageError(f"{path}: is damaged: {error}") from None
    return found


def _bytes(path: str) -> bytes:
    """The bytes of a regular file of at most 64 MiB."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a FIFO would wait for a writer
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"{path}: is not a regular file")
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path}: has more than {MOST_BYTES} bytes; expected a smaller file")
    return data


def _constant(word: str) -> NoReturn:
    raise Damaged(f"holds {word}, which is not a JSON number")


def _refuse(where: str, found: Any, expected: str) -> NoReturn:
    kinds = {dict: "an object", list: "a list", type(None): "null", bool: str(found).lower()}
    what = kinds.get(type(found)) or ascii(found)[:40]
    raise Damaged(f"member {where} is {what}, expected {expected}")


def whole(low: int, high: int) -> Check:
    """A check for a whole number in these bounds."""

    def check(found: Any, where: str) -> None:
        if type(found) is not int or not low <= found <= high:
            _refuse(where, found, f"a whole number from {low} to {high}")

    return check


def real(low: float, high: float) -> Check:
    """A check for a number in these bounds."""

    def check(found: Any, where: str) -> None:
        if type(found) not in (int, float) or not low <= found <= high:
            _refuse(where, found, f"a number from {low:g} to {high:g}")

    return check


def one_of(known: Collection[Any]) -> Check:
    """A check for one of these values, with the same type."""

    def check(found: Any, where: str) -> None:
        if not any(type(found) is type(one) and found == one for one in known):
            _refuse(where, found, f"one of {', '.join(map(json.dumps, known))}")

    return check


def text(found: Any, where: str) -> None:
    """Check that a value is one line without control characters."""
    if type(found) is not str or not found.isprintable() or len(found) > LONGEST:
        _refuse(where, found, f"a line of at most {LONGEST} printable characters")


def or_null(check: Check) -> Check:
    """A check that also accepts null."""
    return lambda found, where: None if found is None else check(found, where)


def listed(check: Check, least: int = 0, most: float = math.inf, distinct: bool = False) -> Check:
    """A check for a list of such values."""

    def check_all(found: Any, where: str) -> None:
        if type(found) is not list or not least <= len(found) <= most:
            _refuse(where, found, "a list" if most == math.inf else f"a list of {least} to {most}")
        for number, one in enumerate(found):
            check(one, f"{where}[{number}]")
        if distinct and len(set(found)) < len(found):
            _refuse(where, found, "a list without duplicates")

    return check_all


def members(checks: dict[str, Check]) -> Check:
    """A check for an object with at least these members."""

    def check(found: Any, where: str) -> None:
        if type(found) is not dict:
            _refuse(where, found, "an object")
        for name, one in checks.items():
            inside = f"{where}.{name}".lstrip(".")
            if name not in found:
                raise Damaged(f"member {inside} is missing")
            one(found[name], inside)

    return check


def texts(found: Any, where: str) -> None:
    """Check that a value is an object of strings, with the name of the device."""
    members({"device": text})(found, where)
    for name, value in found.items():
        text(name, f"{where}, a name in it")
        text(value, f"{where}.{name}")


SIZE, SECONDS, NBYTES = whole(1, LARGEST), real(1e-12, 1e9), whole(0, 1 << 60)
CELL = {"kind": one_of(GATES), "dtype": one_of(TOLERANCE), **dict.fromkeys((*AXES, "batch"), SIZE)}
SETTINGS = members(
    {
        "kinds": listed(one_of(GATES), 1, len(GATES), distinct=True),
        "dtypes": listed(one_of(TOLERANCE), 1, len(TOLERANCE), distinct=True),
        **dict.fromkeys(AXES, listed(SIZE, 1, MOST_VALUES, distinct=True)),
        "batch": SIZE,
    }
)
FIGURES = members(
    {"median_seconds": SECONDS, "quartiles_seconds": listed(SECONDS, 2, 2), "peak_nbytes": or_null(NBYTES)}
)
MEASURED = members(CELL | {"variants": members(dict.fromkeys(VARIANTS, members(dict.fromkeys(MODES, FIGURES))))})
RESULT = members(
    {
        "date": text,
        "device": one_of(("cuda", "cpu")),
        "machine": texts,
        "settings": SETTINGS,
        "cells": listed(MEASURED),
        "not_measured": listed(members(CELL | {"reason": text, "failed": one_of((False, True))})),
    }
)


# --- plot ------------------------------------------------------------------------------------------------

DPI = 100
WIDTH = 14
"""Inches: 1400 pixels."""
COLOURS = {"separate": "tab:red", "concatenated": "tab:blue"}
DASHES = {"forward": "--", "forward_backward": "-"}


def require_matplotlib() -> None:
    """UsageError if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "--plot needs matplotlib, which is not installed",
            hint="python3 -m pip install matplotlib; or measure with -o RESULT.json, and draw elsewhere with --from",
        )


def draw(result: Result, path: str) -> None:
    """Write a PNG, whatever the name; OSError if that fails."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["text.parse_math"] = False  # a dollar in a device's name is a dollar
    from matplotlib import pyplot

    settings = result["settings"]
    blocks = list(product(settings["kinds"], settings["dtypes"]))
    height = 1.0 + len(blocks) * (0.75 + 1.75 * len(settings["layers"]))
    figure = pyplot.figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    figure.suptitle(_title(result), fontsize=12)
    parts = figure.subfigures(len(blocks), 1, squeeze=False)[:, 0]
    bounds = _bounds(result)
    for part, block in zip(parts, blocks, strict=True):
        _draw_block(part, result, block, bounds)
    try:
        figure.savefig(path, format="png", dpi=DPI)
    finally:
        pyplot.close(figure)


def _title(result: Result) -> str:
    machine, settings = result["machine"], result["settings"]
    versions = [f"{words} {machine[key]}" for key, words in VERSIONS.items() if machine.get(key)]
    lines = [
        "Time of a call with separate parameters, and with concatenation at each call, over that with one fused buffer",
        f"{machine['device']}, {', '.join(versions)}, {result['date']}; batch {settings['batch']}, TF32 off",
        *([ON_A_CPU.upper()] if result["device"] == "cpu" else []),
    ]
    return "\n".join(lines)


VERSIONS = {"torch": "torch", "cuda": "CUDA", "cudnn": "cuDNN", "driver": "driver"}


def _bounds(result: Result) -> tuple[float, float]:
    """The lowest and the highest ratio, with a margin; the same for all panels, so that they can be compared."""
    found = [ratio(cell, variant, mode) for cell in result["cells"] for variant in COLOURS for mode in MODES]
    return min([0.9, *(0.95 * one for one in found)]), max([1.25, *(1.08 * one for one in found)])


def _draw_block(part: Any, result: Result, block: tuple[str, str], bounds: tuple[float, float]) -> None:
    settings, sequence = result["settings"], sorted(result["settings"]["sequence"])
    part.suptitle(f"{block[0].upper()}, {block[1]}", fontsize=12, fontweight="bold", x=0.01, ha="left")
    axes = part.subplots(len(settings["layers"]), len(settings["hidden"]), sharex=True, sharey=True, squeeze=False)
    for (row, layers), (column, hidden) in product(enumerate(settings["layers"]), enumerate(settings["hidden"])):
        panel = axes[row, column]
        panel.set_title(f"hidden {hidden}, layers {layers}", fontsize=10)
        chosen = {"kind": block[0], "dtype": block[1], "hidden": hidden, "layers": layers}
        _draw_panel(panel, [cell for cell in result["cells"] if chosen.items() <= cell.items()], sequence)
    _scale(axes[0, 0], sequence, bounds)
    part.supxlabel("sequence length, steps", fontsize=10)
    part.supylabel("time / time of fused (ratio)", fontsize=10)
    handles, labels = _legend()
    part.legend(handles, labels, loc="outside upper right", ncols=4, fontsize=10, frameon=False)


def _draw_panel(panel: Any, cells: list[Result], sequence: list[int]) -> None:
    panel.axhline(1, color="black", linewidth=0.8)
    panel.grid(True, which="major", alpha=0.3)
    panel.tick_params(labelsize=9)
    if not cells:
        panel.text(0.5, 0.5, "not measured", transform=panel.transAxes, ha="center", va="center", fontsize=10)
    found = {cell["sequence"]: cell for cell in cells}
    for variant, mode in product(COLOURS, DASHES):
        # a line ends where a configuration is missing
        ratios = [ratio(found[steps], variant, mode) if steps in found else math.nan for steps in sequence]
        panel.plot(sequence, ratios, **_style(variant, mode))


def _style(variant: str, mode: str) -> dict[str, Any]:
    filled = COLOURS[variant] if mode == "forward_backward" else "white"
    return {
        "color": COLOURS[variant], "linestyle": DASHES[mode], "linewidth": 1.5, "marker": "o", "markersize": 4,
        "markerfacecolor": filled,
    }  # fmt: skip


def _legend() -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    lines = list(product(COLOURS, DASHES))
    return [Line2D([], [], **_style(*line)) for line in lines], [f"{variant}, {MODES[mode]}" for variant, mode in lines]


def _scale(panel: Any, sequence: list[int], bounds: tuple[float, float]) -> None:
    """A logarithmic scale with decimal labels, which the panels share."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_ylim(*bounds)
    for axis, ticks in ((panel.xaxis, sequence), (panel.yaxis, list(_ticks(*bounds)))):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _ticks(low: float, high: float) -> Iterator[float]:
    """
    >>> list(_ticks(0.9, 1.3)), list(_ticks(0.9, 4)), list(_ticks(0.4, 9))
    ([0.9, 1, 1.1, 1.2, 1.3], [1, 1.5, 2, 3, 4], [0.5, 1, 2, 5])
    """
    fine, middle = (0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5), (0.5, 0.7, 1, 1.5, 2, 3, 4)
    coarse = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
    widths = {1.8: fine, 5: middle}
    chosen = next((ticks for width, ticks in widths.items() if high / low <= width), coarse)
    return (tick for tick in chosen if low <= tick <= high)
