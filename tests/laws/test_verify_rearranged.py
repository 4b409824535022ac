"""The law of verify for fused, taken apart and renamed tensors: the printed line calls them equal, and so does diff."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import paramtool
from tests.attention import HEAD_DIM, HEADS, LLAMA, MIXTRAL, folder_of, state_of
from tests.examples import examples
from tests.hostile.command import quick
from tests.laws.test_diff_outputs import same_both_ways

Maker = Callable[[Path, Mapping[str, Any]], Path]


def plain(folder: Path, config: Mapping[str, Any]) -> Path:
    """A folder with one file."""
    return folder_of(folder / "in", config)


def alone(folder: Path, config: Mapping[str, Any]) -> Path:
    """One file."""
    return folder_of(folder / "in", config) / "model.safetensors"


def pickled(folder: Path, config: Mapping[str, Any]) -> Path:
    """A folder as old versions of transformers write it, with tied embeddings."""
    path = folder_of(folder / "in", {**config, "tie_word_embeddings": True})
    (path / "model.safetensors").unlink()
    state = state_of(config)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    torch.save(state, path / "pytorch_model.bin")
    return path


def sharded(folder: Path, config: Mapping[str, Any]) -> Path:
    """Shards with an index, and an alias record."""
    paramtool.dedup(pickled(folder, config), folder / "shards", max_shard_size=1500)
    assert len(list((folder / "shards").glob("*.safetensors"))) > 2
    return folder / "shards"


MAKERS = (plain, alone, pickled, sharded)
OUTPUTS = ("out", "out.safetensors", "out.pt", "--max-shard-size 1kB -o out")
COMMANDS = {
    "fuse --layout qkv": LLAMA,
    "fuse --layout qkv --keep-names": LLAMA,
    "fuse --layout qkv-per-group": MIXTRAL,
    "fuse --layout gate-up-interleaved --keep-names": LLAMA,
    "fuse --layout experts": MIXTRAL,
    "fuse --layout experts-transposed": MIXTRAL,
    "convert --to vllm": LLAMA,
    "convert --to megatron": LLAMA,
    "convert --to meta": {**LLAMA, "hidden_size": HEADS * HEAD_DIM},
    "convert --to transformers-5": MIXTRAL,
    "convert --to transformers-5 --dtype bfloat16": MIXTRAL,
}
BACK = {"fuse": "unfuse", "convert": "convert --to transformers-4"}


def line_of(words: str, source: Path, output: str, folder: Path) -> tuple[str, list[str]]:
    """The output, and the line that a command prints."""
    flags = output.split() if output.startswith("--") else ["-o", output]
    ran = quick(*words.split(), str(source), *flags, cwd=folder)
    assert ran.code == 0, ran
    (line,) = [one for one in ran.out.splitlines() if one.startswith("next")]
    assert " verify " in line and "--subset" not in line, line
    return flags[-1], shlex.split(line)[2:]


def equal(line: list[str], folder: Path) -> None:
    """Run it: every name of the output is counted, and once."""
    ran = quick(*line, "--json", cwd=folder)
    assert ran.code == 0 and "not compared" not in ran.out + ran.err, (line, ran)
    found = json.loads(ran.out)
    counted = sum(found.get(count, 0) for count in ("names", "converted", "remade", "rounded", "dequantised"))
    assert counted == len(paramtool.read(folder / found["output"])), (line, found)


@settings(max_examples=examples(40))
@given(st.sampled_from(MAKERS), st.sampled_from(sorted(COMMANDS)), st.sampled_from(OUTPUTS))
def test_what_a_command_wrote_and_what_takes_it_back(make: Maker, words: str, output: str) -> None:
    """Folders, single files, files of torch.save and shards, in and out."""
    assume(make is not alone or output != "out")  # a file becomes no folder
    assume("meta" not in words or "--max-shard-size" not in output)  # Meta's files are no shards
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = make(folder, COMMANDS[words])
        made, line = line_of(words, source, output, folder)
        equal(line, folder)
        same_both_ways(source, folder / made)
        back = BACK[words.split()[0]]
        if "--keep-names" in words or (back.startswith("convert") and not (folder / made / "config.json").exists()):
            return  # parts are there already; the config is not beside the output
        taken_back, line = line_of(back, folder / made, output.replace("out", "back"), folder)
        equal(line, folder)
        same_both_ways(folder / made, folder / taken_back)


@pytest.mark.parametrize("words", sorted(COMMANDS))
def test_an_output_without_room_for_a_record(tmp_path: Path, words: str) -> None:
    """There is no line that compares it; the one that is printed works."""
    source = plain(tmp_path, COMMANDS[words])
    ran = quick(*words.split(), str(source), "-o", "out.npz", cwd=tmp_path)
    if ran.code == 6:
        return  # bfloat16
    assert ran.code == 0, ran
    (line,) = [one for one in ran.out.splitlines() if one.startswith("next")]
    ran = quick(*shlex.split(line)[2:], cwd=tmp_path)
    assert ran.code == 0, ran
