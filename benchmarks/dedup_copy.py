"""`paramtool dedup --no-equal --no-verify` compared with `cp` and `sync -d`, and with torch.load + safetensors.

All three end with their output on the disk.  The input is in the page cache for all three.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys

from measure import HEADER, PARAMTOOL, folder, interleaved, machine, make, print_table, rows, verdict

WANTED_RATIO = 1.25
WANTED_NBYTES = 150e6
TODAY = """
import os, sys, torch
from safetensors.torch import save_file
state = torch.load(sys.argv[1], weights_only=True)
for name in ("head.weight", "unembed", "short.weight"):
    del state[name]  # save_file refuses names that share memory; these are lost
save_file(state, sys.argv[2])
with open(sys.argv[2], "rb") as file:
    os.fsync(file.fileno())
"""


def main() -> None:
    """Measure and print a small and a large file, to show that memory does not grow."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=5)
    asked = arguments.parse_args()
    for gb in (asked.gb / 4, asked.gb):
        with folder() as place:
            _measure(place, gb, asked.rounds)


def _measure(place: str, gb: float, rounds: int) -> None:
    path = make("aliases", os.path.join(place, "model.pt"), int(gb * 1e9))
    out = os.path.join(place, "out.safetensors")
    copy = f"cp {shlex.quote(path)} {shlex.quote(out)} && sync -d {shlex.quote(out)}"
    commands = {
        "cp and sync -d": ["sh", "-c", copy],
        "paramtool dedup --no-equal --no-verify": [
            PARAMTOOL, "dedup", "--no-equal", "--no-verify", path, "-o", out,
        ],
        "torch.load and safetensors save_file, fsync": [sys.executable, "-c", TODAY, path, out],
    }  # fmt: skip

    def clear() -> None:
        if os.path.exists(out):
            os.unlink(out)
        subprocess.run(["sync", "-f", place], check=True)

    base, ours, _ = commands
    found = interleaved(commands, rounds, before=clear, sample=True)
    table = list(rows(found, base))
    anonymous = max(run.anonymous_nbytes for run in found[ours])
    print_table(
        f"dedup of a .pt of {gb:g} GB, {rounds} rounds", HEADER, table,
        [
            verdict("time beside cp and sync -d", float(table[1][3]), WANTED_RATIO, " times"),
            verdict("peak anonymous memory", anonymous / 1e6, WANTED_NBYTES / 1e6, " MB"),
            machine(),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
