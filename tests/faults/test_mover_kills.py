"""Killed between bands that threads make: no part of an output is seen, and an old one stays."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

KILLED = """
import os, signal, sys
from paramtool.engine.write import arithmetic, sink
from paramtool.engine.read import threads
from paramtool.__main__ import run

arithmetic.BAND_NBYTES, arithmetic.THREADS_NBYTES = 1 << 16, 1 << 12
at, written, write = int(sys.argv.pop(1)), 0, sink.Sink.write
started = []
submit = threads.Threads.submit

def submitted(self, work):
    started.append(work)
    return submit(self, work)

def counted(self, data):
    global written
    write(self, data)
    written += 1
    if written == at:
        assert started, "no thread made it"
        os.kill(os.getpid(), signal.SIGKILL)

threads.Threads.submit, sink.Sink.write = submitted, counted
sys.exit(run())
"""
WORDS = ("convert", "rnn.safetensors", "--to", "keras", "--keep-split", "-o", "out.safetensors")


def _convert(folder: Path, at: int, *more: str) -> int:
    """Convert, killed after so many writes; the exit code."""
    words = [sys.executable, "-c", KILLED, str(at), *WORDS, *more]
    return subprocess.run(words, cwd=folder, capture_output=True, check=False).returncode


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An LSTM whose transposed matrices are written in many bands."""
    made, random = tmp_path_factory.mktemp("kills"), np.random.default_rng(0)
    shapes = {"weight_ih": (512, 128), "weight_hh": (512, 128), "bias_ih": (512,), "bias_hh": (512,)}
    tensors = {f"rnn.{name}_l0": random.standard_normal(shape, "f4") for name, shape in shapes.items()}
    save_file(tensors, made / "rnn.safetensors")
    return made


@pytest.mark.parametrize("at", (2, 3, 6))
def test_nothing_is_seen_of_an_output_that_was_killed(folder: Path, at: int) -> None:
    output = folder / "out.safetensors"
    output.unlink(missing_ok=True)
    assert _convert(folder, at) == -signal.SIGKILL
    assert not output.exists()
    save_file({"old": np.zeros(3, "f4")}, output)
    old = output.read_bytes()
    assert _convert(folder, at, "--force") == -signal.SIGKILL
    assert output.read_bytes() == old
    assert _convert(folder, 0, "--force") == 0
    source, made = load_file(folder / "rnn.safetensors"), load_file(output)
    turned = [name for name, tensor in made.items() if tensor.shape == (128, 512)]
    assert len(turned) == 2
    for name in turned:
        kind = "hh" if "recurrent" in name else "ih"
        gates = source[f"rnn.weight_{kind}_l0"].reshape(4, 128, 128)
        assert np.array_equal(made[name], gates.transpose(2, 0, 1).reshape(128, 512))
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
