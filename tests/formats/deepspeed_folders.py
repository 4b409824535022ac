"""Folders as the ranks of DeepSpeed save them, of any number of ranks, written with torch alone.

The arithmetic is that of DeepSpeed's runtime, in torch's own operations: `flatten_dense_tensors_aligned` and
`get_data_parallel_partitions` in runtime/zero/stage_1_and_2.py, and `partition` of parameters in
runtime/zero/partition_parameters.py.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

SLOTS = ("exp_avg", "exp_avg_sq")
Group = dict[str, torch.Tensor]


def padded(flat: torch.Tensor, unit: int) -> torch.Tensor:
    """A vector, with zeros up to a multiple of a length."""
    return torch.nn.functional.pad(flat, (0, -flat.numel() % unit))


def runs(group: Group, world: int) -> list[torch.Tensor]:
    """The vector of a group as stages 1 and 2 cut it, with its padding."""
    flat = padded(torch.cat([one.flatten() for one in group.values()]), 2 * world)
    return list(flat.reshape(world, -1))


def slices(group: Group, world: int) -> list[torch.Tensor]:
    """Each parameter as stage 3 cuts it, with its padding, one behind the other for each rank."""
    cut = [padded(one.flatten(), world).reshape(world, -1) for one in group.values()]
    return [torch.cat([one[rank] for one in cut]) for rank in range(world)]


def moments(groups: list[Group], slot: str) -> list[Group]:
    """What a slot has for each parameter."""
    add = 1000 * (1 + SLOTS.index(slot))
    return [{name: one + add for name, one in group.items()} for group in groups]


def save(
    folder: Path, groups: list[Group], world: int, stage: int, change: Callable[[int, Any], object] = lambda *_: None,
    *, shared: Mapping[str, str] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write the folder of a step; `change` may change the optimizer states of a rank before they are saved.

    `shared` is {another name of a parameter: its name}.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cut = slices if stage == 3 else runs
    flat = {key: [cut(g, world) for g in held] for key, held in
            {"fp32": groups, **{slot: moments(groups, slot) for slot in SLOTS}}.items()}  # fmt: skip
    numels = [sum(one.numel() for one in group.values()) for group in groups]
    for rank in range(world):
        state = {
            k: {"step": torch.tensor(4.0), **{slot: flat[slot][k][rank].clone() for slot in SLOTS}}
            for k in range(len(groups))
        }
        kept = {"lr": 0.5, "betas": (0.9, 0.99)}
        base = {"state": state, "param_groups": [{**kept, "params": [k]} for k in range(len(groups))]}
        held: dict[str, Any] = {"zero_stage": stage, "overflow": False, "partition_count": world}
        if stage == 3:
            held |= {"optimizer_state_dict": base, "fp32_flat_groups": [one[rank].clone() for one in flat["fp32"]]}
        else:
            lean = [one[rank][: max(0, n - rank * one[rank].numel())].clone()
                    for n, one in zip(numels, flat["fp32"], strict=True)]  # fmt: skip
            held |= {"base_optimizer_state": base, "single_partition_of_fp32_groups": lean}
            held["partition_count"] = [world] * len(groups)
        saved = {"optimizer_state_dict": held, "ds_version": "0.19.8"}
        change(rank, saved)
        torch.save(saved, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        if stage == 3 or not rank:
            name = f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" if stage == 3 else "mp_rank_00_model_states.pt"
            states = model_states(groups, world, stage)
            states["module"] |= {name: states["module"][owner] for name, owner in shared.items()}
            states["shared_params"] = {} if rank else dict(shared)
            torch.save(states, folder / name)


def model_states(groups: list[Group], world: int, stage: int) -> dict[str, Any]:
    """What the model states of a rank have."""
    names = {name: one for group in groups for name, one in group.items()}
    module = OrderedDict((n, torch.empty(0) if stage == 3 else t.to(torch.bfloat16)) for n, t in names.items())
    shapes = [OrderedDict((name, one.shape) for name, one in group.items()) for group in groups]
    return {
        "module": module,
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": shapes,
        "frozen_param_shapes": None,
        "shared_params": {},
        "frozen_param_fragments": None,
        "global_steps": 4,
        "dp_world_size": world,
        "ds_version": "0.19.8",
    }


def groups_of(shapes: list[list[tuple[int, ...]]]) -> list[Group]:
    """Parameters of these shapes, no two elements of which are equal."""
    found: list[Group] = []
    at = 1
    for k, group in enumerate(shapes):
        made: Group = {}
        for j, shape in enumerate(group):
            numel = math.prod(shape)
            made[f"g{k}.p{j}"] = torch.arange(at, at + numel, dtype=torch.float32).reshape(shape)
            at += numel
        found.append(made)
    return found
