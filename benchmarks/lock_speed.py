"""`paramtool lock` of one file, compared with the sha256 and the blake3 of that file, and with `sha256sum`.

Everything is in the page cache.  sha256 and blake3 by one process that reads the file twice, once for each, is what a
lock costs at least.  The ratio that counts is of processor time: `lock` uses several threads.  The bytes that it asks
the kernel for are counted, too: a file that is larger than memory comes from the disk as often as it is read.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

from measure import HEADER, PARAMTOOL, folder, interleaved, machine, make, print_table, rows, verdict

WANTED_RATIO = 1.5
WANTED_READS = 1.05
HASHES = """
import hashlib, sys
from blake3 import blake3
for made in (hashlib.sha256(), blake3()):
    buffer = memoryview(bytearray(1 << 20))
    with open(sys.argv[1], "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            made.update(buffer[:count])
"""
COUNTED = """
import sys
from paramtool.cli.main import main
sys.argv[0] = "paramtool"
try:
    main()
finally:
    with open("/proc/self/io") as file:
        print(next(line.split()[1] for line in file if line.startswith("rchar")), file=sys.stderr)
"""


def main() -> None:
    """Measure a file of torch.save and one of safetensors."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=3)
    asked = arguments.parse_args()
    for name in ("model.pt", "model.safetensors"):
        with folder() as place:
            _measure(make("distinct", os.path.join(place, name), int(asked.gb * 1e9), 200), asked)


def _measure(path: str, asked: argparse.Namespace) -> None:
    base = "sha256 and blake3, hashlib"
    words = ["lock", path, "-o", "-", "--quiet"]
    commands = {
        base: [sys.executable, "-c", HASHES, path],
        "paramtool lock": [PARAMTOOL, *words],
        "sha256sum": ["sha256sum", path],
    }
    found = interleaved(commands, asked.rounds, sample=True)
    pairs = zip(found["paramtool lock"], found[base], strict=True)
    ratio = statistics.median(mine.processor_seconds / theirs.processor_seconds for mine, theirs in pairs)
    notes = [verdict(f"processor time of lock beside {base}", ratio, WANTED_RATIO, " times")]
    if os.path.exists("/proc/self/io"):
        ran = subprocess.run([sys.executable, "-c", COUNTED, *words], check=True, capture_output=True, text=True)
        times = int(ran.stderr.split()[-1]) / os.path.getsize(path)
        notes.append(verdict("bytes that lock reads, beside those of the file", times, WANTED_READS, " times"))
    title = f"lock, {os.path.basename(path)} of {asked.gb:g} GB, {asked.rounds} rounds; {machine()}"
    print_table(title, HEADER, list(rows(found, base)), notes)


if __name__ == "__main__":
    main()
