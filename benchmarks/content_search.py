"""How fast content is compared if everything has to be read, and how little is read if nothing matches.

Equal tensors and slices are measured against blake3 of the same file on one thread, transposes and casts against NumPy
doing the same comparison, tensor by tensor, on the mapped file.  The file is always in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys

from measure import HERE, folder, machine, make, mb, print_table, run, verdict

SEARCH = """
import json, resource, sys, time
import paramtool
from paramtool.commands.compare import Looking, compare
from paramtool.model import alias
import numpy, blake3, ml_dtypes
checkpoint = paramtool.read(sys.argv[1])
graph = alias.build(checkpoint)
began, busy = time.perf_counter(), time.process_time()
found = compare(checkpoint, graph, Looking(memory=int(sys.argv[2])))
seconds, busy = time.perf_counter() - began, time.process_time() - busy
print(json.dumps({
    "seconds": seconds, "busy": busy, "found": len(found.equal) + len(found.matches), "read": found.nbytes_read,
}))
"""
FAMILY = """
import json, sys, time
from paramtool.commands.dedup_many import dedup_family
import numpy, blake3
began, busy = time.perf_counter(), time.process_time()
found = dedup_family(sys.argv[2:], sys.argv[1], dry_run=True)
seconds, busy = time.perf_counter() - began, time.process_time() - busy
print(json.dumps({"seconds": seconds, "busy": busy, "before": found.nbytes_before, "after": found.nbytes_after}))
"""
BLAKE3 = """
import json, sys, time
from blake3 import blake3
began = time.perf_counter()
made, buffer = blake3(), memoryview(bytearray(1 << 20))
for path in sys.argv[1:]:
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            made.update(buffer[:count])
print(json.dumps({"seconds": time.perf_counter() - began}))
"""
NUMPY = """
import json, sys, time
import ml_dtypes, numpy as np
with open(sys.argv[1], "rb") as file:
    size = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(size))
raw = np.memmap(sys.argv[1], "u1", "r", 8 + size)
def tensor(name):
    item = header[name]
    start, stop = item["data_offsets"]
    return raw[start:stop].view({"F32": "f4", "BF16": ml_dtypes.bfloat16}[item["dtype"]]).reshape(item["shape"])
began = time.perf_counter()
for name in [name for name in header if name.startswith("layer")]:
    one, other = tensor(name), tensor(name.replace("layer", "other"))
    if sys.argv[2] == "transpose":
        assert np.array_equal(one.view("u4").T, other.view("u4"))
    else:
        assert np.array_equal(one.astype(ml_dtypes.bfloat16).view("u2"), other.view("u2"))
print(json.dumps({"seconds": time.perf_counter() - began}))
"""
PEERS = {"equal": BLAKE3, "slice": BLAKE3, "transpose": NUMPY, "cast": NUMPY, "none": BLAKE3}
WANTED = 2.0
"""Half the speed of the peer."""


def of_family(nbytes: int, rounds: int, notes: list[str]) -> tuple[str, ...]:
    """50 checkpoints of one family, planned and not written, compared with blake3 of all of them."""
    with folder() as place:
        run([sys.executable, os.path.join(HERE, "inputs.py"), "family", place, str(nbytes), "50"])
        paths = [os.path.join(place, name) for name in sorted(os.listdir(place))]
        mine, theirs = [], []
        for number in range(rounds + 1):
            ran = run([sys.executable, "-c", FAMILY, os.path.join(place, "out"), *paths], sample=True)
            found, other = json.loads(ran.stdout), json.loads(run([sys.executable, "-c", BLAKE3, *paths]).stdout)
            if number:
                mine.append(found["seconds"])
                theirs.append(other["seconds"])
    ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
    notes.append(verdict("time of planning 50 checkpoints, as a ratio", ratio, WANTED))
    return (
        "50 checkpoints", f"{mb(found['before'])} to {mb(found['after'])}", f"{statistics.median(mine):.2f} s",
        f"{statistics.median(theirs):.2f} s by blake3", f"{ratio:.2f}", "once",
        f"{found['busy'] / found['seconds']:.1f}", mb(ran.anonymous_nbytes),
    )  # fmt: skip


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--memory", type=int, default=512 << 20)
    asked = arguments.parse_args()
    nbytes = int(asked.gb * 1e9)
    table, notes = [], []
    for kind, peer in PEERS.items():
        with folder() as place:
            path = make("content", os.path.join(place, "model.safetensors"), nbytes, kind)
            size = os.path.getsize(path)
            mine, theirs, asks = [], [], [kind] if peer is NUMPY else []
            for number in range(asked.rounds + 1):
                ran = run([sys.executable, "-c", SEARCH, path, str(asked.memory)], sample=True)
                found, other = json.loads(ran.stdout), json.loads(run([sys.executable, "-c", peer, path, *asks]).stdout)
                if number:  # the first round fills the cache
                    mine.append(found["seconds"])
                    theirs.append(other["seconds"])
        assert bool(found["found"]) == (kind != "none")
        ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
        table.append((
            kind, f"{found['found']}", f"{statistics.median(mine):.2f} s",
            f"{statistics.median(theirs):.2f} s by {'NumPy' if peer is NUMPY else 'blake3'}", f"{ratio:.2f}",
            f"{100 * found['read'] / size:.2f} %", f"{found['busy'] / found['seconds']:.1f}", mb(ran.anonymous_nbytes),
        ))  # fmt: skip
        if kind != "none":
            notes.append(verdict(f"time of finding {kind}, as a ratio", ratio, WANTED))
    table.append(of_family(nbytes, asked.rounds, notes))
    print_table(
        f"comparing {asked.gb:g} GB, warm cache, {asked.rounds} rounds",
        ("planted", "found", "median", "beside", "ratio", "read", "cores busy", "anonymous memory"),
        table, [*notes, machine()],
    )  # fmt: skip


if __name__ == "__main__":
    main()
