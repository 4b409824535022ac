"""Every command as people type it, beside `cp` and `sync`, and beside the best that a good engineer would write.

Each round copies the input first, then runs the command and its peer (`best.py`).  The input is in the page cache, and
what is written is on the disk when a command ends.  Where a flag changes the figure, both are there.  The models are an
LSTM that is 5,000 wide at 2 GB, a Llama's matrices, and 100,000 small tensors.  For `load_model` the seconds are those
of the call, beside those of torch.load(mmap=True) and load_state_dict, and not of starting Python.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from measure import HERE, PARAMTOOL, Run, folder, machine, make, mb, print_table, run

SOURCE, COPY, OUT, THEIRS = "m.pt", "copy.bin", "out.safetensors", "theirs.bin"
DEDUP, KERAS = "dedup.safetensors", "keras.safetensors"
WANTED_NBYTES = 150e6
MODELS = ("lstm", "llama", "small")
HEADER = ("as typed", "median", "x cp + sync", "wanted", "system", "peer", "x peer", "anonymous")


class Row(NamedTuple):
    """A command as it is typed, and what it is compared with."""

    words: str
    peer: str = ""
    """A job of `best.py` with its files."""
    wanted: float = 0.0
    """The most times that `cp` and `sync` take; 0 if nothing was said."""
    is_timed_inside: bool = False
    """Both are jobs of `best.py`, which print their seconds."""


EVERY = (
    Row(f"dedup {SOURCE} -o {OUT}", f"plain {SOURCE} {THEIRS}", 2.0),
    Row(f"dedup {SOURCE} -o {OUT} --no-verify", f"plain {SOURCE} {THEIRS}"),
    Row(f"dedup {SOURCE} -o out.pt", f"plain {SOURCE} {THEIRS}", 2.2),
    Row(f"export --all-names {SOURCE} -o {OUT}", f"plain {SOURCE} {THEIRS}", 1.9),
    Row(f"verify {DEDUP} --against {SOURCE}", f"equal {SOURCE} {COPY}", 0.8),
    Row(f"diff {DEDUP} {SOURCE}", f"equal {SOURCE} {COPY}", 0.8),
    Row(f"lock {SOURCE} -o out.lock", f"sha256 {SOURCE}", 1.5),
    Row(f"check {SOURCE}", f"sha256 {SOURCE}", 1.5),
    Row(f"inspect --digest {SOURCE}", f"blake3 {SOURCE}"),
    Row(f"load_model {SOURCE}", f"torch {SOURCE}", is_timed_inside=True),
)
OF_NETWORKS = (
    Row(f"convert --to keras --keep-split {SOURCE} -o {OUT}", f"keras {SOURCE} {THEIRS}", 2.5),
    Row(f"convert --to keras --keep-split {SOURCE} -o {OUT} --no-verify", f"keras {SOURCE} {THEIRS}", 1.8),
    Row(f"verify {KERAS} --against {SOURCE}", f"keras-equal {SOURCE} turned.bin", 1.2),
    Row(f"diff {KERAS} {SOURCE}", f"keras-equal {SOURCE} turned.bin", 2.0),
)


def main() -> None:
    """Measure each model at each size, and print a table for each."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, help="one size; 0.1, 1 and 4 if it is not given")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument(
        "--model", choices=("lstm", "llama", "small"), help="one model; every one if it is not given"
    )
    asked = arguments.parse_args()
    for gb in (0.1, 1, 4) if asked.gb is None else (asked.gb,):
        for model in MODELS if asked.model is None else (asked.model,):
            with folder() as place:
                _measure(place, model, gb, asked.rounds)


def _measure(place: str, model: str, gb: float, rounds: int) -> None:
    before = os.getcwd()
    os.chdir(place)
    try:
        make("typed", SOURCE, int(gb * 1e9), model)
        shutil.copyfile(SOURCE, COPY)
        run([PARAMTOOL, "dedup", SOURCE, "-o", DEDUP])
        run([PARAMTOOL, "lock", SOURCE])
        if model == "lstm":
            run([PARAMTOOL, "convert", "--to", "keras", "--keep-split", SOURCE, "-o", KERAS])
            run(_best("keras", SOURCE, "turned.bin"))
        table = [line for row in (*EVERY, *(OF_NETWORKS if model == "lstm" else ())) for line in _line(row, rounds)]
    finally:
        os.chdir(before)
    print_table(f"{model}, {gb:g} GB, {rounds} rounds", HEADER, table, [machine()])


def _best(*words: str) -> list[str]:
    return [sys.executable, os.path.join(HERE, "best.py"), *words]


def _line(row: Row, rounds: int) -> Iterator[Sequence[str]]:
    """The medians of a row; the first round warms up and is left out."""
    mine, theirs, copies = [], [], []
    command = _best(*row.words.split()) if row.is_timed_inside else [PARAMTOOL, *row.words.split()]
    for number in range(rounds + 1):
        found = [_fresh(["sh", "-c", f"cp {SOURCE} {THEIRS} && sync -d {THEIRS}"])]
        found += [_fresh(words) for words in (command, _best(*row.peer.split()))]
        if number:
            for kept, one in zip((copies, mine, theirs), found, strict=True):
                kept.append(one)
    took, peer = (_seconds(runs, row.is_timed_inside) for runs in (mine, theirs))
    copied = _seconds(copies, is_printed=False)
    anonymous = max(one.anonymous_nbytes for one in mine)
    yield (
        f"`{row.words}`",
        f"{took:.2f} s",
        f"{took / copied:.2f}",
        f"{row.wanted:g}" if row.wanted else "",
        f"{statistics.median(one.system_seconds for one in mine):.2f} s",
        f"{row.peer.split()[0]} {peer:.2f} s",
        f"{took / peer:.2f}",
        mb(anonymous) + (" (!)" if anonymous > WANTED_NBYTES and not row.is_timed_inside else ""),
    )


def _fresh(command: Sequence[str]) -> Run:
    """Run a command with nothing of an earlier one left, neither as a file nor as work of the disk."""
    for name in (OUT, "out.pt", "out.lock", THEIRS):
        if os.path.exists(name):
            os.unlink(name)
    subprocess.run(["sync", "-f", "."], check=True)
    return run(command, sample=True)


def _seconds(runs: Sequence[Run], is_printed: bool) -> float:
    return statistics.median(float(one.stdout) if is_printed else one.seconds for one in runs)


if __name__ == "__main__":
    main()
