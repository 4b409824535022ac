"""`paramtool inspect` of a large checkpoint compared with a process that only imports click, and with torch.load."""

from __future__ import annotations

import argparse
import os
import sys

from measure import HEADER, PARAMTOOL, folder, interleaved, machine, make, print_table, rows, verdict

WANTED_RATIO = 2.2
WANTED_NBYTES = 60e6
TORCH = "import sys, torch; torch.load(sys.argv[1], mmap=True, weights_only=True)"
FIXTURES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fixtures")
SMALL = {
    "allenai__allennlp__simple_tagger_full_best.th": 1.9,
    os.path.join(FIXTURES, "torch", "tied_flattened", "tied_flattened.pt"): 2.4,
    "Xiaobin-Rong__gtcrn__model_trained_on_vctk.tar": 3.3,
}
"""{a small file: how many times the base process `inspect` may take}; names without a folder are samples."""


def small(samples: str, rounds: int) -> None:
    """The small files, by the best of the rounds, beside two processes that import what a command line needs."""
    base, rich = "python -c 'import click, json'", "python -c 'import click, json, rich.text'"
    commands = {base: [sys.executable, "-c", "import click, json"]}
    commands[rich] = [sys.executable, "-c", "import click, json, rich.text"]
    for name in SMALL:
        commands[os.path.basename(name)] = [PARAMTOOL, "inspect", os.path.join(samples, name)]
    found = interleaved(commands, rounds)
    best = {label: min(run.processor_seconds for run in runs) for label, runs in found.items()}
    notes = [
        verdict(os.path.basename(name), best[os.path.basename(name)] / best[base], bound, " times")
        for name, bound in SMALL.items()
    ]
    table = [
        (label, f"{1000 * one:.0f} ms", f"{one / best[base]:.2f}", f"{one / best[rich]:.2f}")
        for label, one in best.items()
    ]
    header = ("what", "processor time, best", "beside click and json", "beside click, json and rich.text")
    print_table(f"start-up of inspect, {rounds} rounds", header, table, [*notes, machine()])


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--samples", help="a folder with the samples: measure start-up with small files")
    asked = arguments.parse_args()
    if asked.samples is not None:
        small(asked.samples, asked.rounds)
        return
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
