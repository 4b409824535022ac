"""Measuring: one configuration after the other, into one result that is whole at any time."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from typing import Any

import torch
from gpu_fused_cell import Unproved, measured
from gpu_fused_ending import go_on, say
from gpu_fused_grid import GRID, QUICK, Cell, cells, predicted, spread
from gpu_fused_output import Output
from gpu_fused_report import ON_A_CPU, SCHEMA, Result

from paramtool.cli._streams import shown
from paramtool.errors import UsageError, plural
from paramtool.proof.gpu import device as gpu


def swept(asked: argparse.Namespace, output: Output | None) -> Result:
    """What was measured, of all that was asked for; it is also written, after each configuration."""
    if asked.device == "cuda":
        _require_gpu()
    else:
        say(f"gpu_fused: {ON_A_CPU}")
    result = started(asked)
    plan = spread(cells(result["settings"]))
    expected = sum(predicted(cell, asked.device, asked.seconds_per_cell) for cell in plan) / 60
    say(f"{plural(len(plan), 'configuration')}, perhaps {expected:.1f} minutes, at most {asked.minutes:g}")
    with gpu.without_tf32():
        for _ in sweep(result, plan):
            if output is not None:
                output.write_json(result)
            go_on()
    return result


def _require_gpu() -> None:
    try:
        gpu.require_gpu()
    except UsageError as error:
        raise UsageError(str(error), hint="--device cpu tries the script, and says nothing about cuDNN") from error


def started(asked: argparse.Namespace) -> Result:
    """A result in which nothing is measured yet."""
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
        return gpu.machine()
    return {
        "device": "CPU",
        "cuda": "",
        "cudnn": "",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def sweep(
    result: Result,
    plan: Sequence[Cell],
    measure: Callable[..., Result] = measured,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Put each configuration into the result, measured, or with the reason why it was not.

    Yields after each that was tried, and at the end.
    """
    settings, began = result["settings"], now()
    order = {cell: number for number, cell in enumerate(cells(settings))}
    missing = {_cell(found): _missing(found["reason"]) for found in result["not_measured"]}
    for number, cell in enumerate(plan, 1):
        elapsed = now() - began
        left = 60 * settings["minutes"] - elapsed
        needed = predicted(cell, result["device"], settings["seconds_per_cell"])
        if needed > left:
            missing[cell] = _missing(f"perhaps {needed:.1f} s, and {max(0, left):.1f} s were left")
            continue
        found = _measured_or_failed(cell, result, measure)
        if "reason" in found:
            missing[cell] = found
        else:
            del missing[cell]
            result["cells"].append(found)
            result["cells"].sort(key=lambda one: order[_cell(one)])
        _list(result, missing)
        say(f"{number}/{len(plan)} after {elapsed:.0f} s: {cell}: {found.get('reason', 'measured')}")
        yield
    _list(result, missing)
    yield


def _list(result: Result, missing: dict[Cell, Result]) -> None:
    result["not_measured"] = [asdict(one) | why for one, why in missing.items()]


def _missing(reason: str, failed: bool = False) -> Result:
    return {"reason": reason, "failed": failed}


def _cell(found: dict[str, Any]) -> Cell:
    return Cell(**{field.name: found[field.name] for field in fields(Cell)})


def _measured_or_failed(cell: Cell, result: Result, measure: Callable[..., Result]) -> Result:
    try:
        return measure(cell, result["device"], result["settings"]["seconds_per_cell"])
    except (Unproved, RuntimeError) as error:  # RuntimeError: what cuDNN refuses, and no memory left
        return _missing(shown(str(error).partition("\n")[0])[:1000] or type(error).__name__, failed=True)
