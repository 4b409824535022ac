"""Recurrent networks of PyTorch as files: as modules save them, and as they look when they were saved from a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Tensors = dict[str, torch.Tensor]


def state(module: nn.Module, at: str) -> Tensors:
    """A module's tensors under a prefix."""
    return {f"{at}.{name}": tensor for name, tensor in module.state_dict().items()}


def flattened(module: nn.RNNBase, at: str, tail: int = 0) -> Tensors:
    """The same as windows on one buffer in cuDNN's order, as `flatten_parameters` leaves them on a GPU.

    `tail` zeros stand behind them, as they do where a network has no biases.
    """
    own = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    order = sorted(own, key=lambda name: name.startswith("bias"))
    buffer = torch.cat([*(own[name].flatten() for name in order), torch.zeros(tail)])
    windows, start = {}, 0
    for name in order:
        windows[name] = buffer[start : start + own[name].numel()].view(own[name].shape)
        start += own[name].numel()
    return {f"{at}.{name}": windows[name] for name in own}


def flat(module: nn.Module) -> bytes:
    """The bytes of a network's buffer in cuDNN's order: all matrices, then all biases."""
    own = module.state_dict()
    order = sorted(own, key=lambda name: name.startswith("bias"))
    return b"".join(own[name].contiguous().view(torch.uint8).numpy().tobytes() for name in order)


def save(folder: Path, tensors: Mapping[str, Any], path: str = "m.pt") -> Path:
    torch.save(dict(tensors), folder / path)
    return folder / path


def raw(arrays: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Names with dtype, shape and bytes: what equality means."""
    found = {}
    for name, array in arrays.items():
        if isinstance(array, torch.Tensor):
            kind, data = str(array.dtype).split(".")[-1], array.detach().contiguous().view(-1).view(torch.uint8)
            found[name] = (kind, tuple(array.shape), data.numpy().tobytes())
        else:
            found[name] = (array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())
    return found


def shared(arrays: Mapping[str, Any]) -> set[frozenset[str]]:
    """Sets of names that stand on the same first byte when loaded, of those with more than one name."""
    by_place: dict[int, set[str]] = {}
    for name, array in arrays.items():
        by_place.setdefault(array.__array_interface__["data"][0], set()).add(name)
    return {frozenset(names) for names in by_place.values() if len(names) > 1}


class Tagger(nn.Module):
    """An embedding that the head shares, two recurrent layers, and a module beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(10, 6)
        self.enc = nn.LSTM(6, 8, 2, bidirectional=True)
        self.norm = nn.LayerNorm(16)
        self.gru = nn.GRU(16, 6, bias=False)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.emb.weight
