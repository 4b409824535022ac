"""What fusing is worth: an RNN with one fused buffer, with separate parameters, and concatenated at each call.

    python3 benchmarks/gpu_fused.py -o result.json --plot result.png
    python3 benchmarks/gpu_fused.py --from result.json --plot result.png

Runs from the root of the tree with torch and a CUDA GPU; nothing has to be installed but matplotlib for --plot.  The
variants are told in gpu_fused_cell.py.  Configurations are measured in an order that covers the grid evenly, so that a
sweep that ends early (--minutes) still says something of all of it; those left over are listed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import datetime, timezone
from itertools import product
from typing import Any

if importlib.util.find_spec("paramtool") is None:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
from gpu_fused_cell import FEWEST_ROUNDS, GATES, MOST_ROUNDS, TOLERANCE, VARIANTS, Cell, Unproved, measured
from gpu_fused_plot import draw, require_matplotlib
from gpu_fused_report import ON_A_CPU, SCHEMA, Result, print_report, read

from paramtool.errors import UsageError
from paramtool.torch import _gpu

GRID: dict[str, list[Any]] = {
    "kinds": ["lstm", "gru"],
    "dtypes": ["float32", "float16"],
    "hidden": [128, 256, 512, 1024, 2048],
    "layers": [1, 2, 4],
    "sequence": [1, 8, 64, 512],
}
QUICK = GRID | {"hidden": [128, 512], "layers": [1, 2], "sequence": [1, 64]}
ASSUMED_RATE = {"cuda": {"float16": 6e13, "float32": 2e13, "float64": 1e13}, "cpu": dict.fromkeys(TOLERANCE, 3e10)}
"""Operations in a second, and below seconds for a step of a layer: guesses to plan the time by, not measurements."""
ASSUMED_STEP = 2e-5
ASSUMED_START = 0.1
"""Seconds to make and to prove the variants of a configuration."""


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read, print, write, draw.  1 where a configuration failed, 2 where it cannot be done."""
    try:
        return _main(_arguments().parse_args(words))
    except UsageError as error:
        print(f"gpu_fused: {error}", *filter(None, [error.hint]), sep="\n", file=sys.stderr)
        return error.exit_code


def _main(asked: argparse.Namespace) -> int:
    if asked.plot:
        require_matplotlib()
    result = read(asked.source) if asked.source else _measure(asked)
    print_report(result)
    if asked.plot:
        draw(result, asked.plot)
    return int(any(cell["failed"] for cell in result["not_measured"]))


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-o", dest="output", metavar="RESULT.json", help="write what was measured, after each configuration"
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw the ratios (needs matplotlib)")
    parser.add_argument("--from", dest="source", metavar="RESULT.json", help="an earlier result, instead of measuring")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=f"cpu: {ON_A_CPU}")
    parser.add_argument("--quick", action="store_true", help="a small grid")
    parser.add_argument("--kinds", type=_words(GATES), help="default: lstm,gru")
    parser.add_argument("--dtypes", type=_words(TOLERANCE), help="default: float32,float16")
    for name in ("hidden", "layers", "sequence"):
        parser.add_argument(f"--{name}", type=_numbers, help=f"default: {','.join(map(str, GRID[name]))}")
    parser.add_argument("--batch", type=int, default=32, help="default: 32")
    parser.add_argument("--seconds-per-cell", type=float, default=1.0, help="measuring each configuration; default: 1")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all; what does not fit is listed; default: 8")
    return parser


def _words(known: Sequence[str] | dict[str, Any]) -> Callable[[str], list[str]]:
    def words(text: str) -> list[str]:
        if strange := [word for word in text.split(",") if word not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(strange)}: not one of {', '.join(known)}")
        return list(dict.fromkeys(text.split(",")))

    return words


def _numbers(text: str) -> list[int]:
    numbers = [int(word) for word in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("numbers from 1 on")
    return list(dict.fromkeys(numbers))


def _measure(asked: argparse.Namespace) -> Result:
    if asked.device == "cuda":
        _require_gpu()
    else:
        print(f"gpu_fused: {ON_A_CPU}", file=sys.stderr)
    result = started(asked)
    plan = spread(cells(result["settings"]))
    expected = sum(predicted(cell, asked.device, asked.seconds_per_cell) for cell in plan) / 60
    _progress(f"{len(plan)} configurations, perhaps {expected:.1f} minutes, at most {asked.minutes:g}")
    save(result, asked.output)  # where that is impossible, it is said before the time is spent
    with _gpu.without_tf32():
        for _ in sweep(result, plan):
            save(result, asked.output)
    return result


def _require_gpu() -> None:
    try:
        _gpu.require_gpu()
    except UsageError as error:
        raise UsageError(str(error), hint="--device cpu tries the script, and says nothing about cuDNN") from error


def started(asked: argparse.Namespace) -> Result:
    """A result in which nothing is measured yet: it is whole at any time of a sweep."""
    grid = QUICK if asked.quick else GRID
    chosen = {name: getattr(asked, name) or values for name, values in grid.items()}
    more = {name: getattr(asked, name) for name in ("batch", "seconds_per_cell", "minutes")}
    settings = chosen | more | {"input": "hidden", "tf32": False}
    return {
        "schema": SCHEMA,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "device": asked.device,
        "machine": _machine(asked.device),
        "settings": settings,
        "cells": [],
        "not_measured": [asdict(cell) | _missing("the sweep ended before") for cell in cells(settings)],
    }


def _machine(device: str) -> dict[str, str]:
    if device == "cuda":
        return _gpu.machine()
    return {
        "device": "CPU",
        "cuda": "",
        "cudnn": "",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def cells(settings: dict[str, Any]) -> list[Cell]:
    """The grid."""
    return [Cell(*point, settings["batch"]) for point in product(*(settings[name] for name in GRID))]


def spread(plan: Sequence[Cell]) -> list[Cell]:
    """The same in an order of which every beginning covers the grid evenly: steps of about the golden section.

    >>> spread(list(range(10)))
    [0, 7, 4, 1, 8, 5, 2, 9, 6, 3]
    """
    count = len(plan)
    step = round(count * 0.618)
    while math.gcd(step, count) != 1:
        step += 1
    return [plan[number * step % count] for number in range(count)]


def predicted(cell: Cell, device: str, seconds: float) -> float:
    """How many seconds a configuration could take, all that is not counted included."""
    forward = cell.operations / ASSUMED_RATE[device][cell.dtype] + cell.sequence * cell.layers * ASSUMED_STEP
    one = len(VARIANTS) * (1 + 3) * forward  # forward, and forward+backward
    rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(seconds / one)))
    return ASSUMED_START + (3 + rounds) * one  # the proof, warming up, the memory


def sweep(
    result: Result,
    plan: Sequence[Cell],
    measure: Callable[..., Result] = measured,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Put each configuration into the result, measured, or with the reason why it was not; yields after each."""
    settings, began = result["settings"], now()
    order = {cell: number for number, cell in enumerate(cells(settings))}
    missing = {_cell(found): _missing(found["reason"]) for found in result["not_measured"]}
    for number, cell in enumerate(plan, 1):
        elapsed = now() - began
        left = 60 * settings["minutes"] - elapsed
        needed = predicted(cell, result["device"], settings["seconds_per_cell"])
        if needed > left:
            missing[cell] = _missing(f"perhaps {needed:.1f} s, and {max(0, left):.1f} s were left")
        else:
            found = _measured_or_failed(cell, result, measure)
            if "reason" in found:
                missing[cell] = found
            else:
                del missing[cell]
                result["cells"].append(found)
                result["cells"].sort(key=lambda one: order[_cell(one)])
        result["not_measured"] = [asdict(one) | why for one, why in missing.items()]
        _progress(f"{number}/{len(plan)} after {elapsed:.0f} s: {cell}: {missing.get(cell, DONE)['reason']}")
        yield


DONE = {"reason": "measured"}


def _missing(reason: str, failed: bool = False) -> Result:
    return {"reason": reason, "failed": failed}


def _cell(found: Result) -> Cell:
    return Cell(**{field.name: found[field.name] for field in fields(Cell)})


def _measured_or_failed(cell: Cell, result: Result, measure: Callable[..., Result]) -> Result:
    try:
        return measure(cell, result["device"], result["settings"]["seconds_per_cell"])
    except (Unproved, RuntimeError) as error:  # RuntimeError: what cuDNN refuses, and no memory left
        return _missing(str(error).partition("\n")[0] or type(error).__name__, failed=True)


def save(result: Result, path: str | None) -> None:
    """Write the result in one go, so that an interrupted sweep leaves what it has measured."""
    if path is None:
        return
    part = f"{path}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(part)
        raise UsageError(f"{path}: {error}") from error


def _progress(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
