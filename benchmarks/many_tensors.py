"""`paramtool inspect` of 1,000, 10,000 and 100,000 tensors: the time grows no faster than their number."""

from __future__ import annotations

import argparse
import os
import statistics
import sys

from measure import PARAMTOOL, folder, interleaved, machine, make, mb, median, print_table

COUNTS = (1_000, 10_000, 100_000)
TORCH = "import sys, torch; torch.load(sys.argv[1], mmap=True, weights_only=True)"
SAFETENSORS = """
import sys
from safetensors import safe_open
with safe_open(sys.argv[1], "np") as file:
    [file.get_slice(name).get_shape() for name in file.keys()]
"""


def main() -> None:
    """Measure and print, for both formats."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, help="not used: the tensors are tiny")
    arguments.add_argument("--rounds", type=int, default=5)
    rounds = arguments.parse_args().rounds
    for ending, today, script in (
        (".pt", "torch.load(mmap=True)", TORCH),
        (".safetensors", "safe_open", SAFETENSORS),
    ):
        table, ours = [], []
        for count in COUNTS:
            with folder() as place:
                path = make("many", os.path.join(place, f"model{ending}"), count)
                commands = {
                    "click": [sys.executable, "-c", "import click"],
                    "inspect": [PARAMTOOL, "inspect", path],
                    "json": [PARAMTOOL, "inspect", "--json", path],
                    "today": [sys.executable, "-c", script, path],
                }
                found = interleaved(commands, rounds)
            own = [a.seconds - b.seconds for a, b in zip(found["inspect"], found["click"], strict=True)]
            ours.append(statistics.median(own))
            times = [run.seconds for run in found["inspect"]]
            table.append((
                f"{count:,} {ending}", f"{median(found['inspect']):.2f} s", f"{min(times):.2f} - {max(times):.2f} s",
                f"{1e6 * ours[-1] / count:.0f} us", mb(max(run.peak_nbytes for run in found["inspect"])),
                f"{median(found['json']):.2f} s", f"{median(found['today']):.2f} s",
            ))  # fmt: skip
        growth = ours[2] / ours[1]
        print_table(
            f"inspect of many tensors in a {ending} file, {rounds} rounds",
            ("tensors", "inspect", "min - max", "each, above importing click", "peak memory", "--json", today),
            table,
            [f"from 10,000 to 100,000 tensors the time above importing click grows {growth:.1f} times", machine()],
        )


if __name__ == "__main__":
    main()
