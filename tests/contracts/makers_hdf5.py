"""Small HDF5 files in the manner of Keras and of JLD2, made and read by h5py."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import torch

from tests.contracts.makers_onnx import array

CONFIG = {"class_name": "Sequential", "config": {"name": "m", "layers": [
    {"class_name": "GRU", "config": {"name": "rec", "units": 2, "activation": "tanh", "recurrent_activation": "sigmoid",
                                     "use_bias": False, "reset_after": True, "go_backwards": False}},
]}}  # fmt: skip
JULIA = b"HDF5-based Julia Data Format, version 0.1.1\0 (made by h5py)"


def put(group: h5py.Group, name: str, held: np.ndarray) -> h5py.Dataset:
    """A dataset; bfloat16 as Keras 3 writes it (saving_lib.py, H5Entry)."""
    made = group.create_dataset(name, data=held)
    if held.dtype == ml_dtypes.bfloat16:
        made.attrs["dtype"] = "bfloat16"
    return made


def legacy(folder: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    """The manner of Keras 2: layers and their weights in the order of attributes, which is not that of the alphabet."""
    with h5py.File(folder / "model.h5", "w") as file:
        file.attrs["keras_version"] = b"2.4.0"
        file.attrs["layer_names"] = [b"z_layer", b"a_layer"]
        names = list(tensors)
        for layer, part in (("z_layer", names[:4]), ("a_layer", names[4:])):
            group = file.create_group(layer)
            group.attrs["weight_names"] = [f"{layer}/{name}:0".encode() for name in part]
            for name in sorted(part):
                put(group, f"{layer}/{name}:0", array(tensors[name]))
        file["a_layer/again"] = file[f"z_layer/z_layer/{names[0]}:0"]
    return folder / "model.h5"


def zipped(folder: Path) -> Path:
    """The manner of Keras 3: a zip that stores three members."""
    held = io.BytesIO()
    with h5py.File(held, "w") as file:
        rows = iter(range(100, 1000, 100))
        for k, shape in enumerate([(3, 6), (2, 6)]):
            put(file, f"layers/gru/cell/vars/{k}", np.arange(np.prod(shape), dtype="f4").reshape(shape) + next(rows))
        for k in range(11):
            put(file, f"optimizer/vars/{k}", np.full(2, k, "f4"))
    texts = {"metadata.json": json.dumps({"keras_version": "3.15.1"}), "config.json": json.dumps(CONFIG)}
    with zipfile.ZipFile(folder / "model.keras", "w") as archive:
        for name, data in [*texts.items(), ("model.weights.h5", held.getvalue())]:
            archive.writestr(zipfile.ZipInfo(name), data)
    return folder / "model.keras"


def julia(folder: Path) -> Path:
    """The manner of JLD2: arrays by name, and a struct that refers to arrays, one of them twice."""
    path = folder / "model.jld2"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["w"] = np.arange(12, dtype="f8").reshape(3, 4) + 100
        file["v"] = np.arange(5, dtype="f4")
        file["again"] = file["v"]
        # JLD2 leaves these without a name; h5py would drop them, so they stand where a reader does not look for arrays.
        hidden = [put(file, f"_types/{k}", np.arange(6, dtype="f4").reshape(2, 3) + k) for k in (10, 20)]
        kind = np.dtype([("Wi", h5py.ref_dtype), ("Wh", h5py.ref_dtype), ("tied", h5py.ref_dtype), ("n", "i8")])
        struct = np.zeros((), kind)
        for label, target in (("Wi", hidden[0]), ("Wh", hidden[1]), ("tied", hidden[0])):
            struct[label] = target.ref
        file.create_dataset("cell", data=struct)
    with path.open("r+b") as raw:
        raw.write(JULIA)
    return path


def load(path: Path) -> dict[str, Any]:
    """What h5py has of a file, or of the weights in a zip; one array for each dataset, however often it is linked."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            source: Any = io.BytesIO(archive.read("model.weights.h5"))
    else:
        source = path
    with h5py.File(source, "r") as file:
        shared: dict[int, np.ndarray] = {}
        return {name: shared.setdefault(h5py.h5o.get_info(d.id).addr, _array(d)) for name, d in _datasets(file, "")}


def _datasets(group: h5py.Group, path: str) -> Iterator[tuple[str, h5py.Dataset]]:
    for name, child in group.items():
        if isinstance(child, h5py.Group):
            yield from _datasets(child, f"{path}{name}/")
        else:
            yield path + name, child


def _array(dataset: h5py.Dataset) -> np.ndarray:
    held = np.asarray(dataset[()])
    return held.view(ml_dtypes.bfloat16) if dataset.attrs.get("dtype") == "bfloat16" else held


def load_julia(path: Path) -> dict[str, np.ndarray]:
    """The arrays of `julia` as Julia shapes them: turned round."""
    with h5py.File(path) as file:
        shared = {name: file[name][()].T for name in ("w", "v")}
        struct = file["cell"][()]
        targets = {f"cell.{label}": file[struct[label]] for label in ("Wi", "Wh")}
        shared |= {name: dataset[()].T for name, dataset in targets.items()}
        return {**shared, "again": shared["v"], "cell.tied": shared["cell.Wi"]}
