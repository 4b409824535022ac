"""Attention in a file of other people: the networks of Silero VAD run on what paramtool takes apart."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.oracles.dialects import converting
from tests.oracles.dialects.proofs import BOUND, FAR
from tests.oracles.real_models import single_thread

__all__ = ["single_thread"]  # a fixture
pytestmark = pytest.mark.skipif(not converting.LAYOUTS, reason="this paramtool does not fuse attention")
SILERO = "snakers4__silero-vad__v3_silero_vad.jit"
HEADS = 2


def attention(x: torch.Tensor, parts: Mapping[str, torch.Tensor], scale: float) -> torch.Tensor:
    """What the program in the file computes: k asks and q answers, and the result goes through out_proj."""

    def heads(part: str) -> torch.Tensor:
        y = torch.einsum("bln,on->blo", x, parts[f"{part}_proj.weight"]) + parts[f"{part}_proj.bias"]
        return y.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    q, k, v = (heads(part) for part in "qkv")
    made = ((k @ q.transpose(-1, -2) / scale).softmax(-1) @ v).transpose(1, 2).flatten(2)
    return torch.einsum("bln,on->blo", made, parts["out_proj.weight"]) + parts["out_proj.bias"]


def errors(network: Any, found: Mapping[str, torch.Tensor]) -> list[float]:
    """The error of each attention of the file."""
    made = []
    generator = torch.Generator().manual_seed(1)
    for name, module in network.named_modules():
        if name.endswith(".attention"):
            parts = {key[len(name) + 1 :]: value for key, value in found.items() if key.startswith(f"{name}.")}
            x = torch.randn(2, 9, parts["out_proj.weight"].shape[0], generator=generator)
            with torch.no_grad():
                expected = module(x)
            made.append(float((attention(x, parts, module.scale) - expected).abs().max() / expected.abs().max()))
    return made


def test_silero(samples: Path, tmp_path: Path) -> None:
    """Its thirds are q, k and v; taken for each head, they are another network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = torch.jit.load(samples / SILERO)
    found = {}
    for layout in ("qkv", "qkv-per-head"):
        out = tmp_path / f"{layout}.safetensors"
        facts = f"qkv heads={HEADS} kv_heads={HEADS}"
        converting.unfuse(samples / SILERO, out, layout, at=["*.attention.QKV"], spec=facts)
        found[layout] = errors(network, load_file(out))
    assert len(found["qkv"]) == 8 and max(found["qkv"]) < BOUND
    assert min(found["qkv-per-head"]) > FAR


def test_silero_without_its_heads(samples: Path, tmp_path: Path) -> None:
    """Nothing in the file says how many heads there are."""
    said = converting.refusal(
        converting.unfuse, samples / SILERO, out=tmp_path / "out.safetensors", layout="qkv-per-head", at=["*.QKV"]
    )
    assert "heads" in said
