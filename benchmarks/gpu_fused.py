"""What fusing gains: an RNN with one fused buffer, with separate parameters, and concatenated at each call.

    python3 benchmarks/gpu_fused.py -o result.json --plot result.png
    python3 benchmarks/gpu_fused.py --from result.json --plot result.png

Runs from the root of the tree with torch and a CUDA GPU; only --plot needs another package, matplotlib.  The variants
are described in gpu_fused_measure.py.  Configurations are measured in an order that covers the grid evenly, so that a
sweep that ends early (--minutes, Ctrl-C) still covers all of it; the remaining configurations are listed.

Exit codes: 0 measured, 1 a configuration failed or nothing was measured, 2 bad arguments or no GPU, 7 cannot write,
130 and 143 interrupted, 141 closed pipe.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before and after main, an interruption prints nothing
if importlib.util.find_spec("paramtool") is None:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import math
from collections.abc import Callable, Collection

from gpu_fused_results import (
    AXES,
    GATES,
    GRID,
    LARGEST,
    MOST_VALUES,
    ON_A_CPU,
    TOLERANCE,
    Result,
    draw,
    print_report,
    read,
    require_matplotlib,
)
from gpu_fused_run import Output, ended, interrupted_code, say

from paramtool.errors import UsageError


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read a result, print, write and draw it; returns the exit code."""
    return ended(lambda: _main(words))


def _main(words: Sequence[str] | None) -> int:
    asked = parsed(parser(__doc__), None if words is None else list(words))
    output = None if asked.output is None else Output(asked.output, "-o", asked.force)
    try:
        return _run(asked, output)
    except BaseException:
        code = interrupted_code()
        if code is None:
            raise
        say(f"gpu_fused: interrupted; {_kept(output)}")
        return code


def _kept(output: Output | None) -> str:
    if output is None:
        return "nothing was saved: -o RESULT.json was not given"
    if not output.is_ours:
        return f"nothing was measured yet, and {output.path} was not written"
    return f"the measurements so far are in {output.path}"


def _run(asked: argparse.Namespace, output: Output | None) -> int:
    read_too = [] if asked.source is None else [asked.source]
    plot = None if asked.plot is None else Output(asked.plot, "--plot", asked.force, read_too)
    if plot is not None:
        require_matplotlib()
        plot.check()
    if output is not None:
        output.check()
    result = _measured(asked, output) if asked.source is None else read(asked.source)
    try:
        print_report(result)
    finally:  # a closed or full stdout loses only the report
        if plot is not None:
            plot.write(lambda path: draw(result, path))
    return _verdict(result)


def _measured(asked: argparse.Namespace, output: Output | None) -> Result:
    try:
        sweeping = importlib.import_module("gpu_fused_measure")
    except (ImportError, OSError) as error:  # OSError: a library of torch's
        reason = (str(error) or type(error).__name__).partition("\n")[0]
        hint = "use a Python that has torch (docs/gpu.md); --from RESULT.json shows an earlier result without torch"
        raise UsageError(f"cannot measure, torch or a library that it needs is missing: {reason}", hint=hint) from error
    result: Result = sweeping.swept(asked, output)
    return result


def _verdict(result: Result) -> int:
    if not result["cells"]:
        say("gpu_fused: nothing was measured")
    return int(not result["cells"] or any(cell["failed"] for cell in result["not_measured"]))


# --- arguments ------------------------------------------------------------------------------------------


def parser(description: str | None) -> argparse.ArgumentParser:
    """The argument parser."""
    flags = argparse.ArgumentParser(
        prog="gpu_fused.py", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = flags.add_argument
    add("-o", dest="output", metavar="RESULT.json", help="write the measurements, after each configuration")
    add("--plot", metavar="FILE.png", help="draw the ratios (needs matplotlib)")
    add("--force", action="store_true", help="overwrite the files of -o and --plot")
    add("--from", dest="source", metavar="RESULT.json", help="read an earlier result instead of measuring")
    add("--device", choices=("cuda", "cpu"), default="cuda", help=f"cpu: {ON_A_CPU}")
    add("--quick", action="store_true", help="a small grid")
    add("--kinds", type=_words(GATES), help="default: lstm,gru")
    add("--dtypes", type=_words(TOLERANCE), help="default: float32,float16")
    for name in AXES:
        add(f"--{name}", type=_numbers, help=f"default: {','.join(map(str, GRID[name]))}")
    add("--batch", type=_number, default=32, help="default: 32")
    add("--seconds-per-cell", type=_positive, default=1.0, help="time for each configuration; default: 1")
    add("--minutes", type=_minutes, default=8.0, help="time for all; what does not fit is listed; default: 8")
    return flags


def parsed(flags: argparse.ArgumentParser, words: list[str] | None) -> argparse.Namespace:
    """The parsed arguments; exits with code 2 and a message if they contradict each other."""
    asked = flags.parse_args(words)
    if asked.source is not None and asked.output is not None:
        flags.error("argument -o: not allowed with --from: nothing is measured, so there is no result to write")
    if asked.output and asked.plot and os.path.realpath(asked.output) == os.path.realpath(asked.plot):
        flags.error(f"argument --plot: {asked.plot}: is also the file of -o; expected another file")
    return asked


def _words(known: Collection[str]) -> Callable[[str], list[str]]:
    def words(text: str) -> list[str]:
        if unknown := [word or "''" for word in text.split(",") if word not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
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
    return _real(word, lambda number: number >= 0, "a number of at least 0")


def _real(word: str, fits: Callable[[float], bool], expected: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or not fits(number):
        raise argparse.ArgumentTypeError(f"found {word!r}, expected {expected}")
    return number


if __name__ == "__main__":
    sys.exit(main())
