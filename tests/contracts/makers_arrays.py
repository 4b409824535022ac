"""MXNet's and NumPy's files: a writer of `.params` after the structure that MXNet's source shows, and NumPy itself.

`tests/formats/test_mxnet.py` proves that this writer makes the bytes that MXNet makes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from struct import pack
from typing import Any

import ml_dtypes
import numpy as np
import torch

Array = np.ndarray[Any, Any]
Tensors = Callable[[], Mapping[str, torch.Tensor]]

FLAGS = {name: flag for flag, name in enumerate((
    "float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool", "int16", "uint16", "uint32", "uint64",
    "bfloat16",
))}  # fmt: skip
"""mshadow/base.h, TypeFlag."""
MARKS = {"V1": 0xF993FAC8, "V2": 0xF993FAC9, "V3": 0xF993FACA}


def array(tensor: torch.Tensor) -> Array:
    """A tensor as an array with memory of its own."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16)
    return tensor.numpy().copy()


def shape_of(sizes: Iterable[int]) -> bytes:
    """A shape as every version but the first writes it."""
    sizes = tuple(sizes)
    return pack(f"<i{len(sizes)}q", len(sizes), *sizes)


def dense(value: Array, version: str = "V2", device: tuple[int, int] = (1, 0)) -> bytes:
    """One NDArray that is stored whole."""
    if version == "V0":
        head = pack(f"<I{value.ndim}I", value.ndim, *value.shape)
    elif version == "V1":
        head = pack("<I", MARKS[version]) + shape_of(value.shape)
    else:
        head = pack("<Ii", MARKS[version], 0) + shape_of(value.shape)
    return head + pack("<iii", *device, FLAGS[value.dtype.name]) + value.tobytes()


def sparse(kind: int, shape: Iterable[int], data: Array, *auxiliary: Array) -> bytes:
    """One sparse NDArray: kind 1 is row_sparse, with its indices; 2 is csr, with its pointers and indices."""
    head = pack("<Ii", MARKS["V2"], kind) + shape_of(data.shape) + shape_of(shape)
    head += pack("<iii", 1, 0, FLAGS[data.dtype.name])
    head += b"".join(pack("<i", FLAGS[part.dtype.name]) + shape_of(part.shape) for part in auxiliary)
    return head + data.tobytes() + b"".join(part.tobytes() for part in auxiliary)


def name_of(text: str | bytes) -> bytes:
    """A name."""
    raw = text.encode() if isinstance(text, str) else text
    return pack("<Q", len(raw)) + raw


def params(arrays: Iterable[bytes], names: Iterable[str | bytes] = ()) -> bytes:
    """A whole list of arrays and names."""
    arrays, names = list(arrays), list(names)
    return b"".join([pack("<QQQ", 0x112, 0, len(arrays)), *arrays, pack("<Q", len(names)), *map(name_of, names)])


def saved(values: Mapping[str, Array], version: str = "V2") -> bytes:
    """A file of dense arrays."""
    return params((dense(value, version) for value in values.values()), values)


def held(version: str, tensors: Tensors, path: Path | None = None) -> dict[str, Array]:
    """The tensors that a version can hold: only V3 knows one without axes."""
    return {name: array(tensor) for name, tensor in tensors().items() if tensor.dim() or version == "V3"}


def mxnet(version: str, tensors: Tensors, folder: Path) -> Path:
    """A file of one version of NDArrays."""
    path = folder / "model-0001.params"
    path.write_bytes(saved(held(version, tensors), version))
    return path


def npz(folder: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    """np.savez."""
    np.savez(folder / "model.npz", **{name: array(tensor) for name, tensor in tensors.items()})
    return folder / "model.npz"


def npy(folder: Path, tensor: torch.Tensor) -> Path:
    """np.save."""
    np.save(folder / "model.npy", array(tensor))
    return folder / "model.npy"


def load_npz(path: Path) -> dict[str, Array]:
    """np.load, with the type that NumPy has no name for."""
    found = np.load(path)
    values = (
        {name: found[name] for name in found.files} if isinstance(found, np.lib.npyio.NpzFile) else {"arr_0": found}
    )
    return {name: v.view(ml_dtypes.bfloat16) if v.dtype == "V2" else v for name, v in values.items()}


def pickled(protocol: int, tensors: Tensors, folder: Path) -> Path:
    """A dict of arrays as Python's pickle writes it; the array of two names is one object."""
    arrays = {name: array(tensor) for name, tensor in tensors().items()}
    arrays["head.weight"] = arrays["emb.weight"]
    arrays["columns"] = np.asfortranarray(arrays["emb.weight"])
    (folder / "model.pkl").write_bytes(pickle.dumps({"model": arrays, "epoch": 3}, protocol))
    return folder / "model.pkl"


def load_pickled(path: Path) -> dict[str, torch.Tensor]:
    """By Python's pickle, which runs a file that this module made itself; an array of two names is one tensor."""
    made: dict[int, torch.Tensor] = {}
    found = pickle.loads(path.read_bytes())["model"]
    for value in found.values():
        if value.dtype == ml_dtypes.bfloat16:
            made[id(value)] = torch.from_numpy(value.view("i2")).view(torch.bfloat16)
        else:
            made[id(value)] = torch.from_numpy(value)
    return {f"model.{name}": made[id(value)] for name, value in found.items()}
