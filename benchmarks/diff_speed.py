"""`paramtool diff` of two checkpoints, compared with reading both and hashing or comparing them.

Everything is in the page cache.  The pairs: equal files, all tensors renamed, one form of a mixture of experts beside
the other (with a map), and maps that no table has: rows of 4 kB and of 1 kB, and columns, with their halves exchanged
or all permuted, and axes in another order.  Peers: `cmp`, blake3 of both, sha256sum, and torch.equal of both, which is
told the names.  With `--memory 64MiB`, each pair also says how much more memory it takes than a pair of 256 bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from measure import HEADER, PARAMTOOL, folder, interleaved, machine, make, print_table, rows, run, verdict

MB = 1 << 20
SAME, MAPPED = 1.5, 4.0
"""How many times as long as blake3 of both it may take: equal or renamed pairs, and pairs with a map."""
BLAKE3 = """
import sys
from blake3 import blake3
made, buffer = blake3(), memoryview(bytearray(1 << 20))
for path in sys.argv[1:]:
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            made.update(buffer[:count])
"""
EQUAL = """
import sys
import torch
from safetensors.torch import load_file
one, other = (load_file(path) for path in sys.argv[1:])
print(all(torch.equal(tensor, other[name if name in other else "x." + name]) for name, tensor in one.items()))
"""
RENAMED = "x."
KERNELS = "tensor.permute(2, 3, 1, 0)"
PER_HEAD = "tensor.view(3, 16, 128, 512).transpose(0, 1).reshape(6144, 512)"
"""Q, K and V of 16 heads, one after the other, as each head's."""
FEW = "64MiB"
FEW_NBYTES, BESIDE_NBYTES = 64 * MB, 32 * MB
"""The memory that is given to `diff`, and what Python itself and a map may take beside it."""


def main() -> None:
    """Measure each pair, and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--only", default="", help="the pairs that have this word")
    asked = arguments.parse_args()
    pairs: dict[str, tuple[Callable[[str, float], tuple[str, str]], float]] = {
        "equal": (_equal, SAME),
        "renamed": (_renamed, SAME),
        "rows in another order, found by digests": (_shuffled, MAPPED),
        "permuted rows, found by digests": (_permuted, MAPPED),
        "permuted rows of 1 kB": (partial(_changed, [16384, 256], "tensor[torch.randperm(16384)]"), MAPPED),
        "permuted rows of 1 kB, bfloat16": (partial(_changed, [16384, 512], "tensor[torch.randperm(16384)]"), MAPPED),
        "halves of columns exchanged": (partial(_changed, [4096, 1024], "torch.roll(tensor, 512, 1)"), MAPPED),
        "permuted columns, bfloat16": (partial(_changed, [4096, 2048], "tensor[:, torch.randperm(2048)]"), MAPPED),
        "permuted columns as rows": (partial(_changed, [4096, 1024], "tensor.T[torch.randperm(1024)]"), MAPPED),
        "a fused QKV in the layout of another": (
            partial(_changed, [6144, 512], PER_HEAD, own="attn.qkv.weight"),
            MAPPED,
        ),
        "heads that no name shows": (partial(_changed, [6144, 512], PER_HEAD), MAPPED),
        "kernels of convolutions in another order": (partial(_changed, [256, 1024, 4, 4], KERNELS), MAPPED),
        "a list of experts and stacks of them": (_experts, MAPPED),
    }
    with folder() as place:
        least = run([PARAMTOOL, "diff", *_made(place, 0, "", (8, 8)), "--json", "--memory", FEW]).peak_nbytes
    for name, (maker, wanted) in ((name, pair) for name, pair in pairs.items() if asked.only in name):
        with folder() as place:
            _measure(name, maker(place, asked.gb), wanted, asked, least)


def _measure(name: str, paths: tuple[str, str], wanted: float, asked: argparse.Namespace, least: int) -> None:
    files = [_files(path) for path in paths]
    every = [file for one in files for file in one]
    base = "blake3 of both"
    commands = {
        base: [sys.executable, "-c", BLAKE3, *every],
        "paramtool diff": [PARAMTOOL, "diff", *paths, "--json"],
        f"paramtool diff --memory {FEW}": [PARAMTOOL, "diff", *paths, "--json", "--memory", FEW],
        "sha256sum": ["sha256sum", *every],
    }
    if name == "equal":
        commands["cmp"] = ["cmp", *paths]
    if name in ("equal", "renamed"):
        commands["torch.equal"] = [sys.executable, "-c", EQUAL, *paths]
    found = interleaved(commands, asked.rounds, sample=True)
    document = json.loads(found["paramtool diff"][0].stdout)
    table = list(rows(found, base))
    notes = [f"verdicts: {document['counts']}"]
    notes.append(verdict(f"diff beside {base}", float(table[1][3]), wanted, " times"))
    more = max(one.peak_nbytes for one in found[f"paramtool diff --memory {FEW}"]) - least
    notes.append(
        verdict(f"memory with {FEW}, above that of 256 bytes", more / MB, (FEW_NBYTES + BESIDE_NBYTES) / MB, " MiB")
    )
    print_table(f"{name}, {asked.gb:g} GB a side, {asked.rounds} rounds; {machine()}", HEADER, table, notes)


def _files(path: str) -> list[str]:
    """The files of weights of a checkpoint."""
    if os.path.isfile(path):
        return [path]
    return sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".safetensors"))


def _equal(place: str, gb: float) -> tuple[str, str]:
    """A file and its copy."""
    return _made(place, gb, "")


def _renamed(place: str, gb: float) -> tuple[str, str]:
    """Another name for every tensor."""
    return _made(place, gb, "{'" + RENAMED + "' + name: tensor for name, tensor in found.items()}")


def _shuffled(place: str, gb: float) -> tuple[str, str]:
    """The two halves of the rows of each matrix exchanged, under another name; rows of 4 kB."""
    turned = "torch.cat([tensor[len(tensor) // 2 :], tensor[: len(tensor) // 2]])"
    return _made(place, gb, "{'" + RENAMED + "' + name: " + turned + " for name, tensor in found.items()}")


def _permuted(place: str, gb: float) -> tuple[str, str]:
    """The rows of each matrix in a random order, under another name; rows of 4 kB."""
    return _made(
        place, gb, "{'" + RENAMED + "' + name: tensor[torch.randperm(4096)] for name, tensor in found.items()}"
    )


def _changed(shape: Sequence[int], change: str, place: str, gb: float, own: str = "weight") -> tuple[str, str]:
    """Tensors of 16 MB, each changed, under another name; float32, or bfloat16 where that makes 16 MB."""
    name = "'" + RENAMED + "' + name"
    return _made(place, gb, f"{{{name}: ({change}).contiguous() for name, tensor in found.items()}}", shape, own)


def _made(
    place: str, gb: float, change: str, shape: Sequence[int] = (4096, 1024), own: str = "weight"
) -> tuple[str, str]:
    """A file of tensors of 16 MB, as matrices with rows of 4 kB, and another one made of it."""
    a, b = (os.path.join(place, f"{name}.safetensors") for name in "ab")
    script = f"""
import torch
from safetensors.torch import save_file
torch.manual_seed(0)
dtype = torch.bfloat16 if {prod(shape)} * 4 > {16 * MB} else torch.float32
count = {max(1, int(gb * 1e9 / (16 * MB)))}
found = {{f"layers.{{k}}.{own}": torch.randn({tuple(shape)}).to(dtype) for k in range(count)}}
save_file(found, {a!r})
save_file({change or "found"}, {b!r})
"""
    run([sys.executable, "-c", script])
    return a, b


def _experts(place: str, gb: float) -> tuple[str, str]:
    """A Qwen3-MoE as transformers 4 writes it, and in the form of transformers 5."""
    four, five = (os.path.join(place, name) for name in ("four", "five"))
    make("experts", four, int(gb * 1e9), MB, 64)
    run([PARAMTOOL, "convert", four, "--to", "transformers-5", "--no-verify", "-o", five])
    return four, five


if __name__ == "__main__":
    main()
