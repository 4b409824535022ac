"""One rank of a training: `python run_ranks.py FOLDER KIND WORLD RANK` saves its part of a model as trainers do.

Rank 0 also saves the whole model, `truth.pt`, before it is split.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    """Sizes that no number of ranks divides, a tied head, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.emb, self.norm = nn.Embedding(11, 8), nn.BatchNorm1d(7)
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 7)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.emb.weight


def main(folder: Path, kind: str, world: int, rank: int) -> None:
    """Split a model and save one part of it."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    net, file = Net(), folder / "ranks" / f"model_world_size_{world}_rank_{rank}.pt"
    if rank == 0:
        torch.save(net.state_dict(), folder / "truth.pt")
    if kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

        split = FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
        with FullyShardedDataParallel.state_dict_type(split, StateDictType.SHARDED_STATE_DICT):
            torch.save(split.state_dict(), file)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        lengths = (world,) if kind == "fsdp2" else (2, world // 2)
        mesh = init_device_mesh("cpu", lengths, mesh_dim_names=("one", "two")[: len(lengths)])
        if kind == "tensor parallel":
            parallelize_module(net, mesh["two"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            mesh = mesh["one"]
        fully_shard(net, mesh=mesh)
        torch.save(net.state_dict(), file)
        adam = torch.optim.Adam(net.parameters())
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        adam.step()
        torch.save(adam.state_dict(), folder / "ranks" / f"optim_world_size_{world}_rank_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
