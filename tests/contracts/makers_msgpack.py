"""Flax's files, made and read by the msgpack library after flax/serialization.py (0.12.8), which needs jax.

`tests/formats/test_msgpack.py` proves that these make the bytes that flax made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import torch

from tests.contracts.makers_arrays import array

Array = np.ndarray[Any, Any]
CHUNKED = "__msgpack_chunked_array__"


def packed(value: Any) -> Any:
    """flax's `_msgpack_ext_pack`."""
    if isinstance(value, (np.ndarray, np.generic)):
        body = msgpack.packb((value.shape, value.dtype.name, value.tobytes()), use_bin_type=True)
        return msgpack.ExtType(1 if isinstance(value, np.ndarray) else 3, body)
    if isinstance(value, complex):
        return msgpack.ExtType(2, msgpack.packb((value.real, value.imag)))
    return value


def unpacked(kind: int, data: bytes) -> Any:
    """flax's `_msgpack_ext_unpack`."""
    if kind == 2:
        return complex(*msgpack.unpackb(data))
    shape, dtype, body = msgpack.unpackb(data, raw=True)
    name = dtype.decode()
    made = np.frombuffer(body, getattr(ml_dtypes, name, None) or np.dtype(name)).reshape(shape)
    return made if kind == 1 else made[()]


def chunked(value: Array, nbytes: int) -> dict[str, Any]:
    """flax's `_chunk`, with pieces of so many bytes."""
    step = max(1, nbytes // value.itemsize)
    pieces = [value.reshape(-1)[k : k + step] for k in range(0, value.size, step)]
    return {
        CHUNKED: True,
        "shape": {str(k): size for k, size in enumerate(value.shape)},
        "chunks": {str(k): piece for k, piece in enumerate(pieces)},
    }


def whole(tree: Any) -> Any:
    """flax's `_unchunk_array_leaves_in_place`."""
    if not isinstance(tree, dict):
        return tree
    if CHUNKED not in tree:
        return {key: whole(value) for key, value in tree.items()}
    shape = tuple(tree["shape"][str(k)] for k in range(len(tree["shape"])))
    return np.concatenate([tree["chunks"][str(k)] for k in range(len(tree["chunks"]))]).reshape(shape)


def saved(tree: Any) -> bytes:
    """flax's `msgpack_serialize`."""
    return bytes(msgpack.packb(tree, default=packed, strict_types=True))


def restored(data: bytes) -> Any:
    """flax's `msgpack_restore`."""
    return whole(msgpack.unpackb(data, ext_hook=unpacked, raw=False, strict_map_key=False))


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{keys joined by `/`: array}"""
    if isinstance(tree, (np.ndarray, np.generic)):
        return {prefix.removesuffix("/"): tree}
    if not isinstance(tree, dict):
        return {}
    return {name: value for key, inner in tree.items() for name, value in flat(inner, f"{prefix}{key}/").items()}


def nested(folder: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    """Parameters in two collections, with plain values beside them."""
    values = {name: array(tensor) for name, tensor in tensors.items()}
    names = list(values)
    tree = {
        "step": 3,
        "params": {name: values[name] for name in names[:5]},
        "batch_stats": {"bn": {name: values[name] for name in names[5:]}},
        "config": {"rate": 0.5, "tail": [None, True, "ü", b"raw", 1 + 2j]},
    }
    (folder / "model.msgpack").write_bytes(saved(tree))
    return folder / "model.msgpack"


def load(path: Path) -> dict[str, Any]:
    """Every array by the keys that lead to it."""
    return flat(restored(path.read_bytes()))
