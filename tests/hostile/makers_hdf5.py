"""Makers of HDF5 files that point elsewhere, are mazes, or make much of little."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from tests.hostile.command import Hostile

NAME = "model.h5"


def made(fill: Callable[[h5py.File, Path], object], name: str = NAME) -> Callable[[Path], Path]:
    """A file with one honest dataset, and what `fill` adds; outside stands a file with a secret."""

    def make(folder: Path) -> Path:
        with h5py.File(folder.parent / "secret.h5", "w") as file:
            file["w"] = np.arange(4, dtype="f4")
        with h5py.File(folder / name, "w") as file:
            file["honest"] = np.arange(3, dtype="f4")
            fill(file, folder)
        return folder / name

    return make


def _virtual(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("../secret.h5", "w", (4,))
    file.create_virtual_dataset("w", layout)


def _cycle(file: h5py.File, folder: Path) -> None:
    file["a/b"] = np.arange(2)
    file["a/again"] = file["/"]


def _wide(file: h5py.File, folder: Path) -> None:
    """Each group holds the next one twice: thirty of them have a thousand million paths."""
    group = file["/"]
    for _ in range(30):
        group = group.create_group("l")
        group.parent["r"] = group


def _foreign_filter(file: h5py.File, folder: Path) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((4,))
    plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (1,))  # zstd, which is a plug-in
    space = h5py.h5s.create_simple((4,))
    dataset = h5py.h5d.create(file.id, b"w", h5py.h5t.IEEE_F32LE, space, plist)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(4, dtype="f4"))


def _zeros(file: h5py.File, folder: Path, repeat: int = 1) -> None:
    """A gigabyte of which a few chunks are there."""
    dataset = file.create_dataset("w", (1 << 28,), "f4", chunks=(1 << 20,), compression="gzip")
    dataset[: 1 << 20] = 0


def _large_chunk(file: h5py.File, folder: Path) -> None:
    """Two elements, which stand in a chunk for two hundred million."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((1 << 24,))
    plist.set_deflate(9)
    space = h5py.h5s.create_simple((2,), (h5py.h5s.UNLIMITED,))
    dataset = h5py.h5d.create(file.id, b"w", h5py.h5t.IEEE_F64LE, space, plist)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(2, dtype="f8"))


def _deep(file: h5py.File, folder: Path) -> None:
    file["/".join("g" * 200) + "/w"] = np.arange(2)


def moved(target: str) -> Callable[[Path], Path]:
    """A file whose dataset `b` says that it stands where `a` does, or behind the end."""

    def make(folder: Path) -> Path:
        path = folder / NAME
        with h5py.File(path, "w") as file:
            file["a"], file["b"] = np.arange(4, dtype="f4"), np.arange(4, dtype="f4") + 10
        with h5py.File(path) as file:
            place = {name: file[name].id.get_offset() for name in "ab"}
        data = path.read_bytes()
        there = place["a"] + 4 if target == "a" else len(data) - 8
        old, new = struct.pack("<QQ", place["b"], 16), struct.pack("<QQ", there, 16)
        assert data.count(old) == 1
        path.write_bytes(data.replace(old, new))
        return path

    return make


def archive(*members: tuple[str, int]) -> Callable[[Path], Path]:
    """A `.keras` zip; members by name and compression, `model.weights.h5` with an honest file in it."""

    def make(folder: Path) -> Path:
        weights = made(lambda file, folder: None, "weights.h5")(folder).read_bytes()
        (folder / "weights.h5").unlink()
        with zipfile.ZipFile(folder / "model.keras", "w") as held:
            for name, method in members:
                info = zipfile.ZipInfo(name)
                info.compress_type = method
                held.writestr(info, weights if name.endswith(".h5") else b"{}")
        return folder / "model.keras"

    return make


INSIDE = "inside the file itself"
FILES: dict[str, Hostile] = {
    "external_link": Hostile(
        made(lambda f, _: f.__setitem__("w", h5py.ExternalLink("../secret.h5", "w"))), ("'w'", "secret", INSIDE), 4),
    "external_link_in_a_group": Hostile(
        made(lambda f, _: f.create_group("g").__setitem__("w", h5py.ExternalLink("/etc/passwd", "/"))), ("'g/w'",), 4),
    "external_link_for_the_weights": Hostile(
        made(lambda f, _: f.__setitem__("model_weights", h5py.ExternalLink("../secret.h5", "/"))), (INSIDE,), 4),
    "soft_link": Hostile(made(lambda f, _: f.__setitem__("w", h5py.SoftLink("/honest"))), ("'w'", "soft link")),
    "soft_link_to_nothing": Hostile(made(lambda f, _: f.__setitem__("w", h5py.SoftLink("/x"))), ("'w'", "soft link")),
    "external_storage": Hostile(
        made(lambda f, _: f.create_dataset("w", (4,), "f4", external=[("../secret.h5", 0, 16)])), ("'w'", INSIDE), 4),
    "virtual_dataset": Hostile(made(_virtual), ("'w'", INSIDE), 4),
    "a_group_that_holds_the_root": Hostile(made(_cycle), ("contains itself",)),
    "groups_too_deep": Hostile(made(_deep), ("deep",)),
    "a_thousand_million_paths": Hostile(made(_wide), ("groups and datasets",), 4),
    "a_filter_that_is_a_plug_in": Hostile(made(_foreign_filter), ("'w'", "32015")),
    "a_gigabyte_of_nothing": Hostile(made(_zeros), ("'w'", "1,073,741,824"), 4),
    "a_chunk_larger_than_its_dataset": Hostile(made(_large_chunk), ("'w'", "134,217,728"), 4),
    "datasets_that_overlap": Hostile(moved("a"), ("overlap",)),
    "a_dataset_behind_the_end": Hostile(moved("end")),
    "names_that_are_not_there": Hostile(
        made(lambda f, _: f.attrs.__setitem__("layer_names", [b"x", b"\x1b[2J"])), ("2 defects", "'x'")),
    "nothing_written": Hostile(made(lambda f, _: f.create_dataset("w", (1 << 20, 1 << 20), "f4")), ("w",), 0, 6),
    "zip_without_weights": Hostile(archive(("metadata.json", 0), ("config.json", 0)), ("model.weights.h5",)),
    "zip_with_compressed_weights": Hostile(archive(("metadata.json", 0), ("model.weights.h5", 8)), ("compressed",)),
    "zip_whose_weights_are_none": Hostile(archive(("model.weights.h5", 0), ("config.json", 0)), (), 0),
}  # fmt: skip


def endless(folder: Path) -> Path:
    """A file whose heap of strings says that its free space ends early; behind it objects of no length follow.

    libhdf5 2.0 steps over them by their length for ever.  Format: "Global Heap" in the file format specification.
    """
    path = folder / NAME
    with h5py.File(path, "w", libver="latest") as file:
        file.attrs["backend"] = "tensorflow"
        file["w"] = np.arange(3, dtype="f4")
    data = bytearray(path.read_bytes())
    at = data.index(b"GCOL") + 16
    while int.from_bytes(data[at : at + 2], "little"):  # object 0 is the free space
        at += 16 + -(-int.from_bytes(data[at + 8 : at + 16], "little") // 8) * 8
    data[at + 8 : at + 16] = (48).to_bytes(8, "little")
    path.write_bytes(data)
    return path
