"""Folders that paramtool writes, loaded by torch.distributed.checkpoint into sharded modules of two processes.

A model with tied embeddings and AdamW trains on two ranks of gloo, is saved by both, rewritten by `dedup`, and loaded
into a second model: weights, moments, steps and settings are those that were saved, and training goes on alike.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import paramtool
from paramtool.formats.dcp.metadata import NAME
from paramtool.formats.dcp.write import FILE
from tests.hostile.command import quick

WORLD = 2
STEPS = 3
KINDS = ("fsdp", "tensor parallel")


class Tied(nn.Module):
    """Embeddings that are the head, too, and two layers between."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(10, 6)
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6, bias=False)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token."""
        return self.head(self.down(torch.tanh(self.up(self.emb(tokens)))))


def sharded(kind: str, seed: int) -> tuple[Tied, torch.optim.Optimizer]:
    """A model on two ranks, and its optimizer."""
    torch.manual_seed(seed)
    model, mesh = Tied(), init_device_mesh("cpu", (WORLD,))
    if kind == "fsdp":
        fully_shard(model.up, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)


def train(model: Tied, optimizer: torch.optim.Optimizer) -> list[float]:
    """A few steps; the losses."""
    losses = []
    for step in range(STEPS):
        tokens = torch.arange(5) + step
        loss = nn.functional.cross_entropy(model(tokens), tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def whole(value: Any) -> Any:
    """Nested values with tensors of their own that are not split."""
    match value:
        case DTensor():
            return value.full_tensor()
        case torch.Tensor():
            return value.detach().clone()
        case dict():
            return {key: whole(child) for key, child in value.items()}
        case list() | tuple():
            return [whole(child) for child in value]
    return value


def equal(one: Any, other: Any) -> bool:
    """Whether nested values are the same to the last bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def state_of(model: Tied, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What torch's recipe saves."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments, "epoch": 3}


def saves(kind: str, place: str) -> None:
    """Train, save, and keep what goes on without a stop."""
    model, optimizer = sharded(kind, 1)
    train(model, optimizer)
    state = state_of(model, optimizer)
    dcp.save(state, checkpoint_id=f"{place}/ck")
    kept = whole(state)
    losses = train(model, optimizer)
    if dist.get_rank() == 0:
        torch.save({"state": kept, "losses": losses}, f"{place}/kept.pt")


def rewrites(kind: str, place: str) -> None:
    """`paramtool dedup` by one of the ranks; the tie is one tensor."""
    if dist.get_rank():
        return
    ran = quick("dedup", "ck", "-o", "out", "--min-equal-bytes", "1", cwd=Path(place))
    assert ran.code == 0, ran
    assert {path.name for path in Path(place, "out").iterdir()} == {NAME, FILE}
    read = paramtool.read(Path(place, "out"))
    assert read.entries["model.emb.weight"].value == read.entries["model.head.weight"].value


def loads(kind: str, place: str) -> None:
    """Load what paramtool wrote into another model, compare, and train on."""
    model, optimizer = sharded(kind, 2)
    train(model, optimizer)
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=f"{place}/out")
    assert state["epoch"] == 3
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    kept = torch.load(f"{place}/kept.pt", weights_only=True)
    assert equal(whole(state_of(model, optimizer)), kept["state"])
    assert model.head.weight is model.emb.weight
    assert train(model, optimizer) == kept["losses"]


def forgets(kind: str, place: str) -> None:
    """The control: with the weights alone, the losses differ."""
    model, optimizer = sharded(kind, 2)
    state = {"model": get_state_dict(model, optimizer)[0]}
    dcp.load(state, checkpoint_id=f"{place}/out")
    model.load_state_dict(state["model"])
    assert train(model, optimizer) != torch.load(f"{place}/kept.pt", weights_only=True)["losses"]


def _rank(rank: int, works: Sequence[Callable[[str, str], None]], place: str, store: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    try:
        for kind in KINDS:
            for work in works:
                work(kind, f"{place}/{kind}")
                dist.barrier()
    except BaseException:
        dist.destroy_process_group()
        raise
    os._exit(0)  # gloo's threads sometimes abort a process that ends in the usual way


def on_two_ranks(place: Path, *works: Callable[[str, str], None]) -> None:
    """Run functions for each kind in two processes; what one of them raises is raised here.

    Both are forks of a process that has imported this module, and what optimizers import, and nothing else.
    """
    store = place / "store"
    torch.multiprocessing.set_forkserver_preload([__name__, "torch._dynamo"])
    torch.multiprocessing.start_processes(
        _rank, (works, os.fspath(place), os.fspath(store)), nprocs=WORLD, start_method="forkserver"
    )


def test_two_ranks(tmp_path: Path) -> None:
    """Training goes on to the last bit, from shards of two ranks that became one file, and not without the moments."""
    for kind in KINDS:
        (tmp_path / kind).mkdir()
    on_two_ranks(tmp_path, saves, rewrites, loads, forgets)
