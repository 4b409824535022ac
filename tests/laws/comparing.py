"""Two checkpoints that the safetensors library writes, compared by `diff`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.commands.progress import MEMORY_NBYTES

Arrays = Mapping[str, np.ndarray]


def compared(place: Path, a: Arrays, b: Arrays, memory: int = MEMORY_NBYTES) -> Diffed:
    """The comparison of two sets of tensors, written to a folder."""
    for name, tensors in (("a", a), ("b", b)):
        save_file({key: np.ascontiguousarray(one) for key, one in tensors.items()}, place / f"{name}.safetensors")
    return diff(place / "a.safetensors", place / "b.safetensors", memory=memory)


def has_same_numbers(found: Diffed) -> bool:
    """Whether all numbers are the same, whatever a model that takes the names as they are computes."""
    return replace(found, doubts=()).is_same


def verdicts(found: Diffed) -> dict[str, str]:
    """{tensor of the second: its verdict}"""
    return {name: one.kind for one in found.tensors for name in one.b}


def numbers(random: np.random.Generator, shape: int | tuple[int, ...], kind: str) -> np.ndarray:
    """Random numbers of a type, by its name in NumPy or ml_dtypes."""
    dtype = getattr(ml_dtypes, kind, kind)
    return (random.normal(size=shape) * 40).astype("i8" if np.dtype(dtype).kind in "iu" else "f8").astype(dtype)
