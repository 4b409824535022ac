"""`paramtool convert --no-verify` compared with NumPy doing the same: gates reordered, transposes, one flat vector.

NumPy maps the file, makes each tensor, and writes the same data in the same order, without a header.  Both end with
their output on the disk; the input is in the page cache for both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from measure import HEADER, PARAMTOOL, folder, interleaved, machine, make, print_table, rows, verdict

WANTED_SPEED = 0.8
WANTED_NBYTES = 150e6
NUMPY = """
import json, os, sys
import numpy as np
source, target, layout = sys.argv[1:]
ORDER = {"onnx": (0, 3, 1, 2), "keras": (0, 1, 2, 3)}
def gates(array, order):
    return array.reshape(4, -1, *array.shape[1:])[list(order)].reshape(array.shape)
mapped = np.memmap(source, "u1", "r")
start = 8 + int(mapped[:8].view("<u8")[0])
header = json.loads(mapped[8:start].tobytes())
def get(name):
    begin, end = (start + offset for offset in header[name]["data_offsets"])
    return mapped[begin:end].view("<f4").reshape(header[name]["shape"])
with open(target, "wb") as out:
    def write(array):
        out.write(np.ascontiguousarray(array).data)
    write(get("emb.weight"))
    layers = range(4)
    if layout == "cudnn":
        for part in ("weight", "bias"):
            for k in layers:
                write(get(f"rnn.{part}_ih_l{k}")), write(get(f"rnn.{part}_hh_l{k}"))
    for k in layers if layout != "cudnn" else ():
        w, r = get(f"rnn.weight_ih_l{k}"), get(f"rnn.weight_hh_l{k}")
        b, c = get(f"rnn.bias_ih_l{k}"), get(f"rnn.bias_hh_l{k}")
        if layout == "keras":
            write(w.T), write(r.T), write(b + c)
        else:
            for array in (w, r, b, c):
                write(gates(array, ORDER[layout]))
    out.flush()
    os.fsync(out.fileno())
"""


def main() -> None:
    """Measure each layout, and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=5)
    asked = arguments.parse_args()
    with folder() as place:
        path = make("lstm", os.path.join(place, "model.safetensors"), int(asked.gb * 1e9))
        for layout in ("cudnn", "onnx", "keras"):
            _measure(place, path, layout, asked)


def _measure(place: str, path: str, layout: str, asked: argparse.Namespace) -> None:
    out = os.path.join(place, "out.safetensors")
    base = "NumPy, fsync"
    commands = {
        base: [sys.executable, "-c", NUMPY, path, out, layout],
        f"paramtool convert --to {layout}": [PARAMTOOL, "convert", path, "-o", out, "--to", layout, "--no-verify"],
    }

    def clear() -> None:
        if os.path.exists(out):
            os.unlink(out)
        subprocess.run(["sync", "-f", place], check=True)

    found = interleaved(commands, asked.rounds, before=clear, sample=True)
    table = list(rows(found, base))
    anonymous = max(run.anonymous_nbytes for run in list(found.values())[1])
    print_table(
        f"torch to {layout}, {asked.gb:g} GB of which half is an LSTM, {asked.rounds} rounds", HEADER, table,
        [
            verdict("time beside NumPy", float(table[1][3]), 1 / WANTED_SPEED, " times"),
            verdict("peak anonymous memory", anonymous / 1e6, WANTED_NBYTES / 1e6, " MB"),
            machine(),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
