"""Small files of every format, each with its oracle and with where its tensor bytes stand.

A row of `paramtool.formats.table` without a case here fails a test.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import snappy
import torch
from safetensors.torch import load_file, save_file

from tests.contracts import (
    makers_arrays,
    makers_bson,
    makers_dcp,
    makers_hdf5,
    makers_msgpack,
    makers_onnx,
    makers_tensorflow,
)


def state() -> dict[str, torch.Tensor]:
    """Tied, sliced, transposed, fused and plain tensors of several dtypes."""
    w = torch.arange(12, dtype=torch.float32).view(3, 4) + 100
    fused = torch.arange(10, dtype=torch.int64) + 1000
    return {
        "emb.weight": w,
        "head.weight": w,
        "row": w[1],
        "turned": w.t(),
        "fused.a": fused[:4],
        "fused.b": fused[4:],
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "scalar": torch.tensor(7.0, dtype=torch.float64),
        "none": torch.empty(0, 3),
    }


def distinct() -> dict[str, torch.Tensor]:
    """The same with storages of their own, which safetensors demands."""
    return {name: tensor.clone().contiguous() for name, tensor in state().items()}


class Case(NamedTuple):
    """A form of a format."""

    format: str
    """Its row in FORMATS, or the format's own name where it has none."""
    name: str
    make: Callable[[Path], Path]
    """Writes it under a folder; the path to read."""
    oracle: Callable[[Path], dict[str, Any]]
    """What the reference implementation reads from it."""
    swaps: bool = False
    """Whether its values are turned round when they are read, so the file holds other bytes."""


def load_torch(path: Path) -> dict[str, Any]:
    """torch's own reader, without code of the file."""
    return dict(torch.load(path, weights_only=True))


def zip_file(folder: Path) -> Path:
    """torch.save since 1.6."""
    torch.save(state(), folder / "model.pt")
    return folder / "model.pt"


def zip_without_crc(folder: Path) -> Path:
    """The zip form with CRC 0 everywhere, which means not computed."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        return zip_file(folder)
    finally:
        torch.serialization.set_crc32_options(before)


def stacked(folder: Path) -> Path:
    """torch.save up to 1.5."""
    torch.save(state(), folder / "model.pt", _use_new_zipfile_serialization=False)
    return folder / "model.pt"


def safetensors(folder: Path) -> Path:
    """A file of the safetensors library."""
    save_file(distinct(), folder / "model.safetensors", {"format": "pt", "note": "ü"})
    return folder / "model.safetensors"


def sharded(folder: Path) -> Path:
    """Two files of the safetensors library and an index."""
    import json

    tensors = list(distinct().items())
    weight_map = {}
    for k, part in enumerate((tensors[:4], tensors[4:])):
        name = f"model-{k + 1:05d}-of-00002.safetensors"
        save_file(dict(part), folder / name, {"format": "pt"})
        weight_map |= {key: name for key, _ in part}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def load_sharded(index: Path) -> dict[str, Any]:
    """Every shard, by the safetensors library."""
    import json

    files = dict.fromkeys(json.loads(index.read_text())["weight_map"].values())
    return {name: tensor for file in files for name, tensor in load_file(index.parent / file).items()}


# --- the tar form of torch 0.1 (docs: torch/serialization.py, legacy_load) -------------------------------------------


class _Storage(NamedTuple):
    key: int
    tensor: torch.Tensor


class _TarPickler(pickle._Pickler):  # type: ignore[name-defined,misc]  # the Python one calls save_global
    """Tensors become persistent ids, storage types become names of torch's old classes."""

    def persistent_id(self, obj: object) -> object:
        return str(id(obj)) if isinstance(obj, torch.Tensor) else None


def _types(dtype: torch.dtype) -> tuple[type, str]:
    names = {torch.float32: "Float", torch.int64: "Long", torch.float64: "Double"}
    return getattr(torch, f"{names[dtype]}Storage"), f"torch.{names[dtype]}Tensor"


def tar_file(folder: Path, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    """torch.save of 0.1.1 to 0.1.9: members `sys_info`, `pickle`, `storages`, `tensors`."""
    old = {torch.float32, torch.int64, torch.float64}
    tensors = tensors or {n: t for n, t in state().items() if t.dtype in old and t.numel()}
    storages: dict[int, int] = {}
    roots = {t.untyped_storage().data_ptr(): t for t in tensors.values()}
    members = {"sys_info": pickle.dumps({"protocol_version": 1000, "little_endian": True}, 2)}
    body = io.BytesIO()
    _TarPickler(body, 2).dump(OrderedDict(tensors))
    members["pickle"] = body.getvalue()
    out = io.BytesIO()
    pickle.dump(len(roots), out, 2)
    for key, (address, tensor) in enumerate(roots.items()):
        storages[address] = key
        data = bytes(tensor.untyped_storage())
        pickle.dump((key, "cpu", _types(tensor.dtype)[0]), out, 2)
        out.write(struct.pack("<q", len(data) // tensor.element_size()) + data)
    pickle.dump([], out, 2)
    members["storages"] = out.getvalue()
    out = io.BytesIO()
    different = {id(t): t for t in tensors.values()}.values()
    pickle.dump(len(different), out, 2)
    for tensor in different:
        key = storages[tensor.untyped_storage().data_ptr()]
        pickle.dump((id(tensor), key, getattr(torch, _types(tensor.dtype)[1].removeprefix("torch."))), out, 2)
        out.write(struct.pack("<i", tensor.dim()) + bytes(4))
        out.write(struct.pack(f"<{2 * tensor.dim()}q", *tensor.shape, *tensor.stride()))
        out.write(struct.pack("<q", tensor.storage_offset()))
    members["tensors"] = out.getvalue()
    with tarfile.open(folder / "model.pt", "w:", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        end = archive.offset
    os.truncate(folder / "model.pt", end + 1024)  # two empty blocks end an archive; the rest is padding
    return folder / "model.pt"


def load_tar(path: Path) -> dict[str, Any]:
    """torch's reader of a file that this module made itself; the tar form needs the unrestricted one.

    It extracts without a filter, of which Python 3.12 and 3.13 warn.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Python 3.14 will, by default, filter", DeprecationWarning)
        return dict(torch.load(path, weights_only=False))


CASES = (
    Case("torch", "zip", zip_file, load_torch),
    Case("torch", "zip without CRC", zip_without_crc, load_torch),
    Case("torch", "stacked", stacked, load_torch),
    Case("torch", "tar", tar_file, load_tar),
    Case("dcp", "single", lambda folder: makers_dcp.single(folder, state()), makers_dcp.load),
    Case("safetensors", "whole", safetensors, lambda path: load_file(path)),
    Case("sharded", "index", sharded, load_sharded),
    Case("onnx", "raw_data", lambda folder: makers_onnx.raw(folder, distinct()), makers_onnx.load),
    Case("onnx", "float_data", lambda folder: makers_onnx.typed(folder, distinct()), makers_onnx.load),
    Case("onnx", "external data", lambda folder: makers_onnx.external(folder, state()), makers_onnx.load),
    Case("keras", "legacy", lambda folder: makers_hdf5.legacy(folder, distinct()), makers_hdf5.load),
    Case("keras", "zip", makers_hdf5.zipped, makers_hdf5.load),
    Case("jld2", "struct", makers_hdf5.julia, makers_hdf5.load_julia),
    Case("bson", "model", makers_bson.model, makers_bson.load),
    *(
        Case("mxnet", v, partial(makers_arrays.mxnet, v, distinct), partial(makers_arrays.held, v, distinct))
        for v in ("V0", "V1", "V2", "V3")
    ),
    Case("npz", "stored", lambda folder: makers_arrays.npz(folder, distinct()), makers_arrays.load_npz),
    Case(
        "tensorflow",
        "bundle",
        lambda folder: makers_tensorflow.plain(folder, distinct()),
        partial(makers_arrays.held, "V3", distinct),
    ),
    Case(
        "tensorflow",
        "two files, compressed",
        lambda folder: makers_tensorflow.plain(folder, distinct(), shards=2, per_block=3, squeeze=snappy.compress),
        partial(makers_arrays.held, "V3", distinct),
    ),
    Case(
        "tensorflow",
        "objects",
        lambda folder: makers_tensorflow.shared(folder, distinct()),
        partial(makers_tensorflow.held_shared, distinct()),
    ),
    Case("npz", "bare npy", lambda folder: makers_arrays.npy(folder, distinct()["emb.weight"]), makers_arrays.load_npz),
    *(
        Case("pickle", f"protocol {k}", partial(makers_arrays.pickled, k, distinct), makers_arrays.load_pickled)
        for k in (3, 4, 5)
    ),
    Case("msgpack", "nested", lambda folder: makers_msgpack.nested(folder, distinct()), makers_msgpack.load),
)
