"""How time and memory grow for very large checkpoints: from a tenth of a size to the full size.

python benchmarks/scale.py                             every case, tables on standard output
python benchmarks/scale.py -o docs/performance.md      the same as a document; sections of other cases are kept
python benchmarks/scale.py --only tensors --rounds 5   one case
python benchmarks/scale.py --part 0.1                  all counts divided by ten

The exponent says by what power of the size a figure grows: 1 is linear, 0 is constant.
Time is processor time, user and system, so that waiting for a busy machine does not count.
Exponents count time and memory above those of starting Python and importing click.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from struct import pack

from measure import ENVIRONMENT, HERE, Run, folder, interleaved, make, mb, run

ENVIRONMENT["PYTHONPATH"] = os.path.dirname(HERE)
PARAMTOOL = [sys.executable, "-m", "paramtool"]
START = [sys.executable, "-c", "import click"]
QUIET = ["sh", "-c", 'exec "$@" > /dev/null', "sh"]
"""Output is discarded by the shell, not kept here: a child's peak memory begins with that of its parent process."""
SAFE_OPEN = """
import sys
from safetensors import safe_open
with safe_open(sys.argv[1], "np") as file:
    [file.get_slice(name).get_shape() for name in file.keys()]
"""
TORCH = "import sys, torch; torch.load(sys.argv[1], mmap=True, weights_only=True)"
SHARDS = """
import json, os, sys
from safetensors import safe_open
folder = os.path.dirname(sys.argv[1])
for name in sorted(set(json.load(open(sys.argv[1]))["weight_map"].values())):
    with safe_open(os.path.join(folder, name), "np") as file:
        [file.get_slice(name).get_shape() for name in file.keys()]
"""
BLAKE3 = """
import sys, blake3
digest = blake3.blake3()
with open(sys.argv[1], "rb", buffering=0) as file:
    while block := file.read(1 << 22):
        digest.update(block)
digest.hexdigest()
"""
Words = list[str]
BESIDE = "## Beside other tools\n"


def safetensors(path: str, tensors: dict[str, Sequence[int]], data: Callable[[int], bytes] | None = None) -> str:
    """A safetensors file of float32; without `data` its bytes are a hole, so that any size is possible."""
    header, begin = {}, 0
    for name, shape in tensors.items():
        end = begin + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(pack("<Q", len(text)) + text)
        start = file.tell()
        if data is not None:
            for at in range(0, begin, BLOCK):
                file.write(data(at)[: begin - at])
        file.truncate(start + begin)
    return path


BLOCK = 1 << 24


def tensors(place: str, count: int) -> str:
    """Tensors of four elements in one safetensors file."""
    return safetensors(f"{place}/model.safetensors", {f"l.{k // 10}.{k % 10}.w": [4] for k in range(count)})


def torch_file(place: str, count: int) -> str:
    """The same tensors as torch.save writes them."""
    return make("many", f"{place}/model.pt", count)


def shards(place: str, count: int) -> str:
    """An index of `count` shards, each with ten tensors."""
    weight_map = {}
    for k in range(count):
        name = f"model-{k + 1:05}-of-{count:05}.safetensors"
        weight_map |= {f"l.{k}.{j}": name for j in range(10)}
        safetensors(f"{place}/{name}", {f"l.{k}.{j}": [4] for j in range(10)})
    index = f"{place}/model.safetensors.index.json"
    with open(index, "w") as file:
        json.dump({"metadata": {"total_size": 160 * count}, "weight_map": weight_map}, file)
    return index


def aliases(place: str, count: int) -> str:
    """Names in alias records, a hundred on each stored tensor, in shards whose headers are short enough."""
    source = make("ties", f"{place}/ties.pt", count)
    run([*PARAMTOOL, "dedup", source, "-o", f"{place}/out", "--max-shard-size", "5GB", "--no-verify"])
    return f"{place}/out"


def family(place: str, count: int) -> str:
    """Fine-tunes of one model of forty tensors."""
    os.mkdir(f"{place}/in")
    make("family", f"{place}/in", 40_000 * count, count)
    return f"{place}/in"


def sparse(place: str, nbytes: int) -> str:
    """A sparse file: a tensor of the given size and one of four elements."""
    return safetensors(f"{place}/model.safetensors", {"large": [nbytes // 4], "small": [4]})


def dense(place: str, nbytes: int) -> str:
    """Random bytes on the disk, in ten different tensors."""
    block = bytearray(os.urandom(BLOCK))

    def data(at: int) -> bytes:
        block[:8] = pack("<Q", at)
        return bytes(block)

    return safetensors(f"{place}/model.safetensors", {f"w{k}": [nbytes // 40] for k in range(10)}, data)


def peer(script: str) -> Callable[[str], Words]:
    """The command that runs a script on the input."""
    return lambda path: [sys.executable, "-c", script, path]


def ours(*words: str) -> Callable[[str], Words]:
    """A paramtool command on the input."""
    return lambda path: [*PARAMTOOL, *words[:1], path, *words[1:]]


def of_family(path: str) -> Words:
    """The command that writes all inputs of a family to one output."""
    inputs = (os.path.join(path, name) for name in sorted(os.listdir(path)))
    return [*PARAMTOOL, "dedup", *inputs, "-o", f"{path}.out", "--force"]


@dataclass(frozen=True, slots=True)
class Case:
    """A quantity that grows, and the commands that are measured."""

    name: str
    title: str
    size: int
    unit: str
    make: Callable[[str, int], str]
    commands: dict[str, Callable[[str], Words]]
    peer: tuple[str, Callable[[str], Words]] | None = None


CASES = (
    Case("tensors", "Tensors in one safetensors file", 1_000_000, "tensors", tensors, {"inspect": ours("inspect")},
         ("safe_open, all names and shapes", peer(SAFE_OPEN))),
    Case("documents", "A JSON document of every tensor", 100_000, "tensors", tensors,
         {"inspect": ours("inspect"), "inspect --json --tensors": ours("inspect", "--json", "--tensors")}),
    Case("torch", "Tensors in one file of torch.save", 1_000_000, "tensors", torch_file, {"inspect": ours("inspect")},
         ("torch.load(mmap=True)", peer(TORCH))),
    Case("shards", "An index of many shards", 10_000, "shards", shards, {"inspect": ours("inspect")},
         ("safe_open of every shard", peer(SHARDS))),
    Case("aliases", "Aliases in alias records", 1_000_000, "aliases", aliases, {"inspect": ours("inspect")}),
    Case("family", "Checkpoints of one family", 500, "checkpoints", family, {"dedup A B C ...": of_family}),
    Case("sparse", "One tensor, larger than any disk here", 10**12, "bytes", sparse,
         {"inspect": ours("inspect"), "dedup --dry-run": ours("dedup", "--dry-run", "--no-equal")}),
    Case("digest", "Digests of everything", 8 * 10**9, "bytes", dense,
         {"inspect --digest": ours("inspect", "--digest")}, ("blake3 over the file", peer(BLAKE3))),
)  # fmt: skip


def measured(case: Case, size: int, rounds: int) -> dict[str, list[Run]]:
    """Every command of a case at one size."""
    with folder() as place:
        path = run([sys.executable, os.path.abspath(__file__), "--make", case.name, place, str(size)]).stdout
        commands: dict[str, Words] = {"start": START, **{label: of(path) for label, of in case.commands.items()}}
        if case.peer is not None:
            commands[case.peer[0]] = case.peer[1](path)
        return interleaved({label: [*QUIET, *words] for label, words in commands.items()}, rounds, warm=rounds > 1)


def section(case: Case, part: float, rounds: int) -> str:
    """The table of a case as Markdown."""
    size = int(case.size * part)
    found = {count: measured(case, count, rounds) for count in (size // 10, size)}
    labels = [label for label in found[size] if label != "start"]
    table = [("what", case.unit, "time", "peak memory", "each", "exponent of time", "of memory", "ratio to the peer")]
    for label in labels:
        growth = [_exponent(found, label, of) for of in (_seconds, _nbytes)]
        for count, runs in found.items():
            mine = runs[label]
            times = sorted(one.processor_seconds for one in mine)
            ratio = ""
            if case.peer is not None and label != case.peer[0]:
                ratios = (
                    a.processor_seconds / b.processor_seconds for a, b in zip(mine, runs[case.peer[0]], strict=True)
                )
                ratio = f"{statistics.median(ratios):.2f}"
            table.append((
                label, f"{count:,}", f"{statistics.median(times):.2f} s ({times[0]:.2f} - {times[-1]:.2f})",
                mb(max(one.peak_nbytes for one in mine)), f"{max(one.peak_nbytes for one in mine) / count:,.0f} B",
                *(f"{one:.2f}" if count == size else "" for one in growth), ratio,
            ))  # fmt: skip
    lines = ["| " + " | ".join(row) + " |" for row in (table[0], ["---"] * len(table[0]), *table[1:])]
    noise = f"Rounds: {rounds}. Load of the machine when done: {os.getloadavg()[0]:.1f}. Measured on {date.today()}."
    return "\n".join([f"## {case.title}", "", *lines, "", noise, ""])


def _seconds(runs: dict[str, list[Run]], label: str) -> float:
    starts = zip(runs[label], runs["start"], strict=True)
    return statistics.median(max(0.001, a.processor_seconds - b.processor_seconds) for a, b in starts)


def _nbytes(runs: dict[str, list[Run]], label: str) -> float:
    return max(1e5, max(one.peak_nbytes for one in runs[label]) - max(one.peak_nbytes for one in runs["start"]))


def _exponent(found: dict[int, dict[str, list[Run]]], label: str, of: Callable[..., float]) -> float:
    (few, small), (many, large) = found.items()
    return math.log(of(large, label) / of(small, label)) / math.log(many / few)


SCALE = "Bars of the time of inspect as a multiple of other readers' times at the largest sizes below."
GROWTH = "Lines of the seconds that inspect, safe_open and torch.load take for 100,000 and for 1,000,000 names."


def head() -> str:
    """The text before the tables."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"""# Performance at scale

Made by `python benchmarks/scale.py -o docs/performance.md`, which makes its inputs in a temporary folder and runs each
command and its peer in turn. It measures whole processes, from start to end: their processor time, user and system,
and their peak resident memory (`ru_maxrss`, mapped pages of files included).

Times are medians, with the fastest and the slowest round; a table says of how many. *Each* is the peak memory of the
whole process divided by the size. Exponents compare a tenth of the size with the whole, above the cost of starting
Python and importing click: 1 is linear, 0 is constant. A ratio is the median of the rounds' ratios to the peer, which
ran beside it in the same minutes.

The load below each table says how busy the machine was. More programs than cores lengthen each other's processor time,
too, so ratios and exponents say more than seconds.

Machine: {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, {platform.system()}.

Plots are drawn from the tables by `python docs/make_pictures.py`:

![{SCALE}](pictures/performance-scale.svg)

![{GROWTH}](pictures/performance-growth.svg)
"""


def merged(old: str, sections: dict[str, str]) -> str:
    """A document with new sections in place of the old ones of the same title, in the order of the cases.

    The section `BESIDE` stays, at the end: other scripts measured it.
    """
    measured, mark, beside = old.partition(BESIDE)
    known = {part.partition("\n")[0]: f"## {part}" for part in measured.split("\n## ")[1:]}
    found = known | {text.removeprefix("## ").partition("\n")[0]: text for text in sections.values()}
    parts = [head(), *(found[case.title].rstrip() + "\n" for case in CASES if case.title in found)]
    return "\n".join([*parts, mark + beside] if mark else parts)


def main() -> None:
    """Measure the requested cases; `--make` makes an input in a separate process."""
    if sys.argv[1:2] == ["--make"]:
        kind, place, size = sys.argv[2:]
        sys.stdout.write(next(case for case in CASES if case.name == kind).make(place, int(size)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[case.name for case in CASES], help="repeatable")
    parser.add_argument("--part", type=float, default=1.0, help="of every size (default: 1)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gb", type=float, help="not used: the sizes are those of the cases")
    parser.add_argument("-o", dest="output", metavar="FILE", help="the document to write")
    asked = parser.parse_args()
    for case in CASES:
        if asked.only and case.name not in asked.only:
            continue
        text = section(case, asked.part, asked.rounds)
        print(text, flush=True)
        if asked.output:
            old = ""
            if os.path.exists(asked.output):
                with open(asked.output) as file:
                    old = file.read()
            with open(asked.output, "w") as file:
                file.write(merged(old, {case.name: text}))


if __name__ == "__main__":
    main()
