"""`paramtool inspect` of a large checkpoint compared with a process that only imports click, and with torch.load."""

from __future__ import annotations

import argparse
import json
import os
import sys

from measure import HEADER, PARAMTOOL, folder, interleaved, machine, make, print_table, rows, verdict

WANTED_RATIO = 2.2
WANTED_NBYTES = 60e6
TORCH = "import sys, torch; torch.load(sys.argv[1], mmap=True, weights_only=True)"
FIXTURES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fixtures")
SMALL = {
    "a small file": (1.9, "inspect", "allenai__allennlp__simple_tagger_full_best.th"),
    "tied and flattened": (2.4, "inspect", os.path.join(FIXTURES, "torch", "tied_flattened", "tied_flattened.pt")),
    "a file of 677 names": (3.3, "inspect", "Xiaobin-Rong__gtcrn__model_trained_on_vctk.tar"),
    "a folder with ties": (2.6, "inspect", "tied"),
    "dedup --dry-run of a small file": (4.4, "dedup", "--dry-run", "allenai__allennlp__simple_tagger_full_best.th"),
}
"""{what: (how many times the base process it may take, its words)}; the last is a sample, but for the folder."""


def tied(place: str) -> str:
    """A folder as save_pretrained writes it, of a model whose class ties two names."""
    header = {"model.embed_tokens.weight": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]}}
    text = json.dumps(header).encode()
    with open(os.path.join(place, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + bytes(128))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}
    with open(os.path.join(place, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return place


def small(samples: str, rounds: int) -> None:
    """Small files, by the best processor time of the rounds, beside a process that imports click."""
    base = "python -c 'import click'"
    commands = {base: [sys.executable, "-c", "import click"]}
    with folder() as place:
        for what, (_, *words, name) in SMALL.items():
            commands[what] = [PARAMTOOL, *words, tied(place) if name == "tied" else os.path.join(samples, name)]
        found = interleaved(commands, rounds)
    best = {label: min(run.processor_seconds for run in runs) for label, runs in found.items()}
    notes = [verdict(what, best[what] / best[base], bound, " times") for what, (bound, *_) in SMALL.items()]
    table = [(label, f"{1000 * one:.0f} ms", f"{one / best[base]:.2f}") for label, one in best.items()]
    header = ("what", "processor time, best", "beside click")
    print_table(f"start-up, {rounds} rounds", header, table, [*notes, machine()])


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--samples", help="a folder with the samples: measure start-up with small files")
    asked = arguments.parse_args()
    if asked.samples is not None:
        small(asked.samples, asked.rounds)
        return
    with folder() as place:
        path = make("aliases", os.path.join(place, "model.pt"), int(asked.gb * 1e9))
        commands = {
            "python -c 'import click'": [sys.executable, "-c", "import click"],
            "paramtool inspect, into a pipe": [PARAMTOOL, "inspect", path],
            "paramtool inspect --json": [PARAMTOOL, "inspect", "--json", path],
            "paramtool inspect, in a terminal (rich draws)": [PARAMTOOL, "inspect", path],
            "torch.load(mmap=True, weights_only=True)": [sys.executable, "-c", TORCH, path],
        }
        base, ours, _, drawn, _ = commands
        found = interleaved(commands, asked.rounds, terminal=[drawn])
        table = list(rows(found, base))
        peak = max(run.peak_nbytes for run in found[ours])
        print_table(
            f"inspect of a .pt of {asked.gb:g} GB, {asked.rounds} rounds", HEADER[:-1], [row[:-1] for row in table],
            [
                verdict("time beside importing click", float(table[1][3]), WANTED_RATIO, " times"),
                verdict("peak memory", peak / 1e6, WANTED_NBYTES / 1e6, " MB"),
                machine(),
            ],
        )  # fmt: skip


if __name__ == "__main__":
    main()
