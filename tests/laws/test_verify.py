"""The law of verify: what any command wrote with its default flags, verify calls equal, by the line that it printed."""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paramtool.cli.main import cli
from tests.examples import examples
from tests.hostile.command import quick
from tests.laws.states import states

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT.parent / "shared" / "samples"
NOT_FILES = {".md", ".json", ".py"}
FILES = [
    *(path for path in sorted((ROOT / "fixtures").glob("*/*/*")) if path.suffix not in NOT_FILES),
    *(path for path in sorted(SAMPLES.glob("*")) if path.suffix not in NOT_FILES),
]
COMMANDS: dict[str, list[str]] = {
    "dedup": ["dedup", "IN", "-o", "out.safetensors"],
    "dedup.pt": ["dedup", "IN", "-o", "out.pt"],
    "export": ["export", "IN", "--all-names", "-o", "out.safetensors"],
    "export.pt": ["export", "IN", "--all-names", "-o", "out.pt"],
    "fuse": ["fuse", "IN", "--layout", "cudnn", "-o", "out.safetensors"],
    "fuse --keep-names": ["fuse", "IN", "--layout", "cudnn", "--keep-names", "-o", "out.safetensors"],
    "fuse.pt": ["fuse", "IN", "--layout", "cudnn", "-o", "out.pt"],
    "fuse.pt --keep-names": ["fuse", "IN", "--layout", "cudnn", "--keep-names", "-o", "out.pt"],
    "unfuse": ["unfuse", "IN", "-o", "out.safetensors"],
    "convert": ["convert", "IN", "--to", "onnx", "-o", "out.safetensors"],
    "convert.pt": ["convert", "IN", "--to", "keras", "-o", "out.pt"],
    "dedup --plain": ["dedup", "IN", "-o", "out.pt", "--plain"],
    "dedup --skip-unsupported": ["dedup", "IN", "-o", "out.pt", "--skip-unsupported"],
    "convert --keep-split": ["convert", "IN", "--to", "keras", "--keep-split", "-o", "out.safetensors"],
    "convert.pt --keep-split": ["convert", "IN", "--to", "keras", "--keep-split", "-o", "out.pt"],
    "shards": ["dedup", "IN", "--max-shard-size", "2kB", "-o", "out"],
    "family": ["dedup", "IN", "TWIN", "-o", "family"],
}


def written(words: list[str], source: str, folder: Path) -> list[str] | None:
    """The line that a command prints to verify what it wrote; None where it refuses the file."""
    twin = os.path.join(folder, f"twin{os.path.splitext(source)[1]}")
    if "TWIN" in words:
        if os.path.isdir(source):
            return None
        Path(twin).write_bytes(Path(source).read_bytes())
    ran = quick(*({"IN": source, "TWIN": twin}.get(word, word) for word in words), "-v", cwd=folder)
    assert ran.code in (0, 2, 3, 4, 5, 6), ran
    if ran.code:
        return None
    lines = [line for line in ran.out.splitlines() if line.startswith("next") and " verify " in line]
    assert lines, ran.out
    return shlex.split(lines[-1])[2:]


def verified(line: list[str], folder: Path) -> None:
    """Run it: exit 0."""
    ran = quick(*line, cwd=folder)
    assert ran.code == 0, (line, ran)


PAIRS = [pytest.param(path, command, id=f"{path.name}-{command}") for path in FILES for command in COMMANDS]
"""Every file with every command."""


@pytest.mark.sample(15)
@pytest.mark.parametrize("path, command", PAIRS)
def test_what_a_command_wrote_of_a_file(tmp_path: Path, path: Path, command: str) -> None:
    """Fixtures and other people's files, by every command that writes."""
    line = written(COMMANDS[command], str(path), tmp_path)
    if line is None:
        return  # refused, which other tests are about
    verified(line, tmp_path)


OBJECTS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3), st.binary(max_size=3),
        st.just(np.float32(1.5)), st.just(np.arange(3)),
        st.just(range(3)), st.just(Path("a/b")), st.just(np.array(["s"])),
        st.just(torch.ones(2)), st.just(frozenset({1})), st.just(torch.Size([1])), st.just(slice(1, 2)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.lists(inner, max_size=3).map(deque),
        st.dictionaries(st.sampled_from(["a", "b", "", "a.b", 0, None, (1, "x")]), inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=2).map(lambda d: defaultdict(list, d)),
        st.dictionaries(st.sampled_from(["lr", "w"]), inner, max_size=2).map(lambda d: argparse.Namespace(**d)),
        inner.map(lambda one: [one, {"again": one}]),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(states(), OBJECTS, st.sampled_from(["out.safetensors", "out.pt"]))
def test_what_dedup_wrote_of_any_state(state: Any, more: Any, output: str) -> None:
    """Nested states with objects of every kind."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.save({"state": state, "more": more}, folder / "in.pt")
        line = written(["dedup", "IN", "-o", output], "in.pt", folder)
        assert line is not None
        verified(line, folder)
        if output.endswith(".pt"):
            assert repr(torch.load(folder / "in.pt", weights_only=False)["more"]) == repr(
                torch.load(folder / output, weights_only=False)["more"]
            )


def test_every_command_that_writes_is_asked() -> None:
    """A new one has to be in the table."""
    writers = (
        {name for name, one in cli.commands.items() if any("--force" in p.opts for p in one.params)}
        if cli.commands
        else set()
    )
    assert writers <= {words[0] for words in COMMANDS.values()}
