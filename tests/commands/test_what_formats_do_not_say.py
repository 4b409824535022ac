"""What a format cannot say of a source is named, and no difference: for `verify`, and for `diff` in both directions."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hostile.command import Ran, quick

SHARED = [1, 2]
WAVE = torch.arange(3).to(torch.complex64) * (1 + 1j)


def run(*words: str, cwd: Path) -> Ran:
    ran = quick(*words, cwd=cwd)
    assert ran.code == 0, ran
    return ran


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"w": torch.ones(3), "a": SHARED, "b": SHARED}, "which objects are one: those in 'a', 'b'"),
        ({"w": torch.ones(3), "x": io.BytesIO(b"abc")}, "which bytes are an io.BytesIO: those in 'x'"),
    ],
)
def test_objects_of_msgpack(held: dict[str, Any], said: str, tmp_path: Path) -> None:
    torch.save(held, tmp_path / "a.pt")
    assert said in run("convert", "a.pt", "-o", "a.msgpack", cwd=tmp_path).out
    run("verify", "a.msgpack", "--against", "a.pt", cwd=tmp_path)
    for pair in (("a.pt", "a.msgpack"), ("a.msgpack", "a.pt")):
        run("diff", *pair, "--exit-code", cwd=tmp_path)


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".msgpack", ".pt", ".safetensors"])
@pytest.mark.parametrize("pending", [torch.conj, torch._neg_view], ids=["conj", "neg"])
def test_pending_signs(pending: Any, suffix: str, tmp_path: Path) -> None:
    """A conjugate or negative that torch has yet to carry out is two windows of real numbers."""
    torch.save({"w": pending(WAVE), "v": torch.ones(2)}, tmp_path / "a.pt")
    run("convert", "a.pt", "-o", f"b{suffix}", cwd=tmp_path)
    run("verify", f"b{suffix}", "--against", "a.pt", cwd=tmp_path)


def test_a_tensor_without_a_name_is_refused_for_dcp(tmp_path: Path) -> None:
    torch.save({"": torch.ones(3), "a": torch.zeros(2)}, tmp_path / "a.pt")
    ran = quick("convert", "a.pt", "--format", "dcp", "-o", "out", cwd=tmp_path)
    assert ran.code == 6 and "has no name" in ran.err and not (tmp_path / "out").exists(), ran
