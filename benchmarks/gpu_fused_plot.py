"""The ratios of a result of gpu_fused.py as a picture: small multiples by hidden size and layers."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from itertools import product
from typing import Any

from gpu_fused_report import MODES, ON_A_CPU, Result, ratio

from paramtool.errors import UsageError

DPI = 100
WIDTH = 14
"""Inches: 1400 pixels."""
COLOURS = {"separate": "tab:red", "concatenated": "tab:blue"}
DASHES = {"forward": "--", "forward_backward": "-"}


def require_matplotlib() -> None:
    """UsageError where it is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "--plot needs matplotlib, which is not installed",
            hint="python3 -m pip install matplotlib; or measure with -o RESULT.json, and draw with --from elsewhere",
        )


def draw(result: Result, path: str) -> None:
    """Write a PNG, whatever the name; OSError where that is impossible."""
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
    """The lowest and the highest ratio, with some room; the same for all, so that they can be compared."""
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
    """Logarithmic, with numbers as people write them; the panels share it."""
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
