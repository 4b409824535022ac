"""How much of a checkpoint without duplicates is read to find that it has none.

`asked for` is what the engine reads, `from the disk` what the kernel then fetched with a cold cache (whole pages, and
read-ahead): /proc/self/io before and after the search.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys

from measure import folder, machine, make, print_table, run, verdict

WANTED_PERCENT = 2
WANTED_PAGES_PERCENT = 5
INPUTS = (
    ("256 tensors of one shape", "distinct", 256),
    ("20,000 tensors of one shape", "distinct", 20_000),
    ("a transformer, every tensor unlike", "content", "none"),
)
"""(title, kind of input, count or variant)."""
SEARCH = """
import json, os, sys, time
from paramtool import formats
from paramtool.commands.compare import Looking, compare
from paramtool.model import alias
from paramtool.passes.dedup.candidates import candidates

def io():
    with open("/proc/self/io") as file:
        return {key: int(value) for key, value in (line.split(": ") for line in file)}

path = sys.argv[1]
with open(path, "rb") as file:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
checkpoint = formats.read(path)
graph = alias.build(checkpoint)
count = len(candidates(checkpoint, graph, 4096))
import numpy, blake3
before, began = io(), time.perf_counter()
found = compare(checkpoint, graph, Looking())
asked = found.nbytes_read
after = io()
print(json.dumps({
    "seconds": time.perf_counter() - began, "found": len(found.equal) + len(found.matches), "candidates": count,
    "asked": asked, "rchar": after["rchar"] - before["rchar"], "disk": after["read_bytes"] - before["read_bytes"],
}))
"""


def main() -> None:
    """Measure and print: large tensors, many small tensors, and a model in which slices are possible, too."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=5)
    asked = arguments.parse_args()
    nbytes = int(asked.gb * 1e9)
    table, notes = [], []
    for what, kind, argument in INPUTS:
        with folder() as place:
            path = make(kind, os.path.join(place, "model.pt"), nbytes, argument)
            os.sync()
            size = os.path.getsize(path)
            results = [json.loads(run([sys.executable, "-c", SEARCH, path]).stdout) for _ in range(asked.rounds)]
        last = results[-1]
        assert last["found"] == 0
        times = [result["seconds"] for result in results]
        percent = 100 * last["asked"] / size
        from_disk = 100 * max(result["disk"] for result in results) / size
        table.append((
            what, f"{last['candidates']}",
            f"{percent:.3f} %", f"{100 * last['rchar'] / size:.3f} %",
            f"{from_disk:.2f} %",
            f"{statistics.median(times):.2f} s", f"{min(times):.2f} - {max(times):.2f} s",
        ))  # fmt: skip
        notes.append(verdict(f"bytes read of {what}", percent, WANTED_PERCENT, " %"))
        notes.append(verdict(f"pages fetched of {what}", from_disk, WANTED_PAGES_PERCENT, " %"))
    print_table(
        f"search for equal bytes in {asked.gb:g} GB without any, cold cache, {asked.rounds} rounds",
        ("what", "candidates", "asked for", "by read calls", "from the disk", "median", "min - max"),
        table, [*notes, machine()],
    )  # fmt: skip


if __name__ == "__main__":
    main()
