"""Runs random trials, prints each fault with its seed, and counts."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.laws.diff_trials.pairs import KINDS, pair
from tests.laws.diff_trials.running import outcome

MEMORY = Path("/dev/shm")
"""A folder in memory, where there is one: hundreds of thousands of small files are written."""


def main(count: int, start: int = 0, kinds: tuple[str, ...] = ()) -> int:
    """Trials with the seeds from `start`; how many had a fault."""
    verdicts: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    wrong = diffs = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        for seed in range(start, start + count):
            one = pair(seed, kinds)
            found = outcome(one, Path(folder), seed)
            modules.update(name for name, _ in one.modules)
            verdicts.update(found.verdicts)
            missed.update(found.missed)
            diffs += found.diffs
            if found.faults:
                wrong += 1
                print(f"seed {seed} {[name for name, _ in one.modules]}: {'; '.join(found.faults)}", flush=True)
            if (seed + 1 - start) % 5000 == 0:
                print(f"{seed + 1 - start} pairs, {wrong} with a fault", flush=True)
    print(f"{count} pairs from seed {start}, {sum(modules.values())} modules of {len(modules)} kinds, {diffs} diffs")
    print(f"{wrong} with a false verdict, or without a map that is said to be found")
    print(f"verdicts: {dict(verdicts.most_common())}")
    print(f"maps that are not said to be found, and were not: {dict(missed.most_common())}")
    print(f"{time.monotonic() - began:.0f} s")
    return wrong


if __name__ == "__main__":
    given = argparse.ArgumentParser(prog="python -m tests.laws.diff_trials", description=__doc__)
    given.add_argument("count", type=int, help="how many pairs")
    given.add_argument("start", type=int, nargs="?", default=0, help="the first seed")
    given.add_argument("--kind", action="append", default=[], choices=[*KINDS], help="only modules of this kind")
    said = given.parse_args()
    sys.exit(bool(main(said.count, said.start, tuple(said.kind))))
