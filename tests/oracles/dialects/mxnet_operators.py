"""Proofs by MXNet's interleaved attention operators (mxnet issue 18077), run by the Python of MXNet's environment."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.oracles.dialects import converting
from tests.oracles.dialects.models import Attention, saved, tensors
from tests.oracles.dialects.proofs import Case, Proof
from tests.oracles.dialects.sources import Source, in_proj

LAYER = "model.decoder.layers.0.encoder_attn"
"""An attention of BART from its decoder to its encoder."""


def ran(python: Path, folder: Path, name: str, **given: Any) -> Mapping[str, np.ndarray[Any, Any]]:
    """What the operators make of arrays."""
    read, write = folder / f"{name} in.npz", folder / f"{name} out.npz"
    np.savez(read, **{key: np.asarray(value) for key, value in given.items()})
    script = Path(__file__).with_name("run_mxnet.py")
    subprocess.run([python, "-W", "ignore", script, read, write], check=True, capture_output=True)
    with np.load(write) as found:
        return dict(found)


def by_mxnet(case: Case, state: Mapping[str, torch.Tensor], layout: str, python: Path, folder: Path) -> float:
    """The error of a model whose attention the operators compute from fused weights of a state."""
    runs = 0

    def how(x: torch.Tensor, parts: Any, own: Attention, given: Any, module: Any) -> torch.Tensor:
        nonlocal runs
        runs += 1
        weights = {"weight": parts["in_proj"], "bias": parts["in_proj.bias"]}
        found = ran(python, folder, f"{layout} {runs}", x=x.transpose(0, 1), heads=own.heads, **weights)
        return torch.from_numpy(found["self"]).transpose(0, 1)

    return case.attention(lambda module, own: in_proj(state, module, layout), how)


def self_attention(case: Case, source: Source, python: Path, folder: Path) -> Proof:
    """q, k and v put together for each head; plainly is wrong."""
    judge = "MXNet's interleaved_matmul_selfatt_qk and _valatt"

    def error(layout: str) -> float:
        return by_mxnet(case, source.together(layout), layout, python, folder)

    return Proof(case.family.name, "fuse qkv-per-head", judge, error("qkv-per-head"), {"qkv": error("qkv")})


def to_encoder(case: Case, python: Path, folder: Path) -> Proof:
    """k and v of an attention to another sequence, put together for each head; plainly is wrong."""
    own = case.family.attention[0]
    made = saved(case.model, folder / "encdec", "transformers-5")
    state = tensors(made)
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(2, length, own.heads * own.head_dim, generator=generator) for length in (4, 7))
    parts = {part: state[f"{LAYER}.{part}_proj.weight"] for part in "qkv"}
    biases = {part: state[f"{LAYER}.{part}_proj.bias"] for part in "qkv"}
    q, k, v = (
        (torch.einsum("bln,on->blo", of, parts[part]) + biases[part]).unflatten(-1, (own.heads, -1))
        for part, of in zip("qkv", (x, y, y), strict=True)
    )
    scores = torch.einsum("blhd,bmhd->bhlm", q, k) * own.head_dim**-0.5
    expected = torch.einsum("bhlm,bmhd->blhd", scores.softmax(-1), v).flatten(2)

    def error(layout: str) -> float:
        out = converting.fuse(made, folder / f"encdec {layout}", layout, at=["model.decoder.layers.*.encoder_attn"])
        fused = tensors(out)
        given = {
            "q_weight": parts["q"], "q_bias": biases["q"],
            "kv_weight": fused[f"{LAYER}.kv_proj.weight"], "kv_bias": fused[f"{LAYER}.kv_proj.bias"],
            "weight": torch.cat(list(parts.values())), "bias": torch.cat(list(biases.values())),
        }  # fmt: skip
        found = ran(python, folder, layout, x=x.transpose(0, 1), y=y.transpose(0, 1), heads=own.heads, **given)
        return float((torch.from_numpy(found["encdec"]).transpose(0, 1) - expected).abs().max() / expected.abs().max())

    judge = "MXNet's interleaved_matmul_encdec_qk and _valatt"
    return Proof(case.family.name, "fuse kv-per-head", judge, error("kv-per-head"), {"kv": error("kv")})
