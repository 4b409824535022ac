"""Folders of torch.distributed.checkpoint, and what its own loader reads from them."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from paramtool.formats.dcp.metadata import NAME

NAMES = ("emb.weight", "half", "scalar", "none")


def single(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A save of one process without ranks; the path of its `.metadata`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({name: tensors[name] for name in NAMES}, checkpoint_id=folder, no_dist=True)
    return folder / NAME


def load(path: Path) -> dict[str, Any]:
    """Every value under its name, as torch's loader gives it."""
    return flat(nested(path.parent))


def nested(folder: Path) -> Any:
    """The dicts and lists that were saved, as torch's own conversion to one file makes them again."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # from torch 2.3 on

        dcp_to_torch_save(folder, Path(place) / "whole.pt")
        return torch.load(Path(place) / "whole.pt", weights_only=True)


def flat(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    """The tensors of nested dicts and lists, under their names in paramtool."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inner = (flat(child, f"{name}.{key}" if name else str(key)) for key, child in pairs)
    return {key: tensor for part in inner for key, tensor in part.items()}
