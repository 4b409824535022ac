"""Texts that are not UTF-8, wherever a file or a command line can have one: they work, or they are refused cleanly."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import paramtool
from tests.hostile.command import Hostile, check, command, quick
from tests.hostile.makers_safetensors import build, item

ODD = os.fsdecode(b"fi\xffle")
only_bytes = pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="names of files are text on this system")


def hdf5(fill: Callable[[h5py.File], object]) -> Callable[[Path], Path]:
    """An HDF5 file with one honest dataset, and what `fill` adds."""

    def make(folder: Path) -> Path:
        with h5py.File(folder / "m.h5", "w") as file:
            file["w"] = np.ones(3, "f4")
            fill(file)
        return folder / "m.h5"

    return make


def pickled(value: object) -> Callable[[Path], Path]:
    """A file of torch.save."""

    def make(folder: Path) -> Path:
        torch.save(value, folder / "m.pt")
        return folder / "m.pt"

    return make


def index(folder: Path) -> Path:
    """An index whose shard has half of a surrogate pair in its name."""
    (folder / "m.safetensors.index.json").write_text('{"weight_map": {"w": "\\ud800.safetensors"}}')
    return folder / "m.safetensors.index.json"


TEXT = h5py.string_dtype()
CASES: dict[str, Hostile] = {
    "name_of_a_dataset": Hostile(hdf5(lambda f: f.__setitem__(b"w\xff", np.ones(3))), ("UTF-8",)),
    "name_of_a_group": Hostile(hdf5(lambda f: f.__setitem__(b"g\xff/w", np.ones(3))), ("UTF-8",)),
    "attribute": Hostile(hdf5(lambda f: f.attrs.create("backend", b"\xff", dtype=TEXT)), ("backend", "UTF-8")),
    "attribute_of_bytes": Hostile(hdf5(lambda f: f.attrs.__setitem__("keras_version", np.bytes_(b"\xff"))), ("utf-8",)),
    "list_of_names": Hostile(
        hdf5(lambda f: f.attrs.create("layer_names", [b"\xff"], dtype=TEXT)), ("not in the file",)
    ),
    "index": Hostile(index, ("surrogate",)),
    "name_in_a_pickle": Hostile(pickled({"w\ud800": torch.ones(3)}), (), 0, 6),
    "text_in_a_pickle": Hostile(pickled({"w": torch.ones(3), "x\udc80": "text\ud800"}), (), 0, 0),
}


@pytest.mark.parametrize("key", CASES)
def test_a_text_that_is_not_utf_8(key: str, tmp_path: Path) -> None:
    """Exit 3 where the format has text there; what a pickle can say is shown, and refused by safetensors by name."""
    check(CASES[key], tmp_path)


def test_what_a_pickle_says_is_written_to_a_torch_file(tmp_path: Path) -> None:
    """torch.load takes halves of surrogate pairs, and gets them back."""
    pickled({"w\ud800": torch.ones(3), "x\udc80": "text\ud800"})(tmp_path)
    assert quick("dedup", "m.pt", "-o", "o.pt", cwd=tmp_path).code == 0
    found = torch.load(tmp_path / "o.pt", weights_only=True)
    assert list(found) == ["w\ud800", "x\udc80"] and found["x\udc80"] == "text\ud800"
    ran = quick("inspect", "--json", "--tensors", "o.pt", cwd=tmp_path)
    assert ran.out.isascii() and json.loads(ran.out)["tensor_list"][0]["name"] == "w\ud800"


@only_bytes
def test_names_of_files_and_folders(tmp_path: Path) -> None:
    """Every command takes names that are not UTF-8, for inputs, outputs and what is beside them."""
    held = io.BytesIO()
    torch.save({"w": torch.ones(3)}, held)
    (tmp_path / f"{ODD}.pt").write_bytes(held.getvalue())
    (tmp_path / ODD).mkdir()
    (tmp_path / ODD / "pytorch_model.bin").write_bytes(held.getvalue())
    (tmp_path / ODD / f"{ODD}.txt").write_text("beside")
    for words in (
        ("inspect", f"{ODD}.pt"), ("inspect", "--json", ODD), ("dedup", f"{ODD}.pt"), ("dedup", ODD, "-o", f"o{ODD}"),
        ("dedup", f"{ODD}.pt", "-o", f"p{ODD}.pt", "--json"), ("dedup", f"o{ODD}", ODD, "-o", f"family{ODD}"),
        ("verify", f"p{ODD}.pt", "--against", f"{ODD}.pt"), ("export", ODD, "--all-names", "-o", f"e{ODD}"),
    ):  # fmt: skip
        ran = (command if "--json" in words else quick)(*words, cwd=tmp_path)
        assert ran.code == 0, (words, ran)
        assert "--json" not in words or json.loads(ran.out)
    assert (tmp_path / f"o{ODD}" / f"{ODD}.txt").read_text() == "beside"
    ran = command("inspect", f"no{ODD}", "--json", cwd=tmp_path)
    assert ran.code == 3 and repr(ODD)[1:-1] in json.loads(ran.out)["message"]


PAIRED = build({"__metadata__": {"best": "w", "format": "pt"}, "w": item()})


@pytest.mark.parametrize(
    "words",
    [("export", "--all-names", "-o", "o.safetensors"), ("dedup", "-o", "o.safetensors"), ("dedup", "-o", "o.pt"),
     ("dedup", "-o", "o", "--max-shard-size", "1kB")],
    ids=" ".join,
)  # fmt: skip
def test_metadata_that_names_a_tensor_beside_a_record(words: tuple[str, ...], tmp_path: Path) -> None:
    """`best: w` is a string where a record says so, and stays one: it is no second name of `w`."""
    empty = json.dumps({"version": 1, "aliases": {}, "stored": {}, "spans": []})
    header = {"__metadata__": {"paramtool.aliases": empty, "best": "w"}, "w": item()}
    (tmp_path / "m.safetensors").write_bytes(build(header))
    ran = quick(words[0], "m.safetensors", *words[1:], cwd=tmp_path)
    assert ran.code == 0, ran
    found = paramtool.read(tmp_path / words[words.index("-o") + 1])
    assert list(found.entries) == ["w"] and found.metadata["best"] == "w"


def test_without_a_record_it_is_a_flat_pair(tmp_path: Path) -> None:
    """As safetensors' own `save_model` writes ties."""
    (tmp_path / "m.safetensors").write_bytes(PAIRED)
    assert list(paramtool.read(tmp_path / "m.safetensors").entries) == ["w", "best"]
