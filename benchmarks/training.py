"""Checkpoints with the state of an optimizer: `dedup`, `fuse` and `unfuse` compared with `cp` and `sync -d`.

A model and AdamW's moments of it, three times the bytes of the weights, in one file of torch.save; the same in a folder
of torch.distributed.checkpoint that 64 ranks wrote.  Everything ends with its output on the disk, and the input is in
the page cache.  Then a file of three times the size whose tensors are a hole, which `inspect --optimizer` reads and
`fuse --dry-run` plans.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys

from measure import HEADER, PARAMTOOL, Run, folder, interleaved, machine, make, print_table, rows, run, verdict

WANTED_RATIO = 1.3
WANTED_NBYTES = 200e6
RANKS = 64
FUSE = ["--layout", "qkv", "--spec", "qkv heads=16 kv_heads=16 head_dim=128"]
HOLE = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import inputs
inputs._ramp = lambda *shape: torch.empty(shape)
state = inputs.training(int(sys.argv[3]))
torch.serialization.set_crc32_options(False)
with torch.serialization.skip_data():
    torch.save(state, sys.argv[2])
"""
"""A file of torch.save without the bytes of its tensors: nothing is written for them, so that any size is possible."""


def main() -> None:
    """Measure one file, 64 ranks and a hole, and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--only", choices=("file", "ranks", "hole"))
    asked = arguments.parse_args()
    for name, measure in (("file", _file), ("ranks", _ranks), ("hole", _hole)):
        if asked.only in (None, name):
            with folder() as place:
                measure(place, asked)


def _file(place: str, asked: argparse.Namespace) -> None:
    path = make("training", os.path.join(place, "last.pt"), int(asked.gb * 1e9))
    fused, out = (os.path.join(place, name) for name in ("fused.safetensors", "out.safetensors"))
    run([PARAMTOOL, "fuse", path, *FUSE, "--no-verify", "-o", fused])
    commands = {
        "cp and sync -d": _copy(path, out),
        "dedup": [PARAMTOOL, "dedup", path, "--no-equal", "--no-verify", "-o", out],
        "fuse --layout qkv, with its moments": [PARAMTOOL, "fuse", path, *FUSE, "--no-verify", "-o", out],
        "unfuse, with its moments": [PARAMTOOL, "unfuse", fused, "--no-verify", "-o", out],
    }
    found = interleaved(commands, asked.rounds, before=lambda: _clear(out), sample=True, warm=False)
    _print(f"a training file of {asked.gb:g} GB, {asked.rounds} rounds", found)


def _ranks(place: str, asked: argparse.Namespace) -> None:
    path, out = (os.path.join(place, name) for name in ("ranks", "out.safetensors"))
    quoted = shlex.quote(out)
    make("ranks", path, int(asked.gb * 1e9), RANKS)
    commands = {
        "cat and sync -d": ["sh", "-c", f"cat {shlex.quote(path)}/*.distcp > {quoted}; sync -d {quoted}"],
        "dedup": [PARAMTOOL, "dedup", path, "--no-equal", "--no-verify", "-o", out],
    }  # fmt: skip
    found = interleaved(commands, asked.rounds, before=lambda: _clear(out), sample=True, warm=False)
    _print(f"{RANKS} ranks of torch.distributed.checkpoint, {asked.gb:g} GB, {asked.rounds} rounds", found)


def _hole(place: str, asked: argparse.Namespace) -> None:
    path, out = (os.path.join(place, name) for name in ("hole.pt", "out.safetensors"))
    run([sys.executable, "-c", HOLE, os.path.dirname(os.path.abspath(__file__)), path, str(int(3 * asked.gb * 1e9))])
    commands = {
        "torch.load, mmap": [sys.executable, "-c", "import sys, torch; torch.load(sys.argv[1], mmap=True)", path],
        "inspect --optimizer": [PARAMTOOL, "inspect", "--optimizer", path],
        "fuse --dry-run": [PARAMTOOL, "fuse", path, *FUSE, "--dry-run", "-o", out],
    }
    found = interleaved(commands, asked.rounds, sample=True)
    table = list(rows(found, "torch.load, mmap"))
    size = os.path.getsize(path) / 1e9
    print_table(
        f"a training file of {size:.1f} GB without its bytes, {asked.rounds} rounds", HEADER, table, [machine()]
    )


def _copy(path: str, out: str) -> list[str]:
    return ["sh", "-c", f"cp {shlex.quote(path)} {shlex.quote(out)} && sync -d {shlex.quote(out)}"]


def _clear(out: str) -> None:
    if os.path.isdir(out):
        shutil.rmtree(out)
    elif os.path.exists(out):
        os.unlink(out)
    subprocess.run(["sync", "-f", os.path.dirname(out)], check=True)


def _print(title: str, found: dict[str, list[Run]]) -> None:
    """A table, and whether the bounds hold."""
    base, *ours = found
    table = list(rows(found, base))
    notes = [verdict(f"{row[0]} beside {base}", float(row[3]), WANTED_RATIO, " times") for row in table[1:]]
    nbytes = max(one.anonymous_nbytes for label in ours for one in found[label])
    notes.append(verdict("anonymous memory", nbytes / 1e6, WANTED_NBYTES / 1e6, " MB"))
    print_table(title, HEADER, table, [*notes, machine()])


if __name__ == "__main__":
    main()
