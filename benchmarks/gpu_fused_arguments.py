"""The flags of gpu_fused.py.  Needs no torch."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Collection

from gpu_fused_grid import AXES, GATES, GRID, LARGEST, MOST_VALUES, TOLERANCE
from gpu_fused_report import ON_A_CPU


def parser(description: str | None) -> argparse.ArgumentParser:
    """All flags."""
    flags = argparse.ArgumentParser(
        prog="gpu_fused.py", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = flags.add_argument
    add("-o", dest="output", metavar="RESULT.json", help="write what was measured, after each configuration")
    add("--plot", metavar="FILE.png", help="draw the ratios (needs matplotlib)")
    add("--force", action="store_true", help="overwrite what -o and --plot name")
    add("--from", dest="source", metavar="RESULT.json", help="an earlier result, instead of measuring")
    add("--device", choices=("cuda", "cpu"), default="cuda", help=f"cpu: {ON_A_CPU}")
    add("--quick", action="store_true", help="a small grid")
    add("--kinds", type=_words(GATES), help="default: lstm,gru")
    add("--dtypes", type=_words(TOLERANCE), help="default: float32,float16")
    for name in AXES:
        add(f"--{name}", type=_numbers, help=f"default: {','.join(map(str, GRID[name]))}")
    add("--batch", type=_number, default=32, help="default: 32")
    add("--seconds-per-cell", type=_positive, default=1.0, help="measuring each configuration; default: 1")
    add("--minutes", type=_minutes, default=8.0, help="for all; what does not fit is listed; default: 8")
    return flags


def parsed(flags: argparse.ArgumentParser, words: list[str] | None) -> argparse.Namespace:
    """What was asked for; ends with code 2 and a message where it does not go together."""
    asked = flags.parse_args(words)
    if asked.source is not None and asked.output is not None:
        flags.error("argument -o: not with --from: nothing is measured, so there is no result to write")
    if asked.output and asked.plot and os.path.realpath(asked.output) == os.path.realpath(asked.plot):
        flags.error(f"argument --plot: {asked.plot}: is the place of -o, too; expected another one")
    return asked


def _words(known: Collection[str]) -> Callable[[str], list[str]]:
    def words(text: str) -> list[str]:
        if strange := [word or "''" for word in text.split(",") if word not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(strange)}: not one of {', '.join(known)}")
        return list(dict.fromkeys(text.split(",")))

    return words


def _numbers(text: str) -> list[int]:
    numbers = list(dict.fromkeys(_number(word) for word in text.split(",")))
    if len(numbers) > MOST_VALUES:
        raise argparse.ArgumentTypeError(f"{len(numbers)} numbers, expected at most {MOST_VALUES}")
    return numbers


def _number(word: str) -> int:
    """
    >>> _number("12")
    12
    """
    whole = word.isascii() and word.isdigit() and len(word) <= 20
    if not whole or not 1 <= int(word) <= LARGEST:
        raise argparse.ArgumentTypeError(f"found {word!r}, expected a whole number from 1 to {LARGEST}")
    return int(word)


def _positive(word: str) -> float:
    return _real(word, lambda number: number > 0, "a number above 0")


def _minutes(word: str) -> float:
    return _real(word, lambda number: number >= 0, "a number from 0 on")


def _real(word: str, fits: Callable[[float], bool], expected: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or not fits(number):
        raise argparse.ArgumentTypeError(f"found {word!r}, expected {expected}")
    return number
