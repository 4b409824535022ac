"""Files of random pairs: safetensors and torch write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.laws.diff_trials.pairs import Array, Arrays, Pair


def written(one: Pair, place: Path) -> tuple[Path, Path]:
    """A pair as files."""
    found = []
    for side, arrays, objects, ending in zip("ab", one.sides, one.objects, one.endings, strict=True):
        path = place / f"{side}{ending}"
        if ending == ".pt":
            _by_torch(path, arrays, objects)
        else:
            save_file({name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}, path)
        found.append(path)
    return found[0], found[1]


def _by_torch(path: Path, arrays: Arrays, objects: Mapping[str, Any]) -> None:
    """A file of `torch.save`; arrays that share memory share it there, too."""
    import torch

    roots: dict[int, torch.Tensor] = {}
    state: dict[str, Any] = {}
    for name, array in arrays.items():
        root = owner(array)
        if id(root) not in roots:
            roots[id(root)] = _tensor(root)
        state[name] = _window(roots[id(root)], root, array)
    for name, value in objects.items():
        state[name] = _quantised(*value) if isinstance(value, tuple) else value
    torch.save(state, path)


def owner(array: Array) -> Array:
    """The array whose memory another one is a window of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _tensor(array: Array) -> Any:
    """The same elements as a tensor of its own, of any type of torch."""
    import torch

    kind = getattr(torch, array.dtype.name)
    if array.dtype.kind in "biufc" and array.dtype.name != "bfloat16" and not array.dtype.name.startswith("float8"):
        return torch.from_numpy(array.copy())
    plain = array.view(f"i{array.dtype.itemsize}" if array.dtype.itemsize > 1 else "u1")
    return torch.from_numpy(plain.copy()).view(kind)


def _window(tensor: Any, root: Array, array: Array) -> Any:
    """A window of an array as the same one of its tensor."""
    size = root.itemsize
    start = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return tensor.as_strided(array.shape, [step // size for step in array.strides], start // size)


def _quantised(values: Array, scale: float) -> Any:
    """Codes of one byte and their scale as a tensor of torch's own."""
    import torch

    return torch._make_per_tensor_quantized_tensor(torch.from_numpy(values.copy()), scale, 0)
