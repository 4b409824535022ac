"""The numbers of inspect's first row: tensors, distinct ones, parameters."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paramtool
from tests.contracts.makers import CASES, Case
from tests.hostile.command import quick
from tests.versions import needs

SPARSE = torch.eye(4).to_sparse()
BASE = torch.arange(12.0)


def inspected(path: Path, state: Any) -> paramtool.Inspection:
    """A saved state, described."""
    torch.save(state, path / "m.pt")
    return paramtool.inspect(path / "m.pt")


@pytest.mark.parametrize(
    "state, tensors, distinct",
    [
        ({"a": SPARSE}, 1, 1),
        ({"a": SPARSE, "b": SPARSE}, 2, 1),
        ({"a": SPARSE, "b": torch.eye(4).to_sparse()}, 2, 2),
        ({"a": SPARSE, "b": torch.ones(2), "c": torch.zeros(3).to_sparse()}, 3, 3),
        ({"a": torch.empty(3, device="meta"), "b": torch.ones(3)}, 2, 2),
        ({"a": BASE, "b": BASE, "c": BASE.view(3, 4).t()}, 3, 1),
        ({"a": BASE[:8], "b": BASE[4:]}, 2, 1),
        ({"a": torch.ones(3, dtype=torch.complex64).conj(), "b": torch.ones(1)}, 2, 2),
        ({}, 0, 0),
    ],
)
def test_distinct(state: dict[str, Any], tensors: int, distinct: int, tmp_path: Path) -> None:
    """A tensor of several parts is one; a name on the memory of another is none more."""
    found = inspected(tmp_path, state)
    assert (len(found.checkpoint.entries), found.distinct) == (tensors, distinct)
    shown = quick("inspect", "m.pt", cwd=tmp_path).out
    assert f" {tensors} tensor{'' if tensors == 1 else 's'}, {distinct} distinct " in shown


def test_a_tensor_of_many_parts_is_one(tmp_path: Path) -> None:
    """Values, scales and zero points of a quantised tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.13 calls them deprecated
        one = torch.quantize_per_channel(torch.ones(4, 3), torch.ones(4), torch.zeros(4), 0, torch.qint8)
        assert inspected(tmp_path, {"a": one, "b": torch.ones(3)}).distinct == 2


@needs("torch", "2.8", "the savers of all cases")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format} {case.name}")
def test_never_more_distinct_than_tensors(case: Case, tmp_path: Path) -> None:
    """In any format."""
    found = paramtool.inspect(case.make(tmp_path))
    assert bool(found.checkpoint.entries) <= found.distinct <= len(found.checkpoint.entries)


@needs("transformers", "5", "builds a GPT-2")
def test_masks_are_no_parameters(tmp_path: Path) -> None:
    """GPT-2 as transformers 4 and nanoGPT save it: its causal masks beside what `parameters()` counts."""
    import transformers

    config = transformers.GPT2Config(n_layer=2, n_embd=8, n_head=2, n_positions=16, vocab_size=32)
    model = transformers.GPT2LMHeadModel(config)
    expected = sum(p.numel() for p in model.parameters())
    for mask in (torch.ones(16, 16).tril(), torch.ones(16, 16, dtype=torch.uint8).tril(), torch.ones(16, 16) > 0):
        state = model.state_dict()
        for k in range(2):
            state[f"transformer.h.{k}.attn.bias"] = mask.view(1, 1, 16, 16).clone()
            state[f"transformer.h.{k}.attn.masked_bias"] = torch.tensor(-1e4)
        assert inspected(tmp_path, state).parameters == expected


class Mixed(nn.Module):
    """Parameters of several types, and buffers that are none."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.frozen = nn.Linear(3, 4)
        self.frozen.weight = nn.Parameter(torch.ones(4, 3, dtype=torch.int8), requires_grad=False)
        self.wave = nn.Parameter(torch.ones(5, dtype=torch.complex64))
        self.bias = nn.Parameter(torch.ones(1, 1, 1, 1))
        self.small = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
        self.register_buffer("attn_mask", torch.zeros(2, 4, 4))
        self.register_buffer("table", torch.zeros(7, dtype=torch.int64))
        self.register_buffer("keep", torch.ones(6, dtype=torch.bool))


@pytest.mark.parametrize("whole", [False, True])
def test_parameters_are_those_of_the_model(whole: bool, tmp_path: Path) -> None:
    """What torch counts, also where the module itself was pickled."""
    model = Mixed()
    found = inspected(tmp_path, {"model": model} if whole else model.state_dict())
    assert found.parameters == sum(p.numel() for p in model.parameters())


def test_optimizers_have_none(tmp_path: Path) -> None:
    """State of an optimizer and an EMA copy count as tensors alone."""
    model = nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "ema": model.state_dict()}
    state["ema"] = {name: value.clone() for name, value in state["ema"].items()}
    assert inspected(tmp_path, state).parameters == 16
