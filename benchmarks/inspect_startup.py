"""`paramtool inspect` of a large checkpoint compared with a process that only imports click, and with torch.load."""

from __future__ import annotations

import argparse
import os
import sys

from measure import HEADER, PARAMTOOL, folder, interleaved, machine, make, print_table, rows, verdict

WANTED_RATIO = 2.2
WANTED_NBYTES = 60e6
TORCH = "import sys, torch; torch.load(sys.argv[1], mmap=True, weights_only=True)"


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=15)
    asked = arguments.parse_args()
    with folder() as place:
        path = make("aliases", os.path.join(place, "model.pt"), int(asked.gb * 1e9))
        commands = {
            "python -c 'import click'": [sys.executable, "-c", "import click"],
            "paramtool inspect, into a pipe": [PARAMTOOL, "inspect", path],
            "paramtool inspect --json": [PARAMTOOL, "inspect", "--json", path],
            "paramtool inspect, in a terminal (rich draws)": [PARAMTOOL, "inspect", path],
            "torch.load(mmap=True, weights_only=True)": [sys.executable, "-c", TORCH, path],
        }
        base, ours, _, drawn, _ = commands
        found = interleaved(commands, asked.rounds, terminal=[drawn])
        table = list(rows(found, base))
        peak = max(run.peak_nbytes for run in found[ours])
        print_table(
            f"inspect of a .pt of {asked.gb:g} GB, {asked.rounds} rounds", HEADER[:-1], [row[:-1] for row in table],
            [
                verdict("time beside importing click", float(table[1][3]), WANTED_RATIO, " times"),
                verdict("peak memory", peak / 1e6, WANTED_NBYTES / 1e6, " MB"),
                machine(),
            ],
        )  # fmt: skip


if __name__ == "__main__":
    main()
