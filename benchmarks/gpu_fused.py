"""What fusing is worth: an RNN with one fused buffer, with separate parameters, and concatenated at each call.

    python3 benchmarks/gpu_fused.py -o result.json --plot result.png
    python3 benchmarks/gpu_fused.py --from result.json --plot result.png

Runs from the root of the tree with torch and a CUDA GPU; nothing has to be installed but matplotlib for --plot.  The
variants are told in gpu_fused_cell.py.  Configurations are measured in an order that covers the grid evenly, so that a
sweep that ends early (--minutes, Ctrl-C) still says something of all of it; those left over are listed.

Exit codes: 0 measured, 1 a configuration failed or nothing was measured, 2 cannot be done as asked, 7 cannot be
written, 130 and 143 interrupted, 141 closed pipe.
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
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before main, and after it, an interruption has nothing to say
if importlib.util.find_spec("paramtool") is None:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from gpu_fused_arguments import parsed, parser
from gpu_fused_ending import ended, interrupted_code, say
from gpu_fused_output import Output
from gpu_fused_plot import draw, require_matplotlib
from gpu_fused_read import read
from gpu_fused_report import Result, print_report

from paramtool.errors import UsageError


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read, print, write, draw; the exit code."""
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
        return "nothing was kept: there was no -o RESULT.json"
    if not output.is_ours:
        return f"nothing was measured yet, and {output.path} was not written"
    return f"what was measured is in {output.path}"


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
    finally:  # a stdout that is closed or full loses the report, and nothing else
        if plot is not None:
            plot.write(lambda path: draw(result, path))
    return _verdict(result)


def _measured(asked: argparse.Namespace, output: Output | None) -> Result:
    try:
        sweeping = importlib.import_module("gpu_fused_sweep")
    except (ImportError, OSError) as error:  # OSError: a library of torch's
        reason = (str(error) or type(error).__name__).partition("\n")[0]
        hint = "a Python that has torch measures (docs/gpu.md); --from RESULT.json tells of an earlier result without"
        raise UsageError(f"cannot be measured, torch or what it needs is missing: {reason}", hint=hint) from error
    result: Result = sweeping.swept(asked, output)
    return result


def _verdict(result: Result) -> int:
    if not result["cells"]:
        say("gpu_fused: nothing was measured")
    return int(not result["cells"] or any(cell["failed"] for cell in result["not_measured"]))


if __name__ == "__main__":
    sys.exit(main())
