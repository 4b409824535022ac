"""`paramtool convert --to transformers-5`, `fuse` and `unfuse` of experts, compared with `cp` and `sync -d`.

A Qwen3-MoE as transformers 4 writes it, with runs of 1 MB and of 40 kB; everything ends with its output on the disk,
and the input is in the page cache.  Then layouts that move elements one by one, compared with NumPy, which maps the
file, makes the same tensors in memory and writes them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from measure import HEADER, PARAMTOOL, Run, folder, interleaved, machine, make, print_table, rows, run, verdict

MB, KB = 1 << 20, 40 << 10
WANTED = {MB: 1.3, KB: 2.2}
"""{bytes of a run: how many times as long as `cp` and `sync -d` it may take}"""
WANTED_NBYTES = 200e6
EXPERTS = {MB: 64, KB: 128}
NUMPY = """
import glob, json, os, sys
import numpy as np
source, target, layout = sys.argv[1:]
files, place = {}, {}
for path in glob.glob(source + "/*.safetensors"):
    mapped = np.memmap(path, "u1", "r")
    start = 8 + int(mapped[:8].view("<u8")[0])
    for name, one in json.loads(mapped[8:start].tobytes()).items():
        if name != "__metadata__":
            place[name] = mapped, [start + k for k in one["data_offsets"]], one["shape"]
def get(name):
    mapped, (begin, end), shape = place.pop(name)
    return mapped[begin:end].view("<u2").reshape(shape)
os.makedirs(target)
with open(target + "/out", "wb") as out:
    def write(array):
        out.write(np.ascontiguousarray(array).data)
    if layout == "qkv-per-head":
        for at in sorted({name.rsplit(".", 2)[0] for name in place}):
            parts = [get(f"{at}.{child}_proj.weight").reshape(32, 1, -1, 2048) for child in "qkv"]
            write(np.concatenate(parts, 1))
    else:
        for at in sorted({name.split(".experts.")[0] + ".experts" for name in place if ".experts." in name}):
            count = sum(name.startswith(at + ".") for name in place) // 3
            gate, up, down = (
                [get(f"{at}.{k}.{child}_proj.weight") for k in range(count)] for child in ("gate", "up", "down")
            )
            turned = "transposed" in layout
            def joined(pair):
                return np.stack(pair, 1).reshape(-1, pair[0].shape[1]) if "inter" in layout else np.concatenate(pair)
            pairs = [joined(pair) for pair in zip(gate, up)]
            write(np.stack([pair.T if turned else pair for pair in pairs]))
            write(np.stack([one.T if turned else one for one in down]))
    for name in list(place):
        write(get(name))
    out.flush()
    os.fsync(out.fileno())
"""


def main() -> None:
    """Measure each size of runs and each layout, and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--only", choices=("1MB", "40kB", "elements"))
    asked = arguments.parse_args()
    for name, size in (("1MB", MB), ("40kB", KB)):
        if asked.only in (None, name):
            with folder() as place:
                _beside_cp(place, size, asked)
    if asked.only in (None, "elements"):
        with folder() as place:
            _beside_numpy(place, asked)


def _clear(out: str) -> None:
    if os.path.exists(out):
        shutil.rmtree(out)
    subprocess.run(["sync", "-f", os.path.dirname(out)], check=True)


def _beside_cp(place: str, size: int, asked: argparse.Namespace) -> None:
    four, five, fused, out = (os.path.join(place, name) for name in ("four", "five", "fused", "out"))
    make("experts", four, int(asked.gb * 1e9), size, EXPERTS[size])
    to_five = [PARAMTOOL, "convert", four, "--to", "transformers-5", "--no-verify", "-o"]
    fuse = [PARAMTOOL, "fuse", four, "--layout", "experts", "--no-verify", "-o"]
    for command, made in ((to_five, five), (fuse, fused)):
        run([*command, made])
    copy = f"cp -r {shlex.quote(four)} {shlex.quote(out)} && sync -d {shlex.quote(out)}/*"
    base = "cp and sync -d"
    commands = {
        base: ["sh", "-c", copy],
        "convert --to transformers-5": [*to_five, out],
        "convert --to transformers-4": [PARAMTOOL, "convert", five, "--to", "transformers-4", "--no-verify", "-o", out],
        "fuse --layout experts": [*fuse, out],
        "unfuse": [PARAMTOOL, "unfuse", fused, "--no-verify", "-o", out],
        "convert --dry-run": [*to_five, out, "--dry-run"],
    }
    found = interleaved(commands, asked.rounds, before=lambda: _clear(out), sample=True, warm=False)
    _print(f"{asked.gb:g} GB, runs of {size} bytes, {asked.rounds} rounds", found, base, WANTED[size])


def _beside_numpy(place: str, asked: argparse.Namespace) -> None:
    experts, attention, out = (os.path.join(place, name) for name in ("experts", "attention", "out"))
    make("experts", experts, int(asked.gb / 4 * 1e9), MB, 256)
    make("attention", attention, int(asked.gb / 4 * 1e9))
    for layout in ("experts-interleaved", "experts-transposed", "experts-transposed-interleaved", "qkv-per-head"):
        source = attention if layout == "qkv-per-head" else experts
        spec = ["--spec", "qkv heads=32 kv_heads=32 head_dim=64"] if source == attention else []
        base = "NumPy, fsync"
        commands = {
            base: [sys.executable, "-c", NUMPY, source, out, layout],
            f"fuse --layout {layout}": [
                PARAMTOOL, "fuse", source, "--layout", layout, *spec, "--no-verify", "-o", out
            ],
        }  # fmt: skip
        found = interleaved(commands, asked.rounds, before=lambda: _clear(out), sample=True, warm=False)
        _print(f"{layout}, {asked.gb / 4:g} GB, {asked.rounds} rounds", found, base, 1.25)


def _print(title: str, found: dict[str, list[Run]], base: str, wanted: float) -> None:
    """A table, the spread of the ratios of its rounds, and whether the bounds hold."""
    table = list(rows(found, base))
    notes = []
    for row in table[1:]:
        if "dry-run" in row[0]:
            continue
        pairs = zip(found[row[0]], found[base], strict=True)
        ratios = sorted(mine.seconds / theirs.seconds for mine, theirs in pairs)
        notes.append(verdict(f"{row[0]} beside {base}", float(row[3]), wanted, " times"))
        notes.append(
            f"from {ratios[0]:.2f} to {ratios[-1]:.2f}; {found[row[0]][0].processor_seconds:.1f} s of a processor"
        )
    ours: Sequence[Run] = [one for label, runs in found.items() if label != base for one in runs]
    notes.append(
        verdict("anonymous memory", max(one.anonymous_nbytes for one in ours) / 1e6, WANTED_NBYTES / 1e6, " MB")
    )
    print_table(title, HEADER, table, [*notes, machine()])


if __name__ == "__main__":
    main()
